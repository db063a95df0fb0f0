//! Paths of znodes: which are allowed, and their parts.

use crate::jute::codes::ErrorCode;

/// Longest path, in bytes. ZooKeeper bounds paths by `jute.maxbuffer` alone; here they are keys of the store.
pub const MAX_PATH_BYTES: usize = 16 * 1024;

/// Most levels of the path of a new node. ZooKeeper has no such limit; here a change looks at each level for quotas and for watches
/// of whole subtrees. Deeper nodes that already exist are served like all others.
pub const MAX_LEVELS: usize = 256;

/// The root.
pub const ROOT: &str = "/";
/// What ZooKeeper keeps for itself.
pub const SYSTEM: &str = "/zookeeper";
/// Limits on subtrees.
pub const QUOTA: &str = "/zookeeper/quota";
/// The members of the ensemble.
pub const CONFIG: &str = "/zookeeper/config";

/// Whether the character may be in a path: neither control characters nor what Unicode keeps private or gives no meaning.
fn is_allowed(c: char) -> bool {
    !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

/// Whether a client may name a node so: absolute, no empty, `.` or `..` parts, no `/` at the end, nothing unprintable.
pub fn is_valid(path: &str) -> bool {
    if path == ROOT {
        return true;
    }
    let Some(rest) = path.strip_prefix('/') else { return false };
    path.len() <= MAX_PATH_BYTES
        && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
        // Most paths are ASCII, and checked quickest as bytes.
        && (path.bytes().all(|b| (b' '..=b'~').contains(&b)) || path.chars().all(is_allowed))
}

/// Whether a new node may not be so far down.
pub fn is_deep(path: &str) -> bool {
    path.bytes().filter(|b| *b == b'/').count() > MAX_LEVELS
}

/// The path, if it is allowed.
///
/// # Errors
/// It is not.
pub fn valid(path: &str) -> Result<&str, ErrorCode> {
    if is_valid(path) { Ok(path) } else { Err(ErrorCode::BadArguments) }
}

/// The parent, of a path that may not be allowed otherwise.
///
/// # Errors
/// It has no parent, or a character that ends keys.
pub fn parent(path: &str) -> Result<&str, ErrorCode> {
    match path.rsplit_once('/') {
        Some(("", _)) if !path.contains('\0') => Ok(ROOT),
        Some((parent, _)) if !path.contains('\0') => Ok(parent),
        _ => Err(ErrorCode::BadArguments),
    }
}

/// Parent and name; None for the root.
pub fn split(path: &str) -> Option<(&str, &str)> {
    if path == ROOT {
        return None;
    }
    let (parent, name) = path.rsplit_once('/')?;
    Some((if parent.is_empty() { ROOT } else { parent }, name))
}

/// Whether `path` is `top` or lies below it.
pub fn is_within(path: &str, top: &str) -> bool {
    top == ROOT || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether it belongs to the system: such a node is not deleted.
pub fn is_special(path: &str) -> bool {
    matches!(path, ROOT | SYSTEM | QUOTA | CONFIG)
}

/// The node above, the one above that, and so on up to the root.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(split(path).map(|(parent, _)| parent), |p| split(p).map(|(parent, _)| parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_zookeeper_refuses_is_refused() {
        for good in
            ["/", "/a", "/a/b", "/a.b", "/...", "/ä/ö", "/a b", "/zookeeper", "/\u{10000}", "/\u{ffef}"]
        {
            assert!(is_valid(good), "{good}");
        }
        for bad in [
            "",
            "a",
            "a/b",
            "//",
            "/a/",
            "/a//b",
            "/.",
            "/..",
            "/a/./b",
            "/a/../b",
            "/a\0",
            "/\u{1}",
            "/\u{1f}",
            "/\u{7f}",
            "/\u{9f}",
            "/\u{e000}",
            "/\u{f8ff}",
            "/\u{fff0}",
            "/\u{ffff}",
        ] {
            assert!(!is_valid(bad), "{bad:?}");
        }
        assert!(is_valid(&format!("/{}", "a".repeat(MAX_PATH_BYTES - 1))));
        assert!(!is_valid(&format!("/{}", "a".repeat(MAX_PATH_BYTES))));
        assert!(!is_deep(&"/a".repeat(MAX_LEVELS)) && is_deep(&"/a".repeat(MAX_LEVELS + 1)));
    }

    #[test]
    fn parts() {
        assert_eq!(split("/"), None);
        assert_eq!((parent("/a"), parent("//"), parent("/")), (Ok("/"), Ok("/"), Ok("/")));
        assert_eq!(
            (parent("a"), parent("/\0")),
            (Err(ErrorCode::BadArguments), Err(ErrorCode::BadArguments))
        );
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert!(is_within("/a/b", "/a") && is_within("/a", "/a") && is_within("/a", "/"));
        assert!(!is_within("/ab", "/a"));
    }
}

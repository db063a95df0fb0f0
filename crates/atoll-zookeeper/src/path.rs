//! Paths of znodes: which are allowed, and how they are divided.

use crate::jute::codes::ErrorCode;

/// Longest path, in bytes. ZooKeeper limits paths only by `jute.maxbuffer`; here they are keys of the store.
pub const MAX_PATH_BYTES: usize = 16 * 1024;

/// Most levels in the path of a new node. ZooKeeper has no such limit. Here, a change looks at each level for quotas and recursive
/// watches. Deeper nodes that already exist are served like all others.
pub const MAX_LEVELS: usize = 256;

/// The path of the root.
pub const ROOT: &str = "/";
/// The path of ZooKeeper's own nodes.
pub const SYSTEM: &str = "/zookeeper";
/// The path below which quotas are stored.
pub const QUOTA: &str = "/zookeeper/quota";
/// The path of the list of members.
pub const CONFIG: &str = "/zookeeper/config";

/// Returns whether a path may contain the character. Control characters, private characters and some unassigned ones are not
/// allowed.
fn is_allowed(c: char) -> bool {
    !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

/// Returns whether a path is allowed: absolute, without empty, `.` or `..` parts, without `/` at its end, without forbidden
/// characters, and not too long.
pub fn is_valid(path: &str) -> bool {
    if path == ROOT {
        return true;
    }
    let Some(rest) = path.strip_prefix('/') else { return false };
    path.len() <= MAX_PATH_BYTES
        && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
        // Most paths are ASCII, which is checked fastest as bytes.
        && (path.bytes().all(|b| (b' '..=b'~').contains(&b)) || path.chars().all(is_allowed))
}

/// Returns whether a path has too many levels for a new node.
pub fn is_deep(path: &str) -> bool {
    path.bytes().filter(|b| *b == b'/').count() > MAX_LEVELS
}

/// Returns the path if it is allowed.
///
/// # Errors
/// BadArguments: it is not allowed.
pub fn valid(path: &str) -> Result<&str, ErrorCode> {
    if is_valid(path) { Ok(path) } else { Err(ErrorCode::BadArguments) }
}

/// Returns the parent of a path, which need not be allowed otherwise.
///
/// # Errors
/// BadArguments: the path has no parent, or contains the NUL character, which separates the parts of keys.
pub fn parent(path: &str) -> Result<&str, ErrorCode> {
    match path.rsplit_once('/') {
        Some(("", _)) if !path.contains('\0') => Ok(ROOT),
        Some((parent, _)) if !path.contains('\0') => Ok(parent),
        _ => Err(ErrorCode::BadArguments),
    }
}

/// Returns parent and name, or None for the root.
pub fn split(path: &str) -> Option<(&str, &str)> {
    if path == ROOT {
        return None;
    }
    let (parent, name) = path.rsplit_once('/')?;
    Some((if parent.is_empty() { ROOT } else { parent }, name))
}

/// Returns whether `path` is `top` or below it.
pub fn is_within(path: &str, top: &str) -> bool {
    top == ROOT || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether the path is that of one of ZooKeeper's own nodes, which cannot be deleted.
pub fn is_special(path: &str) -> bool {
    matches!(path, ROOT | SYSTEM | QUOTA | CONFIG)
}

/// Returns the parent, its parent, and so on up to the root.
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

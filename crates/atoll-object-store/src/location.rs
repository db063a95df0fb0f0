//! Where a store is: its URL.

use std::fmt;

/// The longest URL.
const MAX_URL_BYTES: usize = 512;

/// What kind of store a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A directory that all nodes see: `file:///DIRECTORY`.
    File,
    /// A bucket of S3 or a compatible service: `s3://BUCKET/PREFIX`.
    S3 {
        /// The bucket.
        bucket: String,
    },
    /// The memory of this process: `memory:///PREFIX`. Only for tests.
    Memory,
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The kind of store.
    pub scheme: Scheme,
    /// What all names of objects begin with, without slashes at its ends. May be empty.
    pub prefix: String,
}

/// Why a URL is refused. The text does not repeat it, because a refused URL may contain a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the URL of an object store; allowed is {}", Location::ALLOWED)]
pub struct BadUrl;

impl Location {
    /// What is allowed.
    pub const ALLOWED: &'static str = "file:///DIRECTORY or s3://BUCKET/PREFIX, of letters, digits and . _ - / only; credentials and the \
                                       endpoint come from the environment of each node";

    /// Parses a URL. It has no user, password, query or escapes, so that no secret gets into a chain.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        let (scheme, rest) = url.split_once("://").ok_or(BadUrl)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let plain = |part: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !part.is_empty() && part != "." && part != ".." && part.chars().all(fits)
        };
        let path_is_plain = path.is_empty() || path.split('/').all(plain);
        if url.len() > MAX_URL_BYTES || !path_is_plain {
            return Err(BadUrl);
        }
        let scheme = match (scheme, host) {
            ("file", "") if !path.is_empty() => Scheme::File,
            ("memory", "") => Scheme::Memory,
            ("s3", bucket) if plain(bucket) => Scheme::S3 { bucket: bucket.to_owned() },
            _ => return Err(BadUrl),
        };
        Ok(Location { scheme, prefix: path.to_owned() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scheme {
            Scheme::File => write!(f, "file:///{}", self.prefix),
            Scheme::S3 { bucket } => write!(f, "s3://{bucket}/{}", self.prefix),
            Scheme::Memory => write!(f, "memory:///{}", self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_without_secrets_are_read_and_others_refused() {
        let of = |url: &str| Location::parse(url).map(|l| (l.scheme.clone(), l.prefix.clone()));
        let s3 = |bucket: &str| Scheme::S3 { bucket: bucket.to_owned() };
        assert_eq!(of("file:///var/lib/atoll/"), Ok((Scheme::File, "var/lib/atoll".to_owned())));
        assert_eq!(of("s3://logs/a/b"), Ok((s3("logs"), "a/b".to_owned())));
        assert_eq!(of("s3://logs"), Ok((s3("logs"), String::new())));
        for bad in [
            "s3://key:secret@logs/a",
            "s3://logs/a?secret=x",
            "s3:///a",
            "file://host/a",
            "file:///",
            "file:///a/../b",
            "file:///a//b",
            "file:///a%2e",
            "gs://logs/a",
            "logs",
            "",
        ] {
            assert_eq!(of(bad), Err(BadUrl), "{bad}");
        }
        assert!(!BadUrl.to_string().contains("secret"));
    }
}

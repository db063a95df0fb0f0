//! The configuration of an ObjectLoglet: where its objects are, and how they are made.

use std::fmt;

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, Reader};

use crate::ObjectOptions;

/// Version of the byte form.
const FORMAT: u8 = 1;
/// The longest URL.
const MAX_URL_BYTES: usize = 512;
/// The most bytes of entries in an object, before compression. A batch that is larger gets an object of its own.
pub const MAX_OBJECT_BYTES: u32 = 16 * 1024 * 1024;
/// The longest interval between two objects of one node.
pub const MAX_INTERVAL_MS: u32 = 60_000;
/// The most objects in a block.
pub const MAX_BLOCK_OBJECTS: u32 = 4096;

/// Where the objects of a Loglet are, and how they are made. It never contains a secret: credentials come from the environment of each
/// node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectConfig {
    /// The URL of the place below which the objects are; [`Location::parse`] says which are allowed.
    pub url: String,
    /// Names an object that was created at this place when the Loglet was planned. A node that does not find it there looks at another
    /// store, for example below a directory where nothing is mounted, and must not answer.
    pub token: u64,
    /// About how many bytes of entries an object has at most, before compression.
    pub batch_bytes: u32,
    /// How long a node waits from one object to the next, in milliseconds.
    pub interval_ms: u32,
    /// The number of objects that are deleted together.
    pub block_objects: u32,
}

impl ObjectConfig {
    /// Returns a configuration at this place, with the default sizes.
    pub fn at(url: &str, token: u64) -> Self {
        let ObjectOptions { batch_bytes, interval_ms, block_objects, .. } = ObjectOptions::default();
        ObjectConfig { url: url.to_owned(), token, batch_bytes, interval_ms, block_objects }
    }
}

impl Encode for ObjectConfig {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.url.encode(out);
        self.token.encode(out);
        self.batch_bytes.encode(out);
        self.interval_ms.encode(out);
        self.block_objects.encode(out);
    }
}

impl Decode for ObjectConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let within = |what, value: u32, low, high, allowed| {
            let invalid = DecodeError::Invalid { what, value: value.into(), allowed };
            if (low..=high).contains(&value) { Ok(value) } else { Err(invalid) }
        };
        match u8::decode(from)? {
            FORMAT => {}
            n => {
                let what = "version of an object loglet's configuration";
                return Err(DecodeError::Invalid { what, value: n.into(), allowed: "1" });
            }
        }
        let (url, token) = (String::decode(from)?, u64::decode(from)?);
        let (bytes, interval, block) = (u32::decode(from)?, u32::decode(from)?, u32::decode(from)?);
        Ok(ObjectConfig {
            url,
            token,
            batch_bytes: within("batch_bytes", bytes, 1, MAX_OBJECT_BYTES, "1 to 16777216")?,
            interval_ms: within("interval_ms", interval, 0, MAX_INTERVAL_MS, "0 to 60000")?,
            block_objects: within("block_objects", block, 1, MAX_BLOCK_OBJECTS, "1 to 4096")?,
        })
    }
}

pub(crate) fn parse(config: &Bytes) -> Result<ObjectConfig, DecodeError> {
    ObjectConfig::from_bytes(config.clone())
}

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
#[allow(clippy::unwrap_used)]
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

    #[test]
    fn a_configuration_is_what_it_was_and_has_bounds() {
        let config = ObjectConfig::at("s3://logs/a", 7);
        assert_eq!(parse(&config.to_bytes()), Ok(config.clone()));
        let none = ObjectConfig { block_objects: 0, ..config };
        assert!(parse(&none.to_bytes()).unwrap_err().to_string().contains("block_objects"));
    }
}

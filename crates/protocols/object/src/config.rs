//! The configuration of an ObjectLoglet: where its objects are, and how they are made.

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, Reader};

pub use atoll_object_store::{BadUrl, Location, Scheme};

use crate::ObjectOptions;

/// Version of the byte form.
const FORMAT: u8 = 1;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_what_it_was_and_has_bounds() {
        let config = ObjectConfig::at("s3://logs/a", 7);
        assert_eq!(parse(&config.to_bytes()), Ok(config.clone()));
        let none = ObjectConfig { block_objects: 0, ..config };
        assert!(parse(&none.to_bytes()).unwrap_err().to_string().contains("block_objects"));
    }
}

//! The keys of the store. The first byte of a key identifies its kind.

use atoll_contract::application::KeyRange;
use atoll_core::record;
use bytes::{BufMut, Bytes, BytesMut};

const GRANT: u8 = 1;
const TOKEN: u8 = 2;
/// Between the two parts of a grant's key. No name contains it.
const END: u8 = 0;

record! {
    /// A token as it is stored.
    pub struct KeptToken {
        /// See [`crate::Token`].
        pub hash: Bytes,
        /// See [`crate::Token`].
        pub created_ms: u64,
    }
}

/// Returns the key of a grant. Its value is the word of the right.
pub(crate) fn grant(who: &str, on: &str) -> Bytes {
    let mut key = BytesMut::from(&grants_of(who)[..]);
    key.put_slice(on.as_bytes());
    key.freeze()
}

fn grants_of(who: &str) -> Bytes {
    let mut key = BytesMut::with_capacity(who.len() + 2);
    key.put_u8(GRANT);
    key.put_slice(who.as_bytes());
    key.put_u8(END);
    key.freeze()
}

/// Returns the keys of the grants to somebody.
pub(crate) fn grants_to(who: &str) -> KeyRange {
    KeyRange::prefix(&grants_of(who))
}

/// Returns the keys of all grants.
pub(crate) fn grants() -> KeyRange {
    KeyRange::prefix(&[GRANT])
}

/// Returns to whom a grant is, and on what, from its key.
pub(crate) fn parts_of_grant(key: &[u8]) -> Option<(&str, &str)> {
    let text = std::str::from_utf8(key.strip_prefix(&[GRANT])?).ok()?;
    text.split_once(char::from(END))
}

/// Returns the key of a token.
pub(crate) fn token(name: &str) -> Bytes {
    let mut key = BytesMut::with_capacity(name.len() + 1);
    key.put_u8(TOKEN);
    key.put_slice(name.as_bytes());
    key.freeze()
}

/// Returns the keys of all tokens.
pub(crate) fn tokens() -> KeyRange {
    KeyRange::prefix(&[TOKEN])
}

/// Returns the name of a token from its key.
pub(crate) fn name_of_token(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&[TOKEN])?).ok()
}

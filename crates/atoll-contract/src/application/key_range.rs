//! Ranges of keys, and the direction of a scan.

use bytes::{Bytes, BytesMut};

/// The keys from `start` (inclusive) to `end` (exclusive), in byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key that may be in the range.
    pub start: Bytes,
    /// The first key after the range. None if the range is unbounded.
    pub end: Option<Bytes>,
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the lowest key up.
    Forward,
    /// From the highest key down.
    Backward,
}

/// Returns the smallest key above every key with this prefix. None if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|b| *b != u8::MAX)?;
    let mut end = BytesMut::from(&prefix[..=last]);
    end[last] += 1;
    Some(end.freeze())
}

impl KeyRange {
    /// Returns the range of all keys.
    pub fn all() -> Self {
        KeyRange { start: Bytes::new(), end: None }
    }

    /// Returns the range from `start` (inclusive) to `end` (exclusive).
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        KeyRange { start: start.into(), end: Some(end.into()) }
    }

    /// Returns the range of all keys that begin with `prefix`, including `prefix` itself.
    pub fn prefix(prefix: &[u8]) -> Self {
        KeyRange { start: Bytes::copy_from_slice(prefix), end: after_prefix(prefix) }
    }

    /// Returns the part of the range above `key` (exclusive).
    #[must_use]
    pub fn above(mut self, key: &[u8]) -> Self {
        if key >= &self.start[..] {
            let mut start = BytesMut::with_capacity(key.len() + 1);
            start.extend_from_slice(key);
            start.extend_from_slice(&[0]);
            self.start = start.freeze();
        }
        self
    }

    /// Returns the part of the range below `key` (exclusive).
    #[must_use]
    pub fn below(mut self, key: &[u8]) -> Self {
        if self.end.as_ref().is_none_or(|end| key < &end[..]) {
            self.end = Some(Bytes::copy_from_slice(key));
        }
        self
    }

    /// Returns true if no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Returns true if `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_ref().is_none_or(|end| key < &end[..])
    }

    /// Returns the same range of an application's keys, as the store keeps them.
    pub(super) fn within(&self, app: u8) -> KeyRange {
        let put = |key: &[u8]| {
            let mut full = BytesMut::with_capacity(key.len() + 1);
            full.extend_from_slice(&[app]);
            full.extend_from_slice(key);
            full.freeze()
        };
        let end = match &self.end {
            Some(end) => Some(put(end)),
            None => after_prefix(&[app]),
        };
        KeyRange { start: put(&self.start), end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_key_does() {
        assert_eq!(KeyRange::prefix(b"ab"), KeyRange::new(&b"ab"[..], &b"ac"[..]));
        assert_eq!(KeyRange::prefix(b"a\xff").end, Some(Bytes::from_static(b"b")));
        assert_eq!(KeyRange::prefix(b"\xff\xff").end, None);
        assert!(KeyRange::prefix(b"").contains(b""));
    }

    #[test]
    fn what_is_left_has_neither_the_key_nor_what_was_before() {
        let range = KeyRange::new(&b"b"[..], &b"f"[..]);
        assert_eq!(range.clone().above(b"a"), range);
        assert!(!range.clone().above(b"c").contains(b"c"));
        assert!(range.clone().above(b"c").contains(b"c\0"));
        assert!(!range.clone().below(b"c").contains(b"c"));
        assert_eq!(range.clone().below(b"g"), range);
        assert!(range.clone().below(b"b").is_empty());
        assert!(range.clone().above(b"f").is_empty());
    }

    #[test]
    fn an_applications_range_stays_its_own() {
        let all = KeyRange::all().within(7);
        assert!(all.contains(&[7]) && all.contains(&[7, 255, 255]));
        assert!(!all.contains(&[8]) && !all.contains(&[6, 255]));
    }
}

//! Sets of ids in their encoded form, so that a long ACL can be judged without decoding it.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};

use bytes::Bytes;
use twox_hash::XxHash3_64;

/// An entry of a stored ACL.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntry<'a> {
    pub perms: i32,
    pub scheme: &'a [u8],
    pub name: &'a [u8],
    /// Where the id begins in the ACL, in bytes.
    pub start: usize,
    /// The id in its encoded form. No such form is the beginning of another one.
    pub id: &'a [u8],
}

fn take<'a>(list: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let (length, _) = list.get(*at..)?.split_first_chunk::<4>()?;
    let start = *at + 4;
    let end = start.checked_add(usize::try_from(i32::from_be_bytes(*length)).ok()?)?;
    *at = end;
    list.get(start..end)
}

fn next<'a>(list: &'a [u8], at: &mut usize) -> Option<StoredEntry<'a>> {
    let (perms, _) = list.get(*at..)?.split_first_chunk::<4>()?;
    let start = *at + 4;
    *at = start;
    let (scheme, name) = (take(list, at)?, take(list, at)?);
    Some(StoredEntry { perms: i32::from_be_bytes(*perms), scheme, name, start, id: list.get(start..*at)? })
}

/// Passes each entry of a stored ACL to `one`, in order. Returns false if the ACL is not in the form that `stored` writes. Then `one`
/// may have been called for some of its entries.
#[must_use]
pub fn each_entry<'a>(list: &'a [u8], mut one: impl FnMut(StoredEntry<'a>)) -> bool {
    let Some((count, _)) = list.split_first_chunk::<4>() else { return false };
    let mut at = 4;
    for _ in 0..i32::from_be_bytes(*count) {
        let Some(entry) = next(list, &mut at) else { return false };
        one(entry);
    }
    true
}

/// Hashes a number to itself. It is for numbers that are hashes already.
#[derive(Debug, Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// A set of ids in their encoded form.
#[derive(Debug)]
pub struct IdSet {
    /// Contains the ids.
    bytes: Bytes,
    /// Where ids begin in `bytes`, by their hashes.
    starts: HashMap<u64, u32, BuildHasherDefault<Itself>>,
    /// Where further ids begin that have the hash of another one.
    others: Vec<u32>,
    /// Differs from set to set, so that no client can choose ids with the same hash.
    seed: u64,
}

impl IdSet {
    /// Creates an empty set for ids that are in `bytes`, and so many of them.
    pub fn new(bytes: Bytes, count: usize) -> IdSet {
        let starts = HashMap::with_capacity_and_hasher(count, BuildHasherDefault::default());
        IdSet { bytes, starts, others: Vec::new(), seed: RandomState::new().hash_one(0) }
    }

    /// Returns the set of these ids.
    pub fn of(ids: &[Vec<u8>]) -> IdSet {
        let mut set = IdSet::new(ids.concat().into(), ids.len());
        let mut start = 0;
        for id in ids {
            set.insert(start, id.len());
            start += id.len();
        }
        set
    }

    fn hash(&self, id: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed, id)
    }

    fn is_at(&self, start: u32, id: &[u8]) -> bool {
        self.bytes.get(start as usize..).is_some_and(|rest| rest.starts_with(id))
    }

    /// Adds the id that begins at `start` in the bytes of this set and has so many bytes.
    pub fn insert(&mut self, start: usize, length: usize) {
        let bytes = self.bytes.clone();
        let Some(id) = bytes.get(start..start + length) else { return };
        let Ok(start) = u32::try_from(start) else { return };
        let known = match self.starts.entry(self.hash(id)) {
            Slot::Vacant(slot) => {
                slot.insert(start);
                return;
            }
            Slot::Occupied(slot) => *slot.get(),
        };
        if !self.is_at(known, id) {
            self.others.push(start);
        }
    }

    /// Returns whether the set contains this encoded id.
    pub fn contains(&self, id: &[u8]) -> bool {
        self.starts.get(&self.hash(id)).is_some_and(|start| self.is_at(*start, id))
            || self.others.iter().any(|start| self.is_at(*start, id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored;
    use super::*;
    use crate::jute::Jute;
    use crate::jute::records::{Acl, Id};

    #[test]
    fn a_list_that_is_cut_off_is_noticed() {
        let entries = [(1, "digest", "a:b"), (31, "ip", ""), (5, "", "10.0.0.1")];
        let list = stored(&entries.map(|(perms, scheme, id)| Acl { perms, id: Id { scheme, id } }));
        let mut found = Vec::new();
        assert!(each_entry(&list, |e| found.push((e.perms, e.scheme, e.name, e.id, &list[e.start..]))));
        for (one, (perms, scheme, id)) in found.iter().zip(entries) {
            assert_eq!((one.0, one.1, one.2), (perms, scheme.as_bytes(), id.as_bytes()));
            assert!(one.3 == Id { scheme, id }.to_vec() && one.4.starts_with(one.3));
        }
        assert_eq!(found.len(), 3);
        assert!((0..list.len()).all(|end| !each_entry(&list[..end], |_| ())));
        let mut negative = list.clone();
        negative[8] = 0xff;
        assert!(!each_entry(&negative, |_| ()));
    }

    #[test]
    fn ids_with_the_same_hash_are_told_apart() {
        let ids: Vec<Vec<u8>> =
            (0..50).map(|n| Id { scheme: "digest", id: &format!("u{n}:x") }.to_vec()).collect();
        let mut set = IdSet::of(&ids[..40]);
        assert!(ids.iter().enumerate().all(|(n, id)| set.contains(id) == (n < 40)));
        assert!(set.others.is_empty());
        // As if all had the hash of the first.
        let starts = std::mem::take(&mut set.starts);
        set.others = starts.values().copied().collect();
        assert!(ids.iter().enumerate().all(|(n, id)| set.contains(id) == (n < 40)));
    }
}

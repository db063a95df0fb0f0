//! What is known of stored ACLs that are met again and again.
//!
//! The operations of a transaction, and the watches that they trigger, meet the same few ACLs many times. To judge a long one takes as
//! much time as many writes, so each is judged once (contracts X25).

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use twox_hash::XxHash3_64;

use super::ids::{IdSet, StoredEntry, each_entry};
use super::judge::{Arranged, SHORT_BYTES, permitted};
use super::{ANYONE, leading, network};
use crate::jute::Jute;
use crate::jute::codes::perms;
use crate::jute::records::Id;

/// The ACLs that are kept have at most this many bytes. A transaction can meet no more of them (see `tree/weight.rs`). What is known of
/// them may take as much again.
const MOST_BYTES: usize = 48 * 1024 * 1024;
/// Approximate memory of an ACL that is kept besides its own bytes.
const BYTES_BESIDE_LIST: usize = 128;

/// What was found out about ACLs, by their stored form. It keeps different ACLs up to [`MOST_BYTES`], and the one that was looked up
/// last.
#[derive(Debug)]
struct Known<T> {
    last: Option<(Bytes, T)>,
    /// All that are kept, by their hash, if there are several. If two have the same hash, the newer one stays.
    others: HashMap<u64, (Bytes, T)>,
    /// What `others` takes.
    bytes: usize,
    /// The number of ACLs that were not known, which tests bound.
    found_out: usize,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Known { last: None, others: HashMap::new(), bytes: 0, found_out: 0 }
    }
}

/// Returns whether two ACLs are equal. Most equal ones share their memory.
fn are_equal(one: &Bytes, other: &Bytes) -> bool {
    one.len() == other.len() && (one.as_ptr() == other.as_ptr() || one == other)
}

impl<T: Clone> Known<T> {
    /// Makes a known ACL the last one; returns whether it is known.
    fn look_up(&mut self, list: &Bytes) -> bool {
        if self.last.as_ref().is_some_and(|(last, _)| are_equal(last, list)) {
            return true;
        }
        if self.others.is_empty() {
            return false;
        }
        match self.others.get(&self.hash(list)) {
            Some(known) if are_equal(&known.0, list) => {
                self.last = Some(known.clone());
                true
            }
            _ => false,
        }
    }

    /// Returns what is known of an ACL, and asks `find_out` if nothing is.
    fn of(&mut self, list: &Bytes, find_out: impl FnOnce() -> T) -> T {
        if self.look_up(list)
            && let Some((_, known)) = &self.last
        {
            return known.clone();
        }
        self.found_out += 1;
        let first = self.last.take().filter(|_| self.others.is_empty());
        let new = (list.clone(), find_out());
        // With one ACL only, which is the usual case, the map stays empty.
        if !self.others.is_empty() || first.is_some() {
            for known in first.into_iter().chain([new.clone()]) {
                self.keep(known);
            }
        }
        self.last.insert(new).1.clone()
    }

    fn keep(&mut self, known: (Bytes, T)) {
        let bytes = known.0.len() + BYTES_BESIDE_LIST;
        if self.bytes + bytes <= MOST_BYTES {
            self.bytes += bytes;
            self.others.insert(self.hash(&known.0), known);
        }
    }

    /// Returns the hash of an ACL. It differs from run to run, so that no client can choose two ACLs that drive each other out.
    fn hash(&self, list: &Bytes) -> u64 {
        XxHash3_64::oneshot_with_seed(self.others.hasher().hash_one(0), list)
    }
}

/// What one client is permitted by the ACLs that were judged.
#[derive(Debug, Default)]
pub struct Judged {
    known: Known<i32>,
    /// The client's ids, once there was a long ACL.
    client: Option<Arranged>,
}

impl Judged {
    /// Returns whether a stored ACL gives at least one of the permissions `wanted`, which are some of [`perms::ALL`], to a client with
    /// these ids. They must be the same each time.
    pub fn allows(&mut self, list: &Bytes, wanted: i32, client: &[Id<'_>]) -> bool {
        let arranged = &mut self.client;
        let judge = || match list.len() <= SHORT_BYTES {
            true => permitted(list, client),
            false => arranged.get_or_insert_with(|| Arranged::new(client)).permitted(list),
        };
        list.is_empty() || self.known.of(list, judge) & wanted != 0
    }

    /// Returns this ACL in the memory of an equal one that was judged, if there is one. A node's record holds its ACL, so without this
    /// each change of the node would leave an event that keeps a record of its own.
    pub fn shared(&mut self, list: Bytes) -> Bytes {
        if list.is_empty() || !self.known.look_up(&list) {
            return list;
        }
        self.known.last.as_ref().map_or(list, |(known, _)| known.clone())
    }

    /// Returns the number of ACLs that were really judged.
    pub fn count(&self) -> usize {
        self.known.found_out
    }
}

/// Who may read the nodes that have a certain ACL, arranged so that many clients can be looked up.
#[derive(Debug)]
pub struct Readers {
    anyone: bool,
    /// Networks: whether the address has four bytes, the number of leading bits that must match, and these bits.
    networks: HashSet<(bool, u32, u128)>,
    /// The numbers of leading bits that occur in `networks`, with the kinds of addresses.
    bits: HashSet<(bool, u32)>,
    others: IdSet,
}

impl Readers {
    /// Reads a stored ACL.
    pub fn of(list: &Bytes) -> Readers {
        let (mut count, mut anyone) = (0, list.is_empty());
        let is_whole = each_entry(list, |entry| {
            if entry.perms & perms::READ != 0 {
                count += 1;
                anyone |= entry.scheme == b"world" && entry.name == ANYONE.id.as_bytes();
            }
        });
        // An ACL that cannot be decoded admits nobody. If anyone may read, the others need not be arranged.
        let count = if is_whole && !anyone { count } else { 0 };
        let mut readers = Readers {
            anyone: anyone && (is_whole || list.is_empty()),
            networks: HashSet::new(),
            bits: HashSet::new(),
            others: IdSet::new(list.clone(), count),
        };
        let _ = count > 0 && each_entry(list, |entry| readers.add(entry));
        readers
    }

    fn add(&mut self, entry: StoredEntry<'_>) {
        if entry.perms & perms::READ == 0 {
            return;
        }
        if entry.scheme != b"ip" {
            return self.others.insert(entry.start, entry.id.len());
        }
        if let Some((address, bits)) = std::str::from_utf8(entry.name).ok().and_then(network) {
            self.networks.insert((address.is_ipv4(), bits, leading(address, bits)));
            self.bits.insert((address.is_ipv4(), bits));
        }
    }

    /// Returns whether a client may read.
    pub fn include(&self, client: &Client) -> bool {
        let is_near = |address: &IpAddr| {
            self.bits.iter().any(|&(four, bits)| {
                four == address.is_ipv4() && self.networks.contains(&(four, bits, leading(*address, bits)))
            })
        };
        self.anyone
            || client.is_super
            || client.others.iter().any(|id| self.others.contains(id))
            || client.addresses.iter().any(is_near)
    }
}

/// The readers of the ACLs that events brought.
#[derive(Debug, Default)]
pub struct ReadersOf(Known<Arc<Readers>>);

impl ReadersOf {
    /// Returns who may read the nodes with a stored ACL.
    pub fn list(&mut self, list: &Bytes) -> Arc<Readers> {
        self.0.of(list, || Arc::new(Readers::of(list)))
    }

    /// Forgets all ACLs but the last one.
    pub fn forget(&mut self) {
        self.0.others = HashMap::new();
        self.0.bytes = 0;
    }

    /// Returns the number of ACLs that were really read.
    pub fn count(&self) -> usize {
        self.0.found_out
    }
}

/// A client's ids, arranged to be looked up in [`Readers`].
#[derive(Debug, Default)]
pub struct Client {
    is_super: bool,
    addresses: Vec<IpAddr>,
    /// The others in their encoded form.
    others: Vec<Vec<u8>>,
}

impl Client {
    /// Arranges a client's ids, given as scheme and id.
    pub fn new(ids: &[(String, String)]) -> Client {
        let mut client = Client::default();
        for (scheme, id) in ids {
            match scheme.as_str() {
                super::SUPER => client.is_super = true,
                "ip" => client.addresses.extend(id.parse::<IpAddr>()),
                _ => client.others.push(Id { scheme, id }.to_vec()),
            }
        }
        client
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::{OPEN, READ_ONLY, stored};
    use super::*;
    use crate::jute::records::Acl;

    fn entry<'a>(perms: i32, scheme: &'a str, id: &'a str) -> Acl<'a> {
        Acl { perms, id: Id { scheme, id } }
    }

    /// A long ACL that differs from those of other numbers.
    fn long(number: i32) -> Bytes {
        let entries = (1..860).map(|n| entry((number * 1_000 + n) << 5, "digest", ":"));
        stored(&entries.chain([OPEN]).collect::<Vec<_>>()).into()
    }

    #[test]
    fn each_list_is_judged_once() {
        let names: Vec<String> = (0..63).map(|n| format!("a{n}:x")).collect();
        let client: Vec<Id<'_>> = names.iter().map(|id| Id { scheme: "digest", id }).collect();
        let lists: Vec<Bytes> = (0..100).map(long).collect();
        let other = Bytes::from(stored(&[READ_ONLY]));
        let mut judged = Judged::default();
        for n in 0..1_000 {
            // The bytes are equal, but not the same ones.
            let list = Bytes::copy_from_slice(&lists[n % lists.len()]);
            assert!(judged.allows(&list, 1 << (n % 5), &client));
        }
        assert_eq!(judged.count(), lists.len());
        assert!(!judged.allows(&other, perms::WRITE, &client));
        assert!(judged.allows(&other, perms::READ, &client));
        assert!(judged.allows(&Bytes::new(), perms::WRITE, &client), "the open ACL");
        assert_eq!(judged.count(), lists.len() + 1);
    }

    #[test]
    fn equal_lists_share_the_memory_of_the_one_that_was_judged() {
        let lists = [long(1), long(2)];
        let mut judged = Judged::default();
        let new = judged.shared(lists[0].clone());
        assert!(are_equal(&new, &lists[0]) && judged.count() == 0, "nothing is known yet");
        for list in &lists {
            assert!(judged.allows(list, perms::READ, &[]));
        }
        for list in [&lists[0], &lists[1], &lists[0]] {
            assert_eq!(judged.shared(Bytes::copy_from_slice(list)).as_ptr(), list.as_ptr());
        }
    }

    #[test]
    fn the_memory_of_lists_that_are_kept_is_bounded() {
        let (mut known, each) = (Known::default(), 1024 * 1024);
        let list = |n: usize| Bytes::from(vec![u8::try_from(n).unwrap(); each]);
        for n in 0..100 {
            assert_eq!(known.of(&list(n), || n), n);
        }
        assert!(known.others.len() == 47 && known.bytes <= MOST_BYTES);
        assert_eq!((known.of(&list(0), || usize::MAX), known.of(&list(90), || usize::MAX)), (0, usize::MAX));
    }

    proptest! {
        /// Readers are those whom the ACL permits to read.
        #[test]
        fn readers_are_those_who_may_read(
            list in prop::collection::vec((0..4_i32, 0..5_usize, 0..4_usize), 0..6),
            ids in prop::collection::vec((0..5_usize, 0..4_usize), 0..4),
        ) {
            let schemes = ["world", "ip", "digest", "sasl", "super"];
            let names = [
                ["anyone", "any", "", "x"],
                ["10.0.0.1", "10.0.0.0/24", "::1", "10.0.0.1/33"],
                ["ann:x", "bob:x", "10.0.0.1", ""],
                ["ann:x", "bob", "anyone", ""],
                ["", "a", "b", "c"],
            ];
            let id = |(scheme, name): (usize, usize)| Id { scheme: schemes[scheme], id: names[scheme][name] };
            let list: Vec<Acl<'_>> =
                list.into_iter().map(|(perms, scheme, name)| Acl { perms, id: id((scheme, name)) }).collect();
            let client: Vec<Id<'_>> = ids.into_iter().map(id).collect();
            let owned: Vec<_> = client.iter().map(|id| (id.scheme.to_owned(), id.id.to_owned())).collect();
            let bytes = Bytes::from(stored(&list));
            if !bytes.is_empty() {
                prop_assert_eq!(Arranged::new(&client).permitted(&bytes), permitted(&bytes, &client));
            }
            prop_assert_eq!(
                Readers::of(&bytes).include(&Client::new(&owned)),
                permitted(&bytes, &client) & perms::READ != 0
            );
        }
    }
}

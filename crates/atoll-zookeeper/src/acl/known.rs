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

use super::{ANYONE, leading, network, of_stored};
use crate::jute::codes::perms;
use crate::jute::records::Id;

/// The maximum number of ACLs that are kept. An ACL takes up to [`super::MAX_BYTES`], and the names of its readers a few times as much.
const MOST_LISTS: usize = 1024;

/// What was found out about ACLs, by their stored form. It keeps the first [`MOST_LISTS`] different ACLs and the one that was looked up
/// last.
#[derive(Debug)]
struct Known<T> {
    last: Option<(Bytes, T)>,
    /// All that are kept, by their hash, if there are several. If two have the same hash, the newer one stays.
    others: HashMap<u64, (Bytes, T)>,
    /// The number of ACLs that were not known, which tests bound.
    found_out: usize,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Known { last: None, others: HashMap::new(), found_out: 0 }
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
        if self.others.len() < MOST_LISTS {
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
pub struct Judged(Known<i32>);

impl Judged {
    /// Returns whether a stored ACL gives at least one of the permissions `wanted`, which are some of [`perms::ALL`]. `permits` judges
    /// an ACL, for the same client each time.
    pub fn allows(&mut self, list: &Bytes, wanted: i32, permits: impl FnOnce(&[u8]) -> i32) -> bool {
        list.is_empty() || self.0.of(list, || permits(list)) & wanted != 0
    }

    /// Returns this ACL in the memory of an equal one that was judged, if there is one. A node's record holds its ACL, so without this
    /// each change of the node would leave an event that keeps a record of its own.
    pub fn shared(&mut self, list: Bytes) -> Bytes {
        if list.is_empty() || !self.0.look_up(&list) {
            return list;
        }
        self.0.last.as_ref().map_or(list, |(known, _)| known.clone())
    }

    /// Returns the number of ACLs that were really judged.
    pub fn count(&self) -> usize {
        self.0.found_out
    }
}

/// Who may read the nodes that have a certain ACL, arranged so that many clients can be looked up.
#[derive(Debug, Default)]
pub struct Readers {
    anyone: bool,
    /// Networks: whether the address has four bytes, the number of leading bits that must match, and these bits.
    networks: HashSet<(bool, u32, u128)>,
    /// The numbers of leading bits that occur in `networks`, with the kinds of addresses.
    bits: HashSet<(bool, u32)>,
    /// Scheme and id of the others.
    others: HashSet<(Bytes, Bytes)>,
}

impl Readers {
    /// Reads a stored ACL.
    pub fn of(list: &Bytes) -> Readers {
        let mut readers = Readers { anyone: list.is_empty(), ..Readers::default() };
        for entry in of_stored(list).iter().filter(|entry| entry.perms & perms::READ != 0) {
            let Id { scheme, id } = entry.id;
            match scheme {
                "world" if id == ANYONE.id => readers.anyone = true,
                "ip" => {
                    if let Some((address, bits)) = network(id) {
                        readers.networks.insert((address.is_ipv4(), bits, leading(address, bits)));
                        readers.bits.insert((address.is_ipv4(), bits));
                    }
                }
                _ => {
                    readers.others.insert((list.slice_ref(scheme.as_bytes()), list.slice_ref(id.as_bytes())));
                }
            }
        }
        readers
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
    /// Scheme and id of the others.
    others: Vec<(Bytes, Bytes)>,
}

impl Client {
    /// Arranges a client's ids, given as scheme and id.
    pub fn new(ids: &[(String, String)]) -> Client {
        let mut client = Client::default();
        for (scheme, id) in ids {
            match scheme.as_str() {
                super::SUPER => client.is_super = true,
                "ip" => client.addresses.extend(id.parse::<IpAddr>()),
                _ => {
                    let copied = |text: &String| Bytes::copy_from_slice(text.as_bytes());
                    client.others.push((copied(scheme), copied(id)));
                }
            }
        }
        client
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::{OPEN, READ_ONLY, permitted, stored};
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
            assert!(judged.allows(&list, 1 << (n % 5), |list| permitted(list, &client)));
        }
        assert_eq!(judged.count(), lists.len());
        assert!(!judged.allows(&other, perms::WRITE, |list| permitted(list, &client)));
        assert!(judged.allows(&other, perms::READ, |list| permitted(list, &client)));
        assert!(judged.allows(&Bytes::new(), perms::WRITE, |_| 0), "the open ACL");
        assert_eq!(judged.count(), lists.len() + 1);
    }

    #[test]
    fn equal_lists_share_the_memory_of_the_one_that_was_judged() {
        let lists = [long(1), long(2)];
        let mut judged = Judged::default();
        let new = judged.shared(lists[0].clone());
        assert!(are_equal(&new, &lists[0]) && judged.count() == 0, "nothing is known yet");
        for list in &lists {
            assert!(judged.allows(list, perms::READ, |_| perms::ALL));
        }
        for list in [&lists[0], &lists[1], &lists[0]] {
            assert_eq!(judged.shared(Bytes::copy_from_slice(list)).as_ptr(), list.as_ptr());
        }
    }

    #[test]
    fn the_number_of_lists_that_are_kept_is_bounded() {
        let mut known = Known::default();
        for n in 0..3 * MOST_LISTS {
            assert_eq!(known.of(&Bytes::from(format!("{n}")), || n), n);
        }
        assert_eq!(known.others.len(), MOST_LISTS);
        assert_eq!(known.of(&Bytes::from_static(b"0"), || usize::MAX), 0);
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
            prop_assert_eq!(
                Readers::of(&bytes).include(&Client::new(&owned)),
                permitted(&bytes, &client) & perms::READ != 0
            );
        }
    }
}

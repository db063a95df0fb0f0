//! Access control: which ACLs a client may set, and what an ACL permits to whom. The schemes are `world`, `auth`, `digest`, `ip`,
//! `x509` and `sasl`, as in ZooKeeper, and `super` for the superuser.
//!
//! The node that a client is connected to determines the client's ids. They are part of each write, which is checked against them
//! when it is applied. At that point `auth` is replaced by these ids.

mod ids;
mod judge;
mod known;

pub use judge::{permitted, stored_allows};
pub use known::{Client, Judged, Readers, ReadersOf};

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::jute::codes::{ErrorCode, perms};
use crate::jute::records::{Acl, Id};
use crate::jute::{Jute, Reader};

/// Most entries in an ACL.
pub const MAX_ENTRIES: usize = 1024;
/// Longest ACL in its stored form, in bytes. It is part of the znode's record, which is rewritten when the node's children change.
pub const MAX_BYTES: usize = 16 * 1024;
/// The id that means everyone.
const ANYONE: Id<'static> = Id { scheme: "world", id: "anyone" };
/// Gives everyone all permissions, as in the ACLs of most nodes.
pub const OPEN: Acl<'static> = Acl { perms: perms::ALL, id: ANYONE };
/// Lets everyone read.
pub const READ_ONLY: Acl<'static> = Acl { perms: perms::READ, id: ANYONE };
/// The scheme of a client that may do everything, whatever the ACL says.
pub const SUPER: &str = "super";
/// Up to this many entries or ids are compared one by one, which is faster than a set.
const FEW: usize = 8;

/// Returns the id that the `digest` scheme stores instead of a password: `user:` and the base64 of the SHA-1 of `user:password`.
pub fn digest_id(user_and_password: &str) -> String {
    let user = user_and_password.split(':').next().unwrap_or_default();
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, user_and_password.as_bytes());
    format!("{user}:{}", BASE64.encode(hash))
}

/// Parses an address with an optional number of leading bits that must match, by default all.
fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(all);
    (bits <= all).then_some((address, bits))
}

fn leading(address: IpAddr, bits: u32) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(u32::from(a).checked_shr(32 - bits).unwrap_or(0)),
        IpAddr::V6(a) => u128::from(a).checked_shr(128 - bits).unwrap_or(0),
    }
}

fn is_in_network(client: IpAddr, allowed: &str) -> bool {
    network(allowed).is_some_and(|(address, bits)| {
        client.is_ipv4() == address.is_ipv4() && leading(client, bits) == leading(address, bits)
    })
}

/// Returns whether the ids of a scheme prove an identity. An address does not.
fn is_proof(scheme: &str) -> bool {
    matches!(scheme, "digest" | "x509" | "sasl" | SUPER)
}

/// Why an ACL cannot be made whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotWhole {
    /// It is empty, or contains an unknown scheme or an invalid id.
    Invalid,
    /// It is longer than allowed.
    Long,
}

/// The size of an entry in its stored form, in bytes.
fn bytes_of(entry: &Acl<'_>) -> usize {
    12 + entry.id.scheme.len() + entry.id.id.len()
}

/// An ACL that is being made whole. It has no duplicate entries.
#[derive(Debug, Default)]
struct Whole<'a> {
    out: Vec<Acl<'a>>,
    /// The entries of `out`, if they are more than a few.
    known: HashSet<Acl<'a>>,
    bytes: usize,
    /// The number of comparisons and look-ups, which a test bounds.
    looks: usize,
}

impl<'a> Whole<'a> {
    fn push(&mut self, entry: Acl<'a>) {
        let is_new = if self.out.len() <= FEW {
            self.looks += self.out.len();
            !self.out.contains(&entry)
        } else {
            if self.known.is_empty() {
                self.known.extend(&self.out);
            }
            self.looks += 1;
            self.known.insert(entry)
        };
        if is_new {
            self.bytes += bytes_of(&entry);
            self.out.push(entry);
        }
    }

    /// Adds all entries of `list`, with `auth` replaced by the client's own ids. With `bounded`, stops as soon as the result is longer
    /// than a door accepts.
    fn extend(&mut self, list: &[Acl<'a>], client: &[Id<'a>], bounded: bool) -> Result<(), NotWhole> {
        if list.len() > MAX_ENTRIES {
            return Err(NotWhole::Long);
        }
        let mut replaced = BTreeSet::new();
        for entry in list {
            let Id { scheme, id } = entry.id;
            let fine = match scheme {
                "world" => id == ANYONE.id,
                // All of its entries are already there.
                "auth" if !replaced.insert(entry.perms) => continue,
                "auth" => client.iter().any(|c| is_proof(c.scheme)),
                "digest" => id.split(':').count() == 2,
                "ip" => network(id).is_some(),
                "x509" | "sasl" => !id.is_empty(),
                _ => false,
            };
            if !fine {
                return Err(NotWhole::Invalid);
            }
            let (own, itself) = if scheme == "auth" { (client, None) } else { (&[][..], Some(entry.id)) };
            for id in own.iter().filter(|c| is_proof(c.scheme)).copied().chain(itself) {
                self.push(Acl { perms: entry.perms, id });
                if bounded && (self.out.len() > MAX_ENTRIES || self.bytes > MAX_BYTES) {
                    return Err(NotWhole::Long);
                }
            }
        }
        if self.out.is_empty() { Err(NotWhole::Invalid) } else { Ok(()) }
    }
}

/// Returns a client's ACL with `auth` replaced by the client's own ids, and without duplicate entries. Every replica applies it to what
/// is in the log, so the result may be longer than a door accepts today.
///
/// # Errors
/// InvalidACL: the ACL is empty or too long, or contains an unknown scheme or an invalid id.
pub fn made_whole<'a>(list: &[Acl<'a>], client: &[Id<'a>]) -> Result<Vec<Acl<'a>>, ErrorCode> {
    let mut whole = Whole::default();
    whole.extend(list, client, false).map(|()| whole.out).map_err(|_| ErrorCode::InvalidAcl)
}

/// The length of an ACL with `auth` replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// A door accepts it.
    Short,
    /// It is longer than a door accepts.
    Long,
    /// It is too long unless it has duplicate entries, which one must look at.
    Unclear,
}

/// Returns whether an ACL is longer than a door accepts, without looking for duplicate entries.
pub fn length_made_whole(list: &[Acl<'_>], client: &[Id<'_>]) -> Length {
    if is_long(list) {
        return Length::Long;
    }
    let auths = list.iter().filter(|entry| entry.id.scheme == "auth").count();
    let proofs = || client.iter().filter(|c| is_proof(c.scheme));
    let own_bytes: usize = proofs().map(|id| bytes_of(&Acl { perms: 0, id: *id })).sum();
    let most_bytes = list.iter().map(bytes_of).sum::<usize>() + auths * own_bytes;
    let most_entries = list.len() + auths * proofs().count();
    // Only duplicate entries can make it shorter than this.
    if most_entries > MAX_ENTRIES || most_bytes > MAX_BYTES { Length::Unclear } else { Length::Short }
}

/// Returns whether an ACL is longer than a door accepts, as the client sent it or with `auth` replaced. An ACL that is invalid for
/// another reason need not count as long. The work is bounded, because the thread of the door does it.
pub fn is_long_made_whole(list: &[Acl<'_>], client: &[Id<'_>]) -> bool {
    match length_made_whole(list, client) {
        Length::Short => false,
        Length::Long => true,
        Length::Unclear => Whole::default().extend(list, client, true) == Err(NotWhole::Long),
    }
}

/// Replaces `auth` in the superuser's ACL by the superuser's ids, as `made_whole` does, but without `super`. No ACL may contain that
/// scheme: ZooKeeper never stores it, and refuses it in a list that a client brings. The door does this and not `made_whole`, because
/// all replicas must apply what is already in the log in the same way. Returns whether the list changed.
pub fn leave_out_super<'a>(list: &mut Vec<Acl<'a>>, client: &[Id<'a>]) -> bool {
    let Some(auth) = list.iter().find(|entry| entry.id.scheme == "auth").copied() else { return false };
    let others: Vec<Id<'a>> = client.iter().filter(|id| id.scheme != SUPER).copied().collect();
    let mut whole = Whole::default();
    *list = match whole.extend(list, &others, true) {
        Ok(()) => whole.out,
        // Nothing but `super` proves an identity, or the list is invalid anyway. Every replica refuses this one.
        Err(_) => vec![Acl { perms: auth.perms, id: Id { scheme: SUPER, id: "" } }],
    };
    true
}

/// Returns whether a client with these ids may do everything, whatever the ACLs say.
pub fn is_super(client: &[Id<'_>]) -> bool {
    client.iter().any(|id| id.scheme == SUPER)
}

/// Encodes an ACL for the store. The open ACL takes no bytes.
pub fn stored(list: &[Acl<'_>]) -> Vec<u8> {
    if list == [OPEN] { Vec::new() } else { Jute::to_vec(&list.to_vec()) }
}

/// Returns whether an ACL is longer than a door accepts.
pub fn is_long(list: &[Acl<'_>]) -> bool {
    list.len() > MAX_ENTRIES || list.iter().map(bytes_of).sum::<usize>() > MAX_BYTES
}

/// Decodes a stored ACL.
pub fn of_stored(bytes: &[u8]) -> Vec<Acl<'_>> {
    if bytes.is_empty() {
        return vec![OPEN];
    }
    // Only `stored` writes these bytes. An ACL that cannot be decoded admits nobody.
    Vec::read(&mut Reader::new(bytes)).unwrap_or_default()
}

/// Returns an ACL as it is shown to clients that may read but not administer the node: without password hashes.
pub fn masked(list: &[Acl<'_>]) -> Vec<(i32, String, String)> {
    let mask = |entry: &Acl<'_>| {
        let id = match (entry.id.scheme, entry.id.id.split_once(':')) {
            ("digest", Some((user, _))) => format!("{user}:x"),
            _ => entry.id.id.to_owned(),
        };
        (entry.perms, entry.id.scheme.to_owned(), id)
    };
    list.iter().map(mask).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn entry<'a>(perms: i32, scheme: &'a str, id: &'a str) -> Acl<'a> {
        Acl { perms, id: Id { scheme, id } }
    }

    fn allows(list: &[Acl<'_>], client: &[Id<'_>], wanted: i32) -> bool {
        stored_allows(&stored(list), client, wanted)
    }

    #[test]
    fn digests_are_zookeepers() {
        // This example is from ZooKeeper's documentation of the superuser.
        assert_eq!(digest_id("super:admin"), "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=");
    }

    #[test]
    fn networks() {
        let is_in = |client: &str, allowed| is_in_network(client.parse().unwrap(), allowed);
        assert!(is_in("10.1.2.3", "10.0.0.0/8") && !is_in("11.1.2.3", "10.0.0.0/8"));
        assert!(is_in("10.1.2.3", "10.1.2.3") && !is_in("10.1.2.4", "10.1.2.3"));
        assert!(is_in("1.2.3.4", "0.0.0.0/0") && is_in("::1", "::/0") && !is_in("::1", "0.0.0.0/0"));
        for bad in ["10.0.0.0/33", "10.0.0", "::1/129", "x", "1.2.3.4/-1"] {
            assert!(network(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn lists_are_made_whole() {
        let me = [Id { scheme: "ip", id: "127.0.0.1" }, Id { scheme: "digest", id: "u:h" }];
        assert_eq!(made_whole(&[entry(31, "auth", "")], &me), Ok(vec![entry(31, "digest", "u:h")]));
        assert_eq!(made_whole(&[OPEN, OPEN, READ_ONLY], &me), Ok(vec![OPEN, READ_ONLY]));
        assert_eq!(made_whole(&[entry(31, "auth", "")], &me[..1]), Err(ErrorCode::InvalidAcl));
        for bad in [
            vec![],
            vec![entry(1, "world", "nobody")],
            vec![entry(1, "digest", "u")],
            vec![entry(1, "ip", "here")],
            vec![entry(1, "super", "")],
            vec![entry(1, "guess", "x")],
        ] {
            assert_eq!(made_whole(&bad, &me), Err(ErrorCode::InvalidAcl), "{bad:?}");
        }
    }

    #[test]
    fn who_may_what() {
        let list = [entry(perms::READ, "ip", "10.0.0.0/8"), entry(perms::ALL, "digest", "u:h")];
        let from = |id| [Id { scheme: "ip", id }];
        assert!(allows(&list, &from("10.9.9.9"), perms::READ));
        assert!(!allows(&list, &from("10.9.9.9"), perms::WRITE));
        assert!(!allows(&list, &from("11.9.9.9"), perms::READ));
        assert!(allows(&list, &[Id { scheme: "digest", id: "u:h" }], perms::ADMIN));
        assert!(!allows(&list, &[Id { scheme: "digest", id: "u:g" }], perms::READ));
        assert!(allows(&list, &[Id { scheme: SUPER, id: "" }], perms::ADMIN));
        assert!(allows(&[OPEN], &[], perms::DELETE));
        assert_eq!(of_stored(&stored(&list)), list);
        assert_eq!(of_stored(&stored(&[OPEN])), [OPEN]);
        assert!(stored(&[OPEN]).is_empty());
    }

    /// A client with this many proofs of its identity, after its address.
    fn ids(names: &[String]) -> Vec<Id<'_>> {
        let address = Id { scheme: "ip", id: "10.1.2.3" };
        std::iter::once(address).chain(names.iter().map(|id| Id { scheme: "digest", id })).collect()
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("a{n}:{}", "h".repeat(28))).collect()
    }

    fn auths(count: i32) -> Vec<Acl<'static>> {
        (1..=count).map(|perms| entry(perms, "auth", "")).collect()
    }

    #[test]
    fn the_longest_list_is_made_whole_with_one_look_at_each_entry() {
        let names = names(63);
        let mut whole = Whole::default();
        assert_eq!(whole.extend(&auths(1_024), &ids(&names), false), Ok(()));
        assert_eq!(whole.out.len(), 1_024 * 63);
        assert!(whole.looks < 1_024 * 63 + 100, "{} looks", whole.looks);
        // The same permissions again add nothing, and are not looked at.
        let again = vec![entry(1, "auth", ""); 1_024];
        let mut whole = Whole::default();
        assert_eq!(whole.extend(&again, &ids(&names), false), Ok(()));
        assert!(whole.out.len() == 63 && whole.looks < 200, "{} looks", whole.looks);
    }

    #[test]
    fn a_door_looks_at_no_more_of_a_list_than_it_accepts() {
        let names = names(63);
        let client = ids(&names);
        // The entry at the end would make it invalid, if it were reached.
        let list = [auths(1_000), vec![entry(1, "guess", "")]].concat();
        let mut whole = Whole::default();
        assert_eq!(whole.extend(&list, &client, true), Err(NotWhole::Long));
        assert!(whole.out.len() <= MAX_ENTRIES + 1 && whole.bytes <= MAX_BYTES + 100);
        assert!(is_long_made_whole(&list, &client) && !is_long(&list));
        // 5 × 63 entries of about 50 bytes are just below the limit, and 6 × 63 are above it.
        assert!(!is_long_made_whole(&auths(5), &client) && is_long_made_whole(&auths(6), &client));
        assert!(!is_long_made_whole(&vec![entry(1, "auth", ""); 1_024], &client));
        assert!(
            !is_long_made_whole(&auths(300), &client[..2]) && is_long_made_whole(&auths(400), &client[..2])
        );
        assert!(!is_long_made_whole(&[entry(1, "guess", "")], &client), "invalid, but not long");
    }

    #[test]
    fn the_superuser_leaves_no_entry_of_its_own_scheme() {
        let me = [
            Id { scheme: "ip", id: "::1" },
            Id { scheme: SUPER, id: "" },
            Id { scheme: "digest", id: "u:h" },
        ];
        let mut list = vec![READ_ONLY, entry(31, "auth", "")];
        assert!(leave_out_super(&mut list, &me));
        assert_eq!(list, [READ_ONLY, entry(31, "digest", "u:h")]);
        assert_eq!(made_whole(&list, &me), Ok(list.clone()), "every replica takes it as it is");
        assert!(!leave_out_super(&mut list, &me), "nothing is left to replace");
        // Without another id, the list is invalid on every replica, as in ZooKeeper.
        for (list, me) in [
            (vec![entry(31, "auth", "")], &me[..2]),
            (vec![entry(1, "auth", ""), entry(1, "ip", "x")], &me[..]),
        ] {
            let mut list = list;
            assert!(leave_out_super(&mut list, me));
            assert_eq!(made_whole(&list, me), Err(ErrorCode::InvalidAcl));
        }
    }

    /// The definitions that replicas with earlier programs use.
    mod earlier {
        use super::*;

        pub fn made_whole<'a>(list: &[Acl<'a>], client: &[Id<'a>]) -> Result<Vec<Acl<'a>>, ErrorCode> {
            if list.len() > MAX_ENTRIES {
                return Err(ErrorCode::InvalidAcl);
            }
            let mut out: Vec<Acl<'a>> = Vec::with_capacity(list.len());
            let mut push = |entry: Acl<'a>| {
                if !out.contains(&entry) {
                    out.push(entry);
                }
            };
            for entry in list {
                let Id { scheme, id } = entry.id;
                let fine = match scheme {
                    "world" => id == ANYONE.id,
                    "auth" => {
                        let mut proofs = client.iter().filter(|c| is_proof(c.scheme)).peekable();
                        let some = proofs.peek().is_some();
                        proofs.for_each(|proof| push(Acl { perms: entry.perms, id: *proof }));
                        if !some {
                            return Err(ErrorCode::InvalidAcl);
                        }
                        continue;
                    }
                    "digest" => id.split(':').count() == 2,
                    "ip" => network(id).is_some(),
                    "x509" | "sasl" => !id.is_empty(),
                    _ => false,
                };
                if !fine {
                    return Err(ErrorCode::InvalidAcl);
                }
                push(*entry);
            }
            if out.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(out) }
        }

        fn is_in(client: &str, allowed: &str) -> bool {
            client.parse().is_ok_and(|client| is_in_network(client, allowed))
        }

        pub fn allows(list: &[Acl<'_>], client: &[Id<'_>], wanted: i32) -> bool {
            is_super(client)
                || list.iter().filter(|entry| entry.perms & wanted != 0).any(|entry| {
                    entry.id == ANYONE
                        || client.iter().filter(|c| c.scheme == entry.id.scheme).any(|c| match c.scheme {
                            "ip" => is_in(c.id, entry.id.id),
                            _ => c.id == entry.id.id,
                        })
                })
        }
    }

    /// Ids of which many are equal, and some are invalid.
    fn any_id() -> impl Strategy<Value = (&'static str, &'static str)> {
        let plain = prop::sample::select(vec![
            ("world", "anyone"),
            ("world", "x"),
            ("auth", ""),
            ("auth", "x"),
            ("digest", "u:h"),
            ("digest", "v:h"),
            ("digest", ":"),
            ("digest", "u"),
            ("ip", "10.1.2.3"),
            ("ip", "10.0.0.0/8"),
            ("ip", "::/0"),
            ("ip", "x"),
            ("x509", "CN=a"),
            ("x509", ""),
            ("sasl", "bob"),
            (SUPER, ""),
            ("guess", "x"),
            ("", ""),
        ]);
        // Most lists must be valid, so invalid entries are rare.
        let valid = prop::sample::select(vec![
            ("auth", ""),
            ("digest", "u:h"),
            ("digest", "w:h"),
            ("ip", "10.0.0.0/9"),
            ("world", "anyone"),
        ]);
        prop_oneof![20 => valid, 1 => plain]
    }

    fn any_client() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
        let id = prop::sample::select(vec![
            ("ip", "10.1.2.3"),
            ("ip", "::1"),
            ("ip", "x"),
            ("digest", "u:h"),
            ("digest", "v:h"),
            ("digest", ":"),
            ("x509", "CN=a"),
            ("sasl", "bob"),
            ("world", "x"),
            ("digest", "w:h"),
            ("digest", "y:h"),
            ("x509", "10.1.2.3"),
        ]);
        let with_super = prop::bool::weighted(0.1);
        (prop::collection::vec(id, 0..12), with_super).prop_map(|(mut ids, with_super)| {
            ids.extend(with_super.then_some((SUPER, "")));
            ids
        })
    }

    proptest! {
        #[test]
        fn what_is_applied_is_as_it_was(
            list in prop::collection::vec((0..40_i32, any_id()), 0..60),
            client in any_client(),
        ) {
            let list: Vec<_> = list.into_iter().map(|(perms, (scheme, id))| entry(perms, scheme, id)).collect();
            let client: Vec<_> = client.into_iter().map(|(scheme, id)| Id { scheme, id }).collect();
            let whole = made_whole(&list, &client);
            prop_assert_eq!(&whole, &earlier::made_whole(&list, &client));
            let is_long_whole = is_long(&list) || whole.is_ok_and(|whole| is_long(&whole));
            prop_assert_eq!(is_long_made_whole(&list, &client), is_long_whole);
            let bytes = stored(&list);
            for wanted in 1..=perms::ALL {
                let expected = earlier::allows(&list, &client, wanted);
                prop_assert_eq!(stored_allows(&bytes, &client, wanted), expected);
                prop_assert_eq!(permitted(&bytes, &client) & wanted != 0, expected);
            }
        }
    }
}

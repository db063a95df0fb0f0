//! What a stored ACL permits to a client. The entries are compared in their encoded form, because a list may have a thousand of them.

use std::net::IpAddr;

use super::ids::{IdSet, StoredEntry, each_entry};
use super::{ANYONE, is_in_network, is_super};
use crate::jute::Jute;
use crate::jute::codes::perms;
use crate::jute::records::Id;

/// An ACL of at most this many bytes is judged without arranging the client's ids first.
pub const SHORT_BYTES: usize = 512;
/// A client with at most this many ids is compared with each entry, which is faster than a set.
const FEW: usize = 4;

/// Returns which of [`perms::ALL`] the entries of an ACL give, if `has` tells whether the client has an id that is no address.
fn given(list: &[u8], addresses: &[IpAddr], has: impl Fn(&StoredEntry<'_>) -> bool) -> i32 {
    let mut given = 0;
    let is_whole = each_entry(list, |entry| {
        let new = entry.perms & perms::ALL & !given;
        let is_for = || match entry.scheme {
            b"world" if entry.name == ANYONE.id.as_bytes() => true,
            b"ip" => std::str::from_utf8(entry.name)
                .is_ok_and(|name| addresses.iter().any(|address| is_in_network(*address, name))),
            _ => has(&entry),
        };
        // An entry that adds nothing need not be looked up.
        if new != 0 && is_for() {
            given |= new;
        }
    });
    // An ACL that cannot be decoded admits nobody.
    if is_whole { given } else { 0 }
}

fn addresses(client: &[Id<'_>]) -> Vec<IpAddr> {
    client.iter().filter(|id| id.scheme == "ip").filter_map(|id| id.id.parse().ok()).collect()
}

/// Returns which of [`perms::ALL`] a stored ACL gives to a client with these ids.
pub fn permitted(list: &[u8], client: &[Id<'_>]) -> i32 {
    if list.is_empty() || is_super(client) {
        return perms::ALL;
    }
    if client.len() > FEW && list.len() > SHORT_BYTES {
        return Arranged::new(client).permitted(list);
    }
    given(list, &addresses(client), |entry| {
        client.iter().any(|id| id.id.as_bytes() == entry.name && id.scheme.as_bytes() == entry.scheme)
    })
}

/// Returns whether a stored ACL gives at least one of the permissions `wanted` to a client with these ids.
pub fn stored_allows(list: &[u8], client: &[Id<'_>], wanted: i32) -> bool {
    permitted(list, client) & wanted != 0
}

/// A client's ids, arranged so that the entries of long ACLs can be looked up.
#[derive(Debug)]
pub struct Arranged {
    is_super: bool,
    addresses: Vec<IpAddr>,
    others: IdSet,
}

impl Arranged {
    /// Arranges a client's ids.
    pub fn new(client: &[Id<'_>]) -> Arranged {
        let others: Vec<Vec<u8>> = client.iter().filter(|id| id.scheme != "ip").map(Jute::to_vec).collect();
        let (is_super, others) = (is_super(client), IdSet::of(&others));
        Arranged { is_super, addresses: addresses(client), others }
    }

    /// Returns which of [`perms::ALL`] a stored ACL that is not the open one gives, as [`permitted`] does.
    pub fn permitted(&self, list: &[u8]) -> i32 {
        if self.is_super {
            return perms::ALL;
        }
        given(list, &self.addresses, |entry| self.others.contains(entry.id))
    }
}

//! Access control: which ACLs a client may set, and what an ACL permits to whom. The schemes are `world`, `auth`, `digest`, `ip`,
//! `x509` and `sasl`, as in ZooKeeper, and `super` for the superuser.
//!
//! The node that a client is connected to determines the client's ids. They are part of each write, which is checked against them
//! when it is applied. At that point `auth` is replaced by these ids.

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

fn is_in_network(client: &str, allowed: &str) -> bool {
    let (Ok(client), Some((address, bits))) = (client.parse::<IpAddr>(), network(allowed)) else {
        return false;
    };
    client.is_ipv4() == address.is_ipv4() && leading(client, bits) == leading(address, bits)
}

/// Returns whether the ids of a scheme prove an identity. An address does not.
fn is_proof(scheme: &str) -> bool {
    matches!(scheme, "digest" | "x509" | "sasl" | SUPER)
}

/// Returns a client's ACL with `auth` replaced by the client's own ids, and without duplicate entries.
///
/// # Errors
/// InvalidACL: the ACL is empty or too long, or contains an unknown scheme or an invalid id.
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

/// Returns whether a client with these ids may do everything, whatever the ACLs say.
pub fn is_super(client: &[Id<'_>]) -> bool {
    client.iter().any(|id| id.scheme == SUPER)
}

/// Returns whether `list` gives at least one of the permissions `wanted` to a client with these ids.
pub fn allows<'a>(list: impl IntoIterator<Item = Acl<'a>>, client: &[Id<'_>], wanted: i32) -> bool {
    is_super(client)
        || list.into_iter().filter(|entry| entry.perms & wanted != 0).any(|entry| {
            entry.id == ANYONE
                || client.iter().filter(|c| c.scheme == entry.id.scheme).any(|c| match c.scheme {
                    "ip" => is_in_network(c.id, entry.id.id),
                    _ => c.id == entry.id.id,
                })
        })
}

/// Encodes an ACL for the store. The open ACL takes no bytes.
pub fn stored(list: &[Acl<'_>]) -> Vec<u8> {
    if list == [OPEN] { Vec::new() } else { Jute::to_vec(&list.to_vec()) }
}

/// Returns whether an ACL is longer than a door accepts.
pub fn is_long(list: &[Acl<'_>]) -> bool {
    let bytes = |entry: &Acl<'_>| 12 + entry.id.scheme.len() + entry.id.id.len();
    list.len() > MAX_ENTRIES || list.iter().map(bytes).sum::<usize>() > MAX_BYTES
}

/// Decodes a stored ACL.
pub fn of_stored(bytes: &[u8]) -> Vec<Acl<'_>> {
    if bytes.is_empty() {
        return vec![OPEN];
    }
    // Only `stored` writes these bytes. An ACL that cannot be decoded admits nobody.
    Vec::read(&mut Reader::new(bytes)).unwrap_or_default()
}

/// Returns whether a stored ACL gives at least one of the permissions `wanted` to a client with these ids.
pub fn stored_allows(bytes: &[u8], client: &[Id<'_>], wanted: i32) -> bool {
    bytes.is_empty() || allows(of_stored(bytes), client, wanted)
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
    use super::*;

    fn entry<'a>(perms: i32, scheme: &'a str, id: &'a str) -> Acl<'a> {
        Acl { perms, id: Id { scheme, id } }
    }

    #[test]
    fn digests_are_zookeepers() {
        // This example is from ZooKeeper's documentation of the superuser.
        assert_eq!(digest_id("super:admin"), "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=");
    }

    #[test]
    fn networks() {
        assert!(is_in_network("10.1.2.3", "10.0.0.0/8") && !is_in_network("11.1.2.3", "10.0.0.0/8"));
        assert!(is_in_network("10.1.2.3", "10.1.2.3") && !is_in_network("10.1.2.4", "10.1.2.3"));
        assert!(
            is_in_network("1.2.3.4", "0.0.0.0/0")
                && is_in_network("::1", "::/0")
                && !is_in_network("::1", "0.0.0.0/0")
        );
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
        assert!(allows(list, &from("10.9.9.9"), perms::READ));
        assert!(!allows(list, &from("10.9.9.9"), perms::WRITE));
        assert!(!allows(list, &from("11.9.9.9"), perms::READ));
        assert!(allows(list, &[Id { scheme: "digest", id: "u:h" }], perms::ADMIN));
        assert!(!allows(list, &[Id { scheme: "digest", id: "u:g" }], perms::READ));
        assert!(allows(list, &[Id { scheme: SUPER, id: "" }], perms::ADMIN));
        assert!(allows([OPEN], &[], perms::DELETE));
        assert_eq!(of_stored(&stored(&list)), list);
        assert_eq!(of_stored(&stored(&[OPEN])), [OPEN]);
        assert!(stored(&[OPEN]).is_empty());
    }
}

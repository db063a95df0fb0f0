//! Converts messages to the terms of the contract and back, and checks the limits of requests.

use std::collections::HashMap;
use std::time::Duration;

use atoll_auth::Right;
use atoll_client::Reason;
use atoll_client::keyspace_proto as proto;
use atoll_client::keyspace_proto::condition::What;
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Durability, Floor, Guard, Held, Holder, KeyVersion, KeyspaceSpec, Lease,
    ShardPlacement, Transacted, TxnPart,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_door::keyspaces::{
    Described, Found, KeysTransacted, KeysTxn, LeaseRequest, MAX_KEYS, MAX_KEYSPACE_NAME, Wrote,
};
use atoll_door::limits::{MAX_NODES, check_list, check_text};
use atoll_door::{Caller, Refusal};
use bytes::Bytes;

/// The longest name of an engine or an option, and the longest value of an option, in bytes.
const MAX_WORD: usize = 80;
/// An engine that no node has: what it would offer, tables offer.
const TABLES: &str = "table";
/// The maximum number of options of a new keyspace.
const MAX_OPTIONS: usize = 32;
/// No engine has longer keys. Engines check their own, smaller limits.
const MAX_KEY_BYTES: usize = 64 * 1024;
/// The maximum number of buckets in all shards of a keyspace: each costs memory and work on its replicas even if it is empty.
const MAX_ALL_BUCKETS: u64 = 262_144;

fn check_text_of_name(name: &str) -> Result<(), Refusal> {
    check_text("the name of a keyspace", name, MAX_KEYSPACE_NAME)
}

/// Refuses an invalid name, and a caller who may not do this with the keyspace.
pub(crate) fn check_name(caller: &Caller, name: &str) -> Result<(), Refusal> {
    check_text_of_name(name)?;
    caller.on(name)
}

/// Refuses an invalid name, and a caller who lacks this right on the keyspace.
pub(crate) fn check_name_with(caller: &Caller, right: Right, name: &str) -> Result<(), Refusal> {
    check_text_of_name(name)?;
    caller.on_with(right, name)
}

pub(crate) fn check_keys(keys: &[Bytes]) -> Result<(), Refusal> {
    check_list("keys", keys.len(), MAX_KEYS)?;
    match keys.iter().map(Bytes::len).max() {
        Some(bytes) if bytes > MAX_KEY_BYTES => {
            let words = format!("a key of {bytes} bytes; at most {MAX_KEY_BYTES} are allowed");
            Err(Refusal::no(Reason::TooLarge, words, ""))
        }
        _ => Ok(()),
    }
}

fn check_placement(nodes: &[u32], options: &HashMap<String, String>) -> Result<(), Refusal> {
    check_list("nodes of a keyspace", nodes.len(), MAX_NODES)?;
    check_list("options of a keyspace", options.len(), MAX_OPTIONS)?;
    for (name, value) in options {
        check_text("the name of an option", name, MAX_WORD)?;
        check_text("the value of an option", value, MAX_WORD)?;
    }
    Ok(())
}

/// Returns where the request wants the replicas of a keyspace.
pub(crate) fn placement(request: proto::MoveKeyspaceRequest) -> Result<KeyspaceSpec, Refusal> {
    check_placement(&request.nodes, &request.options)?;
    Ok(KeyspaceSpec {
        replicas: request.replicas,
        nodes: request.nodes.into_iter().map(NodeId).collect(),
        options: request.options.into_iter().collect(),
        ..KeyspaceSpec::default()
    })
}

/// Returns what the request requires of a new keyspace.
pub(crate) fn spec(request: proto::CreateKeyspaceRequest) -> Result<KeyspaceSpec, Refusal> {
    let durability = match request.durability() {
        proto::Durability::Disk => Durability::Disk,
        proto::Durability::Memory => Durability::Memory,
        proto::Durability::Unspecified => {
            let next = "set it to DURABILITY_DISK or DURABILITY_MEMORY";
            return Err(Refusal::no(Reason::Invalid, "the durability is missing or unknown", next));
        }
    };
    check_text("the name of an engine", &request.engine, MAX_WORD)?;
    if request.engine == TABLES {
        let words = "tables are no keyspaces: they are in the database, which applies one log";
        return Err(Refusal::no(Reason::Invalid, words, "`atoll table create` makes one"));
    }
    check_placement(&request.nodes, &request.options)?;
    let all = u64::from(request.shards.unwrap_or(1)) * u64::from(request.buckets.unwrap_or(1));
    if all > MAX_ALL_BUCKETS {
        let words = format!("{all} buckets in all shards together; at most {MAX_ALL_BUCKETS} are allowed");
        return Err(Refusal::no(Reason::TooLarge, words, "use fewer shards, or fewer buckets for each"));
    }
    Ok(KeyspaceSpec {
        engine: request.engine,
        durability,
        replicas: request.replicas,
        shards: request.shards,
        buckets: request.buckets,
        nodes: request.nodes.into_iter().map(NodeId).collect(),
        options: request.options.into_iter().collect(),
    })
}

/// Returns the name of a write and whether it was sent before. None if the node should choose a name.
pub(crate) fn write_name(name: Option<proto::WriteName>) -> Result<Option<(OpId, Attempt)>, Refusal> {
    let Some(name) = name else { return Ok(None) };
    if name.client == 0 {
        return Err(Refusal::no(Reason::Invalid, "the client of a write is 0", "draw one at random"));
    }
    let attempt = if name.again { Attempt::Again(Floor(name.floor)) } else { Attempt::First };
    Ok(Some((OpId { client: ClientId(name.client), seq: name.seq }, attempt)))
}

/// The longest wait for a lease within one call, in milliseconds.
const MAX_WAIT_MS: u64 = 10_000;

fn lease_name(name: Option<proto::LeaseName>) -> Result<OpId, Refusal> {
    match name {
        Some(name) if name.client != 0 => Ok(OpId { client: ClientId(name.client), seq: name.seq }),
        _ => Err(Refusal::no(Reason::Invalid, "the request has no name, or its client is 0", "draw one")),
    }
}

/// Returns a request for a new lease.
pub(crate) fn acquire(request: proto::AcquireLeaseRequest) -> Result<LeaseRequest, Refusal> {
    if request.wait_ms > MAX_WAIT_MS {
        let words = format!("a wait of {} ms; at most {MAX_WAIT_MS} are allowed", request.wait_ms);
        return Err(Refusal::no(Reason::Invalid, words, "wait again"));
    }
    Ok(LeaseRequest::Acquire {
        op: lease_name(request.name)?,
        owner: request.owner,
        for_ms: request.for_ms,
        wait: Duration::from_millis(request.wait_ms),
    })
}

/// Returns a request that renews a lease.
pub(crate) fn renew(request: &proto::RenewLeaseRequest) -> Result<LeaseRequest, Refusal> {
    let op = lease_name(request.name)?;
    Ok(LeaseRequest::Renew { op, fencing: request.fencing, for_ms: request.for_ms })
}

pub(crate) fn lease(lease: Lease) -> proto::Lease {
    proto::Lease { fencing: lease.fencing, for_ms: lease.for_ms }
}

pub(crate) fn holder(holder: Holder) -> proto::LeaseHolderReply {
    let Holder { owner, lease: held, expired } = holder;
    proto::LeaseHolderReply { owner, lease: Some(lease(held)), expired }
}

/// Returns the condition of a write.
pub(crate) fn guard(condition: Option<proto::Condition>) -> Result<Guard, Refusal> {
    let invalid = |words: &str| Err(Refusal::no(Reason::Invalid, words, ""));
    Ok(match condition.map(|condition| condition.what) {
        None => Guard::Always,
        // A newer client may have set a condition that this program does not know.
        Some(None) => return invalid("a condition that says nothing, or that this node does not know"),
        Some(Some(What::Absent(true))) => Guard::Absent,
        Some(Some(What::Present(true))) => Guard::Present,
        Some(Some(What::Absent(false) | What::Present(false))) => {
            return invalid("`absent` and `present` must be true if they are set");
        }
        Some(Some(What::Version(version))) => Guard::Version(KeyVersion(version)),
        Some(Some(What::Value(value))) => Guard::Value(value),
    })
}

pub(crate) fn held(held: Held) -> proto::Held {
    proto::Held { version: held.version.0, value: held.value }
}

pub(crate) fn found(found: Found) -> proto::get_reply::Found {
    proto::get_reply::Found { held: found.held.map(held), floor: found.floor.0 }
}

pub(crate) fn wrote(wrote: Wrote) -> proto::WriteReply {
    let floor = wrote.floor.0;
    match wrote.changed {
        Changed::Done(version) => proto::WriteReply { done: true, version: version.0, current: None, floor },
        Changed::Not(current) => {
            proto::WriteReply { done: false, version: 0, current: current.map(held), floor }
        }
    }
}

/// Returns the transaction that a request describes.
/// Returns whether a part of a transaction changes its key, and does not only check it.
pub(crate) fn changes(part: &proto::TransactPart) -> bool {
    part.change.is_some()
}

pub(crate) fn txn(
    name: Option<proto::WriteName>,
    parts: Vec<proto::TransactPart>,
) -> Result<KeysTxn, Refusal> {
    check_list("keys of a transaction", parts.len(), MAX_KEYS)?;
    let name = write_name(name)?.map(|(op, attempt)| (op, attempt != Attempt::First));
    let part = |part: proto::TransactPart| {
        let change = match part.change {
            None => None,
            // The buffer of the request is shared with the key. A copy keeps only the value.
            Some(proto::transact_part::Change::Put(value)) => {
                Some(Change::Put(Bytes::copy_from_slice(&value)))
            }
            Some(proto::transact_part::Change::Delete(true)) => Some(Change::Delete),
            Some(proto::transact_part::Change::Delete(false)) => {
                return Err(Refusal::no(Reason::Invalid, "`delete` must be true if it is set", ""));
            }
        };
        let floor = Floor(part.floor);
        Ok(TxnPart { floor, ..TxnPart::new(part.key, guard(part.condition)?, change) })
    };
    Ok(KeysTxn { name, parts: parts.into_iter().map(part).collect::<Result<_, _>>()? })
}

pub(crate) fn transacted(made: KeysTransacted) -> proto::TransactReply {
    let (done, changed) = match made.outcome {
        Transacted::Done(changed) => (true, changed),
        Transacted::Not(held) => (false, held.into_iter().map(Changed::Not).collect()),
    };
    let outcome = |(changed, floor): (Changed, Floor)| {
        let (version, current) = match changed {
            Changed::Done(version) => (version.0, None),
            Changed::Not(current) => (0, current.map(held)),
        };
        proto::transact_reply::Outcome { version, current, floor: floor.0 }
    };
    proto::TransactReply { done, outcomes: changed.into_iter().zip(made.floors).map(outcome).collect() }
}

pub(crate) fn keyspace(name: String, Described { layout, left_to_move }: &Described) -> proto::Keyspace {
    let shard = |shard: &ShardPlacement| proto::Shard {
        nodes: shard.replicas.iter().map(|replica| replica.node.0).collect(),
    };
    let durability = match layout.durability {
        Durability::Disk => proto::Durability::Disk,
        Durability::Memory => proto::Durability::Memory,
    };
    proto::Keyspace {
        name,
        engine: layout.engine.clone(),
        durability: durability.into(),
        id: layout.id.to_string(),
        epoch: layout.epoch,
        buckets: layout.buckets,
        shards: layout.shards.iter().map(shard).collect(),
        left_to_move: u32::try_from(*left_to_move).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn wrong_requests_are_refused_before_anything_is_done() {
        let good = proto::CreateKeyspaceRequest {
            name: "locks".into(),
            durability: proto::Durability::Memory.into(),
            shards: Some(256),
            buckets: Some(64),
            ..Default::default()
        };
        let made = spec(good.clone()).unwrap();
        assert_eq!((made.shards, made.durability), (Some(256), Durability::Memory));
        let reason = |request| spec(request).unwrap_err().failure.reason;
        let unspecified = proto::CreateKeyspaceRequest { durability: 0, ..good.clone() };
        assert_eq!(reason(unspecified), Reason::Invalid);
        let table = proto::CreateKeyspaceRequest { engine: "table".into(), ..good.clone() };
        assert!(spec(table).unwrap_err().failure.message.contains("tables are no keyspaces"));
        let many = proto::CreateKeyspaceRequest { buckets: Some(u32::MAX), ..good.clone() };
        assert_eq!(reason(many), Reason::TooLarge);
        let nodes = proto::CreateKeyspaceRequest { nodes: vec![1; MAX_NODES + 1], ..good.clone() };
        assert_eq!(reason(nodes), Reason::TooLarge);
        let engine = proto::CreateKeyspaceRequest { engine: "e".repeat(MAX_WORD + 1), ..good };
        assert_eq!(reason(engine), Reason::TooLarge);
        assert!(check_keys(&vec![Bytes::from_static(b"k"); MAX_KEYS + 1]).is_err());
        assert!(check_keys(&[Bytes::from(vec![0; MAX_KEY_BYTES + 1])]).is_err());
        assert!(check_text_of_name(&"n".repeat(MAX_KEYSPACE_NAME + 1)).is_err());
    }

    #[test]
    fn conditions_and_names_are_read() {
        let of = |what| guard(Some(proto::Condition { what }));
        assert_eq!(guard(None), Ok(Guard::Always));
        assert_eq!(of(Some(What::Absent(true))), Ok(Guard::Absent));
        assert_eq!(of(Some(What::Version(7))), Ok(Guard::Version(KeyVersion(7))));
        assert!(of(None).is_err() && of(Some(What::Present(false))).is_err());
        let name = proto::WriteName { client: 3, seq: 4, again: true, floor: 9 };
        let op = OpId { client: ClientId(3), seq: 4 };
        assert_eq!(write_name(Some(name)), Ok(Some((op, Attempt::Again(Floor(9))))));
        assert!(write_name(Some(proto::WriteName { client: 0, ..name })).is_err());
        assert_eq!(write_name(None), Ok(None));
    }
}

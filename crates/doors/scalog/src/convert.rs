//! Converts messages to the terms of the contract and back, and checks requests.

use atoll_client::scalog_proto as proto;
use atoll_client::{MAX_RECORD_BYTES, Reason, ShardPolicy, is_log_name, log_name_hint};
use atoll_contract::LogPos;
use atoll_core::NodeId;
use atoll_door::Caller;
use atoll_door::backend::{DATABASE_LOG, Refusal};
use atoll_door::limits::MAX_NODES;
use atoll_door::shards::{ActiveShards, ShardChange, ShardState};

/// Refuses an invalid name.
fn check_form(name: &str) -> Result<(), Refusal> {
    if is_log_name(name) { Ok(()) } else { Err(Refusal::no(Reason::Invalid, log_name_hint(name), "")) }
}

/// Refuses an invalid name, and a caller who may not do this with the log.
pub(crate) fn check_name(caller: &Caller, name: &str) -> Result<(), Refusal> {
    check_form(name)?;
    caller.on(name)
}

/// Refuses the same, and the database's log, which clients do not change.
pub(crate) fn check_name_to_change(caller: &Caller, name: &str) -> Result<(), Refusal> {
    check_name(caller, name)?;
    check_change(name)
}

fn check_change(name: &str) -> Result<(), Refusal> {
    if name != DATABASE_LOG {
        return Ok(());
    }
    let words = "this log is the database's: only its replicas change what is in it";
    Err(Refusal::no(Reason::Refused, words, "use another log, or the database's doors"))
}

/// Every position is below this one. No log gets there; the limit keeps sums of positions in range.
const MAX_POSITION: u64 = 1 << 60;

/// Refuses a position that no log has.
pub(crate) fn position(at: u64) -> Result<LogPos, Refusal> {
    if at < MAX_POSITION {
        return Ok(LogPos(at));
    }
    let words = format!("position {at} is beyond the tail of every log");
    Err(Refusal::no(Reason::BeyondTail, words, format!("positions are below {MAX_POSITION}")))
}

/// Refuses a record that is too long, or has no name.
pub(crate) fn check_record(data: &[u8], client: u64) -> Result<(), Refusal> {
    if client == 0 {
        let words = "the client of an append is 0";
        return Err(Refusal::no(Reason::Invalid, words, "draw one at random for every append"));
    }
    let bytes = data.len();
    if bytes > MAX_RECORD_BYTES {
        let words = format!("the record has {bytes} bytes; at most {MAX_RECORD_BYTES} are allowed");
        return Err(Refusal::no(Reason::TooLarge, words, "split it"));
    }
    Ok(())
}

/// Returns a policy. None: like all other appends to the log.
pub(crate) fn policy(value: i32, is_retry: bool) -> Result<Option<ShardPolicy>, Refusal> {
    let policy = match proto::Policy::try_from(value) {
        Ok(proto::Policy::Hash) => return Ok(None),
        Ok(proto::Policy::Nearest) => ShardPolicy::Nearest,
        Ok(proto::Policy::RoundRobin) => ShardPolicy::RoundRobin,
        Err(_) => {
            let words = format!("policy {value} is unknown");
            return Err(Refusal::no(Reason::Invalid, words, "use hash, nearest or round-robin"));
        }
    };
    if is_retry {
        let words = "an append that this policy has placed cannot be sent again: it may be in any shard";
        return Err(Refusal::no(Reason::Invalid, words, "choose a shard, and use AppendToShard"));
    }
    Ok(Some(policy))
}

/// Returns the change that adds a shard.
pub(crate) fn add(number: Option<u32>, nodes: Vec<u32>) -> Result<ShardChange, Refusal> {
    if nodes.len() > MAX_NODES {
        let words = format!("the shard has {} nodes; at most {MAX_NODES} may be named", nodes.len());
        return Err(Refusal::no(Reason::Invalid, words, ""));
    }
    if nodes.contains(&0) {
        return Err(Refusal::no(Reason::Invalid, "there is no node 0", ""));
    }
    Ok(ShardChange::Add { number, nodes: nodes.into_iter().map(NodeId).collect() })
}

/// Returns a shard as clients see it. `start` is the first position of its segment.
pub(crate) fn shard(one: ShardState, start: LogPos) -> proto::Shard {
    proto::Shard {
        number: one.number,
        nodes: one.nodes.into_iter().map(|node| node.0).collect(),
        records: one.records,
        leaving: one.leaving,
        ended: one.ended.map(|end| start.plus(end.0).0),
    }
}

pub(crate) fn shards(log: String, active: ActiveShards, node: NodeId) -> proto::ShardsReply {
    let start = active.start;
    proto::ShardsReply {
        log,
        kind: active.kind,
        loglet: active.loglet.to_string(),
        start: start.0,
        trim: active.trim.0,
        tail: start.plus(active.shards.tail.0).0,
        view: active.shards.view,
        shards: active.shards.shards.into_iter().map(|one| shard(one, start)).collect(),
        node: node.0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn wrong_requests_are_refused_before_anything_is_done() {
        let reason = |refusal: Refusal| refusal.failure.reason;
        assert_eq!(reason(check_form("a b").unwrap_err()), Reason::Invalid);
        assert_eq!(check_form(DATABASE_LOG), Ok(()));
        assert_eq!(reason(check_change(DATABASE_LOG).unwrap_err()), Reason::Refused);
        assert_eq!(check_record(&vec![0; MAX_RECORD_BYTES], 7), Ok(()));
        assert_eq!(reason(check_record(&[], 0).unwrap_err()), Reason::Invalid);
        assert_eq!(reason(check_record(&vec![0; MAX_RECORD_BYTES + 1], 7).unwrap_err()), Reason::TooLarge);
        assert!(policy(0, true).unwrap().is_none());
        assert!(policy(1, false).unwrap().is_some());
        assert_eq!(reason(policy(2, true).unwrap_err()), Reason::Invalid);
        assert_eq!(reason(policy(9, false).unwrap_err()), Reason::Invalid);
        assert_eq!(reason(add(None, vec![1, 0]).unwrap_err()), Reason::Invalid);
        assert_eq!(reason(add(None, vec![1; MAX_NODES + 1]).unwrap_err()), Reason::Invalid);
        assert_eq!(reason(position(u64::MAX).unwrap_err()), Reason::BeyondTail);
    }
}

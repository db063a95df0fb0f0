//! Converts messages to the terms of the contract and back, and checks requests.

use atoll_client::corfu_proto as proto;
use atoll_client::{MAX_RECORD_BYTES, Reason, is_log_name, log_name_hint};
use atoll_contract::{ClientId, LogPos};
use atoll_core::NodeId;
use atoll_door::Caller;
use atoll_door::backend::{DATABASE_LOG, LogRecords, Refusal};
use atoll_door::positions::{ActivePositions, Replace};

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

/// Returns the record of an append.
pub(crate) fn record(request: proto::AppendRequest) -> Result<LogRecords, Refusal> {
    if request.client == 0 {
        let words = "the client of an append is 0";
        return Err(Refusal::no(Reason::Invalid, words, "draw one at random for every append"));
    }
    let bytes = request.data.len();
    if bytes > MAX_RECORD_BYTES {
        let words = format!("the entry has {bytes} bytes; at most {MAX_RECORD_BYTES} are allowed");
        return Err(Refusal::no(Reason::TooLarge, words, "split it"));
    }
    Ok(LogRecords {
        client: ClientId(request.client),
        first_seq: 1,
        payloads: vec![request.data],
        floor: request.floor.map(LogPos),
        known: None,
    })
}

/// Returns what to replace.
pub(crate) fn replace(what: Option<proto::replace_request::What>) -> Result<Replace, Refusal> {
    let what = match what {
        Some(proto::replace_request::What::Unit(unit)) => {
            Replace::Unit { old: NodeId(unit.old), new: NodeId(unit.new) }
        }
        Some(proto::replace_request::What::Sequencer(node)) => Replace::Sequencer(NodeId(node)),
        None => {
            let words = "the request does not say what to replace, or this node does not know it";
            return Err(Refusal::no(Reason::Invalid, words, "name a unit, or a sequencer"));
        }
    };
    Ok(what)
}

pub(crate) fn projection(log: String, active: ActivePositions) -> proto::Projection {
    let (complete, written, next) = active.reach;
    let chain = |units: Vec<NodeId>| proto::Chain { units: units.into_iter().map(|unit| unit.0).collect() };
    proto::Projection {
        log,
        kind: active.kind,
        loglet: active.loglet.to_string(),
        start: active.start.0,
        trim: active.trim.0,
        complete: complete.0,
        written: written.0,
        next: next.map(|next| next.0),
        epoch: active.layout.epoch,
        sequencer: active.layout.sequencer.0,
        stripe: active.layout.stripe,
        chains: active.layout.chains.into_iter().map(chain).collect(),
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
        let append = |client, bytes| {
            record(proto::AppendRequest { client, data: vec![0; bytes].into(), ..Default::default() })
        };
        assert_eq!(append(7, MAX_RECORD_BYTES).unwrap().first_seq, 1);
        assert_eq!(reason(append(0, 1).unwrap_err()), Reason::Invalid);
        assert_eq!(reason(append(7, MAX_RECORD_BYTES + 1).unwrap_err()), Reason::TooLarge);
        assert_eq!(reason(replace(None).unwrap_err()), Reason::Invalid);
        assert_eq!(position(MAX_POSITION - 1), Ok(LogPos(MAX_POSITION - 1)));
        assert_eq!(reason(position(u64::MAX).unwrap_err()), Reason::BeyondTail);
    }
}

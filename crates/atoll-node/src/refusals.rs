//! Translates the errors of logs and registers for clients: whether it happened, why not, and what to do.

use atoll_client::Reason;
use atoll_contract::{PlanError, RegisterError, Unavailability};
use atoll_db::{NotFenced, OperateError};
use atoll_door::backend::Refusal;
use atoll_log::virtual_log::{
    LogAppendError, LogError, LogReadError, ReconfigError, Step, SurgeryError, TrimError,
};
use atoll_register_store::MoveError;

use crate::logs::OpenError;
use crate::places::ChainMoveError;

pub(crate) fn open_refusal(error: &OpenError) -> Refusal {
    match error {
        OpenError::Name(_) => Refusal::no(Reason::Invalid, error.to_string(), ""),
        OpenError::TooMany => Refusal::no(Reason::Refused, error.to_string(), ""),
    }
}

/// Returns what a client should know about a temporary problem: the reason, and what to do.
pub(crate) fn why(why: Unavailability) -> (Reason, &'static str) {
    match why {
        Unavailability::Busy => (Reason::Busy, "try again"),
        Unavailability::NoQuorum | Unavailability::NoSequencer | Unavailability::WrongSequencer => (
            Reason::Unavailable,
            "`atoll status` shows which nodes are up; the log continues once enough are",
        ),
        Unavailability::DiskFull => {
            (Reason::DiskFull, "trim the log or free disk space; then the log continues by itself")
        }
        Unavailability::StorageFailed => {
            (Reason::StorageFailed, "see the log of the node; it serves nothing until it is restarted")
        }
        Unavailability::TooLarge => (Reason::TooLarge, "send less at once"),
        Unavailability::Stopping => (Reason::Stopping, "use another node"),
    }
}

pub(crate) fn log_refusal(error: &LogError) -> Refusal {
    let (reason, next) = match error {
        LogError::NoSuchLog => {
            (Reason::NoSuchLog, "`atoll log list` shows the existing logs; the first append creates one")
        }
        LogError::Unavailable(trouble) => why(*trouble),
        LogError::Chain(_) | LogError::Open(_) => {
            (Reason::Refused, "was it written by a newer version of this program?")
        }
        LogError::BeyondTail(_) => (Reason::BeyondTail, "read up to the tail, or follow the log"),
        LogError::Ended(_) => (Reason::Refused, "it accepts no more appends; use another log"),
        LogError::Deleted => (Reason::LogDeleted, "`atoll log create` creates an empty log with this name"),
        LogError::Outdated(_) => (Reason::Unavailable, "send it again with a newer tail"),
        LogError::Held(_) => {
            (Reason::Busy, "try again; `atoll chain audit` shows the surgery that is under way")
        }
    };
    Refusal::no(reason, error.to_string(), next)
}

pub(crate) fn append_refusal(error: &LogAppendError) -> Refusal {
    match error {
        LogAppendError::TooLarge(_) => Refusal::no(Reason::TooLarge, error.to_string(), "split it"),
        LogAppendError::NotAppended(inner) => {
            let failure = log_refusal(inner).failure;
            Refusal::no(failure.reason, error.to_string(), failure.next)
        }
        LogAppendError::Damaged { .. } => Refusal::unknown(
            Reason::Damaged,
            error.to_string(),
            "see which disks are bad; rebuild the segment if a server with a good copy is away",
        ),
        LogAppendError::Trimmed(_) => Refusal::unknown(
            Reason::Trimmed,
            error.to_string(),
            "append it again only if a second copy does no harm",
        ),
        LogAppendError::Unknown(inner) => {
            let failure = log_refusal(inner).failure;
            Refusal::unknown(failure.reason, error.to_string(), failure.next)
        }
    }
}

pub(crate) fn trim_refusal(error: &TrimError) -> Refusal {
    match error {
        TrimError::NotTrimmed(inner) => {
            let mut refusal = log_refusal(inner);
            if matches!(inner, LogError::BeyondTail(_)) {
                refusal.failure.next = "trim at most up to the tail".to_owned();
            }
            refusal
        }
        TrimError::Unknown(inner) => {
            let reason = log_refusal(inner).failure.reason;
            let next = "trim it again, or see with `atoll chain show` where it begins";
            Refusal::unknown(reason, error.to_string(), next)
        }
    }
}

pub(crate) fn read_refusal(error: &LogReadError, local_only: bool) -> Refusal {
    match error {
        LogReadError::Trimmed(at) => {
            Refusal::no(Reason::Trimmed, error.to_string(), format!("read from {at} on"))
        }
        LogReadError::Damaged(_) => Refusal::no(
            Reason::Damaged,
            error.to_string(),
            "bring back a node that has a copy, or put back an intact copy of the file",
        ),
        // The client asked to read only this node's disk, so no other node can help, and a retry is useless.
        LogReadError::Log(LogError::Unavailable(_)) if local_only => Refusal::no(
            Reason::Refused,
            "this node's disk does not have the next record",
            "`atoll status` shows what each server lacks; without --local-only others are asked",
        ),
        LogReadError::Log(inner) => log_refusal(inner),
    }
}

pub(crate) fn reconfig_refusal(error: &ReconfigError) -> Refusal {
    let words = error.to_string();
    match error {
        ReconfigError::Plan(
            PlanError::UnknownKind { .. } | PlanError::Unknown { .. } | PlanError::Invalid { .. },
        ) => Refusal::no(Reason::Invalid, words, ""),
        ReconfigError::Plan(
            PlanError::NodeDown(_) | PlanError::TooFew { .. } | PlanError::Missing { .. },
        ) => Refusal::no(Reason::Refused, words, ""),
        ReconfigError::Plan(PlanError::Unreadable(_)) => {
            Refusal::no(Reason::Refused, words, "was it written by a newer version of this program?")
        }
        ReconfigError::NoSuchLog => log_refusal(&LogError::NoSuchLog),
        ReconfigError::Chain(_) => Refusal::no(Reason::Refused, words, ""),
        ReconfigError::Unavailable { step, why: trouble } => {
            let (reason, next) = why(*trouble);
            match step {
                Step::ReadChain => Refusal::no(reason, words, next),
                Step::Seal | Step::CheckTail | Step::Install => {
                    Refusal::unknown(reason, words, "`atoll chain show` shows the result")
                }
            }
        }
        ReconfigError::NoRoom => Refusal::no(
            Reason::DiskFull,
            words,
            "trim logs with many segments, or delete logs; see the metric atoll_registers_held_bytes",
        ),
        ReconfigError::NoSuchSegment(_) => {
            Refusal::no(Reason::Invalid, words, "`atoll chain show` lists the segments")
        }
        ReconfigError::NotSealed(_) => Refusal::no(Reason::Refused, words, "`atoll chain extend` seals it"),
        ReconfigError::Copy(_) => {
            Refusal::no(Reason::Refused, words, "`atoll status` shows which servers are up")
        }
        ReconfigError::Ended(at) => log_refusal(&LogError::Ended(*at)),
        ReconfigError::Deleted => log_refusal(&LogError::Deleted),
        ReconfigError::Level { .. } => {
            Refusal::no(Reason::Refused, words, "`atoll cluster upgrade` raises it, once all members can")
        }
    }
}

pub(crate) fn move_refusal(error: &ChainMoveError) -> Refusal {
    let words = error.to_string();
    let again = "repeat it: that finds out, and does the rest";
    match error {
        ChainMoveError::Level { .. } => {
            Refusal::no(Reason::Refused, words, "`atoll cluster upgrade` raises it, once all members can")
        }
        ChainMoveError::Unknown { .. } => {
            let next = "add [[registers]] with this name to the configuration of every node, and restart them one by one";
            Refusal::no(Reason::Refused, words, next)
        }
        // A client would repeat an `unavailable` move by itself, for longer than its operator waits.
        ChainMoveError::NotReached { .. } => {
            let next = "the chain is where it was; see whether the store answers, and the log of the node";
            Refusal::no(Reason::Refused, words, next)
        }
        ChainMoveError::OfOthers { .. } => {
            Refusal::no(Reason::Refused, words, "give this cluster a prefix of its own")
        }
        ChainMoveError::NotEverywhere { .. } => {
            let next = "give all nodes the same [[registers]], and let all of them reach the store";
            Refusal::no(Reason::Refused, words, next)
        }
        ChainMoveError::Move(error) => match error {
            MoveError::UnknownPlace(_) => Refusal::no(Reason::Refused, words, ""),
            MoveError::NeverWritten => log_refusal(&LogError::NoSuchLog),
            MoveError::TooLarge(_) => Refusal::no(Reason::Refused, words, "trim the log"),
            MoveError::NotMoved(_) => {
                Refusal::no(Reason::Refused, words, "the chain is where it was; try again")
            }
            MoveError::Unknown(trouble) => Refusal::unknown(why((*trouble).into()).0, words, again),
        },
    }
}

pub(crate) fn operate_refusal(error: &OperateError) -> Refusal {
    let words = error.to_string();
    let again =
        "`atoll chain audit` shows whether it was done; if the position is held, repeat it with --take-over";
    match error {
        OperateError::NotAnEntry => {
            Refusal::no(Reason::Invalid, words, "docs/operate.md describes the format; or excise the entry")
        }
        OperateError::NotFenced { held: true, .. } => Refusal::no(Reason::Refused, words, again),
        OperateError::NotFenced { why: NotFenced::Passed { .. }, .. } => {
            Refusal::no(Reason::Refused, words, "")
        }
        // A client would repeat an `unavailable` surgery by itself, for longer than its operator waits.
        OperateError::NotFenced { .. } => {
            Refusal::no(Reason::Refused, words, "`atoll node list` shows which nodes are up")
        }
        OperateError::Stopping => Refusal::unknown(Reason::Stopping, words, again),
        OperateError::Log(error) => match error {
            SurgeryError::Fault(_) => Refusal::no(Reason::Invalid, words, ""),
            SurgeryError::BeyondTail { .. } => Refusal::no(Reason::BeyondTail, words, ""),
            SurgeryError::Trimmed { .. } => Refusal::no(Reason::Trimmed, words, ""),
            SurgeryError::Nothing(_) => Refusal::no(Reason::Invalid, words, ""),
            SurgeryError::UnderWay { .. } => {
                let next = "wait for it; if its node has died, repeat the same surgery with --take-over";
                Refusal::no(Reason::Refused, words, next)
            }
            SurgeryError::Overtaken(_) => Refusal::no(Reason::Refused, words, again),
            SurgeryError::Read { error, .. } => read_refusal(error, false),
            SurgeryError::Chain(error) => {
                let mut refusal = reconfig_refusal(error);
                if refusal.happened == atoll_client::Outcome::Unknown {
                    refusal.failure.next = again.to_owned();
                }
                refusal
            }
        },
    }
}

pub(crate) fn register_refusal(error: &RegisterError) -> Refusal {
    let next = "try again when a majority of the nodes that hold registers is up";
    match error {
        RegisterError::NotWritten(trouble) => Refusal::no(why((*trouble).into()).0, error.to_string(), next),
        RegisterError::Unknown(trouble) => {
            Refusal::unknown(why((*trouble).into()).0, error.to_string(), next)
        }
        RegisterError::TooLarge(_) | RegisterError::InvalidName(_) => {
            Refusal::no(Reason::TooLarge, error.to_string(), "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::Outcome;

    #[test]
    fn a_trim_that_may_have_been_written_is_not_said_to_have_failed() {
        let trouble = || LogError::Unavailable(Unavailability::NoQuorum);
        assert_eq!(trim_refusal(&TrimError::Unknown(trouble())).happened, Outcome::Unknown);
        assert_eq!(trim_refusal(&TrimError::NotTrimmed(trouble())).happened, Outcome::No);
    }
}

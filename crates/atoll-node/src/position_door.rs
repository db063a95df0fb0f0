//! Single positions of logs, as the doors see them; translates errors for clients.

use std::sync::Arc;

use atoll_client::Reason;
use atoll_contract::LogPos;
use atoll_core::Ticket;
use atoll_door::backend::{Pending, PositionBackend, Refusal};
use atoll_door::positions::{ActivePositions, PositionOp, PositionState, Replace};
use atoll_log::virtual_log::{PositionError, VirtualLog};

use crate::logs::Logs;
use crate::named::Named;
use crate::refusals::{log_refusal, open_refusal, reconfig_refusal, why};

/// See the module documentation.
pub(crate) struct PositionDoor {
    pub logs: Logs,
    pub named: Named,
}

fn refusal(error: &PositionError) -> Refusal {
    let words = error.to_string();
    match error {
        PositionError::Log(inner) => log_refusal(inner),
        PositionError::Unknown(trouble) => {
            let (reason, _) = why(*trouble);
            Refusal::unknown(reason, words, "do it again: repeating it does no harm")
        }
        PositionError::Trimmed(at) => Refusal::no(Reason::Trimmed, words, format!("the log begins at {at}")),
        PositionError::Beyond { .. } => Refusal::no(Reason::BeyondTail, words, ""),
        PositionError::NotOffered(_) => Refusal::no(
            Reason::Refused,
            words,
            "`atoll chain extend --loglet KIND` moves a log to another kind; `atoll chain show` shows its segments",
        ),
    }
}

async fn done<T>(ticket: Ticket<Result<T, PositionError>>) -> Result<T, Refusal> {
    match ticket.await {
        Ok(outcome) => outcome.map_err(|error| refusal(&error)),
        Err(gone) => Err(Refusal::unknown(Reason::Abandoned, gone.to_string(), "")),
    }
}

/// Returns the refusal of a change for which the layout has no place.
fn no_place(change: Replace, units: &[String]) -> Refusal {
    let units = units.join(",");
    let words = match change {
        Replace::Unit { old, .. } if !units.split(',').any(|unit| unit == old.to_string()) => {
            format!("node {old} is not a unit of the active segment")
        }
        Replace::Unit { new, .. } => format!("node {new} is a unit of the active segment already"),
        Replace::Sequencer(node) => format!("node {node} cannot give out positions of the active segment"),
    };
    Refusal::no(Reason::Refused, format!("nothing was changed: {words}"), format!("its units are {units}"))
}

impl PositionDoor {
    fn run<T: Send + 'static>(
        &self,
        log: &str,
        start: impl FnOnce(&VirtualLog) -> Ticket<Result<T, PositionError>>,
    ) -> Pending<T> {
        let ticket = self.logs.open(log).map(|log| start(&log));
        Box::pin(async move { done(ticket.map_err(|error| open_refusal(&error))?).await })
    }
}

impl PositionBackend for PositionDoor {
    fn check(&self, log: &str) -> Pending<()> {
        self.run(log, VirtualLog::offers_positions)
    }

    fn at(&self, log: &str, at: LogPos, op: PositionOp) -> Pending<PositionState> {
        self.run(log, |log| log.at_position(at, op))
    }

    fn active(&self, log: &str) -> Pending<ActivePositions> {
        self.run(log, VirtualLog::active_positions)
    }

    fn replace(&self, log: &str, change: Replace) -> Pending<()> {
        let (opened, named) = (self.logs.open(log), self.named.clone());
        Box::pin(async move {
            let log: Arc<VirtualLog> = opened.map_err(|error| open_refusal(&error))?;
            let (from, layout, spec) = done(log.plan_replacing(change)).await?;
            let units: Vec<String> = layout.chains.iter().flatten().map(ToString::to_string).collect();
            let spec = spec.ok_or_else(|| no_place(change, &units))?;
            named.check(&spec).await?;
            match log.extend_from(from, spec).await {
                Ok(Ok(true)) => Ok(()),
                Ok(Ok(false)) => Err(Refusal::no(
                    Reason::Conflict,
                    "nothing was changed: another segment follows already",
                    "see which nodes keep it, and decide again",
                )),
                Ok(Err(error)) => Err(reconfig_refusal(&error)),
                Err(gone) => Err(Refusal::unknown(Reason::Abandoned, gone.to_string(), "")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::Outcome;
    use atoll_contract::Unavailability;
    use atoll_core::NodeId;
    use atoll_log::virtual_log::LogError;

    #[test]
    fn refusals_say_what_is_wrong() {
        let beyond = refusal(&PositionError::Beyond { at: LogPos(9), tail: LogPos(7) });
        assert_eq!(beyond.failure.message, "position 9 is beyond the tail, which is 7");
        assert_eq!(beyond.happened, Outcome::No);
        assert_eq!(refusal(&PositionError::Unknown(Unavailability::NoQuorum)).happened, Outcome::Unknown);
        assert_eq!(refusal(&PositionError::Log(LogError::NoSuchLog)).failure.reason, Reason::NoSuchLog);
        let units = ["1", "12"].map(str::to_owned);
        let words =
            |old, new| no_place(Replace::Unit { old: NodeId(old), new: NodeId(new) }, &units).failure.message;
        assert_eq!(words(2, 3), "nothing was changed: node 2 is not a unit of the active segment");
        assert_eq!(words(1, 12), "nothing was changed: node 12 is a unit of the active segment already");
    }
}

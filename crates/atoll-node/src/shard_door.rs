//! The shards of logs, as the doors see them; translates errors for clients.

use atoll_client::Reason;
use atoll_contract::{Entry, LogPos};
use atoll_core::Ticket;
use atoll_door::backend::{Pending, Refusal, ShardBackend};
use atoll_door::shards::{ActiveShards, LogRecord, ShardChange};
use atoll_log::virtual_log::{ShardsError, VirtualLog};

use crate::logs::Logs;
use crate::refusals::{append_refusal, log_refusal, open_refusal, read_refusal, reconfig_refusal, why};

/// See the module documentation.
pub(crate) struct ShardDoor {
    pub logs: Logs,
}

fn refusal(error: &ShardsError) -> Refusal {
    let words = error.to_string();
    match error {
        ShardsError::Log(inner) => log_refusal(inner),
        ShardsError::Chain(inner) => reconfig_refusal(inner),
        ShardsError::Append(inner) => append_refusal(inner),
        ShardsError::Read(inner) => read_refusal(inner, false),
        ShardsError::Unknown(trouble) => {
            let (reason, _) = why(*trouble);
            Refusal::unknown(
                reason,
                words,
                "see which shards there are, and do it again if it did not happen",
            )
        }
        ShardsError::NotOffered(_) => Refusal::no(
            Reason::Refused,
            words,
            "`atoll chain extend --loglet KIND` moves a log to another kind; `atoll chain show` shows its segments",
        ),
        ShardsError::Refused(_) => Refusal::no(Reason::Refused, words, "see which shards there are"),
        ShardsError::NotLive(_) | ShardsError::Moved | ShardsError::Changed => {
            Refusal::no(Reason::Conflict, words, "see which shards there are, and use another one")
        }
    }
}

async fn done<T>(ticket: Ticket<Result<T, ShardsError>>) -> Result<T, Refusal> {
    match ticket.await {
        Ok(outcome) => outcome.map_err(|error| refusal(&error)),
        Err(gone) => Err(Refusal::unknown(Reason::Abandoned, gone.to_string(), "")),
    }
}

impl ShardDoor {
    fn run<T: Send + 'static>(
        &self,
        log: &str,
        start: impl FnOnce(&VirtualLog) -> Ticket<Result<T, ShardsError>>,
    ) -> Pending<T> {
        let ticket = self.logs.open(log).map(|log| start(&log));
        Box::pin(async move { done(ticket.map_err(|error| open_refusal(&error))?).await })
    }
}

impl ShardBackend for ShardDoor {
    fn check(&self, log: &str) -> Pending<()> {
        self.run(log, VirtualLog::offers_shards)
    }

    fn shards(&self, log: &str) -> Pending<ActiveShards> {
        self.run(log, VirtualLog::shards)
    }

    fn append(&self, log: &str, shard: u32, record: LogRecord) -> Pending<LogPos> {
        self.run(log, |log| log.append_to_shard(shard, record))
    }

    fn read(&self, log: &str, at: LogPos, shard: u32) -> Pending<Option<Entry>> {
        self.run(log, |log| log.read_in_shard(at, shard))
    }

    fn change(&self, log: &str, change: ShardChange) -> Pending<u32> {
        self.run(log, |log| log.change_shards(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::Outcome;
    use atoll_contract::Unavailability;
    use atoll_log::virtual_log::{LogAppendError, LogError};

    #[test]
    fn refusals_say_whether_a_record_may_go_to_another_shard() {
        let ended = refusal(&ShardsError::NotLive(7));
        assert_eq!((ended.happened, ended.failure.reason), (Outcome::No, Reason::Conflict));
        assert_eq!(ended.failure.message, "shard 7 takes no records");
        let lost = LogAppendError::Unknown(LogError::Unavailable(Unavailability::NoQuorum));
        assert_eq!(refusal(&lost.into()).happened, Outcome::Unknown);
        assert_eq!(refusal(&ShardsError::Unknown(Unavailability::NoQuorum)).happened, Outcome::Unknown);
        let last = refusal(&ShardsError::Refused("shard 0 is the last one".to_owned()));
        assert_eq!(last.failure.message, "nothing was changed: shard 0 is the last one");
        assert_eq!(refusal(&ShardsError::Log(LogError::NoSuchLog)).failure.reason, Reason::NoSuchLog);
    }
}

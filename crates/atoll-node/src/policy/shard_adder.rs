//! The procedure that adds a shard to a log when its shards are full, if an operator wants that (Scalog, NSDI '20, §4). Off unless
//! `logs.full_shard_records` is set. It never ends a shard.
//!
//! Of all nodes, the one that ranks first acts, and only on a chain that it has seen unchanged for [`CALM`]. The change is bound to that
//! version of the chain, so two nodes that both think that they rank first add one shard, not two.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::loglet::sharded::{ShardChange, ShardState};
use atoll_contract::register::Version;
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, Tick};
use atoll_log::virtual_log::{ActiveShards, ShardsError, VersionedChain};

use super::assess::View;
use crate::logs::{Known, Logs};
use crate::members::Members;
use crate::mutants;
use crate::settings::Timings;

/// The minimum time between two shards of one log, and after any other change of its chain. It is longer than an attempt of another node
/// takes, so that none is under way any more.
pub const CALM: Duration = Duration::from_secs(15);
/// Each log is looked at once in so many patrols: shards fill slowly, and the answer costs a read of a register and of a tail.
const PATROLS: u32 = 5;
/// How long a log may take to say which shards it has.
const ANSWER: Duration = Duration::from_secs(2);
/// How long the addition of a shard may take. After that, its outcome shows in the shards.
const ADD_WITHIN: Duration = Duration::from_secs(10);

/// What the procedure has done so far, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// How many shards it added.
    pub shards: u64,
    /// By log: the last thing that it did or could not do, with the reason. Bounded by the number of known logs.
    pub last: BTreeMap<String, String>,
}

/// The chain of a log, and since when this node has seen no other.
type Seen = BTreeMap<String, (Version, Tick)>;

/// See the module documentation. Clones are cheap and share the same state.
#[derive(Clone, Debug)]
pub struct ShardAdder {
    env: Env,
    logs: Logs,
    members: Members,
    timings: Timings,
    full_records: u64,
    added: Arc<Mutex<Added>>,
}

/// Explains why the shards of a log are full, and names the emptiest and the fullest one. None: a shard has room. Shards that have ended,
/// or are about to, do not count.
fn full(shards: &[ShardState], full_records: u64) -> Option<String> {
    let stays = |shard: &&ShardState| shard.is_live() && shard.leaving.is_none();
    let least = shards.iter().filter(stays).min_by_key(|shard| shard.records)?;
    let most = shards.iter().filter(stays).max_by_key(|shard| shard.records)?;
    let has_room = least.records < full_records;
    if has_room && !(mutant(mutants::POLICY_ONE_FULL_SHARD) && most.records >= full_records) {
        return None;
    }
    let count = shards.iter().filter(stays).count();
    Some(format!(
        "each of the {count} shards that take records has at least {full_records}: shard {} has {}, shard {} has {}",
        least.number, least.records, most.number, most.records
    ))
}

impl ShardAdder {
    /// Creates the procedure, which does nothing until [`ShardAdder::run`]. A shard with `full_records` records is full; with 0, none is.
    pub fn new(env: Env, logs: Logs, members: Members, timings: Timings, full_records: u64) -> Self {
        ShardAdder { env, logs, members, timings, full_records, added: Arc::default() }
    }

    /// Returns what it has done so far.
    pub fn added(&self) -> Added {
        lock(&self.added).clone()
    }

    /// Runs until the node stops. Returns at once if no shard is ever full.
    pub async fn run(self) {
        if self.full_records == 0 {
            return;
        }
        let mut seen = Seen::new();
        loop {
            self.env.sleep(self.env.jitter(self.timings.patrol_every * PATROLS)).await;
            if !self.ranks_first() {
                // Whoever did may still be at work. This node starts to look anew when its turn comes.
                seen.clear();
                continue;
            }
            self.round(&mut seen).await;
        }
    }

    fn ranks_first(&self) -> bool {
        let me = self.members.identity();
        View::of(&self.members, &me, self.env.now(), &self.timings).turn(None).is_zero()
    }

    /// Looks at each log once.
    async fn round(&self, seen: &mut Seen) {
        let logs = self.logs.known();
        seen.retain(|name, _| logs.iter().any(|log| log.name == *name));
        lock(&self.added).last.retain(|name, _| logs.iter().any(|log| log.name == *name));
        for log in logs.iter().filter(|log| self.has_shards(&log.chain)) {
            if self.is_calm(log, seen) && self.look_at(log, seen).await.is_err() {
                hit("policy.shards.not_known");
            }
        }
    }

    fn has_shards(&self, chain: &VersionedChain) -> bool {
        let active = chain.chain.active();
        let provider = self.logs.registry().provider(&active.kind);
        !active.is_end() && provider.is_ok_and(|provider| provider.has_shards())
    }

    /// Returns whether the chain of a log has not changed for a while.
    fn is_calm(&self, log: &Known, seen: &mut Seen) -> bool {
        let now = self.env.now();
        let (version, since) = seen.entry(log.name.clone()).or_insert((log.chain.version, now));
        if *version < log.chain.version {
            (*version, *since) = (log.chain.version, now);
        }
        now.since(*since) >= CALM || mutant(mutants::POLICY_ONE_FULL_SHARD)
    }

    /// Adds a shard to a log if it needs one.
    async fn look_at(&self, log: &Known, seen: &mut Seen) -> Result<(), ShardsError> {
        let Ok(handle) = self.logs.open(&log.name) else { return Ok(()) };
        let Ok(Ok(active)) = self.env.within(ANSWER, handle.shards()).await else { return Ok(()) };
        let active: ActiveShards = active?;
        let Some((version, since)) = seen.get_mut(&log.name) else { return Ok(()) };
        if *version != active.version {
            (*version, *since) = (active.version, self.env.now());
            return Ok(());
        }
        let Some(reason) = full(&active.shards.shards, self.full_records) else { return Ok(()) };
        let change = ShardChange::Add { number: None, nodes: Vec::new() };
        let done = self.env.within(ADD_WITHIN, handle.change_shards_at(*version, change)).await;
        // Whatever became of it, the next attempt waits as long as after a change.
        *since = self.env.now();
        match done {
            Ok(Ok(Ok(number))) => self.note_added(&log.name, number, &reason),
            Ok(Ok(Err(ShardsError::Changed))) => hit("policy.shards.changed"),
            Ok(Ok(Err(error))) => self.note_failed(&log.name, &error.to_string(), &reason),
            Ok(Err(_)) => {}
            Err(_) => self.note_failed(&log.name, "the log did not answer in time", &reason),
        }
        Ok(())
    }

    fn note_added(&self, log: &str, number: u32, reason: &str) {
        hit("policy.shards.added");
        tracing::info!(log, shard = number, reason, "added a shard");
        let mut added = lock(&self.added);
        added.shards += 1;
        added.last.insert(log.to_owned(), format!("added shard {number}: {reason}"));
    }

    /// Notes that no shard could be added. The same words are logged once.
    fn note_failed(&self, log: &str, error: &str, reason: &str) {
        hit("policy.shards.not_added");
        let words = format!("no shard could be added: {error}");
        let mut added = lock(&self.added);
        if added.last.get(log).is_none_or(|last| *last != words) {
            tracing::info!(log, error, reason, "the shards are full, and no shard could be added");
            added.last.insert(log.to_owned(), words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::Offset;

    fn shard(number: u32, records: u64) -> ShardState {
        ShardState { number, nodes: Vec::new(), records, leaving: None, ended: None }
    }

    #[test]
    fn shards_are_full_once_each_that_stays_has_enough_records() {
        let ended = ShardState { ended: Some(Offset(7)), ..shard(0, 2) };
        let leaving = ShardState { leaving: Some(3), ..shard(1, 5) };
        let of = |shards: &[ShardState]| full(shards, 10);
        assert_eq!(of(&[shard(2, 10), shard(3, 9)]), None);
        // Those that have ended, or will, do not count.
        let words = "each of the 2 shards that take records has at least 10: shard 2 has 10, shard 4 has 12";
        assert_eq!(of(&[ended, leaving.clone(), shard(2, 10), shard(4, 12)]), Some(words.to_owned()));
        assert_eq!(of(&[leaving]), None, "no shard stays, so the log is about to get one from its operator");
        assert_eq!(of(&[]), None);
    }
}

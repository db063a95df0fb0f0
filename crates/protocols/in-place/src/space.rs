//! A keyspace as a node sees it: where its keys are, its proposers, and commands on one key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::OpId;
use atoll_contract::keyspace::{Attempt, Floor, Layout, Unavailability, place_of};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, NodeId, Tick};
use bytes::Bytes;

use crate::ballot::ProposerId;
use crate::command::{Command, InvalidCommand, Named, Outcome, Refusal, Reply};
use crate::content::MAX_KEY_BYTES;
use crate::courier::Courier;
use crate::groups;
use crate::message::{GroupConfig, GroupKey};
use crate::mutants;
use crate::proposer::{Failure, Proposer};
use crate::read;
use crate::state::Intent;

/// Intervals and limits of a node that uses a keyspace.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a round waits for answers. Too small: slow disks look like dead ones. Too large: dead ones are noticed late.
    pub reply_timeout: Duration,
    /// How long a round that will probably not succeed waits for the rest of the answers.
    pub grace: Duration,
    /// How long an operation is tried before it fails.
    pub patience: Duration,
    /// Mean pause after a failed attempt, which doubles twice. The preferred proposer of a key waits a quarter of it. The pause doubles
    /// further, up to twice the reply timeout, while another proposer of the key gets nothing done. A proposer that got nothing done for
    /// that long itself pauses as after its first failure.
    pub pause: Duration,
    /// How often a read looks again, without progress of anybody else, before it settles the key itself (rmw-R3).
    pub read_tries: u32,
    /// The most commands that wait for one key.
    pub queue: usize,
    /// The most commands and reads under way.
    pub under_way: usize,
    /// The most keys whose proposers are kept. Those that nobody uses go first.
    pub open_keys: usize,
    /// How long after its deletion a key is forgotten. A repeat of a command that comes later has an unknown outcome.
    pub forget_after: Duration,
    /// For how long a watcher waits for a change of a key.
    pub watch_for: Duration,
    /// How long whoever meets the lock of a transaction waits before it tries to abort the transaction. Too small: slow transactions fail.
    /// Too large: a coordinator that has died keeps its keys locked for so long.
    pub txn_grace: Duration,
    /// How many deleted keys wait for that at the same time. The tombstones of others stay until the keys are deleted again.
    pub forgetting: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            reply_timeout: Duration::from_millis(150),
            grace: Duration::from_millis(3),
            patience: Duration::from_secs(3),
            pause: Duration::from_millis(15),
            read_tries: 2,
            queue: 1024,
            under_way: 16 * 1024,
            open_keys: 32 * 1024,
            forget_after: Duration::from_secs(10),
            watch_for: Duration::from_secs(10),
            txn_grace: Duration::from_millis(300),
            forgetting: 1024,
        }
    }
}

/// Why a command has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The key is empty or too long. Nothing was done.
    #[error("the key has {bytes} bytes; 1 to {most} are allowed")]
    Key {
        /// Its length.
        bytes: usize,
        /// The longest key.
        most: usize,
    },
    /// The command is beyond a limit. Nothing was done.
    #[error(transparent)]
    Invalid(#[from] InvalidCommand),
    /// The command did not happen, and will not happen, because of what the key holds.
    #[error("not done: {0}")]
    Refused(Refusal),
    /// The command did not happen, and will not happen.
    #[error("not done: {0}")]
    NotDone(Unavailability),
    /// The command did not happen: a majority of the acceptors has no room for another key, or for a longer content.
    #[error(
        "no room: the acceptors of a majority hold as much as they may; delete keys, or write shorter values"
    )]
    Full,
    /// The command may have happened, or may still happen. To find out, repeat it with the same name and this floor.
    #[error("unknown outcome: {why}")]
    Unknown {
        /// Why there is no answer.
        why: Unavailability,
        /// The floor for a repeat.
        floor: Floor,
    },
    /// An earlier attempt may have happened, too long ago to be remembered. Nothing was done this time.
    #[error("an earlier attempt may have happened, too long ago to be remembered; read the key to find out")]
    Forgotten,
}

/// What all handles of a node to one keyspace share. Each has a layout of its own, and most groups are in several layouts: a key of such a
/// group has one proposer, or the operations of the older handle and those of the newer one would take the key from each other.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The proposers by group and key, each with the number of its last use.
    proposers: BTreeMap<(GroupKey, Bytes), (u64, Arc<Proposer>)>,
    uses: u64,
    /// Acceptors that are known to be gone: they have restarted without their memory, or lost their disk.
    lost: BTreeSet<(GroupKey, NodeId)>,
}

/// What all users of a keyspace on a node share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) layout: Layout,
    /// The groups of the shards.
    groups: Arc<Vec<GroupConfig>>,
    pub(crate) options: Options,
    pub(crate) courier: Arc<Courier>,
    known: Arc<Mutex<Known>>,
    under_way: Arc<()>,
    forgetting: Arc<()>,
}

/// Counts something as long as it lives.
pub(crate) type Permit = Arc<()>;

fn permit(of: &Arc<()>, most: usize) -> Option<Permit> {
    (Arc::strong_count(of) <= most).then(|| of.clone())
}

impl Shared {
    /// Returns the right to use resources for one operation.
    pub(crate) fn may_begin(&self) -> Option<Permit> {
        permit(&self.under_way, self.options.under_way)
    }

    /// Returns the right to wait for a deleted key.
    pub(crate) fn may_forget(&self) -> Option<Permit> {
        permit(&self.forgetting, self.options.forgetting)
    }

    /// Returns the group of a shard.
    pub(crate) fn group(&self, shard: u32) -> GroupConfig {
        self.groups[shard as usize].clone()
    }

    /// Returns the proposer of a key.
    pub(crate) fn proposer(&self, key: &Bytes) -> Arc<Proposer> {
        let group = self.group(self.layout.place(key).shard);
        let place = (group.key, key.clone());
        let mut known = lock(&self.known);
        known.uses += 1;
        let uses = known.uses;
        if let Some((used, proposer)) = known.proposers.get_mut(&place) {
            *used = uses;
            return proposer.clone();
        }
        if known.proposers.len() >= self.options.open_keys.max(1) {
            known.give_up();
        }
        // rmw-T5: no life is used again, neither after a restart nor for the next proposer of the key.
        let life = if mutant(mutants::IN_PLACE_T5) { 1 } else { self.env.random() };
        let pid = ProposerId { node: self.env.node(), life };
        let key = Bytes::copy_from_slice(key);
        let proposer = Arc::new(Proposer::new(key.clone(), group, pid));
        known.proposers.insert((proposer.group.key, key), (uses, proposer.clone()));
        proposer
    }

    /// Returns the highest clock of a key that this node has seen.
    fn clock(&self, key: &[u8]) -> u64 {
        let group = self.groups[self.layout.place(key).shard as usize].key;
        let place = (group, Bytes::copy_from_slice(key));
        lock(&self.known).proposers.get(&place).map_or(0, |(_, proposer)| proposer.clock())
    }

    /// An acceptor of a group is gone, and will not return under this identity.
    pub(crate) fn lost(&self, group: &GroupConfig, node: NodeId) {
        hit("in-place.space.lost");
        lock(&self.known).lost.insert((group.key, node));
    }

    /// Returns whether a majority of a group is gone: then it never serves again.
    pub(crate) fn is_lost(&self, group: &GroupConfig) -> bool {
        self.is_over(group, &[])
    }

    /// Returns whether no majority of a group can answer any more, ever: the acceptors on these nodes are sealed, and others are gone.
    pub(crate) fn is_over(&self, group: &GroupConfig, sealed: &[NodeId]) -> bool {
        let known = lock(&self.known);
        let is_out = |node| sealed.contains(&node) || known.lost.contains(&(group.key, node));
        let left = group.replicas.iter().filter(|replica| !is_out(replica.node)).count();
        left < group.majority()
    }

    /// Returns whether another node is the preferred proposer of a key. Under contention, the others wait longer, so that the preferred one
    /// gets a token, and keeps it for the commands that have gathered (§4, liveness). Nothing else depends on it.
    pub(crate) fn gives_way(&self, group: &GroupConfig, key: &[u8]) -> bool {
        let count = group.replicas.len().max(1) as u32;
        // The shard's hash is used up, so the other half of the place decides.
        let preferred = place_of(key, group.shards, count).bucket as usize;
        group.replicas.get(preferred).is_some_and(|replica| replica.node != self.env.node())
    }

    fn pause(&self, failures: u32, gives_way: bool) -> Duration {
        let pause = if gives_way { self.options.pause } else { self.options.pause / 4 };
        pause * (1 << failures.saturating_sub(1).min(2))
    }

    /// Waits after this many failures in a row.
    pub(crate) async fn back_off(&self, failures: u32, gives_way: bool) {
        self.env.sleep(self.env.jitter(self.pause(failures, gives_way))).await;
    }

    /// Waits for a rival: the longer, the more often it was given too little time. An attempt of two rounds takes no longer than this.
    ///
    /// But a proposer that got nothing done for that long, `waited`, has given enough. Its rivals begin with short pauses after each thing
    /// that they get done, so if only its own pauses were long, they would take the key from each other and never leave it the key.
    pub(crate) async fn give_time(&self, failures: u32, haste: u32, gives_way: bool, waited: Duration) {
        let most = self.options.reply_timeout * 2;
        let first = self.pause(1, gives_way);
        let pause = self.pause(failures, gives_way).saturating_mul(1 << haste.min(16));
        let pause = pause.min(most.saturating_sub(waited)).max(first);
        self.env.sleep(self.env.jitter(pause)).await;
    }
}

impl Known {
    /// Drops an eighth of the proposers, of those that nobody uses.
    fn give_up(&mut self) {
        let idle = self.proposers.iter().filter(|(_, (_, proposer))| Arc::strong_count(proposer) == 1);
        let mut idle: Vec<(u64, (GroupKey, Bytes))> =
            idle.map(|(place, (used, _))| (*used, place.clone())).collect();
        idle.sort_unstable();
        idle.truncate(self.proposers.len() / 8 + 1);
        for (_, place) in idle {
            hit("in-place.space.gives_up");
            self.proposers.remove(&place);
        }
    }
}

/// A keyspace of replicated data types, as a node sees it. Cheap to clone. [`Keyspace`](atoll_contract::Keyspace) shows it as keys and
/// values.
#[derive(Clone, Debug)]
pub struct InPlaceSpace(pub(crate) Arc<Shared>);

impl InPlaceSpace {
    /// Returns a handle to the keyspace with this layout. No acceptor is contacted.
    pub fn new(env: Env, layout: Layout, options: Options) -> Self {
        Self::sharing(env, layout, options, Arc::default())
    }

    /// The same, with what another handle to the keyspace knows.
    pub(crate) fn sharing(env: Env, layout: Layout, options: Options, known: Arc<Mutex<Known>>) -> Self {
        let groups = Arc::new(groups::configs(&layout));
        let courier = Courier::new(env.clone(), groups.clone(), options.reply_timeout);
        let (under_way, forgetting) = (Arc::new(()), Arc::new(()));
        InPlaceSpace(Arc::new(Shared { env, layout, groups, options, courier, known, under_way, forgetting }))
    }

    /// Returns a floor for a command on this key whose first attempt is sent later.
    pub fn floor(&self, key: &[u8]) -> Floor {
        Floor(self.0.clock(key))
    }

    /// Executes a command on a key; linearizable. On return, what it did has the durability of the keyspace. The command takes effect at
    /// most once for its name, through whichever node and however often it is sent.
    pub async fn execute(
        &self,
        op: OpId,
        attempt: Attempt,
        key: Bytes,
        command: Command,
    ) -> Result<Reply, CommandError> {
        check_key(&key)?;
        command.check()?;
        let mut floor = match attempt {
            Attempt::First => None,
            Attempt::Again(floor) => Some(floor.0),
        };
        let deadline = self.0.env.now().after(self.0.options.patience);
        loop {
            let reply = self.submit(op, floor, &key, command.clone(), deadline).await?;
            let decided = matches!(reply.outcome, Outcome::Done { .. } | Outcome::Forgotten { .. });
            let Some(lock) = reply.lock.as_ref().filter(|_| !decided) else { return Ok(reply) };
            // What the key holds is up to the transaction (rmw-TX5). With a floor, an attempt may be under way.
            if let Outcome::Locked { floor: attempted, .. } = reply.outcome {
                floor = attempted.or(floor);
            }
            self.resolve(&key, lock.txn).await.map_err(|why| match floor {
                None => CommandError::NotDone(why),
                Some(floor) => CommandError::Unknown { why, floor: Floor(floor) },
            })?;
        }
    }

    /// Executes a command on a key or on a register of the engine, without regard to locks.
    pub(crate) async fn submit(
        &self,
        op: OpId,
        floor: Option<u64>,
        key: &Bytes,
        command: Command,
        deadline: Tick,
    ) -> Result<Reply, CommandError> {
        let Some(_permit) = self.0.may_begin() else {
            return Err(error(match floor {
                None => Failure::No(Unavailability::Busy),
                Some(floor) => Failure::Unknown(Unavailability::Busy, Floor(floor)),
            }));
        };
        let proposer = self.0.proposer(key);
        let named = Named { op, command, floor, repeat: floor.is_some() };
        let reply = match proposer.submit(&self.0, named, deadline).await {
            Ok(done) => done.map_err(error)?,
            Err(_) => {
                let (why, floor) = (Unavailability::Stopping, Floor(floor.unwrap_or(0)));
                return Err(CommandError::Unknown { why, floor });
            }
        };
        match reply.outcome {
            Outcome::Forgotten { .. } => Err(CommandError::Forgotten),
            // A refusal that shows what a locked key holds is not the last word.
            Outcome::Refused(why) if why != Refusal::Condition && reply.lock.is_none() => {
                Err(CommandError::Refused(why))
            }
            _ => Ok(reply),
        }
    }

    /// Reads a key; linearizable. A settled key takes one round trip, and nothing is written.
    ///
    /// # Errors
    /// Only [`CommandError::Key`] and [`CommandError::NotDone`].
    pub async fn read(&self, key: Bytes) -> Result<Reply, CommandError> {
        check_key(&key)?;
        loop {
            let mut reply = self.read_raw(&key).await.map_err(CommandError::NotDone)?;
            let Some(lock) = reply.lock.take().filter(|_| !mutant(mutants::IN_PLACE_TX5_OLD)) else {
                return Ok(reply);
            };
            if mutant(mutants::IN_PLACE_TX5_NEW) {
                if let (Intent::Put { value }, Some(held)) = (lock.intent, &mut reply.held) {
                    held.value = value;
                }
                return Ok(reply);
            }
            // rmw-TX5: neither what the transaction intends nor what was there before is known to be right.
            hit("in-place.txn.read_meets_lock");
            self.resolve(&key, lock.txn).await.map_err(CommandError::NotDone)?;
        }
    }

    /// Like [`InPlaceSpace::read`], without regard to locks.
    pub(crate) async fn read_raw(&self, key: &Bytes) -> Result<Reply, Unavailability> {
        let Some(_permit) = self.0.may_begin() else { return Err(Unavailability::Busy) };
        read::read(&self.0, key).await
    }
}

fn check_key(key: &Bytes) -> Result<(), CommandError> {
    match key.len() {
        1..=MAX_KEY_BYTES => Ok(()),
        bytes => Err(CommandError::Key { bytes, most: MAX_KEY_BYTES }),
    }
}

fn error(failure: Failure) -> CommandError {
    match failure {
        Failure::No(why) => CommandError::NotDone(why),
        Failure::Full => CommandError::Full,
        Failure::Unknown(why, floor) => CommandError::Unknown { why, floor },
    }
}

//! Transactions of several keys (§12): no coordinator whose death blocks anybody.
//!
//! The decision is the content of a register of its own, the *record*: pending, then committed or aborted for good. The coordinator reads
//! the keys, begins the record, locks the keys in their order under the versions that it has read, and commits. A locked key shows its
//! old content and carries what the transaction intends. Everybody who meets a lock looks at the record and ends the lock accordingly. If
//! the record is still pending after a while, they abort it. Only the record decides (rmw-TX2): the time says when to try.
//!
//! *Exactly once.* A key that a transaction changes remembers it under its own name when the lock ends, like any other command. Every
//! attempt reads the keys first, which ends their locks, and finds the name. One changed key that remembers everything since the first
//! attempt shows whether there was a commit before it was read. If all of them may have forgotten it, the outcome is unknown, and nothing
//! is done. A commit after that moves the version of the key, so that the lock of the later attempt fails.
//!
//! *When a repeat is refused.* The attempt before it may still be under way at another node, and its conditions may hold again. So a repeat
//! is refused only if a version that it asks for has passed: no attempt can lock that key any more.
//!
//! *Deleting a record (rmw-TX7).* The coordinator deletes it when it knows that no key has the lock any more. If it dies before, the record
//! stays: about 300 bytes. An absent record counts as one that is to be aborted, because nobody deletes one while a key has its lock.

use std::future::Future;
use std::time::Duration;

use atoll_contract::keyspace::{
    Change, Changed, Floor, Guard, KeyVersion, KeyspaceError, Transacted, TxnLimits, TxnPart, Unavailability,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};
use bytes::{BufMut, Bytes, BytesMut};

use crate::command::{Command, Outcome, Reply, WireGuard};
use crate::content::{Content, MAX_KEY_BYTES, MAX_TXN_KEYS, Stage};
use crate::mutants;
use crate::space::{CommandError, InPlaceSpace};
use crate::state::{Intent, TxnId, TxnLock};

/// How long the pause before another look at a record is, on average.
const LOOK: Duration = Duration::from_millis(10);

/// The limits of transactions. A record names all keys, and a coordinator holds all values in memory.
pub(crate) const LIMITS: TxnLimits = TxnLimits { keys: MAX_TXN_KEYS, bytes: 256 * 1024 };

/// Returns the name of a record. It is longer than any key of a user.
fn record_of(txn: TxnId) -> Bytes {
    let mut name = BytesMut::with_capacity(MAX_KEY_BYTES + 1);
    name.put_u128(txn);
    name.resize(MAX_KEY_BYTES + 1, 0);
    name.freeze()
}

fn failed(error: &CommandError) -> Unavailability {
    match error {
        CommandError::NotDone(why) | CommandError::Unknown { why, .. } => *why,
        CommandError::Full => Unavailability::DiskFull,
        _ => Unavailability::NoQuorum,
    }
}

impl InPlaceSpace {
    /// Executes a command of a transaction, under a name that nobody else has.
    async fn command(&self, key: &Bytes, command: Command) -> Result<Reply, CommandError> {
        let op = OpId { client: ClientId(self.0.env.random().max(1)), seq: 1 };
        let deadline = self.0.env.now().after(self.0.options.patience);
        let reply = self.submit(op, None, key, command, deadline).await?;
        match reply.outcome {
            Outcome::Refused(why) => Err(CommandError::Refused(why)),
            _ => Ok(reply),
        }
    }

    /// Ends the lock of a transaction on a key, as the record says. On return, the key has another lock or none.
    pub(crate) async fn resolve(&self, key: &Bytes, txn: TxnId) -> Result<(), Unavailability> {
        let (env, record) = (&self.0.env, record_of(txn));
        let until = env.now().after(self.0.options.txn_grace);
        let commit = loop {
            let now = self.read_raw(&record).await?.content;
            match now {
                Content::Transaction { stage: Stage::Committed {}, .. } => break true,
                Content::Transaction { stage: Stage::Aborted {}, .. } => break false,
                Content::Transaction { .. } if env.now() < until => {
                    env.sleep(env.jitter(LOOK)).await;
                    continue;
                }
                _ => {}
            }
            // The coordinator may have ended the lock, and deleted the record, a moment ago.
            let holder = self.read_raw(key).await?.lock;
            if holder.is_none_or(|lock| lock.txn != txn) {
                return Ok(());
            }
            hit("in-place.txn.aborts_other");
            match self.command(&record, Command::Decide { commit: false }).await {
                Ok(_) => break false,
                // It was committed meanwhile (rmw-TX2).
                Err(CommandError::Refused(_)) => {}
                // An attempt had an unknown outcome, and the record has been deleted since.
                Err(CommandError::Forgotten) => hit("in-place.txn.record_gone"),
                Err(error) => return Err(failed(&error)),
            }
        };
        if commit {
            hit("in-place.txn.rolls_forward");
        }
        env.race_point("in-place.txn.resolves").await;
        let commit = commit && !mutant(mutants::IN_PLACE_TX3);
        match self.command(key, Command::Unlock { txn, commit }).await {
            // Of an earlier attempt, nobody remembers whether it ended the lock. Whoever still meets the lock comes back.
            Ok(_) | Err(CommandError::Forgotten) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Reads and changes several keys if all conditions hold, or changes none of them; serializable, and linearizable as a whole. The
    /// limits were checked.
    pub(crate) async fn transact_parts(
        &self,
        op: OpId,
        repeat: bool,
        parts: Vec<TxnPart>,
    ) -> Result<Transacted, KeyspaceError> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|a, b| parts[*a].key.cmp(&parts[*b].key));
        let deadline = self.0.env.now().after(self.0.options.patience * 3 / 2);
        let mut floors = repeat.then(|| parts.iter().map(|part| part.floor.0).collect());
        let mut failures = 0;
        loop {
            let mut txn = Txn {
                space: self,
                op,
                repeat,
                floors: floors.take(),
                parts: &parts,
                order: &order,
                txn: u128::from(self.0.env.random()) << 64 | u128::from(self.0.env.random()),
                deadline,
                locked: Vec::new(),
            };
            match txn.run().await {
                Ok(outcome) => return Ok(outcome),
                Err(Setback::Failed(error)) => return Err(error),
                Err(Setback::Conflict) if self.0.env.now() < deadline => {}
                Err(Setback::Conflict) => return Err(txn.not_now(Unavailability::Busy)),
            }
            hit("in-place.txn.conflict");
            floors = txn.floors;
            failures += 1;
            self.0.back_off(failures.min(6), true).await;
        }
    }
}

/// Why an attempt has failed.
enum Setback {
    /// Another transaction, or a write, was faster. Try again under another id.
    Conflict,
    /// It cannot be done now, or nobody knows whether it was done.
    Failed(KeyspaceError),
}

/// One attempt of a transaction.
struct Txn<'a> {
    space: &'a InPlaceSpace,
    op: OpId,
    /// Whether other calls may have tried it before.
    repeat: bool,
    /// For each part, a clock that its key had before the first attempt. None before the first attempt of all.
    floors: Option<Vec<u64>>,
    parts: &'a [TxnPart],
    /// The numbers of the parts, in the order of their keys.
    order: &'a [usize],
    txn: TxnId,
    deadline: Tick,
    /// The parts that may be locked, each with the clock of the key then.
    locked: Vec<(usize, u64)>,
}

impl Txn<'_> {
    async fn run(&mut self) -> Result<Transacted, Setback> {
        let states = self.read().await?;
        if let Some(outcome) = self.outcome(&states).await? {
            return Ok(outcome);
        }
        self.floors.get_or_insert_with(|| states.iter().map(|state| state.clock).collect());
        let record = record_of(self.txn);
        let keys = self.order.iter().map(|part| self.parts[*part].key.clone()).collect();
        if let Err(error) = self.space.command(&record, Command::Begin { keys }).await {
            // Nobody commits it, so it will not happen.
            self.end(false).await;
            return Err(self.no(failed(&error)));
        }
        for part in self.order {
            self.space.0.env.race_point("in-place.txn.locks").await;
            if let Err(setback) = self.lock(*part, states[*part].version).await {
                self.end(false).await;
                return Err(setback);
            }
        }
        self.space.0.env.race_point("in-place.txn.decides").await;
        self.commit(&record).await?;
        // It has happened. Whoever reads a key first does not have to wait for the rest.
        self.space.0.env.spawn("in-place.txn.end", Box::pin(self.end(true)));
        let mut changed: Vec<Changed> = states.into_iter().map(|state| Changed::Not(state.held)).collect();
        for (part, clock) in &self.locked {
            if self.parts[*part].change.is_some() {
                // The end of the lock is the next that the key records.
                changed[*part] = Changed::Done(KeyVersion(clock + 1));
            }
        }
        Ok(Transacted::Done(changed))
    }

    /// Reads every key. Locks that are met are ended (step 1).
    async fn read(&self) -> Result<Vec<Reply>, Setback> {
        let env = &self.space.0.env;
        let read = |key: Bytes| {
            let space = self.space.clone();
            env.launch("in-place.txn.read", async move { space.read(key).await })
        };
        let asked: Vec<_> = self.parts.iter().map(|part| read(part.key.clone())).collect();
        let mut states = Vec::with_capacity(asked.len());
        for ticket in asked {
            let why = match ticket.await {
                Ok(Ok(reply)) => {
                    states.push(reply);
                    continue;
                }
                Ok(Err(error)) => failed(&error),
                Err(_) => Unavailability::Stopping,
            };
            return Err(self.no(why));
        }
        Ok(states)
    }

    /// The attempt has done nothing. Those of other calls may have, or may still do something.
    fn no(&self, why: Unavailability) -> Setback {
        Setback::Failed(self.not_now(why))
    }

    fn not_now(&self, why: Unavailability) -> KeyspaceError {
        match self.repeat && !mutant(mutants::IN_PLACE_TXN_DENIES) {
            false => KeyspaceError::NotDone(why),
            true => KeyspaceError::Unknown { why, floor: self.lowest_floor() },
        }
    }

    fn lowest_floor(&self) -> Floor {
        Floor(self.floors.iter().flatten().copied().min().unwrap_or(0))
    }

    /// Returns the outcome if it can be told from what the keys hold: it was done before, or a condition does not hold.
    async fn outcome(&self, states: &[Reply]) -> Result<Option<Transacted>, Setback> {
        let changes = |part: &TxnPart| part.change.is_some();
        let only_reads = !self.parts.iter().any(changes);
        if let Some(done) = self.done_before(states)? {
            return Ok(Some(done));
        }
        if !only_reads && self.is_forgotten(states) {
            return Err(Setback::Failed(KeyspaceError::Forgotten));
        }
        let holds = |(state, part): (&Reply, &TxnPart)| {
            let held = state.held.as_ref();
            let finds = part.change != Some(Change::Delete) || held.is_some();
            finds && part.guard.holds(held.map(|held| (held.version, &held.value[..])))
        };
        if states.iter().zip(self.parts).all(holds) {
            return Ok(None);
        }
        let not = || Transacted::Not(states.iter().map(|state| state.held.clone()).collect());
        if only_reads || !self.repeat {
            return Ok(Some(not()));
        }
        // From here on, no attempt that has not been committed yet can lock the key of a version that has passed.
        let has_passed = |(state, part): (&Reply, &TxnPart)| matches!(part.guard, Guard::Version(wanted) if state.version > wanted.0);
        if !states.iter().zip(self.parts).any(has_passed) {
            return Err(Setback::Failed(KeyspaceError::Forgotten));
        }
        // One that was committed before is found now. Some keys were read before that key.
        hit("in-place.txn.looks_twice");
        let again = self.read().await?;
        match self.done_before(&again)? {
            Some(done) => Ok(Some(done)),
            None if self.is_forgotten(&again) => Err(Setback::Failed(KeyspaceError::Forgotten)),
            None => Ok(Some(not())),
        }
    }

    /// Returns the outcome if an attempt was committed before, as the keys remember it.
    fn done_before(&self, states: &[Reply]) -> Result<Option<Transacted>, Setback> {
        let is_blind = mutant(mutants::IN_PLACE_TXN_TWICE) && !self.repeat;
        if is_blind || states.iter().all(|state| state.done_at(self.op).is_none()) {
            return Ok(None);
        }
        hit("in-place.txn.done_before");
        let of = |(state, part): (&Reply, &TxnPart)| {
            part.change.as_ref().and(state.done_at(self.op)).map(|clock| Changed::Done(KeyVersion(clock)))
        };
        let known: Option<Vec<Changed>> = states.iter().zip(self.parts).map(of).collect();
        known.map(|changed| Some(Transacted::Done(changed))).ok_or(Setback::Failed(KeyspaceError::AnswerLost))
    }

    /// Returns whether all keys that it changes may have forgotten that they were changed by an earlier attempt.
    fn is_forgotten(&self, states: &[Reply]) -> bool {
        let Some(floors) = &self.floors else { return false };
        let mut changed = states.iter().zip(floors).zip(self.parts).filter(|(_, part)| part.change.is_some());
        changed.all(|((state, floor), _)| state.forgotten > *floor)
    }

    /// Locks a key (step 3). It waits for other transactions in the order of the keys, so no two wait for each other (rmw-TX9).
    async fn lock(&mut self, part: usize, version: u64) -> Result<(), Setback> {
        let TxnPart { key, change, .. } = &self.parts[part];
        if change.is_none() && mutant(mutants::IN_PLACE_TX6) {
            return Ok(());
        }
        let intent = match change {
            None => Intent::Check {},
            Some(Change::Put(value)) => Intent::Put { value: value.clone() },
            Some(Change::Delete) => Intent::Delete {},
        };
        let lock = TxnLock { txn: self.txn, op: self.op, intent, repeat: self.repeat };
        // Whatever the outcome, the lock may be there.
        self.locked.push((part, 0));
        loop {
            let asked = self.space.command(key, Command::Lock { lock: lock.clone(), version }).await;
            let clock = match asked {
                Ok(Reply { outcome: Outcome::Locked { txn, .. }, .. })
                    if self.space.0.env.now() < self.deadline =>
                {
                    hit("in-place.txn.meets_lock");
                    self.space.resolve(key, txn).await.map_err(|why| self.no(why))?;
                    continue;
                }
                Ok(Reply { outcome: Outcome::Locked { .. }, .. }) | Err(CommandError::Refused(_)) => {
                    return Err(Setback::Conflict);
                }
                Ok(reply) => reply.clock,
                Err(_) if mutant(mutants::IN_PLACE_TX1) => version,
                // rmw-TX1: only a lock that is known to be held counts.
                Err(CommandError::Unknown { why, .. }) => match self.space.read_raw(key).await {
                    Ok(now) if now.lock.as_ref() == Some(&lock) => now.clock,
                    _ => return Err(self.no(why)),
                },
                Err(error) => return Err(self.no(failed(&error))),
            };
            if let Some(last) = self.locked.last_mut() {
                last.1 = clock;
            }
            return Ok(());
        }
    }

    /// Commits, if nobody has aborted the transaction (step 4).
    async fn commit(&mut self, record: &Bytes) -> Result<(), Setback> {
        loop {
            let why = match self.space.command(record, Command::Decide { commit: true }).await {
                Ok(_) => return Ok(()),
                Err(CommandError::Refused(_)) => {
                    hit("in-place.txn.aborted_by_other");
                    self.end(false).await;
                    return Err(Setback::Conflict);
                }
                Err(error) => failed(&error),
            };
            // Nobody knows whether it was committed. Asking again tells, and changes nothing if it was. A group that has moved answers
            // nobody; a repeat asks the next one.
            if self.space.0.env.now() >= self.deadline || why == Unavailability::Gone {
                return Err(Setback::Failed(KeyspaceError::Unknown { why, floor: self.lowest_floor() }));
            }
            self.space.0.env.sleep(self.space.0.env.jitter(LOOK)).await;
        }
    }

    /// Returns what ends all locks of this attempt. What fails is left to whoever meets the locks.
    fn end(&self, commit: bool) -> impl Future<Output = ()> + Send + use<> {
        let keys = self.locked.iter().map(|(part, _)| self.parts[*part].key.clone()).collect();
        end(self.space.clone(), self.txn, keys, commit)
    }
}

/// Ends the locks of a transaction, and deletes its record if none is left (steps 5 and 6).
async fn end(space: InPlaceSpace, txn: TxnId, keys: Vec<Bytes>, commit: bool) {
    let (env, record) = (&space.0.env, record_of(txn));
    if !commit && space.command(&record, Command::Decide { commit: false }).await.is_err() {
        return;
    }
    env.race_point("in-place.txn.ends").await;
    let unlock = |key: Bytes| {
        let space = space.clone();
        env.launch("in-place.txn.unlock", async move {
            space.command(&key, Command::Unlock { txn, commit }).await.is_ok()
        })
    };
    let asked: Vec<_> = keys.into_iter().map(unlock).collect();
    let mut all = true;
    for ticket in asked {
        all &= ticket.await.unwrap_or(false);
    }
    // rmw-TX7: no key can have the lock any more.
    if all {
        let _ = space.command(&record, Command::Delete { guard: WireGuard::Always {} }).await;
    }
}

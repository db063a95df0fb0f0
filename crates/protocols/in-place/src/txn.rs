//! Transactions of several keys (§12): no coordinator whose death blocks anybody.
//!
//! The decision is the content of a register of its own, the *record*: pending, then committed or aborted for good. The coordinator reads
//! the keys, begins the record, locks the keys in their order under the versions that it has read, and commits. A locked key shows its
//! old content and carries what the transaction intends. Everybody who meets a lock looks at the record and ends the lock accordingly. If
//! the record is still pending after a while, they abort it. Only the record decides (rmw-TX2): the time says when to try.
//!
//! *Exactly once.* A key remembers a transaction under its own name when the lock ends, like any other command. A repeat reads the keys
//! first, which ends their locks, and finds the name. If a key may have forgotten it, the outcome is unknown, and nothing is done.
//!
//! *Deleting a record (rmw-TX7).* The coordinator deletes it when it knows that no key has the lock any more. If it dies before, the record
//! stays: about 300 bytes. An absent record counts as one that is to be aborted, because nobody deletes one while a key has its lock.

use std::future::Future;
use std::time::Duration;

use atoll_contract::keyspace::{
    Attempt, Change, Changed, Floor, Guard, KeyVersion, KeyspaceError, Unavailability,
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

/// One key of a transaction: its condition, and its change. Without a change, the key is only checked.
pub(crate) type Part = (Bytes, Guard, Option<Change>);

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
                Err(error) => return Err(failed(&error)),
            }
        };
        if commit {
            hit("in-place.txn.rolls_forward");
        }
        let commit = commit && !mutant(mutants::IN_PLACE_TX3);
        self.command(key, Command::Unlock { txn, commit }).await.map(drop).map_err(|error| failed(&error))
    }

    /// Changes several keys if all conditions hold, or none of them; serializable, and linearizable as a whole.
    pub(crate) async fn transact_parts(
        &self,
        op: OpId,
        attempt: Attempt,
        parts: Vec<Part>,
    ) -> Result<Vec<Changed>, KeyspaceError> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|a, b| parts[*a].0.cmp(&parts[*b].0));
        if parts.len() > MAX_TXN_KEYS {
            return Err(KeyspaceError::TooManyKeys { keys: parts.len(), most: MAX_TXN_KEYS });
        }
        if order.windows(2).any(|pair| parts[pair[0]].0 == parts[pair[1]].0) {
            return Err(KeyspaceError::KeyTwice);
        }
        let deadline = self.0.env.now().after(self.0.options.patience * 2);
        let mut failures = 0;
        loop {
            let mut txn = Txn {
                space: self,
                op,
                floor: match attempt {
                    Attempt::First => None,
                    Attempt::Again(floor) => Some(floor.0),
                },
                parts: &parts,
                order: &order,
                txn: u128::from(self.0.env.random()) << 64 | u128::from(self.0.env.random()),
                deadline,
                locked: Vec::new(),
            };
            match txn.run().await {
                Ok(changed) => return Ok(changed),
                Err(Setback::Failed(error)) => return Err(error),
                Err(Setback::Conflict) if self.0.env.now() < deadline => {}
                Err(Setback::Conflict) => {
                    return Err(match attempt {
                        Attempt::First => KeyspaceError::NotDone(Unavailability::Busy),
                        Attempt::Again(floor) => KeyspaceError::Unknown { why: Unavailability::Busy, floor },
                    });
                }
            }
            hit("in-place.txn.conflict");
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
    floor: Option<u64>,
    parts: &'a [Part],
    /// The numbers of the parts, in the order of their keys.
    order: &'a [usize],
    txn: TxnId,
    deadline: Tick,
    /// The parts that may be locked, each with the clock of the key then.
    locked: Vec<(usize, u64)>,
}

impl Txn<'_> {
    async fn run(&mut self) -> Result<Vec<Changed>, Setback> {
        let states = self.read().await?;
        if let Some(done) = self.outcome(&states)? {
            return Ok(done);
        }
        let record = record_of(self.txn);
        let keys = self.order.iter().map(|part| self.parts[*part].0.clone()).collect();
        if let Err(error) = self.space.command(&record, Command::Begin { keys }).await {
            // Nobody commits it, so it will not happen.
            self.end(false).await;
            return Err(Setback::Failed(KeyspaceError::NotDone(failed(&error))));
        }
        for part in self.order {
            if let Err(setback) = self.lock(*part, states[*part].version).await {
                self.end(false).await;
                return Err(setback);
            }
        }
        self.commit(&record).await?;
        // It has happened. Whoever reads a key first does not have to wait for the rest.
        self.space.0.env.spawn("in-place.txn.end", Box::pin(self.end(true)));
        let mut changed: Vec<Changed> = states.iter().map(|state| Changed::Not(state.held.clone())).collect();
        for (part, clock) in &self.locked {
            if self.parts[*part].2.is_some() {
                // The end of the lock is the next that the key records.
                changed[*part] = Changed::Done(KeyVersion(clock + 1));
            }
        }
        Ok(changed)
    }

    /// Reads every key. Locks that are met are ended (step 1).
    async fn read(&self) -> Result<Vec<Reply>, Setback> {
        let env = &self.space.0.env;
        let read = |key: Bytes| {
            let space = self.space.clone();
            env.launch("in-place.txn.read", async move { space.read(key).await })
        };
        let asked: Vec<_> = self.parts.iter().map(|(key, _, _)| read(key.clone())).collect();
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

    /// The attempt has done nothing. Earlier ones may have.
    fn no(&self, why: Unavailability) -> Setback {
        Setback::Failed(match self.floor {
            None => KeyspaceError::NotDone(why),
            Some(floor) => KeyspaceError::Unknown { why, floor: Floor(floor) },
        })
    }

    /// Returns the outcome if it can be told from what the keys hold: it was done before, or a condition does not hold.
    fn outcome(&self, states: &[Reply]) -> Result<Option<Vec<Changed>>, Setback> {
        if let Some(floor) = self.floor {
            if states.iter().any(|state| state.done_at(self.op).is_some()) {
                let version = |state: &Reply| state.done_at(self.op).map(KeyVersion);
                let changed = |state: &Reply| version(state).map_or(Changed::Not(None), Changed::Done);
                return Ok(Some(states.iter().map(changed).collect()));
            }
            if states.iter().any(|state| state.forgotten > floor) {
                return Err(Setback::Failed(KeyspaceError::Forgotten));
            }
        }
        let holds = |(state, (_, guard, change)): (&Reply, &Part)| {
            let held = state.held.as_ref();
            let finds = *change != Some(Change::Delete) || held.is_some();
            finds && guard.holds(held.map(|held| (held.version, &held.value[..])))
        };
        if states.iter().zip(self.parts).all(holds) {
            return Ok(None);
        }
        match self.floor {
            None => Ok(Some(states.iter().map(|state| Changed::Not(state.held.clone())).collect())),
            // An earlier attempt may still be under way, at a node that nobody hears of.
            Some(_) => Err(Setback::Failed(KeyspaceError::Forgotten)),
        }
    }

    /// Locks a key (step 3). It waits for other transactions in the order of the keys, so no two wait for each other (rmw-TX9).
    async fn lock(&mut self, part: usize, version: u64) -> Result<(), Setback> {
        let (key, _, change) = &self.parts[part];
        if change.is_none() && mutant(mutants::IN_PLACE_TX6) {
            return Ok(());
        }
        let intent = match change {
            None => Intent::Check {},
            Some(Change::Put(value)) => Intent::Put { value: value.clone() },
            Some(Change::Delete) => Intent::Delete {},
        };
        let lock = TxnLock { txn: self.txn, op: self.op, intent };
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
            // Nobody knows whether it was committed. Asking again tells, and changes nothing if it was.
            if self.space.0.env.now() >= self.deadline {
                let floor = Floor(self.floor.unwrap_or(0));
                return Err(Setback::Failed(KeyspaceError::Unknown { why, floor }));
            }
            self.space.0.env.sleep(self.space.0.env.jitter(LOOK)).await;
        }
    }

    /// Returns what ends all locks of this attempt. What fails is left to whoever meets the locks.
    fn end(&self, commit: bool) -> impl Future<Output = ()> + Send + use<> {
        let keys = self.locked.iter().map(|(part, _)| self.parts[*part].0.clone()).collect();
        end(self.space.clone(), self.txn, keys, commit)
    }
}

/// Ends the locks of a transaction, and deletes its record if none is left (steps 5 and 6).
async fn end(space: InPlaceSpace, txn: TxnId, keys: Vec<Bytes>, commit: bool) {
    let (env, record) = (&space.0.env, record_of(txn));
    if !commit && space.command(&record, Command::Decide { commit: false }).await.is_err() {
        return;
    }
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

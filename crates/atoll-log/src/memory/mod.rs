//! Loglets and registers in memory, shared by all nodes of a test, with delays and faults. They keep the contracts of
//! [`Loglet`](atoll_contract::Loglet) and [`Register`](atoll_contract::Register) and use all the freedom that these allow: zombies
//! (unacknowledged entries of a sealed Loglet), sealed tails that differ, entries that are in the log although their append failed, and
//! lost answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::{Env, NodeId, Notify};

use atoll_contract::entry::{Entry, OpId};
use atoll_contract::loglet::{LogletError, LogletId, SealedConfig, Tail, Unavailability};
use atoll_contract::position::Offset;
use atoll_contract::register::{Version, Versioned};
use atoll_core::sync::lock;

mod loglet;
mod register;

pub use loglet::{MemoryConfig, MemoryProvider};
pub use register::MemoryRegisters;

/// Faults and delays. Chances are in thousandths.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Shortest time of each step of an operation (request, execution, answer).
    pub min_delay: Duration,
    /// Longest time of such a step.
    pub max_delay: Duration,
    /// Chance that an append is answered as unknown, whether it was written or not.
    pub append_unknown: u64,
    /// Chance that an append is refused as busy.
    pub append_busy: u64,
    /// Chance that an append is refused because the disks are full.
    pub append_full: u64,
    /// Chance that an append of a client that was seen before is answered as forgotten.
    pub append_forgotten: u64,
    /// Chance that another operation of a Loglet gets no answer.
    pub unavailable: u64,
    /// Chance that a deletion of a Loglet does not happen, and gets no answer.
    pub undeleted: u64,
    /// Chance that a write to a register is answered as unknown, whether it was written or not.
    pub register_unknown: u64,
    /// Chance that a register does not answer and does nothing.
    pub register_down: u64,
    /// Whether the registers have room only for those that exist: the first write of a register is refused.
    pub registers_full: bool,
    /// Loglets whose entries cannot be read.
    pub damaged: BTreeSet<LogletId>,
    /// Loglets of which nobody answers reads below an offset.
    pub unread_below: BTreeMap<LogletId, Offset>,
    /// Nodes whose reads and tail checks of a Loglet get no answer if they begin before the seal, as if they were sent to a dead server.
    pub silent_until_sealed: BTreeSet<(NodeId, LogletId)>,
    /// Nodes that reach nothing: their requests are not sent.
    pub cut_off: BTreeSet<NodeId>,
    /// Sequencers that accept nothing and answer nothing.
    pub stopped: BTreeSet<NodeId>,
    /// Sequencers that were restarted: they refuse configurations that name their earlier life.
    pub restarted: BTreeSet<NodeId>,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            min_delay: Duration::from_micros(50),
            max_delay: Duration::from_micros(500),
            append_unknown: 0,
            append_busy: 0,
            append_full: 0,
            append_forgotten: 0,
            unavailable: 0,
            undeleted: 0,
            register_unknown: 0,
            register_down: 0,
            registers_full: false,
            damaged: BTreeSet::new(),
            unread_below: BTreeMap::new(),
            silent_until_sealed: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            stopped: BTreeSet::new(),
            restarted: BTreeSet::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Log {
    /// Entries by offset, including zombies.
    written: Vec<Entry>,
    places: BTreeMap<OpId, u64>,
    /// Offsets below this are acknowledged, or may be.
    committed: u64,
    sealed: bool,
    trim: u64,
}

#[derive(Debug, Default)]
struct Cell {
    now: Versioned,
    /// Every write that took effect, by its nonce.
    written: BTreeMap<u128, Version>,
}

#[derive(Debug, Default)]
struct Servers {
    faults: Faults,
    nodes: Vec<NodeId>,
    logs: BTreeMap<LogletId, Log>,
    /// How many entries reads have returned.
    entries_read: u64,
    tombstones: BTreeSet<LogletId>,
    /// How many Loglets were planned.
    plans: u64,
    /// What plans have made for Loglets that were not deleted.
    made: BTreeSet<u64>,
    cells: BTreeMap<String, Cell>,
    /// The nodes that the last specification named as holders of entries.
    held: Vec<NodeId>,
}

/// The servers of a test: all durable state, and the faults. Cheap to clone; all clones share one state.
#[derive(Clone, Debug, Default)]
pub struct MemoryServers {
    state: Arc<Mutex<Servers>>,
    changed: Notify,
}

impl MemoryServers {
    /// Creates servers on these nodes. A Loglet uses up to three of them, the first as its sequencer.
    pub fn new(nodes: &[NodeId]) -> Self {
        let servers = MemoryServers::default();
        lock(&servers.state).nodes = nodes.to_vec();
        servers
    }

    /// Changes the faults from now on.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut lock(&self.state).faults);
        self.changed.notify();
    }

    /// Returns the nodes that held entries, according to the specification of the Loglet that was planned last.
    pub fn last_held(&self) -> Vec<NodeId> {
        lock(&self.state).held.clone()
    }

    /// Returns the Loglets as one node sees them, as a kind with this name. With `keeps_order` false, appends in flight overtake each
    /// other.
    pub fn provider(&self, env: &Env, kind: &'static str, keeps_order: bool) -> Arc<MemoryProvider> {
        Arc::new(MemoryProvider { at: self.at(env), kind, keeps_order })
    }

    /// Returns the registers as one node sees them.
    pub fn registers(&self, env: &Env) -> Arc<MemoryRegisters> {
        Arc::new(MemoryRegisters(self.at(env)))
    }

    /// Returns everything that a Loglet holds, including zombies, for oracles.
    pub fn entries(&self, loglet: LogletId) -> Vec<Entry> {
        lock(&self.state).logs.get(&loglet).map(|l| l.written.clone()).unwrap_or_default()
    }

    /// Returns how many entries all reads of Loglets have returned together.
    pub fn entries_read(&self) -> u64 {
        lock(&self.state).entries_read
    }

    /// Returns the number of Loglets that were created and not deleted.
    pub fn loglets(&self) -> usize {
        lock(&self.state).logs.len()
    }

    /// Returns for how many Loglets something was made by their plan and not deleted. Some of these Loglets may never have been created.
    pub fn planned(&self) -> usize {
        lock(&self.state).made.len()
    }

    fn at(&self, env: &Env) -> At {
        At { servers: self.clone(), env: env.clone() }
    }
}

/// The servers as seen from one node.
#[derive(Clone, Debug)]
struct At {
    servers: MemoryServers,
    env: Env,
}

impl At {
    fn delay(&self) -> Duration {
        let (min, max) = {
            let s = lock(&self.servers.state);
            (s.faults.min_delay, s.faults.max_delay)
        };
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX).max(1);
        min + Duration::from_nanos(self.env.random() % span)
    }

    async fn step(&self) {
        self.env.sleep(self.delay()).await;
    }

    fn chance(&self, thousandths: impl Fn(&Faults) -> u64) -> bool {
        let limit = thousandths(&lock(&self.servers.state).faults);
        limit > 0 && self.env.random() % 1000 < limit
    }

    /// Returns whether this node reaches nothing.
    fn is_cut_off(&self) -> bool {
        lock(&self.servers.state).faults.cut_off.contains(&self.env.node())
    }

    /// Simulates a message to the Loglet, runs `f` on it, and simulates the answer. The first message creates the Loglet (vlog-V6).
    async fn with_log<T>(&self, id: LogletId, f: impl FnOnce(&mut Log) -> T) -> Result<T, LogletError> {
        self.step().await;
        if self.is_cut_off() || self.chance(|f| f.unavailable) {
            return Err(LogletError::Unavailable(Unavailability::NoQuorum));
        }
        let got = {
            let mut s = lock(&self.servers.state);
            if s.tombstones.contains(&id) {
                return Err(LogletError::Gone);
            }
            f(s.logs.entry(id).or_default())
        };
        self.servers.changed.notify();
        self.step().await;
        Ok(got)
    }

    /// Returns a tail as some majority would report it. A sealed tail may include any number of the unacknowledged entries.
    fn tail(random: u64, log: &Log) -> Tail {
        if !log.sealed {
            return Tail { at: Offset(log.committed), sealed: None };
        }
        let zombies = log.written.len() as u64 - log.committed;
        let at = Offset(log.committed + random % (zombies + 1));
        Tail { at, sealed: Some(SealedConfig::new()) }
    }
}

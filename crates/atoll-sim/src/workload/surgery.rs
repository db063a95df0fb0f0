//! A load in which commands stop replicas, and an operator who cuts them out of the log.
//!
//! Some commands stop every replica. Others stop only the replicas whose program has a bug: one with the right program applies them, and
//! then surgery must be refused. The operator also tries surgery on entries that nobody has stopped at.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_contract::ReadFrom;
use atoll_core::testing::hit;
use atoll_core::{Incarnation, NodeId, Ticket};
use atoll_db::{
    AppId, Application, ApplyAt, Database, Engine, LogPos, NotFenced, Observer, OperateError, Rejected,
    StoreError, Tx, View,
};
use atoll_log::Incision;
use atoll_log::virtual_log::SurgeryError;
use atoll_node::database::LOG;
use bytes::{BufMut, Bytes, BytesMut};

use crate::oracle::Answered;
use crate::oracle::database::Place;
use crate::oracle::histories::HistoriesOracle;
use crate::scenario::database::Engines;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::clients::{Cluster, Life};
use crate::world::fault::{Death, Fault};

/// How many cells there are.
const CELLS: u64 = 8;
/// Where the state has a hash of all that was ever applied.
const HISTORY: &[u8] = b"history";
/// The bytes of an entry of the database before its commands.
const ENTRY_HEAD_BYTES: usize = 32;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Writes its id to its cell.
    Write = 0,
    /// Stops every replica.
    Poison = 1,
    /// Stops the replicas whose program has a bug. The others write.
    Bug = 2,
}

/// Cells, each with the id of its last write. A command is `kind u8 | cell u64 | id u64`.
#[derive(Debug)]
pub struct Wards {
    /// Whether the program of this life is without the bug.
    pub fixed: bool,
}

fn command(kind: Kind, cell: u64, id: u64) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(kind as u8);
    bytes.put_u64_le(cell);
    bytes.put_u64_le(id);
    bytes.freeze()
}

fn word(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().map(u64::from_le_bytes).ok()
}

impl Application for Wards {
    type Event = (Place, u64);
    const ID: AppId = AppId(201);
    const NAME: &'static str = "wards";

    fn apply(
        &mut self,
        at: &ApplyAt,
        command: &[u8],
        tx: &mut Tx<'_, Self::Event>,
    ) -> Result<Bytes, Rejected> {
        let refused = || Rejected(Bytes::new());
        let (kind, rest) = command.split_first().ok_or_else(refused)?;
        let cell = rest.get(..8).ok_or_else(refused)?;
        let id = rest.get(8..).and_then(word).ok_or_else(refused)?;
        // A write before the panic must not stay.
        tx.put(cell, Bytes::copy_from_slice(&rest[8..]));
        if *kind == Kind::Poison as u8 || (*kind == Kind::Bug as u8 && !self.fixed) {
            // Not `panic!`, whose hook would print thousands of messages.
            resume_unwind(Box::new(format!("command {id} is poison")));
        }
        let before = tx.get(HISTORY).and_then(|value| word(&value)).unwrap_or_default();
        let mixed = before.rotate_left(9) ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.position.0;
        tx.put(HISTORY, Bytes::copy_from_slice(&mixed.to_le_bytes()));
        tx.emit(((at.position, at.index), id));
        Ok(Bytes::new())
    }

    fn opened(&mut self, _view: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Passes what a life applies to the oracle.
#[derive(Debug)]
pub struct Door {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub life: Incarnation,
    /// Where events go.
    pub oracle: HistoriesOracle,
    /// Who runs.
    pub cluster: Cluster<NodeHandles>,
}

impl Door {
    /// Returns whether a life of a node still runs.
    pub fn is_up(&self, node: NodeId, life: Incarnation) -> bool {
        let host = (node.0 as usize).wrapping_sub(1);
        self.cluster.host(host).is_some_and(|up| up.env.incarnation() == life)
    }
}

impl Observer<(Place, u64)> for Door {
    fn on_events(&self, below: LogPos, events: Vec<(Place, u64)>) {
        self.oracle.applied(self.node, self.life, below, events, &|node, life| self.is_up(node, life));
    }

    fn on_restored(&self, below: LogPos, _view: &View) {
        self.oracle.restored(self.node, self.life, below);
    }
}

/// Which nodes get the program without the bug at their next start. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Programs(Arc<Mutex<BTreeSet<NodeId>>>);

impl Programs {
    /// Gives a node the right program.
    fn fix(&self, node: NodeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }

    /// Returns whether a node was given the right program.
    pub fn is_fixed(&self, node: NodeId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&node)
    }
}

/// What the clients of this load use.
#[derive(Clone)]
pub struct Ward {
    /// The stage of the run.
    pub stage: Stage<NodeHandles>,
    /// The engines of the nodes.
    pub engines: Engines<Wards>,
    /// The oracle.
    pub oracle: HistoriesOracle,
    /// The programs of the nodes.
    pub programs: Programs,
}

impl Ward {
    fn engine(&self, life: &Life<NodeHandles>) -> Option<Engine<Wards>> {
        self.engines.get(life.node, life.env.incarnation())
    }

    fn report(&self) {
        self.oracle.take_failures().into_iter().for_each(|failure| self.stage.cluster.fail(failure));
        self.stage.report();
    }

    fn any(&self) -> Option<Life<NodeHandles>> {
        self.stage.cluster.any_from(self.stage.below(64) as usize % self.stage.cluster.hosts())
    }

    fn database(life: &Life<NodeHandles>) -> Option<Database> {
        life.handles.0.database.get().cloned()
    }

    /// Returns the hosts whose replicas have halted, and where.
    fn halted(&self) -> BTreeMap<usize, LogPos> {
        let at = |host| {
            let life = self.stage.cluster.host(host)?;
            let halt = Ward::database(&life)?.halted()?;
            Some((host, halt.at_entry()?))
        };
        (0..self.stage.cluster.hosts()).filter_map(at).collect()
    }

    /// Proposes a command. The ticket returns whether it was applied.
    fn propose(&self, life: &Life<NodeHandles>, kind: Kind) -> Ticket<bool> {
        let command = command(kind, self.stage.below(CELLS), self.stage.env.random() >> 1);
        let ticket = self.engine(life).and_then(|engine| engine.propose(command).ok());
        let (me, life) = (self.clone(), life.clone());
        self.stage.env.launch("propose", async move {
            let Some(ticket) = ticket else { return false };
            let done = matches!(me.stage.cluster.ask(&life, ticket).await, Some(Ok(Ok(_))));
            me.stage.count(Answered { writes: u64::from(done), reads: 0 });
            me.report();
            done
        })
    }

    /// Writes until the load is over.
    pub async fn writer(self, think: Duration) {
        while !self.stage.over.is_up() {
            self.stage.pause(think).await;
            let Some(life) = self.any() else { continue };
            for _ in 0..1 + self.stage.below(4) {
                drop(self.propose(&life, Kind::Write));
            }
            self.report();
        }
    }

    /// Plants commands that stop replicas, until the load is over.
    pub async fn planter(self, every: Duration) {
        while !self.stage.over.is_up() {
            self.stage.pause(every).await;
            let Some(life) = self.any() else { continue };
            for _ in 0..1 + self.stage.below(2) {
                let kind = if self.stage.below(2) == 0 { Kind::Poison } else { Kind::Bug };
                drop(self.propose(&life, kind));
            }
        }
    }

    /// Operates until the load is over.
    pub async fn surgeon(self, every: Duration) {
        while !self.stage.over.is_up() {
            self.stage.pause(every).await;
            let Some(life) = self.any() else { continue };
            let mut halted: Vec<LogPos> = self.halted().into_values().collect();
            halted.extend(self.held(&life).await);
            let tail = life.handles.log(LOG).map_or(LogPos(0), |log| log.known_tail());
            let at = match halted.get(self.stage.below(halted.len() as u64) as usize) {
                Some(at) if self.stage.below(8) > 0 => *at,
                // Most replicas have passed it, or soon do.
                _ => LogPos(tail.0.saturating_sub(1)),
            };
            if self.operate(&life, at).await == Some(true) && self.stage.below(2) == 0 {
                // At once, while replicas continue behind the first one.
                self.operate(&life, at.plus(1 + self.stage.below(3))).await;
            }
            self.report();
        }
    }

    /// Excises or replaces an entry. Returns whether that was done; None if its outcome is unknown.
    async fn operate(&self, life: &Life<NodeHandles>, at: LogPos) -> Option<bool> {
        let database = Ward::database(life)?;
        let with = if self.stage.below(2) == 0 { self.replacement(life, at).await } else { None };
        let take_over = self.stage.below(3) == 0;
        let reason = "it stops replicas".to_owned();
        let incision = Incision { at, with, operator: "surgeon".to_owned(), reason, take_over };
        let under_way = || Some(life.handles.log(LOG)?.chain()?.chain.surgery().held()? == at);
        let is_under_way = under_way() == Some(true);
        let done = self.stage.cluster.ask(life, database.operate(incision)).await?.ok()?;
        match done {
            Ok(_) => {
                if is_under_way {
                    hit("sim.surgery.taken_over");
                }
                Some(true)
            }
            Err(OperateError::NotFenced { why: NotFenced::Passed { .. }, .. }) => {
                hit("sim.surgery.passed");
                self.update(at);
                Some(false)
            }
            Err(OperateError::Log(SurgeryError::Overtaken(_)) | OperateError::Stopping) => None,
            Err(_) => Some(false),
        }
    }

    /// Restarts the nodes whose replicas have halted at an entry that another one has applied, with the right program.
    fn update(&self, at: LogPos) {
        for (host, _) in self.halted().into_iter().filter(|(_, halted)| *halted == at) {
            self.programs.fix(NodeId(host as u32 + 1));
            let back_after = Some(self.stage.below(300_000_000));
            self.stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
        }
    }

    /// Returns an entry like the one at a position, with a single write in it.
    async fn replacement(&self, life: &Life<NodeHandles>, at: LogPos) -> Option<Bytes> {
        let log = life.handles.log(LOG)?;
        let read = log.read(at..at.plus(1), 1, ReadFrom::Anywhere);
        let read = self.stage.cluster.ask(life, read).await?.ok()?.ok()?;
        let old = read.entries.first()?.payload.clone();
        let mut new = BytesMut::from(old.get(..ENTRY_HEAD_BYTES)?);
        let command = command(Kind::Write, self.stage.below(CELLS), self.stage.env.random() >> 1);
        new.put_slice(&[Wards::ID.0, 1]);
        new.put_u32_le(command.len() as u32);
        new.put_slice(&command);
        Some(new.freeze())
    }

    /// Demands that no surgery stays under way, that every replica continues, and that all have the same state.
    pub async fn demand(self) {
        let hosts = self.stage.cluster.hosts();
        for host in 0..hosts {
            self.stage.waits_for(format!("a write through host {host}"));
            loop {
                self.cure().await;
                // A command behind a held position gets no answer until a surgery on that position has ended.
                if let Some(life) = self.stage.cluster.host(host)
                    && self.soon(self.propose(&life, Kind::Write)).await == Some(Ok(true))
                {
                    break;
                }
                self.stage.pause(Duration::from_millis(50)).await;
            }
        }
        self.stage.waits_for("equal states of all replicas".to_owned());
        while !self.agree().await {
            self.cure().await;
            self.stage.pause(Duration::from_millis(50)).await;
        }
        if self.oracle.compared() == 0 {
            self.stage.cluster.fail("SMALL: no two histories were compared".to_owned());
        }
        self.report();
    }

    /// Returns the result of `f`, unless it takes long.
    async fn soon<F: Future>(&self, f: F) -> Option<F::Output> {
        self.stage.env.within(Duration::from_secs(2), f).await.ok()
    }

    /// Returns the position that is held, as the register says.
    async fn held(&self, life: &Life<NodeHandles>) -> Option<LogPos> {
        let fresh = life.handles.log(LOG)?.refresh();
        let chain = self.stage.cluster.ask(life, fresh).await?.ok()?.ok()?;
        chain.chain.surgery().held()
    }

    /// Operates once, on an entry at which a replica has halted or which is held.
    async fn cure(&self) {
        let Some(life) = self.any() else { return };
        // As long as one position is held, there is no surgery on another one.
        let held = self.held(&life).await;
        if let Some(at) = held.or_else(|| self.halted().into_values().min()) {
            self.operate(&life, at).await;
        }
        self.report();
    }

    /// Compares the states of all replicas at one position. Returns false if they could not be compared.
    async fn agree(&self) -> bool {
        let mut states: BTreeMap<LogPos, BTreeMap<u64, usize>> = BTreeMap::new();
        let hosts = self.stage.cluster.hosts();
        for host in 0..hosts {
            let Some(life) = self.stage.cluster.host(host) else { return false };
            let Some(engine) = self.engine(&life) else { return false };
            let barrier = self.soon(self.stage.cluster.ask(&life, engine.barrier())).await;
            let Some(Some(Ok(Ok(_)))) = barrier else { return false };
            let view = engine.view();
            let Ok(value) = view.get(HISTORY) else { return false };
            let value = value.and_then(|value| word(&value)).unwrap_or_default();
            *states.entry(view.below()).or_default().entry(value).or_default() += 1;
            let health = engine.health();
            if health.divergence.is_some() {
                self.stage.cluster.fail(format!("HISTORIES: host {host} ended as {health:?}"));
            }
        }
        for (below, values) in &states {
            if values.len() > 1 {
                self.stage.cluster.fail(format!("HISTORIES: {} states below {below}", values.len()));
            }
        }
        states.len() == 1
    }
}

//! The core of a node, without sockets, threads or a clock: its roles, its procedures, its timers, and the answers that it holds until the
//! disk has synced.
//!
//! A host feeds the core (envelopes, durable records, links, time) and drains it (envelopes, one journal batch at a time, reads). There are
//! two hosts: the TCP host and the simulator. The simulator runs everything in this module (contracts §1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;

use crate::cell::{Cell, CellWrite};
use crate::codec::DecodeError;
use crate::env::{Env, Link, Refused, Spawned};
use crate::frame::{Class, Envelope, Exchange, Message, Outgoing};
use crate::ids::{Incarnation, Lsn, NodeId, RoleKind, Tick, roles};
use crate::level::{LevelRange, Levels};
use crate::mutants;
use crate::races::Late;
use crate::ready::{TaskId, TaskWaker};
use crate::role::{Caller, Effect, Effects, FetchError, Loc, Measure, Record, Role, Space, Stored};
use crate::role_table::RoleTable;
use crate::testing::mutant;
use crate::ticket::BoxFuture;

/// The number of steps in one turn before the rest is left to the next turn, unless [`NodeCore::set_turn_steps`] says otherwise: an endless
/// loop between roles becomes visible instead of hanging the node.
pub const STEPS_PER_TURN: usize = 20_000;

/// Records and cells that become durable together: the batch is durable once all of them are. There is no order between them; a crash may
/// keep any part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalBatch {
    /// The records in order. Their numbers in the journal rise by one.
    pub records: Vec<(Lsn, Record)>,
    /// The writes of cells, in order. Their numbers rise by one. Empty on a node whose roles use no cells.
    pub cells: Vec<CellWrite>,
}

impl JournalBatch {
    /// Returns a batch of records alone.
    pub fn of(records: Vec<(Lsn, Record)>) -> Self {
        JournalBatch { records, cells: Vec::new() }
    }
}

/// A request to read stored records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The role that asked.
    pub role: RoleKind,
    /// The tag that the role chose for this read.
    pub tag: u64,
    /// The records to read.
    pub locs: Vec<Loc>,
}

/// All facts of all roles. Once the journal has written and synced a checkpoint, it may drop the facts up to `covers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// All facts up to and including this one are in the checkpoint; later ones may be.
    pub covers: Lsn,
    /// The encoded state of each role.
    pub states: Vec<(RoleKind, Bytes)>,
}

/// What the host has to do after a turn.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Envelopes, in order per peer and class.
    pub frames: Vec<Outgoing>,
    /// The next batch for the journal, if any. Only one is under way at a time: the next follows after [`NodeCore::durable`] (X2).
    pub journal: Option<JournalBatch>,
    /// Reads, answered by [`NodeCore::fetched`].
    pub fetches: Vec<Fetch>,
    /// Entries that no role needs any more.
    pub freed: Vec<Loc>,
    /// The checkpoint that [`NodeCore::request_checkpoint`] asked for, once it is complete. Its order relative to batches does not matter,
    /// because it covers only synced facts.
    pub checkpoint: Option<Checkpoint>,
    /// The limit of steps is reached: take another turn at once.
    pub more: bool,
    /// Steps taken (messages, polls, deadlines): a measure of work.
    pub steps: usize,
}

/// A checkpoint under construction, one piece per turn.
struct Walk {
    covers: Lsn,
    /// Roles that are not in the checkpoint yet; the next one is last.
    left: Vec<RoleKind>,
    states: Vec<(RoleKind, Bytes)>,
}

/// Bytes of a checkpoint that one turn assembles: a few hundred microseconds of work.
const CHECKPOINT_STEP_BYTES: usize = 128 * 1024;

struct Running {
    name: &'static str,
    future: BoxFuture<'static, ()>,
    waker: Waker,
    flag: Arc<TaskWaker>,
}

/// The core of one node; see the module documentation.
pub struct NodeCore {
    env: Env,
    roles: RoleTable,
    /// The roles that ran since they were last flushed, in the order of their kinds.
    touched: Vec<RoleKind>,
    /// Holds the touched roles while they are flushed. It is swapped with `touched` each time, so neither is allocated anew.
    flushing: Vec<RoleKind>,
    tasks: BTreeMap<TaskId, Running>,
    /// Empty between two steps; kept to reuse its allocation.
    due_timers: Vec<Waker>,
    /// Empty between two polls; kept to reuse its allocation.
    adopting: Vec<Spawned>,
    staged: Vec<(Lsn, Record)>,
    staged_cells: Vec<(Lsn, CellWrite)>,
    /// Owners of the records that are being written, with their positions, to notify each role of its own records.
    writing: Vec<(Lsn, RoleKind)>,
    /// Owners of the cells that are being written.
    writing_cells: Vec<RoleKind>,
    /// The last position of the batch that is being written.
    writing_upto: Lsn,
    next_lsn: u64,
    next_cell: u64,
    /// The last durable position.
    durable: Lsn,
    /// The number of the last durable record in the journal. It is less than `durable` if there are cells.
    durable_record: Lsn,
    held: BTreeMap<Lsn, Vec<Effect>>,
    space: Space,
    fetches: Vec<Fetch>,
    freed: Vec<Loc>,
    /// Empty between two inputs; kept to reuse its allocation.
    todo: Vec<(Lsn, Effect)>,
    checkpoint_wanted: bool,
    checkpoint_step_bytes: usize,
    walk: Option<Walk>,
    /// How many steps a turn takes at most, apart from what the host delivers.
    turn_steps: usize,
    steps: usize,
}

impl NodeCore {
    /// Returns the core of a node that has an empty journal, or whose roles [`NodeCore::recover_record`] will fill. `seed` is its only
    /// source of randomness.
    pub fn new(node: NodeId, incarnation: Incarnation, seed: u64) -> Self {
        Self::with_levels(node, incarnation, seed, Levels::new(LevelRange::OURS, true))
    }

    /// Like [`NodeCore::new`], with these feature levels.
    pub fn with_levels(node: NodeId, incarnation: Incarnation, seed: u64, levels: Levels) -> Self {
        NodeCore {
            env: Env::new(node, incarnation, seed, levels),
            roles: RoleTable::default(),
            touched: Vec::new(),
            flushing: Vec::new(),
            due_timers: Vec::new(),
            tasks: BTreeMap::new(),
            adopting: Vec::new(),
            staged: Vec::new(),
            staged_cells: Vec::new(),
            writing: Vec::new(),
            writing_cells: Vec::new(),
            writing_upto: Lsn::NONE,
            next_lsn: 1,
            next_cell: 1,
            durable: Lsn::NONE,
            durable_record: Lsn::NONE,
            held: BTreeMap::new(),
            space: Space::Plenty,
            fetches: Vec::new(),
            freed: Vec::new(),
            todo: Vec::new(),
            checkpoint_wanted: false,
            checkpoint_step_bytes: CHECKPOINT_STEP_BYTES,
            walk: None,
            turn_steps: STEPS_PER_TURN,
            steps: 0,
        }
    }

    /// Returns the handle that procedures and doors use.
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// Adds a role. Panics if the node already has a role of this kind, because the node was then assembled wrongly.
    pub fn add_role(&mut self, kind: RoleKind, role: Box<dyn Role>) {
        self.roles.add(kind, role);
    }

    /// First step of recovery: gives every role its part of the last checkpoint.
    pub fn recover_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), RecoverError> {
        for (kind, state) in checkpoint.states {
            if state.is_empty() {
                continue;
            }
            let role = self.roles.get_mut(kind).ok_or(RecoverError::NoRole { role: kind })?;
            role.restore(state).map_err(|error| RecoverError::Checkpoint { role: kind, error })?;
        }
        Ok(())
    }

    /// Second step of recovery: takes every entry, and every fact above what the checkpoint covers, in journal order. A
    /// record of a role that this node does not have is an error: the data directory belongs to another kind of node.
    pub fn recover_record(&mut self, stored: Stored) -> Result<(), RecoverError> {
        let (kind, lsn) = (stored.record.owner, stored.lsn);
        let role = self.roles.get_mut(kind).ok_or(RecoverError::NoRole { role: kind })?;
        role.recover(stored).map_err(|error| RecoverError::Record { role: kind, lsn, error })
    }

    /// Third step of recovery, if the node has cells: takes each cell. A cell of a role that this node does not have is an error.
    pub fn recover_cell(&mut self, cell: Cell) -> Result<(), RecoverError> {
        let Cell { owner, key, value } = cell;
        let role = self.roles.get_mut(owner).ok_or(RecoverError::NoRole { role: owner })?;
        role.recover_cell(key, value).map_err(|error| RecoverError::Cell { role: owner, error })
    }

    /// End of the third step of recovery. `last` is the number of the last write of a cell, 0 if there never was one.
    pub fn recover_cells_done(&mut self, last: u64) {
        self.next_cell = last + 1;
    }

    /// Returns everything that a role would put into a checkpoint now; None if there is no such role. For tools that read the data
    /// directory of a node that does not run.
    pub fn state_of(&mut self, kind: RoleKind) -> Option<Bytes> {
        self.roles.get_mut(kind)?.checkpoint(usize::MAX)
    }

    /// Last step of recovery. `last` is the highest number in the journal or covered by the checkpoint.
    pub fn recover_done(&mut self, last: Lsn) {
        for kind in self.roles.kinds() {
            self.freed.extend(self.roles.get_mut(kind).map(Role::recovered).unwrap_or_default());
        }
        // Both numbers never fall over the life of a data directory, so their sum does not either. Other nodes remember it.
        self.durable_record = last;
        self.durable = Lsn(last.0 + self.next_cell - 1);
        self.env.witness().set_own(self.durable);
        self.next_lsn = self.durable.0 + 1;
    }

    fn with_role(&mut self, kind: RoleKind, now: Tick, f: impl FnOnce(&mut dyn Role, &mut Effects)) -> bool {
        let Some(role) = self.roles.get_mut(kind) else { return false };
        if let Err(place) = self.touched.binary_search(&kind) {
            self.touched.insert(place, kind);
        }
        let mut fx = Effects {
            role: kind,
            node: self.env.node(),
            space: self.space,
            next_lsn: self.next_lsn,
            next_cell: self.next_cell,
            durable: self.durable,
            staged: std::mem::take(&mut self.staged),
            cells: std::mem::take(&mut self.staged_cells),
            freed: std::mem::take(&mut self.freed),
            todo: std::mem::take(&mut self.todo),
            late: Late::default(),
        };
        f(role, &mut fx);
        self.next_lsn = fx.next_lsn;
        self.next_cell = fx.next_cell;
        self.staged = fx.staged;
        self.staged_cells = fx.cells;
        if self.space == Space::Closed {
            self.staged.clear();
            self.staged_cells.clear();
        }
        self.freed = fx.freed;
        for (reveals, effect) in fx.todo.drain(..) {
            assert!(reveals.0 < self.next_lsn, "an answer reveals {reveals}, which was never staged");
            if reveals <= self.durable || mutant(mutants::X1) {
                self.perform(now, effect);
            } else if self.space != Space::Closed {
                self.held.entry(reveals).or_default().push(effect);
            }
        }
        self.todo = fx.todo;
        true
    }

    fn perform(&mut self, _now: Tick, effect: Effect) {
        match effect {
            Effect::Reply { to, frame, late } => {
                if let Some(request) = to.request {
                    let envelope = Envelope { exchange: Exchange::Reply(request), frame };
                    // A reply that cannot be sent is lost. The caller notices on its own side of the connection.
                    late.send(&self.env, to.node, to.class, envelope);
                }
            }
            Effect::Post { to, class, frame, late } => {
                let envelope = Envelope { exchange: Exchange::Post, frame };
                late.send(&self.env, to, class, envelope);
            }
            Effect::Finish(f) => f(),
            Effect::Run { name, procedure } => {
                self.env.spawn(name, procedure);
            }
            Effect::Fetch { role, tag, locs } => self.fetches.push(Fetch { role, tag, locs }),
        }
    }

    fn clock(&self, now: Tick) {
        let mut state = self.env.state();
        state.now = state.now.max(now);
    }

    /// Takes an envelope from a peer.
    pub fn deliver(&mut self, now: Tick, from: NodeId, class: Class, envelope: Envelope) {
        self.clock(now);
        self.steps += 1;
        self.receive(now, from, class, envelope);
    }

    fn receive(&mut self, now: Tick, from: NodeId, class: Class, envelope: Envelope) {
        let request = match envelope.exchange {
            Exchange::Reply(request) => return self.env.complete(request, envelope.frame),
            Exchange::Request(n) => Some(n),
            Exchange::Post => None,
        };
        let caller = Caller { node: from, request, class };
        let target = envelope.frame.target;
        let taken = self.with_role(target, now, |role, fx| role.on_frame(now, caller, envelope.frame, fx));
        if !taken {
            let reason = format!("node {} does not hold {target}", self.env.node());
            let frame = Refused { reason }.into_frame(roles::NONE);
            self.perform(now, Effect::Reply { to: caller, frame, late: Late::default() });
        }
    }

    /// Reports that the batch of the last turn is synced, with its cells; `written` has the location of each of its records. An error means
    /// that the journal or the store of cells has failed: it is then closed permanently, and everything that waited for it is dropped
    /// (native-T22).
    pub fn durable(&mut self, now: Tick, written: Result<Vec<(Lsn, Loc)>, String>) {
        self.clock(now);
        self.steps += 1;
        let written = match written {
            Ok(written) => written,
            Err(_) => return self.set_space(now, Space::Closed),
        };
        let owners = std::mem::take(&mut self.writing);
        let of_cells = std::mem::take(&mut self.writing_cells);
        self.env.state().journal_since = None;
        assert_eq!(owners.len(), written.len(), "the journal answers for every record of the batch");
        if owners.is_empty() && of_cells.is_empty() {
            return;
        }
        let upto = self.writing_upto;
        self.durable = upto;
        self.env.witness().set_own(upto);
        let mut mine: BTreeMap<RoleKind, Vec<(Lsn, Loc)>> = BTreeMap::new();
        for ((lsn, owner), (number, loc)) in owners.into_iter().zip(written) {
            self.durable_record = Lsn(self.durable_record.0 + 1);
            assert_eq!(number, self.durable_record, "the journal keeps the order of the batch");
            mine.entry(owner).or_default().push((lsn, loc));
        }
        for owner in of_cells {
            mine.entry(owner).or_default();
        }
        // Notify the roles before releasing the held frames, so that an answer shows a state that already includes what it reveals.
        for (kind, records) in mine {
            self.with_role(kind, now, |role, fx| role.on_durable(now, upto, &records, fx));
        }
        while let Some(held) = self.held.first_entry().filter(|held| *held.key() <= upto) {
            for effect in held.remove() {
                self.perform(now, effect);
            }
        }
    }

    /// Takes the answer to a [`Fetch`].
    pub fn fetched(&mut self, now: Tick, role: RoleKind, tag: u64, got: Result<Vec<Stored>, FetchError>) {
        self.clock(now);
        self.steps += 1;
        self.with_role(role, now, |role, fx| role.on_fetched(now, tag, got, fx));
    }

    /// Reports that the space of the journal has changed. `Closed` is permanent.
    pub fn set_space(&mut self, now: Tick, space: Space) {
        self.clock(now);
        if self.space == space || self.space == Space::Closed {
            return;
        }
        self.space = space;
        if space == Space::Closed {
            self.staged.clear();
            self.staged_cells.clear();
            self.writing.clear();
            self.writing_cells.clear();
            self.env.state().journal_since = None;
            self.held.clear();
        }
        let kinds: Vec<RoleKind> = self.roles.kinds();
        for kind in kinds {
            self.with_role(kind, now, |role, fx| role.on_space(now, space, fx));
        }
    }

    /// Reports that the outgoing side to a peer came up, filled up, or went down. `Down` fails every call that waits for that peer.
    pub fn set_link(&mut self, now: Tick, peer: NodeId, class: Class, link: Link) {
        self.clock(now);
        let before = self.env.link(peer, class);
        self.env.set_link(peer, class, link);
        if (before == Link::Down) != (link == Link::Down) {
            let kinds: Vec<RoleKind> = self.roles.kinds();
            for kind in kinds {
                let up = link != Link::Down;
                self.with_role(kind, now, |role, fx| role.on_link(now, peer, class, up, fx));
            }
        }
    }

    /// Requests a checkpoint, which the outputs of a later turn contain. Does nothing while a checkpoint is under construction.
    pub fn request_checkpoint(&mut self) {
        self.checkpoint_wanted = true;
    }

    /// Returns whether a checkpoint is under construction. Each turn adds a piece, so the next turn should come soon.
    pub fn is_checkpointing(&self) -> bool {
        self.walk.is_some()
    }

    /// Sets how many bytes of a checkpoint one turn assembles, at least 1. A small value spreads a checkpoint over many turns.
    pub fn set_checkpoint_step(&mut self, bytes: usize) {
        self.checkpoint_step_bytes = bytes;
    }

    /// Sets after how many steps a turn hands out what it has, at least 1, and leaves the rest to the next turn. Each message that the host
    /// has delivered allows one more. Roles are flushed before.
    /// With a small value, other nodes, the disk and clients begin to work on the first messages of a turn while this node still works on
    /// the others.
    pub fn set_turn_steps(&mut self, steps: usize) {
        self.turn_steps = steps.max(1);
    }

    /// Asks every role to move its live entries out of this sparse segment.
    pub fn compact(&mut self, now: Tick, segment: u64) {
        self.clock(now);
        let kinds: Vec<RoleKind> = self.roles.kinds();
        for kind in kinds {
            self.with_role(kind, now, |role, fx| role.on_compact(now, segment, fx));
        }
    }

    /// Takes every step that is due, up to the limit, then puts the work for the host into `out`.
    pub fn turn(&mut self, now: Tick, out: &mut Outputs) {
        self.clock(now);
        // What was delivered since the last turn has its share, or what it causes would pile up.
        let mut left = self.turn_steps.saturating_add(self.steps);
        loop {
            while left > 0 && self.step(now) {
                left -= 1;
                self.steps += 1;
            }
            if self.touched.is_empty() {
                return self.drain(out, left == 0);
            }
            std::mem::swap(&mut self.touched, &mut self.flushing);
            for i in 0..self.flushing.len() {
                let kind = self.flushing[i];
                self.with_role(kind, now, |role, fx| role.flush(now, fx));
                // Flushing alone must not cause another flush; only new input does.
                self.touched.retain(|touched| *touched != kind);
            }
            self.flushing.clear();
        }
    }

    /// Handles one message, deadline or poll. Returns false if nothing is due.
    fn step(&mut self, now: Tick) -> bool {
        let mut state = self.env.state();
        if let Some((request, frame)) = state.local_replies.pop_front() {
            drop(state);
            self.env.complete(request, frame);
            return true;
        }
        if let Some(envelope) = state.local.pop_front() {
            drop(state);
            self.receive(now, self.env.node(), Class::Control, envelope);
            return true;
        }
        if state.timers.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= now) {
                self.due_timers.push(timer.remove());
            }
            drop(state);
            self.due_timers.drain(..).for_each(Waker::wake);
            return true;
        }
        drop(state);
        self.run_deadline(now) || self.poll_one()
    }

    fn run_deadline(&mut self, now: Tick) -> bool {
        let Some(kind) = self.roles.due(now) else { return false };
        self.with_role(kind, now, |role, fx| role.on_deadline(now, fx));
        true
    }

    fn poll_one(&mut self) -> bool {
        self.adopt_spawned();
        let Some(id) = self.env.0.ready.pop() else { return false };
        let Some(task) = self.tasks.get_mut(&id) else { return true };
        task.flag.polling();
        let mut cx = Context::from_waker(&task.waker);
        if task.future.as_mut().poll(&mut cx).is_ready() {
            self.tasks.remove(&id);
        }
        true
    }

    fn adopt_spawned(&mut self) {
        let aborted = {
            let mut state = self.env.state();
            if state.spawned.is_empty() && state.aborted.is_empty() {
                return;
            }
            std::mem::swap(&mut self.adopting, &mut state.spawned);
            std::mem::take(&mut state.aborted)
        };
        for s in self.adopting.drain(..) {
            let flag = Arc::new(TaskWaker::new(s.id, self.env.0.ready.clone()));
            let waker = Waker::from(flag.clone());
            waker.wake_by_ref();
            self.tasks.insert(s.id, Running { name: s.name, future: s.future, waker, flag });
        }
        for id in aborted {
            drop(self.tasks.remove(&id));
        }
    }

    fn drain(&mut self, out: &mut Outputs, more: bool) {
        {
            let mut state = self.env.state();
            match out.frames.is_empty() {
                true => std::mem::swap(&mut out.frames, &mut state.outgoing),
                false => out.frames.append(&mut state.outgoing),
            }
        }
        out.fetches.append(&mut self.fetches);
        out.freed.append(&mut self.freed);
        // Group commit: everything that was staged while the last batch was being synced becomes one batch with one sync (X2).
        let is_writing = !self.writing.is_empty() || !self.writing_cells.is_empty();
        if !is_writing && (!self.staged.is_empty() || !self.staged_cells.is_empty()) {
            out.journal = Some(self.next_batch());
            let mut state = self.env.state();
            state.journal_since = Some(state.now);
        }
        if std::mem::take(&mut self.checkpoint_wanted) && self.walk.is_none() {
            let left = self.roles.kinds().into_iter().rev().collect();
            self.walk = Some(Walk { covers: self.durable_record, left, states: Vec::new() });
        }
        if let Some(checkpoint) = self.walk_on() {
            out.checkpoint = Some(checkpoint);
        }
        out.more |= more;
        out.steps += std::mem::take(&mut self.steps);
    }

    /// Makes a batch of everything that is staged.
    fn next_batch(&mut self) -> JournalBatch {
        let (staged, cells) = (std::mem::take(&mut self.staged), std::mem::take(&mut self.staged_cells));
        let ends = [staged.last().map(|(lsn, _)| *lsn), cells.last().map(|(lsn, _)| *lsn)];
        self.writing_upto = ends.into_iter().flatten().max().unwrap_or(self.durable);
        self.writing = staged.iter().map(|(lsn, record)| (*lsn, record.owner)).collect();
        self.writing_cells = cells.iter().map(|(_, cell)| cell.owner).collect();
        // The journal numbers records without gaps. Positions have gaps where cells were staged.
        let first = self.durable_record.0 + 1;
        let number = |(n, (_, record)): (u64, (Lsn, Record))| (Lsn(n), record);
        let records = (first..).zip(staged).map(number).collect();
        JournalBatch { records, cells: cells.into_iter().map(|(_, cell)| cell).collect() }
    }

    /// Adds a piece to the checkpoint and returns the whole after the last piece. Everything it covers was durable before the first
    /// piece. It may also contain later facts, durable or only staged. Recovery replays those facts over it, which roles must tolerate
    /// (see `Role::checkpoint`).
    fn walk_on(&mut self) -> Option<Checkpoint> {
        let walk = self.walk.as_mut()?;
        if self.space == Space::Closed {
            self.walk = None;
            return None;
        }
        let mut bytes = self.checkpoint_step_bytes;
        while let Some(kind) = walk.left.last().copied() {
            if bytes == 0 {
                return None;
            }
            if let Some(role) = self.roles.get_mut(kind) {
                let state = role.checkpoint(bytes)?;
                bytes = bytes.saturating_sub(state.len());
                walk.states.push((kind, state));
            }
            walk.left.pop();
        }
        self.walk.take().map(|walk| Checkpoint { covers: walk.covers, states: walk.states })
    }

    /// Returns when the next turn is due without further input; None if never. Returns the current time if work is waiting.
    pub fn next_deadline(&self) -> Option<Tick> {
        let state = self.env.state();
        let waiting = !state.spawned.is_empty()
            || !state.local.is_empty()
            || !state.local_replies.is_empty()
            || !state.outgoing.is_empty()
            || !self.env.0.ready.is_empty()
            || self.walk.is_some();
        if waiting {
            return Some(state.now);
        }
        let timer = state.timers.keys().next().map(|(at, _)| *at);
        drop(state);
        [timer, self.roles.first_deadline()].into_iter().flatten().min()
    }

    /// Returns the figures of every role, and those of the core.
    pub fn measures(&self) -> Vec<Measure> {
        let mut all = Vec::new();
        for (_, role) in self.roles.iter() {
            role.measure(&mut all);
        }
        all.push(Measure { name: "procedures", label: None, value: self.tasks.len() as f64 });
        all.push(Measure {
            name: "held_answers",
            label: None,
            value: self.held.values().map(Vec::len).sum::<usize>() as f64,
        });
        all
    }

    /// Returns the names of the running procedures, for the simulator's report about a stuck node.
    pub fn running(&self) -> impl Iterator<Item = &'static str> {
        self.tasks.values().map(|t| t.name)
    }

    /// Returns a role, for oracles and tests.
    pub fn role(&self, kind: RoleKind) -> Option<&dyn Role> {
        self.roles.get(kind)
    }

    /// Simulates `kill -9`: first refuses everything, then drops the procedures (contracts §4).
    pub fn kill(mut self) {
        self.env.kill();
        self.tasks.clear();
        self.held.clear();
    }
}

/// Why this node cannot recover from its journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// The journal has records, or there are cells, of a role that this node does not hold.
    #[error(
        "the data directory holds records or cells of {role}, which this node is not configured for; start it with that role"
    )]
    NoRole {
        /// The role.
        role: RoleKind,
    },
    /// The checkpoint cannot be decoded although its checksum is right.
    #[error("the checkpoint of {role} is not readable: {error}; it was written by another version")]
    Checkpoint {
        /// The role that owns it.
        role: RoleKind,
        /// What was wrong.
        error: DecodeError,
    },
    /// A cell cannot be decoded although its checksum is right.
    #[error("a cell of {role} is not readable: {error}; it was written by another version")]
    Cell {
        /// The role that owns it.
        role: RoleKind,
        /// What was wrong.
        error: DecodeError,
    },
    /// A record cannot be decoded although its checksum is right.
    #[error("{lsn} of {role} is not readable: {error}; it was written by another version")]
    Record {
        /// The role that owns it.
        role: RoleKind,
        /// The number of the record.
        lsn: Lsn,
        /// What was wrong.
        error: DecodeError,
    },
}

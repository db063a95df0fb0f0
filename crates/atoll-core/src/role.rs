//! Server roles: synchronous state machines that take a message and request effects (design §4).

use bytes::Bytes;

use crate::cell::{CellWrite, MAX_CELL_KEY_BYTES, MAX_CELL_VALUE_BYTES};
use crate::frame::{Class, Frame, Message};
use crate::ids::{Lsn, NodeId, RoleKind, Tick, roles};
use crate::races::Late;
use crate::ticket::BoxFuture;

/// Who sent a frame, and how to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The sending node; this node's own id for local calls.
    pub node: NodeId,
    /// The number of the request; None for a post, which cannot be answered.
    pub request: Option<u64>,
    /// The connection that the answer takes.
    pub class: Class,
}

/// The location of a record in this node's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Loc {
    /// The segment's generation. Generations rise and are never reused.
    pub segment: u64,
    /// Byte offset of the record in the segment.
    pub offset_bytes: u32,
    /// Length of the whole record on disk, in bytes.
    pub len_bytes: u32,
}

/// How the journal's space accounting treats a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// State of the role. The owner's checkpoint replaces it: once a checkpoint covers it, its segment may be recycled.
    Fact,
    /// An entry that its owner reads back by [`Loc`]. Its segment is not recycled before [`Effects::free`].
    Entry,
}

/// A record for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The role that gets it back at recovery.
    pub owner: RoleKind,
    /// Fact or entry.
    pub kind: RecordKind,
    /// The owner's encoded fields.
    pub head: Bytes,
    /// Bytes that are not copied into the head.
    pub payload: Bytes,
}

/// A record as read back from disk, at recovery or by a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its number.
    pub lsn: Lsn,
    /// Its location.
    pub loc: Loc,
    /// The record.
    pub record: Record,
}

/// How much the journal accepts at the moment (native-T22, contracts X5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The journal accepts everything.
    Plenty,
    /// The journal accepts only facts: seals, registers, and trims, which free space. Roles refuse entries.
    FactsOnly,
    /// The journal accepts nothing until the process restarts: a write or sync has failed.
    Closed,
}

/// A failed read of stored records: the reason, with file and offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct FetchError {
    /// What was wrong, naming file and offset.
    pub reason: String,
}

/// A named figure of a role, for metrics and status.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Metric name without the `atoll_` prefix, unit at the end.
    pub name: &'static str,
    /// One label, if any: key and value.
    pub label: Option<(&'static str, String)>,
    /// The figure.
    pub value: f64,
}

/// A server role. Its implementation of this trait is a thin shell: it decodes messages and calls typed inherent methods, which the trace
/// tests exercise.
pub trait Role: Send {
    /// Handles a message for this role.
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects);

    /// Reports that all records and cells up to and including `upto` are durable. `mine` contains the records of this role since the last
    /// call, in order. It is empty if only cells of this role became durable.
    fn on_durable(&mut self, now: Tick, upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects);

    /// Returns when [`Role::on_deadline`] should run next. A role has only one deadline (X10). It depends only on the role's own state, so
    /// it changes only when the role runs, and the core queries it once after each run.
    fn deadline(&self) -> Option<Tick> {
        None
    }

    /// Runs when the deadline has come.
    fn on_deadline(&mut self, _now: Tick, _out: &mut Effects) {}

    /// Sends what the role has gathered, after all input of this turn was handled. Called only if the role ran in this turn.
    fn flush(&mut self, _now: Tick, _out: &mut Effects) {}

    /// Takes the answer to [`Effects::fetch`]: the records in the order of the request, or the reason for the failure.
    fn on_fetched(
        &mut self,
        _now: Tick,
        _tag: u64,
        _got: Result<Vec<Stored>, FetchError>,
        _out: &mut Effects,
    ) {
    }

    /// Reports that the journal is closed permanently, or that space ran short or is available again.
    fn on_space(&mut self, _now: Tick, _space: Space, _out: &mut Effects) {}

    /// Reports that the connection to a peer came up or went down.
    fn on_link(&mut self, _now: Tick, _peer: NodeId, _class: Class, _up: bool, _out: &mut Effects) {}

    /// Empties a sparse segment, so that the journal can recycle it: the role journals its live entries in it again, and then frees their
    /// old locations.
    fn on_compact(&mut self, _now: Tick, _segment: u64, _out: &mut Effects) {}

    /// Returns all state that this role's facts carry, to replace every durable fact. It is empty if there is none. One call must not block
    /// the node for long, so a role with much state assembles about `max_bytes` more in each call and returns None until the checkpoint is
    /// complete. Each part then shows the state at some call since the first. It may include facts that are only staged, or newer than the
    /// first call: recovery replays those facts over it, so replaying a fact must be idempotent. It must not include anything that depends
    /// on an *entry* that is only staged, because that entry may be lost.
    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        Some(Bytes::new())
    }

    /// First step of recovery: loads the last checkpoint.
    fn restore(&mut self, _checkpoint: Bytes) -> Result<(), crate::codec::DecodeError> {
        Ok(())
    }

    /// Second step of recovery: takes the records in the journal, in order. Facts that the checkpoint covers are left out; all entries are
    /// included.
    fn recover(&mut self, _stored: Stored) -> Result<(), crate::codec::DecodeError> {
        Ok(())
    }

    /// Third step of recovery, after the last [`Role::recover`]: takes each cell that this role has written and not deleted, with its last
    /// value. The cells come in no particular order. Of the records and cells that were staged together, a crash may have kept any part, so
    /// a role that needs one before the other waits for [`Role::on_durable`] in between.
    fn recover_cell(&mut self, _key: Bytes, _value: Bytes) -> Result<(), crate::codec::DecodeError> {
        Err(crate::codec::DecodeError::Invalid { what: "cell", value: 0, allowed: "this role uses no cells" })
    }

    /// Last step of recovery, after the last [`Role::recover_cell`]. Returns the locations of entries that are no longer needed.
    fn recovered(&mut self) -> Vec<Loc> {
        Vec::new()
    }

    /// Appends the role's figures for metrics.
    fn measure(&self, _out: &mut Vec<Measure>) {}
}

/// An effect that a role requests.
pub(crate) enum Effect {
    Reply { to: Caller, frame: Frame, late: Late },
    Post { to: NodeId, class: Class, frame: Frame, late: Late },
    Finish(Box<dyn FnOnce() + Send>),
    Run { name: &'static str, procedure: BoxFuture<'static, ()> },
    Fetch { role: RoleKind, tag: u64, locs: Vec<Loc> },
}

/// Collects the effects that a role requests. An answer never leaves the node before the staged fact that it reveals is durable: the core
/// holds it until then (X1).
pub struct Effects {
    pub(crate) role: RoleKind,
    pub(crate) node: NodeId,
    pub(crate) space: Space,
    pub(crate) next_lsn: u64,
    pub(crate) next_cell: u64,
    pub(crate) durable: Lsn,
    pub(crate) staged: Vec<(Lsn, Record)>,
    pub(crate) cells: Vec<(Lsn, CellWrite)>,
    pub(crate) freed: Vec<Loc>,
    pub(crate) todo: Vec<(Lsn, Effect)>,
    /// By how much the last race point delays the next message; nothing outside tests.
    pub(crate) late: Late,
}

impl Effects {
    /// Returns effects for a role without a core, for traces of a single role. Record numbers start right after `durable`.
    pub fn detached(node: NodeId, role: RoleKind, durable: Lsn) -> Self {
        Effects {
            role,
            node,
            space: Space::Plenty,
            next_lsn: durable.0 + 1,
            next_cell: 1,
            durable,
            staged: Vec::new(),
            cells: Vec::new(),
            freed: Vec::new(),
            todo: Vec::new(),
            late: Late::default(),
        }
    }

    /// Returns the node on which this role runs.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns how much the journal accepts at the moment.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Returns the last durable position.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Stages a record. It is durable once [`Role::on_durable`] reaches the returned number.
    pub fn journal(&mut self, kind: RecordKind, head: Bytes, payload: Bytes) -> Lsn {
        let lsn = Lsn(self.next_lsn);
        self.next_lsn += 1;
        self.staged.push((lsn, Record { owner: self.role, kind, head, payload }));
        lsn
    }

    /// Stages a write of a cell: `key` has this value from now on, instead of its previous one. It is durable once [`Role::on_durable`]
    /// reaches the returned position. Records and cells share one sequence of positions, and what is staged together becomes durable
    /// together. A full disk may have no room for new cells, although it can still overwrite old ones: see [`Effects::space`].
    ///
    /// # Panics
    /// If the key is empty, or key or value are longer than a cell can be. The role must check what it takes from others.
    pub fn write_cell(&mut self, key: Bytes, value: Bytes) -> Lsn {
        assert!(value.len() <= MAX_CELL_VALUE_BYTES, "a cell's value of {} bytes", value.len());
        self.stage_cell(key, Some(value))
    }

    /// Stages the deletion of a cell, which need not exist. Like [`Effects::write_cell`] otherwise.
    ///
    /// # Panics
    /// If the key is empty or too long.
    pub fn delete_cell(&mut self, key: Bytes) -> Lsn {
        self.stage_cell(key, None)
    }

    fn stage_cell(&mut self, key: Bytes, value: Option<Bytes>) -> Lsn {
        assert!((1..=MAX_CELL_KEY_BYTES).contains(&key.len()), "a cell's key of {} bytes", key.len());
        let (lsn, number) = (Lsn(self.next_lsn), self.next_cell);
        self.next_lsn += 1;
        self.next_cell += 1;
        self.cells.push((lsn, CellWrite { number, owner: self.role, key, value }));
        lsn
    }

    /// Answers a request; the answer is dropped if `to` was a post. It leaves this node once everything up to `reveals` is durable.
    pub fn reply<M: Message>(&mut self, to: Caller, message: M, reveals: Lsn) {
        let late = std::mem::take(&mut self.late);
        let reply = Effect::Reply { to, frame: message.into_frame(roles::NONE), late };
        self.todo.push((reveals, reply));
    }

    /// Sends a one-way message to another node or to a role of this node. A message to this node is queued and handled in the same turn,
    /// never by re-entry. It leaves once everything up to `reveals` is durable.
    pub fn post<M: Message>(&mut self, to: NodeId, class: Class, target: RoleKind, message: M, reveals: Lsn) {
        self.post_frame(to, class, message.into_frame(target), reveals);
    }

    /// Like [`Effects::post`], for a frame that is already encoded and shared between receivers.
    pub fn post_frame(&mut self, to: NodeId, class: Class, frame: Frame, reveals: Lsn) {
        let late = std::mem::take(&mut self.late);
        self.todo.push((reveals, Effect::Post { to, class, frame, late }));
    }

    /// Passes a race point: if a test wants that, the next message of this call leaves late. See [`crate::races`].
    #[inline(always)]
    pub fn race_point(&mut self, point: &'static str) {
        self.late = Late::drawn(point);
    }

    /// Completes a ticket of a waiter on this node, once everything up to `reveals` is durable.
    pub fn finish<T: Send + 'static>(&mut self, who: crate::ticket::Completer<T>, value: T, reveals: Lsn) {
        self.todo.push((reveals, Effect::Finish(Box::new(move || who.complete(value)))));
    }

    /// Runs a procedure on this node's executor.
    pub fn run(&mut self, name: &'static str, procedure: BoxFuture<'static, ()>) {
        self.todo.push((Lsn::NONE, Effect::Run { name, procedure }));
    }

    /// Reads records back; the answer comes as [`Role::on_fetched`] with the same tag.
    pub fn fetch(&mut self, tag: u64, locs: Vec<Loc>) {
        self.todo.push((Lsn::NONE, Effect::Fetch { role: self.role, tag, locs }));
    }

    /// Frees entries that are no longer needed; their segments may be recycled.
    pub fn free(&mut self, locs: impl IntoIterator<Item = Loc>) {
        self.freed.extend(locs);
    }

    /// For traces of a single role: takes the records staged so far.
    pub fn take_staged(&mut self) -> Vec<(Lsn, Record)> {
        std::mem::take(&mut self.staged)
    }

    /// For traces of a single role: takes the writes of cells staged so far.
    pub fn take_cells(&mut self) -> Vec<(Lsn, CellWrite)> {
        std::mem::take(&mut self.cells)
    }

    /// For traces of a single role: takes the locations freed so far.
    pub fn take_freed(&mut self) -> Vec<Loc> {
        std::mem::take(&mut self.freed)
    }

    /// For traces of a single role: takes the fetches as (tag, locations). All other requested work is dropped.
    pub fn take_fetches(&mut self) -> Vec<(u64, Vec<Loc>)> {
        std::mem::take(&mut self.todo)
            .into_iter()
            .filter_map(|(_, effect)| match effect {
                Effect::Fetch { tag, locs, .. } => Some((tag, locs)),
                _ => None,
            })
            .collect()
    }

    /// For traces of a single role: takes the frames as (receiver, answered request, frame, reveals). All other requested work is dropped.
    pub fn take_frames(&mut self) -> Vec<(NodeId, Option<u64>, Frame, Lsn)> {
        std::mem::take(&mut self.todo)
            .into_iter()
            .filter_map(|(reveals, effect)| match effect {
                Effect::Reply { to, frame, .. } => Some((to.node, to.request, frame, reveals)),
                Effect::Post { to, frame, .. } => Some((to, None, frame, reveals)),
                _ => None,
            })
            .collect()
    }
}

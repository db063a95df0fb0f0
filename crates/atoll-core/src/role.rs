//! Server roles: synchronous state machines, message in, effects out (design §4).

use bytes::Bytes;

use crate::frame::{Class, Frame, Message};
use crate::ids::{Lsn, NodeId, RoleKind, Tick, roles};
use crate::ticket::BoxFuture;

/// Who sent a frame, and how to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The sending node; this node's own id for local calls.
    pub node: NodeId,
    /// The number of its request; None for a post, which cannot be answered.
    pub request: Option<u64>,
    /// The connection that the answer takes.
    pub class: Class,
}

/// Where a record stands in this node's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Loc {
    /// The segment's generation: rising, never reused.
    pub segment: u64,
    /// Byte offset of the record in the segment.
    pub offset_bytes: u32,
    /// Length of the whole record on disk.
    pub len_bytes: u32,
}

/// What a record is to the journal's space accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// State of the role. The owner's checkpoint replaces it: once a checkpoint covers it, its segment may go.
    Fact,
    /// An entry that its owner reads back by [`Loc`]. It keeps its segment alive until [`Effects::free`].
    Entry,
}

/// One record for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The role that gets it back at recovery.
    pub owner: RoleKind,
    /// Fact or entry.
    pub kind: RecordKind,
    /// The owner's encoded fields.
    pub head: Bytes,
    /// A blob that is not copied into the head.
    pub payload: Bytes,
}

/// A record as read back from disk, at recovery or by a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its number.
    pub lsn: Lsn,
    /// Its place.
    pub loc: Loc,
    /// The record.
    pub record: Record,
}

/// How much the journal accepts at the moment (native-T22, contracts X5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Everything.
    Plenty,
    /// Only facts, and what frees space: seals, trims, registers. Roles refuse entries.
    FactsOnly,
    /// Nothing until the process restarts: a write or sync failed.
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

/// A server role. A thin shell: it decodes messages, then calls inherent typed methods, which the trace tests exercise.
pub trait Role: Send {
    /// A message for this role.
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects);

    /// Records up to and including `upto` are durable; `mine` are those of this role since the last call, in order.
    fn on_durable(&mut self, now: Tick, upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects);

    /// When [`Role::on_deadline`] should run next. Each role has one deadline (X10). It depends on the role's own state only, so it
    /// changes only when the role runs, and the core asks once after each run.
    fn deadline(&self) -> Option<Tick> {
        None
    }

    /// The deadline has come.
    fn on_deadline(&mut self, _now: Tick, _out: &mut Effects) {}

    /// The input of this turn is used up: send what was gathered. Called only if the role ran in this turn.
    fn flush(&mut self, _now: Tick, _out: &mut Effects) {}

    /// The answer to [`Effects::fetch`]: the records in the order of the request, or the reason for the failure.
    fn on_fetched(
        &mut self,
        _now: Tick,
        _tag: u64,
        _got: Result<Vec<Stored>, FetchError>,
        _out: &mut Effects,
    ) {
    }

    /// The journal is closed for good, or space ran short or came back.
    fn on_space(&mut self, _now: Tick, _space: Space, _out: &mut Effects) {}

    /// The connection to a peer came up or went down.
    fn on_link(&mut self, _now: Tick, _peer: NodeId, _class: Class, _up: bool, _out: &mut Effects) {}

    /// The journal wants to recycle this sparse segment: journal its live entries again, then free their old places.
    fn on_compact(&mut self, _now: Tick, _segment: u64, _out: &mut Effects) {}

    /// All state that facts carry, to replace every durable fact. Empty if there is none. A role with much state puts together about
    /// `max_bytes` more in each call and returns None until the checkpoint is complete, because one call must not hold up the node for
    /// long. Each part then shows the state at some call since the first. It may include facts that are only staged, or newer than the
    /// first call: recovery replays those facts over it, so replaying a fact must be idempotent. It must not include anything that
    /// rests on an *entry* that is only staged, because that entry may be lost.
    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        Some(Bytes::new())
    }

    /// First step at start: takes the last checkpoint back.
    fn restore(&mut self, _checkpoint: Bytes) -> Result<(), crate::codec::DecodeError> {
        Ok(())
    }

    /// After [`Role::restore`]: takes each record found in the journal, in order. Facts that the checkpoint covers are left
    /// out; all entries come.
    fn recover(&mut self, _stored: Stored) -> Result<(), crate::codec::DecodeError> {
        Ok(())
    }

    /// After the last [`Role::recover`]; returns places that are no longer needed.
    fn recovered(&mut self) -> Vec<Loc> {
        Vec::new()
    }

    /// Figures for metrics.
    fn measure(&self, _out: &mut Vec<Measure>) {}
}

/// Work that a role asks for.
pub(crate) enum Effect {
    Reply { to: Caller, frame: Frame },
    Post { to: NodeId, class: Class, frame: Frame },
    Finish(Box<dyn FnOnce() + Send>),
    Run { name: &'static str, procedure: BoxFuture<'static, ()> },
    Fetch { role: RoleKind, tag: u64, locs: Vec<Loc> },
}

/// Where a role puts the work that it wants done. An answer never leaves before the staged fact that it reveals is durable:
/// the core holds it until then (X1).
pub struct Effects {
    pub(crate) role: RoleKind,
    pub(crate) node: NodeId,
    pub(crate) space: Space,
    pub(crate) next_lsn: u64,
    pub(crate) durable: Lsn,
    pub(crate) staged: Vec<(Lsn, Record)>,
    pub(crate) freed: Vec<Loc>,
    pub(crate) todo: Vec<(Lsn, Effect)>,
}

impl Effects {
    /// Effects outside of a core, for traces of a single role. Record numbers start right after `durable`.
    pub fn detached(node: NodeId, role: RoleKind, durable: Lsn) -> Self {
        Effects {
            role,
            node,
            space: Space::Plenty,
            next_lsn: durable.0 + 1,
            durable,
            staged: Vec::new(),
            freed: Vec::new(),
            todo: Vec::new(),
        }
    }

    /// The node that this role lives on.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// How much the journal accepts at the moment.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Everything up to here is durable.
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

    /// Answers a request; dropped if `to` was a post. The answer leaves this node once everything up to `reveals` is durable.
    pub fn reply<M: Message>(&mut self, to: Caller, message: M, reveals: Lsn) {
        self.todo.push((reveals, Effect::Reply { to, frame: message.into_frame(roles::NONE) }));
    }

    /// Sends one way, to another node or to a role of this one (in the same turn, by queue, never by re-entry).
    pub fn post<M: Message>(&mut self, to: NodeId, class: Class, target: RoleKind, message: M, reveals: Lsn) {
        self.todo.push((reveals, Effect::Post { to, class, frame: message.into_frame(target) }));
    }

    /// Like [`Effects::post`], for a frame that is encoded already and shared between receivers.
    pub fn post_frame(&mut self, to: NodeId, class: Class, frame: Frame, reveals: Lsn) {
        self.todo.push((reveals, Effect::Post { to, class, frame }));
    }

    /// Completes a ticket of a waiter on this node.
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

    /// These entries are not needed any more; their segments may be recycled.
    pub fn free(&mut self, locs: impl IntoIterator<Item = Loc>) {
        self.freed.extend(locs);
    }

    /// For traces of a single role: takes the records staged so far.
    pub fn take_staged(&mut self) -> Vec<(Lsn, Record)> {
        std::mem::take(&mut self.staged)
    }

    /// For traces of a single role: takes the places freed so far.
    pub fn take_freed(&mut self) -> Vec<Loc> {
        std::mem::take(&mut self.freed)
    }

    /// For traces of a single role: takes the fetches as (tag, places). All other requested work is dropped.
    pub fn take_fetches(&mut self) -> Vec<(u64, Vec<Loc>)> {
        std::mem::take(&mut self.todo)
            .into_iter()
            .filter_map(|(_, effect)| match effect {
                Effect::Fetch { tag, locs, .. } => Some((tag, locs)),
                _ => None,
            })
            .collect()
    }

    /// For traces of a single role: takes the frames as (receiver, request answered, frame, reveals).
    pub fn take_frames(&mut self) -> Vec<(NodeId, Option<u64>, Frame, Lsn)> {
        std::mem::take(&mut self.todo)
            .into_iter()
            .filter_map(|(reveals, effect)| match effect {
                Effect::Reply { to, frame } => Some((to.node, to.request, frame, reveals)),
                Effect::Post { to, frame, .. } => Some((to, None, frame, reveals)),
                _ => None,
            })
            .collect()
    }
}

//! One simulated process and its disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use atoll_core::{
    Class, Envelope, Incarnation, JournalBatch, Link, Loc, Lsn, NodeCore, NodeId, Space, StorageId,
};

use crate::world::clock::Clock;
use crate::world::disk::HostDisk;
use crate::world::observer::Who;
use crate::world::queue::Answer;

/// An input of a process. A paused process gets it when it resumes.
#[derive(Debug)]
pub(crate) enum Input {
    Frame { from: NodeId, class: Class, envelope: Envelope },
    Durable(Result<Vec<(Lsn, Loc)>, String>),
    Fetched(Answer),
    Link { peer: NodeId, class: Class, link: Link },
    Space(Space),
    Checkpoint,
    Compact(u64),
    Nudge,
}

/// Set when a process is given work outside of its own turns.
#[derive(Debug, Default)]
pub(crate) struct Woken(AtomicBool);

impl Woken {
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A running process.
pub(crate) struct Process {
    pub(crate) core: NodeCore,
    pub(crate) incarnation: Incarnation,
    pub(crate) storage: StorageId,
    pub(crate) clock: Clock,
    pub(crate) woken: Arc<Woken>,
    /// How many consecutive turns used their whole step budget.
    pub(crate) cut_turns: u32,
    /// If set, the process dies once it has sent this many more frames. The second number is the time until it restarts, in ns.
    pub(crate) fuse: Option<(u64, u64)>,
}

impl Process {
    pub(crate) fn new(core: NodeCore, incarnation: Incarnation, storage: StorageId, clock: Clock) -> Self {
        let woken = Arc::new(Woken::default());
        core.env().set_host_waker(Waker::from(woken.clone()));
        Process { core, incarnation, storage, clock, woken, cut_turns: 0, fuse: None }
    }

    pub(crate) fn apply(&mut self, now: u64, input: Input) {
        let tick = self.clock.tick(now);
        match input {
            Input::Frame { from, class, envelope } => self.core.deliver(tick, from, class, envelope),
            Input::Durable(result) => self.core.durable(tick, result),
            Input::Fetched(answer) => self.core.fetched(tick, answer.role, answer.tag, answer.got),
            Input::Link { peer, class, link } => self.core.set_link(tick, peer, class, link),
            Input::Space(space) => self.core.set_space(tick, space),
            Input::Checkpoint => self.core.request_checkpoint(),
            Input::Compact(segment) => self.core.compact(tick, segment),
            Input::Nudge => {}
        }
    }
}

/// A machine: a disk, and a process if one runs.
pub(crate) struct Host {
    pub(crate) index: usize,
    pub(crate) node: NodeId,
    pub(crate) process: Option<Process>,
    pub(crate) life: u64,
    pub(crate) disk: HostDisk,
    pub(crate) paused: bool,
    pub(crate) backlog: VecDeque<Input>,
    pub(crate) next_turn: Option<u64>,
    pub(crate) writing: Option<JournalBatch>,
    pub(crate) upkeep_planned: bool,
    pub(crate) refused: Option<String>,
    pub(crate) closed: bool,
    pub(crate) disk_slower: u64,
    pub(crate) disk_hung: bool,
    /// A sync ended while the disk hangs. It is reported when the hang ends.
    pub(crate) sync_waits: bool,
    pub(crate) wipes: u64,
    /// The identity that the disk gets when it is first used.
    pub(crate) first_storage: Option<u128>,
    /// The data directory was put back from an older copy.
    pub(crate) put_back: bool,
    /// A bit of the journal has flipped since the node started.
    pub(crate) rotten: bool,
}

impl Host {
    pub(crate) fn who(&self) -> Option<Who> {
        let p = self.process.as_ref()?;
        Some(Who {
            host: self.index,
            node: self.node,
            life: self.life,
            incarnation: p.incarnation,
            storage: p.storage,
        })
    }
}

//! The virtual log: a chain of Loglets under one sequence of positions, and the change from one to the next ("Virtual
//! Consensus in Delos", OSDI '20, §3).
//!
//! | paper, §3 | here |
//! | --- | --- |
//! | VirtualLog, chain, Loglet | [`VirtualLog`], [`Chain`], [`atoll_contract::Loglet`] |
//! | MetaStore (versioned register) | [`atoll_contract::Register`], one per log |
//! | append, and the retry after "sealed" | `append.rs` (submissions), `lane.rs` (order, retries), `scan.rs` (doubt, vlog-V2) |
//! | checkTail | `check_tail.rs` |
//! | readNext | `read.rs` (one read), `reader.rs` (a tailing reader) |
//! | prefixTrim | `trim.rs` |
//! | fetch of a new chain by stale clients | `refresh.rs` |
//! | reconfigExtend: seal, checkTail, install | `extend.rs`; install and its doubt: `install.rs` |
//! | roll forward of a reconfiguration left half done | `roll_forward.rs` |
//! | reconfigTruncate | `truncate.rs` |
//! | reconfigModify: remap a sealed segment | `modify.rs` |
//! | (not in the paper) old segments in index pages | `page_out.rs`, `pages.rs`, [`crate::page`] |
//! | bootstrap of the MetaStore | `create.rs` |
//! | (not in the paper) deletion of a whole log | `delete.rs` |
//!
//! Departures, and why:
//! - Positions of a Loglet are contiguous (vlog-V13). The paper's VirtualLog tolerates gaps; without them every position has an entry,
//!   and a reader never has to tell a gap from a loss.
//! - A Loglet answers tail and seal bit as one (vlog-V1). The paper lets them be asked for in parallel; taken literally, a tail
//!   that was grown by a repair after the seal would pass for an open one.
//! - A sealed answer to an append is followed by a look for the entry in the sealed part (vlog-V2) before it is sent again; the paper
//!   leaves duplicates to the layer above, but a plain log has none.
//! - A rebuilt segment whose head was trimmed starts at the trim position, since what is trimmed cannot be copied (`modify.rs`).
//! - There is no surgery on a sealed segment (virtuallog §7): it changes what was read, so it needs learners that can be fenced,
//!   and those belong to the layer above. `reconfigModify` keeps contents and compares them.
//! - A Loglet's id says which change made it, so that servers can collect what a dead reconfigurer left (vlog-V8, [`crate::origin`]).
//! - A log can be ended for ever by a segment of kind [`crate::chain::END_KIND`]: it lets a virtual log be a Loglet itself (`adapter.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use atoll_core::{Env, NodeId, Notify, StorageId, Ticket};

pub use crate::chain::{Chain, ChainError, Segment, VersionedChain};
use crate::page::PageId;
use atoll_contract::loglet::{Loglet, LogletId, LogletSpec, ReadFrom, Registry, SealedConfig};
use atoll_contract::position::LogPos;
use atoll_contract::register::{Register, Registers};

mod append;

mod check_tail;
mod create;
mod delete;
mod error;
mod extend;
mod install;
mod lane;
mod modify;
mod options;
mod page_out;
mod pages;
mod read;
mod reader;
mod refresh;
mod roll_forward;
mod room;
mod scan;
mod trim;
mod truncate;

pub use append::LogRecord;
pub use error::{Busy, LogAppendError, LogError, LogReadError, ReconfigError, Step};
pub use options::{Options, Trouble, Watch};
pub use pages::{CHAIN_PREFIX, PAGE_PREFIX, SegmentsPage};
pub use read::LogRead;
pub use reader::Reader;
pub use refresh::read_chain;

use crate::rounds::Rounds;
use atoll_core::Budget;
use atoll_core::sync::lock;

/// What is known of the tail.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Positions below are readable.
    tail: LogPos,
    /// The Loglet in which a tail was seen last; None before anything was. While it is not the active one, `tail` may lie far back.
    seen_in: Option<LogletId>,
}

#[derive(Debug, Default)]
struct State {
    chain: Option<Arc<VersionedChain>>,
    /// Open Loglets of the chain, and the sealed configuration that each was opened with. Bounded by the segments
    /// in the chain itself, and by `paged_handles`.
    handles: BTreeMap<LogletId, (Arc<dyn Loglet>, SealedConfig)>,
    /// Those of segments in index pages, the oldest first; bounded.
    paged_handles: VecDeque<LogletId>,
    pages: pages::Cache,
    known: Known,
    /// The Loglet whose successor is being looked for.
    watched: Option<LogletId>,
    /// Why that look was given up.
    fatal: Option<LogError>,
    /// Reconfigurations of this node under way.
    reconfiguring: usize,
    /// Damps seal-clone storms (virtuallog §5).
    storm: roll_forward::Storm,
    tail_waiters: check_tail::TailWaiters,
    trims: trim::Trims,
    watch: Option<Arc<dyn Watch>>,
}

/// What the procedures of one handle share.
struct Shared {
    env: Env,
    name: String,
    register: Arc<dyn Register>,
    registers: Arc<dyn Registers>,
    registry: Registry,
    options: Options,
    state: Mutex<State>,
    /// Rung when the chain changes.
    changed: Notify,
    refreshes: Rounds<Result<Arc<VersionedChain>, LogError>>,
    checks: Rounds<Result<check_tail::Checked, LogError>>,
    lane: lane::Lane,
    /// What the lanes of all logs of this node hold.
    budget: Arc<Budget>,
    parking: scan::Parking,
}

/// What a handle still held when it went is nobody's any more.
impl Drop for Shared {
    fn drop(&mut self) {
        self.budget.give_back(self.lane.held_bytes());
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log {:?}", self.name)
    }
}

/// One node's handle of a virtual log. All methods may be called from any thread of the node and return at once; the work
/// is done by procedures on the node's executor and goes on when a ticket is dropped (X8), except where said otherwise.
pub struct VirtualLog(Arc<Shared>);

impl fmt::Debug for VirtualLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl VirtualLog {
    /// A handle; no I/O. Open one per node and log: appends of one handle keep their order. Its chain is in the register
    /// [`CHAIN_PREFIX`] and its name, its index pages are in registers under [`PAGE_PREFIX`].
    pub fn open(
        env: Env,
        name: &str,
        registers: Arc<dyn Registers>,
        registry: Registry,
        options: Options,
    ) -> Arc<VirtualLog> {
        let budget = Arc::new(Budget::new(options.node_window_bytes));
        VirtualLog::open_within(env, name, registers, registry, options, budget)
    }

    /// The same, for one of several logs that share a bound on what is under way.
    pub fn open_within(
        env: Env,
        name: &str,
        registers: Arc<dyn Registers>,
        registry: Registry,
        options: Options,
        budget: Arc<Budget>,
    ) -> Arc<VirtualLog> {
        Arc::new(VirtualLog(Arc::new(Shared {
            env,
            name: name.to_owned(),
            register: registers.register(&format!("{CHAIN_PREFIX}{name}")),
            registers,
            registry,
            options,
            state: Mutex::default(),
            changed: Notify::default(),
            refreshes: Rounds::default(),
            checks: Rounds::default(),
            lane: lane::Lane::default(),
            budget,
            parking: scan::Parking::default(),
        })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// True if this handle has nothing under way: no append, read, wait or change, and no reader. Dropped now, it is missed by nobody.
    pub fn is_idle(&self) -> bool {
        // Every procedure and every reader holds a count of its own.
        Arc::strong_count(&self.0) == 1
    }

    /// Sets who hears of troubles; replaces an earlier one.
    pub fn watch(&self, watch: Arc<dyn Watch>) {
        lock(&self.0.state).watch = Some(watch);
    }

    /// Makes the log with a first segment as specified, by conditional write from version 0, or from the version that says that it was
    /// deleted: positions continue where they ended then. If it exists, the chain that it has, whatever was specified.
    pub fn create(&self, spec: LogletSpec) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.create", async move { me.create(spec).await })
    }

    /// The cached chain: maybe old, None if it was never read. It may say that the log was deleted.
    pub fn chain(&self) -> Option<Arc<VersionedChain>> {
        self.0.cached()
    }

    /// Reads the chain; at least as new as this call.
    pub fn refresh(&self) -> Ticket<Result<Arc<VersionedChain>, LogError>> {
        self.0.fresh()
    }

    /// Appends records, in order among all submissions through this handle. The ticket gives a position for each record, durable
    /// then. It is bounded in memory, not in time: it waits, and follows the log over segments, until there is an answer. If
    /// its ticket is dropped, records that were not sent yet may be left out. [`Busy`]: nothing was taken.
    #[allow(clippy::type_complexity)]
    pub fn submit(
        &self,
        records: Vec<LogRecord>,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        self.0.submit(records, None)
    }

    /// Like [`VirtualLog::submit`], for records that come from a client outside, which may have left for another node by now:
    /// `known` is a tail that the client, or whoever spoke to it, knew before it sent those of them that have no floor. A node
    /// that was stopped in between finds what the client has appended elsewhere from there on, whatever segments came since
    /// (X16, vlog-V2).
    #[allow(clippy::type_complexity)]
    pub fn submit_known(
        &self,
        records: Vec<LogRecord>,
        known: LogPos,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        self.0.submit(records, Some(known))
    }

    /// The tail: above every append acknowledged before this call, by anybody. Joins the next round, never one under way (vlog-V14).
    pub fn check_tail(&self) -> Ticket<Result<LogPos, LogError>> {
        let (me, round) = (self.0.clone(), self.0.check());
        self.0.env.launch("vlog.check_tail", async move { me.checked(round).await.map(|c| c.tail) })
    }

    /// Like [`VirtualLog::check_tail`], and whether the log was ended, so that this tail is the last.
    pub fn check_end(&self) -> Ticket<Result<(LogPos, bool), LogError>> {
        let (me, round) = (self.0.clone(), self.0.check());
        self.0.env.launch("vlog.check_end", async move { me.checked(round).await.map(|c| (c.tail, c.ended)) })
    }

    /// The highest tail that this node knows of without asking.
    pub fn known_tail(&self) -> LogPos {
        self.0.known().tail
    }

    /// Waits until the tail is above `above`; the tail known then. A hint, not a check: later ones may exist.
    pub fn wait_tail(&self, above: LogPos) -> Ticket<Result<LogPos, LogError>> {
        self.0.wait_tail(above)
    }

    /// Entries from `range.start` on, up to `range.end` (not in it), about `max_bytes` and the end of a segment: one at least. If the
    /// start is not below the known tail, the tail is checked first.
    pub fn read(
        &self,
        range: Range<LogPos>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Ticket<Result<LogRead, LogReadError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.read", async move { me.read(range, max_bytes, from).await })
    }

    /// A tailing reader. It does nothing between calls of [`Reader::next`].
    pub fn reader(&self, from: LogPos, scope: ReadFrom) -> Reader {
        Reader::new(self.0.clone(), from, scope)
    }

    /// Gives up positions below `to` (not `to` itself), for ever, on all nodes; the trim position then, which may be higher.
    /// Durable in the chain when it returns; Loglets follow. Sealed segments that are trimmed as a whole leave the chain.
    pub fn trim(&self, to: LogPos) -> Ticket<Result<LogPos, LogError>> {
        self.0.trim(to)
    }

    /// Seals the active segment and goes on with another as specified (virtuallog §4): reconfigExtend.
    pub fn extend(&self, spec: LogletSpec) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.extend", async move { me.extend(spec).await })
    }

    /// Like [`VirtualLog::extend`], if `from` is the active Loglet still: who has assessed that one must not extend a newer one. False
    /// if another follows it already.
    pub fn extend_from(&self, from: LogletId, spec: LogletSpec) -> Ticket<Result<bool, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.extend", async move {
            me.extend_from(from, spec, room::Purpose::Repair)
                .await
                .map(|done| matches!(done, install::Installed::Mine(_)))
        })
    }

    /// Takes sealed segments that are trimmed as a whole out of the chain, then deletes their Loglets: reconfigTruncate.
    pub fn truncate(&self) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.truncate", async move { me.truncate().await })
    }

    /// Rebuilds the sealed segment of a Loglet on another one: reconfigModify (virtuallog §7, vlog-M1–vlog-M4). Positions and contents
    /// stay; readers of either see the same.
    pub fn modify(
        &self,
        loglet: LogletId,
        spec: LogletSpec,
    ) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.modify", async move { me.modify(loglet, None, spec).await })
    }

    /// Like [`VirtualLog::modify`] for a caller who knows where the segment starts: found at once, also in an index page.
    pub fn modify_at(
        &self,
        loglet: LogletId,
        start: LogPos,
        spec: LogletSpec,
    ) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.modify", async move { me.modify(loglet, Some(start), spec).await })
    }

    /// Segments with readable positions from `from` on, in order: those of one index page, or all that the chain itself has,
    /// which end with the active one. Ask again from `next` for more. Positions do not move, so a walk over all sees each
    /// segment that was there all the time.
    pub fn segments_from(&self, from: LogPos) -> Ticket<Result<SegmentsPage, LogError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.segments", async move { me.segments_from(from).await })
    }

    /// The first readable segment in an index page that `is` says yes to. Pages none of whose data directories `may` says yes to
    /// are not looked into.
    pub fn find_in_pages(
        &self,
        may: impl Fn(NodeId, StorageId) -> bool + Send + Sync + 'static,
        is: impl Fn(&Segment) -> bool + Send + Sync + 'static,
    ) -> Ticket<Result<Option<Segment>, LogError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.find", async move { me.find_in_pages(&may, &is).await })
    }

    /// Empties an index page if no chain names it, nor ever will: its maker died, or lost and died. True if it was one.
    pub fn collect_page(&self, id: PageId) -> Ticket<Result<bool, LogError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.collect_page", async move { me.collect_page(id).await })
    }

    /// Ends the log for ever: the active segment is sealed and nothing follows. The final tail. Idempotent.
    pub fn end(&self) -> Ticket<Result<LogPos, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.end", async move { me.end().await })
    }

    /// Deletes the log and everything in it. Durable on return: no append is acknowledged afterwards, and later calls fail with an error
    /// that says the log was deleted. Servers delete the data in the background, and those that are down do so when they come back. False
    /// if the log was deleted before. After an error with an unknown outcome, repeat the call or look with [`VirtualLog::refresh`].
    pub fn delete(&self) -> Ticket<Result<bool, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.delete_log", async move { me.delete_log().await })
    }

    /// Most segments that its chain may have.
    pub fn max_segments(&self) -> usize {
        self.0.options.max_segments
    }

    /// The kinds of Loglets that this handle opens.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }
}

impl Shared {
    fn trouble(&self, trouble: Trouble) {
        let watch = lock(&self.state).watch.clone();
        if let Some(watch) = watch {
            watch.on_trouble(&self.name, trouble);
        }
    }
}

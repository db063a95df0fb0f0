//! The virtual log: a chain of Loglets under one sequence of positions, and the change from one Loglet to the next
//! ("Virtual Consensus in Delos", OSDI '20, §3).
//!
//! | paper, §3 | here |
//! | --- | --- |
//! | VirtualLog, chain, Loglet | [`VirtualLog`], [`Chain`], [`atoll_contract::Loglet`] |
//! | MetaStore (versioned register) | [`atoll_contract::Register`], one per log |
//! | append, and the retry after "sealed" | `append.rs` (submissions), `lane/` (order, retries), `scan.rs` (unknown outcomes, vlog-V2) |
//! | (not in the paper) records that wait for a search | `parking.rs` |
//! | checkTail | `check_tail.rs` |
//! | readNext | `read.rs` (one read), `reader.rs` (a tailing reader) |
//! | prefixTrim | `trim.rs` |
//! | fetch of a new chain by stale clients | `refresh.rs` |
//! | reconfigExtend: seal, checkTail, install | `extend.rs`; the install and its unknown outcomes: `install.rs` |
//! | roll forward of an unfinished reconfiguration | `roll_forward.rs` |
//! | reconfigTruncate | `truncate.rs` |
//! | reconfigModify: remap a sealed segment | `modify.rs` |
//! | surgery: excise or replace one entry | `surgery.rs`, [`crate::surgery`] |
//! | (not in the paper) old segments in index pages | `page_out.rs`, `pages.rs`, [`crate::page`] |
//! | bootstrap of the MetaStore | `create.rs` |
//! | (not in the paper) deletion of a whole log | `delete.rs` |
//! | (not in the paper) operations on single positions | `positions.rs` |
//! | (not in the paper) operations on the shards of a Loglet | `shards.rs` |
//!
//! Departures, and why:
//! - Positions of a Loglet are contiguous (vlog-V13). The paper's VirtualLog tolerates gaps. Without gaps, every position has an entry,
//!   and a reader never has to distinguish a gap from a loss. Some entries are pads, which hold no record (virtuallog §10).
//! - A Loglet returns the tail and the seal bit as one answer (vlog-V1). The paper allows asking for them in parallel; taken
//!   literally, a tail that a repair raised after the seal would pass for an open one.
//! - After a "sealed" answer to an append, the lane searches the sealed part for the entry (vlog-V2) before it sends it again; the paper
//!   leaves duplicates to the layer above, but a plain log must have none.
//! - A rebuilt segment whose head was trimmed starts at the trim position, because trimmed entries cannot be copied (`modify.rs`).
//! - Surgery (virtuallog §7) does not split the segment and map its middle to a Loglet with one entry. The changed entry is in the chain
//!   itself, as a patch, and readers take it from there. The fence is the same: a reader passes the position only with the chain that has
//!   the change, or a later one. The stored entry stays below the patch, so a rebuilt segment still equals its source. This layer
//!   holds the position; that every learner has stopped before it is known to the layer above, which must ask them (`surgery.rs`).
//! - A Loglet's id encodes the change that made it, so that servers can delete Loglets that a dead reconfigurer left behind (vlog-V8,
//!   [`crate::origin`]).
//! - A segment of kind [`crate::chain::END_KIND`] ends a log permanently. This lets a virtual log serve as a Loglet itself (`adapter.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use atoll_core::{Env, NodeId, Notify, StorageId, Tick, Ticket};

pub use crate::chain::{Chain, ChainError, Segment, VersionedChain};
use crate::page::PageId;
use atoll_contract::entry::Entry;
use atoll_contract::loglet::sharded::ShardChange;
use atoll_contract::loglet::write_once::{Layout, PositionState, Replace};
use atoll_contract::loglet::{Loglet, LogletId, LogletSpec, ReadFrom, Registry, SealedConfig};
use atoll_contract::position::LogPos;
use atoll_contract::register::{Nonce, Register, Registers, Version};

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
mod parking;
mod positions;
mod read;
mod reader;
mod refresh;
mod roll_forward;
mod room;
mod scan;
mod shards;
mod surgery;
mod trim;
mod truncate;
mod window;

pub use append::LogRecord;
pub use atoll_contract::Trouble;
pub use error::{Busy, LogAppendError, LogError, LogReadError, ReconfigError, Step, SurgeryError, TrimError};
pub use modify::Remake;
pub use options::{Options, TroubleObserver};
pub use pages::{CHAIN_PREFIX, PAGE_PREFIX, SegmentsPage};
pub use positions::{ActivePositions, PositionError, PositionOp};
pub use read::{LogRead, Patched};
pub use reader::Reader;
pub use refresh::read_chain;
pub use shards::{ActiveShards, ShardsError};
pub use surgery::{Held, Incision};
pub use window::Room;

use crate::rounds::Rounds;
use atoll_core::Budget;
use atoll_core::sync::lock;

/// What this node knows of the tail.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Positions below this are readable.
    tail: LogPos,
    /// The Loglet in which a tail was last seen; None if none was seen yet. If this is not the active Loglet, `tail` may be far below the
    /// current tail.
    seen_in: Option<LogletId>,
}

#[derive(Debug, Default)]
struct LogState {
    chain: Option<Arc<VersionedChain>>,
    /// Open Loglets of the chain, and the sealed configuration that each was opened with. Bounded by the segments
    /// in the chain itself, and by `paged_handles`.
    handles: BTreeMap<LogletId, (Arc<dyn Loglet>, SealedConfig)>,
    /// The handles of segments in index pages, the oldest first; bounded.
    paged_handles: VecDeque<LogletId>,
    pages: pages::Cache,
    known: Known,
    /// The Loglet whose successor this node is looking for.
    watched: Option<LogletId>,
    /// When this node last looked for a next segment because a Loglet did not answer.
    looked: Option<Tick>,
    /// Why this node gave up the search for the successor.
    fatal: Option<LogError>,
    /// Number of reconfigurations of this node in progress.
    reconfiguring: usize,
    /// Paces roll forwards, so that nodes do not seal and extend again and again (virtuallog §5).
    storm: roll_forward::Storm,
    tail_waiters: check_tail::TailWaiters,
    trims: trim::Trims,
    observer: Option<Arc<dyn TroubleObserver>>,
}

/// State that the procedures of one handle share.
struct Shared {
    env: Env,
    name: String,
    register: Arc<dyn Register>,
    registers: Arc<dyn Registers>,
    registry: Registry,
    options: Options,
    state: Mutex<LogState>,
    /// Notified when the chain changes.
    changed: Notify,
    refreshes: Rounds<Result<Arc<VersionedChain>, LogError>>,
    checks: Rounds<Result<check_tail::Checked, LogError>>,
    lane: lane::Lane,
    /// The budget that the lanes of all logs of this node share.
    budget: Arc<Budget>,
    /// Records that wait for a search of the log.
    parking: parking::Parking<append::Item>,
}

/// Gives back to the budget what the dropped handle still held.
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

/// One node's handle of a virtual log. All methods may be called from any thread of the node and return at once. Procedures on the node's
/// executor do the work, and continue if a ticket is dropped (X8), except where noted.
pub struct VirtualLog(Arc<Shared>);

impl fmt::Debug for VirtualLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl VirtualLog {
    /// Opens a handle, without I/O. Open only one per node and log, because appends keep their order only within one handle. The chain is
    /// in the register [`CHAIN_PREFIX`] plus the log's name; index pages are in registers under [`PAGE_PREFIX`].
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

    /// Like [`VirtualLog::open`], for one of several logs that share a limit on work in flight.
    pub fn open_within(
        env: Env,
        name: &str,
        registers: Arc<dyn Registers>,
        registry: Registry,
        options: Options,
        budget: Arc<Budget>,
    ) -> Arc<VirtualLog> {
        let lane = lane::Lane::new(options.lane_window_bytes);
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
            lane,
            budget,
            parking: parking::Parking::default(),
        })))
    }

    /// Returns the name of the log.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns true if this handle has nothing in progress: no append, read, wait or change, and no reader. Nothing is lost if such a
    /// handle is dropped.
    pub fn is_idle(&self) -> bool {
        // Every procedure and every reader holds a reference of its own.
        Arc::strong_count(&self.0) == 1
    }

    /// Sets the receiver of trouble reports, in place of an earlier one.
    pub fn observe(&self, observer: Arc<dyn TroubleObserver>) {
        lock(&self.0.state).observer = Some(observer);
    }

    /// Creates the log with a first segment as specified, by conditional write from version 0. Creates a deleted log anew from the version
    /// that marks its deletion; its positions continue where they ended. If the log exists, returns its chain and ignores the
    /// specification.
    pub fn create(&self, spec: LogletSpec) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.create", async move { me.create(spec).await })
    }

    /// Returns the cached chain; None if it was never read. The chain may be old, and it may be that of a deleted log.
    pub fn chain(&self) -> Option<Arc<VersionedChain>> {
        self.0.cached()
    }

    /// Reads the chain from its register. The result is at least as new as this call.
    pub fn refresh(&self) -> Ticket<Result<Arc<VersionedChain>, LogError>> {
        self.0.fresh()
    }

    /// Appends records. The records of one client keep their order among all submissions through this handle. The ticket yields a
    /// position for each record, which is durable by then. The append is bounded in memory, not in time: it waits, and follows the log
    /// across segments, until there is an answer. If its ticket is dropped, records that were not sent yet may be left out. After
    /// [`Busy`], nothing was taken.
    #[allow(clippy::type_complexity)]
    pub fn submit(
        &self,
        records: Vec<LogRecord>,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        self.0.submit(records, None, true)
    }

    /// Like [`VirtualLog::submit`], for records whose readers do not rely on the positions for the order of one client's records. Where the
    /// active Loglet does not keep order, several of them may be in flight at a time.
    #[allow(clippy::type_complexity)]
    pub fn submit_unordered(
        &self,
        records: Vec<LogRecord>,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        self.0.submit(records, None, false)
    }

    /// Completes when there is room for a submission of this many records and bytes. The room is not reserved: another submission may take
    /// it first, and the caller must then wait again. Callers are woken in the order in which they began to wait.
    pub fn room(&self, records: usize, payload_bytes: usize) -> Room {
        Room::new(self.0.clone(), records, payload_bytes)
    }

    /// Like [`VirtualLog::submit`], for records of an outside client, which may have moved to another node in the meantime. `known` is a
    /// tail that the client, or its proxy, knew before it sent those records that have no floor. A node that was paused in between can
    /// then find what the client has appended elsewhere since that tail, across any new segments (X16, vlog-V2). The records are unordered,
    /// as in [`VirtualLog::submit_unordered`].
    #[allow(clippy::type_complexity)]
    pub fn submit_known(
        &self,
        records: Vec<LogRecord>,
        known: LogPos,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        self.0.submit(records, Some(known), false)
    }

    /// Returns a tail above every append, of any client, that was acknowledged before this call. Joins the next round, never one in
    /// progress (vlog-V14).
    pub fn check_tail(&self) -> Ticket<Result<LogPos, LogError>> {
        let (me, round) = (self.0.clone(), self.0.check());
        self.0.env.launch("vlog.check_tail", async move { me.checked(round).await.map(|c| c.tail) })
    }

    /// Like [`VirtualLog::check_tail`]; also returns whether the log was ended, so that this tail is final.
    pub fn check_end(&self) -> Ticket<Result<(LogPos, bool), LogError>> {
        let (me, round) = (self.0.clone(), self.0.check());
        self.0.env.launch("vlog.check_end", async move { me.checked(round).await.map(|c| (c.tail, c.ended)) })
    }

    /// Returns the highest tail that this node knows of without asking.
    pub fn known_tail(&self) -> LogPos {
        self.0.known().tail
    }

    /// Waits until the tail is above `above`, and returns the known tail. This is a hint, not a check: a later tail may exist.
    pub fn wait_tail(&self, above: LogPos) -> Ticket<Result<LogPos, LogError>> {
        self.0.wait_tail(above)
    }

    /// Reads entries from `range.start` up to `range.end` (exclusive), about `max_bytes`, or the end of a segment, but at least one.
    /// If the start is not below the known tail, checks the tail first.
    pub fn read(
        &self,
        range: Range<LogPos>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Ticket<Result<LogRead, LogReadError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.read", async move { me.read(range, max_bytes, from).await })
    }

    /// Returns a tailing reader. It does nothing between calls of [`Reader::next`].
    pub fn reader(&self, from: LogPos, scope: ReadFrom) -> Reader {
        Reader::new(self.0.clone(), from, scope)
    }

    /// Permanently gives up positions below `to` (exclusive), on all nodes. Returns the trim position, which may be higher. It is durable
    /// in the chain when this returns; Loglets are trimmed later. Sealed segments that are completely trimmed leave the chain.
    ///
    /// # Errors
    /// [`TrimError`] says whether the log may have been trimmed. Repeating a trim does no harm.
    pub fn trim(&self, to: LogPos) -> Ticket<Result<LogPos, TrimError>> {
        self.0.trim(to)
    }

    /// Performs an operation on one position, and returns what is there afterwards. For logs whose Loglets offer it. All of these may be
    /// repeated. Trim a position only once its append was acknowledged: otherwise, if its writer has to search for it, the writer
    /// appends it again.
    pub fn at_position(&self, at: LogPos, op: PositionOp) -> Ticket<Result<PositionState, PositionError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.position", async move { me.at_position(at, op).await })
    }

    /// Returns what the active segment offers for single positions, according to the register.
    pub fn active_positions(&self) -> Ticket<Result<ActivePositions, PositionError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.positions", async move { me.active_positions().await })
    }

    /// Refuses a log that does not exist, or whose active segment has no operations on single positions. Usually contacts nobody.
    pub fn offers_positions(&self) -> Ticket<Result<(), PositionError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.offers", async move { me.offers_positions().await })
    }

    /// Returns the active Loglet, its layout, and what the next one should be like to have a change, for [`VirtualLog::extend_from`]. None
    /// if the change is not possible. Changes nothing.
    #[allow(clippy::type_complexity)]
    pub fn plan_replacing(
        &self,
        change: Replace,
    ) -> Ticket<Result<(LogletId, Layout, Option<LogletSpec>), PositionError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.replacing", async move { me.plan_replacing(change).await })
    }

    /// Returns the shards of the active segment, according to the register, for logs whose Loglets have shards.
    pub fn shards(&self) -> Ticket<Result<ActiveShards, ShardsError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.shards", async move { me.shards().await })
    }

    /// Refuses a log that does not exist, or whose active segment has no shards. Usually contacts nobody.
    pub fn offers_shards(&self) -> Ticket<Result<(), ShardsError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.offers", async move { me.offers_shards().await })
    }

    /// Adds or ends a shard of the active segment, and returns its number. Nothing stops meanwhile. A shard that was added is in the chain
    /// and takes records on return; one that was ended takes no more, or will soon not do so.
    ///
    /// # Errors
    /// [`ShardsError`] says whether it may have happened. Repeating a change of a shard with a given number does no harm.
    pub fn change_shards(&self, change: ShardChange) -> Ticket<Result<u32, ShardsError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.shards", async move { me.change_shards(&change, None).await })
    }

    /// Like [`VirtualLog::change_shards`], but only if the chain is still at a version. So of several nodes that add a shard for the same
    /// reason, one does.
    ///
    /// # Errors
    /// [`ShardsError::Changed`]: it is not at that version. Nothing happened.
    pub fn change_shards_at(
        &self,
        version: Version,
        change: ShardChange,
    ) -> Ticket<Result<u32, ShardsError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.shards", async move { me.change_shards(&change, Some(version)).await })
    }

    /// Appends a record to a shard of the caller's choice, and returns its position. It is on all nodes of the shard by then. A record that
    /// was sent before, to the same shard, is done once if it has a floor. Records of client 0 are refused by callers: they have no name.
    ///
    /// # Errors
    /// [`ShardsError::NotLive`] and [`ShardsError::Moved`] say for certain that the record is not in the log, and will not be.
    pub fn append_to_shard(&self, shard: u32, record: LogRecord) -> Ticket<Result<LogPos, ShardsError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.shard_append", async move { me.append_to_shard(shard, record).await })
    }

    /// Reads the record at a position from a shard of its segment. None if it is in another shard.
    pub fn read_in_shard(&self, at: LogPos, shard: u32) -> Ticket<Result<Option<Entry>, ShardsError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.shard_read", async move { me.read_in_shard(at, shard).await })
    }

    /// Seals the active segment and continues with another one as specified (reconfigExtend, virtuallog §4).
    pub fn extend(&self, spec: LogletSpec) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.extend", async move { me.extend(spec).await })
    }

    /// Like [`VirtualLog::extend`], but only if `from` is still the active Loglet: a caller that has assessed `from` must not extend a
    /// newer one. Returns false if another Loglet already follows it.
    pub fn extend_from(&self, from: LogletId, spec: LogletSpec) -> Ticket<Result<bool, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.extend", async move {
            me.extend_from(from, spec, room::Purpose::Needed)
                .await
                .map(|done| matches!(done, install::Installed::Mine(_)))
        })
    }

    /// Removes sealed segments that are completely trimmed from the chain, then deletes their Loglets (reconfigTruncate).
    pub fn truncate(&self) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.truncate", async move { me.truncate().await })
    }

    /// Rebuilds the sealed segment of a Loglet on another one (reconfigModify, virtuallog §7, vlog-M1–vlog-M4). Positions and contents
    /// stay the same, and readers of either copy see the same entries.
    pub fn modify(
        &self,
        loglet: LogletId,
        spec: LogletSpec,
    ) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.modify", async move { me.modify(loglet, None, spec).await })
    }

    /// Like [`VirtualLog::modify`], for a caller that knows where the segment starts. It is then found without a search, even in an index
    /// page.
    pub fn modify_at(
        &self,
        loglet: LogletId,
        start: LogPos,
        spec: LogletSpec,
    ) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.modify", async move { me.modify(loglet, Some(start), spec).await })
    }

    /// Plans what [`VirtualLog::modify_at`] does, for a caller that repeats failed attempts. Nothing is copied yet.
    pub fn plan_remake(
        &self,
        loglet: LogletId,
        start: LogPos,
        spec: LogletSpec,
    ) -> Ticket<Result<Remake, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.modify", async move { me.plan_remake(loglet, Some(start), spec).await })
    }

    /// Makes a planned copy, compares it, and puts it in place. After a failure, another call continues where this one ended, if the kind
    /// of the copy can. The caller must then repeat the call, or give the copy up.
    pub fn remake(&self, remake: Remake) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.modify", async move { me.remake(&remake).await })
    }

    /// Deletes what attempts at a planned copy have left. Only for a caller whose attempts have all ended, none of them with an install
    /// without an answer, which may have put the copy in place.
    pub fn give_up(&self, remake: &Remake) {
        self.0.give_up(remake);
    }

    /// Begins surgery on an entry: nobody who has read the new chain, or a later one, reads the position. The caller must then make sure
    /// that no learner has passed it, and that each has read that chain. Only then may it call [`VirtualLog::finish_surgery`].
    ///
    /// # Errors
    /// Nothing is held, unless the outcome of the write is unknown. Then the same incision, with `take_over`, finds out. `time_ms` is the
    /// time for the record, in milliseconds since the Unix epoch.
    pub fn hold(&self, incision: Incision, time_ms: u64) -> Ticket<Result<Held, SurgeryError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.hold", async move { me.hold(incision, time_ms).await })
    }

    /// Ends a surgery: the entry is changed for every reader. Does nothing if this surgery has changed it already.
    ///
    /// # Errors
    /// [`SurgeryError::Overtaken`]: that surgery is not under way any more. The entry is as it was.
    pub fn finish_surgery(&self, held: &Held) -> Ticket<Result<Arc<VersionedChain>, SurgeryError>> {
        let (me, at, id) = (self.0.clone(), held.at, held.id);
        self.0.env.launch("vlog.surgery", async move { me.finish_surgery(at, id).await })
    }

    /// Gives up the surgery with this id: the entry stays as it was, and readers continue. Does nothing if it is not under way. Anybody may
    /// do this at any time, because whoever began the surgery can then no longer finish it.
    pub fn release_hold(&self, id: Nonce) -> Ticket<Result<(), SurgeryError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.release", async move { me.release_hold(id).await })
    }

    /// Returns the segments with readable positions from `from` on, in order: those of one index page, or all in the chain itself, which
    /// end with the active one. To get more, call this again from `next`. Positions do not move, so a full walk returns every segment that
    /// existed throughout.
    pub fn segments_from(&self, from: LogPos) -> Ticket<Result<SegmentsPage, LogError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.segments", async move { me.segments_from(from).await })
    }

    /// Returns the first readable segment in an index page for which `is` holds. Skips pages none of whose data directories satisfies
    /// `may`. None if there is no such segment. If a newer chain has replaced a page, the search starts again from that chain.
    pub fn find_in_pages(
        &self,
        may: impl Fn(NodeId, StorageId) -> bool + Send + Sync + 'static,
        is: impl Fn(&Segment) -> bool + Send + Sync + 'static,
    ) -> Ticket<Result<Option<Segment>, LogError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.find", async move { me.find_in_pages(&may, &is).await })
    }

    /// Empties an index page if no chain names it or ever will, because its creator died or lost the install. Returns true if it was such
    /// a page.
    pub fn collect_page(&self, id: PageId) -> Ticket<Result<bool, LogError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.collect_page", async move { me.collect_page(id).await })
    }

    /// Ends the log permanently: seals the active segment, and nothing can follow it. Returns the final tail. Idempotent.
    pub fn end(&self) -> Ticket<Result<LogPos, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.end", async move { me.end().await })
    }

    /// Deletes the log and everything in it. Durable on return: no append is acknowledged afterwards, and later calls fail with an error
    /// that says the log was deleted. Servers delete the data in the background, and those that are down do so when they come back.
    /// Returns false if the log was already deleted. After an error with an unknown outcome, repeat the call or read the chain with
    /// [`VirtualLog::refresh`].
    pub fn delete(&self) -> Ticket<Result<bool, ReconfigError>> {
        let me = self.0.clone();
        self.0.env.launch("vlog.delete_log", async move { me.delete_log().await })
    }

    /// Returns the maximum number of segments in the chain itself.
    pub fn max_segments(&self) -> usize {
        self.0.options.max_segments
    }

    /// Returns the kinds of Loglets that this handle can open.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }
}

impl Shared {
    fn trouble(&self, trouble: Trouble) {
        let observer = lock(&self.state).observer.clone();
        if let Some(observer) = observer {
            observer.on_trouble(&self.name, trouble);
        }
    }
}

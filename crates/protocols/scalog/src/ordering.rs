//! The ordering log: who opens it, who writes to it, and who follows it.
//!
//! This crate knows the log only as a [`Loglet`]: never a bare register, in which an entry can be overwritten before everybody has seen it
//! (scalog-S7). It may be a virtual log, or a single Loglet that survives the loss of a server. A single one becomes unavailable with its
//! sequencer. Then a seal of the whole seals the ordering log itself, and the virtual log above continues with another Loglet.
//!
//! A sealed ordering log may have entries that nobody read before the seal, and its sealed tails may differ (vlog-L5). So what a follower
//! reads from a sealed log comes with the news that the log has ended, and a server acknowledges nothing from then on: each acknowledged
//! record is below an open tail of the ordering log, and so below every sealed one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, ClientId, Duties, Entry, Evidence, Loglet, LogletError, LogletId, LogletSpec, Offset,
    OpId, PlanError, ReadError, ReadFrom, Reason, Tail, Unavailability,
};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Encode, Env, NodeId, RoleKind, Tick};

use crate::config::OrderingSpec;
use crate::message::Follow;
use crate::mutants;
use crate::order::OrderEntry;

/// The part of a Loglet that is its ordering log, as a number of [`LogletId::part`]. Segments have higher numbers.
pub const ORDERING_PART: u8 = 1;
/// The most bytes of entries that a follower reads at a time.
const PAGE_BYTES: usize = 256 * 1024;
/// About how many bytes of entries come with the news of a higher tail. A follower that is far behind reads pages.
const NEXT_BYTES: usize = 16 * 1024;
/// The most entries that a follower passes on at a time.
const PAGE_ENTRIES: usize = 512;
/// The pause of a follower after an error, and when nothing is new.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a role may take to apply a page.
const APPLY: Duration = Duration::from_secs(5);

/// The part of an ordering log that orders all records of a sealed Loglet.
#[derive(Clone, Debug)]
pub struct OrderingExtent {
    /// The Loglet.
    pub loglet: LogletId,
    /// Its ordering log.
    pub spec: OrderingSpec,
    /// The number of its entries.
    pub entries: u64,
}

/// Opens the ordering logs of a node.
pub trait OrderingLogs: Send + Sync + fmt::Debug {
    /// Returns a handle to the ordering log of a Loglet. Cheap; no server is contacted.
    fn open(&self, loglet: LogletId, spec: &OrderingSpec) -> Result<Arc<dyn Loglet>, PlanError>;

    /// Returns the configuration of a new ordering log. `previous` is the one of the Loglet before.
    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a OrderingSpec>,
    ) -> BoxFuture<'a, Result<OrderingSpec, PlanError>>;

    /// Announces a new ordering log to its servers. Idempotent.
    fn provision(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Deletes the ordering log of a Loglet permanently. Idempotent.
    fn delete(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Returns which node does what for it.
    fn duties(&self, spec: &OrderingSpec) -> Duties;

    /// Returns whether these nodes suffice to end it: to seal it, or to append a seal to it.
    fn can_end(&self, spec: &OrderingSpec, reached: &dyn Fn(NodeId) -> bool) -> bool;

    /// Returns how many entries a node that holds ordering logs lacks of each of these, below the given number. None if it does not answer.
    fn lacks<'a>(&'a self, _node: NodeId, logs: &'a [OrderingExtent]) -> BoxFuture<'a, Option<Vec<u64>>> {
        Box::pin(std::future::ready(Some(vec![0; logs.len()])))
    }

    /// Makes this node fetch what it lacks of an ordering log. This is a hint.
    fn back_fill<'a>(&'a self, _log: &'a OrderingExtent) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns why it cannot stay as it is, if there is a reason. Nothing is acknowledged without it.
    fn reason(&self, _spec: &OrderingSpec, _evidence: &Evidence<'_>) -> Option<Reason> {
        None
    }
}

/// Why an entry was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotWritten {
    /// The reason.
    pub why: LogletError,
    /// Whether the entry may be in the log nevertheless, or still get there.
    pub may_come: bool,
}

/// Appends an entry to the ordering log, and returns its place. All entries may be applied twice, so an attempt with an unknown outcome is
/// simply repeated.
///
/// # Errors
/// The log was deleted or sealed, or did not take the entry until the time was up. The entry may still be applied.
pub async fn write(
    env: &Env,
    log: &Arc<dyn Loglet>,
    entry: &OrderEntry,
    until: Tick,
) -> Result<u64, LogletError> {
    try_write(env, log, entry, until).await.map_err(|not_written| not_written.why)
}

/// Like [`write()`]. The error says whether the entry may still be applied.
pub(crate) async fn try_write(
    env: &Env,
    log: &Arc<dyn Loglet>,
    entry: &OrderEntry,
    until: Tick,
) -> Result<u64, NotWritten> {
    let mut may_come = false;
    loop {
        let op = OpId { client: ClientId(env.random() | 1), seq: 1 };
        let batch = Batch::of([Entry { op, payload: entry.to_bytes() }]);
        let why = match log.append(batch).await {
            Ok(Ok(placed)) => return Ok(placed.offsets().next().map_or(0, |at| at.0)),
            Ok(Err(AppendError::Sealed)) => {
                let is_gone = log.check_tail().await == Err(LogletError::Gone);
                let ended = LogletError::Unavailable(Unavailability::NoSequencer);
                let why = if is_gone { LogletError::Gone } else { ended };
                return Err(NotWritten { why, may_come });
            }
            Ok(Err(AppendError::NotAppended(why))) => why,
            Ok(Err(AppendError::Unknown(why))) => {
                may_come = true;
                why
            }
            Ok(Err(AppendError::Forgotten)) => Unavailability::Busy,
            Err(_) => {
                let why = LogletError::Unavailable(Unavailability::Stopping);
                return Err(NotWritten { why, may_come: true });
            }
        };
        if env.now() >= until {
            return Err(NotWritten { why: LogletError::Unavailable(why), may_come });
        }
        env.sleep(env.jitter(PAUSE)).await;
    }
}

/// Consecutive entries of the ordering log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The place of the first one.
    pub first: u64,
    /// The entries. Pads and what is not ours are empty.
    pub entries: Vec<Bytes>,
}

/// Reads entries from a place of the ordering log on, below a tail of it. If the log was trimmed beyond that place, the page begins with
/// the snapshot with which the log begins now.
pub async fn read(log: &Arc<dyn Loglet>, from: u64, to: u64) -> Result<Page, ReadError> {
    let mut first = from;
    loop {
        let got = match log.read(Offset(first)..Offset(to), PAGE_BYTES, ReadFrom::Anywhere).await {
            // Another server may have been trimmed further.
            Err(ReadError::Trimmed(above)) if (first + 1..to).contains(&above.0) => {
                first = above.0;
                continue;
            }
            got => got?,
        };
        return Ok(Page::of(first, got.entries));
    }
}

impl Page {
    fn of(first: u64, entries: Vec<Entry>) -> Self {
        let entries = entries.into_iter().take(PAGE_ENTRIES);
        let entries = entries.map(|entry| if entry.is_pad() { Bytes::new() } else { entry.payload });
        Page { first, entries: entries.collect() }
    }
}

/// Waits until the tail of the ordering log may be above `above`, or the log is sealed, and returns the tail. It may return early.
pub async fn next_tail(log: &Arc<dyn Loglet>, above: u64) -> Result<Tail, LogletError> {
    let tail = log.wait_tail(Offset(above)).await?;
    // The end that a wait reports may be too low.
    if tail.sealed.is_some() { log.check_tail().await } else { Ok(tail) }
}

/// Like [`next_tail`], and may return the next entries, too, which are below the tail.
async fn next_entries(log: &Arc<dyn Loglet>, above: u64) -> Result<(Tail, Vec<Entry>), LogletError> {
    let (tail, entries) = log.wait_entries(Offset(above), NEXT_BYTES).await?;
    if tail.sealed.is_some() { Ok((log.check_tail().await?, Vec::new())) } else { Ok((tail, entries)) }
}

/// Gives a role of this node the entries of the ordering log, in their order and without gaps (scalog-S7), until the log is sealed or
/// deleted, or the role wants no more. The role says where to continue. Where the log was trimmed, a snapshot comes first (scalog-S8).
pub async fn follow(env: Env, log: Arc<dyn Loglet>, loglet: LogletId, role: RoleKind, from: u64) {
    let mut at = from;
    loop {
        let (tail, next) = match next_entries(&log, at).await {
            Ok((tail, next)) if tail.at.0 > at || tail.sealed.is_some() => (tail, next),
            Err(LogletError::Gone) => return tell_gone(&env, loglet, role, at).await,
            _ => {
                env.sleep(PAUSE).await;
                continue;
            }
        };
        let (end, ended) = (tail.at.0, tail.sealed.is_some());
        let is_here = !next.is_empty() || end <= at;
        let page = if is_here { Ok(Page::of(at, next)) } else { read(&log, at, end).await };
        let Page { first, mut entries } = match page {
            Ok(page) => page,
            Err(ReadError::Gone) => return tell_gone(&env, loglet, role, at).await,
            Err(_) => {
                hit("scalog.follow.error");
                env.sleep(PAUSE).await;
                continue;
            }
        };
        if mutant(mutants::SCALOG_S7) {
            skip_cuts(&mut entries);
        }
        let answer = env.call_role(env.node(), role, Follow { loglet, from: first, ended, entries });
        match env.within(APPLY, answer).await {
            Ok(Ok(answer)) => match answer.applied {
                // What turns up after this is of interest to readers only, who ask for it.
                Some(applied) if ended && applied >= end => return,
                // The role cannot read the next entry.
                Some(applied) if applied <= at => env.sleep(PAUSE).await,
                Some(applied) => at = applied,
                None => return,
            },
            _ => env.sleep(PAUSE).await,
        }
    }
}

/// Tells a role that the ordering log was deleted: it has ended, and nothing more comes.
async fn tell_gone(env: &Env, loglet: LogletId, role: RoleKind, at: u64) {
    let ended = Follow { loglet, from: at, ended: true, entries: Vec::new() };
    // If the role does not answer, the node is stopping.
    let _ = env.within(APPLY, env.call_role(env.node(), role, ended)).await;
}

/// The bug S7: of several cuts, only the last one is applied.
fn skip_cuts(entries: &mut [Bytes]) {
    let is_cut = |bytes: &Bytes| OrderEntry::parse(bytes.clone()).is_ok_and(|e| !e.cut.is_empty());
    if let Some(last) = entries.iter().rposition(is_cut) {
        for entry in entries[..last].iter_mut().filter(|entry| is_cut(entry)) {
            *entry = Bytes::new();
        }
    }
}

//! The ordering log: who opens it, who writes to it, and who follows it.
//!
//! This crate knows the log only as a [`Loglet`]. It must be a virtual log of Loglets that survive the loss of a server: never a bare
//! register, in which an entry can be overwritten before everybody has seen it (scalog-S7), and never a single Loglet, which becomes
//! unavailable with its sequencer, and in which entries may turn up that nobody ever read before a seal (scalog.md §10).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, ClientId, Duties, Entry, Loglet, LogletError, LogletId, LogletSpec, Offset, OpId,
    PlanError, ReadError, ReadFrom, Unavailability,
};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Encode, Env, NodeId, RoleKind, Tick};

use crate::config::OrderingSpec;
use crate::message::Follow;
use crate::mutants;
use crate::order::OrderEntry;

/// The part of a Loglet that is its ordering log, as a number of [`LogletId::part`]. Segments have lower numbers.
pub const ORDERING_PART: u8 = 255;
/// The most bytes of entries that a follower reads at a time.
const PAGE_BYTES: usize = 256 * 1024;
/// The most entries that a follower passes on at a time.
const PAGE_ENTRIES: usize = 512;
/// The pause of a follower after an error, and when nothing is new.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a role may take to apply a page.
const APPLY: Duration = Duration::from_secs(5);

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

    /// Returns whether these nodes suffice to append to it, possibly after it was reconfigured.
    fn can_append(&self, spec: &OrderingSpec, reached: &dyn Fn(NodeId) -> bool) -> bool;
}

/// Appends an entry to the ordering log. All entries may be applied twice, so an attempt with an unknown outcome is simply repeated.
///
/// # Errors
/// The log was deleted, or did not take the entry until the time was up. The entry may still be applied.
pub async fn write(
    env: &Env,
    log: &Arc<dyn Loglet>,
    entry: &OrderEntry,
    until: Tick,
) -> Result<(), LogletError> {
    loop {
        let op = OpId { client: ClientId(env.random() | 1), seq: 1 };
        let batch = Batch::of([Entry { op, payload: entry.to_bytes() }]);
        let why = match log.append(batch).await {
            Ok(Ok(_)) => return Ok(()),
            // The ordering log is never sealed from outside, except by its deletion.
            Ok(Err(AppendError::Sealed)) => match log.check_tail().await {
                Err(LogletError::Gone) => return Err(LogletError::Gone),
                _ => Unavailability::NoQuorum,
            },
            Ok(Err(AppendError::NotAppended(why) | AppendError::Unknown(why))) => why,
            Ok(Err(AppendError::Forgotten)) => Unavailability::Busy,
            Err(_) => return Err(LogletError::Unavailable(Unavailability::Stopping)),
        };
        if env.now() >= until {
            return Err(LogletError::Unavailable(why));
        }
        env.sleep(env.jitter(PAUSE)).await;
    }
}

/// Reads entries from a place of the ordering log on, below a tail of it. Pads and what is not ours come back empty.
pub async fn read(log: &Arc<dyn Loglet>, from: u64, to: u64) -> Result<Vec<Bytes>, ReadError> {
    let got = log.read(Offset(from)..Offset(to), PAGE_BYTES, ReadFrom::Anywhere).await?;
    let entries = got.entries.into_iter().take(PAGE_ENTRIES);
    Ok(entries.map(|entry| if entry.is_pad() { Bytes::new() } else { entry.payload }).collect())
}

/// Gives a role of this node the entries of the ordering log, in their order and without gaps (scalog-S7), until the log is deleted or the
/// role wants no more. The role says where to continue.
pub async fn follow(env: Env, log: Arc<dyn Loglet>, loglet: LogletId, role: RoleKind, from: u64) {
    let mut at = from;
    loop {
        let tail = match log.wait_tail(Offset(at)).await {
            Ok(tail) => tail.at.0,
            Err(LogletError::Gone) => return,
            Err(_) => at,
        };
        if tail <= at {
            env.sleep(PAUSE).await;
            continue;
        }
        let mut entries = match read(&log, at, tail).await {
            Ok(entries) => entries,
            Err(ReadError::Gone) => return,
            Err(error) => {
                hit("scalog.follow.error");
                let _ = error;
                env.sleep(PAUSE).await;
                continue;
            }
        };
        if mutant(mutants::SCALOG_S7) {
            skip_cuts(&mut entries);
        }
        let answer = env.call_role(env.node(), role, Follow { loglet, from: at, entries });
        match env.within(APPLY, answer).await {
            Ok(Ok(answer)) => match answer.applied {
                Some(applied) => at = applied,
                None => return,
            },
            _ => env.sleep(PAUSE).await,
        }
    }
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

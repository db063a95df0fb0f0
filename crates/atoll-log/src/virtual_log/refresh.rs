//! The cached chain: reading it, adopting a newer one, and waiting for the successor of a sealed segment.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Ticket};

use super::{CHAIN_PREFIX, Known, LogError, LogState, Shared};
use crate::chain::{Chain, ChainError, Segment, VersionedChain};
use crate::mutants;
use crate::rounds::{First, race};
use atoll_contract::loglet::{Loglet, LogletId, Unavailability};
use atoll_contract::register::{Registers, Version, Versioned};
use atoll_core::sync::lock;

/// First pause between two reads of the register while looking for the successor of a sealed segment.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// Longest such pause.
const LAST_LOOK: Duration = Duration::from_millis(16);
/// Longest pause between two attempts to roll forward.
const MAX_ROLL_WAIT: Duration = Duration::from_secs(2);
/// How long the active Loglet may take to answer before this node looks whether there is a next segment. Too short: slow answers cost
/// reads of the register. Too long: readers wait for servers that were replaced.
const SLOW_ANSWER: Duration = Duration::from_millis(20);
/// Longest time between two such looks.
const LAST_SLOW_LOOK: Duration = Duration::from_millis(80);
/// Maximum number of open Loglets of segments in index pages.
const PAGED_HANDLES: usize = 32;

impl Shared {
    /// Returns the cached chain; None if none was read yet. It may be old, which costs retries but never safety.
    pub(super) fn cached(&self) -> Option<Arc<VersionedChain>> {
        lock(&self.state).chain.clone()
    }

    /// Returns a chain that is at least as new as this call.
    pub(super) fn fresh(self: &Arc<Self>) -> Ticket<Result<Arc<VersionedChain>, LogError>> {
        let (wait, start) = self.refreshes.join();
        if start {
            let me = self.clone();
            self.env.spawn(
                "vlog.refresh",
                Box::pin(async move {
                    while me.refreshes.begin() {
                        let got = me.read_register().await;
                        me.refreshes.finish(&got);
                    }
                }),
            );
        }
        wait
    }

    /// Like [`Shared::fresh`], for use within a procedure.
    pub(super) async fn refreshed(self: &Arc<Self>) -> Result<Arc<VersionedChain>, LogError> {
        self.fresh().await.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping)))
    }

    /// Like [`Shared::refreshed`], but returns the chain of a deleted log instead of an error.
    pub(super) async fn refreshed_or_deleted(self: &Arc<Self>) -> Result<Arc<VersionedChain>, LogError> {
        match self.refreshed().await {
            Err(LogError::Deleted) => self.cached().ok_or(LogError::Deleted),
            other => other,
        }
    }

    /// Returns the cached chain. Reads the register instead if no chain is cached, or if the log was deleted, since it may have been
    /// created anew.
    pub(super) async fn some_chain(self: &Arc<Self>) -> Result<Arc<VersionedChain>, LogError> {
        match self.cached() {
            Some(chain) if !chain.chain.is_deleted() => Ok(chain),
            _ => self.refreshed().await,
        }
    }

    async fn read_register(&self) -> Result<Arc<VersionedChain>, LogError> {
        match self.register.read().await {
            Ok(v) if v.version == Version(0) => Err(LogError::NoSuchLog),
            Ok(v) => {
                let chain = self.adopt(parse(v)?);
                if chain.chain.is_deleted() { Err(LogError::Deleted) } else { Ok(chain) }
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Adopts a chain if it is newer than the cached one, and returns the newest. Wakes everyone who waits for a stop (vlog-V4, vlog-V5).
    pub(super) fn adopt(&self, new: VersionedChain) -> Arc<VersionedChain> {
        let mut state = lock(&self.state);
        if let Some(old) = &state.chain
            && old.version >= new.version
        {
            return old.clone();
        }
        let fresh_segment = state.chain.as_ref().is_some_and(|old| {
            old.version.0 + 1 == new.version.0 && old.chain.active().loglet != new.chain.active().loglet
        });
        let new = Arc::new(new);
        let LogState { handles, paged_handles, pages, .. } = &mut *state;
        if new.chain.is_deleted() {
            paged_handles.clear();
            *pages = Default::default();
        }
        paged_handles.retain(|id| handles.contains_key(id) && new.chain.segment(*id).is_none());
        handles.retain(|id, _| {
            mutant(mutants::VLOG_V7) || new.chain.segment(*id).is_some() || paged_handles.contains(id)
        });
        // Everything below the start of the active segment is below an installed stop, and therefore stays readable.
        let active = new.chain.active();
        state.known.tail = state.known.tail.max(active.start);
        if fresh_segment {
            state.known.seen_in = Some(active.loglet);
        }
        state.chain = Some(new.clone());
        drop(state);
        self.changed.notify();
        new
    }

    /// Returns a handle to the Loglet of a segment. The handle is opened once, and kept while the segment is in the chain itself. Some
    /// handles of segments in index pages are also kept.
    pub(super) fn handle(&self, segment: &Segment) -> Result<Arc<dyn Loglet>, LogError> {
        let mut key = segment.loglet;
        if mutant(mutants::VLOG_V7) {
            key = LogletId(segment.start.0.into());
        }
        if let Some((handle, sealed)) = lock(&self.state).handles.get(&key)
            && (*sealed == segment.sealed_config || mutant(mutants::VLOG_V7))
        {
            return Ok(handle.clone());
        }
        let provider = self.registry.provider(&segment.kind).map_err(LogError::Open)?;
        let handle = if segment.stop.is_some() {
            provider.open_sealed(segment.loglet, &segment.config, &segment.sealed_config)
        } else {
            provider.open(segment.loglet, &segment.config)
        }
        .map_err(LogError::Open)?;
        let mut state = lock(&self.state);
        match state.handles.get(&key) {
            // Another procedure opened it meanwhile. All must share one handle, or appends of one caller would not keep their order.
            Some((theirs, sealed)) if *sealed == segment.sealed_config => Ok(theirs.clone()),
            _ => {
                state.handles.insert(key, (handle.clone(), segment.sealed_config.clone()));
                if state.chain.as_ref().is_some_and(|c| c.chain.segment(key).is_none()) {
                    state.paged_handles.retain(|id| *id != key);
                    state.paged_handles.push_back(key);
                    if state.paged_handles.len() > PAGED_HANDLES
                        && let Some(oldest) = state.paged_handles.pop_front()
                    {
                        state.handles.remove(&oldest);
                    }
                }
                Ok(handle)
            }
        }
    }

    /// Records that positions below `tail` are readable; `tail` must come from a Loglet that was open at the time (vlog-V3, vlog-V4).
    pub(super) fn raise_known(&self, seen_in: LogletId, tail: atoll_contract::LogPos) {
        let served = {
            let mut state = lock(&self.state);
            if state.chain.as_ref().is_some_and(|c| c.chain.active().loglet == seen_in) {
                state.known.seen_in = Some(seen_in);
            }
            if tail <= state.known.tail {
                return;
            }
            state.known.tail = tail;
            state.tail_waiters.take_passed(tail)
        };
        for done in served {
            done.complete(Ok(tail));
        }
    }

    /// Returns the highest tail seen in a Loglet while it was open; None if the Loglet is not the active one, or no tail of it was seen.
    pub(super) fn seen_in(&self, loglet: LogletId) -> Option<atoll_contract::LogPos> {
        let state = lock(&self.state);
        let active = state.chain.as_ref().is_some_and(|c| c.chain.active().loglet == loglet);
        (active && state.known.seen_in == Some(loglet)).then_some(state.known.tail)
    }

    /// Returns what this node knows of the tail.
    pub(super) fn known(&self) -> Known {
        lock(&self.state).known
    }

    /// Waits until `of`, which was seen sealed, is no longer the active Loglet. If that takes longer than T_roll, this node installs a
    /// successor itself (virtuallog §4 "Roll forward", vlog-V10). Fails only if the chain cannot be used at all.
    pub(super) async fn successor(self: &Arc<Self>, of: LogletId) -> Result<Arc<VersionedChain>, LogError> {
        loop {
            let seen = self.changed.count();
            if let Some(chain) = self.cached()
                && (chain.chain.active().loglet != of || chain.chain.active().is_end())
            {
                return Ok(chain);
            }
            self.watch_successor(of);
            self.changed.after(seen).await;
            if let Some(fatal) = lock(&self.state).fatal.clone() {
                return Err(fatal);
            }
        }
    }

    /// Runs a read or a tail check of a Loglet. Returns None if the segment was active and no longer is: its Loglet may never answer, for
    /// example because the server that it waits for is the one that was replaced, and the chain says who knows now (vlog-V5). `operation`
    /// changes nothing that a caller could miss, because it is dropped then.
    pub(super) async fn while_active<T>(
        self: &Arc<Self>,
        segment: &Segment,
        operation: impl Future<Output = T>,
    ) -> Option<T> {
        if segment.stop.is_some() {
            return Some(operation.await);
        }
        match race(operation, self.superseded(segment.loglet)).await {
            First::A(done) => Some(done),
            First::B(()) => None,
        }
    }

    /// Waits until a Loglet is not the active one. If nobody on this node learns of the next segment, it looks for that itself.
    async fn superseded(self: &Arc<Self>, of: LogletId) {
        let mut look = SLOW_ANSWER;
        loop {
            let seen = self.changed.count();
            if self.cached().is_some_and(|c| c.chain.active().loglet != of) {
                return;
            }
            let nap = self.env.sleep(self.env.jitter(look));
            if let First::A(()) = race(nap, self.changed.after(seen)).await {
                let now = self.env.now();
                // However many callers wait, one of them looks.
                let is_due = {
                    let mut state = lock(&self.state);
                    let is_due = state.looked.is_none_or(|at| now.since(at) >= look / 2);
                    if is_due {
                        state.looked = Some(now);
                    }
                    is_due
                };
                if is_due {
                    // If the register cannot be read now, the next look may find it.
                    race(self.refreshed(), self.changed.after(seen)).await;
                }
                look = LAST_SLOW_LOOK.min(look * 2);
            }
        }
    }

    /// Starts the procedure that watches for the successor. One procedure per node and log suffices, however many callers wait.
    fn watch_successor(self: &Arc<Self>, of: LogletId) {
        {
            let mut state = lock(&self.state);
            if state.watched == Some(of) {
                return;
            }
            state.watched = Some(of);
            state.fatal = None;
        }
        let me = self.clone();
        let procedure: BoxFuture<'static, ()> = Box::pin(async move {
            me.look_for_successor(of).await;
            let mut state = lock(&me.state);
            if state.watched == Some(of) {
                state.watched = None;
            }
            drop(state);
            me.changed.notify();
        });
        self.env.spawn("vlog.successor", procedure);
    }

    async fn look_for_successor(self: &Arc<Self>, of: LogletId) {
        let mut look = FIRST_LOOK;
        let mut roll_wait = self.options.roll_forward_after;
        let mut roll_at = self.env.now().after(self.env.jitter(roll_wait));
        loop {
            let seen = self.changed.count();
            match self.refreshed().await {
                Ok(chain) if chain.chain.active().loglet != of => return,
                Ok(_) | Err(LogError::Unavailable(_)) => {}
                Err(fatal) => {
                    lock(&self.state).fatal = Some(fatal);
                    return;
                }
            }
            // While this node itself is reconfiguring, a second attempt would only race the first.
            let is_time = self.env.now() >= roll_at && !mutant(mutants::VLOG_NO_ROLL_FORWARD);
            if is_time && lock(&self.state).reconfiguring == 0 {
                hit("vlog.roll_forward");
                if self.roll_forward(of).await.is_ok() {
                    return;
                }
                roll_wait = MAX_ROLL_WAIT.min(roll_wait * 2);
                roll_at = self.env.now().after(self.env.jitter(roll_wait));
            }
            let nap = self.env.sleep(self.env.jitter(look));
            look = LAST_LOOK.min(look * 2);
            if let First::B(_) = race(nap, self.changed.after(seen)).await
                && self.cached().is_some_and(|c| c.chain.active().loglet != of)
            {
                return;
            }
        }
    }
}

/// Reads the chain of a log without a handle. The result is at least as new as this call. For a deleted log, it is the chain that marks
/// the deletion.
///
/// # Errors
/// The same as for [`super::VirtualLog::refresh`].
pub async fn read_chain(registers: &dyn Registers, name: &str) -> Result<VersionedChain, LogError> {
    match registers.register(&format!("{CHAIN_PREFIX}{name}")).read().await {
        Ok(v) if v.version == Version(0) => Err(LogError::NoSuchLog),
        Ok(v) => Ok(parse(v)?),
        Err(e) => Err(e.into()),
    }
}

/// Decodes the chain in the value of a register.
pub(super) fn parse(v: Versioned) -> Result<VersionedChain, ChainError> {
    Ok(VersionedChain { version: v.version, chain: Chain::parse(v.value)? })
}

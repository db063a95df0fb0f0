//! reconfigExtend (virtuallog §4, vlog-E1–vlog-E6): seal, then find the tail, then install. The order is essential: with a tail from
//! before the seal, appends would be lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::testing::{Place, hit, mutant};
use atoll_core::{NodeId, StorageId, Tick};

use super::install::{Installed, MAX_PAUSE, PAUSE};
use super::room::Purpose;
use super::truncate::delete_loglet;
use super::{ReconfigError, Shared, Step};
use crate::chain::{END_KIND, Segment, VersionedChain};
use crate::mutants;
use crate::origin::Origin;
use atoll_contract::loglet::{
    Loglet, LogletError, LogletId, LogletProvider, LogletSpec, SealedConfig, Tail, Unavailability,
};
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

/// Nodes that hold entries of so many of the newest segments may get a place in the next one while they are down. The last segment alone is
/// not enough: if it has fewer servers than the next one, a node may have had its place in the one before.
pub(super) const HOLDERS_OF: usize = 8;

/// The successor of the active segment.
#[derive(Clone)]
struct Successor {
    id: LogletId,
    kind: String,
    config: Bytes,
    /// None for the end of the log.
    provider: Option<Arc<dyn LogletProvider>>,
}

impl Successor {
    /// Returns the segment that the successor becomes.
    fn segment(&self, start: LogPos) -> Segment {
        Segment::open(start, self.id, &self.kind, self.config.clone())
    }
}

/// Removes empty sealed segments from a chain, and returns them. No reader needs them, because they hold nothing that was ever
/// acknowledged. So reconfigurations without appends between them do not make the chain longer (vlog-V7, vlog-V17).
fn take_empty(segments: &mut Vec<Segment>) -> Vec<Segment> {
    let (empty, kept) = std::mem::take(segments).into_iter().partition(|s| s.stop == Some(s.start));
    *segments = kept;
    if !empty.is_empty() {
        hit("vlog.extend.dropped_empty");
    }
    empty
}

impl Shared {
    /// Extends from whichever segment is active now. If another node installs a chain first, checks whether that chain already meets the
    /// specification, and tries again if it does not.
    pub(super) async fn extend(
        self: &Arc<Self>,
        spec: LogletSpec,
    ) -> Result<Arc<VersionedChain>, ReconfigError> {
        let until = self.reconfigure_until();
        let mut chain = self.refreshed().await?;
        let first = chain.chain.active().loglet;
        loop {
            let active = chain.chain.active().loglet;
            if active != first && self.is_met(&chain, &spec) {
                hit("vlog.extend.met_by_other");
                return Ok(chain);
            }
            if self.env.now() >= until {
                return Err(ReconfigError::Unavailable { step: Step::Install, why: Unavailability::Busy });
            }
            match self.extend_from(active, spec.clone(), Purpose::Planned).await? {
                Installed::Mine(chain) => return Ok(chain),
                Installed::Lost(newer) => chain = newer,
            }
        }
    }

    /// Extends if `from` is the active Loglet. Tries again after changes of the chain that leave `from` active. Plans before it seals, so
    /// that a rejected plan seals nothing.
    pub(super) async fn extend_from(
        self: &Arc<Self>,
        from: LogletId,
        mut spec: LogletSpec,
        purpose: Purpose,
    ) -> Result<Installed, ReconfigError> {
        let chain = self.some_chain().await?;
        let active = chain.chain.active();
        if active.is_end() {
            return Err(ReconfigError::Ended(active.start));
        }
        if active.loglet != from {
            return Ok(Installed::Lost(chain));
        }
        let kind = spec.kind.as_deref().unwrap_or(&active.kind);
        let provider = self.registry.provider(kind)?.clone();
        let previous = (active.kind == provider.kind()).then_some(&active.config);
        spec.held = self.holders_in(chain.chain.segments().iter().rev().take(HOLDERS_OF));
        let config = provider.plan(&spec, previous).await?;
        let id = self.draw_loglet(Origin::Extend(from));
        let next = Successor { id, kind: provider.kind().to_owned(), config, provider: Some(provider) };
        self.replace_active(from, next, purpose).await
    }

    /// Returns the nodes that hold entries of these segments, whatever their kinds, with their data directories according to the first
    /// segment that names them. A kind that this program does not know counts as naming nobody.
    pub(super) fn holders_in<'a>(
        &self,
        segments: impl Iterator<Item = &'a Segment>,
    ) -> Vec<(NodeId, StorageId)> {
        let mut held: Vec<(NodeId, StorageId)> = Vec::new();
        for segment in segments {
            let Ok(provider) = self.registry.provider(&segment.kind) else { continue };
            for (node, storage) in provider.duties(&segment.config).holders() {
                if held.iter().all(|(known, _)| *known != node) {
                    held.push((node, storage));
                }
            }
        }
        held
    }

    /// Ends the log: the successor is a segment that never takes appends.
    pub(super) async fn end(self: &Arc<Self>) -> Result<LogPos, ReconfigError> {
        loop {
            let chain = self.refreshed().await?;
            let active = chain.chain.active();
            if active.is_end() {
                return Ok(active.start);
            }
            let id = self.draw_loglet(Origin::Extend(active.loglet));
            let end = Successor { id, kind: END_KIND.to_owned(), config: Bytes::new(), provider: None };
            self.replace_active(active.loglet, end, Purpose::End).await?;
        }
    }

    /// Puts the successor behind `from`, or discards it. A plan may have made something of it already, outside of the cluster.
    async fn replace_active(
        self: &Arc<Self>,
        from: LogletId,
        next: Successor,
        purpose: Purpose,
    ) -> Result<Installed, ReconfigError> {
        let done = self.replace_if_active(from, &next, purpose).await;
        let is_open = |e: &ReconfigError| matches!(e, ReconfigError::Unavailable { step: Step::Install, .. });
        // Discard the Loglet only if no chain can name it. After an install without an answer, a chain may name it.
        match &done {
            Ok(Installed::Lost(_)) => self.discard_successor(next),
            Err(e) if !is_open(e) => self.discard_successor(next),
            Ok(Installed::Mine(_)) | Err(_) => {}
        }
        done
    }

    async fn replace_if_active(
        self: &Arc<Self>,
        from: LogletId,
        next: &Successor,
        purpose: Purpose,
    ) -> Result<Installed, ReconfigError> {
        if self.page_out().await.is_err() {
            // The change may fit even if nothing moves to index pages.
            hit("vlog.page_out.failed");
        }
        let chain = self.some_chain().await?;
        if chain.chain.active().loglet != from {
            return Ok(Installed::Lost(chain));
        }
        // Check before anything is provisioned or sealed, because a seal cannot be undone (vlog-V17).
        self.check_room(&chain.chain, next.segment(LogPos::ZERO), purpose)?;
        lock(&self.state).reconfiguring += 1;
        let mut place = Place::at("vlog.extend.died_before_seal");
        if let Some(provider) = &next.provider {
            // vlog-E5, concurrently with the seal. This is only an optimisation: servers also create the Loglet on its first message.
            self.provision(provider, next.id, &next.config);
        }
        let done = self.replace_steps(from, next, &mut place).await;
        place.ends();
        lock(&self.state).reconfiguring -= 1;
        // Trims wait for this.
        self.changed.notify();
        done
    }

    /// Runs steps vlog-E2 to vlog-E6, repeatedly while `from` is active.
    async fn replace_steps(
        self: &Arc<Self>,
        from: LogletId,
        next: &Successor,
        place: &mut Place,
    ) -> Result<Installed, ReconfigError> {
        let until = self.reconfigure_until();
        let nonce = self.draw_nonce();
        loop {
            let chain = self.some_chain().await?;
            let old = chain.chain.active();
            if old.loglet != from {
                return Ok(Installed::Lost(chain));
            }
            let loglet = self.handle(old)?;
            let Some((stop, sealed_config)) = self.seal_and_find_tail(old, &*loglet, until, place).await?
            else {
                // The Loglet was deleted, so a newer chain must exist, or another node was faster.
                if self.refreshed().await?.version == chain.version {
                    return Err(ReconfigError::Unavailable {
                        step: Step::Seal,
                        why: Unavailability::NoQuorum,
                    });
                }
                continue;
            };
            // A tail seen while the Loglet was open is never above a sealed one (vlog-L4, vlog-VL6).
            let seen = self.seen_in(from);
            atoll_core::invariant!(
                seen.is_none_or(|tail| tail <= stop),
                "the stop {stop} is below {seen:?}, which was seen as the tail of the open segment"
            );
            let mut empty = Vec::new();
            let new = chain.chain.next(nonce, |segments, _| {
                if let Some(last) = segments.last_mut() {
                    last.stop = Some(stop);
                    last.sealed_config = sealed_config;
                }
                empty = take_empty(segments);
                segments.push(next.segment(stop));
            })?;
            place.moves("vlog.extend.died_before_install");
            match self.install(chain.version, new, until).await? {
                Installed::Mine(chain) => {
                    self.delete_removed(empty, Duration::ZERO);
                    return Ok(Installed::Mine(chain));
                }
                // The chain changed otherwise, for example by a trim. The seal still holds; find the tail again.
                Installed::Lost(newer) if newer.chain.active().loglet == from => {
                    hit("vlog.extend.again");
                    // Trims through other nodes may win every time. This write has lost, so no chain names the successor.
                    if self.env.now() >= until {
                        return Err(ReconfigError::Unavailable {
                            step: Step::CheckTail,
                            why: Unavailability::Busy,
                        });
                    }
                }
                Installed::Lost(newer) => return Ok(Installed::Lost(newer)),
            }
        }
    }

    /// Seals the Loglet and finds its sealed tail (vlog-E2, vlog-E3). Returns the stop, and what readers of the sealed Loglet need; None
    /// if the Loglet is no longer the active one.
    pub(super) async fn seal_and_find_tail(
        &self,
        old: &Segment,
        loglet: &dyn Loglet,
        until: Tick,
        place: &mut Place,
    ) -> Result<Option<(LogPos, SealedConfig)>, ReconfigError> {
        let mut pause = PAUSE;
        let mut step = Step::Seal;
        loop {
            match self.seal_once(loglet, &mut step, place).await {
                Ok(Tail { at, sealed: Some(config) }) => {
                    let stop = old.position_of(at);
                    atoll_core::invariant!(stop >= old.start, "a segment stops after its start");
                    return Ok(Some((stop, config)));
                }
                // Another majority answered: seal that one as well.
                Ok(_) => hit("vlog.extend.open_after_seal"),
                Err(LogletError::Gone) => return Ok(None),
                Err(LogletError::Unavailable(why)) => {
                    if self.env.now() >= until {
                        return Err(ReconfigError::Unavailable { step, why });
                    }
                }
            }
            if self.cached().is_some_and(|c| c.chain.active().loglet != old.loglet) {
                return Ok(None);
            }
            self.env.sleep(self.env.jitter(pause)).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    async fn seal_once(
        &self,
        loglet: &dyn Loglet,
        step: &mut Step,
        place: &mut Place,
    ) -> Result<Tail, LogletError> {
        if mutant(mutants::VLOG_INSTALL_WITHOUT_SEAL) {
            let tail = loglet.check_tail().await?;
            return Ok(Tail { at: tail.at, sealed: Some(tail.sealed.unwrap_or_default()) });
        }
        if *step == Step::Seal {
            loglet.seal().await?;
            *step = Step::CheckTail;
            place.moves("vlog.extend.died_after_seal");
        }
        let tail = loglet.check_tail().await?;
        if tail.sealed.is_none() {
            *step = Step::Seal;
        }
        Ok(tail)
    }
}

impl Shared {
    /// Announces a coming Loglet to its servers, in the background.
    pub(super) fn provision(&self, provider: &Arc<dyn LogletProvider>, id: LogletId, config: &Bytes) {
        let (provider, config) = (provider.clone(), config.clone());
        let work = async move {
            let _ = provider.provision(id, &config).await;
        };
        self.env.spawn("vlog.provision", Box::pin(work));
    }

    /// Deletes a Loglet that was planned but never installed (vlog-V8), in the background. Call this only when the install is known to
    /// have lost.
    pub(super) fn discard(&self, provider: Arc<dyn LogletProvider>, id: LogletId, config: Bytes) {
        let env = self.env.clone();
        let work = async move { delete_loglet(&env, &*provider, id, &config).await };
        self.env.spawn("vlog.discard", Box::pin(work));
    }

    fn discard_successor(&self, next: Successor) {
        if let Some(provider) = next.provider {
            self.discard(provider, next.id, next.config);
        }
    }

    /// Returns whether the active segment meets the specification.
    fn is_met(&self, chain: &VersionedChain, spec: &LogletSpec) -> bool {
        let active = chain.chain.active();
        let Ok(provider) = self.registry.provider(&active.kind) else { return false };
        let duties = provider.duties(&active.config);
        let placed = |(role, nodes): (&String, &Vec<NodeId>)| {
            let mut nodes = nodes.clone();
            nodes.sort_unstable();
            nodes == duties.in_role(role)
        };
        spec.kind.as_ref().is_none_or(|k| *k == active.kind)
            && spec.places.iter().all(placed)
            && !duties.0.iter().any(|duty| spec.avoid.contains(&duty.node))
    }
}

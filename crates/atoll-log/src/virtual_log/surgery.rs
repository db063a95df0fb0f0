//! Surgery on one entry (virtuallog §7): the hold, and what ends it. Each step is one conditional write of the chain, and names the surgery
//! by its id, so that nobody ends another one than he began. [`crate::surgery`] explains the two steps.

use std::sync::Arc;

use atoll_core::level::since;
use atoll_core::testing::hit;
use bytes::Bytes;

use super::install::Installed;
use super::{ReconfigError, Shared, Step, SurgeryError};
use crate::chain::{Chain, VersionedChain};
use crate::surgery::{self, Hold, MAX_REPLACEMENT_BYTES, Patch, Record, SurgeryFault};
use atoll_contract::entry::Entry;
use atoll_contract::loglet::{LogletSpec, ReadFrom, Unavailability};
use atoll_contract::position::LogPos;
use atoll_contract::register::{Nonce, Version};

/// What an operator wants to do to one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incision {
    /// The position of the entry.
    pub at: LogPos,
    /// The new payload. None: excise the entry.
    pub with: Option<Bytes>,
    /// Who wants it.
    pub operator: String,
    /// Why.
    pub reason: String,
    /// Whether a surgery on this position that is under way, for example because its node has died, may be taken over.
    pub take_over: bool,
}

/// A surgery that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The position that is held.
    pub at: LogPos,
    /// The surgery.
    pub id: Nonce,
    /// The version of the chain from which on the position is held.
    pub version: Version,
}

impl Shared {
    /// See [`super::VirtualLog::hold`].
    pub(super) async fn hold(
        self: &Arc<Self>,
        incision: Incision,
        time_ms: u64,
    ) -> Result<Held, SurgeryError> {
        surgery::check_words(&incision.operator, &incision.reason)?;
        if let Some(bytes) = incision.with.as_ref().map(Bytes::len).filter(|n| *n > MAX_REPLACEMENT_BYTES) {
            return Err(SurgeryFault::Replacement(bytes).into());
        }
        let (needs, active) = (since::SURGERY, self.env.levels().active());
        if !self.env.levels().allows(needs) {
            return Err(ReconfigError::Level { needs, active }.into());
        }
        let (at, until, id) = (incision.at, self.reconfigure_until(), self.draw_nonce());
        let mut chain = self.refreshed().await?;
        loop {
            self.check_incision(&chain, &incision).await?;
            if self.env.now() >= until {
                return Err(busy());
            }
            if chain.chain.active().start <= at {
                // Only an entry of a sealed segment can be changed: nothing is decided about it any more.
                self.extend(LogletSpec::default()).await?;
                chain = self.refreshed().await?;
                continue;
            }
            let old = self.entry_at(&chain, at).await?;
            let hold = self.hold_of(&incision, id, time_ms, &old);
            let next = self.with_surgery(&chain, |surgery| surgery.begin(hold))?;
            self.check_surgery_room(&next)?;
            match self.install(chain.version, next, until).await? {
                Installed::Mine(_) => {
                    hit("vlog.surgery.held");
                    return Ok(Held { at, id, version: Version(chain.version.0 + 1) });
                }
                Installed::Lost(newer) => chain = newer,
            }
        }
    }

    /// Checks whether the surgery may begin, according to this chain.
    async fn check_incision(
        self: &Arc<Self>,
        chain: &VersionedChain,
        incision: &Incision,
    ) -> Result<(), SurgeryError> {
        let (at, trim) = (incision.at, chain.chain.trim());
        if at < trim {
            return Err(SurgeryError::Trimmed { at, trim });
        }
        if let Some(hold) = chain.chain.surgery().hold()
            && !(incision.take_over && hold.patch.at == at)
        {
            let Record { at, operator, reason, .. } = hold.record.clone();
            return Err(SurgeryError::UnderWay { at, operator, reason });
        }
        let round = self.check();
        let tail = self.checked(round).await?.tail;
        if at >= tail { Err(SurgeryError::BeyondTail { at, tail }) } else { Ok(()) }
    }

    /// Returns the entry that readers of this chain get at a position, whether it is held or not.
    async fn entry_at(self: &Arc<Self>, chain: &VersionedChain, at: LogPos) -> Result<Entry, SurgeryError> {
        let read = self.read_stored(at..at.plus(1), 1, ReadFrom::Anywhere).await;
        let read = read.map_err(|error| SurgeryError::Read { at, error })?;
        let stored = read.entries.into_iter().next().filter(|entry| !entry.is_pad());
        let stored = stored.ok_or(SurgeryError::Nothing(at))?;
        let patch = chain.chain.surgery().patch(at).filter(|patch| patch.with.is_some());
        Ok(patch.map_or_else(|| stored.clone(), |patch| patch.applied_to(&stored)))
    }

    fn hold_of(&self, incision: &Incision, id: Nonce, time_ms: u64, old: &Entry) -> Hold {
        let Incision { at, with, operator, reason, .. } = incision.clone();
        let new_hash = with.as_deref().map(surgery::hash_of);
        let (old_hash, old_bytes) = (surgery::hash_of(&old.payload), old.payload.len() as u64);
        let node = self.env.node();
        let record = Record { at, time_ms, node, operator, reason, old_hash, old_bytes, new_hash };
        Hold { patch: Patch { at, id, with }, record }
    }

    fn with_surgery(
        &self,
        of: &VersionedChain,
        change: impl FnOnce(&mut surgery::Surgery),
    ) -> Result<Chain, SurgeryError> {
        Ok(of.chain.next_with_pages(self.draw_nonce(), |parts| change(parts.surgery))?)
    }

    /// See [`super::VirtualLog::finish_surgery`].
    pub(super) async fn finish_surgery(
        self: &Arc<Self>,
        at: LogPos,
        id: Nonce,
    ) -> Result<Arc<VersionedChain>, SurgeryError> {
        let until = self.reconfigure_until();
        let mut chain = self.refreshed().await?;
        loop {
            let surgery = chain.chain.surgery();
            if surgery.patch(at).is_some_and(|patch| patch.id == id) {
                return Ok(chain);
            }
            if surgery.hold().is_none_or(|hold| hold.patch.id != id) {
                return Err(SurgeryError::Overtaken(at));
            }
            let next = self.with_surgery(&chain, |surgery| {
                surgery.finish(id);
            })?;
            match self.install(chain.version, next, until).await? {
                Installed::Mine(newer) => {
                    hit("vlog.surgery.finished");
                    return Ok(newer);
                }
                Installed::Lost(newer) => chain = newer,
            }
            if self.env.now() >= until {
                return Err(busy());
            }
        }
    }

    /// See [`super::VirtualLog::release_hold`].
    pub(super) async fn release_hold(self: &Arc<Self>, id: Nonce) -> Result<(), SurgeryError> {
        let until = self.reconfigure_until();
        let mut chain = self.refreshed().await?;
        while chain.chain.surgery().hold().is_some_and(|hold| hold.patch.id == id) {
            let next = self.with_surgery(&chain, |surgery| {
                surgery.release(id);
            })?;
            match self.install(chain.version, next, until).await? {
                Installed::Mine(_) => {
                    hit("vlog.surgery.released");
                    return Ok(());
                }
                Installed::Lost(newer) => chain = newer,
            }
            if self.env.now() >= until {
                return Err(busy());
            }
        }
        Ok(())
    }
}

/// Other changes of the chain came first every time. Nothing was changed.
fn busy() -> SurgeryError {
    ReconfigError::Unavailable { step: Step::ReadChain, why: Unavailability::Busy }.into()
}

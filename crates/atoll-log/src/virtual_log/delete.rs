//! Deleting a log: the last change of its chain marks the deletion, and names nothing else.
//!
//! - D1: seal the active Loglet and find its tail. A crash after this leaves a sealed segment. The first node that finds it rolls the log
//!   forward; nothing was deleted.
//! - D2: one conditional write installs a chain whose only segment marks the deletion, at the tail.
//! - D3: delete the Loglets and empty the index pages. After a crash, each server finds the Loglets that no chain names
//!   (vlog-V8, [`crate::origin`]), and the pages are found in the same way.
//!
//! D1 comes first so that the servers refuse an appender with an old chain, which then reads the chain and learns of the deletion. So
//! nothing is acknowledged after the deletion. Only D2 decides, so a log is either intact or deleted, never partly deleted. Until D3 has
//! reached a server, a reader with an old chain may still get the entries that were at a position, but never others.
//!
//! A log that is created again starts at the tail of the deleted one. No position is used twice (vlog-VL3), and reads of an old position
//! fail like reads of trimmed ones. The versions of the chain continue as well. The id of the new log's first Loglet names the deletion
//! mark as its predecessor, so that a collector that still sees the mark does not delete the Loglet.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::level::since;
use atoll_core::testing::{Place, hit};

use super::install::Installed;
use super::{ReconfigError, Shared, Step};
use crate::chain::VersionedChain;
use crate::origin::Origin;
use atoll_contract::loglet::Unavailability;
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

impl Shared {
    /// See [`super::VirtualLog::delete`].
    pub(super) async fn delete_log(self: &Arc<Self>) -> Result<bool, ReconfigError> {
        let levels = self.env.levels();
        if !levels.allows(since::DELETED_LOGS) {
            return Err(ReconfigError::Level { needs: since::DELETED_LOGS, active: levels.active() });
        }
        lock(&self.state).reconfiguring += 1;
        let mut place = Place::at("vlog.delete.died_before_seal");
        let done = self.mark_deleted(&mut place).await;
        place.ends();
        lock(&self.state).reconfiguring -= 1;
        let Some(old) = done? else { return Ok(false) };
        hit("vlog.delete");
        let me = self.clone();
        self.env.spawn("vlog.delete.data", Box::pin(async move { me.delete_data(&old).await }));
        Ok(true)
    }

    /// Runs D1 and D2, repeatedly while other changes come first. Returns the last chain that named data; None if the log was already
    /// deleted.
    async fn mark_deleted(
        self: &Arc<Self>,
        place: &mut Place,
    ) -> Result<Option<Arc<VersionedChain>>, ReconfigError> {
        let until = self.reconfigure_until();
        loop {
            let chain = self.refreshed_or_deleted().await?;
            if chain.chain.is_deleted() {
                return Ok(None);
            }
            let active = chain.chain.active();
            let tail = if active.is_end() {
                Some(active.start)
            } else {
                let loglet = self.handle(active)?;
                let sealed = self.seal_and_find_tail(active, &*loglet, until, place).await?;
                sealed.map(|(stop, _)| stop)
            };
            if let Some(tail) = tail {
                place.moves("vlog.delete.died_before_install");
                let id = self.draw_loglet(Origin::Extend(active.loglet));
                let deleted = chain.chain.deleted(self.draw_nonce(), id, tail)?;
                if let Installed::Mine(_) = self.install(chain.version, deleted, until).await? {
                    return Ok(Some(chain));
                }
            }
            hit("vlog.delete.again");
            if self.env.now() >= until {
                return Err(ReconfigError::Unavailable { step: Step::Seal, why: Unavailability::Busy });
            }
        }
    }

    /// D3. Deletes one Loglet after the other, because no caller waits for it, and a log may have very many.
    async fn delete_data(self: Arc<Self>, old: &VersionedChain) {
        for segment in old.chain.segments() {
            self.clone().delete(segment.clone(), Duration::ZERO).await;
        }
        let (pages, trim) = (old.chain.pages().to_vec(), old.chain.trim());
        if !pages.is_empty() {
            self.delete_in_pages(pages, trim, LogPos(u64::MAX)).await;
        }
    }
}

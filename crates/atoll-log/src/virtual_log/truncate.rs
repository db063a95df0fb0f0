//! reconfigTruncate (virtuallog §6): segments that are trimmed as a whole leave the chain; only then are their Loglets deleted,
//! and leave tombstones (L7). No seal is needed, and the active segment never goes.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::hit;

use super::install::Installed;
use super::{ReconfigError, Shared};
use crate::chain::{Segment, VersionedChain};
use crate::position::LogPos;

/// Attempts to delete a Loglet. Servers that never answer keep its data until they learn of the tombstone otherwise.
const DELETE_ATTEMPTS: u32 = 5;
/// Wait between them.
const DELETE_PAUSE: Duration = Duration::from_millis(500);

/// How many leading segments are sealed and below `trim`. Each is judged by its own stop: an empty one shares its start with the
/// next, which may hold entries (V7).
pub(super) fn trimmed_segments(segments: &[Segment], trim: LogPos) -> usize {
    segments.iter().take_while(|s| s.stop.is_some_and(|stop| stop <= trim)).count()
}

impl Shared {
    pub(super) async fn truncate(self: &Arc<Self>) -> Result<Arc<VersionedChain>, ReconfigError> {
        let until = self.reconfigure_until();
        let mut chain = self.refreshed().await?;
        loop {
            let old = &chain.chain;
            let n = trimmed_segments(old.segments(), old.trim());
            if n == 0 {
                return Ok(chain);
            }
            hit("vlog.truncate");
            let nonce = self.draw_nonce();
            let new = old.next(nonce, |segments, _| {
                segments.drain(..n);
            })?;
            match self.install(chain.version, new, until).await? {
                Installed::Mine(new) => {
                    self.delete_removed(&chain, &new, Duration::ZERO);
                    return Ok(new);
                }
                Installed::Lost(newer) => chain = newer,
            }
        }
    }

    /// Deletes the Loglets that are in `old` and not in `new` any more, after `grace`, in the background. Only after the install
    /// of `new`: they never come back into a chain (L7).
    pub(super) fn delete_removed(
        self: &Arc<Self>,
        old: &VersionedChain,
        new: &VersionedChain,
        grace: Duration,
    ) {
        for segment in old.chain.segments() {
            if new.chain.segment(segment.loglet).is_some() {
                continue;
            }
            let (me, segment) = (self.clone(), segment.clone());
            self.env.spawn("vlog.delete", Box::pin(async move { me.delete(segment, grace).await }));
        }
    }

    async fn delete(self: Arc<Self>, segment: Segment, grace: Duration) {
        let Ok(provider) = self.registry.provider(&segment.kind).cloned() else { return };
        if !grace.is_zero() {
            self.env.sleep(grace).await;
        }
        for _ in 0..DELETE_ATTEMPTS {
            if provider.delete(segment.loglet, &segment.config).await.is_ok() {
                return;
            }
            self.env.sleep(self.env.jitter(DELETE_PAUSE)).await;
        }
    }
}

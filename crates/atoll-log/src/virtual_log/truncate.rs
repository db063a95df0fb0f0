//! reconfigTruncate (virtuallog §6): segments that are completely trimmed leave the chain. Only then are their Loglets deleted, leaving
//! tombstones (vlog-L7). No seal is needed, and the active segment always stays.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::Env;
use atoll_core::testing::hit;

use super::install::Installed;
use super::{ReconfigError, Shared};
use crate::chain::{Chain, Parts, Segment, VersionedChain};
use crate::page::{Page, PageRef};
use atoll_contract::loglet::{LogletId, LogletProvider};
use atoll_contract::position::LogPos;

/// Attempts to delete a Loglet. A server that does not answer keeps its data until it learns of the deletion in another way.
const DELETE_ATTEMPTS: u32 = 5;
/// Pause between these attempts.
const DELETE_PAUSE: Duration = Duration::from_millis(500);

/// What leaves a chain when positions below `trim` are given up: a number of pages and of segments at its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trimmed {
    pages: usize,
    segments: usize,
}

impl Trimmed {
    /// Counts sealed segments that are completely below `trim`, and pages that contain only such segments. Only the stop of a segment
    /// decides, because an empty segment has the same start as the next one, which may hold entries (vlog-V7).
    pub(super) fn of(chain: &Chain, trim: LogPos) -> Self {
        let is_trimmed = |s: &&Segment| s.stop.is_some_and(|stop| stop <= trim);
        Trimmed {
            pages: chain.pages().iter().take_while(|p| p.stop <= trim).count(),
            segments: chain.segments().iter().take_while(is_trimmed).count(),
        }
    }

    pub(super) fn is_nothing(self) -> bool {
        self.pages + self.segments == 0
    }

    /// Removes these pages and segments from the chain.
    pub(super) fn leave(self, parts: Parts<'_>) {
        parts.pages.drain(..self.pages);
        parts.segments.drain(..self.segments);
    }
}

impl Shared {
    pub(super) async fn truncate(self: &Arc<Self>) -> Result<Arc<VersionedChain>, ReconfigError> {
        let until = self.reconfigure_until();
        let mut chain = self.refreshed().await?;
        loop {
            let old = &chain.chain;
            let gone = Trimmed::of(old, old.trim());
            if gone.is_nothing() {
                return Ok(chain);
            }
            hit("vlog.truncate");
            let new = old.next_with_pages(self.draw_nonce(), |parts| gone.leave(parts))?;
            match self.install(chain.version, new, until).await? {
                Installed::Mine(new) => {
                    self.delete_trimmed(old, LogPos::ZERO, old.trim(), gone);
                    return Ok(new);
                }
                Installed::Lost(newer) => chain = newer,
            }
        }
    }

    /// Deletes the Loglets and pages of `old` that were trimmed since `from`, in the background. Call this only after the install of the
    /// chain with the new trim. A page stays while any of its positions can be read; those of its Loglets that can no longer be read are
    /// deleted at once.
    pub(super) fn delete_trimmed(self: &Arc<Self>, old: &Chain, from: LogPos, trim: LogPos, gone: Trimmed) {
        self.delete_removed(old.segments()[..gone.segments].to_vec(), Duration::ZERO);
        let touched: Vec<PageRef> =
            old.pages().iter().take_while(|p| p.start < trim).filter(|p| p.stop > from).cloned().collect();
        if !touched.is_empty() {
            let me = self.clone();
            let work = async move { me.delete_in_pages(touched, from, trim).await };
            self.env.spawn("vlog.delete_in_pages", Box::pin(work));
        }
    }

    /// Deletes one Loglet after the other, with at most one page per level in memory. Whatever a crash leaves undone is collected later,
    /// because no chain names it or it is below the trim.
    pub(super) async fn delete_in_pages(self: Arc<Self>, pages: Vec<PageRef>, from: LogPos, trim: LogPos) {
        let mut left: Vec<(PageRef, bool)> = pages.into_iter().rev().map(|p| (p, false)).collect();
        while let Some((next, done)) = left.pop() {
            if done {
                hit("vlog.trim.page");
                self.empty_page(next.id).await;
                continue;
            }
            let Ok(Some(page)) = self.page(&next).await else { continue };
            if next.stop <= trim {
                left.push((next, true));
            }
            match &*page {
                Page::Pages(_, all) => {
                    let touched = all.iter().filter(|p| p.start < trim && p.stop > from).rev();
                    left.extend(touched.map(|p| (p.clone(), false)));
                }
                Page::Segments(all) => {
                    for segment in all.iter().filter(|s| s.stop > Some(from) && s.stop <= Some(trim)) {
                        self.clone().delete(segment.clone(), Duration::ZERO).await;
                    }
                }
            }
        }
    }

    /// Deletes the Loglets of segments that have left the chain, after `grace`, in the background. Call this only after the install of the
    /// chain without them, because a deletion is permanent (vlog-L7).
    pub(super) fn delete_removed(self: &Arc<Self>, removed: Vec<Segment>, grace: Duration) {
        for segment in removed {
            let me = self.clone();
            self.env.spawn("vlog.delete", Box::pin(async move { me.delete(segment, grace).await }));
        }
    }

    pub(super) async fn delete(self: Arc<Self>, segment: Segment, grace: Duration) {
        let Ok(provider) = self.registry.provider(&segment.kind).cloned() else { return };
        if !grace.is_zero() {
            self.env.sleep(grace).await;
        }
        delete_loglet(&self.env, &*provider, segment.loglet, &segment.config).await;
    }
}

/// Deletes a Loglet that no chain names.
pub(super) async fn delete_loglet(env: &Env, provider: &dyn LogletProvider, id: LogletId, config: &Bytes) {
    for _ in 0..DELETE_ATTEMPTS {
        if provider.delete(id, config).await.is_ok() {
            return;
        }
        env.sleep(env.jitter(DELETE_PAUSE)).await;
    }
}

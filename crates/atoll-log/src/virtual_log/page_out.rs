//! Moves old sealed segments to index pages (vlog-V17), and pages to pages of pages. So a chain stays short, and changes stay cheap,
//! however many segments the log has. A page is durable before any chain names it.

use std::sync::Arc;

use atoll_core::Tick;
use atoll_core::level::since;
use atoll_core::testing::hit;

use super::install::Installed;
use super::{ReconfigError, Shared, Step};
use crate::chain::{Chain, Segment, VersionedChain};
use crate::page::{MAX_ITEMS, MAX_LEVEL, Page, PageId, PageRef};

/// A chain with one more page, and the pages that were written for it.
struct Shorter {
    chain: Chain,
    written: Vec<PageId>,
    empty: Vec<Segment>,
}

impl Shared {
    /// Returns whether chains with pages may be written. A member that cannot read them could no longer use the log.
    fn may_write_pages(&self) -> bool {
        self.env.levels().allows(since::INDEX_PAGES)
    }

    /// Returns the number of segments per page, and of references per page of pages. The chain itself has less than twice as many of each
    /// level.
    fn page_items(&self) -> usize {
        self.options.page_items.clamp(2, MAX_ITEMS / 2)
    }

    /// Moves segments to pages while the chain has too many.
    pub(super) async fn page_out(self: &Arc<Self>) -> Result<(), ReconfigError> {
        if !self.may_write_pages() {
            return Ok(());
        }
        let until = self.reconfigure_until();
        loop {
            let chain = self.some_chain().await?;
            let mut written = Vec::new();
            let made = match self.shorter(&chain, until, &mut written).await {
                Ok(None) => return Ok(()),
                Ok(Some(made)) => made,
                Err(e) => {
                    self.empty_pages(written);
                    return Err(e);
                }
            };
            match self.install(chain.version, made.chain, until).await {
                Ok(Installed::Mine(_)) => {
                    hit("vlog.page_out");
                    self.delete_removed(made.empty, std::time::Duration::ZERO);
                }
                Ok(Installed::Lost(_)) => {
                    hit("vlog.page_out.lost");
                    self.empty_pages(made.written);
                }
                Err(e) => {
                    // After an install without an answer, a chain may name the pages.
                    if !matches!(e, ReconfigError::Unavailable { step: Step::Install, .. }) {
                        self.empty_pages(made.written);
                    }
                    return Err(e);
                }
            }
            if self.env.now() >= until {
                return Ok(());
            }
        }
    }

    /// Returns the next chain, in which the oldest segments are in a page; None if there are too few.
    async fn shorter(
        &self,
        of: &VersionedChain,
        until: Tick,
        written: &mut Vec<PageId>,
    ) -> Result<Option<Shorter>, ReconfigError> {
        let items = self.page_items();
        let all = of.chain.segments().iter().cloned();
        let (empty, mut kept): (Vec<Segment>, Vec<Segment>) = all.partition(|s| s.stop == Some(s.start));
        if kept.len() <= items * 2 {
            return Ok(None);
        }
        let rest = kept.split_off(items);
        let mut pages = of.chain.pages().to_vec();
        let leaf = self.write_page(&Page::Segments(kept), of.version, until).await?;
        written.push(leaf.id);
        pages.push(leaf);
        for level in 0..MAX_LEVEL {
            // Older references have higher levels, so those of one level are adjacent.
            let is_there = |p: &PageRef| p.level == level;
            let Some(first) = pages.iter().position(is_there) else { break };
            if pages.iter().filter(|p| is_there(p)).count() <= items * 2 {
                break;
            }
            hit("vlog.page_out.level");
            let upper = Page::Pages(level + 1, pages[first..first + items].to_vec());
            let upper = self.write_page(&upper, of.version, until).await?;
            written.push(upper.id);
            pages.splice(first..first + items, [upper]);
        }
        let chain = of.chain.next_with_pages(self.draw_nonce(), |parts| {
            *parts.pages = pages;
            *parts.segments = rest;
        })?;
        Ok(Some(Shorter { chain, written: std::mem::take(written), empty }))
    }
}

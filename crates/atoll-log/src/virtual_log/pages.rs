//! Index pages in their registers: reads, writes and empties pages, and finds segments through them. [`crate::page`] explains index pages;
//! `page_out.rs` moves segments there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};

use super::install::{MAX_PAUSE, PAUSE};
use super::{LogError, ReconfigError, Shared, Step};
use crate::chain::{ChainError, Segment, VersionedChain};
use crate::mutants;
use crate::page::{Holders, Page, PageId, PageRef};
use atoll_contract::loglet::Unavailability;
use atoll_contract::position::LogPos;
use atoll_contract::register::{Register, RegisterError, Version, Written};
use atoll_core::sync::lock;

/// Prefix of the registers of chains; the log's name follows.
pub const CHAIN_PREFIX: &str = "log/";
/// Prefix of the registers of index pages; the log's name, a slash and the page's id follow.
pub const PAGE_PREFIX: &str = "page/";
/// Pages that one handle keeps in memory.
const CACHED: usize = 32;
/// Attempts to empty a page that no chain names. Any page that remains is garbage, which [`super::VirtualLog::collect_page`] finds.
const EMPTY_ATTEMPTS: u32 = 3;
/// Pause between these attempts.
const EMPTY_PAUSE: Duration = Duration::from_millis(500);

/// The most recently used pages, the newest at the back.
#[derive(Debug, Default)]
pub(super) struct Cache(VecDeque<(PageId, Arc<Page>)>);

impl Cache {
    fn get(&mut self, id: PageId) -> Option<Arc<Page>> {
        let at = self.0.iter().position(|(known, _)| *known == id)?;
        let found = self.0.remove(at)?;
        self.0.push_back(found.clone());
        Some(found.1)
    }

    fn put(&mut self, id: PageId, page: Arc<Page>) {
        if self.0.len() >= CACHED {
            self.0.pop_front();
        }
        self.0.push_back((id, page));
    }
}

/// Some segments of a log, in order, that are stored together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentsPage {
    /// The chain that they were found through.
    pub chain: Arc<VersionedChain>,
    /// The segments with readable positions, and the active one.
    pub segments: Vec<Segment>,
    /// The position from which to ask for the segments that follow; None after the active one.
    pub next: Option<LogPos>,
}

/// The pages from a reference in the chain down to a page of segments.
pub(super) struct Path {
    /// Index of the chain's reference where the path starts.
    pub(super) top: usize,
    /// The pages on the path, from the top down. The last one holds segments.
    pub(super) steps: Vec<(PageRef, Arc<Page>)>,
}

impl Path {
    pub(super) fn segments(&self) -> &[Segment] {
        match self.steps.last().map(|(_, page)| &**page) {
            Some(Page::Segments(segments)) => segments,
            _ => &[],
        }
    }
}

/// Returns the segment, of these contiguous ones, that holds a position.
fn holding(segments: &[Segment], at: LogPos) -> Option<&Segment> {
    let after = segments.partition_point(|s| s.start <= at);
    after.checked_sub(1).map(|i| &segments[i])
}

impl Shared {
    fn page_register(&self, id: PageId) -> Arc<dyn Register> {
        self.registers.register(&format!("{PAGE_PREFIX}{}/{id}", self.name))
    }

    /// Returns a page; None if it was emptied, or never written.
    pub(super) async fn page(&self, of: &PageRef) -> Result<Option<Arc<Page>>, LogError> {
        if let Some(page) = lock(&self.state).pages.get(of.id) {
            return Ok(Some(page));
        }
        hit("vlog.page.read");
        let value = match self.page_register(of.id).read().await {
            Ok(found) if found.value.is_empty() => return Ok(None),
            Ok(found) => found.value,
            Err(e) => return Err(e.into()),
        };
        let page = Arc::new(Page::parse(value, of)?);
        lock(&self.state).pages.put(of.id, page.clone());
        Ok(Some(page))
    }

    /// Returns the pages that lead to a position; None if none does. A missing page means that a newer chain exists: this then reads that
    /// chain, and also returns None. Fails if the newest chain names a missing page.
    pub(super) async fn path_to(
        self: &Arc<Self>,
        chain: &VersionedChain,
        at: LogPos,
    ) -> Result<Option<Path>, LogError> {
        let pages = chain.chain.pages();
        let Some(mut next) = chain.chain.page_of(at).cloned() else { return Ok(None) };
        let top = pages.iter().position(|p| p.id == next.id).unwrap_or(0);
        let mut steps = Vec::new();
        loop {
            let Some(page) = self.page(&next).await? else {
                hit("vlog.page.gone");
                if self.refreshed().await?.version == chain.version {
                    return Err(ChainError::Page(next.id).into());
                }
                return Ok(None);
            };
            let below = match &*page {
                Page::Segments(_) => None,
                Page::Pages(_, all) => {
                    let after = all.partition_point(|p| p.start <= at);
                    after.checked_sub(1).map(|i| all[i].clone())
                }
            };
            steps.push((next, page));
            match below {
                Some(below) => next = below,
                None => return Ok(Some(Path { top, steps })),
            }
        }
    }

    /// Returns the segment that holds a position, in the chain itself or in a page. None if this chain has no such segment, or if a newer
    /// chain was read.
    pub(super) async fn segment_at(
        self: &Arc<Self>,
        chain: &VersionedChain,
        at: LogPos,
    ) -> Result<Option<Segment>, LogError> {
        if let Some(segment) = chain.chain.locate(at) {
            return Ok(Some(segment.clone()));
        }
        let path = self.path_to(chain, at).await?;
        Ok(path.and_then(|path| holding(path.segments(), at).cloned()))
    }

    /// See [`super::VirtualLog::segments_from`].
    pub(super) async fn segments_from(self: &Arc<Self>, from: LogPos) -> Result<SegmentsPage, LogError> {
        loop {
            let chain = self.some_chain().await?;
            let trim = chain.chain.trim();
            let from = from.max(trim).max(chain.chain.start());
            let is_left = |s: &&Segment| s.stop.is_none_or(|stop| stop > from);
            let own = chain.chain.segments();
            if from >= own[0].start {
                let segments = own.iter().filter(is_left).cloned().collect();
                return Ok(SegmentsPage { chain, segments, next: None });
            }
            if let Some(path) = self.path_to(&chain, from).await? {
                let segments = path.segments().iter().filter(is_left).cloned().collect();
                let next = path.steps.last().map(|(page, _)| page.stop);
                return Ok(SegmentsPage { chain, segments, next });
            }
        }
    }

    /// Returns the first readable segment in a page for which `is` holds. Skips pages without a data directory that satisfies `may`. Reads
    /// one page after the other. If a page is gone, a newer chain exists, and the search starts again from that one. Fails if the newest
    /// chain names a missing page.
    pub(super) async fn find_in_pages(
        self: &Arc<Self>,
        may: &(dyn Fn(atoll_core::NodeId, atoll_core::StorageId) -> bool + Send + Sync),
        is: &(dyn Fn(&Segment) -> bool + Send + Sync),
    ) -> Result<Option<Segment>, LogError> {
        let mut chain = self.some_chain().await?;
        'chain: loop {
            let trim = chain.chain.trim();
            let mut left: Vec<PageRef> = chain.chain.pages().iter().rev().cloned().collect();
            while let Some(next) = left.pop() {
                if next.stop <= trim || !next.may_be_on(may) {
                    continue;
                }
                let Some(page) = self.page(&next).await? else {
                    hit("vlog.page.gone");
                    let newer = self.refreshed().await?;
                    if newer.version == chain.version {
                        return Err(ChainError::Page(next.id).into());
                    }
                    chain = newer;
                    continue 'chain;
                };
                match &*page {
                    Page::Pages(_, all) => left.extend(all.iter().rev().cloned()),
                    Page::Segments(all) => {
                        let found = all.iter().find(|s| s.stop > Some(trim) && is(s));
                        if found.is_some() {
                            return Ok(found.cloned());
                        }
                    }
                }
            }
            return Ok(None);
        }
    }

    /// Returns the data directories that hold the entries of a segment; None if unknown.
    fn holders(&self, segment: &Segment) -> Holders {
        let provider = self.registry.provider(&segment.kind).ok()?;
        Some(provider.duties(&segment.config).holders().collect())
    }

    /// Writes a page that is made from version `made_at` of the chain. The page is durable on return. Fails at once if the registers have
    /// no room: appends may wait for the change that the page is for, and the change may fit into the chain without it.
    pub(super) async fn write_page(
        &self,
        page: &Page,
        made_at: Version,
        until: Tick,
    ) -> Result<PageRef, ReconfigError> {
        let id = PageId { made_at, random: self.env.random() };
        let of = page.reference(id, |s| self.holders(s)).ok_or(ChainError::Page(id))?;
        let (value, nonce, register) = (page.to_value()?, self.draw_nonce(), self.page_register(id));
        if mutant(mutants::VLOG_PAGE_TOO_LATE) {
            let env = self.env.clone();
            let late = async move {
                env.sleep(EMPTY_PAUSE).await;
                let _ = register.write_if(Version(0), value, nonce).await;
            };
            self.env.spawn("vlog.page.late", Box::pin(late));
            return Ok(of);
        }
        let mut pause = PAUSE;
        loop {
            let why = match register.write_if(Version(0), value.clone(), nonce).await {
                Ok(Written::Yes(_)) => return Ok(of),
                Ok(Written::Conflict(found)) if found.nonce == nonce => return Ok(of),
                // Already emptied: a newer chain does not name it.
                Ok(Written::Conflict(_)) => Unavailability::Busy,
                Err(RegisterError::NotWritten(why) | RegisterError::Unknown(why)) => why.into(),
                Err(e) => return Err(LogError::from(e).into()),
            };
            if self.env.now() >= until || matches!(why, Unavailability::Busy | Unavailability::DiskFull) {
                return Err(ReconfigError::Unavailable { step: Step::ReadChain, why });
            }
            self.env.sleep(self.env.jitter(pause)).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    /// Empties pages in the background. Call this only for pages that no chain names or ever will.
    pub(super) fn empty_pages(self: &Arc<Self>, ids: Vec<PageId>) {
        if ids.is_empty() {
            return;
        }
        let me = self.clone();
        let work = async move {
            for id in ids {
                me.empty_page(id).await;
            }
        };
        self.env.spawn("vlog.page.empty", Box::pin(work));
    }

    /// See [`super::VirtualLog::collect_page`].
    pub(super) async fn collect_page(self: &Arc<Self>, id: PageId) -> Result<bool, LogError> {
        let chain = self.refreshed_or_deleted().await?;
        if id.made_at >= chain.version {
            return Ok(false);
        }
        let page = match self.page_register(id).read().await {
            Ok(found) if found.value.is_empty() => return Ok(false),
            Ok(found) => Page::read(found.value)?,
            Err(e) => return Err(e.into()),
        };
        let Some(of) = page.reference(id, |_| None) else { return Ok(false) };
        if chain.chain.page_of(of.start).is_some() {
            match self.path_to(&chain, of.start).await? {
                Some(path) if path.steps.iter().all(|(step, _)| step.id != id) => {}
                _ => return Ok(false),
            }
        }
        hit("vlog.page.collected");
        self.empty_page(id).await;
        Ok(true)
    }

    pub(super) async fn empty_page(&self, id: PageId) {
        let (register, nonce) = (self.page_register(id), self.draw_nonce());
        for _ in 0..EMPTY_ATTEMPTS {
            // At any other version, the page was never written, or is already empty.
            if register.write_if(Version(1), Bytes::new(), nonce).await.is_ok() {
                return;
            }
            self.env.sleep(self.env.jitter(EMPTY_PAUSE)).await;
        }
    }
}

//! reconfigModify (virtuallog §7, vlog-M1–vlog-M4): a sealed segment is copied to a new Loglet, compared, and replaced in the chain. No
//! seal is needed, because the active segment does not change, and readers of either copy see the same entries.

use std::sync::Arc;

use bytes::Bytes;

use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};

use super::extend::HOLDERS_OF;
use super::install::Installed;
use super::{ReconfigError, Shared, Step};
use crate::chain::{Chain, ChainError, Segment, VersionedChain};
use crate::origin::Origin;
use crate::page::{Page, PageId, PageRef};
use atoll_contract::loglet::{
    Loglet, LogletError, LogletId, LogletProvider, LogletSpec, ReadError, ReadFrom, SealedConfig,
};
use atoll_contract::mutants::COPY_SKIPS_UNSEEN;
use atoll_contract::position::{LogPos, Offset};

/// Bytes per read in the comparison.
const PAGE_BYTES: usize = 1024 * 1024;

/// A copy that is complete and compared.
struct Copy {
    start: LogPos,
    loglet: LogletId,
    kind: String,
    config: Bytes,
    sealed_config: SealedConfig,
}

/// A planned copy of a sealed segment. No chain names it yet. An attempt that fails may leave a part of it, and the next one continues
/// there if the kind of its Loglet can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remake {
    /// The Loglet of the segment.
    pub of: LogletId,
    start: Option<LogPos>,
    id: LogletId,
    kind: String,
    config: Bytes,
}

/// Whether a chain may name the copy although the attempt failed: only after an install without an answer.
fn is_open(error: &ReconfigError) -> bool {
    matches!(error, ReconfigError::Unavailable { step: Step::Install, .. })
}

impl Shared {
    pub(super) async fn modify(
        self: &Arc<Self>,
        loglet: LogletId,
        start: Option<LogPos>,
        spec: LogletSpec,
    ) -> Result<Arc<VersionedChain>, ReconfigError> {
        let remake = self.plan_remake(loglet, start, spec).await?;
        let done = self.remake(&remake).await;
        // The collector spares a copy while its source is in the chain, so nobody else would delete it.
        if done.as_ref().is_err_and(|e| !is_open(e)) {
            self.give_up(&remake);
        }
        done
    }

    /// Plans the copy of a sealed segment. Nothing is copied yet.
    pub(super) async fn plan_remake(
        self: &Arc<Self>,
        loglet: LogletId,
        start: Option<LogPos>,
        mut spec: LogletSpec,
    ) -> Result<Remake, ReconfigError> {
        // Remove segments below the trim first. After that, only the first segment can have a trimmed head.
        let chain = self.truncate().await?;
        let segment = self.segment_of(&chain, loglet, start).await?;
        if segment.stop.is_none() {
            return Err(ReconfigError::NotSealed(loglet));
        }
        let provider = self.registry.provider(spec.kind.as_deref().unwrap_or(&segment.kind))?.clone();
        let previous = (segment.kind == provider.kind()).then_some(&segment.config);
        let newest = chain.chain.segments().iter().rev().take(HOLDERS_OF);
        spec.held = self.holders_in(std::iter::once(&segment).chain(newest));
        let config = provider.plan(&spec, previous).await?;
        let (id, kind) = (self.draw_loglet(Origin::Modify(loglet)), provider.kind().to_owned());
        Ok(Remake { of: loglet, start, id, kind, config })
    }

    /// Makes a planned copy, compares it, and puts it in place.
    pub(super) async fn remake(
        self: &Arc<Self>,
        remake: &Remake,
    ) -> Result<Arc<VersionedChain>, ReconfigError> {
        let chain = self.truncate().await?;
        let segment = self.segment_of(&chain, remake.of, remake.start).await?;
        let Some(stop) = segment.stop else { return Err(ReconfigError::NotSealed(remake.of)) };
        let provider = self.registry.provider(&remake.kind)?.clone();
        let start = segment.start.max(chain.chain.trim()).min(stop);
        let copy = self.copy(&segment, start..stop, &provider, remake.id, remake.config.clone()).await?;
        self.put_in_place(&segment, copy).await
    }

    /// Deletes what attempts at a planned copy have left. No attempt may be under way, and none may have ended with an install without an
    /// answer.
    pub(super) fn give_up(&self, remake: &Remake) {
        if let Ok(provider) = self.registry.provider(&remake.kind) {
            self.discard(provider.clone(), remake.id, remake.config.clone());
        }
    }

    /// Copies exactly the entries of the segment, none beyond its stop, then reads and compares both (vlog-M1, vlog-M2).
    async fn copy(
        &self,
        segment: &Segment,
        range: std::ops::Range<LogPos>,
        provider: &Arc<dyn LogletProvider>,
        id: LogletId,
        config: Bytes,
    ) -> Result<Copy, ReconfigError> {
        let source = self.handle(segment)?;
        let offsets = segment.offset_of(range.start)..segment.offset_of(range.end);
        let count = range.end.since(range.start);
        provider.build_sealed(id, &config, &*source, offsets.clone()).await.map_err(unavailable)?;
        let target = provider.open(id, &config)?;
        let tail = target.check_tail().await.map_err(unavailable)?;
        let Some(sealed_config) = tail.sealed else {
            return Err(ReconfigError::Copy("the copy is not sealed".to_owned()));
        };
        if tail.at != Offset(count) {
            let what = format!("the copy has {} entries, the segment {count}", tail.at);
            return Err(ReconfigError::Copy(what));
        }
        if !mutant(COPY_SKIPS_UNSEEN) {
            compare(&*source, offsets.start, &*target, count).await?;
        }
        Ok(Copy { start: range.start, loglet: id, kind: provider.kind().to_owned(), config, sealed_config })
    }

    /// Returns the segment of a Loglet, in the chain or in a page.
    async fn segment_of(
        self: &Arc<Self>,
        chain: &VersionedChain,
        loglet: LogletId,
        start: Option<LogPos>,
    ) -> Result<Segment, ReconfigError> {
        if let Some(segment) = chain.chain.segment(loglet) {
            return Ok(segment.clone());
        }
        let found = match start {
            Some(start) => self.segment_at(chain, start.max(chain.chain.trim())).await?,
            None => self.find_in_pages(&|_, _| true, &move |s| s.loglet == loglet).await?,
        };
        found.filter(|s| s.loglet == loglet).ok_or(ReconfigError::NoSuchSegment(loglet))
    }

    /// Replaces the segment if the chain still contains it unchanged. The old Loglet is deleted after a grace period (vlog-M3, vlog-M4).
    async fn put_in_place(
        self: &Arc<Self>,
        old: &Segment,
        copy: Copy,
    ) -> Result<Arc<VersionedChain>, ReconfigError> {
        let until = self.reconfigure_until();
        let by = Segment {
            start: copy.start,
            stop: old.stop,
            loglet: copy.loglet,
            kind: copy.kind,
            base: Offset::ZERO,
            config: copy.config,
            sealed_config: copy.sealed_config,
        };
        let mut chain = self.refreshed().await?;
        loop {
            let mut written = Vec::new();
            let replaced = match self.replaced(&chain, old, &by, until, &mut written).await {
                Ok(Some(replaced)) => replaced,
                Ok(None) => return Err(ReconfigError::NoSuchSegment(old.loglet)),
                Err(e) => {
                    self.empty_pages(written);
                    return Err(e);
                }
            };
            match self.install(chain.version, replaced.chain, until).await? {
                Installed::Mine(new) => {
                    hit("vlog.modify");
                    self.empty_pages(replaced.pages);
                    self.delete_removed(vec![old.clone()], self.options.delete_after);
                    return Ok(new);
                }
                Installed::Lost(newer) => {
                    self.empty_pages(written);
                    chain = newer;
                }
            }
        }
    }

    /// Returns the next chain, with `by` in place of `old`, in the chain itself or in a page; None if `old` is gone.
    async fn replaced(
        self: &Arc<Self>,
        chain: &VersionedChain,
        old: &Segment,
        by: &Segment,
        until: Tick,
        written: &mut Vec<PageId>,
    ) -> Result<Option<Replaced>, ReconfigError> {
        let own = chain.chain.segments();
        if let Some(at) = own.iter().position(|s| s == old) {
            // Only the first segment can have a trimmed head, so the start of any other segment never moves.
            if by.start != old.start && (at > 0 || !chain.chain.pages().is_empty()) {
                return Ok(None);
            }
            let new = chain.chain.next(self.draw_nonce(), |segments, _| segments[at] = by.clone())?;
            return Ok(Some(Replaced { chain: new, pages: Vec::new() }));
        }
        let trim = chain.chain.trim();
        let Some(path) = self.path_to(chain, by.start.max(trim)).await? else { return Ok(None) };
        if old.stop <= Some(trim) || !path.segments().contains(old) {
            return Ok(None);
        }
        hit("vlog.modify.in_page");
        // Write new pages from the segment up to the chain, and leave out segments and pages that are completely trimmed.
        let mut below: Option<PageRef> = None;
        let mut pages = Vec::new();
        for (of, page) in path.steps.iter().rev() {
            let new = match (&**page, below.take()) {
                (Page::Segments(all), _) => {
                    let kept = all.iter().filter(|s| s.stop > Some(trim));
                    Page::Segments(kept.map(|s| if s == old { by.clone() } else { s.clone() }).collect())
                }
                (Page::Pages(level, all), Some(below)) => {
                    let kept = all.iter().filter(|p| p.stop > trim);
                    let placed = kept.map(|p| if p.stop == below.stop { below.clone() } else { p.clone() });
                    Page::Pages(*level, placed.collect())
                }
                (Page::Pages(..), None) => return Err(ChainError::Page(of.id).into()),
            };
            let new = self.write_page(&new, chain.version, until).await?;
            written.push(new.id);
            pages.push(of.id);
            below = Some(new);
        }
        let Some(top) = below else { return Ok(None) };
        let new = chain.chain.next_with_pages(self.draw_nonce(), |parts| parts.pages[path.top] = top)?;
        Ok(Some(Replaced { chain: new, pages }))
    }
}

/// A chain with one segment replaced, and the pages that it no longer names.
struct Replaced {
    chain: Chain,
    pages: Vec<PageId>,
}

/// Compares every entry, by name and content (vlog-M2).
async fn compare(
    source: &dyn Loglet,
    from: Offset,
    copy: &dyn Loglet,
    count: u64,
) -> Result<(), ReconfigError> {
    let mut done = 0;
    while done < count {
        let end = from.plus(count);
        let theirs = read(source, from.plus(done)..end).await?;
        let n = theirs.len() as u64;
        let mut ours = Vec::new();
        while (ours.len() as u64) < n {
            let at = Offset(done + ours.len() as u64);
            ours.extend(read(copy, at..Offset(done + n)).await?);
        }
        if let Some(i) = theirs.iter().zip(&ours).position(|(a, b)| a != b) {
            let what = format!("the copy differs at its entry {}", done + i as u64);
            return Err(ReconfigError::Copy(what));
        }
        done += n;
    }
    Ok(())
}

async fn read(
    loglet: &dyn Loglet,
    range: std::ops::Range<Offset>,
) -> Result<Vec<atoll_contract::entry::Entry>, ReconfigError> {
    match loglet.read(range, PAGE_BYTES, ReadFrom::Anywhere).await {
        Ok(got) if !got.entries.is_empty() => Ok(got.entries),
        Ok(_) => Err(ReconfigError::Copy(ReadError::BeyondTail(Offset::ZERO).to_string())),
        Err(ReadError::Unavailable(why)) => Err(ReconfigError::Unavailable { step: Step::ReadChain, why }),
        Err(e) => Err(ReconfigError::Copy(e.to_string())),
    }
}

fn unavailable(e: LogletError) -> ReconfigError {
    match e {
        LogletError::Unavailable(why) => ReconfigError::Unavailable { step: Step::ReadChain, why },
        LogletError::Gone => ReconfigError::Copy(LogletError::Gone.to_string()),
    }
}

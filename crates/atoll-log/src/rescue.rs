//! The chain of a log that is rescued after a majority of its servers is lost for good: which segments it had, and the chain of what is
//! left of it, on other Loglets.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::chain::{Chain, ChainError, Segment};
use crate::page::{Page, PageId, PageRef};
use atoll_contract::position::LogPos;
use atoll_contract::register::Nonce;

/// What is left of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// The first readable position.
    pub trim: LogPos,
    /// All segments, of which only the last one is open. They hold every position from `trim` on.
    pub segments: Vec<Segment>,
}

/// Returns the segments of a chain from its trim position on, in order, including those in index pages. `pages` has the values of the
/// registers of pages.
///
/// # Errors
/// A page is missing or damaged.
pub fn segments_of(chain: &Chain, pages: &BTreeMap<PageId, Bytes>) -> Result<Vec<Segment>, ChainError> {
    let mut all = Vec::new();
    let mut left: Vec<PageRef> = chain.pages().iter().rev().cloned().collect();
    while let Some(of) = left.pop() {
        if of.stop <= chain.trim() {
            continue;
        }
        let value = pages.get(&of.id).filter(|value| !value.is_empty()).ok_or(ChainError::Page(of.id))?;
        match Page::parse(value.clone(), &of)? {
            Page::Segments(segments) => all.extend(segments),
            Page::Pages(_, below) => left.extend(below.into_iter().rev()),
        }
    }
    all.extend(chain.segments().iter().cloned());
    all.retain(|s| s.stop.is_none_or(|stop| stop > chain.trim()));
    Ok(all)
}

/// Returns the chain of a rescued log. The records of surgery are kept, and the patches of positions that are left.
///
/// # Errors
/// The chain would not be valid.
pub fn rescued(chain: &Chain, nonce: Nonce, left: Rescued) -> Result<Chain, ChainError> {
    chain.next_with_pages(nonce, |parts| {
        if let Some(active) = left.segments.last() {
            parts.surgery.drop_from(active.start);
        }
        parts.pages.clear();
        *parts.segments = left.segments;
        *parts.trim = left.trim;
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::chain::DELETED_KIND;
    use atoll_contract::loglet::LogletId;
    use atoll_contract::register::Version;

    fn segment(n: u64) -> Segment {
        let open = Segment::open(LogPos(n * 10), LogletId(n.into()), "some", Bytes::new());
        Segment { stop: Some(LogPos(n * 10 + 10)), ..open }
    }

    /// A chain with the segments 0 to 4 in two levels of pages, 5 in the chain, and 6 open.
    fn paged() -> (Chain, BTreeMap<PageId, Bytes>) {
        let id = |random| PageId { made_at: Version(1), random };
        let mut pages = BTreeMap::new();
        let mut keep = |n: u64, page: Page| {
            pages.insert(id(n), page.to_value().unwrap());
            page.reference(id(n), |_| None).unwrap()
        };
        let low = [0..2, 2..4].map(|r| Page::Segments(r.map(segment).collect()));
        let [a, b] = low;
        let (a, b) = (keep(1, a), keep(2, b));
        let top = keep(3, Page::Pages(1, vec![a, b]));
        let last = keep(4, Page::Segments(vec![segment(4)]));
        let first = Chain::first(Nonce(1), LogletId(0), "some", Bytes::new()).unwrap();
        let chain = first.next_with_pages(Nonce(2), |parts| {
            *parts.pages = vec![top, last];
            let open = Segment::open(LogPos(60), LogletId(6), "some", Bytes::new());
            *parts.segments = vec![segment(5), open];
            *parts.trim = LogPos(25);
        });
        (chain.unwrap(), pages)
    }

    #[test]
    fn segments_come_from_pages_in_order_and_without_what_was_trimmed() {
        let (chain, mut pages) = paged();
        let found = segments_of(&chain, &pages).unwrap();
        assert_eq!(found.iter().map(|s| s.start.0).collect::<Vec<_>>(), [20, 30, 40, 50, 60]);
        let of = PageId { made_at: Version(1), random: 2 };
        pages.insert(of, Bytes::new());
        assert_eq!(segments_of(&chain, &pages), Err(ChainError::Page(of)));
        pages.remove(&PageId { made_at: Version(1), random: 1 });
        assert_eq!(segments_of(&chain, &pages), Err(ChainError::Page(of)), "a trimmed page is not needed");
    }

    #[test]
    fn a_rescued_chain_names_only_what_is_left() {
        let (chain, _) = paged();
        let open = Segment::open(LogPos(47), LogletId(100), "some", Bytes::new());
        let sealed = Segment { start: LogPos(30), stop: Some(LogPos(47)), ..open.clone() };
        let sealed = Segment { loglet: LogletId(99), ..sealed };
        let left = Rescued { trim: LogPos(30), segments: vec![sealed, open] };
        let next = rescued(&chain, Nonce(9), left.clone()).unwrap();
        assert_eq!((next.trim(), next.start(), next.active().start), (LogPos(30), LogPos(30), LogPos(47)));
        assert!(next.pages().is_empty() && next.was_installed(chain.nonce()));
        assert!(next.active().kind != DELETED_KIND);
        let gap = Rescued { segments: vec![segment(4), left.segments[1].clone()], ..left };
        assert!(rescued(&chain, Nonce(9), gap).is_err(), "a hole makes no chain");
    }
}

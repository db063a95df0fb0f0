//! Index pages: the part of a chain that is stored outside of it. Old sealed segments move to pages, a page of pages replaces many pages,
//! and the chain keeps only a few references. So neither the size of the chain nor the cost of a change grows with the number of segments.
//!
//! A page is immutable. It is stored in a register of its own, which is written once, before any chain names the page, and emptied when no
//! chain names it any more. The id of a page contains the version of the chain that it was made from. Only the change from that version to
//! the next can be the first to name the page. So if the next chain does not name it, the change that made it has lost, and the page is
//! garbage.
//!
//! Byte form, version 1: `1u8 | level u8 | segments` at level 0, `1u8 | level u8 | references [PageRef]` above; little endian, lists
//! with a u32 length. Segments share their configurations: `start u64 | setups [(kind, config, sealed config)] |
//! [(loglet u128, base u64, stop option u64, setup u32)]`, where each segment starts at the stop of the one before it.

use std::fmt;

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, NodeId, Reader, StorageId};

use crate::chain::{ChainError, MAX_SEGMENTS, Segment};
use atoll_contract::loglet::LogletId;
use atoll_contract::position::{LogPos, Offset};
use atoll_contract::register::{MAX_VALUE_BYTES, Version};

/// Format of the byte form.
const FORMAT: u8 = 1;
/// Most segments or references in a page.
pub const MAX_ITEMS: usize = MAX_SEGMENTS;
/// Most levels of pages. Even with two items per page, the fewest possible, pages can hold more segments than a chain can have versions.
pub const MAX_LEVEL: u8 = 63;
/// Most data directories that a reference lists. If there are more, the reference lists none and counts as unknown.
pub const MAX_HOLDERS: usize = 32;

/// The name of a page. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The version of the chain that it was made from.
    pub made_at: Version,
    /// Distinguishes pages made from the same version.
    pub random: u64,
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.made_at.0, self.random)
    }
}

impl PageId {
    /// Length of the text form, in bytes.
    const TEXT_BYTES: usize = 32;

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<PageId> {
        let is_hex = text.bytes().all(|b| b.is_ascii_hexdigit());
        let (high, low) = text.split_at_checked(16).filter(|_| is_hex && text.len() == Self::TEXT_BYTES)?;
        let number = |part| u64::from_str_radix(part, 16).ok();
        Some(PageId { made_at: Version(number(high)?), random: number(low)? })
    }
}

/// Data directories that hold entries; None if there are too many to list, or if they are unknown.
pub type Holders = Option<Vec<(NodeId, StorageId)>>;

/// A reference to a page, in a chain or in a parent page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// The id of the page.
    pub id: PageId,
    /// 0: the page holds segments. Above 0: it holds references to pages of the level below.
    pub level: u8,
    /// The first position of its segments.
    pub start: LogPos,
    /// The first position after them.
    pub stop: LogPos,
    /// Number of segments in the page and below it.
    pub segments: u64,
    /// The data directories that hold their entries.
    pub holders: Holders,
}

impl PageRef {
    /// Returns whether entries of some segment of the page may be in a data directory for which `is` holds.
    pub fn may_be_on(&self, mut is: impl FnMut(NodeId, StorageId) -> bool) -> bool {
        self.holders.as_ref().is_none_or(|h| h.iter().any(|(node, storage)| is(*node, *storage)))
    }
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Level 0.
    Segments(Vec<Segment>),
    /// References to pages one level below this page's level, which is given.
    Pages(u8, Vec<PageRef>),
}

impl Page {
    /// Returns the level: 0 for a page of segments.
    pub fn level(&self) -> u8 {
        match self {
            Page::Segments(_) => 0,
            Page::Pages(level, _) => *level,
        }
    }

    /// Returns the reference that a chain holds to this page; None if the page is empty. For a page of segments, `holders` returns the
    /// data directories that hold the entries of a segment.
    pub fn reference(&self, id: PageId, holders: impl Fn(&Segment) -> Holders) -> Option<PageRef> {
        let (start, stop, segments, all): (_, _, _, Vec<Holders>) = match self {
            Page::Segments(all) => {
                (all.first()?.start, all.last()?.stop?, all.len() as u64, all.iter().map(holders).collect())
            }
            Page::Pages(_, all) => (
                all.first()?.start,
                all.last()?.stop,
                all.iter().map(|p| p.segments).sum(),
                all.iter().map(|p| p.holders.clone()).collect(),
            ),
        };
        Some(PageRef { id, level: self.level(), start, stop, segments, holders: union(all) })
    }

    /// Reads the value of a register, and checks it against the chain's reference.
    pub fn parse(bytes: Bytes, of: &PageRef) -> Result<Self, ChainError> {
        let page = Page::read(bytes)?;
        let found = page.reference(of.id, |_| None).ok_or(ChainError::Page(of.id))?;
        let same = (found.level, found.start, found.stop, found.segments)
            == (of.level, of.start, of.stop, of.segments);
        if same { Ok(page) } else { Err(ChainError::Page(of.id)) }
    }

    /// Reads the value of a register.
    pub fn read(bytes: Bytes) -> Result<Self, ChainError> {
        let mut from = Reader::new(bytes);
        match u8::decode(&mut from)? {
            FORMAT => {}
            other => return Err(ChainError::Format(other)),
        }
        let page = match u8::decode(&mut from)? {
            0 => Page::Segments(decode_segments(&mut from)?),
            level => Page::Pages(level, Vec::decode(&mut from)?),
        };
        from.finish("index page")?;
        page.check()?;
        Ok(page)
    }

    /// Returns the value for a register.
    pub fn to_value(&self) -> Result<Bytes, ChainError> {
        self.check()?;
        let mut out = BytesMut::new();
        FORMAT.encode(&mut out);
        self.level().encode(&mut out);
        match self {
            Page::Segments(segments) => encode_segments(segments, &mut out),
            Page::Pages(_, pages) => pages.encode(&mut out),
        }
        if out.len() > MAX_VALUE_BYTES {
            return Err(ChainError::TooLong(out.len()));
        }
        Ok(out.freeze())
    }

    /// Checks that items are contiguous, that every segment is sealed, and that every reference is to the level below.
    fn check(&self) -> Result<(), ChainError> {
        match self {
            Page::Segments(all) => {
                if all.is_empty() || all.len() > MAX_ITEMS {
                    return Err(ChainError::Segments(all.len()));
                }
                for (i, s) in all.iter().enumerate() {
                    s.check(i)?;
                    if s.stop.is_none() {
                        return Err(ChainError::Active(i));
                    }
                    if all.get(i + 1).is_some_and(|next| s.stop != Some(next.start)) {
                        return Err(ChainError::Gap(i + 1));
                    }
                }
                Ok(())
            }
            Page::Pages(level, all) => {
                if *level == 0 || *level > MAX_LEVEL || all.iter().any(|p| p.level != level - 1) {
                    return Err(ChainError::Level(*level));
                }
                check_references(all)
            }
        }
    }
}

/// Checks that references are contiguous and within the limits.
pub(crate) fn check_references(all: &[PageRef]) -> Result<(), ChainError> {
    if all.len() > MAX_ITEMS {
        return Err(ChainError::Segments(all.len()));
    }
    for (i, p) in all.iter().enumerate() {
        if p.level > MAX_LEVEL {
            return Err(ChainError::Level(p.level));
        }
        if p.stop <= p.start || p.segments == 0 {
            return Err(ChainError::Backwards(i));
        }
        if all.get(i + 1).is_some_and(|next| p.stop != next.start) {
            return Err(ChainError::Gap(i + 1));
        }
    }
    Ok(())
}

fn union(all: Vec<Holders>) -> Holders {
    let mut together = Vec::new();
    for holders in all {
        together.extend(holders?);
        together.sort_unstable();
        together.dedup();
        if together.len() > MAX_HOLDERS {
            return None;
        }
    }
    Some(together)
}

/// Encodes contiguous segments.
pub(crate) fn encode_segments(segments: &[Segment], out: &mut BytesMut) {
    let mut setups: Vec<(&String, &Bytes, &Bytes)> = Vec::new();
    let mut which = Vec::with_capacity(segments.len());
    for s in segments {
        let setup = (&s.kind, &s.config, &s.sealed_config);
        // Neighbouring segments mostly have the same setup, so a search from the back seldom takes more than one comparison.
        let at = setups.iter().rposition(|known| *known == setup).unwrap_or_else(|| {
            setups.push(setup);
            setups.len() - 1
        });
        which.push(at as u32);
    }
    segments.first().map_or(LogPos::ZERO, |s| s.start).encode(out);
    (setups.len() as u32).encode(out);
    for (kind, config, sealed_config) in setups {
        kind.encode(out);
        config.encode(out);
        sealed_config.encode(out);
    }
    (segments.len() as u32).encode(out);
    for (s, setup) in segments.iter().zip(which) {
        s.loglet.encode(out);
        s.base.encode(out);
        s.stop.encode(out);
        setup.encode(out);
    }
}

/// Fewest bytes of a segment besides its configuration.
const LEAST_SEGMENT_BYTES: usize = 16 + 8 + 1 + 4;

/// Decodes the output of [`encode_segments`].
pub(crate) fn decode_segments(from: &mut Reader) -> Result<Vec<Segment>, DecodeError> {
    // Copy the bytes: a slice would pin the whole message that contained the page (X13).
    let copied = |b: Bytes| Bytes::copy_from_slice(&b);
    let mut start = LogPos::decode(from)?;
    let mut setups: Vec<(String, Bytes, Bytes)> = Vec::new();
    for _ in 0..u32::decode(from)? {
        setups.push((Decode::decode(from)?, copied(Decode::decode(from)?), copied(Decode::decode(from)?)));
    }
    let count = u32::decode(from)? as usize;
    let needed = count.saturating_mul(LEAST_SEGMENT_BYTES);
    if needed > from.left() {
        return Err(DecodeError::Short { what: "segments", needed, left: from.left() });
    }
    let mut segments = Vec::with_capacity(count);
    for _ in 0..count {
        let loglet = LogletId::decode(from)?;
        let base = Offset::decode(from)?;
        let stop = Option::<LogPos>::decode(from)?;
        let setup = u32::decode(from)?;
        let Some((kind, config, sealed_config)) = setups.get(setup as usize).cloned() else {
            let allowed = "one of those in the list";
            return Err(DecodeError::Invalid { what: "setup of a segment", value: setup.into(), allowed });
        };
        segments.push(Segment { start, stop, loglet, kind, base, config, sealed_config });
        start = stop.unwrap_or(start);
    }
    Ok(segments)
}

impl Encode for PageRef {
    fn encode(&self, out: &mut BytesMut) {
        self.id.made_at.0.encode(out);
        self.id.random.encode(out);
        self.level.encode(out);
        self.start.encode(out);
        self.stop.encode(out);
        self.segments.encode(out);
        self.holders.encode(out);
    }
}

impl Decode for PageRef {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let made_at = Version(u64::decode(from)?);
        let page = PageRef {
            id: PageId { made_at, random: u64::decode(from)? },
            level: u8::decode(from)?,
            start: Decode::decode(from)?,
            stop: Decode::decode(from)?,
            segments: u64::decode(from)?,
            holders: Decode::decode(from)?,
        };
        match &page.holders {
            Some(holders) if holders.len() > MAX_HOLDERS => {
                let value = holders.len() as u64;
                Err(DecodeError::Invalid { what: "holders of a page", value, allowed: "at most 32" })
            }
            _ => Ok(page),
        }
    }
}

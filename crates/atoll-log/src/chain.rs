//! The chain: which Loglet holds which positions of a virtual log (virtuallog §1). The chain is the value of the log's register, and has
//! the version of that register.
//!
//! Byte form, version 1: `1u8 | nonce u128 | trim u64 | audit [u128] | segments [Segment]`, little endian, lists with a u32
//! length. Version 2, written only for a chain with index pages: `2u8 | nonce u128 | trim u64 | audit [u128] | pages [PageRef]
//! | segments`, see [`crate::page`]. Version 3, written only for a chain with surgery: like version 2, but the pages may be empty, and
//! [`crate::surgery`] follows the segments. Decoding rejects an inconsistent chain, so none is ever used.

use bytes::{Bytes, BytesMut};

use atoll_core::testing::mutant;
use atoll_core::{Decode, DecodeError, Encode, Reader};

use crate::mutants;
use crate::page::{self, PageId, PageRef};
use crate::surgery::{Surgery, SurgeryFault};
use atoll_contract::loglet::{LogletId, SealedConfig};
use atoll_contract::position::{LogPos, Offset};
use atoll_contract::register::{Nonce, Version};

/// Format of a chain without index pages.
const FORMAT: u8 = 1;
/// Format of a chain with index pages.
const FORMAT_WITH_PAGES: u8 = 2;
/// Format of a chain with surgery, with or without index pages.
const FORMAT_WITH_SURGERY: u8 = 3;
/// Most segments in the chain itself: older ones move to index pages before this limit is exceeded.
pub const MAX_SEGMENTS: usize = 1024;
/// Longest byte form, in bytes. A chain of this length still fits into its register after a move to another store. A longer one could not
/// be written there any more, not even after a seal.
pub const MAX_CHAIN_BYTES: usize = atoll_contract::register::MAX_MOVABLE_BYTES;
/// Longest configuration of one Loglet, in bytes.
pub const MAX_CONFIG_BYTES: usize = 16 * 1024;
/// Longest name of a kind of Loglet, in bytes.
pub const MAX_KIND_BYTES: usize = 64;
/// Number of nonces of earlier installs that a chain remembers. A writer that got no answer recognises its own install by its nonce
/// (virtuallog §8).
pub const AUDIT_NONCES: usize = 32;
/// The kind of the segment that ends a log permanently. It is sealed and empty, and nothing follows it.
pub const END_KIND: &str = "end";
/// The kind of the only segment of a deleted log. It is empty and takes no appends. A log that is created anew starts at its position.
pub const DELETED_KIND: &str = "deleted";

/// Why bytes are not a valid chain, or why a change would not produce one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The bytes do not decode.
    #[error("the chain is not readable: {0}")]
    Decode(#[from] DecodeError),
    /// A version of the byte form that this program does not know.
    #[error("the chain has format {0}; this program reads up to {FORMAT_WITH_SURGERY}")]
    Format(u8),
    /// No segment, or too many.
    #[error("a chain has 1 to {MAX_SEGMENTS} segments, but this one has {0}; truncate the log")]
    Segments(usize),
    /// The change would leave too little room for changes that the log needs, and for its end. Nothing was changed.
    #[error("the chain has {segments} segments; this change may bring it to {most} at most; trim the log")]
    Full {
        /// Segments of the chain.
        segments: usize,
        /// Most segments that the chain may have after a change for this purpose.
        most: usize,
    },
    /// The chain is too long for a register.
    #[error("the chain has {0} bytes; at most {MAX_CHAIN_BYTES} are allowed; truncate the log")]
    TooLong(usize),
    /// A configuration or name exceeds its limit.
    #[error("segment {0} has a configuration of {1} bytes; at most {MAX_CONFIG_BYTES} are allowed")]
    Config(usize, usize),
    /// The name of a kind is empty or too long.
    #[error("segment {0} has a kind of {1} bytes; 1 to {MAX_KIND_BYTES} are allowed")]
    Kind(usize, usize),
    /// A segment does not begin where the one before it stops.
    #[error("segment {0} does not begin where the one before it stops")]
    Gap(usize),
    /// A segment stops before it starts.
    #[error("segment {0} stops before it starts")]
    Backwards(usize),
    /// The last segment is not the only open one.
    #[error("segment {0}: the last segment is open, all others have a stop")]
    Active(usize),
    /// Two segments name one Loglet.
    #[error("loglet {0} is in the chain twice")]
    Twice(LogletId),
    /// The trim position is below the first segment.
    #[error("the trim position {0} lies before the first segment")]
    Trim(LogPos),
    /// An index page is missing, or does not match the chain's reference to it.
    #[error("index page {0} is missing, or is not the one that the chain names")]
    Page(PageId),
    /// An index page has a level that is not possible there.
    #[error("an index page has level {0}, which it cannot have")]
    Level(u8),
    /// A hold, a patch or a record of surgery breaks a rule.
    #[error("the surgery of the chain is not valid: {0}")]
    Surgery(#[from] SurgeryFault),
    /// A position cannot be mapped, because it would exceed 2^64.
    #[error("segment {0} ends beyond 2^64")]
    Overflow(usize),
}

/// A part of the log, in one Loglet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first position.
    pub start: LogPos,
    /// The first position after it; None while the segment takes appends. Equal to `start` in an empty segment (vlog-V7).
    pub stop: Option<LogPos>,
    /// Its Loglet. This identifies the segment; `start` alone does not (vlog-V7).
    pub loglet: LogletId,
    /// The kind of provider that opens it.
    pub kind: String,
    /// The offset of `start` in the Loglet.
    pub base: Offset,
    /// The Loglet's configuration, opaque here.
    pub config: Bytes,
    /// The sealed configuration that the sealer obtained from the Loglet and installed with the stop; opaque here (vlog-L9).
    pub sealed_config: SealedConfig,
}

impl Segment {
    /// Returns an empty segment that takes appends, on a Loglet of its own.
    pub fn open(start: LogPos, loglet: LogletId, kind: &str, config: Bytes) -> Self {
        let (kind, sealed_config) = (kind.to_owned(), SealedConfig::new());
        Segment { start, stop: None, loglet, kind, base: Offset::ZERO, config, sealed_config }
    }

    /// Returns the offset in the Loglet for a position of this segment.
    pub fn offset_of(&self, at: LogPos) -> Offset {
        self.base.plus(at.since(self.start))
    }

    /// Returns the position of an offset in this segment's Loglet. Offsets below the base map to the start.
    pub fn position_of(&self, at: Offset) -> LogPos {
        self.start.plus(at.since(self.base))
    }

    /// Returns the stop, or the start while there is none.
    pub fn stop_or_start(&self) -> LogPos {
        self.stop.unwrap_or(self.start)
    }

    /// Checks the limits, and that all positions can be mapped. `i` is the number of the segment, for the error.
    pub(crate) fn check(&self, i: usize) -> Result<(), ChainError> {
        let config = self.config.len().max(self.sealed_config.len());
        if config > MAX_CONFIG_BYTES {
            return Err(ChainError::Config(i, config));
        }
        if self.kind.is_empty() || self.kind.len() > MAX_KIND_BYTES {
            return Err(ChainError::Kind(i, self.kind.len()));
        }
        let Some(stop) = self.stop else { return Ok(()) };
        if stop < self.start {
            return Err(ChainError::Backwards(i));
        }
        if self.base.0.checked_add(stop.since(self.start)).is_none() {
            return Err(ChainError::Overflow(i));
        }
        Ok(())
    }

    /// Returns true if this segment marks the log as deleted.
    pub fn is_deletion(&self) -> bool {
        self.kind == DELETED_KIND
    }

    /// Returns true if this segment ends the log: it is empty, and nothing ever follows it.
    pub fn is_end(&self) -> bool {
        self.kind == END_KIND
    }
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    nonce: Nonce,
    trim: LogPos,
    audit: Vec<Nonce>,
    /// Pages of older segments, oldest first.
    pages: Vec<PageRef>,
    segments: Vec<Segment>,
    surgery: Surgery,
}

/// The parts of a chain that a change may modify.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Index pages, oldest first.
    pub pages: &'a mut Vec<PageRef>,
    /// The segments after them.
    pub segments: &'a mut Vec<Segment>,
    /// The first readable position.
    pub trim: &'a mut LogPos,
    /// What operators did to single entries. What lies below the trim position is dropped after the change.
    pub surgery: &'a mut Surgery,
}

/// A chain as it was at one version of its register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedChain {
    /// The version of the register.
    pub version: Version,
    /// The chain.
    pub chain: Chain,
}

impl Chain {
    /// Returns the first chain of a log: one open segment at position 0.
    pub fn first(nonce: Nonce, loglet: LogletId, kind: &str, config: Bytes) -> Result<Self, ChainError> {
        let segment = Segment::open(LogPos::ZERO, loglet, kind, config);
        let (trim, segments, surgery) = (LogPos::ZERO, vec![segment], Surgery::default());
        Chain { nonce, trim, audit: Vec::new(), pages: Vec::new(), segments, surgery }.checked()
    }

    /// Returns the nonce of the install that made this chain.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Returns the first readable position.
    pub fn trim(&self) -> LogPos {
        self.trim
    }

    /// References to the index pages, oldest first. Their segments come before all of [`Chain::segments`].
    pub fn pages(&self) -> &[PageRef] {
        &self.pages
    }

    /// Returns the first position of the chain. Positions below it were trimmed.
    pub fn start(&self) -> LogPos {
        self.pages.first().map_or(self.segments[0].start, |p| p.start)
    }

    /// Returns what operators did to single entries.
    pub fn surgery(&self) -> &Surgery {
        &self.surgery
    }

    /// Returns the number of segments, including those in pages.
    pub fn segment_count(&self) -> u64 {
        self.pages.iter().map(|p| p.segments).sum::<u64>() + self.segments.len() as u64
    }

    /// Returns the reference to the page that holds a position; None if none does.
    pub fn page_of(&self, at: LogPos) -> Option<&PageRef> {
        let after = self.pages.partition_point(|p| p.start <= at);
        after.checked_sub(1).map(|i| &self.pages[i]).filter(|p| at < p.stop)
    }

    /// Returns the segments that are in the chain itself, in order: at least one, of which the last is open.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the active segment, which takes appends.
    pub fn active(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }

    /// Returns true if the log was deleted and has not been created anew.
    pub fn is_deleted(&self) -> bool {
        self.active().is_deletion()
    }

    /// Returns the sealed segments in the chain itself, in order: all but the active one.
    pub fn sealed(&self) -> impl Iterator<Item = &Segment> {
        self.segments[..self.segments.len() - 1].iter()
    }

    /// Returns the segment of a Loglet, if it is in the chain itself.
    pub fn segment(&self, loglet: LogletId) -> Option<&Segment> {
        self.segments.iter().find(|s| s.loglet == loglet)
    }

    /// Returns the segment in the chain itself that holds, or will hold, a position; None for a position below the first of them (see
    /// [`Chain::page_of`]). Of several segments that start at the same position, all but the last are empty (vlog-V7).
    pub fn locate(&self, at: LogPos) -> Option<&Segment> {
        let after = self.segments.partition_point(|s| s.start <= at);
        after.checked_sub(1).map(|i| &self.segments[i])
    }

    /// Returns true if the install with this nonce made this chain, or one of the most recent chains before it.
    pub fn was_installed(&self, nonce: Nonce) -> bool {
        self.nonce == nonce || self.audit.contains(&nonce)
    }

    /// Returns the next chain: a checked copy with the given nonce, to which `change` was applied.
    pub fn next(
        &self,
        nonce: Nonce,
        change: impl FnOnce(&mut Vec<Segment>, &mut LogPos),
    ) -> Result<Self, ChainError> {
        self.next_with_pages(nonce, |parts| change(parts.segments, parts.trim))
    }

    /// Like [`Chain::next`], for a change that may also modify the pages.
    pub fn next_with_pages(&self, nonce: Nonce, change: impl FnOnce(Parts<'_>)) -> Result<Self, ChainError> {
        let mut next = self.clone();
        next.audit.push(self.nonce);
        if next.audit.len() > AUDIT_NONCES {
            next.audit.remove(0);
        }
        next.nonce = nonce;
        let Chain { pages, segments, trim, surgery, .. } = &mut next;
        change(Parts { pages, segments, trim, surgery });
        next.surgery.drop_below(next.trim);
        next.checked()
    }

    /// Returns the chain of the log after its deletion at this tail. It no longer names any data, and all positions below the tail are
    /// given up. `id` distinguishes it from other deletions.
    pub fn deleted(&self, nonce: Nonce, id: LogletId, tail: LogPos) -> Result<Self, ChainError> {
        self.next_with_pages(nonce, |parts| {
            parts.pages.clear();
            *parts.segments = vec![Segment::open(tail, id, DELETED_KIND, Bytes::new())];
            *parts.trim = tail;
        })
    }

    /// Returns the chain of a deleted log that is created anew. Positions continue where they ended, so none is ever used twice.
    pub fn created_anew(
        &self,
        nonce: Nonce,
        loglet: LogletId,
        kind: &str,
        config: Bytes,
    ) -> Result<Self, ChainError> {
        let start = if mutant(mutants::VLOG_ANEW_FROM_ZERO) { LogPos::ZERO } else { self.active().start };
        self.next(nonce, |segments, _| *segments = vec![Segment::open(start, loglet, kind, config)])
    }

    /// Reads the value of a register.
    pub fn parse(bytes: Bytes) -> Result<Self, ChainError> {
        // Earlier programs wrote chains as long as a register may be.
        if bytes.len() > atoll_contract::register::MAX_VALUE_BYTES {
            return Err(ChainError::TooLong(bytes.len()));
        }
        match bytes.first() {
            Some(&FORMAT | &FORMAT_WITH_PAGES | &FORMAT_WITH_SURGERY) | None => {}
            Some(&other) => return Err(ChainError::Format(other)),
        }
        Chain::from_bytes(bytes)?.checked()
    }

    /// Returns the length of the byte form.
    pub fn size_bytes(&self) -> usize {
        self.to_bytes().len()
    }

    /// Returns the value for a register.
    pub fn to_value(&self) -> Result<Bytes, ChainError> {
        let bytes = self.to_bytes();
        if bytes.len() > MAX_CHAIN_BYTES {
            return Err(ChainError::TooLong(bytes.len()));
        }
        Ok(bytes)
    }

    /// Checks that segments are contiguous, that only the last one is open, that no Loglet occurs twice (vlog-VL2), and the limits.
    fn checked(self) -> Result<Self, ChainError> {
        let n = self.segments.len();
        if n == 0 || n > MAX_SEGMENTS {
            return Err(ChainError::Segments(n));
        }
        page::check_references(&self.pages)?;
        if self.pages.last().is_some_and(|p| p.stop != self.segments[0].start) {
            return Err(ChainError::Gap(0));
        }
        let mut ids = std::collections::BTreeSet::new();
        let mut expected = self.segments[0].start;
        for (i, s) in self.segments.iter().enumerate() {
            s.check(i)?;
            if !ids.insert(s.loglet) {
                return Err(ChainError::Twice(s.loglet));
            }
            if s.start != expected {
                return Err(ChainError::Gap(i));
            }
            if s.stop.is_none() != (i + 1 == n) {
                return Err(ChainError::Active(i));
            }
            expected = s.stop_or_start();
        }
        if self.trim < self.start() {
            return Err(ChainError::Trim(self.trim));
        }
        self.surgery.check(self.trim, self.active().start)?;
        Ok(self)
    }
}

impl Encode for Segment {
    fn encode(&self, out: &mut BytesMut) {
        self.start.encode(out);
        self.stop.encode(out);
        self.loglet.encode(out);
        self.kind.encode(out);
        self.base.encode(out);
        self.config.encode(out);
        self.sealed_config.encode(out);
    }
}

impl Decode for Segment {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        // Copy the bytes: a slice would pin the whole message that contained the chain (X13).
        let copied = |b: Bytes| Bytes::copy_from_slice(&b);
        Ok(Segment {
            start: Decode::decode(from)?,
            stop: Decode::decode(from)?,
            loglet: Decode::decode(from)?,
            kind: Decode::decode(from)?,
            base: Decode::decode(from)?,
            config: copied(Decode::decode(from)?),
            sealed_config: copied(Decode::decode(from)?),
        })
    }
}

impl Encode for Chain {
    fn encode(&self, out: &mut BytesMut) {
        // Use the oldest format that can express the chain, so that older programs can still read it.
        let format = match (self.surgery.is_empty(), self.pages.is_empty()) {
            (true, true) => FORMAT,
            (true, false) => FORMAT_WITH_PAGES,
            (false, _) => FORMAT_WITH_SURGERY,
        };
        format.encode(out);
        self.nonce.0.encode(out);
        self.trim.encode(out);
        self.audit.iter().map(|n| n.0).collect::<Vec<u128>>().encode(out);
        if format == FORMAT {
            self.segments.encode(out);
            return;
        }
        self.pages.encode(out);
        page::encode_segments(&self.segments, out);
        if format == FORMAT_WITH_SURGERY {
            self.surgery.encode(out);
        }
    }
}

impl Decode for Chain {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let format = u8::decode(from)?;
        if !(FORMAT..=FORMAT_WITH_SURGERY).contains(&format) {
            let allowed = "format 1 to 3";
            return Err(DecodeError::Invalid { what: "chain", value: format.into(), allowed });
        }
        let nonce = Nonce(u128::decode(from)?);
        let trim = LogPos::decode(from)?;
        let audit: Vec<Nonce> = Vec::<u128>::decode(from)?.into_iter().map(Nonce).collect();
        if audit.len() > AUDIT_NONCES {
            let value = audit.len() as u64;
            return Err(DecodeError::Invalid { what: "chain audit", value, allowed: "at most 32 nonces" });
        }
        let (pages, segments) = if format == FORMAT {
            (Vec::new(), Decode::decode(from)?)
        } else {
            (Vec::<PageRef>::decode(from)?, page::decode_segments(from)?)
        };
        if format == FORMAT_WITH_PAGES && pages.is_empty() {
            return Err(DecodeError::Invalid { what: "pages of a chain", value: 0, allowed: "one at least" });
        }
        let surgery = if format == FORMAT_WITH_SURGERY { Surgery::decode(from)? } else { Surgery::default() };
        if format == FORMAT_WITH_SURGERY && surgery.is_empty() {
            return Err(DecodeError::Invalid { what: "surgery of a chain", value: 0, allowed: "something" });
        }
        Ok(Chain { nonce, trim, audit, pages, segments, surgery })
    }
}

//! The projection (paper §2.2; corfu §1): which chain of units holds a position, and at which address.
//!
//! ```text
//!  position   0            1000                     open end
//!             ├──────────────┼───────────────────────▶
//!              units a, b     chains (a, c), (d, e): `stripe` positions on the first, then `stripe` on the second, …
//! ```
//!
//! Every unit of a chain keeps a position at the same address. The addresses of a chain in a range are dense and start at its `base`, so a
//! unit that takes the place of another one uses the same addresses.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, Incarnation, NodeId, Reader, StorageId};

/// Version of the byte form.
const FORMAT: u8 = 1;
/// The most units of one chain.
pub const MAX_CHAIN: usize = 9;
/// The most ranges of a projection. The value must fit into a register.
pub const MAX_RANGES: usize = 2_000;
/// The end of the last range.
pub const OPEN: u64 = u64::MAX;

/// A storage unit: a node, and the identity of its data directory. Another directory is another unit (corfu-C16).
pub type UnitId = (NodeId, StorageId);

atoll_core::record! {
    /// The units that hold copies of the same positions, head first.
    pub struct Chain {
        /// The address of the chain's first position in its range, the same on all of its units.
        pub base: u64,
        /// The units. The first one decides a position, the last one makes it readable.
        pub units: Vec<UnitId>,
    }
}

atoll_core::record! {
    /// Consecutive positions that are spread over the same chains.
    pub struct Stretch {
        /// The first position.
        pub start: u64,
        /// The position after the last one; [`OPEN`] in the last range.
        pub end: u64,
        /// How many consecutive positions are on the same chain.
        pub stripe: u32,
        /// The chains, which take turns.
        pub chains: Vec<Chain>,
    }
}

/// Where a position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The index of the range.
    pub stretch: usize,
    /// The index of the chain in the range.
    pub index: usize,
    /// The chain.
    pub chain: &'a Chain,
    /// The address on the units of the chain.
    pub addr: u64,
    /// How many positions from this one on are at consecutive addresses of the chain.
    pub run: u64,
}

/// Why a projection is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProjectionError {
    /// It cannot be decoded.
    #[error("{0}")]
    Undecodable(#[from] DecodeError),
    /// There is no range.
    #[error("the projection has no range")]
    Empty,
    /// There are too many ranges.
    #[error("the projection has {0} ranges; at most {MAX_RANGES} are allowed")]
    TooMany(usize),
    /// Positions belong to no range.
    #[error("positions {0} to {1} are in no range")]
    Gap(u64, u64),
    /// Two ranges overlap.
    #[error("two ranges contain position {0}")]
    Overlap(u64),
    /// A range is empty, or the last one ends.
    #[error("the range at {0} ends at {1}; ranges are not empty, and only the last one is open")]
    Ends(u64, u64),
    /// A chain is empty, or too long, or there is none.
    #[error("the range at {start} has a chain of {units} units; 1 to {MAX_CHAIN} are allowed")]
    ChainLength {
        /// Where the range begins.
        start: u64,
        /// The length of the chain.
        units: usize,
    },
    /// The stripe is zero.
    #[error("the range at {0} has stripes of no positions")]
    NoStripe(u64),
    /// A unit is not among those that are known.
    #[error("node {node} holds no unit with the data directory {storage}", node = .0.0, storage = .0.1)]
    UnknownUnit(UnitId),
    /// Two positions would be at the same address of a unit.
    #[error("the range at {start} uses addresses of node {node} that another chain uses")]
    AddressTwice {
        /// Where the range begins.
        start: u64,
        /// The node of the unit.
        node: NodeId,
    },
    /// A change names a position that does not suit it.
    #[error("{0} is no position at which the projection can change: {1}")]
    Boundary(u64, &'static str),
}

impl ProjectionError {
    /// Returns this error as one of a value that cannot be decoded, for those who know only such errors.
    pub fn as_decode_error(&self) -> DecodeError {
        let (what, value, allowed) = match self {
            ProjectionError::Undecodable(error) => return error.clone(),
            ProjectionError::Empty => ("number of ranges of a projection", 0, "at least one"),
            ProjectionError::TooMany(n) => ("number of ranges of a projection", *n as u64, "2000 at most"),
            ProjectionError::Gap(at, _) => {
                ("position in no range of a projection", *at, "ranges that follow each other without gaps")
            }
            ProjectionError::Overlap(at) => {
                ("position in two ranges of a projection", *at, "ranges that do not overlap")
            }
            ProjectionError::Ends(start, _) => {
                ("range of a projection", *start, "ranges that are not empty, of which only the last is open")
            }
            ProjectionError::ChainLength { units, .. } => {
                ("number of units in a chain of a projection", *units as u64, "1 to 9")
            }
            ProjectionError::NoStripe(_) => ("stripe of a projection", 0, "at least one position"),
            ProjectionError::UnknownUnit(unit) => {
                ("node of a unit in a projection", u64::from(unit.0.0), "units that are known")
            }
            ProjectionError::AddressTwice { node, .. } => (
                "node of a unit in a projection",
                u64::from(node.0),
                "units on which no two positions have the same address",
            ),
            ProjectionError::Boundary(at, _) => ("change of a projection", *at, "at the end of a round"),
        };
        DecodeError::Invalid { what, value, allowed }
    }
}

/// A projection; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The epoch in which it is valid.
    pub epoch: u64,
    /// The sequencer: a node, and one life of that node (corfu-C11).
    pub sequencer: (NodeId, Incarnation),
    /// The ranges, in order and without gaps. The first one starts at the first position that was not trimmed away.
    pub stretches: Vec<Stretch>,
    /// How many units each chain should have, and how many chains there should be. The last range may have fewer if nodes were down when it
    /// was made.
    pub wanted: (u32, u32),
}

impl Stretch {
    /// Returns how many positions the chain with this index holds.
    pub fn positions_of(&self, index: usize) -> u64 {
        if self.end == OPEN {
            return OPEN;
        }
        let (all, stripe, chains) = (self.end - self.start, u64::from(self.stripe), self.chains.len() as u64);
        let (rounds, rest) = (all / (stripe * chains), all % (stripe * chains));
        rounds * stripe + rest.saturating_sub(index as u64 * stripe).min(stripe)
    }

    /// Returns the addresses that the chain with this index uses.
    pub fn addresses_of(&self, index: usize) -> Range<u64> {
        let base = self.chains[index].base;
        base..base.saturating_add(self.positions_of(index))
    }

    /// Returns the position at an address of the chain with this index.
    pub fn position_at(&self, index: usize, addr: u64) -> u64 {
        let (stripe, chains) = (u64::from(self.stripe), self.chains.len() as u64);
        let local = addr.saturating_sub(self.chains[index].base);
        let (round, inside) = (local / stripe, local % stripe);
        self.start.saturating_add((round * chains + index as u64) * stripe + inside)
    }

    /// Returns the address on the chain with this index of the first of its positions at or above `position`.
    pub fn address_from(&self, index: usize, position: u64) -> u64 {
        let (stripe, chains) = (u64::from(self.stripe), self.chains.len() as u64);
        let off = position.saturating_sub(self.start);
        let (block, inside) = (off / stripe, off % stripe);
        let (round, turn) = (block / chains, (block % chains) as usize);
        let local = match turn.cmp(&index) {
            std::cmp::Ordering::Less => round * stripe,
            std::cmp::Ordering::Equal => round * stripe + inside,
            std::cmp::Ordering::Greater => (round + 1) * stripe,
        };
        self.chains[index].base + local
    }
}

impl Projection {
    /// Returns the projection of a log with a single, open range from position 0 on.
    pub fn simple(
        epoch: u64,
        sequencer: (NodeId, Incarnation),
        stripe: u32,
        chains: Vec<Vec<UnitId>>,
    ) -> Self {
        let chains: Vec<Chain> = chains.into_iter().map(|units| Chain { base: 0, units }).collect();
        let length = chains.iter().map(|chain: &Chain| chain.units.len()).max().unwrap_or(0);
        let wanted = (length as u32, chains.len() as u32);
        let stretches = vec![Stretch { start: 0, end: OPEN, stripe, chains }];
        Projection { epoch, sequencer, stretches, wanted }
    }

    /// Decodes and checks a projection.
    pub fn parse(bytes: &Bytes) -> Result<Self, ProjectionError> {
        let read = Projection::from_bytes(bytes.clone())?;
        read.check(None)?;
        Ok(read)
    }

    /// Checks that the ranges follow each other without gap or overlap, that no two positions are at the same place, and that all units are
    /// among `known`, if it is given.
    pub fn check(&self, known: Option<&dyn Fn(UnitId) -> bool>) -> Result<(), ProjectionError> {
        let (Some(last), false) = (self.stretches.last(), self.stretches.len() > MAX_RANGES) else {
            let n = self.stretches.len();
            return Err(if n == 0 { ProjectionError::Empty } else { ProjectionError::TooMany(n) });
        };
        if last.end != OPEN {
            return Err(ProjectionError::Ends(last.start, last.end));
        }
        for pair in self.stretches.windows(2) {
            let (one, next) = (&pair[0], &pair[1]);
            if one.end == OPEN || one.end <= one.start {
                return Err(ProjectionError::Ends(one.start, one.end));
            }
            match one.end.cmp(&next.start) {
                std::cmp::Ordering::Less => return Err(ProjectionError::Gap(one.end, next.start)),
                std::cmp::Ordering::Greater => return Err(ProjectionError::Overlap(next.start)),
                std::cmp::Ordering::Equal => {}
            }
        }
        self.check_units(known)
    }

    fn check_units(&self, known: Option<&dyn Fn(UnitId) -> bool>) -> Result<(), ProjectionError> {
        let mut used: BTreeMap<UnitId, Vec<Range<u64>>> = BTreeMap::new();
        for stretch in &self.stretches {
            let start = stretch.start;
            if stretch.stripe == 0 {
                return Err(ProjectionError::NoStripe(start));
            }
            if stretch.chains.is_empty() {
                return Err(ProjectionError::ChainLength { start, units: 0 });
            }
            for (index, chain) in stretch.chains.iter().enumerate() {
                let units = chain.units.len();
                if units == 0 || units > MAX_CHAIN {
                    return Err(ProjectionError::ChainLength { start, units });
                }
                for unit in &chain.units {
                    if known.is_some_and(|known| !known(*unit)) {
                        return Err(ProjectionError::UnknownUnit(*unit));
                    }
                    used.entry(*unit).or_default().push(stretch.addresses_of(index));
                }
            }
        }
        for (unit, mut ranges) in used {
            ranges.sort_unstable_by_key(|range| range.start);
            if let Some(pair) = ranges.windows(2).find(|pair| pair[0].end > pair[1].start) {
                let at = |s: &&Stretch| {
                    let holds =
                        |(i, c): (usize, &Chain)| c.units.contains(&unit) && s.addresses_of(i) == pair[1];
                    s.chains.iter().enumerate().any(holds)
                };
                let start = self.stretches.iter().find(at).map_or(0, |s| s.start);
                return Err(ProjectionError::AddressTwice { start, node: unit.0 });
            }
        }
        Ok(())
    }

    /// Returns where a position is; None if it is below the first range.
    pub fn place(&self, position: u64) -> Option<Place<'_>> {
        let stretch = self.stretches.partition_point(|s| s.start <= position).checked_sub(1)?;
        let s = &self.stretches[stretch];
        let (stripe, chains) = (u64::from(s.stripe), s.chains.len() as u64);
        let off = position - s.start;
        let (block, inside) = (off / stripe, off % stripe);
        let index = (block % chains) as usize;
        let chain = &s.chains[index];
        let addr = chain.base + (block / chains) * stripe + inside;
        // On a single chain, stripes follow each other.
        let run = if chains == 1 { OPEN } else { stripe - inside };
        Some(Place { stretch, index, chain, addr, run: run.min(s.end - position) })
    }

    /// Returns the last range, which takes new positions.
    pub fn active(&self) -> &Stretch {
        // A checked projection has a range.
        &self.stretches[self.stretches.len() - 1]
    }

    /// Returns every unit once, in order.
    pub fn units(&self) -> Vec<UnitId> {
        let chains = self.stretches.iter().flat_map(|s| &s.chains);
        let mut units: Vec<UnitId> = chains.flat_map(|chain| chain.units.iter().copied()).collect();
        units.sort_unstable();
        units.dedup();
        units
    }

    /// Returns the position above the highest one that is known from the units' next addresses: one for each unit that answered.
    pub fn position_above(&self, next: &BTreeMap<UnitId, u64>) -> u64 {
        let mut above = self.stretches[0].start;
        for stretch in &self.stretches {
            for (index, chain) in stretch.chains.iter().enumerate() {
                let addresses = stretch.addresses_of(index);
                for end in chain.units.iter().filter_map(|unit| next.get(unit)) {
                    let end = (*end).min(addresses.end);
                    if end > addresses.start {
                        above = above.max(stretch.position_at(index, end - 1) + 1);
                    }
                }
            }
        }
        above
    }
}

impl Encode for Projection {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.epoch.encode(out);
        self.sequencer.encode(out);
        self.stretches.encode(out);
        self.wanted.encode(out);
    }
}

impl Decode for Projection {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            FORMAT => Ok(Projection {
                epoch: Decode::decode(from)?,
                sequencer: Decode::decode(from)?,
                stretches: Decode::decode(from)?,
                wanted: Decode::decode(from)?,
            }),
            n => Err(DecodeError::Invalid { what: "version of a projection", value: n.into(), allowed: "1" }),
        }
    }
}

#[cfg(test)]
#[path = "projection_test.rs"]
mod tests;

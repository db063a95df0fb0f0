//! The end of a sealed Loglet, as it is installed in the chain (vlog-L9): the tail, the units that count, and the holes.

use bytes::BytesMut;

use atoll_core::{Decode, DecodeError, Encode, Reader};

use crate::projection::{Chain, UnitId};

/// Version of the byte form.
const FORMAT: u8 = 1;

/// See the module documentation. Whoever installs it first decides, so all readers skip the same holes (corfu-K8), although repairers that
/// reach different units may find different ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedAt {
    /// The end: the position above every one on the units.
    pub tail: u64,
    /// The units that were sealed. Each has everything below the tail except the holes. Others may lack something, and what they have at a
    /// hole does not count (corfu-C8).
    pub units: Vec<UnitId>,
    /// The positions below the tail that none of the units has: the first one and the end of each range. They are junk.
    pub holes: Vec<(u64, u64)>,
}

impl SealedAt {
    /// Returns the units of a chain that count, head first.
    pub fn members<'a>(&'a self, chain: &'a Chain) -> impl Iterator<Item = UnitId> + 'a {
        chain.units.iter().copied().filter(|unit| self.units.contains(unit))
    }

    /// Returns the end of the hole that contains a position.
    pub fn hole_at(&self, position: u64) -> Option<u64> {
        let before = self.holes.partition_point(|(start, _)| *start <= position).checked_sub(1)?;
        self.holes.get(before).map(|(_, end)| *end).filter(|end| position < *end)
    }

    /// Returns the first hole above a position, or the tail.
    pub fn next_hole(&self, position: u64) -> u64 {
        let after = self.holes.partition_point(|(start, _)| *start <= position);
        self.holes.get(after).map_or(self.tail, |(start, _)| *start)
    }
}

impl Encode for SealedAt {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.tail.encode(out);
        self.units.encode(out);
        self.holes.encode(out);
    }
}

impl Decode for SealedAt {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            FORMAT => Ok(SealedAt {
                tail: Decode::decode(from)?,
                units: Decode::decode(from)?,
                holes: Decode::decode(from)?,
            }),
            n => {
                let what = "version of the end of a CORFU loglet";
                Err(DecodeError::Invalid { what, value: n.into(), allowed: "1" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found() {
        let end = SealedAt { tail: 20, units: Vec::new(), holes: vec![(3, 5), (9, 10)] };
        assert_eq!(
            [2, 3, 4, 5, 9, 10].map(|p| end.hole_at(p)),
            [None, Some(5), Some(5), None, Some(10), None]
        );
        assert_eq!([0, 3, 5, 9, 12].map(|p| end.next_hole(p)), [3, 9, 9, 20, 20]);
        assert_eq!(SealedAt::from_bytes(end.to_bytes()), Ok(end));
    }
}

//! Which global sequence numbers the records of a shard have (scalog.md §2: lsn-range -> gsn per segment).

use std::collections::BTreeMap;

use crate::message::Placed;
use crate::order::Numbered;

/// Consecutive records of a segment with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub segment: usize,
    /// The place of the first record in the segment.
    pub first: u64,
    pub count: u64,
    pub gsn: u64,
}

impl Piece {
    /// Returns the number above the last one.
    pub fn end(&self) -> u64 {
        self.gsn + self.count
    }
}

/// The numbers of a shard's records.
#[derive(Debug, Default)]
pub struct Numbers {
    /// By global sequence number.
    pieces: BTreeMap<u64, Piece>,
    /// By segment and place: the global sequence number of a piece.
    places: BTreeMap<(usize, u64), u64>,
}

impl Numbers {
    /// Adds records. Joins them with the piece before them where both places and numbers continue.
    pub fn add(&mut self, n: &Numbered) {
        if let Some((_, last)) = self.pieces.last_key_value()
            && (last.segment, last.first + last.count, last.end()) == (n.segment, n.first, n.gsn)
        {
            let gsn = last.gsn;
            if let Some(piece) = self.pieces.get_mut(&gsn) {
                piece.count += n.count;
            }
            return;
        }
        self.places.insert((n.segment, n.first), n.gsn);
        let piece = Piece { segment: n.segment, first: n.first, count: n.count, gsn: n.gsn };
        self.pieces.insert(n.gsn, piece);
    }

    /// Returns the number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the part of a piece that starts at a place of a segment; None if the record has no number, or was given up.
    pub fn at(&self, segment: usize, place: u64) -> Option<Piece> {
        let ((_, first), gsn) = self.places.range((segment, 0)..=(segment, place)).next_back()?;
        let piece = self.pieces.get(gsn)?;
        let skip = place - first;
        (skip < piece.count).then(|| Piece {
            segment,
            first: place,
            count: piece.count - skip,
            gsn: gsn + skip,
        })
    }

    /// Returns the numbers of records at consecutive places.
    pub fn placed(&self, segment: usize, first: u64, count: u32) -> Vec<Placed> {
        let (mut at, end, mut all) = (first, first + u64::from(count), Vec::new());
        while at < end {
            let (first, n) = match self.at(segment, at) {
                Some(piece) => (Some(piece.gsn), piece.count.min(end - at)),
                None => (None, end - at),
            };
            all.push(Placed { first, count: n as u32 });
            at += n;
        }
        all
    }

    /// Returns the pieces from a number on, the first one without what is below.
    pub fn from(&self, gsn: u64) -> impl Iterator<Item = Piece> + '_ {
        let within = self.pieces.range(..gsn).next_back().map(|(_, piece)| *piece);
        let within = within.filter(|piece| piece.end() > gsn).map(|piece| {
            let skip = gsn - piece.gsn;
            Piece { first: piece.first + skip, count: piece.count - skip, gsn, ..piece }
        });
        within.into_iter().chain(self.pieces.range(gsn..).map(|(_, piece)| *piece))
    }

    /// Forgets numbers below this one. Returns for each segment the first place that stays, if something of it is given up.
    pub fn trim(&mut self, to: u64) -> BTreeMap<usize, u64> {
        let mut firsts = BTreeMap::new();
        for piece in self.pieces.range(..to).map(|(_, piece)| *piece).collect::<Vec<_>>() {
            firsts.insert(piece.segment, piece.first + piece.count.min(to - piece.gsn));
            if piece.end() <= to {
                self.pieces.remove(&piece.gsn);
                self.places.remove(&(piece.segment, piece.first));
            }
        }
        firsts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(all: &[(usize, u64, u64, u64)]) -> Numbers {
        let mut numbers = Numbers::default();
        for (segment, first, count, gsn) in all {
            numbers.add(&Numbered { shard: 0, segment: *segment, first: *first, count: *count, gsn: *gsn });
        }
        numbers
    }

    #[test]
    fn places_and_numbers_are_found_both_ways() {
        let mut n = numbers(&[(0, 0, 2, 0), (1, 0, 1, 2), (1, 1, 2, 3), (0, 2, 3, 9)]);
        assert_eq!(n.len(), 3, "the second and the third are one piece");
        let piece = |segment, first, count, gsn| Piece { segment, first, count, gsn };
        assert_eq!(n.at(1, 1), Some(piece(1, 1, 2, 3)));
        assert_eq!((n.at(1, 3), n.at(0, 5)), (None, None));
        assert_eq!(n.from(1).collect::<Vec<_>>(), [piece(0, 1, 1, 1), piece(1, 0, 3, 2), piece(0, 2, 3, 9)]);
        assert_eq!(n.from(6).collect::<Vec<_>>(), [piece(0, 2, 3, 9)]);
        let placed = |first, count| Placed { first, count };
        assert_eq!(n.placed(0, 1, 5), [placed(Some(1), 1), placed(Some(9), 3), placed(None, 1)]);
        assert_eq!(n.trim(4), BTreeMap::from([(0, 2), (1, 2)]));
        assert_eq!((n.at(0, 1), n.at(1, 2)), (None, Some(piece(1, 2, 1, 4))));
        assert_eq!(n.trim(4), BTreeMap::from([(1, 2)]));
    }
}

//! The change that made a Loglet, as encoded in the Loglet's id. With it, servers can distinguish a Loglet that its creator has abandoned
//! from one that is still to be installed (vlog-V8).
//!
//! | bits of a [`LogletId`] | |
//! | --- | --- |
//! | 127..88 | random: ids are never reused |
//! | 87..80 | 0, or the number of a part of the Loglet ([`LogletId::part`]) |
//! | 79..32 | hash of the log's name |
//! | 31..30 | the kind of change: 1 the log's first chain, 2 an extension, 3 a copy of a sealed segment |
//! | 29..0 | hash of the id of the Loglet that it was made to follow, or is a copy of |
//!
//! Why it is safe to delete what [`Suspects::abandoned`] returns: A first Loglet can only be installed at version 0. A successor is
//! installed by the same write that gives the preceding Loglet a stop, and a copy by the same write that removes its source (`extend.rs`,
//! `modify.rs`: both give up once that Loglet is gone). A Loglet never becomes active again and never returns to a chain. So suppose that
//! a chain was read *after* the Loglet was seen, does not have the preceding Loglet in its place, and does not name the Loglet itself.
//! Then no chain will ever name it, however slow its creator is: the creator's conditional write fails, and the creator learns that its
//! change did not happen. The argument does not depend on clocks. Two log names with the same 48 bits could be confused only while one of
//! the two logs has no chain yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{Chain, Segment};
use atoll_contract::loglet::LogletId;

/// The change for which a Loglet is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The first Loglet of its log.
    Create,
    /// The successor of this Loglet.
    Extend(LogletId),
    /// A copy of this sealed Loglet.
    Modify(LogletId),
}

const CREATE: u32 = 1;
const EXTEND: u32 = 2;
const MODIFY: u32 = 3;
const HASH_BITS: u32 = 30;

/// Hashes with FNV-1a and a final mix. This must never change, because ids outlive programs.
fn hash(bytes: &[u8]) -> u64 {
    let mut h = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^ (h >> 33)
}

/// Returns the 48 bits that the ids of all Loglets of a log share.
pub fn mark_of_log(name: &str) -> u64 {
    hash(name.as_bytes()) >> 16
}

/// Returns the mark of the log that a Loglet was made for.
pub fn mark_in(id: LogletId) -> u64 {
    (id.0 >> 32) as u64 & 0xffff_ffff_ffff
}

fn kind_in(id: LogletId) -> u32 {
    (id.0 as u32) >> HASH_BITS
}

fn before_in(id: LogletId) -> u32 {
    id.0 as u32 & ((1 << HASH_BITS) - 1)
}

fn short(id: LogletId) -> u32 {
    (hash(&id.0.to_le_bytes()) >> (64 - HASH_BITS)) as u32
}

/// Returns a new id. `random` makes it unique.
pub fn new_id(random: u64, log: &str, origin: Origin) -> LogletId {
    let low = match origin {
        Origin::Create => CREATE << HASH_BITS,
        Origin::Extend(from) => EXTEND << HASH_BITS | short(from),
        Origin::Modify(of) => MODIFY << HASH_BITS | short(of),
    };
    let high = u128::from(random >> 24) << 88;
    LogletId(high | u128::from(mark_of_log(log)) << 32 | u128::from(low))
}

/// Loglets of one log that are on a server, and that no known segment names. Each counts as abandoned unless a segment shows otherwise;
/// the module documentation explains why. Inspect the segments of the log after the Loglets were seen, in the order of their positions,
/// and the chain itself last. Positions never move, so this order covers every Loglet that belongs to the log throughout.
#[derive(Clone, Debug)]
pub struct Suspects {
    ids: BTreeSet<LogletId>,
    /// The copies among them, by the Loglet that they copy.
    copies: BTreeMap<u32, Vec<LogletId>>,
}

impl Suspects {
    /// Keeps those of these ids that [`new_id`] made for this log. The owner of any other id is unknown.
    pub fn new(log: &str, ids: impl IntoIterator<Item = LogletId>) -> Self {
        let mark = mark_of_log(log);
        let is_known = |id: &LogletId| match kind_in(*id) {
            CREATE => before_in(*id) == 0,
            EXTEND | MODIFY => true,
            _ => false,
        };
        let ids: BTreeSet<LogletId> =
            ids.into_iter().filter(|id| mark_in(*id) == mark && is_known(id)).collect();
        let mut copies: BTreeMap<u32, Vec<LogletId>> = BTreeMap::new();
        for id in ids.iter().filter(|id| kind_in(**id) == MODIFY) {
            copies.entry(before_in(*id)).or_default().push(*id);
        }
        Suspects { ids, copies }
    }

    /// Returns true if no suspect is left.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Removes the Loglets that these segments name, with their parts, and the copies that may still replace one of them.
    pub fn spare(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.ids.remove(&segment.loglet);
            let whole = segment.loglet.whole();
            let of_whole = self.ids.range(whole..=whole.part(u8::MAX)).filter(|id| id.whole() == whole);
            for part in of_whole.copied().collect::<Vec<_>>() {
                self.ids.remove(&part);
            }
            for copy in self.copies.remove(&short(segment.loglet)).unwrap_or_default() {
                self.ids.remove(&copy);
            }
        }
    }

    /// Returns the Loglets that are not part of the log and can never become part of it. `chain` must be read last, after
    /// [`Suspects::spare`] has seen all segments in index pages.
    pub fn abandoned(mut self, chain: &Chain) -> BTreeSet<LogletId> {
        self.spare(chain.segments());
        let active = short(chain.active().loglet);
        self.ids.retain(|id| kind_in(*id) != EXTEND || before_in(*id) != active);
        self.ids
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::position::{LogPos, Offset};
    use atoll_contract::register::Nonce;
    use bytes::Bytes;

    const LOG: &str = "reef";

    fn is_abandoned(id: LogletId, log: &str, chain: &Chain) -> bool {
        Suspects::new(log, [id]).abandoned(chain).contains(&id)
    }

    /// Returns the chain that `extend` installs.
    fn extended(chain: &Chain, by: LogletId, nonce: u128) -> Chain {
        let stop = LogPos(chain.active().start.0 + 5);
        let installed = chain.next(Nonce(nonce), |segments, _| {
            segments.last_mut().unwrap().stop = Some(stop);
            segments.push(Segment {
                start: stop,
                stop: None,
                loglet: by,
                kind: "a kind".into(),
                base: Offset::ZERO,
                config: Bytes::new(),
                sealed_config: Bytes::new(),
            });
        });
        installed.unwrap()
    }

    #[test]
    fn the_losers_of_a_create_are_abandoned_and_the_winner_is_not() {
        let [winner, loser] = [1 << 40, 2 << 40].map(|r| new_id(r, LOG, Origin::Create));
        let chain = Chain::first(Nonce(1), winner, "a kind", Bytes::new()).unwrap();
        assert!(!is_abandoned(winner, LOG, &chain));
        assert!(is_abandoned(loser, LOG, &chain));
        assert!(!is_abandoned(new_id(3 << 40, "other", Origin::Create), LOG, &chain));
        assert!(!is_abandoned(LogletId(77), LOG, &chain), "nobody knows whose that is");
    }

    #[test]
    fn a_successor_may_still_come_until_another_has() {
        let first = new_id(1 << 40, LOG, Origin::Create);
        let chain = Chain::first(Nonce(1), first, "a kind", Bytes::new()).unwrap();
        let [winner, loser] = [2 << 40, 3 << 40].map(|r| new_id(r, LOG, Origin::Extend(first)));
        assert!(!is_abandoned(winner, LOG, &chain) && !is_abandoned(loser, LOG, &chain));
        let chain = extended(&chain, winner, 2);
        assert!(!is_abandoned(winner, LOG, &chain) && is_abandoned(loser, LOG, &chain));
        // This stays true when both have been replaced.
        let third = new_id(4 << 40, LOG, Origin::Extend(winner));
        let chain = extended(&chain, third, 3);
        assert!(!is_abandoned(winner, LOG, &chain) && is_abandoned(loser, LOG, &chain));
        let chain = chain.next(Nonce(4), |segments, trim| {
            segments.drain(..2);
            *trim = LogPos(10);
        });
        assert!(is_abandoned(winner, LOG, &chain.unwrap()), "it was truncated");
    }

    #[test]
    fn a_copy_may_still_come_while_its_source_is_there() {
        let first = new_id(1 << 40, LOG, Origin::Create);
        let chain = Chain::first(Nonce(1), first, "a kind", Bytes::new()).unwrap();
        let chain = extended(&chain, new_id(2 << 40, LOG, Origin::Extend(first)), 2);
        let [winner, loser] = [3 << 40, 4 << 40].map(|r| new_id(r, LOG, Origin::Modify(first)));
        assert!(!is_abandoned(winner, LOG, &chain) && !is_abandoned(loser, LOG, &chain));
        let chain = chain.next(Nonce(3), |segments, _| segments[0].loglet = winner).unwrap();
        assert!(!is_abandoned(winner, LOG, &chain) && is_abandoned(loser, LOG, &chain));
        assert!(is_abandoned(first, LOG, &chain), "the source is out for good");
    }
}

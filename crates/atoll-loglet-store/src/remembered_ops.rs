//! Remembers the operations that were appended recently, and their offsets: a client's retry gets the offset of its first attempt
//! (contracts X16, native §4 "RememberedOps inside a segment").
//!
//! The table is bounded by the number of spans of consecutive sequence numbers over all clients, and by the number of clients without
//! spans. It keeps track of the offset in the Loglet below which operations may be forgotten. A caller that looks up an operation states an
//! offset that the operation is not below. If a forgotten operation may be the one, the answer is "scan for it", never a second copy.
//! Operations in flight are never forgotten.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::{ClientId, Offset, OpId};
use atoll_core::testing::mutant;

use crate::mutants;

/// The most operations in a span. Spans are forgotten as a whole, so a long one would take new numbers with it.
const SPAN_OPS: u32 = 256;
/// For this many spans, the table also keeps one client whose spans are all forgotten. Once such a client is forgotten, too, its old
/// operations can no longer be told from its new ones. A larger number sends clients to scan more often; a smaller one takes more memory,
/// about 100 bytes for each client.
const SPANS_PER_IDLE_CLIENT: usize = 8;

/// What the table knows about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was never appended here.
    New,
    /// It was appended at this offset.
    At(Offset),
    /// It may have been appended here, and the table has forgotten it.
    Forgotten,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    seq: u64,
    offset: Offset,
    count: u32,
}

impl Span {
    /// Returns the sequence number after its last one.
    fn end_seq(&self) -> u64 {
        self.seq.saturating_add(self.count.into())
    }

    /// Returns the offset after its last one.
    fn end(&self) -> Offset {
        self.offset.plus(self.count.into())
    }
}

/// The remembered operations of one client.
#[derive(Debug, Default)]
struct Recent {
    /// Spans by sequence number; they do not overlap.
    spans: VecDeque<Span>,
    /// Sequence numbers up to this one may have been forgotten.
    floor: u64,
    /// All forgotten operations of this client are below this offset.
    forgotten_end: Offset,
}

impl Recent {
    /// Returns the answer for the first of `count` numbers starting at `seq`, and for how many numbers from there on it holds.
    fn look(&self, seq: u64, count: u32, not_below: Offset) -> (Known, u32) {
        // Most numbers are newer than everything that is remembered.
        let next = match self.spans.back() {
            Some(last) if seq < last.end_seq() => self.spans.partition_point(|s| s.seq <= seq),
            _ => self.spans.len(),
        };
        if let Some(span) = next.checked_sub(1).and_then(|i| self.spans.get(i))
            && seq < span.end_seq()
        {
            let into = seq - span.seq;
            let left = (u64::from(span.count) - into) as u32;
            return (Known::At(span.offset.plus(into)), left.min(count));
        }
        let until = |end: u64| u32::try_from(end - seq).unwrap_or(u32::MAX).clamp(1, count);
        let gap_end = self.spans.get(next).map_or(u64::MAX, |s| s.seq);
        if seq <= self.floor && not_below < self.forgotten_end {
            return (Known::Forgotten, until(gap_end.min(self.floor.saturating_add(1))));
        }
        (Known::New, until(gap_end))
    }

    /// Forgets the first span: numbers up to its last one may now be forgotten, and their offsets are below its end.
    fn forget_first(&mut self) {
        if let Some(span) = self.spans.pop_front() {
            self.floor = self.floor.max(span.end_seq() - 1);
            self.forgotten_end = self.forgotten_end.max(span.end());
        }
    }
}

/// The table of remembered operations.
#[derive(Debug)]
pub struct RememberedOps {
    clients: BTreeMap<ClientId, Recent>,
    /// The client of each span, oldest span first.
    order: VecDeque<ClientId>,
    limit_spans: usize,
    /// Clients without spans; the first one is forgotten first. A client that has spans again stays in the queue and is skipped.
    idle: VecDeque<ClientId>,
    /// All operations of clients that were forgotten completely are below this offset. An unknown client may be one of them.
    forgotten_end: Offset,
}

impl RememberedOps {
    /// Returns an empty table. It remembers at most `limit_spans` spans, 32 bytes each and of at most 256 operations, and an eighth as many
    /// clients without spans. Everything below `forgotten_end` counts as forgotten.
    pub fn new(limit_spans: usize, forgotten_end: Offset) -> Self {
        RememberedOps {
            clients: BTreeMap::new(),
            order: VecDeque::new(),
            limit_spans,
            idle: VecDeque::new(),
            forgotten_end,
        }
    }

    /// Looks up `count` operations of one client with consecutive numbers, starting at `first`. None of them is below `not_below`. Returns
    /// the answer for the first of them, and for how many from there on it holds.
    pub fn look(&mut self, first: OpId, count: u32, not_below: Offset) -> (Known, u32) {
        if first.client.0 == 0 {
            return (Known::New, count);
        }
        if let Some(recent) = self.clients.get(&first.client) {
            return recent.look(first.seq, count, not_below);
        }
        if not_below >= self.forgotten_end {
            return (Known::New, count);
        }
        // Remember this client. Otherwise, operations of other clients that are forgotten later would send it to scan again and again. Its
        // own forgotten operations are all below the current offset.
        let recent = Recent { spans: VecDeque::new(), floor: u64::MAX, forgotten_end: self.forgotten_end };
        self.clients.insert(first.client, recent);
        self.idle.push_back(first.client);
        self.forget_idle();
        (Known::Forgotten, count)
    }

    /// Remembers `count` operations with consecutive numbers at consecutive offsets.
    pub fn note(&mut self, first: OpId, offset: Offset, count: u32) {
        if first.client.0 == 0 {
            return;
        }
        let forgotten_end = self.forgotten_end;
        // The client is unknown: the caller knew that this operation was not forgotten, but the client's other operations may have been.
        let recent = self.clients.entry(first.client).or_insert_with(|| Recent {
            floor: if forgotten_end == Offset::ZERO { 0 } else { u64::MAX },
            forgotten_end,
            spans: VecDeque::new(),
        });
        if let Some(last) = recent.spans.back_mut()
            && last.end_seq() == first.seq
            && last.end() == offset
            && last.count + count <= SPAN_OPS
        {
            last.count += count;
            return;
        }
        let span = Span { seq: first.seq, offset, count };
        if recent.spans.back().is_none_or(|s| s.seq < first.seq) {
            recent.spans.push_back(span);
        } else {
            let at = recent.spans.partition_point(|s| s.seq < first.seq);
            recent.spans.insert(at, span);
        }
        self.order.push_back(first.client);
    }

    /// Records that operations of any client below this offset may be unknown.
    pub fn forgot(&mut self, below: Offset) {
        self.forgotten_end = self.forgotten_end.max(below);
        for recent in self.clients.values_mut() {
            recent.floor = if below == Offset::ZERO { recent.floor } else { u64::MAX };
            recent.forgotten_end = recent.forgotten_end.max(below);
        }
    }

    /// Enforces the limits: forgets the oldest spans first, and only those below `settled`.
    pub fn forget_below(&mut self, settled: Offset) {
        while self.order.len() > self.limit_spans {
            let Some(client) = self.order.front().copied() else { return };
            if let Some(recent) = self.clients.get_mut(&client) {
                if recent.spans.front().is_some_and(|span| span.end() > settled) {
                    return;
                }
                recent.forget_first();
                if recent.spans.is_empty() {
                    match mutant(mutants::X16_FLOOR) {
                        true => drop(self.clients.remove(&client)),
                        false => self.idle.push_back(client),
                    }
                }
            }
            self.order.pop_front();
        }
        self.forget_idle();
    }

    /// Enforces the limit on clients without spans. An operation in flight has a span, so its client stays.
    fn forget_idle(&mut self) {
        let limit = (self.limit_spans / SPANS_PER_IDLE_CLIENT).max(1);
        while self.idle.len() > limit {
            let Some(client) = self.idle.pop_front() else { return };
            if let Some(recent) = self.clients.get(&client).filter(|r| r.spans.is_empty()) {
                self.forgotten_end = self.forgotten_end.max(recent.forgotten_end);
                self.clients.remove(&client);
            }
        }
    }

    /// Returns the number of spans that are remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns whether no span is remembered.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(client: u64, seq: u64) -> OpId {
        OpId { client: ClientId(client), seq }
    }

    /// Looks up operations for a caller that states no lower bound.
    fn look(d: &mut RememberedOps, op: OpId, count: u32) -> (Known, u32) {
        d.look(op, count, Offset::ZERO)
    }

    #[test]
    fn retries_get_their_first_place_and_gaps_are_new() {
        let mut d = RememberedOps::new(100, Offset::ZERO);
        d.note(op(1, 1), Offset(10), 5);
        d.note(op(2, 1), Offset(15), 1);
        d.note(op(1, 8), Offset(16), 2);
        assert_eq!(look(&mut d, op(1, 3), 10), (Known::At(Offset(12)), 3));
        assert_eq!(look(&mut d, op(1, 6), 10), (Known::New, 2));
        assert_eq!(look(&mut d, op(1, 8), 10), (Known::At(Offset(16)), 2));
        assert_eq!(look(&mut d, op(1, 10), 10), (Known::New, 10));
        assert_eq!(look(&mut d, op(3, 1), 1), (Known::New, 1));
        d.note(op(1, 6), Offset(30), 2);
        assert_eq!(look(&mut d, op(1, 7), 1), (Known::At(Offset(31)), 1));
    }

    #[test]
    fn the_forgotten_is_not_taken_for_new() {
        let mut d = RememberedOps::new(2, Offset::ZERO);
        for i in 0..4 {
            d.note(op(1, 1 + i * 300), Offset(i * 300), 256);
        }
        d.forget_below(Offset(100));
        assert_eq!(d.len(), 4, "what is in flight stays");
        d.forget_below(Offset(10_000));
        assert_eq!(d.len(), 2);
        assert_eq!(look(&mut d, op(1, 5), 1).0, Known::Forgotten);
        assert_eq!(look(&mut d, op(1, 601), 1).0, Known::At(Offset(600)));
        assert_eq!(look(&mut d, op(1, 2000), 1).0, Known::New);
    }

    #[test]
    fn a_client_without_spans_keeps_its_floor() {
        let mut d = RememberedOps::new(2, Offset::ZERO);
        for n in 0..3 {
            d.note(op(1 + n, 1), Offset(10 * n), 4);
        }
        d.forget_below(Offset(100));
        assert_eq!(look(&mut d, op(1, 4), 1).0, Known::Forgotten);
        assert_eq!(look(&mut d, op(1, 4), 1).0, Known::Forgotten, "told again as long as nobody has looked");
        assert_eq!(look(&mut d, op(1, 5), 1).0, Known::New, "above the floor");
        assert_eq!(d.look(op(1, 4), 1, Offset(3)).0, Known::Forgotten, "looked for, but not far enough");
        assert_eq!(d.look(op(1, 4), 1, Offset(4)).0, Known::New, "looked for, and not found");
        assert_eq!(look(&mut d, op(9, 1), 1).0, Known::New, "no client was forgotten altogether");
    }

    #[test]
    fn a_client_that_was_forgotten_altogether_is_sent_to_scan_once() {
        let mut d = RememberedOps::new(2, Offset::ZERO);
        for n in 0..6 {
            d.note(op(1 + n, 1), Offset(10 * n), 1);
        }
        d.forget_below(Offset(100));
        // The spans of clients 5 and 6 are left, and client 4 is known without a span. The operations of the others are below 21.
        assert_eq!(look(&mut d, op(1, 1), 1).0, Known::Forgotten, "the first number, too");
        assert_eq!(look(&mut d, op(1, 1), 1).0, Known::Forgotten, "until somebody has looked");
        assert_eq!(d.look(op(1, 1), 1, Offset(31)).0, Known::New);
        d.note(op(1, 1), Offset(100), 1);
        d.note(op(1, 7), Offset(101), 1);
        assert_eq!(look(&mut d, op(1, 1), 1).0, Known::At(Offset(100)));
        assert_eq!(look(&mut d, op(1, 3), 1).0, Known::Forgotten, "it may be of the client's first time");
        assert_eq!(d.look(op(1, 3), 1, Offset(31)).0, Known::New);
        assert_eq!(d.look(op(77, 1), 1, Offset(31)).0, Known::New, "of a client that began later");
    }

    #[test]
    fn memory_is_bounded_whoever_asks() {
        let mut d = RememberedOps::new(16, Offset(1000));
        for client in 1..10_000 {
            assert_eq!(look(&mut d, op(client, 1), 1).0, Known::Forgotten);
        }
        assert!(d.clients.len() <= 2 && d.idle.len() <= 2);
        for client in 1..10_000 {
            d.note(op(client, 1), Offset(1000 + client), 1);
            d.forget_below(Offset(1000 + client));
        }
        assert!(d.clients.len() <= 16 + 2 + 1 && d.idle.len() <= 2, "{} {}", d.clients.len(), d.idle.len());
    }
}

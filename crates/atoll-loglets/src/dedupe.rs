//! Which operations were appended lately, and where: a client's retry gets the place of its first attempt (contracts
//! X16, native §4 "Dedupe inside a segment").
//!
//! Bounded in spans of consecutive sequence numbers over all clients. What is forgotten is known to be forgotten: the
//! answer is then "scan for it", never a second copy. Operations in flight are never forgotten.

use std::collections::{BTreeMap, VecDeque};

use atoll_log::{ClientId, Offset, OpId};

/// Longest span: forgetting takes whole spans, so a long one would take fresh numbers along with old ones.
const SPAN_OPS: u32 = 256;

/// What is known of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was never here.
    New,
    /// It is here.
    At(Offset),
    /// It may have been here, and was forgotten.
    Forgotten,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    seq: u64,
    offset: Offset,
    count: u32,
}

#[derive(Debug, Default)]
struct Recent {
    /// By sequence number; they do not overlap.
    spans: VecDeque<Span>,
    /// Numbers up to this one may have been forgotten.
    floor: u64,
}

/// The table.
#[derive(Debug)]
pub struct Dedupe {
    clients: BTreeMap<ClientId, Recent>,
    /// One item per span, oldest first.
    order: VecDeque<ClientId>,
    limit_spans: usize,
    /// Some client was forgotten altogether: an unknown one may be it.
    forgot_clients: bool,
}

impl Dedupe {
    /// Empty; remembers at most `limit_spans` spans, 32 bytes each, of at most 256 operations.
    pub fn new(limit_spans: usize) -> Self {
        Dedupe { clients: BTreeMap::new(), order: VecDeque::new(), limit_spans, forgot_clients: false }
    }

    /// What is known of `count` operations of one client with consecutive numbers from `first` on: the answer for the
    /// first of them, and for how many from there on it holds.
    pub fn look(&mut self, first: OpId, count: u32) -> (Known, u32) {
        if first.client.0 == 0 {
            return (Known::New, count);
        }
        let Some(recent) = self.clients.get(&first.client) else {
            if self.forgot_clients && first.seq > 1 {
                // Told once: what was in flight is never forgotten, so a scan now settles every earlier attempt, and
                // the next try is new.
                self.clients.insert(first.client, Recent::default());
                return (Known::Forgotten, count);
            }
            return (Known::New, count);
        };
        if first.seq <= recent.floor {
            return (Known::Forgotten, count);
        }
        if recent.spans.back().is_none_or(|s| s.seq + u64::from(s.count) <= first.seq) {
            return (Known::New, count);
        }
        let next = recent.spans.partition_point(|s| s.seq <= first.seq);
        if let Some(span) = next.checked_sub(1).and_then(|i| recent.spans.get(i)) {
            let into = first.seq - span.seq;
            if into < u64::from(span.count) {
                let left = (u64::from(span.count) - into) as u32;
                return (Known::At(span.offset.plus(into)), left.min(count));
            }
        }
        let until = recent.spans.get(next).map_or(u64::from(count), |s| s.seq - first.seq);
        (Known::New, until.min(count.into()) as u32)
    }

    /// Remembers `count` operations with consecutive numbers at consecutive offsets.
    pub fn note(&mut self, first: OpId, offset: Offset, count: u32) {
        if first.client.0 == 0 {
            return;
        }
        let recent = self.clients.entry(first.client).or_default();
        if let Some(last) = recent.spans.back_mut()
            && last.seq + u64::from(last.count) == first.seq
            && last.offset.plus(last.count.into()) == offset
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

    /// Keeps to the bound, forgetting oldest spans below `settled` first.
    pub fn forget_below(&mut self, settled: Offset) {
        while self.order.len() > self.limit_spans {
            let Some(client) = self.order.front().copied() else { return };
            if let Some(recent) = self.clients.get_mut(&client) {
                match recent.spans.front() {
                    Some(span) if span.offset.plus(span.count.into()) > settled => return,
                    Some(span) => {
                        recent.floor = recent.floor.max(span.seq + u64::from(span.count) - 1);
                        recent.spans.pop_front();
                    }
                    None => {}
                }
                if recent.spans.is_empty() {
                    self.clients.remove(&client);
                    self.forgot_clients = true;
                }
            }
            self.order.pop_front();
        }
    }

    /// Spans remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True if nothing is remembered.
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

    #[test]
    fn retries_get_their_first_place_and_gaps_are_new() {
        let mut d = Dedupe::new(100);
        d.note(op(1, 1), Offset(10), 5);
        d.note(op(2, 1), Offset(15), 1);
        d.note(op(1, 8), Offset(16), 2);
        assert_eq!(d.look(op(1, 3), 10), (Known::At(Offset(12)), 3));
        assert_eq!(d.look(op(1, 6), 10), (Known::New, 2));
        assert_eq!(d.look(op(1, 8), 10), (Known::At(Offset(16)), 2));
        assert_eq!(d.look(op(1, 10), 10), (Known::New, 10));
        assert_eq!(d.look(op(3, 1), 1), (Known::New, 1));
        d.note(op(1, 6), Offset(30), 2);
        assert_eq!(d.look(op(1, 7), 1), (Known::At(Offset(31)), 1));
    }

    #[test]
    fn the_forgotten_is_not_taken_for_new() {
        let mut d = Dedupe::new(2);
        for i in 0..4 {
            d.note(op(1, 1 + i * 300), Offset(i * 300), 256);
        }
        d.forget_below(Offset(100));
        assert_eq!(d.len(), 4, "what is in flight stays");
        d.forget_below(Offset(10_000));
        assert_eq!(d.len(), 2);
        assert_eq!(d.look(op(1, 5), 1).0, Known::Forgotten);
        assert_eq!(d.look(op(1, 601), 1).0, Known::At(Offset(600)));
        // A client that is forgotten altogether is told so once.
        d.note(op(2, 1), Offset(5000), 1);
        d.note(op(2, 3), Offset(5002), 1);
        d.note(op(2, 5), Offset(5004), 1);
        d.forget_below(Offset(10_000));
        assert_eq!(d.look(op(1, 700), 1).0, Known::Forgotten);
        assert_eq!(d.look(op(1, 700), 1).0, Known::New);
    }
}

//! What a handle knows of its log: the messages from some sequence on, without a gap. All of it stays true: the log only grows.

use std::collections::BTreeMap;

use atoll_contract::{Offset, Unavailability};
use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};
use atoll_loglet_store::plan;
use atoll_loglet_store::remembered_ops::RememberedOps;

use crate::invariants;
use crate::layout::{Body, Damaged, Entries, Message};
use crate::mutants;
use crate::service::Fault;

/// How many messages a handle remembers the offsets of. Others are found by bisection.
const MAX_SPANS: usize = 4096;

/// Why a step of an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// The loglet was deleted.
    #[error("the loglet is deleted")]
    Gone,
    #[error(transparent)]
    Service(Fault),
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        match fault {
            // A stream is there before a chain names it, so a stream that is missing was deleted (service-S6).
            Fault::Missing => Trouble::Gone,
            other => Trouble::Service(other),
        }
    }
}

impl Trouble {
    /// Returns whether the same may succeed soon.
    pub(crate) fn passes(&self) -> bool {
        matches!(self, Trouble::Service(fault) if fault.passes())
    }

    /// Returns what callers of the loglet learn.
    pub(crate) fn unavailability(&self) -> Unavailability {
        match self {
            Trouble::Service(Fault::Busy | Fault::Refused) => Unavailability::Busy,
            Trouble::Service(Fault::NotReached | Fault::NoAnswer) => Unavailability::NoQuorum,
            Trouble::Service(_) | Trouble::Gone | Trouble::Damaged(_) => Unavailability::StorageFailed,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Known {
    /// All messages of the log from this sequence on are known.
    pub(crate) since: u64,
    /// ... up to this one. It need not be a message of the log, nor exist.
    pub(crate) upto: u64,
    /// The newest message of the log.
    pub(crate) last: u64,
    /// The newest message of entries: it says what is below it.
    pub(crate) last_entries: u64,
    /// The offset behind the last entry.
    pub(crate) next: Offset,
    /// Offsets below this one are given up.
    pub(crate) trim: Offset,
    pub(crate) sealed: bool,
    /// The operations that are known to be in the log.
    pub(crate) ops: RememberedOps,
    op_spans: usize,
    /// Until when this handle lets others go first, because one of them has appended lately.
    pub(crate) crowded_until: Tick,
    /// The nonce of the newest message of entries of this handle that was read.
    pub(crate) own: Option<u64>,
    /// The sequences and the ends of messages of entries, by their first offset.
    spans: BTreeMap<Offset, (u64, Offset)>,
}

impl Known {
    /// Begins to know the log with a message of entries.
    pub(crate) fn begin(seq: u64, entries: &Entries, op_spans: usize) -> Self {
        let mut known = Known {
            since: seq,
            upto: seq,
            last: seq,
            last_entries: seq,
            next: entries.first,
            trim: entries.trim,
            sealed: false,
            ops: RememberedOps::new(op_spans, entries.first),
            op_spans,
            crowded_until: Tick(0),
            own: None,
            spans: BTreeMap::new(),
        };
        known.add(seq, entries);
        known
    }

    fn add(&mut self, seq: u64, entries: &Entries) {
        invariants::grows(self.next, entries.end());
        self.saw_span(seq, entries);
        if let Some(batch) = &entries.batch
            && !mutant(mutants::SERVICE_IGNORES_OTHERS)
        {
            plan::note(&mut self.ops, [batch], entries.first);
            self.ops.forget_below(entries.end());
        }
        self.next = entries.end();
        self.trim = self.trim.max(entries.trim);
        self.last_entries = seq;
    }

    /// Learns where a message of entries is.
    pub(crate) fn saw_span(&mut self, seq: u64, entries: &Entries) {
        if entries.count() == 0 {
            return;
        }
        self.spans.insert(entries.first, (seq, entries.end()));
        if self.spans.len() > MAX_SPANS {
            self.spans.pop_first();
        }
    }

    /// Learns the next message of the log (service-S1, service-S2).
    pub(crate) fn learn(&mut self, seq: u64, message: &Message, writer: u64) -> Result<(), Damaged> {
        match &message.body {
            Body::Entries(entries) => {
                if self.sealed {
                    return Err(Damaged("there are entries behind the seal"));
                }
                if entries.previous == self.last && entries.first == self.next {
                    self.add(seq, entries);
                } else if entries.previous != self.last && entries.first >= self.next {
                    // What is between was purged, behind a trim. If it was not, its readers miss it.
                    hit("service.follow.gap");
                    let Known { trim, op_spans, crowded_until, .. } = *self;
                    let anew = Known::begin(seq, entries, op_spans);
                    *self = Known { trim: trim.max(anew.trim), crowded_until, ..anew };
                } else {
                    return Err(Damaged("it does not begin where the entries before it end"));
                }
                if message.stamp.writer == writer {
                    self.own = Some(message.stamp.nonce);
                }
            }
            Body::Seal => self.sealed = true,
            Body::Trim(to) => self.trim = self.trim.max(*to),
        }
        (self.last, self.upto) = (seq, seq);
        Ok(())
    }

    /// Returns the sequence of the message with an offset, if it is remembered.
    pub(crate) fn sequence_of(&self, offset: Offset) -> Option<u64> {
        let (_, (seq, end)) = self.spans.range(..=offset).next_back()?;
        (offset < *end).then_some(*seq)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::layout::Stamp;
    use atoll_contract::{Batch, ClientId, Entry, OpId};

    fn entries(previous: u64, first: u64, count: u64) -> Entries {
        let entry = |seq| Entry { op: OpId { client: ClientId(1), seq }, payload: "x".into() };
        let batch = (count > 0).then(|| Batch::of((first + 1..=first + count).map(entry)));
        Entries { previous, first: Offset(first), trim: Offset::ZERO, batch }
    }

    fn message(body: Body) -> Message {
        Message { stamp: Stamp { writer: 7, nonce: 3 }, body }
    }

    fn known() -> Known {
        let mut known = Known::begin(1, &entries(0, 0, 0), 100);
        known.learn(2, &message(Body::Entries(entries(1, 0, 3))), 8).unwrap();
        known.learn(5, &message(Body::Trim(Offset(2))), 8).unwrap();
        known
    }

    #[test]
    fn a_log_grows_message_by_message() {
        let mut known = known();
        assert_eq!((known.next, known.trim, known.last, known.last_entries), (Offset(3), Offset(2), 5, 2));
        assert_eq!([0, 2, 3].map(|o| known.sequence_of(Offset(o))), [Some(2), Some(2), None]);
        assert_eq!(known.own, None);
        known.learn(6, &message(Body::Entries(entries(5, 3, 1))), 7).unwrap();
        assert_eq!((known.next, known.own), (Offset(4), Some(3)));
        known.learn(9, &message(Body::Seal), 8).unwrap();
        assert!(known.sealed);
    }

    #[test]
    fn a_log_that_was_purged_goes_on_behind_it() {
        let mut known = known();
        known.learn(90, &message(Body::Entries(entries(80, 50, 2))), 8).unwrap();
        assert_eq!((known.since, known.next, known.trim), (90, Offset(52), Offset(2)));
        assert_eq!(known.sequence_of(Offset(1)), None);
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        let wrong = [entries(2, 2, 1), entries(5, 4, 1), entries(5, 2, 1)];
        for body in wrong.map(Body::Entries) {
            assert!(known().learn(6, &message(body.clone()), 8).is_err(), "{body:?}");
        }
        let mut sealed = known();
        sealed.learn(6, &message(Body::Seal), 8).unwrap();
        assert!(sealed.learn(7, &message(Body::Entries(entries(6, 3, 1))), 8).is_err());
    }
}

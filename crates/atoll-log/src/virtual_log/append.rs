//! Submissions: the records that a caller submits together, and the answer that it waits for.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use atoll_core::testing::mutant;
use atoll_core::{Completer, Ticket, ticket};

use crate::mutants;

use super::{Busy, LogAppendError, LogError, Shared};
use atoll_contract::entry::{ClientId, ENTRY_HEADER_BYTES, MAX_ENTRY_BYTES, OpId};
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

/// Approximate memory that a record takes besides its payload, in bytes.
pub(super) const ITEM_BYTES: usize = ENTRY_HEADER_BYTES + 80;

/// A record to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its name. Records of client 0 are not deduplicated: after a failure they may be in the log twice.
    pub op: OpId,
    /// For a record that was already sent, through this node or another: a tail that was known before the first attempt. The log is
    /// searched from there before the record is appended (X16). None: this is the first attempt.
    pub floor: Option<LogPos>,
    /// The user's bytes.
    pub payload: Bytes,
}

#[derive(Debug)]
struct Answer {
    positions: Vec<LogPos>,
    left: usize,
    /// Whether some record is in the log, so that "none was appended" would be false.
    touched: bool,
    done: Option<Completer<Result<Vec<LogPos>, LogAppendError>>>,
}

/// One submission: records that are appended together and share an answer.
#[derive(Debug)]
pub(super) struct Submission(Mutex<Answer>);

impl Submission {
    fn settle(&self, index: usize, at: LogPos) {
        let done = {
            let mut a = lock(&self.0);
            a.positions[index] = at;
            a.touched = true;
            a.left -= 1;
            if a.left > 0 {
                return;
            }
            a.done.take().map(|done| (done, std::mem::take(&mut a.positions)))
        };
        if let Some((done, positions)) = done {
            done.complete(Ok(positions));
        }
    }

    fn fail(&self, why: LogAppendError) {
        let done = {
            let mut a = lock(&self.0);
            a.left -= 1;
            let touched = a.touched;
            a.done.take().map(|done| (done, touched))
        };
        if let Some((done, touched)) = done {
            done.complete(Err(match why {
                LogAppendError::NotAppended(e) if touched => LogAppendError::Unknown(e),
                other => other,
            }));
        }
    }

    fn is_abandoned(&self) -> bool {
        lock(&self.0).done.as_ref().is_none_or(Completer::is_abandoned)
    }
}

/// A record that is being appended.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) op: OpId,
    pub(super) payload: Bytes,
    /// No copy of the record is below this position; an attempt, by this node or another, may have put one here or above. None: unknown,
    /// and this node does not know of any attempt.
    pub(super) since: Option<LogPos>,
    /// The log must be searched from `since` before this node sends the record.
    pub(super) seek: bool,
    /// The record was sent before, through another node or in another life of its client.
    foreign: bool,
    /// The record is an outside client's, which may send it through another node while it waits here.
    pub(super) outside: bool,
    /// Later records of the client must not precede this one, even where the Loglet does not keep order (X15).
    ordered: bool,
    /// A later record of the client was sent before this one: it follows, whether anybody waits for it or not (X15).
    pub(super) bound: bool,
    /// Number of attempts by this node that may be in the log.
    tries: u32,
    index: usize,
    submission: Arc<Submission>,
}

impl Item {
    pub(super) fn size_bytes(&self) -> usize {
        self.payload.len() + ITEM_BYTES
    }

    pub(super) fn settle(self, at: LogPos) {
        self.submission.settle(self.index, at);
    }

    pub(super) fn fail(self, why: LogAppendError) {
        self.submission.fail(why);
    }

    /// Records that this node sends the record, to be placed at `floor` or above.
    pub(super) fn sent(&mut self, floor: LogPos) {
        self.since.get_or_insert(floor);
        self.tries = self.tries.saturating_add(1);
    }

    /// Records that the last attempt did not happen.
    pub(super) fn not_sent(&mut self) {
        self.tries = self.tries.saturating_sub(1);
    }

    /// Records that no copy is or will be below `end`.
    pub(super) fn not_below(&mut self, end: LogPos) {
        if self.since.is_some_and(|s| s < end) {
            self.since = Some(end);
        }
    }

    /// Returns a position below which there is no copy. None for a record of client 0, which is never searched for.
    pub(super) fn not_anywhere_below(&self) -> Option<LogPos> {
        self.since.filter(|_| self.op.client.0 != 0)
    }

    /// Returns true if the log must be searched up to `end` before the record is sent to a segment that starts there: another attempt may
    /// have put it below `end`, and that segment's Loglet does not know of it. Records of client 0 are never searched for.
    pub(super) fn may_be_below(&self, end: LogPos) -> bool {
        self.op.client.0 != 0 && self.since.is_some_and(|s| s < end)
    }

    /// Returns the client whose other records must not be in flight together with this one, if the Loglet does not keep order.
    pub(super) fn goes_alone(&self) -> Option<ClientId> {
        self.ordered.then_some(self.op.client)
    }

    /// Returns true if some attempt may be in the log.
    pub(super) fn is_doubtful(&self) -> bool {
        self.tries > 0 || self.foreign
    }

    /// Returns true if an attempt by this node may be in the log.
    pub(super) fn was_sent(&self) -> bool {
        self.tries > 0
    }

    /// Returns true if its submitter is gone, it was never sent, and no later record of its client was, so that it may be left out.
    pub(super) fn may_go(&self) -> bool {
        !self.bound && !self.was_sent() && self.submission.is_abandoned()
    }
}

impl Shared {
    #[allow(clippy::type_complexity)]
    pub(super) fn submit(
        self: &Arc<Self>,
        records: Vec<LogRecord>,
        known: Option<LogPos>,
        in_order: bool,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        if let Some(long) = records.iter().map(|r| r.payload.len()).find(|n| *n > MAX_ENTRY_BYTES) {
            return Ok(Ticket::ready(Err(LogAppendError::TooLarge(long))));
        }
        if records.is_empty() {
            return Ok(Ticket::ready(Ok(Vec::new())));
        }
        let bytes = records.iter().map(|r| r.payload.len() + ITEM_BYTES).sum();
        self.lane.reserve(records.len(), bytes, &self.budget)?;
        let (done, wait) = ticket();
        let n = records.len();
        let positions = vec![LogPos::ZERO; n];
        let submission =
            Arc::new(Submission(Mutex::new(Answer { positions, left: n, touched: false, done: Some(done) })));
        let (tail, active_start) = self.arrival().unzip();
        // The X16 mutant treats a first attempt as if it was made when it arrives.
        let floor = known.filter(|_| !mutant(mutants::X16)).or(tail);
        let items = records.into_iter().enumerate().map(|(index, r)| {
            let (mut op, payload, submission) = (r.op, r.payload, submission.clone());
            // Duplicates of the log's own records are harmless, and their names carry no information. But only Loglets append pads.
            let named = op.client.0 != 0;
            if op.is_pad() {
                op.seq = 1;
            }
            let foreign = r.floor.is_some() && named;
            let since = if foreign { r.floor } else { floor };
            // A record whose client knows only an old tail would have to be searched for in the lane, and every other record behind it.
            let seek = foreign || (named && active_start.is_some_and(|start| since < Some(start)));
            let outside = known.is_some() && named;
            let (ordered, bound) = (in_order && named, false);
            Item { op, payload, since, seek, foreign, outside, ordered, bound, tries: 0, index, submission }
        });
        self.enqueue(items.collect());
        Ok(wait)
    }

    /// Returns a position below which a record that is submitted for the first time now, by any client, cannot be, and the start of the
    /// active segment. The position is the tail or, if nothing was seen of the active segment, the start of that segment: a tail of an
    /// older segment may be far back, and a search from there would take long.
    fn arrival(&self) -> Option<(LogPos, LogPos)> {
        let state = lock(&self.state);
        let active = state.chain.as_ref()?.chain.active();
        let has_seen = state.known.seen_in == Some(active.loglet);
        Some((if has_seen { state.known.tail } else { active.start }, active.start))
    }

    /// Returns the answer to an append when the log cannot be used at all: unknown if an attempt may be in the log.
    pub(super) fn refusal(item: &Item, why: LogError) -> LogAppendError {
        if item.is_doubtful() { LogAppendError::Unknown(why) } else { LogAppendError::NotAppended(why) }
    }
}

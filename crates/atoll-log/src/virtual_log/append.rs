//! Submissions: what a caller hands in as one, and the answer that it waits for.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use atoll_core::testing::mutant;
use atoll_core::{Completer, Ticket, ticket};

use crate::mutants;

use super::{Busy, LogAppendError, LogError, Shared};
use atoll_contract::entry::{ENTRY_HEADER_BYTES, MAX_ENTRY_BYTES, OpId};
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

/// Memory that a record takes besides its payload, about.
const ITEM_BYTES: usize = ENTRY_HEADER_BYTES + 80;

/// A record to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its name. Records of client 0 are not deduplicated: after trouble they may be in the log twice.
    pub op: OpId,
    /// For a record that was sent before, through this node or another: the tail known at the first attempt. The log is looked
    /// through from there before it is appended (X16). None: this is the first attempt.
    pub floor: Option<LogPos>,
    /// The user's bytes.
    pub payload: Bytes,
}

#[derive(Debug)]
struct Answer {
    positions: Vec<LogPos>,
    left: usize,
    /// Some record is in the log: "none was appended" is not true any more.
    touched: bool,
    done: Option<Completer<Result<Vec<LogPos>, LogAppendError>>>,
}

/// One submission.
#[derive(Debug)]
pub(super) struct Group(Mutex<Answer>);

impl Group {
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

/// A record on its way.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) op: OpId,
    pub(super) payload: Bytes,
    /// No copy of it is below; an attempt, of this node or another, may have put one here or above. None: not known, and this
    /// node was not told of any attempt.
    pub(super) since: Option<LogPos>,
    /// The log must be looked through from `since` before it is sent from here.
    pub(super) seek: bool,
    /// It was sent through another node, or in another life of its client, before.
    foreign: bool,
    /// Attempts of this node that may be in the log.
    tries: u32,
    index: usize,
    group: Arc<Group>,
}

impl Item {
    pub(super) fn size_bytes(&self) -> usize {
        self.payload.len() + ITEM_BYTES
    }

    pub(super) fn settle(self, at: LogPos) {
        self.group.settle(self.index, at);
    }

    pub(super) fn fail(self, why: LogAppendError) {
        self.group.fail(why);
    }

    /// Notes that the record leaves this node, for a place at `floor` or above.
    pub(super) fn sent(&mut self, floor: LogPos) {
        self.since.get_or_insert(floor);
        self.tries = self.tries.saturating_add(1);
    }

    /// Notes that the last attempt did not happen.
    pub(super) fn not_sent(&mut self) {
        self.tries = self.tries.saturating_sub(1);
    }

    /// Notes that no copy of it is below `end`, and none will be.
    pub(super) fn not_below(&mut self, end: LogPos) {
        if self.since.is_some_and(|s| s < end) {
            self.since = Some(end);
        }
    }

    /// No copy of it is below this. None of a record of client 0: nobody asks where it is.
    pub(super) fn not_anywhere_below(&self) -> Option<LogPos> {
        self.since.filter(|_| self.op.client.0 != 0)
    }

    /// True if the log must be looked through up to `end` before it is sent to a segment that starts there: another attempt
    /// may have put it below, and that segment's Loglet knows nothing of it. Records of client 0 are never looked for.
    pub(super) fn may_be_below(&self, end: LogPos) -> bool {
        self.op.client.0 != 0 && self.since.is_some_and(|s| s < end)
    }

    /// True if some attempt may be in the log.
    pub(super) fn is_doubtful(&self) -> bool {
        self.tries > 0 || self.foreign
    }

    /// True if nobody waits for it and it was never sent: it may be left out.
    pub(super) fn may_go(&self) -> bool {
        self.tries == 0 && self.group.is_abandoned()
    }
}

impl Shared {
    #[allow(clippy::type_complexity)]
    pub(super) fn submit(
        self: &Arc<Self>,
        records: Vec<LogRecord>,
        known: Option<LogPos>,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        if let Some(long) = records.iter().map(|r| r.payload.len()).find(|n| *n > MAX_ENTRY_BYTES) {
            return Ok(Ticket::ready(Err(LogAppendError::TooLarge(long))));
        }
        if records.is_empty() {
            return Ok(Ticket::ready(Ok(Vec::new())));
        }
        let bytes = records.iter().map(|r| r.payload.len() + ITEM_BYTES).sum();
        self.lane.reserve(bytes, self.options.lane_window_bytes, &self.budget)?;
        let (done, wait) = ticket();
        let n = records.len();
        let positions = vec![LogPos::ZERO; n];
        let group =
            Arc::new(Group(Mutex::new(Answer { positions, left: n, touched: false, done: Some(done) })));
        // X16's mutant: a first attempt is taken to be of the moment at which it arrives.
        let floor = known.filter(|_| !mutant(mutants::X16)).or_else(|| self.floor());
        let items = records.into_iter().enumerate().map(|(index, r)| {
            // Copies of the log's own records are no harm, and their names say nothing.
            let foreign = r.floor.is_some() && r.op.client.0 != 0;
            let since = if foreign { r.floor } else { floor };
            let group = group.clone();
            Item { op: r.op, payload: r.payload, since, seek: foreign, foreign, tries: 0, index, group }
        });
        self.enqueue(items.collect());
        Ok(wait)
    }

    /// What is handed in now for the first time by anybody cannot be in the log below this: the tail, or, while nothing was seen of
    /// the active segment, that segment's start. A tail of an older one may lie far back, and a look from there would take long.
    fn floor(&self) -> Option<LogPos> {
        let chain = self.cached()?;
        let active = chain.chain.active();
        Some(self.seen_in(active.loglet).unwrap_or(active.start))
    }

    /// What an append becomes when the log cannot be used at all.
    pub(super) fn refusal(item: &Item, why: LogError) -> LogAppendError {
        if item.is_doubtful() { LogAppendError::Unknown(why) } else { LogAppendError::NotAppended(why) }
    }
}

//! Submissions: what a caller hands in as one, and the answer that it waits for.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use atoll_core::{Completer, Ticket, ticket};

use super::{Busy, LogAppendError, LogError, Shared};
use crate::bell::lock;
use crate::entry::{ENTRY_HEADER_BYTES, MAX_ENTRY_BYTES, OpId};
use crate::position::LogPos;

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
    /// An attempt may be in the log, at this position or above. None: nothing of it can be in the log.
    pub(super) since: Option<LogPos>,
    /// The log must be looked through from `since` before it is sent from here.
    pub(super) seek: bool,
    /// Attempts that may be in the log, those of other nodes counted as one.
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

    /// Notes that the record leaves this node: from now on it may be in the log at `floor` or above.
    pub(super) fn sent(&mut self, floor: LogPos) {
        self.since = Some(self.since.map_or(floor, |s| s.min(floor)));
        self.tries = self.tries.saturating_add(1);
    }

    /// Notes that the last attempt did not happen.
    pub(super) fn not_sent(&mut self) {
        self.tries = self.tries.saturating_sub(1);
        if self.tries == 0 {
            self.since = None;
        }
    }

    /// Notes that nothing of it is in the log, nor will be unless it is sent again.
    pub(super) fn clear(&mut self) {
        (self.since, self.tries) = (None, 0);
    }

    /// True if nobody waits for it and it was never sent: it may be left out.
    pub(super) fn may_go(&self) -> bool {
        self.since.is_none() && self.group.is_abandoned()
    }
}

impl Shared {
    #[allow(clippy::type_complexity)]
    pub(super) fn submit(
        self: &Arc<Self>,
        records: Vec<LogRecord>,
    ) -> Result<Ticket<Result<Vec<LogPos>, LogAppendError>>, Busy> {
        if let Some(long) = records.iter().map(|r| r.payload.len()).find(|n| *n > MAX_ENTRY_BYTES) {
            return Ok(Ticket::ready(Err(LogAppendError::TooLarge(long))));
        }
        if records.is_empty() {
            return Ok(Ticket::ready(Ok(Vec::new())));
        }
        let bytes = records.iter().map(|r| r.payload.len() + ITEM_BYTES).sum();
        self.lane.reserve(bytes, self.options.lane_window_bytes)?;
        let (done, wait) = ticket();
        let n = records.len();
        let positions = vec![LogPos::ZERO; n];
        let group =
            Arc::new(Group(Mutex::new(Answer { positions, left: n, touched: false, done: Some(done) })));
        let items = records.into_iter().enumerate().map(|(index, r)| {
            // Copies of the log's own records are no harm, and their names say nothing.
            let seek = r.floor.is_some() && r.op.client.0 != 0;
            let since = r.floor.filter(|_| seek);
            Item {
                op: r.op,
                payload: r.payload,
                since,
                seek,
                tries: seek.into(),
                index,
                group: group.clone(),
            }
        });
        self.enqueue(items.collect());
        Ok(wait)
    }

    /// What an append becomes when the log cannot be used at all.
    pub(super) fn refusal(item: &Item, why: LogError) -> LogAppendError {
        if item.since.is_some() { LogAppendError::Unknown(why) } else { LogAppendError::NotAppended(why) }
    }
}

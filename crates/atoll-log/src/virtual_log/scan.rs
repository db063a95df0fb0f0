//! Searching the log for records that may already be in it (vlog-V2, X16): after a seal, and for a client's retry through another node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::testing::hit;

use super::append::Item;
use super::{LogAppendError, LogError, LogReadError, Shared};
use atoll_contract::entry::{ClientId, OpId};
use atoll_contract::loglet::ReadFrom;
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

/// Bytes per read of a scan.
const PAGE_BYTES: usize = 1024 * 1024;
/// Attempts to read the first entry without a good copy. Each of the entries right after it gets one attempt.
const DAMAGED_ATTEMPTS: u32 = 5;
/// First pause after a failed read.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest such pause.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Clients whose retries are being searched for in the log. Their later submissions wait behind these, in order. Bounded by the lane's
/// window.
#[derive(Debug, Default)]
pub(super) struct Parking(Mutex<Parked>);

#[derive(Debug, Default)]
struct Parked {
    clients: BTreeMap<ClientId, VecDeque<Item>>,
    running: bool,
}

/// Returns the position after an unreadable one, or the start of the log if there is none.
fn after(damaged: &Option<(LogPos, String)>) -> LogPos {
    damaged.as_ref().map_or(LogPos::ZERO, |(at, _)| at.plus(1))
}

impl Shared {
    /// Parks the records that need a search of the log, or must wait behind one that does, and moves the others to `pass`. Returns true if
    /// the caller must start a search.
    pub(super) fn park(&self, items: Vec<Item>, pass: &mut Vec<Item>) -> bool {
        let mut parked = lock(&self.parking.0);
        if parked.clients.is_empty() && !items.iter().any(|i| i.seek) {
            *pass = items;
            return false;
        }
        for item in items {
            if item.seek || parked.clients.contains_key(&item.op.client) {
                parked.clients.entry(item.op.client).or_default().push_back(item);
            } else {
                pass.push(item);
            }
        }
        let start = !parked.running && !parked.clients.is_empty();
        parked.running |= start;
        start
    }

    /// Searches for parked retries until none is left. Retries that are not in the log go to the lane.
    pub(super) async fn unpark(self: Arc<Self>) {
        let mut pause = PAUSE;
        loop {
            let mut sought: Vec<Item> = Vec::new();
            {
                let mut parked = lock(&self.parking.0);
                if parked.clients.is_empty() {
                    parked.running = false;
                    return;
                }
                for items in parked.clients.values_mut() {
                    sought.extend(std::mem::take(items));
                }
            }
            // The check begins after the retry arrived, so everything that was acknowledged to its client before is below the tail.
            let round = self.check();
            let done = match self.checked(round).await {
                Ok(checked) => {
                    hit("vlog.append.sought");
                    self.settle_found(&mut sought, checked.tail).await;
                    for item in &mut sought {
                        item.seek = false;
                    }
                    true
                }
                Err(LogError::Unavailable(_)) => false,
                Err(e) => {
                    for item in sought.drain(..) {
                        self.drop_item(item, e.clone());
                    }
                    true
                }
            };
            self.put_back(sought, done);
            if done {
                pause = PAUSE;
            } else {
                self.env.sleep(self.env.jitter(pause)).await;
                pause = MAX_PAUSE.min(pause * 2);
            }
        }
    }

    /// Sends parked records on to the lane (`done`), or puts them back in front of records that arrived meanwhile.
    fn put_back(self: &Arc<Self>, sought: Vec<Item>, done: bool) {
        let mut ready = Vec::new();
        {
            let mut parked = lock(&self.parking.0);
            if done {
                ready = sought;
                // Records that arrived meanwhile follow in order, up to the next retry that needs a search.
                for items in parked.clients.values_mut() {
                    let until = items.iter().position(|i| i.seek).unwrap_or(items.len());
                    ready.extend(items.drain(..until));
                }
                // A client that waits for nothing any more has no place here: its next record, which another thread may submit as soon as
                // the lock is released, goes to the lane itself.
                parked.clients.retain(|_, items| !items.is_empty());
            } else {
                for item in sought.into_iter().rev() {
                    parked.clients.entry(item.op.client).or_default().push_front(item);
                }
            }
            // Push under the lock: no newer record of these clients may enter the lane before the parked ones.
            self.lane.push(ready);
        }
        self.start_lane();
    }

    /// Searches `[since, end)` for records and settles those found; the others are not below `end`. Everything below `end` must be
    /// decided: `end` is a stop or a tail. The search has no time limit, and repeats reads until they succeed. A record that may have been
    /// trimmed fails as trimmed, and one that may be at a position without a readable copy fails as damaged.
    pub(super) async fn settle_found(self: &Arc<Self>, items: &mut Vec<Item>, end: LogPos) {
        let sought = |i: &Item| i.may_be_below(end);
        let Some(start) = items.iter().filter(|i| sought(i)).filter_map(|i| i.since).min() else { return };
        let mut left: BTreeMap<OpId, LogPos> =
            items.iter().filter(|i| sought(i)).map(|i| (i.op, LogPos(u64::MAX))).collect();
        let mut unseen = left.len();
        let (mut at, mut trimmed, mut pause) = (start, LogPos::ZERO, PAUSE);
        let (mut damaged, mut failures): (Option<(LogPos, String)>, u32) = (None, 0);
        while at < end && unseen > 0 {
            // After a failure, read one entry at a time, so that a damaged entry hides no other.
            let to = if failures == 0 { end } else { at.plus(1) };
            match self.read(at..to, PAGE_BYTES, ReadFrom::Anywhere).await {
                Ok(read) => {
                    (pause, failures) = (PAUSE, 0);
                    for (i, entry) in read.entries.iter().enumerate() {
                        if let Some(slot) = left.get_mut(&entry.op)
                            && slot.0 == u64::MAX
                        {
                            *slot = at.plus(i as u64);
                            unseen -= 1;
                        }
                    }
                    at = read.next();
                }
                Err(LogReadError::Trimmed(to)) => {
                    hit("vlog.scan.trimmed");
                    trimmed = trimmed.max(to);
                    at = at.max(to);
                }
                // The outcome can never be determined.
                Err(LogReadError::Log(LogError::Deleted)) => {
                    hit("vlog.scan.deleted");
                    for item in items.drain(..) {
                        self.drop_item(item, LogError::Deleted);
                    }
                    return;
                }
                // No server that answers has a good copy. A server that is away may have one, but all records behind this search are
                // waiting.
                Err(LogReadError::Damaged(what)) if failures >= DAMAGED_ATTEMPTS => {
                    hit("vlog.scan.damaged");
                    damaged = Some((at, what));
                    at = at.plus(1);
                }
                Err(e) => {
                    hit("vlog.scan.again");
                    failures = if matches!(e, LogReadError::Damaged(_)) { failures + 1 } else { 0 };
                    self.env.sleep(self.env.jitter(pause)).await;
                    pause = MAX_PAUSE.min(pause * 2);
                }
            }
        }
        for mut item in std::mem::take(items) {
            match left.get(&item.op) {
                Some(found) if found.0 != u64::MAX => {
                    hit("vlog.append.found");
                    self.settle_item(item, *found);
                }
                Some(_) if item.is_doubtful() && item.since.is_some_and(|s| s < trimmed) => {
                    self.fail_item(item, LogAppendError::Trimmed(trimmed));
                }
                // The record may be at an unreadable position. `damaged` holds the last such position. A record whose search began above
                // it is at none of them.
                Some(_) if item.is_doubtful() && item.may_be_below(after(&damaged)) => {
                    if let Some((at, what)) = damaged.clone() {
                        self.fail_item(item, LogAppendError::Damaged { at, what });
                    }
                }
                _ => {
                    item.not_below(end);
                    items.push(item);
                }
            }
        }
    }
}

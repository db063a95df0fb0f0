//! Reads by global sequence number (scalog.md §6). A server that has not applied the cut that covers a number waits, because "there is no
//! such record" would be wrong.

use std::time::Duration;

use atoll_contract::{Batch, LogletId};
use atoll_core::testing::hit;
use atoll_core::{Caller, Effects, Lsn, Tick};
use atoll_loglet_store::store::ReadOutcome;
use bytes::Bytes;

use super::{StorageServer, offsets};
use crate::message::{Fetch, Fetched, Found, Outcome};

/// The longest time that a read may wait for a cut.
const MAX_PATIENCE: Duration = Duration::from_secs(30);
/// The most pieces of one answer.
const MAX_PIECES: usize = 512;

/// A read that waits for a cut.
#[derive(Debug)]
pub(super) struct Patient {
    pub caller: Caller,
    fetch: Fetch,
    until: Tick,
}

impl StorageServer {
    pub(super) fn nothing(&self, to: Caller, found: Found, upto: u64, out: &mut Effects) {
        out.reply(to, Fetched { found, upto, runs: Vec::new(), batches: Vec::new() }, Lsn::NONE);
    }

    pub(super) fn on_fetch(&mut self, now: Tick, from: Caller, m: Fetch, out: &mut Effects) {
        match self.know(now, m.loglet, &m.config, out) {
            Ok(()) => {}
            Err(Outcome::Gone {}) => return self.nothing(from, Found::Gone {}, 0, out),
            Err(Outcome::Unconfigured {}) => return self.nothing(from, Found::Unconfigured {}, 0, out),
            Err(_) => return self.nothing(from, Found::NotInShard {}, 0, out),
        }
        let Some(here) = self.here.get_mut(&m.loglet).filter(|_| from.request.is_some()) else { return };
        if m.from < here.order.base() || m.from < here.order.trim() {
            return self.answer_fetch(from, &m, out);
        }
        let patience = Duration::from_millis(m.patience_ms.into()).min(MAX_PATIENCE);
        if patience.is_zero() || here.patient.len() >= self.options.max_waits {
            return self.nothing(from, Found::Behind {}, 0, out);
        }
        hit("scalog.server.read_waits");
        let until = now.after(patience);
        let loglet = m.loglet;
        here.patient.push(Patient { caller: from, fetch: m, until });
        self.wake(loglet, until);
        // A sealed ordering log may have more than its follower has seen.
        self.start_following(loglet, out);
    }

    /// Answers the reads whose first number is covered now.
    pub(super) fn wake_readers(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let base = here.order.base();
        let (ready, patient) =
            std::mem::take(&mut here.patient).into_iter().partition(|one: &Patient| one.fetch.from < base);
        here.patient = patient;
        for one in ready {
            self.answer_fetch(one.caller, &one.fetch, out);
        }
    }

    /// Answers the reads whose time is up.
    pub(super) fn end_patience(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let (ended, patient) =
            std::mem::take(&mut here.patient).into_iter().partition(|one: &Patient| one.until <= now);
        here.patient = patient;
        let next = here.patient.iter().map(|one| one.until).min();
        for one in ended {
            self.nothing(one.caller, Found::Behind {}, 0, out);
        }
        if let Some(next) = next {
            self.wake(loglet, next);
        }
    }

    fn answer_fetch(&mut self, from: Caller, m: &Fetch, out: &mut Effects) {
        let Some(here) = self.here.get(&m.loglet) else { return };
        if m.from < here.order.trim() {
            return self.nothing(from, Found::Trimmed { to: here.order.trim() }, 0, out);
        }
        let end = m.to.min(here.order.base());
        let Some(mine) = here.shards.get(&m.shard) else {
            return self.nothing(from, Found::NotInShard {}, 0, out);
        };
        let pieces = mine.numbers.from(m.from).take_while(|piece| piece.gsn < end).take(MAX_PIECES + 1);
        let pieces: Vec<_> = pieces.map(|piece| (mine.segments[piece.segment], piece)).collect();
        let mut answer =
            Fetched { found: Found::Records {}, upto: end, runs: Vec::new(), batches: Vec::new() };
        // A reader's limit must not make an answer that no frame can carry.
        let (mut left, mut reveals) = ((m.max_bytes as usize).min(self.options.step_bytes), Lsn::NONE);
        for (index, (segment, piece)) in pieces.iter().enumerate() {
            let is_first = index == 0;
            if index == MAX_PIECES || (!is_first && !self.is_at_hand(*segment, piece.first, left)) {
                answer.upto = piece.gsn;
                break;
            }
            let count = piece.count.min(end - piece.gsn);
            let range = offsets(piece.first..piece.first + count);
            match self.store.read(from, *segment, range, left, out) {
                ReadOutcome::Ready(counts, batches, lsn) => {
                    reveals = reveals.max(lsn);
                    let mut gsn = piece.gsn;
                    for (count, batch) in counts.into_iter().zip(batches) {
                        left = left.saturating_sub(batch.len());
                        answer.runs.push((gsn, count));
                        answer.batches.push(batch);
                        gsn += u64::from(count);
                    }
                    if gsn < piece.gsn + count {
                        answer.upto = gsn;
                        break;
                    }
                }
                // The answer comes with the disk's, for this piece alone.
                ReadOutcome::Fetching if is_first => return,
                outcome if is_first => return self.nothing(from, failure(outcome), 0, out),
                _ => {
                    answer.upto = piece.gsn;
                    break;
                }
            }
        }
        out.reply(from, answer, reveals);
    }

    /// Returns whether a record can be read without the disk, and its run is not longer than this.
    fn is_at_hand(&self, segment: LogletId, place: u64, max_bytes: usize) -> bool {
        let part = self.store.loglets.get(&segment);
        let run = part.and_then(|part| part.runs.holding(atoll_contract::Offset(place)));
        run.is_some_and(|(_, run)| run.cached.is_some() && run.len_bytes as usize <= max_bytes)
    }

    /// Answers a read with what the disk returned.
    pub(super) fn fetched_for_reader(
        &mut self,
        to: Caller,
        segment: LogletId,
        first: u64,
        outcome: ReadOutcome,
        out: &mut Effects,
    ) {
        let ReadOutcome::Ready(counts, batches, reveals) = outcome else {
            return self.nothing(to, failure(outcome), 0, out);
        };
        let here = self.here.get(&segment.whole());
        let mine = here.and_then(|here| here.shards.values().find(|mine| mine.segments.contains(&segment)));
        let at = mine.and_then(|mine| {
            let index = mine.segments.iter().position(|s| *s == segment)?;
            mine.numbers.at(index, first)
        });
        let Some(piece) = at else {
            let trim = here.map_or(0, |here| here.order.trim());
            return self.nothing(to, Found::Trimmed { to: trim }, 0, out);
        };
        let (mut gsn, mut runs, mut contents): (u64, Vec<(u64, u32)>, Vec<Bytes>) =
            (piece.gsn, Vec::new(), Vec::new());
        for (count, batch) in counts.into_iter().zip(batches) {
            // A cut may end in the middle of what was read.
            let keep = u64::from(count).min(piece.end() - gsn) as usize;
            let Ok(parsed) = Batch::parse(batch) else { break };
            if keep == 0 {
                break;
            }
            contents.push(if keep == parsed.len() {
                parsed.bytes().clone()
            } else {
                parsed.slice(0, keep).bytes().clone()
            });
            runs.push((gsn, keep as u32));
            gsn += keep as u64;
        }
        out.reply(to, Fetched { found: Found::Records {}, upto: gsn, runs, batches: contents }, reveals);
    }
}

/// Returns why a read has no records.
fn failure(outcome: ReadOutcome) -> Found {
    match outcome {
        ReadOutcome::Damaged(reason) => Found::Damaged { reason },
        // It was moved or given up during the read.
        _ => Found::Busy {},
    }
}

//! Looks at addresses: what is in memory is answered at once, the rest after a read of the disk.

use bytes::Bytes;

use atoll_contract::LogletId;
use atoll_core::frame::{MAX_PAYLOAD_BYTES, MAX_PAYLOADS};
use atoll_core::testing::hit;
use atoll_core::{Caller, Decode, Effects, FetchError, Lsn, Stored};

use super::Unit;
use super::facts::CellHead;
use super::space::Spot;
use crate::message::{Look, Piece, Seen, Verdict};

/// The most pieces of one answer.
const MAX_PIECES: usize = MAX_PAYLOADS / 2;

/// A look that waits for the disk.
pub(super) struct Pending {
    caller: Caller,
    log: LogletId,
    pieces: Vec<Piece>,
    /// The contents in memory; None for those that are being read, in order.
    contents: Vec<Option<Bytes>>,
    reveals: Lsn,
}

impl Unit {
    pub(super) fn on_look(&mut self, from: Caller, m: Look, out: &mut Effects) {
        let pieces = match self.admit(m.log, &m.config, Some(m.epoch), out) {
            Ok(space) => space.pieces(m.from..m.to, MAX_PIECES),
            Err(verdict) => return self.see_nothing(from, m.log, verdict, out),
        };
        let Some(space) = self.disk.spaces.get(&m.log) else { return };
        if m.max_bytes == 0 {
            let (epoch, next) = (space.epoch, space.next());
            let seen = Seen { verdict: Verdict::Done {}, epoch, next, pieces, contents: Vec::new() };
            return out.reply(from, seen, space.staged);
        }
        let limit = (m.max_bytes as usize).min(MAX_PAYLOAD_BYTES);
        let (mut kept, mut contents, mut locs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut reveals) = (0, Lsn::NONE);
        for piece in pieces {
            let Piece::Data { first, .. } = piece else {
                // Junk and deletions may be on their way to the disk, and what is unwritten may change.
                reveals = reveals.max(space.staged);
                kept.push(piece);
                continue;
            };
            let Some(cell) = space.cells.get(&first) else { break };
            bytes += cell.len_bytes as usize;
            if bytes > limit && !contents.is_empty() {
                break;
            }
            match cell.spot {
                Spot::Staged(lsn) => reveals = reveals.max(lsn),
                Spot::At(loc) if cell.cached.is_none() => locs.push(loc),
                Spot::At(_) => {}
            }
            contents.push(cell.cached.clone());
            kept.push(piece);
        }
        let pending = Pending { caller: from, log: m.log, pieces: kept, contents, reveals };
        if locs.is_empty() {
            return self.see(pending, out);
        }
        if self.reads.len() >= self.options.max_disk_reads {
            hit("corfu.unit.reads_full");
            return self.see_nothing(from, m.log, Verdict::Busy {}, out);
        }
        hit("corfu.unit.read_disk");
        let tag = self.disk.tag();
        out.fetch(tag, locs);
        self.reads.insert(tag, pending);
    }

    fn see(&self, pending: Pending, out: &mut Effects) {
        let Some(space) = self.disk.spaces.get(&pending.log) else {
            return self.see_nothing(pending.caller, pending.log, Verdict::Gone {}, out);
        };
        let (epoch, next) = (space.epoch, space.next());
        let contents = pending.contents.into_iter().flatten().collect();
        let seen = Seen { verdict: Verdict::Done {}, epoch, next, pieces: pending.pieces, contents };
        out.reply(pending.caller, seen, pending.reveals);
    }

    fn see_nothing(&self, to: Caller, log: LogletId, verdict: Verdict, out: &mut Effects) {
        let space = self.disk.spaces.get(&log);
        let (epoch, next) = space.map_or((0, 0), |space| (space.epoch, space.next()));
        let reveals = space.map_or(Lsn::NONE, |space| space.staged);
        out.reply(to, Seen { verdict, epoch, next, pieces: Vec::new(), contents: Vec::new() }, reveals);
    }

    /// Completes a look with what was read from the disk.
    pub(super) fn finish_look(&mut self, tag: u64, got: Result<Vec<Stored>, FetchError>, out: &mut Effects) {
        let Some(mut pending) = self.reads.remove(&tag) else { return };
        let (caller, log) = (pending.caller, pending.log);
        let records = match got {
            Ok(records) => records,
            // The cells may have been deleted or moved during the read: the caller asks again.
            Err(error) if !self.still_there(&pending) => {
                hit("corfu.unit.read_moved");
                drop(error);
                return self.see_nothing(caller, log, Verdict::Busy {}, out);
            }
            Err(error) => {
                return self.see_nothing(caller, log, Verdict::Damaged { reason: error.reason }, out);
            }
        };
        let mut records = records.into_iter();
        let writes = pending.pieces.iter().filter_map(|piece| match piece {
            Piece::Data { first, token, .. } => Some((*first, *token)),
            _ => None,
        });
        for ((first, token), content) in writes.zip(&mut pending.contents) {
            if content.is_some() {
                continue;
            }
            let record = records.next().map(|stored| stored.record);
            let head = record.as_ref().and_then(|record| CellHead::from_bytes(record.head.clone()).ok());
            match (record, head) {
                (Some(record), Some(head)) if (head.log, head.first, head.token) == (log, first, token) => {
                    *content = Some(record.payload);
                }
                _ => {
                    let reason = format!("another record is where address {first} should be");
                    return self.see_nothing(caller, log, Verdict::Damaged { reason }, out);
                }
            }
        }
        self.see(pending, out);
    }

    /// Returns whether the cells that were read are still at a place that cannot be read.
    fn still_there(&self, pending: &Pending) -> bool {
        let Some(space) = self.disk.spaces.get(&pending.log) else { return false };
        pending.pieces.iter().all(|piece| match piece {
            Piece::Data { first, .. } => space.cells.contains_key(first),
            _ => true,
        })
    }
}

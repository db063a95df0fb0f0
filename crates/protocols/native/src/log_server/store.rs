//! The messages that change a copy: Store, Advance, Seal, Repair, Fill (native §4).

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Class, DecodeError, Effects, Incarnation, Lsn, Space};

use super::LogServer;
use super::loglet_copy::{Admit, LogletCopy, admit};
use crate::invariants;
use crate::message::*;
use crate::mutants;
use crate::roles::SEQUENCER;
use atoll_loglet_store::parse_counted;
use atoll_loglet_store::store::Sealing;

/// The round in an answer to a message that has none. If it happens to be the sequencer's round, the sequencer goes back for nothing, which
/// does no harm.
pub(super) const NO_ROUND: u32 = 0;

/// Returns whether a Store comes from the configured life of the sequencer. Two lives could put two payloads at one offset (native-T6).
fn from_sequencer(copy: &LogletCopy, from: Caller, life: Incarnation) -> bool {
    copy.protocol.config.sequencer == (from.node, life) || mutant(mutants::NATIVE_T6)
}

impl LogServer {
    /// Handles a Store. It is answered by the cumulative report at the end of the turn, or when the entries are durable.
    pub(super) fn on_store(&mut self, from: Caller, m: Store, out: &mut Effects) -> Result<(), DecodeError> {
        let batch = parse_counted(m.batch, m.count)?;
        let (loglet, space) = (m.loglet, out.space());
        let copy = match self.loglet_copy(loglet, &m.config, out) {
            Ok(copy) => copy,
            Err(verdict) => {
                self.post_stranger(from, loglet, m.round, verdict, out);
                return Ok(());
            }
        };
        if !from_sequencer(copy, from, m.life) {
            hit("native.server.wrong_sequencer");
            self.post_stranger(from, loglet, m.round, Verdict::WrongSequencer {}, out);
            return Ok(());
        }
        copy.protocol.round = m.round;
        copy.raise_known_tail(m.known_tail);
        let stage = match (copy.seal, space) {
            // A sealed server answers Sealed, whether or not it already has the entries (native-T1).
            (Sealing::Sealed | Sealing::Staged(_), _) => {
                hit("native.server.store_after_seal");
                let end = m.first.plus(m.count.into());
                if mutant(mutants::NATIVE_T1) && copy.runs.covers(m.first..end) {
                    let state = ServerState { sealed: false, local_tail: end, ..copy.state() };
                    let verdict = Verdict::Done {};
                    let message = StoredUpTo { loglet, verdict, round: m.round, expects: end, state };
                    out.post(from.node, Class::Data, SEQUENCER, message, Lsn::NONE);
                }
                copy.protocol.report(Verdict::Sealed {});
                None
            }
            (Sealing::Open, Space::Closed) => {
                copy.protocol.report(Verdict::StorageFailed {});
                None
            }
            (Sealing::Open, _) => match admit(copy, m.first, m.count) {
                Admit::From(_) if space == Space::FactsOnly => {
                    hit("native.server.disk_full");
                    copy.protocol.report(Verdict::DiskFull {});
                    None
                }
                Admit::From(at) => Some(at),
                Admit::Present(lsn) => {
                    hit("native.server.store_again");
                    check_same(copy, m.first, &batch);
                    // While the entries are only staged, the answer waits for the sync, after which a report is sent anyway (X1).
                    if lsn <= out.durable() {
                        copy.protocol.report(Verdict::Done {});
                    }
                    None
                }
                Admit::OutOfOrder => {
                    hit("native.server.out_of_order");
                    copy.protocol.report(Verdict::OutOfOrder {});
                    None
                }
            },
        };
        if let Some(at) = stage {
            invariants::stored_while_open(copy.seal != Sealing::Open, at);
            invariants::skips_only_committed(copy.staged_tail, copy.known_tail, at);
            let skip = at.since(m.first) as usize;
            let rest = if skip == 0 { batch } else { batch.slice(skip, batch.len()) };
            self.store.stage_entries(loglet, at, &rest, false, out);
        }
        self.touched.insert(loglet);
        Ok(())
    }

    /// Answers a sequencer about a loglet that this server does not serve, or does not serve for that sequencer.
    pub(super) fn post_stranger(
        &self,
        to: Caller,
        loglet: LogletId,
        round: u32,
        verdict: Verdict,
        out: &mut Effects,
    ) {
        let state = ServerState::NOTHING;
        let message = StoredUpTo { loglet, verdict, round, expects: Offset::ZERO, state };
        out.post(to.node, Class::Data, SEQUENCER, message, Lsn::NONE);
    }

    /// Handles an Advance, which raises the known tail without a Store (X14). It carries no configuration. If the sequencer waits for an
    /// answer, it must learn that there is no copy here, or it would ask forever.
    pub(super) fn on_advance(&mut self, from: Caller, m: Advance, out: &mut Effects) {
        let copy = match self.loglet_copy(m.loglet, &Bytes::new(), out) {
            Ok(copy) => copy,
            Err(verdict) => {
                if m.confirm {
                    hit("native.server.advance_without_copy");
                    self.post_stranger(from, m.loglet, NO_ROUND, verdict, out);
                }
                return;
            }
        };
        if !from_sequencer(copy, from, m.life) {
            return;
        }
        let up = copy.raise_known_tail(m.known_tail);
        if m.confirm {
            let verdict = match copy.seal {
                Sealing::Open => Verdict::Done {},
                _ => Verdict::Sealed {},
            };
            copy.protocol.report(verdict);
        }
        if up || m.confirm {
            self.touched.insert(m.loglet);
        }
    }

    /// Handles a Seal, after which no more Stores are accepted. The answer leaves once the seal bit and all Stores accepted before it are
    /// durable (native-T4).
    pub(super) fn on_seal(&mut self, from: Caller, m: Seal, out: &mut Effects) {
        match self.seal(m.loglet, &m.config, out) {
            Ok((state, reveals)) => {
                out.reply(from, Answer { verdict: Verdict::Done {}, state }, reveals);
            }
            Err(verdict) => self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        }
    }

    /// Sets the seal bit. Returns the state that the answer shows, and the record that it reveals.
    pub(super) fn seal(
        &mut self,
        loglet: LogletId,
        config: &Bytes,
        out: &mut Effects,
    ) -> Result<(ServerState, Lsn), Verdict> {
        let closed = out.space() == Space::Closed;
        let copy = self.loglet_copy(loglet, config, out)?;
        match copy.seal {
            Sealing::Sealed => Ok((copy.state(), Lsn::NONE)),
            Sealing::Staged(_) | Sealing::Open if closed => Err(Verdict::StorageFailed {}),
            Sealing::Staged(lsn) => {
                hit("native.server.seal_while_sealing");
                Ok((copy.staged_state(), lsn))
            }
            Sealing::Open => {
                if copy.staged_tail > copy.local_tail {
                    hit("native.server.seal_with_stores_in_flight");
                }
                // In the journal, the bit comes after every accepted Store. So once it is durable, they are durable, too.
                let lsn = self.store.stage_seal(loglet, out);
                let copy = self.loglet_copy(loglet, config, out)?;
                if mutant(mutants::NATIVE_T4) {
                    copy.seal = Sealing::Sealed;
                    return Ok((copy.state(), Lsn::NONE));
                }
                Ok((copy.staged_state(), lsn))
            }
        }
    }

    /// Handles a Repair, which stores a copy on a sealed server. The same order rule applies, but the seal bit does not refuse it.
    pub(super) fn on_repair(
        &mut self,
        from: Caller,
        m: Repair,
        out: &mut Effects,
    ) -> Result<(), DecodeError> {
        let batch = if m.count == 0 { None } else { Some(parse_counted(m.batch, m.count)?) };
        let (loglet, space) = (m.loglet, out.space());
        let copy = match self.loglet_copy(loglet, &m.config, out) {
            Ok(copy) => copy,
            Err(verdict) => {
                self.answer(from, loglet, verdict, Lsn::NONE, out);
                return Ok(());
            }
        };
        match copy.seal {
            Sealing::Open => {
                self.answer(from, loglet, Verdict::NotSealed {}, Lsn::NONE, out);
                return Ok(());
            }
            Sealing::Staged(_) => {
                hit("native.server.repair_while_sealing");
                self.answer(from, loglet, Verdict::Sealing {}, Lsn::NONE, out);
                return Ok(());
            }
            Sealing::Sealed => {}
        }
        copy.raise_known_tail(m.known_tail);
        self.touched.insert(loglet);
        // Without entries, the message only conveys the known tail.
        let Some(batch) = batch else {
            self.answer(from, loglet, Verdict::Done {}, Lsn::NONE, out);
            return Ok(());
        };
        let Some(copy) = self.store.loglets.get(&loglet) else { return Ok(()) };
        let (verdict, reveals) = match admit(copy, m.first, m.count) {
            Admit::From(_) if space == Space::Closed => (Verdict::StorageFailed {}, Lsn::NONE),
            Admit::From(_) if space == Space::FactsOnly => (Verdict::DiskFull {}, Lsn::NONE),
            Admit::From(at) => {
                hit("native.server.repaired");
                let skip = at.since(m.first) as usize;
                let rest = if skip == 0 { batch } else { batch.slice(skip, batch.len()) };
                (Verdict::Done {}, self.store.stage_entries(loglet, at, &rest, false, out))
            }
            Admit::Present(lsn) => {
                check_same(copy, m.first, &batch);
                (Verdict::Done {}, lsn)
            }
            Admit::OutOfOrder => (Verdict::OutOfOrder {}, Lsn::NONE),
        };
        self.answer(from, loglet, verdict, reveals, out);
        Ok(())
    }

    /// Handles a Fill: stores a copy of committed entries that this server lacks. It raises no tail and acknowledges nothing (X7).
    pub(super) fn on_fill(&mut self, from: Caller, m: Fill, out: &mut Effects) -> Result<(), DecodeError> {
        let batch = parse_counted(m.batch, m.count)?;
        let mut reveals = Lsn::NONE;
        let verdict = match self.store.loglets.get(&m.loglet) {
            _ if !self.is_own(from.node) => Verdict::WrongIdentity {},
            None => Verdict::Unconfigured {},
            Some(_) if out.space() == Space::Closed => Verdict::StorageFailed {},
            Some(_) if out.space() == Space::FactsOnly => Verdict::DiskFull {},
            Some(copy) => {
                let end = m.first.plus(m.count.into()).min(copy.known_tail);
                let start = m.first.max(copy.trim);
                let wanted: Vec<_> = copy
                    .runs
                    .missing(end, usize::MAX)
                    .into_iter()
                    .map(|r| r.start.max(start)..r.end.min(end))
                    .filter(|r| r.start < r.end)
                    .collect();
                for r in wanted {
                    hit("native.server.filled");
                    let part = batch.slice(r.start.since(m.first) as usize, r.end.since(m.first) as usize);
                    reveals = self.store.stage_entries(m.loglet, r.start, &part, true, out);
                }
                Verdict::Done {}
            }
        };
        self.answer(from, m.loglet, verdict, reveals, out);
        Ok(())
    }
}

/// Checks that an offset has one payload (native-N1), if the first copy is in memory and has the same bounds.
fn check_same(copy: &LogletCopy, first: Offset, batch: &Batch) {
    if let Some(run) = copy.runs.get(first)
        && run.count as usize == batch.len()
        && let Some(bytes) = &run.cached
    {
        invariants::one_payload(first, bytes, batch.bytes());
    }
}

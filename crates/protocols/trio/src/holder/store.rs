//! What only the store takes: appends that the clerk relays, the seal, and copies for a loglet that is created sealed.

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Class, DecodeError, Effects, Lsn, Space};
use atoll_loglet_store::deduplicator::{Deduplicator, Forgotten};
use atoll_loglet_store::message::{Answer, Ordered, Repair, Seal, Verdict};
use atoll_loglet_store::parse_counted;
use atoll_loglet_store::store::Sealing;

use super::Holder;
use crate::message::{Relay, Relayed};
use crate::roles::CLERK;
use crate::{invariants, mutants};

/// Why an append is refused, and the record that the refusal reveals.
type Refusal = (Ordered, Lsn);

impl Holder {
    /// Handles a relay. A second copy of an accepted one is ignored, because the first one gets the true answer.
    pub(super) fn on_relay(&mut self, from: Caller, m: Relay, out: &mut Effects) {
        let (life, tag) = (m.life, m.tag);
        if self.is_copy(&m) {
            hit("trio.store.copy");
            return;
        }
        let admitted = self.admit(from, &m, out);
        let placed = admitted.and_then(|()| self.place(m, out));
        let (outcome, known_tail, reveals) =
            placed.unwrap_or_else(|(outcome, reveals)| (outcome, Offset::ZERO, reveals));
        out.post(from.node, Class::Data, CLERK, Relayed { life, tag, outcome, known_tail }, reveals);
    }

    fn is_copy(&self, m: &Relay) -> bool {
        let part = self.store.loglets.get(&m.loglet);
        let deduplicator = part.and_then(|part| part.protocol.deduplicator.as_ref());
        deduplicator.is_some_and(|d| d.may_be_taken(m.sender, m.place))
    }

    /// Checks everything about a relay but its entries.
    fn admit(&mut self, from: Caller, m: &Relay, out: &mut Effects) -> Result<(), Refusal> {
        let now = |outcome| Err((outcome, Lsn::NONE));
        match self.part(m.loglet, &m.config, out) {
            Ok(_) => {}
            Err(Verdict::Unconfigured {}) => return now(Ordered::Unconfigured {}),
            Err(Verdict::Gone {}) => return now(Ordered::Sealed {}),
            Err(_) => return now(Ordered::StorageFailed {}),
        }
        let Some(part) = self.store.loglets.get_mut(&m.loglet) else { return now(Ordered::Unconfigured {}) };
        if part.protocol.config.clerk != (from.node, m.life) {
            hit("trio.store.wrong_clerk");
            return now(Ordered::WrongSequencer {});
        }
        match part.seal {
            Sealing::Open => {}
            _ if mutant(mutants::TRIO_LATE_ACK) => return now(late_ack(part.staged_tail, m)),
            Sealing::Staged(lsn) => return Err((Ordered::Sealed {}, lsn)),
            Sealing::Sealed => return now(Ordered::Sealed {}),
        }
        match out.space() {
            Space::Plenty => {}
            Space::FactsOnly => return now(Ordered::DiskFull {}),
            Space::Closed => return now(Ordered::StorageFailed {}),
        }
        let (own, more, spans) = (part.protocol.staged_bytes, m.batch.len(), self.options.dedupe_spans);
        if own + more > self.options.window_bytes || !self.in_flight.has_room(own, more) {
            hit("trio.store.busy");
            return now(Ordered::Busy {});
        }
        // Operations of an earlier life were recovered, except trimmed ones.
        let trim = part.trim;
        let deduplicator = part.protocol.deduplicator.get_or_insert_with(|| Deduplicator::new(spans, trim));
        if !deduplicator.in_order(m.sender, m.place) {
            hit("trio.store.out_of_order");
            return now(Ordered::Busy {});
        }
        Ok(())
    }

    /// Orders and journals a batch. Returns the answer, a tail that is correct by the time the answer leaves, and the record that the
    /// answer reveals.
    fn place(&mut self, m: Relay, out: &mut Effects) -> Result<(Ordered, Offset, Lsn), Refusal> {
        let refused = |outcome| (outcome, Lsn::NONE);
        let loglet = m.loglet;
        let batch = Batch::parse(m.batch).map_err(|_| refused(Ordered::TooLarge {}))?;
        let part = self.store.loglets.get_mut(&loglet).ok_or(refused(Ordered::Unconfigured {}))?;
        let (next, settled) = (part.staged_tail, part.local_tail);
        let deduplicator = part.protocol.deduplicator.as_mut().ok_or(refused(Ordered::Busy {}))?;
        let placed = deduplicator.place(&batch, next, m.not_below);
        let placed = placed.map_err(|Forgotten| refused(Ordered::Forgotten {}))?;
        deduplicator.took(m.sender, m.place);
        deduplicator.forget_below(settled);
        let (mut runs, mut end, mut reveals) = (Vec::with_capacity(placed.len()), Offset::ZERO, Lsn::NONE);
        for run in placed {
            let upto = run.first.plus(run.count.into());
            match run.new {
                Some(entries) => {
                    if let Some(part) = self.store.loglets.get(&loglet) {
                        invariants::extends(part.staged_tail, run.first, part.seal != Sealing::Open);
                    }
                    reveals = self.stage(loglet, run.first, &entries, out);
                }
                None => {
                    hit("trio.store.duplicate");
                    let part = self.store.loglets.get(&loglet);
                    let staged = part.and_then(|part| part.newest_staged(run.first, upto));
                    reveals = reveals.max(staged.unwrap_or(Lsn::NONE));
                }
            }
            end = end.max(upto);
            runs.push((run.first, run.count));
        }
        // Everything before `end` precedes it in the journal.
        Ok((Ordered::Committed { runs }, end, reveals))
    }

    fn stage(&mut self, loglet: LogletId, first: Offset, batch: &Batch, out: &mut Effects) -> Lsn {
        let lsn = self.store.stage_entries(loglet, first, batch, false, out);
        if let Some(part) = self.store.loglets.get_mut(&loglet) {
            let len = batch.bytes().len();
            part.protocol.staged.push_back((first.plus(batch.len() as u64), len));
            part.protocol.staged_bytes += len;
            self.in_flight.add(len);
        }
        lsn
    }

    /// Handles a Seal, after which no more appends are accepted. The answer leaves once the seal bit and all appends accepted before it
    /// are durable (native-T4).
    pub(super) fn on_seal(&mut self, from: Caller, m: Seal, out: &mut Effects) {
        let closed = out.space() == Space::Closed;
        let seal = match self.part(m.loglet, &m.config, out) {
            Ok(part) => part.seal,
            Err(verdict) => return self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        };
        let lsn = match seal {
            Sealing::Sealed => return self.answer(from, m.loglet, Verdict::Done {}, Lsn::NONE, out),
            _ if closed => return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out),
            Sealing::Staged(lsn) => lsn,
            Sealing::Open => self.store.stage_seal(m.loglet, out),
        };
        if let Some(part) = self.store.loglets.get(&m.loglet) {
            out.reply(from, Answer { verdict: Verdict::Done {}, state: part.staged_state() }, lsn);
        }
    }

    /// Stores a copy in a loglet that is created sealed (virtuallog §7). Accepts only the next offset, or one that is already here.
    pub(super) fn on_copy(&mut self, from: Caller, m: Repair, out: &mut Effects) -> Result<(), DecodeError> {
        let batch = parse_counted(m.batch, m.count)?;
        let space = out.space();
        let end = m.first.plus(m.count.into());
        let (verdict, reveals) = match self.part(m.loglet, &m.config, out) {
            Err(verdict) => (verdict, Lsn::NONE),
            Ok(part) if part.seal == Sealing::Open => (Verdict::NotSealed {}, Lsn::NONE),
            Ok(part) if end <= part.staged_tail => match part.newest_staged(m.first.max(part.trim), end) {
                Some(lsn) => (Verdict::Done {}, lsn),
                None => (Verdict::OutOfOrder {}, Lsn::NONE),
            },
            Ok(_) if space == Space::Closed => (Verdict::StorageFailed {}, Lsn::NONE),
            Ok(_) if space == Space::FactsOnly => (Verdict::DiskFull {}, Lsn::NONE),
            Ok(part) if m.first > part.staged_tail => (Verdict::OutOfOrder {}, Lsn::NONE),
            Ok(part) => {
                let at = part.staged_tail;
                let rest = batch.slice(at.since(m.first) as usize, batch.len());
                (Verdict::Done {}, self.stage(m.loglet, at, &rest, out))
            }
        };
        self.answer(from, m.loglet, verdict, reveals, out);
        Ok(())
    }
}

/// Returns an acknowledgement of entries that the store does not take.
fn late_ack(tail: Offset, m: &Relay) -> Ordered {
    let count = Batch::parse(m.batch.clone()).map_or(0, |batch| batch.len() as u32);
    Ordered::Committed { runs: vec![(tail, count)] }
}

//! What only the mirror takes: reports of where a sealed loglet ends, and the copies that a back-fill fetches from the store (X7).

use atoll_contract::LogletId;
use atoll_core::testing::hit;
use atoll_core::{Caller, DecodeError, Effects, Lsn, NodeId, Space};
use atoll_loglet_store::message::Verdict;
use atoll_loglet_store::parse_counted;

use super::Holder;
use crate::back_fill::{self, Source};
use crate::invariants;
use crate::message::{BackFill, Fill, FillEnded};

/// Maximum number of gaps that one back-fill closes. The next one closes the rest.
const GAPS_PER_FILL: usize = 64;

impl Holder {
    /// Handles a report of where a sealed loglet ends. The end is journaled, so that a restart knows what is missing.
    pub(super) fn on_back_fill(&mut self, from: Caller, m: BackFill, out: &mut Effects) {
        let part = match self.part(m.loglet, &m.config, out) {
            Ok(part) => part,
            Err(verdict) => return self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        };
        if out.space() == Space::Closed {
            return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        let mut reveals = Lsn::NONE;
        if part.raise_known_tail(m.upto) || !part.settled {
            let end = part.known_tail;
            reveals = self.store.stage_known(m.loglet, end, out);
        }
        self.fill(m.loglet, out);
        self.answer(from, m.loglet, Verdict::Done {}, reveals, out);
    }

    /// Starts a back-fill of what the loglet lacks, if there is anything and the limit on back-fills allows it.
    fn fill(&mut self, loglet: LogletId, out: &mut Effects) {
        if self.fills >= self.options.max_fills || out.space() != Space::Plenty {
            return;
        }
        let Some(part) = self.store.loglets.get_mut(&loglet).filter(|part| !part.protocol.filling) else {
            return;
        };
        let gaps = part.runs.missing(part.known_tail, GAPS_PER_FILL);
        if gaps.is_empty() {
            return;
        }
        hit("trio.mirror.back_fill");
        part.protocol.filling = true;
        self.fills += 1;
        let source = Source {
            env: self.env.clone(),
            loglet,
            config: part.config_bytes.clone(),
            store: part.protocol.config.store.0,
            step_bytes: self.options.step_bytes,
        };
        out.run("trio.back_fill", Box::pin(back_fill::back_fill(source, gaps)));
    }

    /// Handles a Fill: stores a copy of entries that this mirror lacks.
    pub(super) fn on_fill(&mut self, from: Caller, m: Fill, out: &mut Effects) -> Result<(), DecodeError> {
        let batch = parse_counted(m.batch, m.count)?;
        let mut reveals = Lsn::NONE;
        let verdict = match self.store.loglets.get(&m.loglet) {
            _ if !self.is_own(from.node) => Verdict::WrongIdentity {},
            None => Verdict::Unconfigured {},
            Some(_) if out.space() == Space::Closed => Verdict::StorageFailed {},
            Some(_) if out.space() == Space::FactsOnly => Verdict::DiskFull {},
            Some(part) => {
                let (known_tail, start) = (part.known_tail, m.first.max(part.trim));
                let end = m.first.plus(m.count.into()).min(known_tail);
                let gaps = part.runs.missing(end, usize::MAX).into_iter();
                let gaps = gaps.map(|gap| gap.start.max(start)..gap.end.min(end));
                let wanted: Vec<_> = gaps.filter(|gap| gap.start < gap.end).collect();
                for gap in wanted {
                    hit("trio.mirror.filled");
                    invariants::is_below_the_end(&gap, known_tail);
                    let (at, upto) = (gap.start.since(m.first) as usize, gap.end.since(m.first) as usize);
                    reveals =
                        self.store.stage_entries(m.loglet, gap.start, &batch.slice(at, upto), true, out);
                }
                Verdict::Done {}
            }
        };
        self.answer(from, m.loglet, verdict, reveals, out);
        Ok(())
    }

    pub(super) fn on_fill_ended(&mut self, from: Caller, m: FillEnded) {
        if !self.is_own(from.node) {
            return;
        }
        self.fills = self.fills.saturating_sub(1);
        if let Some(part) = self.store.loglets.get_mut(&m.loglet) {
            part.protocol.filling = false;
        }
    }

    fn is_own(&self, from: NodeId) -> bool {
        from == self.env.node()
    }
}

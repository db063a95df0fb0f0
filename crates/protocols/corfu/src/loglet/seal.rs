//! seal, and checkTail of a sealed Loglet (corfu §7).
//!
//! One sealed unit of a chain is enough to end appends on it, because an append needs all of them. So a seal tolerates the loss of all
//! units but one of each chain.
//!
//! # Departure from the notes
//!
//! The notes resolve holes lazily, after the stop is installed, at the first of the installed units. Then a reader of a hole waits for that
//! one unit. Here the check decides for the whole Loglet: what some sealed unit has is copied to the others, and what none of them has is
//! listed as a hole. The list is installed together with the stop and the units, so the register's conditional write is still the only
//! place where Data or Junk is chosen. Copying before that is harmless: a position has one content at most, and one that is installed as a
//! hole is never read. Afterwards, any of the installed units can serve any position.

use std::collections::BTreeMap;

use atoll_contract::{LogletError, Offset, Tail, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{Class, Tick};

use super::sealed::SealedAt;
use super::{CorfuLoglet, SEALED_EPOCH, loglet_error, sealed_tail};
use crate::client::{Stop, nodes, refusal};
use crate::intervals::Intervals;
use crate::message::{Piece, SealTo, StopTo, UnitAnswer, Verdict};
use crate::projection::{Chain, UnitId};
use crate::roles::{SEQUENCER, UNIT};

/// The most holes that may be listed. They are appends that were under way at the seal.
const MAX_HOLES: usize = 4096;

/// The sealed units, and the address above the highest one that each has.
type Sealed = BTreeMap<UnitId, u64>;

impl CorfuLoglet {
    /// Seals one unit of each chain at least, and all that answer soon: the others could answer stale reads (corfu-C19).
    pub(crate) async fn seal_units(&self) -> Result<(), LogletError> {
        self.seal_all().await.map(|_| ())
    }

    async fn seal_all(&self) -> Result<Sealed, LogletError> {
        let s = &self.0;
        let until = s.client.op_end();
        let (sequencer, _) = s.open.projection.sequencer;
        let stop = StopTo { log: s.client.log, epoch: SEALED_EPOCH };
        s.client.env.post(sequencer, Class::Control, SEQUENCER, stop);
        loop {
            let early = s.client.env.now().after(s.client.options.seal_grace);
            for (end, hurry) in [(early, false), (s.client.round_end(), true)] {
                match self.seal_round(end, hurry).await {
                    Ok(Some(sealed)) => return Ok(sealed),
                    Ok(None) => {}
                    Err(LogletError::Gone) => return Err(LogletError::Gone),
                    Err(error) if s.client.env.now() >= until => return Err(error),
                    Err(_) => {}
                }
            }
            hit("corfu.seal.retry");
            if !s.client.pause(until).await {
                return Err(LogletError::Unavailable(Unavailability::NoQuorum));
            }
        }
    }

    /// Sends the seal to all units. With `hurry`, it does not wait for more answers than it needs.
    async fn seal_round(&self, end: Tick, hurry: bool) -> Result<Option<Sealed>, LogletError> {
        let s = &self.0;
        let units = s.open.projection.units();
        let request = SealTo { log: s.client.log, config: s.open.config.clone(), epoch: SEALED_EPOCH };
        let done = |answer: &UnitAnswer| answer.verdict == (Verdict::Done {});
        let collect = |ok: &mut dyn Iterator<Item = (atoll_core::NodeId, &UnitAnswer)>| -> Sealed {
            let of = |node| units.iter().copied().find(|unit: &UnitId| unit.0 == node);
            ok.filter(|(_, a)| done(a)).filter_map(|(node, a)| Some((of(node)?, a.next))).collect()
        };
        let replies = s
            .client
            .env
            .gather_role(&nodes(&units), UNIT, request, end, |r| hurry && self.covers(&collect(&mut r.ok())))
            .await;
        let refused = replies.ok().map(|(_, a)| &a.verdict).filter(|v| **v != (Verdict::Done {}));
        let refused: Vec<Stop> = refused.map(refusal).collect();
        if refused.contains(&Stop::Gone) {
            return Err(LogletError::Gone);
        }
        let sealed = collect(&mut replies.ok());
        if self.covers(&sealed) {
            return Ok(Some(sealed));
        }
        match refused.first() {
            Some(stop) => Err(loglet_error(*stop)),
            None => Ok(None),
        }
    }

    /// Returns whether there is a unit of each chain.
    fn covers(&self, sealed: &Sealed) -> bool {
        let chains = &self.0.open.projection.active().chains;
        chains.iter().all(|chain| chain.units.iter().any(|unit| sealed.contains_key(unit)))
    }

    /// Seals what is not sealed yet, and finds out where the Loglet ends. All checks may find other units, and so other ends (vlog-L5).
    pub(crate) async fn check_sealed(&self) -> Result<Tail, LogletError> {
        let s = &self.0;
        if let Some(end) = lock(&s.state).installed.clone() {
            return Ok(sealed_tail(&end));
        }
        let until = s.client.op_end();
        let mut sealed = self.seal_all().await?;
        loop {
            match self.settle(&sealed, until).await {
                Ok(end) => {
                    s.tails.learn_sealed(Offset(end.tail));
                    let tail = sealed_tail(&end);
                    lock(&s.state).found = Some(end);
                    return Ok(tail);
                }
                Err((_, Stop::Gone)) => return Err(LogletError::Gone),
                // The unit was lost meanwhile. The others suffice if each chain has one.
                Err((unit, stop)) => {
                    hit("corfu.seal.unit_lost");
                    sealed.remove(&unit);
                    if s.client.env.now() >= until {
                        return Err(loglet_error(stop));
                    }
                    if !self.covers(&sealed) {
                        s.client.pause(until).await;
                        sealed = self.seal_all().await?;
                    }
                }
            }
        }
    }

    /// Returns the end that these units make, after each has got what another one has. The error names the unit that failed.
    async fn settle(&self, sealed: &Sealed, until: Tick) -> Result<SealedAt, (UnitId, Stop)> {
        let projection = &self.0.open.projection;
        let tail = projection.position_above(sealed);
        let stretch = projection.active();
        let mut holes = Intervals::default();
        for (index, chain) in stretch.chains.iter().enumerate() {
            let end = stretch.address_from(index, tail);
            let members: Vec<UnitId> =
                chain.units.iter().copied().filter(|u| sealed.contains_key(u)).collect();
            for hole in self.level(chain, &members, end, until).await? {
                for addr in hole {
                    let at = stretch.position_at(index, addr);
                    holes.add(at..at + 1);
                }
            }
        }
        let units = sealed.keys().copied().collect();
        if holes.len() > MAX_HOLES {
            let unit = *sealed.keys().next().unwrap_or(&projection.units()[0]);
            return Err((unit, Stop::Unavailable(Unavailability::TooLarge)));
        }
        if !holes.is_empty() {
            hit("corfu.seal.holes");
        }
        Ok(SealedAt { tail, units, holes: holes.iter().collect() })
    }

    /// Copies what one of the units has below `end` to the others, and returns what none of them has.
    async fn level(
        &self,
        chain: &Chain,
        members: &[UnitId],
        end: u64,
        until: Tick,
    ) -> Result<Vec<std::ops::Range<u64>>, (UnitId, Stop)> {
        let mut has: BTreeMap<UnitId, Intervals> = BTreeMap::new();
        for unit in members {
            has.insert(
                *unit,
                self.written_on(*unit, chain.base..end, until).await.map_err(|stop| (*unit, stop))?,
            );
        }
        let mut all = Intervals::default();
        for (start, end) in has.values().flat_map(Intervals::iter) {
            all.add(start..end);
        }
        for (unit, own) in &has {
            let lacking: Vec<_> = own.missing_in(chain.base..end);
            for part in lacking.into_iter().flat_map(|gap| all.within(gap)) {
                hit("corfu.seal.copies");
                self.copy_part(&has, *unit, part, until).await?;
            }
        }
        Ok(all.missing_in(chain.base..end))
    }

    /// Returns which addresses of a range a unit has.
    pub(crate) async fn written_on(
        &self,
        unit: UnitId,
        range: std::ops::Range<u64>,
        until: Tick,
    ) -> Result<Intervals, Stop> {
        let s = &self.0;
        let (mut has, mut at) = (Intervals::default(), range.start);
        while at < range.end {
            for (piece, _) in
                s.client.look(&s.closed, unit, at..range.end, 0, until.min(s.client.round_end())).await?
            {
                let (first, end) = piece.span();
                if !matches!(piece, Piece::Unwritten { .. }) {
                    has.add(first..end);
                }
                at = at.max(end);
            }
        }
        Ok(has)
    }

    /// Copies a part that a unit lacks from one that has it.
    async fn copy_part(
        &self,
        has: &BTreeMap<UnitId, Intervals>,
        unit: UnitId,
        part: std::ops::Range<u64>,
        until: Tick,
    ) -> Result<(), (UnitId, Stop)> {
        let s = &self.0;
        let mut at = part.start;
        while at < part.end {
            let source = has.iter().find(|(_, own)| own.contains(at));
            let Some((source, own)) = source else {
                return Err((unit, Stop::Unavailable(Unavailability::NoQuorum)));
            };
            let upto = own.first_missing(at).min(part.end);
            let (bytes, soon) = (s.client.options.step_bytes, until.min(s.client.round_end()));
            let found = s
                .client
                .look(&s.closed, *source, at..upto, bytes, soon)
                .await
                .map_err(|stop| (*source, stop))?;
            for (piece, content) in found {
                s.client
                    .copy(&s.closed, unit, &piece, content.as_ref(), soon)
                    .await
                    .map_err(|stop| (unit, stop))?;
                at = at.max(piece.span().1);
            }
        }
        Ok(())
    }
}

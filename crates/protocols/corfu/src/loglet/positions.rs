//! The paper's interface on a Loglet (Figure 1; corfu §3): look, fill and trim of one position. Append and read are those of every Loglet.
//!
//! A fill does not wait. An append that has the position and has not begun to write it loses the position, and takes another one.

use atoll_contract::loglet::write_once::{Layout, PositionState, Reach, Replace, WriteOnce, WriteOnceError};
use atoll_contract::{LogletSpec, Offset, Unavailability};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, NodeId, Tick};
use bytes::Bytes;

use super::CorfuLoglet;
use super::sealed::SealedAt;
use crate::client::{Stop, Tails, View, both, refusal};
use crate::message::{Erase, Grant, Piece, Take, Verdict};
use crate::mutants;
use crate::projection::{Place, UnitId};
use crate::provider::{KIND, SEQUENCER_ROLE, UNIT_ROLE};

fn error(stop: Stop) -> WriteOnceError {
    match stop {
        Stop::Sealed => WriteOnceError::Sealed,
        Stop::Gone => WriteOnceError::Gone,
        Stop::Unavailable(why) => WriteOnceError::Unavailable(why),
        Stop::WrongUnit => WriteOnceError::Unavailable(Unavailability::StorageFailed),
        Stop::Trimmed => WriteOnceError::Unavailable(Unavailability::NoQuorum),
    }
}

impl CorfuLoglet {
    /// Returns the end in the chain.
    fn installed(&self) -> Option<SealedAt> {
        super::lock(&self.0.state).installed.clone()
    }

    /// Returns where a position is. An error if nobody can have got it, or if it was trimmed.
    fn place_of(&self, at: Offset) -> Result<Place<'_>, WriteOnceError> {
        self.0.open.projection.place(at.0).ok_or_else(|| error(Stop::Trimmed))
    }

    /// Returns what one unit has at a position.
    async fn look_at(
        &self,
        view: &View,
        unit: UnitId,
        place: &Place<'_>,
        until: Tick,
    ) -> Result<PositionState, Stop> {
        let found = self.0.client.look(view, unit, place.addr..place.addr + 1, 0, until).await?;
        Ok(match found.first() {
            Some((Piece::Data { .. }, _)) => PositionState::Data,
            Some((Piece::Junk { .. }, _)) => PositionState::Junk,
            Some((Piece::Deleted { .. } | Piece::Erased { .. }, _)) => PositionState::Trimmed,
            Some((Piece::Unwritten { .. }, _)) | None => PositionState::Unwritten,
        })
    }

    async fn held(&self, at: Offset) -> Result<PositionState, WriteOnceError> {
        let s = &self.0;
        let place = self.place_of(at)?;
        let Some(end) = self.installed() else {
            // Only the tail of a chain knows what is decided (corfu-C6).
            let units = &place.chain.units;
            let knows = if mutant(mutants::CORFU_C6) { units.first() } else { units.last() };
            let Some(unit) = knows else { return Err(error(Stop::Trimmed)) };
            return self.look_at(&s.open, *unit, &place, s.client.round_end()).await.map_err(error);
        };
        if at.0 >= end.tail {
            return Err(WriteOnceError::Beyond(Offset(end.tail)));
        }
        if end.hole_at(at.0).is_some() {
            return Ok(PositionState::Junk);
        }
        let mut failure = WriteOnceError::Unavailable(Unavailability::NoQuorum);
        let mut units: Vec<UnitId> = end.members(place.chain).collect();
        s.client.nearest_first(&mut units);
        for unit in units {
            match self.look_at(&s.closed, unit, &place, s.client.round_end()).await {
                Ok(held) if held != PositionState::Unwritten => return Ok(held),
                Ok(_) => {}
                Err(stop) => failure = error(stop),
            }
        }
        Err(failure)
    }

    /// Returns the position that an append gets next. None if the sequencer does not answer.
    async fn next_position(&self) -> Option<Offset> {
        let s = &self.0;
        let (node, _) = s.open.projection.sequencer;
        let (log, epoch, config) = (s.client.log, s.open.epoch(), s.open.config.clone());
        let take = Take { log, config, epoch, count: 0 };
        let answer = s.client.env.within(s.client.options.round_timeout, s.client.env.call(node, take)).await;
        let answer = answer.ok()?.ok()?;
        matches!(answer.grant, Grant::Granted { .. }).then_some(Offset(answer.next))
    }

    async fn how_far(&self) -> Result<Reach, WriteOnceError> {
        let s = &self.0;
        if let Some(end) = self.installed() {
            let tail = Offset(end.tail);
            return Ok(Reach { complete: tail, written: tail, next: Some(tail) });
        }
        let tails = self.probed().await?;
        let complete = if tails.is_whole(&s.open) { tails.complete_below(&s.open) } else { s.tails.tail().0 };
        let written = Offset(tails.written_above(&s.open));
        // Asked last, so that it is above the others.
        Ok(Reach { complete: Offset(complete), written, next: self.next_position().await })
    }

    async fn probed(&self) -> Result<Tails, WriteOnceError> {
        let s = &self.0;
        let tails = s.client.probe(&s.open).await.map_err(error)?;
        if tails.covers(&s.open) {
            Ok(tails)
        } else {
            Err(error(Stop::Unavailable(Unavailability::NoQuorum)))
        }
    }

    /// Refuses a position that no append can have got. A fill there would move the tail up to it.
    async fn below_end(&self, at: Offset) -> Result<(), WriteOnceError> {
        let s = &self.0;
        let reached = super::lock(&s.state).reached;
        if at < reached.max(s.tails.tail()) {
            return Ok(());
        }
        let (tails, next) = both(self.probed(), self.next_position()).await;
        let end = Offset(tails?.written_above(&s.open)).max(next.unwrap_or_default());
        let mut state = super::lock(&s.state);
        state.reached = state.reached.max(end);
        if at < end { Ok(()) } else { Err(WriteOnceError::Beyond(end)) }
    }

    /// Decides a position. For a hole, each unit of the chain is asked once.
    async fn decide(&self, at: Offset) -> Result<PositionState, WriteOnceError> {
        let s = &self.0;
        if self.installed().is_some() || at < s.tails.tail() {
            // It is decided already.
            let held = self.held(at).await?;
            if held != PositionState::Unwritten {
                return Ok(held);
            }
        }
        self.below_end(at).await?;
        hit("corfu.positions.fill");
        match s.client.complete_one(&s.open, at.0, s.client.op_end()).await {
            Ok(Some(Piece::Junk { .. })) => Ok(PositionState::Junk),
            // Its trim begins at the tail.
            Ok(_) => self.held(at).await,
            Err(Stop::Trimmed) => Ok(PositionState::Trimmed),
            Err(Stop::Unavailable(why)) => Err(WriteOnceError::Unknown(why)),
            Err(stop) => Err(error(stop)),
        }
    }

    async fn trim_alone(&self, at: Offset) -> Result<PositionState, WriteOnceError> {
        let mut held = self.held(at).await?;
        if held == PositionState::Unwritten {
            held = self.decide(at).await?;
        }
        if held == PositionState::Junk {
            return Ok(held);
        }
        let s = &self.0;
        let place = self.place_of(at)?;
        let is_ended = self.installed().is_some();
        let view = if is_ended { &s.closed } else { &s.open };
        let until = s.client.op_end();
        let mut begun = false;
        // The tail comes first: if it has the position, all units of the chain have it. Those of a sealed Loglet may lack it.
        for unit in place.chain.units.iter().rev() {
            let (log, epoch, first) = (s.client.log, view.epoch(), place.addr);
            let erase = Erase { log, config: Bytes::new(), epoch, first, count: 1, unwritten_too: is_ended };
            let stop = match s.client.ask(view, *unit, erase, until).await {
                Ok(answer) if answer.verdict == (Verdict::Done {}) => {
                    begun = true;
                    continue;
                }
                Ok(answer) => refusal(&answer.verdict),
                Err(stop) => {
                    // The request may still arrive.
                    begun = true;
                    stop
                }
            };
            return Err(match error(stop) {
                WriteOnceError::Unavailable(why) if begun => WriteOnceError::Unknown(why),
                error => error,
            });
        }
        hit("corfu.positions.trim");
        Ok(PositionState::Trimmed)
    }
}

impl WriteOnce for CorfuLoglet {
    fn look(&self, at: Offset) -> BoxFuture<'_, Result<PositionState, WriteOnceError>> {
        Box::pin(self.held(at))
    }

    fn fill(&self, at: Offset) -> BoxFuture<'_, Result<PositionState, WriteOnceError>> {
        Box::pin(self.decide(at))
    }

    fn trim_one(&self, at: Offset) -> BoxFuture<'_, Result<PositionState, WriteOnceError>> {
        Box::pin(self.trim_alone(at))
    }

    fn reach(&self) -> BoxFuture<'_, Result<Reach, WriteOnceError>> {
        Box::pin(self.how_far())
    }

    fn layout(&self) -> Layout {
        let s = &self.0;
        let stretch = s.open.projection.active();
        let nodes = |chain: &crate::Chain| chain.units.iter().map(|unit| unit.0).collect();
        Layout {
            epoch: if self.end().is_some() { s.closed.epoch() } else { s.open.epoch() },
            sequencer: s.open.projection.sequencer.0,
            stripe: stretch.stripe,
            chains: stretch.chains.iter().map(nodes).collect(),
        }
    }

    fn replacing(&self, change: Replace) -> Option<LogletSpec> {
        let layout = self.layout();
        let mut units: Vec<NodeId> = layout.chains.iter().flatten().copied().collect();
        let mut spec = LogletSpec::of(KIND);
        match change {
            Replace::Unit { old, new } => {
                let at = units.iter().position(|unit| *unit == old).filter(|_| !units.contains(&new))?;
                units[at] = new;
            }
            Replace::Sequencer(node) => spec = spec.place(SEQUENCER_ROLE, [node]),
        }
        spec.options.insert("chains".to_owned(), layout.chains.len().to_string());
        spec.options.insert("stripe".to_owned(), layout.stripe.to_string());
        Some(spec.place(UNIT_ROLE, units))
    }
}

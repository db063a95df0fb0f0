//! How far a log was written, and how far it is complete (corfu-C12).

use std::collections::BTreeMap;

use atoll_core::testing::mutant;

use super::{Client, Stop, View, refusal};
use crate::message::{Probe, UnitAnswer, Verdict};
use crate::mutants;
use crate::projection::UnitId;

/// What the units of the last range report.
#[derive(Clone, Debug, Default)]
pub struct Tails {
    /// The answers, by unit.
    pub answers: BTreeMap<UnitId, UnitAnswer>,
}

impl Client {
    /// Asks all units of the last range for their state, and waits for all of them. An error is what one of them refused with; units that
    /// do not answer are left out.
    pub async fn probe(&self, view: &View) -> Result<Tails, Stop> {
        let stretch = view.projection.active();
        let mut calls = Vec::new();
        for (chain, unit) in stretch.chains.iter().flat_map(|c| c.units.iter().map(move |unit| (c, *unit))) {
            let (log, config, epoch) = (self.log, view.config.clone(), view.epoch());
            let (client, view) = (self.clone(), view.clone());
            let probe = Probe { log, config, epoch, from: chain.base };
            let asked = async move { client.ask_once(&view, unit, probe).await };
            calls.push((unit, self.env.launch("corfu.probe", asked)));
        }
        let mut tails = Tails::default();
        let mut refused = None;
        for (unit, call) in calls {
            match call.await {
                Ok(Ok(answer)) if answer.verdict == (Verdict::Done {}) => {
                    tails.answers.insert(unit, answer);
                }
                Ok(Ok(answer)) if answer.verdict == (Verdict::Ahead {}) => {
                    self.seal_unit(view, unit).await?;
                }
                Ok(Ok(answer)) => refused = worse(refused, refusal(&answer.verdict)),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        match refused {
            Some(stop) => Err(stop),
            None => Ok(tails),
        }
    }
}

/// Returns the refusal that says more.
fn worse(one: Option<Stop>, other: Stop) -> Option<Stop> {
    let rank = |stop: &Stop| match stop {
        Stop::Gone => 3,
        Stop::Sealed => 2,
        _ => 1,
    };
    one.into_iter().chain([other]).max_by_key(rank)
}

impl Tails {
    /// Returns whether every unit of the last range has answered.
    pub fn is_whole(&self, view: &View) -> bool {
        let units = view.projection.active().chains.iter().flat_map(|chain| &chain.units);
        units.into_iter().all(|unit| self.answers.contains_key(unit))
    }

    /// Returns whether a unit of each chain of the last range has answered. That is enough to be above everything that is complete.
    pub fn covers(&self, view: &View) -> bool {
        let chains = &view.projection.active().chains;
        chains.iter().all(|chain| chain.units.iter().any(|unit| self.answers.contains_key(unit)))
    }

    /// Returns the position above every one that is readable: the highest one on the tail of a chain. Everything acknowledged is below it.
    pub fn readable_above(&self, view: &View) -> u64 {
        let stretch = view.projection.active();
        let above = stretch.chains.iter().enumerate().filter_map(|(index, chain)| {
            let next = self.answers.get(chain.units.last()?)?.next;
            (next > chain.base).then(|| stretch.position_at(index, next - 1) + 1)
        });
        above.max().unwrap_or(stretch.start).max(stretch.start)
    }

    /// Returns the position above every one that was written anywhere.
    pub fn written_above(&self, view: &View) -> u64 {
        let next = self.answers.iter().map(|(unit, answer)| (*unit, answer.next)).collect();
        view.projection.position_above(&next).max(view.projection.active().start)
    }

    /// Returns the position up to which the last range is complete: everything below is on the tail of its chain.
    pub fn complete_below(&self, view: &View) -> u64 {
        if mutant(mutants::CORFU_C12) {
            return self.written_above(view);
        }
        let stretch = view.projection.active();
        let missing = stretch.chains.iter().enumerate().map(|(index, chain)| {
            let tail = chain.units.last().and_then(|unit| self.answers.get(unit));
            stretch.position_at(index, tail.map_or(chain.base, |answer| answer.missing))
        });
        missing.min().unwrap_or(stretch.start)
    }
}

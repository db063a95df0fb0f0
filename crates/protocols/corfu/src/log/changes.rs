//! Which projections follow (corfu §4): a unit is replaced at once for new positions, rebuilt in the background, and then used for
//! reads; a sequencer is replaced; the last range gets other chains; ranges merge.

use atoll_core::{Incarnation, NodeId};

use super::reconfigure::Sealed;
use super::{CorfuLog, LogError};
use crate::client::View;
use crate::message::Piece;
use crate::projection::{Chain, OPEN, Projection, ProjectionError, Stretch, UnitId};

impl Stretch {
    /// Returns the first position at or above `at` at which a round of the chains begins.
    fn round_from(&self, at: u64) -> u64 {
        let round = u64::from(self.stripe) * self.chains.len() as u64;
        self.start + at.saturating_sub(self.start).div_ceil(round) * round
    }

    /// Splits the range at a position where a round begins. The second part continues the addresses of the first.
    fn split(&self, at: u64) -> Result<(Stretch, Stretch), ProjectionError> {
        if at <= self.start || at >= self.end || self.round_from(at) != at {
            return Err(ProjectionError::Boundary(
                at,
                "a range is split inside, where a round of its chains begins",
            ));
        }
        let (mut first, mut second) = (self.clone(), self.clone());
        let each = (at - self.start) / self.chains.len() as u64;
        (first.end, second.start) = (at, at);
        second.chains.iter_mut().for_each(|chain| chain.base += each);
        Ok((first, second))
    }
}

impl Projection {
    /// Returns the projection in which `new` takes the place of `old` for positions from `start` on. Below, the other units of its chains
    /// serve until `new` is rebuilt.
    fn replacing(&self, old: UnitId, new: UnitId, start: u64) -> Result<Projection, ProjectionError> {
        let mut next = self.clone();
        let Some(mut active) = next.stretches.pop() else { return Err(ProjectionError::Empty) };
        let boundary = active.round_from(start);
        let is_used = active.chains.iter().any(|chain| chain.units.contains(&old));
        if is_used {
            if boundary > active.start {
                let (below, above) = active.split(boundary)?;
                next.stretches.push(below);
                active = above;
            }
            let units = active.chains.iter_mut().flat_map(|chain| &mut chain.units);
            units.filter(|unit| **unit == old).for_each(|unit| *unit = new);
        }
        // A removed unit is never read again (corfu-C8): it may have writes that the others have as junk.
        for stretch in &mut next.stretches {
            for chain in &mut stretch.chains {
                chain.units.retain(|unit| *unit != old);
            }
        }
        next.stretches.push(active);
        Ok(next)
    }

    /// Returns the projection in which a unit that was rebuilt serves a range, too. It takes the same place as in the range above.
    fn with_rebuilt(&self, range: usize, chain: usize, unit: UnitId) -> Result<Projection, ProjectionError> {
        let mut next = self.clone();
        let place = self.stretches.get(range + 1).and_then(|above| above.chains.get(chain));
        let place = place.and_then(|chain| chain.units.iter().position(|other| *other == unit));
        let Some(one) = next.stretches.get_mut(range).and_then(|stretch| stretch.chains.get_mut(chain))
        else {
            return Err(ProjectionError::Empty);
        };
        let at = place.unwrap_or(one.units.len()).min(one.units.len());
        one.units.insert(at, unit);
        Ok(next)
    }

    /// Returns the projection in which other chains take the positions from `start` on.
    fn extended(
        &self,
        chains: &[Vec<UnitId>],
        stripe: u32,
        start: u64,
    ) -> Result<Projection, ProjectionError> {
        let mut next = self.clone();
        let active = self.active();
        let boundary = active.round_from(start);
        let used = |unit: &UnitId| {
            let of = |s: &Stretch| {
                let here = |(i, c): (usize, &Chain)| {
                    let ends = if s.end == OPEN {
                        s.chains[i].base + (boundary - s.start)
                    } else {
                        s.addresses_of(i).end
                    };
                    c.units.contains(unit).then_some(ends)
                };
                s.chains.iter().enumerate().filter_map(here).max()
            };
            self.stretches.iter().filter_map(of).max().unwrap_or(0)
        };
        let based = chains.iter().map(|units| {
            let base = units.iter().map(used).max().unwrap_or(0);
            Chain { base, units: units.clone() }
        });
        let added = Stretch { start: boundary, end: OPEN, stripe, chains: based.collect() };
        match next.stretches.last_mut() {
            Some(last) if last.start < boundary => last.end = boundary,
            _ => drop(next.stretches.pop()),
        }
        next.stretches.push(added);
        Ok(next)
    }

    /// Returns the projection with as few ranges as possible: neighbours become one if each position keeps its place.
    fn merged(&self) -> Projection {
        let mut merged: Vec<Stretch> = Vec::new();
        for stretch in &self.stretches {
            match merged.last_mut() {
                Some(last) if continues(last, stretch) => last.end = stretch.end,
                _ => merged.push(stretch.clone()),
            }
        }
        Projection { stretches: merged, ..self.clone() }
    }
}

/// Returns whether a range continues the one before it, with the same chains and addresses.
fn continues(one: &Stretch, next: &Stretch) -> bool {
    let round = u64::from(one.stripe) * one.chains.len() as u64;
    let length = next.start - one.start;
    let each = length / one.chains.len() as u64;
    one.stripe == next.stripe
        && one.chains.len() == next.chains.len()
        && length.is_multiple_of(round)
        && one.chains.iter().zip(&next.chains).all(|(a, b)| a.units == b.units && a.base + each == b.base)
}

impl CorfuLog {
    /// Replaces a unit, which may be dead, for new positions. Old ones have one copy less until [`CorfuLog::rebuild`].
    pub async fn replace_unit(&self, old: UnitId, new: UnitId) -> Result<View, LogError> {
        self.change(|now, sealed: &Sealed| now.replacing(old, new, sealed.start)).await
    }

    /// Replaces the sequencer by this life of a node. It starts above everything that is written.
    pub async fn replace_sequencer(&self, node: NodeId, life: Incarnation) -> Result<View, LogError> {
        let with = |now: &Projection, _: &Sealed| Ok(Projection { sequencer: (node, life), ..now.clone() });
        self.change(with).await
    }

    /// Lets other chains take new positions.
    pub async fn extend(&self, chains: Vec<Vec<UnitId>>, stripe: u32) -> Result<View, LogError> {
        self.change(|now, sealed| now.extended(&chains, stripe, sealed.start)).await
    }

    /// Merges ranges that continue each other. Returns whether there were any.
    pub async fn merge(&self) -> Result<bool, LogError> {
        let view = self.refresh().await?;
        if view.projection.merged().stretches.len() == view.projection.stretches.len() {
            return Ok(false);
        }
        self.change(|now, _| Ok(now.merged())).await?;
        Ok(true)
    }

    /// Copies everything that a unit lacks in the ranges below those that it serves, and then lets it serve them. Reads and appends go on
    /// meanwhile. It makes all positions of these ranges complete first, so that nothing changes behind the copy.
    pub async fn rebuild(&self, unit: UnitId) -> Result<View, LogError> {
        loop {
            let view = self.refresh().await?;
            let stretches = &view.projection.stretches;
            let lacks = |(range, chain): &(usize, usize)| {
                let (here, above) = (&stretches[*range].chains[*chain], &stretches[range + 1]);
                let same =
                    above.chains.get(*chain).filter(|c| here.units.iter().any(|u| c.units.contains(u)));
                !here.units.contains(&unit) && same.is_some_and(|c| c.units.contains(&unit))
            };
            let below = (0..stretches.len().saturating_sub(1)).rev();
            let mut all =
                below.flat_map(|range| (0..stretches[range].chains.len()).map(move |chain| (range, chain)));
            let Some((range, chain)) = all.find(lacks) else { return Ok(view) };
            self.fill_range(stretches[range].start, stretches[range].end).await?;
            self.copy_chain(&view, range, chain, unit).await?;
            let start = stretches[range].start;
            self.change(|now, _| {
                let same = now.stretches.get(range).is_some_and(|s| s.start == start);
                let moved = ProjectionError::Boundary(start, "the ranges changed during the rebuild");
                if same { now.with_rebuilt(range, chain, unit) } else { Err(moved) }
            })
            .await?;
        }
    }

    async fn copy_chain(
        &self,
        view: &View,
        range: usize,
        chain: usize,
        unit: UnitId,
    ) -> Result<(), LogError> {
        let stretch = &view.projection.stretches[range];
        let Some(source) = stretch.chains[chain].units.last().copied() else {
            return Err(LogError::NotSealed);
        };
        let addresses = stretch.addresses_of(chain);
        let bytes = self.client.options.step_bytes;
        let mut at = addresses.start;
        while at < addresses.end {
            let until = self.client.op_end();
            let found = self.client.look(view, source, at..addresses.end, bytes, until).await?;
            for (piece, content) in found {
                let (first, end) = piece.span();
                if matches!(piece, Piece::Deleted { .. }) {
                    self.client.erase(view, unit, first, end, until).await?;
                } else {
                    self.client.copy(view, unit, &piece, content.as_ref(), until).await?;
                }
                at = at.max(end);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "changes_test.rs"]
mod tests;

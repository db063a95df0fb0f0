//! Chooses the units and the sequencer of the next Loglet.

use std::cmp::Reverse;
use std::time::Duration;

use atoll_contract::{LogletSpec, PlanError};
use atoll_core::level::Level;
use atoll_core::{Candidate, Directory, Identify, Identity, NodeId};

use crate::loglet::OPEN_EPOCH;
use crate::projection::{MAX_CHAIN, Projection, UnitId};
use crate::provider::{CorfuProvider, OPTIONS, SEQUENCER_ROLE, UNIT_ROLE};

/// How long a node may take to identify itself before it counts as down.
const IDENTIFY_TIMEOUT: Duration = Duration::from_millis(300);
/// The same limit for the first segment of a log, for which no append waits.
const IDENTIFY_FOR_NEW: Duration = Duration::from_secs(2);
/// The units of a chain, unless a specification says otherwise: one may fail.
const USUAL_CHAIN: usize = 2;
/// The positions of a stripe, unless a specification says otherwise.
const USUAL_STRIPE: u32 = 64;
/// The most units of one Loglet.
const MAX_UNITS: usize = 32;

/// The feature level from which chains may name Loglets of this kind (X28).
const SINCE: Level = Level(2);

/// Everything that a choice depends on.
struct Choice<'a> {
    spec: &'a LogletSpec,
    previous: Option<&'a Projection>,
    candidates: Vec<Candidate>,
    up: Vec<Identity>,
    directory: &'a dyn Directory,
}

/// How many units and chains there are.
struct Shape {
    /// The units of each chain.
    length: usize,
    chains: usize,
    /// See [`Projection::wanted`].
    wanted: (u32, u32),
}

impl CorfuProvider {
    /// Returns a projection that satisfies the specification. All of its units answer: a chain with a dead unit takes no appends.
    pub(crate) async fn choose(
        &self,
        spec: &LogletSpec,
        previous: Option<&Projection>,
    ) -> Result<Projection, PlanError> {
        if !self.env.allows_soon(SINCE).await {
            let allowed =
                "only once all members can read it: finish the upgrade with `atoll cluster upgrade`";
            return Err(PlanError::Invalid { what: "a CORFU loglet", allowed });
        }
        spec.check(self, &OPTIONS)?;
        let candidates = self.directory.candidates();
        // A node that is known to be down is asked only if the specification names it.
        let mut ask: Vec<NodeId> = candidates.iter().filter(|c| c.alive).map(|c| c.node).collect();
        ask.extend(spec.named());
        ask.sort_unstable();
        ask.dedup();
        let is_first = previous.is_none() && spec.held.is_empty();
        let patience = if is_first { IDENTIFY_FOR_NEW } else { IDENTIFY_TIMEOUT };
        let until = self.env.now().after(patience);
        let replies = self.env.gather(&ask, Identify {}, until, |_| false).await;
        let up = replies.into_ok().map(|(_, identity)| identity).collect();
        let choice = Choice { spec, previous, candidates, up, directory: &*self.directory };
        let (units, shape) = choice.units()?;
        let sequencer = choice.sequencer(&units)?;
        let stripe = choice.number("stripe", 1 << 20)?.map_or(USUAL_STRIPE, |n| n as u32);
        let chains = units
            .chunks(shape.length)
            .map(|chain| chain.iter().map(|i| (i.node, i.storage)).collect::<Vec<UnitId>>());
        let mut planned =
            Projection::simple(OPEN_EPOCH, (sequencer.node, sequencer.incarnation), stripe, chains.collect());
        planned.wanted = shape.wanted;
        let allowed = "chains that share no unit";
        planned.check(None).map_err(|_| PlanError::Invalid { what: "units of a CORFU loglet", allowed })?;
        Ok(planned)
    }
}

impl Choice<'_> {
    fn number(&self, option: &str, most: usize) -> Result<Option<usize>, PlanError> {
        let Some(text) = self.spec.options.get(option) else { return Ok(None) };
        let number = text.parse::<usize>().ok().filter(|n| (1..=most).contains(n));
        number.map(Some).ok_or(PlanError::Invalid {
            what: "options chains, replicas and stripe of a CORFU loglet",
            allowed: "whole numbers from 1 on; at most 32 units in chains of at most 9",
        })
    }

    /// Returns how many units each chain has, and how many chains there are, for this many nodes that are up, of which `fit` suit.
    fn shape(&self, up: usize, fit: usize) -> Result<Shape, PlanError> {
        let before = self.previous.map(|p| (p.wanted.0 as usize, p.wanted.1 as usize));
        let (chains, replicas) = (self.number("chains", MAX_UNITS)?, self.number("replicas", MAX_CHAIN)?);
        let usual = before.map_or(USUAL_CHAIN, |(length, _)| length.max(USUAL_CHAIN));
        let mut wanted = None;
        let (length, chains) = match (self.spec.placed(UNIT_ROLE).map(<[NodeId]>::len), chains, replicas) {
            (Some(n), Some(chains), _) if n % chains == 0 => (n / chains, chains),
            (Some(n), None, Some(replicas)) if n % replicas == 0 => (replicas, n / replicas),
            (Some(n), None, None) if n >= 2 * USUAL_CHAIN && n % USUAL_CHAIN == 0 => {
                (USUAL_CHAIN, n / USUAL_CHAIN)
            }
            (Some(n), None, None) => (n, 1),
            (Some(_), ..) => (0, 0),
            (None, chains, replicas) => {
                let members = self.candidates.iter().filter(|c| c.log && !c.draining).count().max(1);
                let length = replicas.unwrap_or(usual.min(members));
                let many =
                    chains.unwrap_or(before.map_or(1, |(_, chains)| chains).min((members / length).max(1)));
                wanted = Some((length as u32, many as u32));
                // A chain takes appends only while all of its units are up. So what the specification leaves open becomes smaller if nodes
                // are down, but two copies remain if possible.
                let able = fit.max(USUAL_CHAIN.min(up)).max(1);
                let length = replicas.unwrap_or(length.min(able));
                (length, chains.unwrap_or(many.min((able / length).max(1))))
            }
        };
        let fits = (1..=MAX_CHAIN).contains(&length) && (1..=MAX_UNITS).contains(&(length * chains));
        let wanted = wanted.unwrap_or((length as u32, chains as u32));
        fits.then_some(Shape { length, chains, wanted }).ok_or(PlanError::Invalid {
            what: "number of units",
            allowed: "a multiple of the number of chains; 1 to 9 for each chain, at most 32",
        })
    }

    /// Returns the units, chain after chain, and the shape of the chains.
    fn units(&self) -> Result<(Vec<&Identity>, Shape), PlanError> {
        let mut ranked: Vec<&Identity> = self.up.iter().filter(|i| i.log && !i.failed).collect();
        let fit = ranked.iter().filter(|i| self.unfit(i) == 0).count();
        let shape = self.shape(ranked.len(), fit)?;
        let wanted = shape.length * shape.chains;
        if let Some(named) = self.spec.placed(UNIT_ROLE) {
            let twice = named.iter().enumerate().any(|(i, n)| named[..i].contains(n));
            if twice {
                return Err(PlanError::Invalid { what: "units", allowed: "each node once" });
            }
            let one = |node: &NodeId| match self.up.iter().find(|i| i.node == *node) {
                Some(i) if i.log => Ok(i),
                Some(_) => Err(PlanError::Invalid { what: "units", allowed: "nodes with the role \"log\"" }),
                None => Err(PlanError::NodeDown(*node)),
            };
            return Ok((named.iter().map(one).collect::<Result<_, _>>()?, shape));
        }
        // A node that has the entries before the new ones keeps its place, whatever kind they are of.
        let held = |i: &Identity| {
            self.previous.is_some_and(|p| p.units().contains(&(i.node, i.storage)))
                || self.spec.held_by(i.node) == Some(i.storage)
        };
        ranked.sort_by_key(|i| (self.unfit(i), Reverse(self.reached(i.node)), !held(i), i.node));
        if ranked.len() < wanted {
            return Err(PlanError::Missing { role: UNIT_ROLE, up: ranked.len(), wanted });
        }
        ranked.truncate(wanted);
        ranked.sort_by_key(|i| i.node);
        Ok((ranked, shape))
    }

    /// Chooses a sequencer that as many members reach as possible; then one on the node of a unit, which saves a hop for it.
    fn sequencer(&self, units: &[&Identity]) -> Result<&Identity, PlanError> {
        if let Some(named) = self.spec.placed(SEQUENCER_ROLE) {
            let [node] = *named else {
                return Err(PlanError::Invalid { what: "sequencer", allowed: "one node" });
            };
            let identity = self.up.iter().find(|i| i.node == node).ok_or(PlanError::NodeDown(node))?;
            let allowed = "a node with the role \"sequencer\"";
            return if identity.sequencer {
                Ok(identity)
            } else {
                Err(PlanError::Invalid { what: "sequencer", allowed })
            };
        }
        let kept = self.previous.map(|p| p.sequencer.0);
        let rank = |i: &&Identity| {
            let is_unit = units.iter().any(|unit| unit.node == i.node);
            (self.unfit(i), Reverse(self.reached(i.node)), !is_unit, kept != Some(i.node), i.node)
        };
        let fit = self.up.iter().filter(|i| i.sequencer);
        fit.min_by_key(rank).ok_or(PlanError::Missing { role: SEQUENCER_ROLE, up: 0, wanted: 1 })
    }

    /// Returns how many members reach a node.
    fn reached(&self, node: NodeId) -> usize {
        self.candidates.iter().filter(|c| c.node == node || self.directory.reaches(c.node, node)).count()
    }

    /// Returns how unfit a node is. Lower is better.
    fn unfit(&self, i: &Identity) -> u8 {
        let seen = self.candidates.iter().find(|c| c.node == i.node);
        let is_failing = seen.is_some_and(|c| c.failing);
        let is_leaving = i.draining || seen.is_some_and(|c| c.draining || c.leaving);
        u8::from(i.failed) * 8
            + u8::from(is_failing) * 4
            + u8::from(self.spec.avoid.contains(&i.node)) * 2
            + u8::from(is_leaving)
    }
}

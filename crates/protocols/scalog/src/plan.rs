//! Chooses the shards, the orderers, the tree of aggregators and the ordering log of the next Loglet.

use std::cmp::Reverse;
use std::time::Duration;

use atoll_contract::{LogletSpec, PlanError};
use atoll_core::level::Level;
use atoll_core::{Candidate, Directory, Identify, Identity, NodeId};

use crate::config::{CONFIG_FORMAT, MAX_REPLICAS, MAX_SHARDS, ScalogConfig, Server, ShardSpec};
use crate::loglet::ScalogOptions;
use crate::provider::{AGGREGATOR_ROLE, OPTIONS, ORDERER_ROLE, ORDERING, STORAGE_ROLE, ScalogProvider};

/// How long a node may take to identify itself before it counts as down.
const IDENTIFY_TIMEOUT: Duration = Duration::from_millis(300);
/// The same limit for the first segment of a log, for which no append waits.
const IDENTIFY_FOR_NEW: Duration = Duration::from_secs(2);
/// The orderers, unless a specification says otherwise. One works; the others take over.
const USUAL_ORDERERS: usize = 3;

/// The feature level from which chains may name Loglets of this kind (X28).
const SINCE: Level = Level(2);

/// Everything that a choice depends on.
struct Choice<'a> {
    spec: &'a LogletSpec,
    previous: Option<&'a ScalogConfig>,
    candidates: Vec<Candidate>,
    up: Vec<Identity>,
    options: &'a ScalogOptions,
    directory: &'a dyn Directory,
}

/// How many shards there are.
struct Shape {
    shards: usize,
    /// The servers of each.
    replicas: usize,
    /// See [`ScalogConfig::wanted`].
    wanted: (u32, u32),
}

impl ScalogProvider {
    /// Returns a configuration that satisfies the specification. All of its servers answer: a shard with a dead server takes no appends.
    pub(crate) async fn choose(
        &self,
        spec: &LogletSpec,
        previous: Option<&ScalogConfig>,
    ) -> Result<ScalogConfig, PlanError> {
        if !self.env.allows_soon(SINCE).await {
            let allowed =
                "only once all members can read it: finish the upgrade with `atoll cluster upgrade`";
            return Err(PlanError::Invalid { what: "a scalog loglet", allowed });
        }
        let (whole, parts) = spec.split_parts();
        whole.check(self, &OPTIONS)?;
        if let Some(part) = parts.iter().find(|part| **part != ORDERING) {
            let (wanted, known) = ((*part).to_owned(), ORDERING.to_owned());
            return Err(PlanError::Unknown { kind: crate::provider::KIND, what: "part", wanted, known });
        }
        let candidates = self.directory.0.candidates();
        // A node that is known to be down is asked only if the specification names it.
        let mut ask: Vec<NodeId> = candidates.iter().filter(|c| c.alive).map(|c| c.node).collect();
        ask.extend(whole.named());
        ask.sort_unstable();
        ask.dedup();
        let is_first = previous.is_none() && spec.held.is_empty();
        let patience = if is_first { IDENTIFY_FOR_NEW } else { IDENTIFY_TIMEOUT };
        let until = self.env.now().after(patience);
        let replies = self.env.gather(&ask, Identify {}, until, |_| false).await;
        let up = replies.into_ok().map(|(_, identity)| identity).collect();
        let (options, directory) = (&*self.options, &*self.directory.0);
        let choice = Choice { spec: &whole, previous, candidates, up, options, directory };
        let (shards, wanted) = choice.shards()?;
        let orderers = choice.orderers()?;
        let fan_in = choice.number("fan_in", 2, 1 << 16)?.unwrap_or(self.options.fan_in);
        let nodes = choice.aggregators(&orderers)?;
        let aggregators = ScalogConfig::tree(&nodes, shards.len(), fan_in);
        let interval_us = choice.number("interval_us", 1, 1 << 30)?.map(|n| n as u32);
        let interval_us = interval_us.or(previous.map(|p| p.interval_us)).unwrap_or(self.options.interval_us);
        let ordering = self.logs.plan(&spec.of_part(ORDERING), previous.map(|p| &p.ordering)).await?;
        let (format, added) = (CONFIG_FORMAT, Vec::new());
        Ok(ScalogConfig { format, shards, aggregators, orderers, interval_us, added, wanted, ordering })
    }
}

impl Choice<'_> {
    fn number(&self, option: &str, least: usize, most: usize) -> Result<Option<usize>, PlanError> {
        let Some(text) = self.spec.options.get(option) else { return Ok(None) };
        let number = text.parse::<usize>().ok().filter(|n| (least..=most).contains(n));
        number.map(Some).ok_or(PlanError::Invalid {
            what: "options shards, replicas, interval_us and fan_in of a scalog loglet",
            allowed: "whole numbers; 1 to 1024 shards of 1 to 9 replicas, a fan-in of at least 2",
        })
    }

    /// Returns the number of shards and of their servers, for this many nodes that are up, of which `fit` suit. A shard takes appends only
    /// while all of its servers are up. So what the specification leaves open becomes smaller if nodes are down, but two copies remain if
    /// possible.
    fn shape(&self, up: usize, fit: usize) -> Result<Shape, PlanError> {
        let (shards, replicas) =
            (self.number("shards", 1, MAX_SHARDS)?, self.number("replicas", 1, MAX_REPLICAS)?);
        let before = self.previous.map(|p| (p.wanted.0 as usize, p.wanted.1 as usize));
        let usual = before.map_or(self.options.replicas, |(_, n)| n.max(self.options.replicas)).max(1);
        let (shape, is_whole) = match self.spec.placed(STORAGE_ROLE).map(<[NodeId]>::len) {
            Some(named) => {
                let replicas = replicas
                    .or(shards.filter(|n| named.is_multiple_of(*n)).map(|n| named / n))
                    .unwrap_or(usual.min(named.max(1)));
                let shards = shards.unwrap_or((named / replicas.max(1)).max(1));
                let wanted = (shards as u32, replicas as u32);
                (Shape { shards, replicas, wanted }, shards * replicas == named)
            }
            None => {
                let members = self.candidates.iter().filter(|c| c.log && !c.draining).count().max(1);
                let length = replicas.unwrap_or(usual.min(members));
                let fit_in = (members / length).max(1);
                let many = shards.unwrap_or(before.map_or(fit_in, |(n, _)| n.clamp(1, fit_in)));
                let wanted = (many as u32, length as u32);
                let able = fit.max(self.options.replicas.min(up)).max(1);
                let replicas = replicas.unwrap_or(length.min(able));
                let shards = shards.unwrap_or(many.min((able / replicas).max(1)));
                (Shape { shards, replicas, wanted }, true)
            }
        };
        let fits = (1..=MAX_REPLICAS).contains(&shape.replicas) && (1..=MAX_SHARDS).contains(&shape.shards);
        (is_whole && fits).then_some(shape).ok_or(PlanError::Invalid {
            what: "number of storage servers",
            allowed: "the number of shards times that of replicas; 1 to 9 replicas",
        })
    }

    /// Returns the shards, and what to note as [`ScalogConfig::wanted`]. The numbers of shards start at 0 in each Loglet.
    fn shards(&self) -> Result<(Vec<ShardSpec>, (u32, u32)), PlanError> {
        let mut ranked: Vec<&Identity> = self.up.iter().filter(|i| i.log && !i.failed).collect();
        let fit = ranked.iter().filter(|i| self.unfit(i) == 0).count();
        let shape = self.shape(ranked.len(), fit)?;
        let wanted = shape.shards * shape.replicas;
        let chosen: Vec<&Identity> = match self.spec.placed(STORAGE_ROLE) {
            Some(named) => {
                if named.iter().enumerate().any(|(i, n)| named[..i].contains(n)) {
                    return Err(PlanError::Invalid { what: "storage servers", allowed: "each node once" });
                }
                let one = |node: &NodeId| match self.up.iter().find(|i| i.node == *node) {
                    Some(i) if i.log => Ok(i),
                    Some(_) => Err(PlanError::Invalid {
                        what: "storage servers",
                        allowed: "nodes with the role \"log\"",
                    }),
                    None => Err(PlanError::NodeDown(*node)),
                };
                named.iter().map(one).collect::<Result<_, _>>()?
            }
            None => {
                ranked.sort_by_key(|i| {
                    (self.unfit(i), Reverse(self.reached(i.node)), !self.has_held(i), i.node)
                });
                ranked.truncate(wanted);
                ranked.sort_by_key(|i| i.node);
                ranked
            }
        };
        if chosen.len() < wanted {
            return Err(PlanError::Missing { role: STORAGE_ROLE, up: chosen.len(), wanted });
        }
        let server = |i: &&Identity| Server { node: i.node, storage: i.storage };
        let shard = |(n, some): (usize, &[&Identity])| ShardSpec {
            shard: n as u32,
            servers: some.iter().map(server).collect(),
        };
        let shards = chosen.chunks(shape.replicas).enumerate().map(shard).collect();
        Ok((shards, shape.wanted))
    }

    /// Returns whether a data directory has entries of the Loglet before, of whatever kind that is.
    fn has_held(&self, i: &Identity) -> bool {
        let mut servers = self.previous.iter().flat_map(|p| p.all_shards()).flat_map(|s| &s.servers);
        servers.any(|s| (s.node, s.storage) == (i.node, i.storage))
            || self.spec.held_by(i.node) == Some(i.storage)
    }

    /// Returns how many members reach a node.
    fn reached(&self, node: NodeId) -> usize {
        self.candidates.iter().filter(|c| c.node == node || self.directory.reaches(c.node, node)).count()
    }

    /// Returns the nodes of a role that keeps nothing: those that are named, or the fittest.
    fn helpers(&self, role: &'static str, most: usize) -> Result<Vec<NodeId>, PlanError> {
        if let Some(named) = self.spec.placed(role) {
            let down = named.iter().find(|node| !self.up.iter().any(|i| i.node == **node));
            return match down {
                Some(node) => Err(PlanError::NodeDown(*node)),
                None if named.is_empty() => {
                    Err(PlanError::Invalid { what: role, allowed: "at least one node" })
                }
                None => Ok(named.to_vec()),
            };
        }
        let mut fit: Vec<&Identity> = self.up.iter().filter(|i| i.sequencer).collect();
        fit.sort_by_key(|i| (self.unfit(i), i.node));
        Ok(fit.iter().take(most).map(|i| i.node).collect())
    }

    fn orderers(&self) -> Result<Vec<NodeId>, PlanError> {
        let orderers = self.helpers(ORDERER_ROLE, USUAL_ORDERERS)?;
        if orderers.is_empty() {
            Err(PlanError::Missing { role: ORDERER_ROLE, up: 0, wanted: 1 })
        } else {
            Ok(orderers)
        }
    }

    /// Returns the nodes over which aggregators are spread. The first orderer has enough to do.
    fn aggregators(&self, orderers: &[NodeId]) -> Result<Vec<NodeId>, PlanError> {
        let mut nodes = self.helpers(AGGREGATOR_ROLE, usize::MAX)?;
        if nodes.len() > 1 && self.spec.placed(AGGREGATOR_ROLE).is_none() {
            nodes.sort_by_key(|node| Reverse(*node != orderers[0]));
            nodes.truncate(nodes.len() - 1);
        }
        Ok(nodes)
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

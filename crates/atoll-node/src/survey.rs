//! Surveys the state of logs and servers. Servers are asked only about given Loglets, never about all that they hold, which may be a
//! million.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Duties, Extent, LogPos, LogletId, LogletProvider, Progress, Registry};
use atoll_core::{Env, NodeId};
use atoll_log::virtual_log::Segment;

use crate::logs::{Known, Logs};
use crate::members::Members;

/// How long to wait for a register.
const READ: Duration = Duration::from_secs(2);
/// How many chains are read at the same time.
const READ_AT_ONCE: usize = 32;
/// A segment of a chain, and the range of it that can be read.
#[derive(Clone, Debug)]
pub struct Readable {
    /// The segment.
    pub segment: Segment,
    /// Which nodes hold and which node orders its entries.
    pub duties: Duties,
    /// The first position that can be read.
    pub from: LogPos,
    /// The first position after the range.
    pub to: LogPos,
}

impl Readable {
    /// Returns the range as offsets in the Loglet.
    pub fn extent(&self) -> Extent {
        let (segment, loglet) = (&self.segment, self.segment.loglet);
        let range = segment.offset_of(self.from)..segment.offset_of(self.to);
        let (config, sealed) = (segment.config.clone(), segment.sealed_config.clone());
        Extent { loglet, config, sealed, range }
    }
}

/// The progress that each server reported for its Loglets, if it answered.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    servers: BTreeMap<(NodeId, LogletId), Progress>,
}

/// A node, and the kind of Loglet that it is asked about.
type Question = (NodeId, &'static str);

impl Survey {
    /// Asks the members that hold these segments and appear to be up.
    pub async fn take(env: &Env, members: &Members, registry: &Registry, segments: &[Readable]) -> Survey {
        let up: Vec<NodeId> = atoll_core::Directory::candidates(members)
            .into_iter()
            .filter(|c| c.log && c.alive)
            .map(|c| c.node)
            .collect();
        Survey::ask(env, registry, segments, |node| up.contains(&node)).await
    }

    /// Asks this node's own servers about these segments.
    pub async fn here(env: &Env, registry: &Registry, segments: &[Readable]) -> Survey {
        let me = env.node();
        Survey::ask(env, registry, segments, |node| node == me).await
    }

    async fn ask(
        env: &Env,
        registry: &Registry,
        segments: &[Readable],
        wanted: impl Fn(NodeId) -> bool,
    ) -> Survey {
        let mut questions: BTreeMap<Question, (Arc<dyn LogletProvider>, Vec<Extent>)> = BTreeMap::new();
        for readable in segments {
            let Ok(provider) = registry.provider(&readable.segment.kind) else { continue };
            for (node, _) in readable.duties.holders().filter(|(node, _)| wanted(*node)) {
                let question = questions.entry((node, provider.kind()));
                question.or_insert_with(|| (provider.clone(), Vec::new())).1.push(readable.extent());
            }
        }
        let mut waits = Vec::new();
        for ((node, _), (provider, extents)) in questions {
            let loglets: Vec<LogletId> = extents.iter().map(|e| e.loglet).collect();
            let ask = async move { provider.progress(node, &extents).await };
            waits.push((node, loglets, env.launch("survey.ask", ask)));
        }
        let mut servers = BTreeMap::new();
        for (node, loglets, wait) in waits {
            if let Ok(Some(progress)) = wait.await {
                servers.extend(loglets.into_iter().map(|loglet| (node, loglet)).zip(progress));
            }
        }
        Survey { servers }
    }

    /// Returns the progress of a server with a segment: the first position up to which it has all entries in order, and how many entries of
    /// the range it lacks. None if it was not asked or did not answer.
    pub fn progress(&self, node: NodeId, segment: &Segment) -> Option<(LogPos, u64)> {
        let progress = self.servers.get(&(node, segment.loglet))?;
        Some((segment.position_of(progress.has_up_to), progress.lacks))
    }
}

/// Returns the segments in a log's chain, with the nodes that hold them and the readable range of each. Does not include segments in index
/// pages, see [`atoll_log::Chain::pages`].
pub fn segments(logs: &Logs, log: &Known) -> Vec<Readable> {
    let (chain, tail) = (&log.chain.chain, log.tail);
    let trim = chain.trim();
    let readable = |segment: &Segment| {
        let provider = logs.registry().provider(&segment.kind);
        let duties = provider.map_or_else(|_| Duties::default(), |p| p.duties(&segment.config));
        let to = segment.stop.unwrap_or(tail).max(segment.start);
        Readable { segment: segment.clone(), duties, from: segment.start.max(trim).min(to), to }
    };
    chain.segments().iter().map(readable).collect()
}

/// Describes what a node still holds of any log, according to the chains that this node has cached. None if it holds nothing.
pub fn held_by(logs: &Logs, node: NodeId) -> Option<String> {
    let mut held = Held::default();
    logs.known().iter().for_each(|log| held.count(logs, log, node));
    held.words()
}

/// Describes what a node still holds of any log of the cluster. None if it holds nothing and may be removed. Reads every chain again,
/// because a cached one may date from before a segment was placed on the node. A chain that cannot be read counts as holding something
/// (vlog-V23).
pub async fn held_afresh(env: &Env, logs: &Logs, node: NodeId) -> Option<String> {
    let Ok(Ok(Ok(names))) = env.within(READ, logs.list()).await else {
        return Some("logs, maybe: the list of logs could not be read".to_owned());
    };
    let mut held = Held::default();
    for part in names.chunks(READ_AT_ONCE) {
        let asked: Vec<_> = part.iter().map(|name| (name, logs.read(name))).collect();
        for (name, asked) in asked {
            match env.within(READ, asked).await {
                Ok(Ok(Ok(known))) => held.count(logs, &known, node),
                _ => return Some(format!("log {name:?}, maybe: its chain could not be read")),
            }
        }
    }
    held.words()
}

/// Counts over all logs.
#[derive(Debug, Default)]
struct Held {
    segments: u64,
    sequencers: u64,
    example: Option<String>,
}

impl Held {
    fn count(&mut self, logs: &Logs, log: &Known, node: NodeId) {
        let chain = &log.chain.chain;
        let trim = chain.trim();
        for segment in chain.segments() {
            let Ok(provider) = logs.registry().provider(&segment.kind) else { continue };
            let duties = provider.duties(&segment.config);
            let readable = segment.stop.is_none_or(|stop| segment.start.max(trim) < stop);
            let server = readable && duties.is_holder(node);
            let sequencer = segment.stop.is_none() && duties.is_sequencer(node);
            self.segments += u64::from(server);
            self.sequencers += u64::from(sequencer);
            if server || sequencer {
                self.example.get_or_insert_with(|| log.name.clone());
            }
        }
        // A page that does not say which nodes hold its segments may list some of this node's.
        for page in chain.pages().iter().filter(|p| p.may_be_on(|holder, _| holder == node)) {
            self.segments += page.segments;
            self.example.get_or_insert_with(|| log.name.clone());
        }
    }

    fn words(self) -> Option<String> {
        let (segments, sequencers) = (self.segments, self.sequencers);
        self.example.map(|name| {
            format!("{segments} segments and {sequencers} sequencers, of log {name:?} among others")
        })
    }
}

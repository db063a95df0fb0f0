//! Creates NativeLoglets: plans configurations from the nodes that answer, and opens, copies and deletes loglets.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Batch, Binding, Duties, Duty, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider,
    LogletSpec, Offset, PlanError, Progress, ReadError, ReadFrom, Reason, Remains, RoleOfKind,
    Unavailability,
};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Candidate, Directory, Encode, Env, Identify, Identity, NodeId, StorageId};
use atoll_loglet_store::status::{ask_status, delete_here, held_here, progress_of, remains_here};
use atoll_loglet_store::{batches, skip_one_if};

use crate::mutants;
use crate::reasons;
use crate::roles::LOG_SERVER;

use super::config::{self, MAX_SERVERS, NativeConfig};
use super::loglet::{NativeLoglet, NativeOptions, ServerSet, failure};
use super::message::{Answer, BackFill, Info, Repair, Seal, Verdict};

/// The name of this kind in chains.
pub const KIND: &str = "native";
/// The role of a node that holds entries, in specifications.
pub const SERVER: &str = "server";
/// The role of the node that orders appends, in specifications.
pub const SEQUENCER: &str = "sequencer";
/// All roles.
const ROLES: [RoleOfKind; 2] =
    [RoleOfKind { name: SERVER, holds: true }, RoleOfKind { name: SEQUENCER, holds: false }];
/// How long this node's own server may take to begin a back-fill, or to delete.
const OWN_ANSWER: Duration = Duration::from_secs(2);
/// How long a node may take to identify itself before it counts as down. It is short because appends may be waiting for the next segment.
const IDENTIFY_TIMEOUT: Duration = Duration::from_millis(300);
/// The same limit for the first segment of a log. It is longer because no append waits yet, and a busy node should not be rejected.
const IDENTIFY_FOR_NEW: Duration = Duration::from_secs(2);

/// The provider of "native".
#[derive(Clone)]
pub struct NativeProvider {
    env: Env,
    directory: Arc<dyn Directory>,
    options: Arc<NativeOptions>,
}

impl std::fmt::Debug for NativeProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NativeProvider({:?})", self.env)
    }
}

impl NativeProvider {
    /// Creates the provider for the node of `env`. It chooses among the members that `directory` shows.
    pub fn new(env: Env, directory: Arc<dyn Directory>, options: NativeOptions) -> Self {
        NativeProvider { env, directory, options: Arc::new(options) }
    }

    fn group(&self, id: LogletId, config_bytes: &Bytes) -> Result<ServerSet, PlanError> {
        let config = config::parse(config_bytes)?;
        Ok(ServerSet::new(self.env.clone(), id, config, config_bytes.clone(), self.options.clone()))
    }

    /// Like [`LogletProvider::open`], with the concrete type.
    pub fn open_native(&self, id: LogletId, config: &Bytes) -> Result<NativeLoglet, PlanError> {
        Ok(NativeLoglet::new(self.group(id, config)?))
    }

    /// Tells the servers where a sealed segment ends, so that each fetches the entries that it lacks. Only the owner of the chain may call
    /// this. Returns how many servers accepted it. Repeat the call for servers that were away.
    pub async fn back_fill(&self, id: LogletId, config: &Bytes, upto: Offset) -> Result<usize, PlanError> {
        let group = self.group(id, config)?;
        let request = BackFill { loglet: id, config: config.clone(), upto };
        let replies = self.env.gather(&group.nodes, request, group.round_end(), |_| false).await;
        Ok(replies.ok().filter(|(_, a)| a.verdict == (Verdict::Done {})).count())
    }

    /// Returns the identities of the nodes that answer, in the given order. Also asks nodes that are not expected to answer, but does not
    /// wait for them.
    async fn identify(
        &self,
        nodes: &[NodeId],
        patience: Duration,
        expected: impl Fn(NodeId) -> bool,
    ) -> Vec<Identity> {
        let until = self.env.now().after(patience);
        let replies = self
            .env
            .gather(nodes, Identify {}, until, |r| {
                let silent = |n: &NodeId| !r.ok().any(|(m, _)| m == *n) && !r.errors().any(|(m, _)| m == *n);
                !nodes.iter().any(|n| expected(*n) && silent(n))
            })
            .await;
        replies.into_ok().map(|(_, identity)| identity).collect()
    }

    async fn plan(
        &self,
        spec: &LogletSpec,
        previous: Option<NativeConfig>,
    ) -> Result<NativeConfig, PlanError> {
        spec.check(self, &[])?;
        let candidates = self.directory.candidates();
        // Do not ask a node that is known to be down, unless the specification names it: it is unlikely to answer.
        let mut ask: Vec<NodeId> = candidates.iter().filter(|c| c.alive).map(|c| c.node).collect();
        ask.extend(spec.named());
        ask.sort_unstable();
        ask.dedup();
        let named = |n: NodeId| spec.named().any(|m| m == n);
        let doubted =
            |n: NodeId| spec.avoid.contains(&n) || candidates.iter().any(|c| c.node == n && !c.alive);
        let patience =
            if previous.is_some() || !spec.held.is_empty() { IDENTIFY_TIMEOUT } else { IDENTIFY_FOR_NEW };
        let up = self.identify(&ask, patience, |n| named(n) || !doubted(n)).await;
        let servers = self.pick_servers(spec, previous.as_ref(), &candidates, &up)?;
        let sequencer =
            pick_sequencer(spec, previous.as_ref(), &servers, &up, &candidates, &*self.directory)?;
        Ok(NativeConfig::new(servers, (sequencer.node, sequencer.incarnation))?)
    }

    fn pick_servers(
        &self,
        spec: &LogletSpec,
        previous: Option<&NativeConfig>,
        candidates: &[Candidate],
        up: &[Identity],
    ) -> Result<Vec<(NodeId, StorageId)>, PlanError> {
        let answers = |n: NodeId| up.iter().find(|i| i.node == n);
        if let Some(wanted) = spec.placed(SERVER) {
            if wanted.is_empty() || wanted.len() > MAX_SERVERS || wanted.len().is_multiple_of(2) {
                return Err(PlanError::Invalid { what: "number of servers", allowed: "1, 3, 5, 7 or 9" });
            }
            let twice = wanted.iter().enumerate().any(|(i, n)| wanted[..i].contains(n));
            if twice {
                return Err(PlanError::Invalid { what: "servers", allowed: "each node once" });
            }
            let mut servers = Vec::new();
            for node in wanted {
                let identity = answers(*node).ok_or(PlanError::NodeDown(*node))?;
                if !identity.log {
                    return Err(PlanError::Invalid {
                        what: "servers",
                        allowed: "nodes with the role \"log\"",
                    });
                }
                servers.push((*node, identity.storage));
            }
            return Ok(servers);
        }
        let members: Vec<&Candidate> = candidates.iter().filter(|c| c.log).collect();
        let wanted = previous.map_or(self.options.replicas, |p| p.servers.len().max(self.options.replicas));
        // A draining node may make a large segment smaller; a node that is merely down keeps its place.
        let staying = members.iter().filter(|c| !c.draining).count();
        let mut wanted = wanted.min(staying.max(1)).clamp(1, MAX_SERVERS);
        wanted -= usize::from(wanted.is_multiple_of(2));
        // Lower is better: first fitness, then membership in the previous segment, then id. A server of the previous segment that does not
        // answer may still be chosen: its data directory is known, a majority works without it, and it catches up when it returns.
        let mut ranked: Vec<(u8, bool, NodeId, StorageId)> = members
            .iter()
            .filter_map(|c| {
                let before = previous.and_then(|p| p.storage_of(c.node)).or_else(|| spec.held_by(c.node));
                match answers(c.node) {
                    Some(i) if !i.log => None,
                    Some(i) => {
                        let kept = before == Some(i.storage);
                        Some((unfitness(spec, c, i), !kept, c.node, i.storage))
                    }
                    None => before.map(|storage| (ABSENT, false, c.node, storage)),
                }
            })
            .collect();
        ranked.sort_unstable();
        ranked.truncate(wanted);
        let up = ranked.iter().filter(|(unfit, ..)| *unfit < FAILED).count();
        if ranked.len() < wanted || up < wanted / 2 + 1 {
            return Err(PlanError::TooFew { up, wanted });
        }
        let mut servers: Vec<_> = ranked.into_iter().map(|(_, _, node, storage)| (node, storage)).collect();
        servers.sort_unstable();
        Ok(servers)
    }

    async fn copy(
        &self,
        group: &ServerSet,
        source: &dyn Loglet,
        range: Range<Offset>,
    ) -> Result<(), LogletError> {
        let mut alive = self.seal_new(group).await?;
        let step_bytes = self.options.step_bytes as usize;
        let mut at = range.start;
        while at < range.end {
            let got =
                source.read(at..range.end, step_bytes, ReadFrom::Anywhere).await.map_err(|e| match e {
                    ReadError::Gone | ReadError::Trimmed(_) => LogletError::Gone,
                    _ => LogletError::Unavailable(Unavailability::NoQuorum),
                })?;
            let mut entries = got.entries;
            skip_one_if(mutants::NATIVE_COPY_SKIPS_ENTRY, &mut entries);
            for batch in batches(entries) {
                let first = Offset(at.since(range.start));
                self.copy_batch(group, &mut alive, first, &batch).await?;
                at = at.plus(batch.len() as u64);
            }
        }
        self.verify(group, Offset(range.end.since(range.start))).await
    }

    /// Creates the new loglet sealed; returns the servers that accepted it.
    async fn seal_new(&self, group: &ServerSet) -> Result<Vec<NodeId>, LogletError> {
        let request = Seal { loglet: group.id, config: group.config_bytes.clone() };
        let replies =
            self.env.gather_role(&group.nodes, LOG_SERVER, request, group.op_deadline(), |_| false).await;
        let error = failure(replies.ok().map(|(_, a)| &a.verdict));
        let sealed = |(node, a): (NodeId, &Answer)| {
            (a.verdict == (Verdict::Done {}) && a.state.sealed).then_some(node)
        };
        let alive: Vec<NodeId> = replies.ok().filter_map(sealed).collect();
        if alive.len() < group.config.quorum() { Err(error) } else { Ok(alive) }
    }

    /// Sends the next copy to the servers. All earlier copies are on a majority, so this one may name its start as known tail. A server
    /// that is lost on the way is left out and back-filled later.
    async fn copy_batch(
        &self,
        group: &ServerSet,
        alive: &mut Vec<NodeId>,
        first: Offset,
        batch: &Batch,
    ) -> Result<(), LogletError> {
        let request = Repair {
            loglet: group.id,
            config: group.config_bytes.clone(),
            first,
            count: batch.len() as u32,
            known_tail: first,
            batch: batch.bytes().clone(),
        };
        let replies = self.env.gather_role(alive, LOG_SERVER, request, group.op_deadline(), |_| false).await;
        let done: Vec<NodeId> =
            replies.ok().filter(|(_, a)| a.verdict == (Verdict::Done {})).map(|(n, _)| n).collect();
        if done.len() < group.config.quorum() {
            return Err(failure(replies.ok().map(|(_, a)| &a.verdict)));
        }
        if done.len() < alive.len() {
            hit("native.rebuild.server_lost");
        }
        *alive = done;
        Ok(())
    }

    /// Checks that the loglet is sealed, and exactly as long as it should be, on a majority (virtuallog §7, vlog-M2). The journal checks
    /// the records' checksums.
    async fn verify(&self, group: &ServerSet, count: Offset) -> Result<(), LogletError> {
        let request = Info { loglet: group.id, config: group.config_bytes.clone() };
        let replies =
            self.env.gather_role(&group.nodes, LOG_SERVER, request, group.round_end(), |_| false).await;
        let whole = replies.ok().filter(|(_, a)| a.state.sealed && a.state.local_tail == count).count();
        if whole < group.config.quorum() {
            return Err(failure(replies.ok().map(|(_, a)| &a.verdict)));
        }
        // The other servers learn from this which entries they lack.
        self.back_fill(group.id, &group.config_bytes, count).await.map_err(|_| LogletError::Gone)?;
        Ok(())
    }
}

/// Unfitness of a node that cannot store anything: its journal is closed, or its disk hangs.
const FAILED: u8 = 16;
/// Unfitness of a node that does not answer.
const ABSENT: u8 = 32;
/// Unfitness of a node that reports a failing or full disk.
const FAILING: u8 = 8;

fn unfitness(spec: &LogletSpec, candidate: &Candidate, identity: &Identity) -> u8 {
    u8::from(identity.failed) * FAILED
        + u8::from(candidate.failing) * FAILING
        + u8::from(spec.avoid.contains(&candidate.node)) * 4
        + u8::from(candidate.draining || candidate.leaving || identity.draining) * 2
        + u8::from(!candidate.alive)
}

fn pick_sequencer<'a>(
    spec: &LogletSpec,
    previous: Option<&NativeConfig>,
    servers: &[(NodeId, StorageId)],
    up: &'a [Identity],
    candidates: &[Candidate],
    directory: &dyn Directory,
) -> Result<&'a Identity, PlanError> {
    if let Some(wanted) = spec.placed(SEQUENCER) {
        let [wanted] = *wanted else {
            return Err(PlanError::Invalid { what: "sequencer", allowed: "one node" });
        };
        let identity = up.iter().find(|i| i.node == wanted).ok_or(PlanError::NodeDown(wanted))?;
        if !identity.sequencer {
            return Err(PlanError::Invalid {
                what: "sequencer",
                allowed: "a node with the role \"sequencer\"",
            });
        }
        return Ok(identity);
    }
    let reached_by = |node: NodeId, of: &mut dyn Iterator<Item = NodeId>| {
        of.filter(|other| *other != node && directory.reaches(*other, node)).count()
    };
    // A restarted sequencer may serve again in its new life. A majority of the servers must be able to reach it, and then as many members
    // as possible: otherwise two nodes that see different majorities take turns as sequencer (vlog-V18). After that, prefer a node that is
    // also a server, which saves a hop, then the previous sequencer, then the lowest id.
    up.iter()
        .filter(|i| i.sequencer)
        .min_by_key(|i| {
            let full = candidates.iter().any(|c| c.node == i.node && c.failing);
            let unfit = u8::from(i.failed || full) * 4
                + u8::from(spec.avoid.contains(&i.node)) * 2
                + u8::from(i.draining);
            let is_server = servers.iter().any(|(n, _)| *n == i.node);
            let stores = reached_by(i.node, &mut servers.iter().map(|(n, _)| *n)) + usize::from(is_server);
            let members = reached_by(i.node, &mut candidates.iter().map(|c| c.node));
            let blind = mutant(mutants::POLICY_LOWEST_ID);
            let no_quorum = !blind && stores * 2 <= servers.len();
            let kept = previous.is_some_and(|p| p.sequencer.0 == i.node);
            let reached = if blind { 0 } else { members };
            let elsewhere = spec.avoids_in(SEQUENCER, i.node);
            (no_quorum, unfit, std::cmp::Reverse(reached), elsewhere, !is_server, !kept, i.node)
        })
        .ok_or(PlanError::Missing { role: SEQUENCER, up: 0, wanted: 1 })
}

/// Returns which node does what for a loglet with this configuration.
pub(crate) fn duties(config: &Bytes) -> Duties {
    let Ok(config) = config::parse(config) else { return Duties::default() };
    let holds = |(node, storage)| Duty { role: SERVER, node, binding: Binding::Holds(storage) };
    let (node, life) = config.sequencer;
    let orders = Duty { role: SEQUENCER, node, binding: Binding::Orders(life) };
    Duties(config.servers.into_iter().map(holds).chain([orders]).collect())
}

impl LogletProvider for NativeProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn roles(&self) -> &'static [RoleOfKind] {
        &ROLES
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            let previous = previous.map(config::parse).transpose()?;
            Ok(self.plan(spec, previous).await?.to_bytes())
        })
    }

    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let group = self.group(id, config);
        Box::pin(async move {
            let group = group.map_err(|_| LogletError::Unavailable(Unavailability::NoQuorum))?;
            group.collect(false).await.map(|_| ())
        })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.open_native(id, config)?))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let group =
                self.group(id, config).map_err(|_| LogletError::Unavailable(Unavailability::NoQuorum))?;
            self.copy(&group, source, range).await
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let group = self.group(id, config);
        Box::pin(async move {
            let group = group.map_err(|_| LogletError::Unavailable(Unavailability::NoQuorum))?;
            group.delete().await
        })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Err(error) => vec![("unreadable", error.to_string())],
            Ok(config) => {
                let servers: Vec<String> = config.nodes().iter().map(NodeId::to_string).collect();
                vec![
                    ("servers", servers.join(",")),
                    ("sequencer", config.sequencer.0.to_string()),
                    ("quorum", config.quorum().to_string()),
                ]
            }
        }
    }

    fn duties(&self, config: &Bytes) -> Duties {
        duties(config)
    }

    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        config::parse(config).is_ok_and(|config| reasons::is_quorum(&config, reached))
    }

    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason> {
        reasons::reason(&config::parse(config).ok()?, evidence)
    }

    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        Box::pin(async move {
            let loglets: Vec<LogletId> = extents.iter().map(|e| e.loglet).collect();
            let known = ask_status(&self.env, node, LOG_SERVER, &loglets).await?;
            Some(extents.iter().map(|extent| progress_of(known.get(&extent.loglet), extent)).collect())
        })
    }

    fn back_fill(&self, extent: &Extent) -> BoxFuture<'_, ()> {
        let ask = BackFill { loglet: extent.loglet, config: extent.config.clone(), upto: extent.range.end };
        let asked = self.env.call(self.env.node(), ask);
        // Ignore the answer: the next round checks again.
        Box::pin(async move { drop(self.env.within(OWN_ANSWER, asked).await) })
    }

    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(held_here(&self.env, LOG_SERVER, above))
    }

    fn remains(&self, id: LogletId) -> BoxFuture<'_, Option<Remains>> {
        Box::pin(remains_here(&self.env, LOG_SERVER, id))
    }

    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(delete_here(&self.env, LOG_SERVER, id, OWN_ANSWER))
    }
}

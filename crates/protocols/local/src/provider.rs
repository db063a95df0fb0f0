//! Creates LocalLoglets: plans configurations, and opens, copies and deletes loglets.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Binding, Duties, Duty, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider, LogletSpec,
    Offset, PlanError, Progress, ReadFrom, Reason, Remains, RoleOfKind, Unavailability,
};
use atoll_core::{BoxFuture, Directory, Encode, Env, Identify, NodeId};

use super::config::{self, LocalConfig};
use super::loglet::{LocalLoglet, LocalOptions};
use crate::reasons;
use crate::roles::LOCAL_STORE;
use atoll_loglet_store::batches;
use atoll_loglet_store::message::{Delete, LogletStatus, Status};
use atoll_loglet_store::status::{delete_here, held_here};

/// The name of this kind in chains.
pub const KIND: &str = "local";
/// The role of the node that keeps the loglet, in specifications.
pub const SERVER: &str = "server";
/// How long this node's own store may take to delete.
const OWN_ANSWER: Duration = Duration::from_secs(2);
/// How long a node may take to identify itself before it counts as down.
const IDENTIFY_TIMEOUT: Duration = Duration::from_millis(300);

/// The provider of "local".
#[derive(Clone)]
pub struct LocalProvider {
    env: Env,
    directory: Arc<dyn Directory>,
    options: Arc<LocalOptions>,
}

impl std::fmt::Debug for LocalProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalProvider({:?})", self.env)
    }
}

impl LocalProvider {
    /// Creates the provider for the node of `env`. `directory` shows on which other nodes a loglet may be.
    pub fn new(env: Env, directory: Arc<dyn Directory>, options: LocalOptions) -> Self {
        LocalProvider { env, directory, options: Arc::new(options) }
    }

    fn open_local(&self, id: LogletId, bytes: &Bytes) -> Result<LocalLoglet, PlanError> {
        let config = config::parse(bytes)?;
        Ok(LocalLoglet::new(self.env.clone(), id, config, bytes.clone(), self.options.clone()))
    }

    /// Picks the requested node. Without a request, picks the previous node, then this one, then any other; nodes to avoid come last.
    async fn plan(&self, spec: &LogletSpec, previous: Option<LocalConfig>) -> Result<LocalConfig, PlanError> {
        spec.check(self, &[])?;
        let wanted = match spec.placed(SERVER) {
            Some([node]) => Some(*node),
            Some(_) => {
                return Err(PlanError::Invalid { what: "servers of a local loglet", allowed: "one node" });
            }
            None => None,
        };
        let mut nodes: Vec<NodeId> = match wanted {
            Some(node) => vec![node],
            None => self.directory.candidates().iter().filter(|c| c.log).map(|c| c.node).collect(),
        };
        let until = self.env.now().after(IDENTIFY_TIMEOUT);
        let replies = self.env.gather(&nodes, Identify {}, until, |_| false).await;
        let up: Vec<_> = replies.into_ok().filter(|(_, i)| i.log && !i.failed).collect();
        let own = self.env.node();
        nodes.retain(|n| up.iter().any(|(u, _)| u == n));
        nodes.sort_by_key(|n| {
            let kept = previous.is_some_and(|p| p.node == *n);
            (spec.avoid.contains(n), !kept, *n != own, *n)
        });
        match (nodes.first(), wanted) {
            (Some(node), _) => up
                .iter()
                .find(|(n, _)| n == node)
                .map(|(_, i)| LocalConfig { node: i.node, storage: i.storage })
                .ok_or(PlanError::NodeDown(*node)),
            (None, Some(node)) => Err(PlanError::NodeDown(node)),
            (None, None) => Err(PlanError::Missing { role: SERVER, up: 0, wanted: 1 }),
        }
    }
}

/// Returns which node does what for a loglet with this configuration.
pub(crate) fn duties(config: &Bytes) -> Duties {
    let Ok(config) = config::parse(config) else { return Duties::default() };
    let binding = Binding::Holds(config.storage);
    Duties(vec![Duty { role: SERVER, node: config.node, binding }])
}

impl LogletProvider for LocalProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn roles(&self) -> &'static [RoleOfKind] {
        &[RoleOfKind { name: SERVER, holds: true }]
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
        let loglet = self.open_local(id, config);
        Box::pin(async move {
            let loglet = loglet.map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))?;
            loglet.check_tail().await.map(|_| ())
        })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.open_local(id, config)?))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let unavailable = LogletError::Unavailable(Unavailability::NoQuorum);
            let loglet = self.open_local(id, config).map_err(|_| unavailable.clone())?;
            loglet.seal().await?;
            let mut at = range.start;
            while at < range.end {
                let got =
                    source.read(at..range.end, self.options.step_bytes as usize, ReadFrom::Anywhere).await;
                for batch in batches(got.map_err(|_| unavailable.clone())?.entries) {
                    loglet.copy_in(Offset(at.since(range.start)), &batch).await?;
                    at = at.plus(batch.len() as u64);
                }
            }
            let tail = loglet.check_tail().await?;
            let whole = tail.sealed.is_some() && tail.at.0 == range.end.since(range.start);
            if whole { Ok(()) } else { Err(unavailable) }
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.open_local(id, config);
        Box::pin(async move {
            let loglet = loglet.map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))?;
            loglet.ask(Delete { loglet: id }).await.map(|_| ())
        })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Ok(config) => vec![("node", config.node.to_string())],
            Err(error) => vec![("unreadable", error.to_string())],
        }
    }

    fn duties(&self, config: &Bytes) -> Duties {
        duties(config)
    }

    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        config::parse(config).is_ok_and(|config| reached(config.node))
    }

    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason> {
        reasons::reason(&config::parse(config).ok()?, evidence)
    }

    fn progress<'a>(&'a self, _node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        // The only node has everything, or nobody has.
        let whole = extents.iter().map(|e| Progress { has_up_to: e.range.end, lacks: 0 }).collect();
        Box::pin(std::future::ready(Some(whole)))
    }

    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(held_here(&self.env, LOCAL_STORE, above))
    }

    fn remains(&self, id: LogletId) -> BoxFuture<'_, Option<Remains>> {
        // The role lists its Loglets in the order of their ids.
        let above = id.0.checked_sub(1).map(LogletId);
        Box::pin(async move {
            let asked = self.env.call_role(self.env.node(), LOCAL_STORE, Status { above });
            let page = self.env.within(OWN_ANSWER, asked).await.ok()?.ok()?;
            let LogletStatus { loglet, state, missing, .. } = page.loglets.first()?;
            let range = state.trim..state.local_tail.max(state.known_tail);
            let remains = Remains { range, missing: *missing, acknowledged: state.known_tail };
            (*loglet == id).then_some(remains)
        })
    }

    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(delete_here(&self.env, LOCAL_STORE, id, OWN_ANSWER))
    }
}

//! Creates trio loglets: plans configurations, and opens, copies, fills and deletes loglets.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Binding, Duties, Duty, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider, LogletSpec,
    Offset, PlanError, Progress, ReadFrom, Reason, RoleOfKind, SealedConfig, Unavailability,
};
use atoll_core::{BoxFuture, Directory, Encode, Env, NodeId};
use atoll_loglet_store::batches;
use atoll_loglet_store::message::Delete;
use atoll_loglet_store::status::{ask_status, delete_here, held_here, progress_of};

use crate::config::{self, TrioConfig};
use crate::loglet::{TrioLoglet, TrioOptions};
use crate::message::BackFill;
use crate::{reasons, roles};

/// The name of this kind in chains.
pub const KIND: &str = "trio";
/// The role of the node that relays appends, in specifications.
pub const CLERK: &str = "clerk";
/// The role of the node that orders and holds entries, in specifications.
pub const STORE: &str = "store";
/// The role of the node that holds a second copy after the seal, in specifications.
pub const MIRROR: &str = "mirror";
/// All roles.
const ROLES: [RoleOfKind; 3] = [
    RoleOfKind { name: CLERK, holds: false },
    RoleOfKind { name: STORE, holds: true },
    RoleOfKind { name: MIRROR, holds: true },
];
/// How long this node's own holders may take to begin a back-fill, or to delete.
const OWN_ANSWER: Duration = Duration::from_secs(2);

/// The provider of "trio".
#[derive(Clone)]
pub struct TrioProvider {
    pub(crate) env: Env,
    pub(crate) directory: Arc<dyn Directory>,
    options: Arc<TrioOptions>,
}

impl std::fmt::Debug for TrioProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TrioProvider({:?})", self.env)
    }
}

impl TrioProvider {
    /// Creates the provider for the node of `env`. It chooses among the members that `directory` shows.
    pub fn new(env: Env, directory: Arc<dyn Directory>, options: TrioOptions) -> Self {
        TrioProvider { env, directory, options: Arc::new(options) }
    }

    fn open_trio(&self, id: LogletId, bytes: &Bytes) -> Result<TrioLoglet, PlanError> {
        let config = config::parse(bytes)?;
        Ok(TrioLoglet::new(self.env.clone(), id, config, bytes.clone(), self.options.clone()))
    }

    /// Like `open_trio`, for an operation that cannot report an unreadable configuration.
    fn opened(&self, id: LogletId, bytes: &Bytes) -> Result<TrioLoglet, LogletError> {
        self.open_trio(id, bytes).map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))
    }

    /// Copies the entries into a new loglet that is sealed.
    async fn copy(
        &self,
        loglet: &TrioLoglet,
        source: &dyn Loglet,
        range: Range<Offset>,
    ) -> Result<(), LogletError> {
        let unavailable = LogletError::Unavailable(Unavailability::NoQuorum);
        loglet.seal().await?;
        let mut at = range.start;
        while at < range.end {
            let step_bytes = self.options.step_bytes as usize;
            let got = source.read(at..range.end, step_bytes, ReadFrom::Anywhere).await;
            for batch in batches(got.map_err(|_| unavailable.clone())?.entries) {
                loglet.copy_in(Offset(at.since(range.start)), &batch).await?;
                at = at.plus(batch.len() as u64);
            }
        }
        let tail = loglet.check_tail().await?;
        let is_whole = tail.sealed.is_some() && tail.at.0 == range.end.since(range.start);
        if is_whole { Ok(()) } else { Err(unavailable) }
    }
}

/// Returns whether the node holds the extent as its store. If it is also the mirror, the first copy counts.
fn is_store(node: NodeId, extent: &Extent) -> bool {
    config::parse(&extent.config).is_ok_and(|config| config.store.0 == node)
}

/// Returns which node does what for a loglet with this configuration.
pub(crate) fn duties(config: &Bytes) -> Duties {
    let Ok(TrioConfig { clerk, store, mirror }) = config::parse(config) else { return Duties::default() };
    Duties(vec![
        Duty { role: CLERK, node: clerk.0, binding: Binding::Orders(clerk.1) },
        Duty { role: STORE, node: store.0, binding: Binding::Holds(store.1) },
        Duty { role: MIRROR, node: mirror.0, binding: Binding::Holds(mirror.1) },
    ])
}

impl LogletProvider for TrioProvider {
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
            Ok(self.choose(spec, previous).await?.to_bytes())
        })
    }

    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.opened(id, config);
        Box::pin(async move { loglet?.check_tail().await.map(|_| ()) })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.open_trio(id, config)?))
    }

    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        let loglet = self.open_trio(id, config)?;
        loglet.ends_at(config::parse_sealed(sealed)?);
        Ok(Arc::new(loglet))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move { self.copy(&self.opened(id, config)?, source, range).await })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.opened(id, config);
        Box::pin(async move { loglet?.ask_both(Delete { loglet: id }).await })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Ok(TrioConfig { clerk, store, mirror }) => {
                let nodes = [(CLERK, clerk.0), (STORE, store.0), (MIRROR, mirror.0)];
                nodes.into_iter().map(|(role, node)| (role, node.to_string())).collect()
            }
            Err(error) => vec![("unreadable", error.to_string())],
        }
    }

    fn duties(&self, config: &Bytes) -> Duties {
        duties(config)
    }

    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        config::parse(config).is_ok_and(|config| reached(config.store.0))
    }

    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason> {
        reasons::reason(&config::parse(config).ok()?, evidence)
    }

    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        Box::pin(async move {
            let of = |store: bool| -> Vec<LogletId> {
                extents.iter().filter(|e| is_store(node, e) == store).map(|e| e.loglet).collect()
            };
            let stored = ask_status(&self.env, node, roles::STORE, &of(true)).await?;
            let mirrored = ask_status(&self.env, node, roles::MIRROR, &of(false)).await?;
            let known =
                |e: &Extent| if is_store(node, e) { stored.get(&e.loglet) } else { mirrored.get(&e.loglet) };
            Some(extents.iter().map(|extent| progress_of(known(extent), extent)).collect())
        })
    }

    fn back_fill(&self, extent: &Extent) -> BoxFuture<'_, ()> {
        let own = self.env.node();
        if !config::parse(&extent.config).is_ok_and(|config| config.mirror.0 == own) {
            return Box::pin(std::future::ready(()));
        }
        let ask = BackFill { loglet: extent.loglet, config: extent.config.clone(), upto: extent.range.end };
        let asked = self.env.call(own, ask);
        // Ignore the answer: the next round checks again.
        Box::pin(async move { drop(self.env.within(OWN_ANSWER, asked).await) })
    }

    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(async move {
            let pages = [
                held_here(&self.env, roles::STORE, above).await?,
                held_here(&self.env, roles::MIRROR, above).await?,
            ];
            // A page with a successor says nothing about ids above its last one.
            let ends = pages.iter().filter(|(_, more)| *more).filter_map(|(ids, _)| ids.last().copied());
            let (end, more) = (ends.min(), pages.iter().any(|(_, more)| *more));
            let ids: BTreeSet<LogletId> = pages.iter().flat_map(|(ids, _)| ids).copied().collect();
            Some((ids.into_iter().filter(|id| end.is_none_or(|end| *id <= end)).collect(), more))
        })
    }

    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let stored = delete_here(&self.env, roles::STORE, id, OWN_ANSWER).await;
            let mirrored = delete_here(&self.env, roles::MIRROR, id, OWN_ANSWER).await;
            stored && mirrored
        })
    }
}

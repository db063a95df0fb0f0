//! Creates loglets in ZooKeeper: plans configurations, and opens, copies and deletes loglets.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Duties, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Offset, PlanError,
    Progress, ReadFrom, Reason, RoleOfKind, Unavailability,
};
use atoll_core::{BoxFuture, Encode, Env, Level, NodeId};
use atoll_loglet_store::{batches, skip_one_if};

use crate::config::{self, ZooKeeperConfig};
use crate::ensemble::{Ensemble, Fault, Op, Refusal, Request};
use crate::layout::{BUCKET_BATCHES, BucketNode, ENSEMBLE, Stored, TailNode, prefixes, token};
use crate::loglet::{Seen, Shared, Trouble, ZooKeeperLoglet, ZooKeeperOptions};
use crate::mutants;

/// The name of this kind in chains. Not the name of the door that serves ZooKeeper's clients.
pub const KIND: &str = "zookeeper-loglet";
/// The options of this kind: the servers of the ensemble, and the znode under which everything is.
pub const OPTIONS: [&str; 2] = ["connect", "root"];
/// The root unless a specification names another.
pub const USUAL_ROOT: &str = "/atoll";
/// The feature level from which chains may name loglets of this kind (X28).
const SINCE: Level = Level(2);
/// How long a plan waits for the ensemble.
const PLAN_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the ensemble with these servers.
type Connect = Arc<dyn Fn(&str) -> Arc<dyn Ensemble> + Send + Sync>;

/// The provider of this kind.
#[derive(Clone)]
pub struct ZooKeeperProvider {
    env: Env,
    connect: Connect,
    options: Arc<ZooKeeperOptions>,
    copies: Arc<AtomicU64>,
}

impl fmt::Debug for ZooKeeperProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeperProvider({:?})", self.env)
    }
}

impl ZooKeeperProvider {
    /// Creates the provider for the node of `env`, over real ensembles. It connects to none before the first loglet is used.
    pub fn new(env: Env, options: ZooKeeperOptions) -> Self {
        let (ensembles, timeout) = (crate::session::Ensembles::default(), options.session_timeout);
        Self::over(env, options, move |connect| ensembles.ensemble(connect, timeout))
    }

    /// Creates the provider for the node of `env`, over what `connect` returns.
    pub fn over(
        env: Env,
        options: ZooKeeperOptions,
        connect: impl Fn(&str) -> Arc<dyn Ensemble> + Send + Sync + 'static,
    ) -> Self {
        ZooKeeperProvider {
            env,
            connect: Arc::new(connect),
            options: Arc::new(options),
            copies: Arc::default(),
        }
    }

    fn open_handle(&self, id: LogletId, config: &Bytes) -> Result<ZooKeeperLoglet, PlanError> {
        let config = config::parse(config)?;
        let ensemble = (self.connect)(&config.connect);
        Ok(ZooKeeperLoglet::new(self.env.clone(), ensemble, id, &config, self.options.clone()))
    }

    /// Opens a handle for an operation on the ensemble.
    fn reached(&self, id: LogletId, config: &Bytes) -> Result<ZooKeeperLoglet, LogletError> {
        self.open_handle(id, config).map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))
    }

    /// Takes what the specification says, and the rest from the previous loglet. The ensemble must answer, because the log would stand
    /// still if its active loglet were sealed and the next one could not be used.
    async fn choose(
        &self,
        spec: &LogletSpec,
        previous: Option<ZooKeeperConfig>,
    ) -> Result<ZooKeeperConfig, PlanError> {
        if !self.env.allows_soon(SINCE).await {
            let allowed =
                "only once all members can read it: finish the upgrade with `atoll cluster upgrade`";
            return Err(PlanError::Invalid { what: "a loglet in ZooKeeper", allowed });
        }
        spec.check(self, &OPTIONS)?;
        let [connect, root] = OPTIONS.map(|option| spec.options.get(option).map(String::as_str));
        let before = previous.as_ref();
        let connect = connect.or(before.map(|p| p.connect.as_str())).unwrap_or_default();
        let root = root.or(before.map(|p| p.root.as_str())).unwrap_or(USUAL_ROOT);
        let mut config = ZooKeeperConfig::new(connect, root)?;
        let known = before.filter(|p| (&p.connect, &p.root) == (&config.connect, &config.root));
        let known = known.and_then(|previous| previous.token);
        let number = known.unwrap_or_else(|| self.env.random());
        config.token = Some(number);
        let path = token(&config.root, number);
        let requests = match known {
            // A token that was known must be there: otherwise this is another ensemble.
            Some(_) => vec![Request::Write(vec![Op::Check { path, version: 0 }])],
            None => mark(path),
        };
        let asked = (self.connect)(&config.connect).send(requests);
        let answer = match self.env.within(PLAN_TIMEOUT, asked).await {
            Ok(Ok(mut answers)) => answers.pop(),
            _ => None,
        };
        match answer {
            Some(Err(Fault::Refused(Refusal::Missing))) if known.is_some() => {
                let allowed = "this ensemble does not have what the log keeps in the one with the same address: it is another one, or has lost its data";
                Err(PlanError::Invalid { what: "option \"connect\"", allowed })
            }
            Some(Ok(_) | Err(Fault::Refused(_))) => Ok(config),
            Some(Err(Fault::Denied(why))) => {
                tracing::warn!(
                    connect = config.connect,
                    root = config.root,
                    why,
                    "ZooKeeper refuses the root"
                );
                let allowed = "the ensemble must let every client create it; this node's log has the reason";
                Err(PlanError::Invalid { what: "option \"root\"", allowed })
            }
            Some(Err(_)) | None => {
                let allowed = "no server of ZooKeeper answers there; check the addresses, and that this node can reach them";
                Err(PlanError::Invalid { what: "option \"connect\"", allowed })
            }
        }
    }

    async fn copy(
        &self,
        loglet: &Shared,
        source: &dyn Loglet,
        range: &Range<Offset>,
        author: u64,
    ) -> Result<(), LogletError> {
        let length = range.end.since(range.start);
        let mut until = loglet.deadline();
        loop {
            let seen = match loglet.look(true).await {
                Ok(seen) => seen,
                Err(trouble) => {
                    loglet.again(until, trouble).await?;
                    continue;
                }
            };
            if seen.next.0 >= length || seen.sealed {
                return Ok(());
            }
            let at = range.start.plus(seen.next.0);
            let got = source.read(at..range.end, self.options.step_bytes as usize, ReadFrom::Anywhere).await;
            let mut entries = got.map_err(|_| LogletError::Unavailable(Unavailability::NoQuorum))?.entries;
            skip_one_if(mutants::ZOOKEEPER_COPY_SKIPS_ENTRY, &mut entries);
            let Some(batch) = batches(entries).into_iter().next() else {
                return Err(LogletError::Unavailable(Unavailability::NoQuorum));
            };
            let stored = Stored { author, serial: seen.batches, first: seen.next, batch };
            match loglet.write(copy_ops(loglet, seen, &stored)).await {
                Ok(()) => until = loglet.deadline(),
                // Another copy of the same entries may have been faster. What it wrote is the same.
                Err(Fault::Refused(_)) if loglet.env.now() < until => {}
                Err(fault) => loglet.again(until, Trouble::Fault(fault)).await?,
            }
        }
    }
}

/// Returns the requests that create a znode, and those above it.
fn mark(path: String) -> Vec<Request> {
    let create = |path: String, data| Request::Write(vec![Op::Create { path, data }]);
    let mut above = prefixes(&path);
    above.pop();
    let above = above.into_iter().map(|path| create(path, Bytes::new()));
    above.chain([create(path.clone(), Bytes::from_static(ENSEMBLE))]).collect()
}

fn copy_ops(loglet: &Shared, seen: Seen, stored: &Stored) -> Vec<Op> {
    let version = Some(i32::try_from(seen.batches).unwrap_or(i32::MAX));
    let tail = TailNode { next: stored.end() }.to_bytes();
    let mut ops = vec![
        Op::Check { path: loglet.paths.seal.clone(), version: 0 },
        Op::Set { path: loglet.paths.tail.clone(), data: tail, version },
    ];
    if seen.batches.is_multiple_of(BUCKET_BATCHES) {
        let data = BucketNode { first: stored.first }.to_bytes();
        ops.push(Op::Create { path: loglet.paths.bucket(seen.batches / BUCKET_BATCHES), data });
    }
    ops.push(Op::Create { path: loglet.paths.batch(seen.batches), data: stored.to_data() });
    ops
}

impl LogletProvider for ZooKeeperProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    /// Returns none: no node of the cluster holds entries or orders appends.
    fn roles(&self) -> &'static [RoleOfKind] {
        &[]
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
        let loglet = self.reached(id, config);
        Box::pin(async move { loglet?.0.check().await.map(|_| ()) })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.open_handle(id, config)?))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let loglet = self.reached(id, config)?;
            // A number that no handle draws: copies are no attempts of an append.
            let author = self.copies.fetch_add(1, Ordering::Relaxed);
            self.copy(&loglet.0, source, &range, author).await?;
            loglet.0.seal().await?;
            let whole = loglet.0.check().await?.next.0 == range.end.since(range.start);
            if whole { Ok(()) } else { Err(LogletError::Unavailable(Unavailability::NoQuorum)) }
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.reached(id, config);
        Box::pin(async move { loglet?.0.delete().await })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Ok(config) => vec![("connect", config.connect), ("root", config.root)],
            Err(error) => vec![("unreadable", error.to_string())],
        }
    }

    fn duties(&self, _config: &Bytes) -> Duties {
        Duties::default()
    }

    /// Returns true: a seal needs the ensemble and no member of the cluster.
    fn can_seal(&self, _config: &Bytes, _reached: &dyn Fn(NodeId) -> bool) -> bool {
        true
    }

    /// Returns none. While the ensemble does not answer, the loglet cannot be sealed either, so another one would not help.
    fn reason_to_reconfigure(&self, _config: &Bytes, _evidence: &Evidence<'_>) -> Option<Reason> {
        None
    }

    fn progress<'a>(&'a self, _node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        // The ensemble has everything, or nobody has.
        let whole = extents.iter().map(|e| Progress { has_up_to: e.range.end, lacks: 0 }).collect();
        Box::pin(std::future::ready(Some(whole)))
    }

    /// Returns none: nothing is on this node's disk.
    fn held_here(&self, _above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(std::future::ready(Some((Vec::new(), false))))
    }

    fn delete_here(&self, _id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

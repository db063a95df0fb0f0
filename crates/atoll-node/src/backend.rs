//! The backend of the doors: implements their traits over the virtual logs of this node.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::{Reason, proto};
use atoll_contract::{ClientId, LogPos, LogletId, LogletSpec, OpId, ReadFrom};
use atoll_core::{Env, NodeId, Ticket};
use atoll_door::backend::{
    Backend, BackupBackend, KeyspaceBackend, LogBackend, LogRecords, Operations, Pending, PolicyBackend,
    PositionBackend, ReadRecords, Refusal, Room, ShardBackend, Submitted, no_database,
};
use atoll_log::Incision;
use atoll_log::surgery::Record;
use atoll_log::virtual_log::{LogError, LogRecord, ReconfigError, Segment, VersionedChain, VirtualLog};
use tokio::time::timeout;

use crate::backup::Backups;
use crate::duties::duties;
use crate::keyspace_door::KeyspaceDoor;
use crate::keyspaces::Keyspaces;
use crate::log_policy::LogPolicies;
use crate::logs::Logs;
use crate::members::change::Changes;
use crate::named::Named;
use crate::places::Places;
use crate::position_door::PositionDoor;
use crate::refusals::{
    append_refusal, log_refusal, move_refusal, open_refusal, operate_refusal, read_refusal, reconfig_refusal,
    register_refusal, trim_refusal,
};
use crate::replica::DatabaseCell;
use crate::shard_door::ShardDoor;

/// How long the opening of a stream waits for a fresh chain if an older one is known.
const REFRESH_WITHIN: Duration = Duration::from_millis(20);

/// This node's logs and operations, as the doors serve them.
pub struct NodeBackend {
    node: NodeId,
    client: ClientId,
    logs: Logs,
    places: Places,
    named: Named,
    operations: Arc<dyn Operations>,
    keyspaces: Option<Keyspaces>,
    database: DatabaseCell,
    backups: Option<Backups>,
    policies: Option<LogPolicies>,
}

impl NodeBackend {
    /// Creates it over the parts of the node. It draws a client id for appends without one.
    pub fn new(
        env: Env,
        logs: Logs,
        places: Places,
        changes: Changes,
        operations: Arc<dyn Operations>,
    ) -> Self {
        // Client id 0 is reserved for the log.
        let client = ClientId(env.random().max(1));
        let named = Named::new(env.clone(), changes, logs.registry().clone());
        let (node, database) = (env.node(), DatabaseCell::default());
        let (keyspaces, backups, policies) = (None, None, None);
        NodeBackend { node, client, logs, places, named, operations, keyspaces, database, backups, policies }
    }

    fn view(&self, log: Arc<VirtualLog>) -> LogView {
        LogView { log, named: self.named.clone(), places: self.places.clone() }
    }

    /// Sets the keyspaces.
    #[must_use]
    pub fn with_keyspaces(self, keyspaces: Keyspaces) -> Self {
        NodeBackend { keyspaces: Some(keyspaces), ..self }
    }

    /// Sets the backup of the database.
    #[must_use]
    pub fn with_backups(self, backups: Backups) -> Self {
        NodeBackend { backups: Some(backups), ..self }
    }

    /// Sets the policies of logs.
    #[must_use]
    pub fn with_policies(self, policies: LogPolicies) -> Self {
        NodeBackend { policies: Some(policies), ..self }
    }

    /// Sets the cell that holds the database once it is open.
    #[must_use]
    pub fn with_database(self, database: DatabaseCell) -> Self {
        NodeBackend { database, ..self }
    }
}

/// Waits for the outcome of a procedure on the node's executor.
fn wait<T, U, E>(
    ticket: Ticket<Result<T, E>>,
    map: impl FnOnce(T) -> U + Send + 'static,
    refuse: impl FnOnce(E) -> Refusal + Send + 'static,
) -> Pending<U>
where
    T: Send + 'static,
    E: Send + 'static,
    U: Send + 'static,
{
    Box::pin(async move {
        match ticket.await {
            Ok(Ok(value)) => Ok(map(value)),
            Ok(Err(error)) => Err(refuse(error)),
            Err(gone) => Err(Refusal::unknown(Reason::Abandoned, gone.to_string(), "")),
        }
    })
}

impl Backend for NodeBackend {
    fn node(&self) -> NodeId {
        self.node
    }

    fn client(&self) -> ClientId {
        self.client
    }

    fn log(&self, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
        Ok(Arc::new(self.view(open(&self.logs, name)?)))
    }

    fn log_for_append(&self, name: &str) -> Pending<Arc<dyn LogBackend>> {
        let (logs, log) = (self.logs.clone(), open(&self.logs, name));
        let view = log.map(|log| self.view(log));
        Box::pin(async move {
            let view = view?;
            let log = &view.log;
            if log.chain().is_none_or(|chain| chain.chain.is_deleted()) {
                ensure(&logs, log, LogletSpec::default(), Deleted::StaysSo).await?;
            } else {
                // The client may come from a node that was just drained. This node may still know only the chain from before that, and
                // would notice only when the old sequencer does not answer.
                let _ = timeout(REFRESH_WITHIN, log.refresh()).await;
            }
            Ok(Arc::new(view) as Arc<dyn LogBackend>)
        })
    }

    fn create(&self, name: &str, spec: LogletSpec) -> Pending<bool> {
        let (logs, name, named) = (self.logs.clone(), name.to_owned(), self.named.clone());
        Box::pin(async move {
            let log = open(&logs, &name)?;
            named.check(&spec).await?;
            ensure(&logs, &log, spec, Deleted::ComesBack).await
        })
    }

    fn delete(&self, name: &str) -> Pending<bool> {
        let (logs, policies) = (self.logs.clone(), self.policies.clone());
        let name = name.to_owned();
        Box::pin(async move {
            let log = open(&logs, &name)?;
            if let Some(policies) = policies {
                // First: a log that is created anew must not begin with a policy that trims it.
                policies.withdraw(name.clone()).await.map_err(|_| Refusal::stopping())??;
            }
            wait(log.delete(), |deleted| deleted, |error| reconfig_refusal(&error)).await
        })
    }

    fn list(&self) -> Pending<Vec<String>> {
        wait(self.logs.list(), |names| names, |error| register_refusal(&error))
    }

    fn operations(&self) -> Arc<dyn Operations> {
        self.operations.clone()
    }

    fn keyspaces(&self) -> Option<Arc<dyn KeyspaceBackend>> {
        self.keyspaces.clone().map(|all| Arc::new(KeyspaceDoor(all)) as Arc<dyn KeyspaceBackend>)
    }

    fn positions(&self) -> Option<Arc<dyn PositionBackend>> {
        Some(Arc::new(PositionDoor { logs: self.logs.clone(), named: self.named.clone() }))
    }

    fn shards(&self) -> Option<Arc<dyn ShardBackend>> {
        Some(Arc::new(ShardDoor { logs: self.logs.clone() }))
    }

    fn operate(&self, incision: Incision) -> Pending<proto::SurgeryRecord> {
        match self.database.get() {
            Some(database) => {
                wait(database.operate(incision), |record| told(&record), |e| operate_refusal(&e))
            }
            None => Box::pin(std::future::ready(Err(no_database()))),
        }
    }

    fn backups(&self) -> Option<Arc<dyn BackupBackend>> {
        self.backups.clone().map(|backups| Arc::new(backups) as Arc<dyn BackupBackend>)
    }

    fn policies(&self) -> Option<Arc<dyn PolicyBackend>> {
        self.policies.clone().map(|policies| Arc::new(policies) as Arc<dyn PolicyBackend>)
    }

    fn database(&self) -> Option<atoll_db::Database> {
        self.database.get().cloned()
    }
}

fn open(logs: &Logs, name: &str) -> Result<Arc<VirtualLog>, Refusal> {
    logs.open(name).map_err(|error| open_refusal(&error))
}

/// What to do if the requested log is deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deleted {
    /// Refuse: an appender that does not know about the deletion must not undo it.
    StaysSo,
    /// Create it again: the client requested a new log.
    ComesBack,
}

/// Makes sure that the log exists. Returns false if it already existed.
async fn ensure(logs: &Logs, log: &VirtualLog, spec: LogletSpec, deleted: Deleted) -> Result<bool, Refusal> {
    match log.refresh().await {
        Ok(Ok(_)) => return Ok(false),
        Ok(Err(LogError::NoSuchLog)) => {}
        Ok(Err(LogError::Deleted)) if deleted == Deleted::ComesBack => {}
        Ok(Err(error)) => return Err(log_refusal(&error)),
        Err(_) => return Err(Refusal::stopping()),
    }
    logs.check_number().map_err(|error| {
        let next = "delete some with `atoll log delete`, or raise the setting logs.most";
        Refusal::no(Reason::Refused, error.to_string(), next)
    })?;
    wait(log.create(spec), |_| true, |error| reconfig_refusal(&error)).await
}

#[derive(Clone)]
struct LogView {
    log: Arc<VirtualLog>,
    named: Named,
    places: Places,
}

impl LogView {
    fn chain_reply(
        &self,
        ticket: Ticket<Result<Arc<VersionedChain>, ReconfigError>>,
    ) -> Pending<proto::Chain> {
        let (view, refused) = (self.clone(), self.clone());
        let describe_all =
            move |chain: Arc<VersionedChain>| view.describe(&chain, chain.chain.segments(), None);
        wait(ticket, describe_all, move |error| refused.explain(reconfig_refusal(&error)))
    }

    fn describe(&self, chain: &VersionedChain, segments: &[Segment], next: Option<LogPos>) -> proto::Chain {
        let place = self.places.of(self.log.name()).map(|at| at.place).unwrap_or_default();
        describe(&self.log, chain, segments, next, place)
    }

    /// Adds to a refusal that the place where the chain is may be the reason.
    fn explain(&self, mut refusal: Refusal) -> Refusal {
        let may_be = matches!(refusal.failure.reason, Reason::Unavailable | Reason::StorageFailed);
        if let Some(words) = self.places.trouble(self.log.name()).filter(|_| may_be) {
            refusal.failure.message = format!("{}; {words}", refusal.failure.message);
            refusal.failure.next =
                "the log takes appends meanwhile; its chain changes again once they answer".to_owned();
        }
        refusal
    }

    /// Starts `change` if the nodes that `spec` names pass [`Named::check`].
    fn change(
        &self,
        spec: LogletSpec,
        change: impl FnOnce(&VirtualLog, LogletSpec) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>>
        + Send
        + 'static,
    ) -> Pending<proto::Chain> {
        let view = self.clone();
        Box::pin(async move {
            view.named.check(&spec).await?;
            view.chain_reply(change(&view.log, spec)).await
        })
    }
}

impl LogBackend for LogView {
    fn known_tail(&self) -> LogPos {
        self.log.known_tail()
    }

    fn submit(&self, records: LogRecords) -> Submitted {
        let record = |(seq, payload): (u64, &bytes::Bytes)| LogRecord {
            op: OpId { client: records.client, seq },
            floor: records.floor,
            payload: payload.clone(),
        };
        let all = (records.first_seq..).zip(&records.payloads).map(record).collect();
        let submitted = match records.known {
            Some(known) => self.log.submit_known(all, known),
            None => self.log.submit_unordered(all),
        };
        match submitted {
            Ok(ticket) => Submitted::Pending(wait(ticket, |positions| positions, |e| append_refusal(&e))),
            Err(busy) => Submitted::Busy(records, busy),
        }
    }

    fn room(&self, records: usize, payload_bytes: usize) -> Room {
        Box::pin(self.log.room(records, payload_bytes))
    }

    fn check_tail(&self) -> Pending<LogPos> {
        wait(self.log.check_tail(), |tail| tail, |error| log_refusal(&error))
    }

    fn wait_tail(&self, above: LogPos) -> Pending<LogPos> {
        wait(self.log.wait_tail(above), |tail| tail, |error| log_refusal(&error))
    }

    fn trim_point(&self) -> LogPos {
        self.log.chain().map_or(LogPos::ZERO, |chain| chain.chain.trim())
    }

    fn read(&self, range: Range<LogPos>, max_bytes: usize, local_only: bool) -> Pending<ReadRecords> {
        let from = if local_only { ReadFrom::LocalOnly } else { ReadFrom::Anywhere };
        wait(
            self.log.read(range, max_bytes, from),
            |read| ReadRecords { first: read.first, entries: read.entries, remote: read.remote },
            move |error| read_refusal(&error, local_only),
        )
    }

    fn trim(&self, to: LogPos) -> Pending<()> {
        wait(self.log.trim(to), |_| (), |error| trim_refusal(&error))
    }

    fn chain(&self, from: Option<LogPos>) -> Pending<proto::Chain> {
        let (view, fresh) = (self.clone(), self.log.refresh());
        Box::pin(async move {
            let stopping = |_| Refusal::stopping();
            let refused = |error| view.explain(log_refusal(&error));
            let chain = fresh.await.map_err(stopping)?.map_err(refused)?;
            let Some(from) = from else {
                return Ok(view.describe(&chain, chain.chain.segments(), None));
            };
            let page = view.log.segments_from(from).await.map_err(stopping)?.map_err(refused)?;
            Ok(view.describe(&page.chain, &page.segments, page.next))
        })
    }

    fn extend(&self, spec: LogletSpec) -> Pending<proto::Chain> {
        self.change(spec, |log, spec| log.extend(spec))
    }

    fn truncate(&self) -> Pending<proto::Chain> {
        self.chain_reply(self.log.truncate())
    }

    fn modify(&self, loglet: LogletId, spec: LogletSpec) -> Pending<proto::Chain> {
        self.change(spec, move |log, spec| log.modify(loglet, spec))
    }

    fn move_chain(&self, to: String) -> Pending<proto::Chain> {
        let view = self.clone();
        let moved = self.places.env().launch("door.move_chain", async move {
            let stopping = |_| Refusal::stopping();
            // It must exist. A client would repeat an `unavailable` move by itself, for longer than its operator waits for a store.
            let refused = |error| {
                let mut refusal = view.explain(log_refusal(&error));
                if view.places.trouble(view.log.name()).is_some() {
                    refusal.failure.reason = Reason::Refused;
                }
                refusal
            };
            view.log.refresh().await.map_err(stopping)?.map_err(refused)?;
            view.places.move_chain(view.log.name(), &to).await.map_err(|e| view.explain(move_refusal(&e)))?;
            let after = |e| view.explain(log_refusal(&e)).although_it_happened();
            let chain = view.log.refresh().await.map_err(stopping)?.map_err(after)?;
            Ok(view.describe(&chain, chain.chain.segments(), None))
        });
        wait(moved, |chain| chain, |refusal| refusal)
    }
}

fn describe(
    log: &VirtualLog,
    chain: &VersionedChain,
    segments: &[Segment],
    next: Option<LogPos>,
    registers: String,
) -> proto::Chain {
    let segment = |s: &Segment| {
        let provider = log.registry().provider(&s.kind).ok();
        let words = provider.map(|p| p.describe(&s.config)).unwrap_or_default();
        let field = |(name, value): (&str, String)| proto::Field { name: name.to_owned(), value };
        proto::Segment {
            start: s.start.0,
            stop: s.stop.map(|stop| stop.0),
            loglet: s.loglet.to_string(),
            kind: s.kind.clone(),
            base: s.base.0,
            config: words.into_iter().map(field).collect(),
            duties: provider.map(|p| duties(&**p, &s.config)).unwrap_or_default(),
        }
    };
    proto::Chain {
        log: log.name().to_owned(),
        version: chain.version.0,
        trim: chain.chain.trim().0,
        segments: segments.iter().map(segment).collect(),
        segment_count: chain.chain.segment_count(),
        next: next.map(|next| next.0),
        surgeries: chain.chain.surgery().records().iter().map(told).collect(),
        held: chain.chain.surgery().hold().map(|hold| told(&hold.record)),
        changed: chain.chain.surgery().patches().iter().map(|patch| patch.at.0).collect(),
        registers,
    }
}

fn told(record: &Record) -> proto::SurgeryRecord {
    let hash = |hash: u128| format!("{hash:032x}");
    proto::SurgeryRecord {
        position: record.at.0,
        time_ms: record.time_ms,
        node: record.node.0,
        operator: record.operator.clone(),
        reason: record.reason.clone(),
        old_hash: hash(record.old_hash),
        old_bytes: record.old_bytes,
        new_hash: record.new_hash.map(hash),
    }
}

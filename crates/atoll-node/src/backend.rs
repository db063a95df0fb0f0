//! The backend of the doors: implements their traits over the virtual logs of this node, and translates errors for clients.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::{Reason, proto};
use atoll_contract::{
    ClientId, LogPos, LogletId, LogletSpec, OpId, PlanError, ReadFrom, RegisterError, Registry,
    Unavailability,
};
use atoll_core::{Env, NodeId, Ticket};
use atoll_door::backend::{
    Backend, KeyspaceBackend, LogBackend, LogRecords, Operations, Pending, ReadRecords, Refusal, Room,
    Submitted,
};
use atoll_log::virtual_log::{
    LogAppendError, LogError, LogReadError, LogRecord, ReconfigError, Segment, Step, TrimError,
    VersionedChain, VirtualLog,
};
use tokio::time::timeout;

use crate::duties::duties;
use crate::keyspace_door::KeyspaceDoor;
use crate::keyspaces::Keyspaces;
use crate::logs::{Logs, OpenError};
use crate::members::change::Changes;
use crate::members::table::MemberTable;
use crate::replica::DatabaseCell;

/// How long the opening of a stream waits for a fresh chain if an older one is known.
const REFRESH_WITHIN: Duration = Duration::from_millis(20);

/// This node's logs and operations, as the doors serve them.
pub struct NodeBackend {
    node: NodeId,
    client: ClientId,
    logs: Logs,
    named: Named,
    operations: Arc<dyn Operations>,
    keyspaces: Option<Keyspaces>,
    database: DatabaseCell,
}

impl NodeBackend {
    /// Creates it over the parts of the node. It draws a client id for appends without one.
    pub fn new(env: Env, logs: Logs, changes: Changes, operations: Arc<dyn Operations>) -> Self {
        // Client id 0 is reserved for the log.
        let client = ClientId(env.random().max(1));
        let named = Named { env: env.clone(), changes, registry: logs.registry().clone() };
        let (node, database) = (env.node(), DatabaseCell::default());
        NodeBackend { node, client, logs, named, operations, keyspaces: None, database }
    }

    /// Sets the keyspaces.
    #[must_use]
    pub fn with_keyspaces(self, keyspaces: Keyspaces) -> Self {
        NodeBackend { keyspaces: Some(keyspaces), ..self }
    }

    /// Sets the cell that holds the database once it is open.
    #[must_use]
    pub fn with_database(self, database: DatabaseCell) -> Self {
        NodeBackend { database, ..self }
    }
}

/// Checks the nodes that an operator names for a Loglet.
#[derive(Clone)]
struct Named {
    env: Env,
    changes: Changes,
    registry: Registry,
}

impl Named {
    /// Refuses nodes that are not members, have not joined, are draining, or lack the role. Reads the table of members afresh, before
    /// anything is planned or sealed.
    async fn check(&self, spec: &LogletSpec) -> Result<(), Refusal> {
        if spec.places.is_empty() {
            return Ok(());
        }
        let changes = self.changes.clone();
        let table = self.env.launch("door.members", async move { changes.refresh().await });
        match table.await {
            Ok(Ok(table)) => check_named(&table, &self.registry, spec),
            Ok(Err(error)) => Err(Refusal::no(
                Reason::Unavailable,
                format!("nothing was changed: the table of members does not answer: {error}"),
                "try again when a majority of the nodes that hold registers is up",
            )),
            Err(_) => Err(Refusal::stopping()),
        }
    }
}

/// See [`Named::check`].
fn check_named(table: &MemberTable, registry: &Registry, spec: &LogletSpec) -> Result<(), Refusal> {
    let mut wrong = Vec::new();
    // The provider refuses roles that no kind of Loglet has. The names of parts come before that of the role.
    let needs = |role: &str| {
        let role = role.rsplit('/').next().unwrap_or(role);
        registry.roles_named(role).next().map(|r| if r.holds { "log" } else { "sequencer" })
    };
    let mut named = Vec::new();
    for (role, nodes) in &spec.places {
        if let Some(needs) = needs(role) {
            named.extend(nodes.iter().map(|node| (*node, needs)));
        }
    }
    for (node, role) in named {
        let words = match table.nodes.get(&node) {
            None => format!("node {node} is not a member"),
            Some(row) if !row.has_joined() => format!("node {node} has not joined yet"),
            Some(row) if row.draining => format!("node {node} is being drained"),
            Some(row) if !row.roles().names().contains(&role) => {
                format!("node {node} does not have the role {role:?}")
            }
            Some(_) => continue,
        };
        if !wrong.contains(&words) {
            wrong.push(words);
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let fit = |role: &'static str| {
        let fits = table
            .nodes
            .iter()
            .filter(|(_, m)| m.has_joined() && !m.draining && m.roles().names().contains(&role));
        fits.map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(",")
    };
    let next = format!("servers may be among {}, the sequencer one of {}", fit("log"), fit("sequencer"));
    Err(Refusal::no(Reason::Refused, format!("nothing was changed: {}", wrong.join("; ")), next))
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
        Ok(Arc::new(LogView { log: open(&self.logs, name)?, named: self.named.clone() }))
    }

    fn log_for_append(&self, name: &str) -> Pending<Arc<dyn LogBackend>> {
        let (logs, name, named) = (self.logs.clone(), name.to_owned(), self.named.clone());
        Box::pin(async move {
            let log = open(&logs, &name)?;
            if log.chain().is_none_or(|chain| chain.chain.is_deleted()) {
                ensure(&logs, &log, LogletSpec::default(), Deleted::StaysSo).await?;
            } else {
                // The client may come from a node that was just drained. This node may still know only the chain from before that, and
                // would notice only when the old sequencer does not answer.
                let _ = timeout(REFRESH_WITHIN, log.refresh()).await;
            }
            Ok(Arc::new(LogView { log, named }) as Arc<dyn LogBackend>)
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
        let logs = self.logs.clone();
        let name = name.to_owned();
        Box::pin(async move {
            let log = open(&logs, &name)?;
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

    fn database(&self) -> Option<atoll_db::Database> {
        self.database.get().cloned()
    }
}

fn open(logs: &Logs, name: &str) -> Result<Arc<VirtualLog>, Refusal> {
    logs.open(name).map_err(|error| match error {
        OpenError::Name(_) => Refusal::no(Reason::Invalid, error.to_string(), ""),
        OpenError::TooMany => Refusal::no(Reason::Refused, error.to_string(), ""),
    })
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

struct LogView {
    log: Arc<VirtualLog>,
    named: Named,
}

impl LogView {
    fn chain_reply(
        &self,
        ticket: Ticket<Result<Arc<VersionedChain>, ReconfigError>>,
    ) -> Pending<proto::Chain> {
        let log = self.log.clone();
        let describe_all =
            move |chain: Arc<VersionedChain>| describe(&log, &chain, chain.chain.segments(), None);
        wait(ticket, describe_all, |error| reconfig_refusal(&error))
    }

    /// Starts `change` if the nodes that `spec` names pass [`Named::check`].
    fn change(
        &self,
        spec: LogletSpec,
        change: impl FnOnce(&VirtualLog, LogletSpec) -> Ticket<Result<Arc<VersionedChain>, ReconfigError>>
        + Send
        + 'static,
    ) -> Pending<proto::Chain> {
        let view = LogView { log: self.log.clone(), named: self.named.clone() };
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
        let (log, fresh) = (self.log.clone(), self.log.refresh());
        Box::pin(async move {
            let stopping = |_| Refusal::stopping();
            let chain = fresh.await.map_err(stopping)?.map_err(|e| log_refusal(&e))?;
            let Some(from) = from else {
                return Ok(describe(&log, &chain, chain.chain.segments(), None));
            };
            let page = log.segments_from(from).await.map_err(stopping)?.map_err(|e| log_refusal(&e))?;
            Ok(describe(&log, &page.chain, &page.segments, page.next))
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
}

fn describe(
    log: &VirtualLog,
    chain: &VersionedChain,
    segments: &[Segment],
    next: Option<LogPos>,
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
    }
}

/// Returns what a client should know about a temporary problem: the reason, and what to do.
fn why(why: Unavailability) -> (Reason, &'static str) {
    match why {
        Unavailability::Busy => (Reason::Busy, "try again"),
        Unavailability::NoQuorum | Unavailability::NoSequencer | Unavailability::WrongSequencer => (
            Reason::Unavailable,
            "`atoll status` shows which nodes are up; the log continues once enough are",
        ),
        Unavailability::DiskFull => {
            (Reason::DiskFull, "trim the log or free disk space; then the log continues by itself")
        }
        Unavailability::StorageFailed => {
            (Reason::StorageFailed, "see the log of the node; it serves nothing until it is restarted")
        }
        Unavailability::TooLarge => (Reason::TooLarge, "send less at once"),
        Unavailability::Stopping => (Reason::Stopping, "use another node"),
    }
}

fn log_refusal(error: &LogError) -> Refusal {
    let (reason, next) = match error {
        LogError::NoSuchLog => {
            (Reason::NoSuchLog, "`atoll log list` shows the existing logs; the first append creates one")
        }
        LogError::Unavailable(trouble) => why(*trouble),
        LogError::Chain(_) | LogError::Open(_) => {
            (Reason::Refused, "was it written by a newer version of this program?")
        }
        LogError::BeyondTail(_) => (Reason::BeyondTail, "read up to the tail, or follow the log"),
        LogError::Ended(_) => (Reason::Refused, "it accepts no more appends; use another log"),
        LogError::Deleted => (Reason::LogDeleted, "`atoll log create` creates an empty log with this name"),
        LogError::Outdated(_) => (Reason::Unavailable, "send it again with a newer tail"),
    };
    Refusal::no(reason, error.to_string(), next)
}

fn append_refusal(error: &LogAppendError) -> Refusal {
    match error {
        LogAppendError::TooLarge(_) => Refusal::no(Reason::TooLarge, error.to_string(), "split it"),
        LogAppendError::NotAppended(inner) => {
            let failure = log_refusal(inner).failure;
            Refusal::no(failure.reason, error.to_string(), failure.next)
        }
        LogAppendError::Damaged { .. } => Refusal::unknown(
            Reason::Damaged,
            error.to_string(),
            "see which disks are bad; rebuild the segment if a server with a good copy is away",
        ),
        LogAppendError::Trimmed(_) => Refusal::unknown(
            Reason::Trimmed,
            error.to_string(),
            "append it again only if a second copy does no harm",
        ),
        LogAppendError::Unknown(inner) => {
            let failure = log_refusal(inner).failure;
            Refusal::unknown(failure.reason, error.to_string(), failure.next)
        }
    }
}

fn trim_refusal(error: &TrimError) -> Refusal {
    match error {
        TrimError::NotTrimmed(inner) => {
            let mut refusal = log_refusal(inner);
            if matches!(inner, LogError::BeyondTail(_)) {
                refusal.failure.next = "trim at most up to the tail".to_owned();
            }
            refusal
        }
        TrimError::Unknown(inner) => {
            let reason = log_refusal(inner).failure.reason;
            let next = "trim it again, or see with `atoll chain show` where it begins";
            Refusal::unknown(reason, error.to_string(), next)
        }
    }
}

fn read_refusal(error: &LogReadError, local_only: bool) -> Refusal {
    match error {
        LogReadError::Trimmed(at) => {
            Refusal::no(Reason::Trimmed, error.to_string(), format!("read from {at} on"))
        }
        LogReadError::Damaged(_) => Refusal::no(
            Reason::Damaged,
            error.to_string(),
            "bring back a node that has a copy, or put back an intact copy of the file",
        ),
        // The client asked to read only this node's disk, so no other node can help, and a retry is useless.
        LogReadError::Log(LogError::Unavailable(_)) if local_only => Refusal::no(
            Reason::Refused,
            "this node's disk does not have the next record",
            "`atoll status` shows what each server lacks; without --local-only others are asked",
        ),
        LogReadError::Log(inner) => log_refusal(inner),
    }
}

fn reconfig_refusal(error: &ReconfigError) -> Refusal {
    let words = error.to_string();
    match error {
        ReconfigError::Plan(
            PlanError::UnknownKind { .. } | PlanError::Unknown { .. } | PlanError::Invalid { .. },
        ) => Refusal::no(Reason::Invalid, words, ""),
        ReconfigError::Plan(
            PlanError::NodeDown(_) | PlanError::TooFew { .. } | PlanError::Missing { .. },
        ) => Refusal::no(Reason::Refused, words, ""),
        ReconfigError::Plan(PlanError::Unreadable(_)) => {
            Refusal::no(Reason::Refused, words, "was it written by a newer version of this program?")
        }
        ReconfigError::NoSuchLog => log_refusal(&LogError::NoSuchLog),
        ReconfigError::Chain(_) => Refusal::no(Reason::Refused, words, ""),
        ReconfigError::Unavailable { step, why: trouble } => {
            let (reason, next) = why(*trouble);
            match step {
                Step::ReadChain => Refusal::no(reason, words, next),
                Step::Seal | Step::CheckTail | Step::Install => {
                    Refusal::unknown(reason, words, "`atoll chain show` shows the result")
                }
            }
        }
        ReconfigError::NoRoom => Refusal::no(
            Reason::DiskFull,
            words,
            "trim logs with many segments, or delete logs; see the metric atoll_registers_held_bytes",
        ),
        ReconfigError::NoSuchSegment(_) => {
            Refusal::no(Reason::Invalid, words, "`atoll chain show` lists the segments")
        }
        ReconfigError::NotSealed(_) => Refusal::no(Reason::Refused, words, "`atoll chain extend` seals it"),
        ReconfigError::Copy(_) => {
            Refusal::no(Reason::Refused, words, "`atoll status` shows which servers are up")
        }
        ReconfigError::Ended(at) => log_refusal(&LogError::Ended(*at)),
        ReconfigError::Deleted => log_refusal(&LogError::Deleted),
        ReconfigError::Level { .. } => {
            Refusal::no(Reason::Refused, words, "`atoll cluster upgrade` raises it, once all members can")
        }
    }
}

fn register_refusal(error: &RegisterError) -> Refusal {
    let next = "try again when a majority of the nodes that hold registers is up";
    match error {
        RegisterError::NotWritten(trouble) => Refusal::no(why((*trouble).into()).0, error.to_string(), next),
        RegisterError::Unknown(trouble) => {
            Refusal::unknown(why((*trouble).into()).0, error.to_string(), next)
        }
        RegisterError::TooLarge(_) | RegisterError::InvalidName(_) => {
            Refusal::no(Reason::TooLarge, error.to_string(), "")
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::table::Member;
    use atoll_client::Outcome;
    use atoll_core::StorageId;

    #[test]
    fn nodes_that_are_not_there_or_leaving_are_refused_by_name() {
        let all = Member {
            storage: StorageId(1),
            log: true,
            sequencer: true,
            meta: true,
            ..Member::to_come("a:1".into())
        };
        let mut nodes: std::collections::BTreeMap<_, _> = (1..=3).map(|n| (NodeId(n), all.clone())).collect();
        nodes.insert(NodeId(4), Member::to_come("d:1".into()));
        nodes.insert(NodeId(5), Member { draining: true, ..all.clone() });
        nodes.insert(NodeId(6), Member { sequencer: false, ..all });
        let table = MemberTable { version: 3, nodes, ..MemberTable::default() };
        let spec = |servers: &[u32], sequencer: u32| {
            let servers = servers.iter().map(|n| NodeId(*n));
            LogletSpec::default().place("server", servers).place("sequencer", [NodeId(sequencer)])
        };
        let servers = atoll_log::memory::MemoryServers::new(&[]);
        let env = atoll_core::NodeCore::new(NodeId(1), atoll_core::Incarnation(1), 1).env();
        let registry = Registry::new().with(servers.provider(&env, "memory", true));
        assert_eq!(check_named(&table, &registry, &spec(&[1, 2, 6], 3)), Ok(()));
        let refusal = check_named(&table, &registry, &spec(&[4, 5, 9], 6)).unwrap_err().failure;
        assert_eq!(refusal.reason, Reason::Refused);
        assert_eq!(
            refusal.message,
            "nothing was changed: node 6 does not have the role \"sequencer\"; node 4 has not joined yet; node 5 is being \
             drained; node 9 is not a member"
        );
        assert_eq!(refusal.next, "servers may be among 1,2,3,6, the sequencer one of 1,2,3");
    }

    #[test]
    fn a_trim_that_may_have_been_written_is_not_said_to_have_failed() {
        let trouble = || LogError::Unavailable(Unavailability::NoQuorum);
        assert_eq!(trim_refusal(&TrimError::Unknown(trouble())).happened, Outcome::Unknown);
        assert_eq!(trim_refusal(&TrimError::NotTrimmed(trouble())).happened, Outcome::No);
    }
}

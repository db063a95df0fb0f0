//! A node without a disk: logs in memory behind the doors' traits, with switches that simulate the problems of a real one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use atoll_client::{Reason, proto};
use atoll_contract::keyspace::{Held, Holder, KeyVersion, KeyspaceSpec, Layout, Lease, ListFrom, Page};
use atoll_contract::{ClientId, Entry, LogPos, LogletId, LogletSpec, OpId};
use atoll_core::NodeId;
use atoll_door::backend::{
    Backend, KeyspaceBackend, LogBackend, LogRecords, Operations, Pending, ReadRecords, Refusal, Room,
    ShardBackend, Submitted,
};
use atoll_door::keyspaces::{Described, Found, KeyWrite, KeysTransacted, KeysTxn, LeaseRequest, Wrote};
use atoll_door::shards::{ActiveShards, LogRecord, ShardChange};
use atoll_door::{Gate, Limits, Services, services_of};
use bytes::Bytes;
use tokio::sync::Notify;

/// A log. All nodes of a test that have the same [`Logs`] share it.
#[derive(Default)]
pub struct MemoryLog {
    entries: Mutex<Vec<Entry>>,
    trim: Mutex<u64>,
    appended: Notify,
    /// Refuse the next submission as busy, once.
    pub busy_once: AtomicBool,
    /// Appends happen, but their outcomes are never reported.
    pub mute: AtomicBool,
    /// Do not keep payloads.
    pub forgetful: AtomicBool,
    /// Delay the outcomes of appends by this, like a disk.
    pub delay: Mutex<Option<std::time::Duration>>,
    /// Refuse appends with this. They do not happen.
    pub refuse: Mutex<Option<Refusal>>,
}

impl MemoryLog {
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    /// Adds a position without a record, as a Loglet does that fills a hole.
    pub fn pad(&self) {
        self.entries.lock().unwrap().push(Entry::pad());
        self.appended.notify_waiters();
    }

    fn append(&self, records: &LogRecords) -> Vec<LogPos> {
        let mut entries = self.entries.lock().unwrap();
        // A first attempt that arrives late must find an existing copy, like a retry (X16).
        let floor = records.floor.or(records.known).map(|f| f.0 as usize);
        let positions = (records.first_seq..)
            .zip(&records.payloads)
            .map(|(seq, payload)| {
                let op = OpId { client: records.client, seq };
                let earlier = floor.and_then(|f| entries[f..].iter().position(|e| e.op == op).map(|i| i + f));
                let at = earlier.unwrap_or_else(|| {
                    let forget = self.forgetful.load(Ordering::Relaxed);
                    entries.push(Entry {
                        op,
                        payload: if forget { Default::default() } else { payload.clone() },
                    });
                    entries.len() - 1
                });
                LogPos(at as u64)
            })
            .collect();
        self.appended.notify_waiters();
        positions
    }
}

fn ready<T: Send + 'static>(value: Result<T, Refusal>) -> Pending<T> {
    Box::pin(std::future::ready(value))
}

/// The problems of one node, and what it has done.
#[derive(Default)]
pub struct Trouble {
    /// The node is cut off from the others: its tail checks fail, and it never hears of a new tail.
    pub cut: AtomicBool,
    /// Deletions happen, but their outcomes are never reported.
    pub mute_deletions: AtomicBool,
    /// The number of waits for the tail so far.
    pub waits: AtomicUsize,
}

/// The log, as one node sees it.
pub struct View(pub Arc<MemoryLog>, pub Arc<Trouble>);

impl LogBackend for View {
    fn known_tail(&self) -> LogPos {
        LogPos(self.0.entries.lock().unwrap().len() as u64)
    }

    fn submit(&self, records: LogRecords) -> Submitted {
        if self.0.busy_once.swap(false, Ordering::Relaxed) {
            return Submitted::Busy(records, atoll_log::Busy::Log { waiting_bytes: 1 });
        }
        if let Some(refusal) = self.0.refuse.lock().unwrap().clone() {
            return Submitted::Pending(ready(Err(refusal)));
        }
        let positions = self.0.append(&records);
        if self.0.mute.load(Ordering::Relaxed) {
            return Submitted::Pending(Box::pin(std::future::pending()));
        }
        if let Some(delay) = *self.0.delay.lock().unwrap() {
            return Submitted::Pending(Box::pin(async move {
                tokio::time::sleep(delay).await;
                Ok(positions)
            }));
        }
        Submitted::Pending(ready(Ok(positions)))
    }

    fn room(&self, _records: usize, _payload_bytes: usize) -> Room {
        Box::pin(std::future::ready(()))
    }

    fn check_tail(&self) -> Pending<LogPos> {
        if self.1.cut.load(Ordering::Relaxed) {
            return ready(Err(Refusal::no(Reason::Unavailable, "not enough servers answer", "")));
        }
        ready(Ok(self.known_tail()))
    }

    fn wait_tail(&self, above: LogPos) -> Pending<LogPos> {
        let (log, trouble) = (self.0.clone(), self.1.clone());
        trouble.waits.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            loop {
                let appended = log.appended.notified();
                let tail = LogPos(log.entries.lock().unwrap().len() as u64);
                if tail > above && !trouble.cut.load(Ordering::Relaxed) {
                    return Ok(tail);
                }
                appended.await;
            }
        })
    }

    fn trim_point(&self) -> LogPos {
        LogPos(*self.0.trim.lock().unwrap())
    }

    fn read(&self, range: Range<LogPos>, max_bytes: usize, local_only: bool) -> Pending<ReadRecords> {
        let trim = self.trim_point();
        if range.start < trim {
            let message = format!("trimmed below position {trim}");
            return ready(Err(Refusal::no(Reason::Trimmed, message, format!("read from {trim} on"))));
        }
        let entries = self.0.entries.lock().unwrap();
        let mut bytes = 0;
        let some: Vec<Entry> = entries[range.start.0 as usize..range.end.0 as usize]
            .iter()
            .take_while(|e| {
                bytes += e.payload.len();
                bytes <= max_bytes.max(e.payload.len())
            })
            .cloned()
            .collect();
        let remote = if local_only { 0 } else { some.len() as u64 };
        ready(Ok(ReadRecords { first: range.start, entries: some, remote }))
    }

    fn trim(&self, to: LogPos) -> Pending<()> {
        let mut trim = self.0.trim.lock().unwrap();
        *trim = to.0.max(*trim);
        ready(Ok(()))
    }

    fn chain(&self, _from: Option<LogPos>) -> Pending<proto::Chain> {
        let segment = proto::Segment { loglet: LogletId(7).to_string(), ..Default::default() };
        let segments = vec![segment];
        ready(Ok(proto::Chain { log: "main".into(), version: 1, segments, ..Default::default() }))
    }

    fn extend(&self, spec: LogletSpec) -> Pending<proto::Chain> {
        let config = vec![proto::Field { name: "spec".into(), value: format!("{spec:?}") }];
        let segment = proto::Segment { config, ..Default::default() };
        ready(Ok(proto::Chain { version: 2, segments: vec![segment], ..Default::default() }))
    }

    fn truncate(&self) -> Pending<proto::Chain> {
        self.chain(None)
    }

    fn modify(&self, loglet: LogletId, _spec: LogletSpec) -> Pending<proto::Chain> {
        ready(Err(Refusal::no(Reason::Refused, format!("no segment has loglet {loglet}"), "")))
    }

    fn move_chain(&self, to: String) -> Pending<proto::Chain> {
        ready(Err(Refusal::no(Reason::Refused, format!("there are no registers {to:?}"), "")))
    }
}

/// Logs by name, shared by the nodes of a test.
pub type Logs = Arc<Mutex<BTreeMap<String, Arc<MemoryLog>>>>;

/// Returns the services of all doors of the program, for a node over logs in memory.
pub fn services(node: Arc<MemoryNode>, limits: Limits) -> Services {
    gated_services(node, limits, Gate::open())
}

/// Returns the same, with a gate.
pub fn gated_services(node: Arc<MemoryNode>, limits: Limits, gate: Arc<Gate>) -> Services {
    services_of(&mut atoll_doors::all(atoll_doors::Settings::default()), node, limits, gate)
}

/// A node over logs in memory.
#[derive(Default)]
pub struct MemoryNode {
    pub id: u32,
    pub logs: Logs,
    pub grpc: Vec<String>,
    pub trouble: Arc<Trouble>,
    /// Whether its logs count as logs in shards. Only subscriptions to them work.
    pub has_shards: bool,
    /// Whether it has keyspaces, which refuse everything.
    pub has_keyspaces: bool,
}

/// Keyspaces that refuse everything.
struct Refusing;

impl KeyspaceBackend for Refusing {
    fn create(&self, _: String, _: KeyspaceSpec) -> Pending<Layout> {
        not_here()
    }

    fn list(&self) -> Pending<Vec<String>> {
        not_here()
    }

    fn describe(&self, _: String) -> Pending<Described> {
        not_here()
    }

    fn relocate(&self, _: String, _: KeyspaceSpec) -> Pending<Described> {
        not_here()
    }

    fn delete(&self, _: String) -> Pending<()> {
        not_here()
    }

    fn get(&self, _: String, _: Vec<Bytes>) -> Pending<Vec<Found>> {
        not_here()
    }

    fn write(&self, _: String, _: KeyWrite) -> Pending<Wrote> {
        not_here()
    }

    fn transact(&self, _: String, _: KeysTxn) -> Pending<KeysTransacted> {
        not_here()
    }

    fn wait_change(&self, _: String, _: Bytes, _: KeyVersion) -> Pending<Option<Held>> {
        not_here()
    }

    fn lease(&self, _: String, _: Bytes, _: LeaseRequest) -> Pending<Lease> {
        not_here()
    }

    fn release(&self, _: String, _: Bytes, _: u64, _: bool) -> Pending<()> {
        not_here()
    }

    fn holder(&self, _: String, _: Bytes) -> Pending<Holder> {
        not_here()
    }

    fn page(&self, _: String, _: ListFrom) -> Pending<Page> {
        not_here()
    }
}

/// Logs in memory as logs in shards, for subscriptions.
struct InShards;

impl ShardBackend for InShards {
    fn check(&self, _: &str) -> Pending<()> {
        ready(Ok(()))
    }

    fn shards(&self, _: &str) -> Pending<ActiveShards> {
        not_here()
    }

    fn append(&self, _: &str, _: u32, _: LogRecord) -> Pending<LogPos> {
        not_here()
    }

    fn read(&self, _: &str, _: LogPos, _: u32) -> Pending<Option<Entry>> {
        not_here()
    }

    fn change(&self, _: &str, _: ShardChange) -> Pending<u32> {
        not_here()
    }
}

fn not_here<T: Send + 'static>() -> Pending<T> {
    ready(Err(Refusal::no(Reason::Refused, "a node in memory has neither shards nor keyspaces", "")))
}

impl Backend for MemoryNode {
    fn node(&self) -> NodeId {
        NodeId(self.id)
    }

    fn client(&self) -> ClientId {
        ClientId(u64::MAX)
    }

    fn log(&self, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
        let log = self.logs.lock().unwrap().entry(name.to_owned()).or_default().clone();
        Ok(Arc::new(View(log, self.trouble.clone())))
    }

    fn log_for_append(&self, name: &str) -> Pending<Arc<dyn LogBackend>> {
        ready(self.log(name))
    }

    fn create(&self, name: &str, _spec: LogletSpec) -> Pending<bool> {
        ready(Ok(self.logs.lock().unwrap().insert(name.to_owned(), Arc::default()).is_none()))
    }

    fn delete(&self, name: &str) -> Pending<bool> {
        let deleted = self.logs.lock().unwrap().remove(name).is_some();
        match self.trouble.mute_deletions.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => ready(Ok(deleted)),
        }
    }

    fn list(&self) -> Pending<Vec<String>> {
        ready(Ok(self.logs.lock().unwrap().keys().cloned().collect()))
    }

    fn shards(&self) -> Option<Arc<dyn ShardBackend>> {
        self.has_shards.then(|| Arc::new(InShards) as Arc<dyn ShardBackend>)
    }

    fn keyspaces(&self) -> Option<Arc<dyn KeyspaceBackend>> {
        self.has_keyspaces.then(|| Arc::new(Refusing) as Arc<dyn KeyspaceBackend>)
    }

    fn operations(&self) -> Arc<dyn Operations> {
        Arc::new(Fixed { id: self.id, grpc: self.grpc.clone() })
    }
}

struct Fixed {
    id: u32,
    grpc: Vec<String>,
}

impl Operations for Fixed {
    fn status(&self) -> Pending<proto::StatusReply> {
        ready(Ok(proto::StatusReply { node: self.id, healthy: true, ..Default::default() }))
    }

    fn nodes(&self) -> Pending<Vec<proto::NodeInfo>> {
        let node = |(i, grpc): (usize, &String)| proto::NodeInfo {
            id: i as u32 + 1,
            grpc: grpc.clone(),
            ..Default::default()
        };
        ready(Ok(self.grpc.iter().enumerate().map(node).collect()))
    }

    fn add_node(&self, request: proto::NodeAddRequest) -> Pending<proto::NodeReply> {
        let node = proto::NodeInfo { id: request.id, address: request.address, ..Default::default() };
        ready(Ok(proto::NodeReply { node: Some(node), changed: true }))
    }

    fn drain_node(&self, node: NodeId) -> Pending<proto::NodeReply> {
        let next = "add a node first, or drain another one";
        ready(Err(Refusal::no(Reason::Refused, format!("node {node} is one of the last two"), next)))
    }

    fn remove_node(&self, node: NodeId) -> Pending<proto::NodeReply> {
        let node = proto::NodeInfo { id: node.0, ..Default::default() };
        ready(Ok(proto::NodeReply { node: Some(node), changed: false }))
    }

    fn levels(&self) -> Pending<proto::LevelsReply> {
        ready(Ok(proto::LevelsReply { active: 2, possible: 2, ..Default::default() }))
    }

    fn upgrade(&self, to: Option<atoll_core::Level>) -> Pending<proto::LevelsReply> {
        let active = to.map_or(2, |level| level.0.into());
        ready(Ok(proto::LevelsReply { active, possible: active, changed: true, ..Default::default() }))
    }
}

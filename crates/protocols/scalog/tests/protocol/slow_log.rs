//! An ordering log that needs longer for an entry than proposals are waited for: none is acknowledged. There must be cuts nevertheless, and
//! what they say must not become older and older.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{self, Cluster, NativeLogs};
use atoll_contract::*;
use atoll_core::*;
use atoll_native::roles::{LOG_SERVER, SEQUENCER};
use atoll_native::{LogServer, LogServerOptions, Sequencer, SequencerOptions};
use atoll_scalog::message::{Report, Reports};
use atoll_scalog::order::OrderEntry;
use atoll_scalog::roles::ORDERER;
use atoll_scalog::*;

const LOGLET: LogletId = LogletId(77);
/// What the ordering log needs for an entry.
const SERVICE: Duration = Duration::from_secs(3);
/// For how long an append to it is waited for, as in a native Loglet.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the servers of the shard have another record.
const STEP: Duration = Duration::from_millis(10);
const STEPS: u64 = 6000;
const THE_ORDERER: u32 = 4;
const SERVERS: u32 = 5;

/// What the ordering log has to do.
#[derive(Debug, Default)]
struct Queue {
    free_at: Tick,
    waiting: usize,
    most: usize,
    /// When entries got into the log, and how many records each orders.
    stored: Vec<(Tick, u64)>,
}

/// An ordering log that takes one entry after the other, slowly. Nobody hears of an entry that takes too long.
#[derive(Debug)]
struct Slow {
    log: Arc<dyn Loglet>,
    env: Env,
    queue: Arc<Mutex<Queue>>,
}

impl Loglet for Slow {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        let (env, log, queue) = (self.env.clone(), self.log.clone(), self.queue.clone());
        let at = {
            let mut queue = queue.lock().unwrap();
            queue.waiting += 1;
            queue.most = queue.most.max(queue.waiting);
            queue.free_at = queue.free_at.max(env.now()).after(SERVICE);
            queue.free_at
        };
        let stored = self.env.launch("slow.store", async move {
            env.sleep(at.since(env.now())).await;
            let entry = OrderEntry::parse(batch.entries().next().unwrap().payload).unwrap();
            let result = log.append(batch).await;
            let mut queue = queue.lock().unwrap();
            queue.waiting -= 1;
            queue.stored.push((env.now(), entry.cut[0].counts[0]));
            result.unwrap()
        });
        let env = self.env.clone();
        self.env.launch("slow.append", async move {
            match env.within(PATIENCE, stored).await {
                Ok(stored) => stored.unwrap(),
                Err(_) => Err(AppendError::Unknown(Unavailability::NoSequencer)),
            }
        })
    }
    fn keeps_order(&self) -> bool {
        true
    }
    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.log.check_tail()
    }
    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.log.wait_tail(above)
    }
    fn known_tail(&self) -> Offset {
        self.log.known_tail()
    }
    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        self.log.read(range, max_bytes, from)
    }
    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        self.log.prefix_trim(to)
    }
    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        self.log.seal()
    }
}

/// Native ordering logs behind a slow front.
#[derive(Debug)]
struct SlowLogs {
    logs: NativeLogs,
    env: Env,
    queue: Arc<Mutex<Queue>>,
}

impl OrderingLogs for SlowLogs {
    fn open(&self, loglet: LogletId, spec: &OrderingSpec) -> Result<Arc<dyn Loglet>, PlanError> {
        let log = self.logs.open(loglet, spec)?;
        Ok(Arc::new(Slow { log, env: self.env.clone(), queue: self.queue.clone() }))
    }
    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a OrderingSpec>,
    ) -> BoxFuture<'a, Result<OrderingSpec, PlanError>> {
        self.logs.plan(spec, previous)
    }
    fn provision(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        self.logs.provision(loglet, spec)
    }
    fn delete(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        self.logs.delete(loglet, spec)
    }
    fn duties(&self, spec: &OrderingSpec) -> Duties {
        self.logs.duties(spec)
    }
    fn can_end(&self, spec: &OrderingSpec, reached: &dyn Fn(NodeId) -> bool) -> bool {
        self.logs.can_end(spec, reached)
    }
}

fn start(queue: &Arc<Mutex<Queue>>) -> Cluster {
    let queue = queue.clone();
    Cluster::new(SERVERS, 7, move |core, storage| {
        let env = core.env();
        let server = LogServer::new(env.clone(), storage, LogServerOptions::default());
        core.add_role(LOG_SERVER, Box::new(server));
        core.add_role(SEQUENCER, Box::new(Sequencer::new(env.clone(), SequencerOptions::default())));
        let (logs, queue) = (NativeLogs::new(env.clone()), queue.clone());
        let logs = SlowLogs { logs, env: env.clone(), queue };
        core.add_role(ORDERER, Box::new(Orderer::new(env, Arc::new(logs), OrdererOptions::default())));
    })
}

#[test]
fn cuts_are_rare_and_new_if_the_ordering_log_acknowledges_none() {
    let queue = Arc::new(Mutex::new(Queue::default()));
    let mut c = start(&queue);
    let storages: Vec<StorageId> = c.nodes.values().map(|node| node.storage).collect();
    let storage = |node: NodeId| storages[node.0 as usize - 1];
    let config =
        cluster::config(storage, &c.env(1), &[1, 2, 3], &[&[1, 2], &[3, SERVERS]], &[THE_ORDERER], &[]);
    let began = c.now;
    for step in 1..=STEPS {
        let report = |replica| Report { shard: 0, replica, counts: vec![step, 0] };
        let config = if step == 1 { config.to_bytes() } else { Default::default() };
        let message = Reports { loglet: LOGLET, config, at: None, reports: [0, 1].map(report).to_vec() };
        c.env(SERVERS).post(NodeId(THE_ORDERER), Class::Control, ORDERER, message);
        c.run_for(STEP);
    }
    let queue = queue.lock().unwrap();
    let busy = c.now.since(began).as_secs_f64() / SERVICE.as_secs_f64();
    assert!(queue.stored.len() as f64 > 0.6 * busy, "{} cuts in a time for {busy}", queue.stored.len());
    assert!(queue.most <= 4, "{} proposals wait for the ordering log", queue.most);
    for (at, records) in &queue.stored {
        let age = at.since(began).saturating_sub(STEP * *records as u32);
        assert!(age < 5 * SERVICE, "after {:?}, a cut is {age:?} old", at.since(began));
    }
}

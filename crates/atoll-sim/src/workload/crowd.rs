//! A crowd: many clients of several nodes read and write one key as fast as they are answered. Nobody dies, and nothing is lost, so every
//! request must be served, and soon.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::keyspace::{Attempt, Change, Guard, Happened, KeyspaceError, Told};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::hit;
use atoll_core::{NodeId, Tick};
use atoll_node::keyspaces::KeyspacesError;
use bytes::Bytes;

use crate::scenario::phases::Stage;
use crate::workload::keyspace::{self as load, Handles, NAME, Reef};
use crate::workload::moves;

/// How long the clients of the first node are alone.
const ALONE: Duration = Duration::from_secs(1);
/// How long the clients of all nodes are there.
const TOGETHER: Duration = Duration::from_secs(3);
/// One part in this many of what one node does alone is the least that all do together.
const LEAST_PART: u64 = 2;

/// Who is in the crowd, and what is demanded for it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The hosts with clients. The first one is alone at the beginning.
    pub hosts: Vec<usize>,
    /// How many clients each host has.
    pub clients: u64,
    /// How long a request may take.
    pub ends_within: Duration,
    /// Whether the crowd must do nearly as much as the clients of one node alone.
    pub is_even: bool,
    /// Whether shards move meanwhile.
    pub moves: bool,
}

#[derive(Clone)]
struct Crowd {
    stage: Stage<Handles>,
    reef: Reef,
    plan: Arc<Plan>,
    /// How many writes were acknowledged.
    written: Arc<Mutex<u64>>,
}

fn key() -> Bytes {
    Bytes::from_static(b"hot")
}

impl Crowd {
    fn written(&self) -> MutexGuard<'_, u64> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has ended, or has failed.
    fn ended<T>(&self, host: usize, what: &str, began: Tick, got: Result<T, KeyspacesError>) -> Option<T> {
        let took = self.stage.env.now().since(began);
        let node = NodeId(host as u32 + 1);
        match got {
            Ok(_) if took > self.plan.ends_within => self.stage.cluster.fail(format!(
                "rmw §4 starved: {what} through node {node} took {took:?} in a healthy cluster"
            )),
            Ok(done) => return Some(done),
            // The shard was sealed when the write was proposed, and more writes than a key remembers were repeated before it.
            Err(KeyspacesError::Keys(KeyspaceError::Forgotten)) if self.plan.moves => {
                hit("sim.crowd.forgotten");
            }
            Err(why) => self.stage.cluster.fail(format!(
                "rmw §4 starved: {what} through node {node} failed after {took:?} in a healthy cluster: {why}"
            )),
        }
        None
    }

    async fn read(&self, host: usize) {
        let (Some(life), Some(layout)) = (self.stage.cluster.host(host), self.reef.layout()) else { return };
        let asked = self.reef.judge(&self.stage, layout.id, |judge| judge.reads(&key()));
        let (began, keyspaces) = (self.stage.env.now(), life.handles.keyspaces.clone());
        let get = life.env.launch("client.get", async move { keyspaces.get(NAME, vec![key()]).await });
        let Ok(got) = get.await else { return };
        let (Some(mut found), Some(asked)) = (self.ended(host, "a read", began, got), asked) else { return };
        let told = Told::Read(found.pop().and_then(|(held, _)| held));
        self.reef.judge(&self.stage, layout.id, |judge| judge.told(&key(), asked, &told));
    }

    async fn write(&self, host: usize, op: OpId) {
        let (Some(life), Some(layout)) = (self.stage.cluster.host(host), self.reef.layout()) else { return };
        let change = Change::Put(Bytes::from(format!("{}-{}", op.client.0, op.seq)));
        let asked = self
            .reef
            .judge(&self.stage, layout.id, |judge| judge.writes(&key(), op, &Guard::Always, &change));
        let (began, keyspaces) = (self.stage.env.now(), life.handles.keyspaces.clone());
        let write = life.env.launch("client.write", async move {
            keyspaces.write(NAME, (op, Attempt::First), key(), Guard::Always, change).await
        });
        let Ok(got) = write.await else { return };
        let told = match self.ended(host, "a write", began, got) {
            Some((changed, _)) => Told::Wrote(op, changed),
            None => Told::Failed(op, Happened::Unknown),
        };
        *self.written() += u64::from(matches!(told, Told::Wrote(..)));
        let Some(asked) = asked else { return };
        self.reef.judge(&self.stage, layout.id, |judge| judge.told(&key(), asked, &told));
    }

    /// Reads and writes until the load is over.
    async fn client(self, host: usize, number: u64) {
        self.reef.begins();
        let mut seq = 0;
        while !self.stage.over.is_up() {
            seq += 1;
            match self.stage.below(8) {
                0 => self.read(host).await,
                _ => self.write(host, OpId { client: ClientId(number), seq }).await,
            }
        }
        self.reef.ends();
    }

    fn starts(&self, place: usize) {
        let first = 100 + place as u64 * self.plan.clients;
        for number in first..first + self.plan.clients {
            self.stage.spawn("client", self.clone().client(self.plan.hosts[place], number));
        }
    }

    /// Returns how many writes were acknowledged during this time.
    async fn rate(&self, during: Duration) -> u64 {
        let before = *self.written();
        self.stage.env.sleep(during).await;
        (*self.written() - before) * 1_000 / during.as_millis().max(1) as u64
    }
}

/// Lets the crowd come, and go again.
pub async fn script(stage: Stage<Handles>, reef: Reef, plan: Plan) {
    load::provide(&stage, &reef).await;
    let crowd = Crowd { stage, reef, plan: Arc::new(plan), written: Arc::default() };
    let (stage, plan) = (&crowd.stage, &crowd.plan);
    crowd.starts(0);
    let alone = crowd.rate(ALONE).await;
    (1..plan.hosts.len()).for_each(|place| crowd.starts(place));
    if plan.moves {
        hit("sim.crowd.moves");
        stage.spawn("mover", moves::shuttle(stage.clone(), crowd.reef.clone()));
    }
    let together = crowd.rate(TOGETHER).await;
    stage.over.raise();
    load::clients_end(stage, &crowd.reef).await;
    if plan.is_even && together < alone / LEAST_PART {
        stage.cluster.fail(format!(
            "rmw §4 collapse: {} nodes acknowledge {together} writes of one key per second, and one alone {alone}",
            plan.hosts.len()
        ));
    }
}

//! A load on real nodes: what its clients did, and what the nodes and the machine did meanwhile. The nodes are processes of their own, and
//! the clients are procedures of the node of this process.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::Loglet;
use serde_json::{Value, json};

use crate::corfu::clients::Load;
use crate::corfu::nodes::Nodes;
use crate::corfu::{Error, failed};
use crate::latency::Latencies;
use crate::load::{Clock, locked};
use crate::usage::{Processors, Usage};

/// The model of one machine is within this part of the real system.
pub const TOLERANCE: f64 = 0.2;
/// How long clients may take until they do what is measured.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Where a load goes, and for how long.
#[derive(Clone, Debug)]
pub struct Run {
    /// How many nodes store the log: the first ones.
    pub servers: u32,
    /// The node that orders it, if it stores nothing.
    pub sequencer: Option<u32>,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub measured: Duration,
}

/// What a run showed.
pub struct Showed {
    /// The operations.
    pub latencies: Latencies,
    /// What each node did in that time, the first one first.
    pub nodes: Vec<Usage>,
    machine: Processors,
}

async fn usage_of_all(nodes: &mut Nodes) -> Result<Vec<Usage>, Error> {
    let mut all = Vec::new();
    for node in nodes.all() {
        all.push(nodes.usage(node).await?);
    }
    Ok(all)
}

impl Run {
    /// Runs a load on a log that is open at the node of the clients.
    pub async fn run(&self, nodes: &mut Nodes, loglet: Arc<dyn Loglet>, load: Load) -> Result<Showed, Error> {
        let (env, clock) = (nodes.env().clone(), Clock::real());
        let running = load.start(vec![(env.clone(), loglet)], clock);
        let ready = async {
            while !running.is_ready() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let late = |_| failed("the clients are not ready in time");
        tokio::time::timeout(READY_WITHIN, ready).await.map_err(late)?;
        tokio::time::sleep(self.warm_up).await;
        let (before, machine) = (usage_of_all(nodes).await?, Processors::now());
        let began = clock.now(&env);
        locked(&running.tally).begin(began);
        tokio::time::sleep(self.measured).await;
        let (after, machine) = (usage_of_all(nodes).await?, Processors::now() - machine);
        let mut latencies = locked(&running.tally).end();
        latencies.busy = clock.now(&env).since(began);
        let nodes = after.iter().zip(&before).map(|(after, before)| *after - *before).collect();
        Ok(Showed { latencies, nodes, machine })
    }
}

impl Showed {
    /// Returns operations per second.
    pub fn rate(&self) -> f64 {
        self.latencies.count() as f64 / self.latencies.busy.as_secs_f64().max(1e-9)
    }

    /// Returns how long the processors worked for nobody's process of this run: for the system, or for other programs.
    pub fn others_ns(&self) -> u64 {
        let known: u64 = self.nodes.iter().map(|node| node.processor_ns).sum();
        self.machine.busy_ns.saturating_sub(known)
    }

    /// Returns what each kind of node did for an operation, and what the machine did beside them, as JSON.
    pub fn usage(&self, run: &Run) -> Value {
        let operations = self.latencies.count();
        let of = |wanted: &dyn Fn(u32) -> bool| {
            let numbered = (1..).zip(&self.nodes);
            let sum: Usage = numbered.filter(|(node, _)| wanted(*node)).map(|(_, usage)| *usage).sum();
            sum.for_each(operations)
        };
        let client = self.nodes.len() as u32;
        let each = |nanos: u64| (nanos as f64 / operations.max(1) as f64).round();
        let known: u64 = self.nodes.iter().map(|node| node.processor_ns).sum();
        let others = self.others_ns();
        json!({
            "client": of(&|node| node == client),
            "sequencer": of(&|node| Some(node) == run.sequencer),
            "servers": of(&|node| node <= run.servers),
            "others": of(&|node| node > run.servers && node < client && Some(node) != run.sequencer),
            "processors": {
                "nodes_ns": each(known), "others_ns": each(others),
                "idle_ns": each(self.machine.idle_ns), "stolen_ns": each(self.machine.stolen_ns),
            },
        })
    }
}

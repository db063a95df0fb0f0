//! Nodes that use an ensemble: one in memory, Atoll's own ZooKeeper door, or a real Apache ZooKeeper.

// Real servers, threads and time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use atoll_contract::conformance::{Driver, LogletHarness, RegisterHarness};
use atoll_contract::{Loglet, LogletId, LogletProvider, Registers};
use atoll_core::{Encode, Env, Level, NodeId, Ticket};
use atoll_zookeeper_loglet::ensemble::{Answer, Ensemble, Fault, Request};
use atoll_zookeeper_loglet::testing::{Faults, MemoryEnsemble, remote};
use atoll_zookeeper_loglet::{ZooKeeperConfig, ZooKeeperOptions, ZooKeeperProvider, ZooKeeperRegisters};
use bytes::Bytes;

mod door;
mod proxy;

pub use door::Door;
pub use proxy::Proxy;

/// The variable with the servers of a real ensemble, `host:port,host:port`.
pub const REAL: &str = "ATOLL_TEST_ZOOKEEPER";

/// Returns the servers of a real ensemble, or says why the test does nothing.
pub fn real() -> Option<String> {
    let servers = std::env::var(REAL).ok().filter(|servers| !servers.is_empty());
    if servers.is_none() {
        eprintln!(
            "not run: set {REAL} to the servers of an Apache ZooKeeper ensemble, such as 127.0.0.1:2181"
        );
    }
    servers
}

/// What the nodes use.
pub enum Over {
    Memory(MemoryEnsemble, Faults),
    /// The servers of a real one, and the root there.
    Servers(String, String),
}

pub struct Harness {
    pub driver: Driver,
    over: Over,
    nodes: u32,
    loglets: u64,
    providers: BTreeMap<NodeId, ZooKeeperProvider>,
    registers: BTreeMap<NodeId, Arc<ZooKeeperRegisters>>,
    /// Tells this run's loglets from those of others in the same ensemble.
    run: u64,
    proxy: Option<Proxy>,
}

/// A session with a real ensemble for nodes on virtual time: time stands still until the ensemble has answered, and the answer takes its
/// time afterwards. So calls of several nodes overlap, although the ensemble does them one after the other.
#[derive(Debug)]
struct Stopping {
    env: Env,
    inner: Arc<dyn Ensemble>,
}

/// Wakes the thread that waits for an answer.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread.
pub fn wait_for<T>(mut ticket: Ticket<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer.unwrap(),
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Ensemble for Stopping {
    fn send(&self, requests: Vec<Request>) -> Ticket<Vec<Result<Answer, Fault>>> {
        let answers = wait_for(self.inner.send(requests));
        let late = self.env.sleep(self.env.jitter(Duration::from_micros(500)));
        self.env.launch("ensemble.send", async move {
            late.await;
            answers
        })
    }

    /// Looks again after a while.
    fn wait(&self, _: Vec<(String, i32)>, _: Duration) -> Ticket<Result<(), Fault>> {
        let a_while = self.env.sleep(self.env.jitter(Duration::from_millis(2)));
        self.env.launch("ensemble.wait", async move {
            a_while.await;
            Ok(())
        })
    }
}

impl Harness {
    pub fn new(nodes: u32, over: Over, options: ZooKeeperOptions) -> Self {
        let mut driver = Driver::new(5);
        let envs: Vec<Env> = (1..=nodes).map(|n| driver.add_node(NodeId(n), |_| {})).collect();
        let (by_node, root): (BTreeMap<NodeId, Arc<dyn Ensemble>>, String) = match &over {
            Over::Memory(memory, _) => {
                let latency = Duration::from_micros(300);
                let session = |env: &Env| (env.node(), memory.session(env.clone(), latency));
                (envs.iter().map(session).collect(), "/atoll".to_owned())
            }
            Over::Servers(servers, root) => {
                let session = |env: &Env| {
                    let inner = remote(servers, Duration::from_secs(6));
                    (env.node(), Arc::new(Stopping { env: env.clone(), inner }) as Arc<dyn Ensemble>)
                };
                (envs.iter().map(session).collect(), root.clone())
            }
        };
        let (mut providers, mut registers) = (BTreeMap::new(), BTreeMap::new());
        for env in envs {
            env.levels().learn(Level::CURRENT).unwrap();
            let (node, ensemble) = (env.node(), by_node[&env.node()].clone());
            let all = ZooKeeperRegisters::new(env.clone(), ensemble.clone(), &root, options.clone());
            registers.insert(node, Arc::new(all));
            let provider = ZooKeeperProvider::over(env, options.clone(), move |_| ensemble.clone());
            providers.insert(node, provider);
        }
        let run =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        Harness { driver, over, nodes, loglets: 0, providers, registers, run, proxy: None }
    }

    pub fn memory(nodes: u32, faults: Faults) -> Self {
        Self::new(nodes, Over::Memory(MemoryEnsemble::default(), faults), ZooKeeperOptions::default())
    }

    /// Over servers that are reached through the network, under a root that no other run uses.
    pub fn servers(nodes: u32, servers: &str) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let root = format!("/atoll-test/{now}");
        Self::new(nodes, Over::Servers(servers.to_owned(), root), ZooKeeperOptions::default())
    }

    /// Lets the random tests break the connections of this proxy.
    pub fn behind(mut self, proxy: Proxy) -> Self {
        self.proxy = Some(proxy);
        self
    }

    pub fn provider(&self, at: NodeId) -> ZooKeeperProvider {
        self.providers[&at].clone()
    }

    pub fn config(&self) -> Bytes {
        let root = match &self.over {
            Over::Memory(..) => "/atoll",
            Over::Servers(_, root) => root,
        };
        ZooKeeperConfig::new("ensemble:2181", root).unwrap().to_bytes()
    }

    pub fn id(&self, loglet: u64) -> LogletId {
        LogletId(u128::from(self.run) << 64 | u128::from(loglet))
    }

    fn set_faults(&self, faults: impl FnOnce(Faults) -> Faults) {
        if let Over::Memory(memory, most) = &self.over {
            memory.set_faults(faults(*most));
        }
    }

    fn disturb_one_of_two_times(&self, random: u64) {
        if let Some(proxy) = &self.proxy {
            match random % 8 {
                0 => proxy.cut(),
                1 => proxy.swallow(),
                _ => {}
            }
        }
        self.set_faults(|most| match random % 2 {
            0 => most,
            _ => Faults { lag: most.lag, ..Faults::default() },
        });
    }
}

impl LogletHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=self.nodes).map(NodeId).collect()
    }

    fn fresh(&mut self) -> u64 {
        self.set_faults(|most| Faults { lag: most.lag, ..Faults::default() });
        self.loglets += 1;
        self.loglets
    }

    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet> {
        self.provider(client).open(self.id(loglet), &self.config()).unwrap()
    }

    fn delete(&mut self, loglet: u64) -> bool {
        let at = NodeId(self.nodes);
        let (provider, config, id) = (self.provider(at), self.config(), self.id(loglet));
        self.driver.block_on(at, async move { provider.delete(id, &config).await.unwrap() });
        true
    }

    fn disturb(&mut self, random: u64) {
        self.disturb_one_of_two_times(random);
    }

    fn heal(&mut self) {
        self.set_faults(|most| Faults { lag: most.lag, ..Faults::default() });
    }
}

impl RegisterHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=self.nodes).map(NodeId).collect()
    }

    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        self.registers[&client].clone()
    }

    fn disturb(&mut self, random: u64) {
        self.disturb_one_of_two_times(random);
    }

    fn heal(&mut self) {
        self.set_faults(|most| Faults { lag: most.lag, ..Faults::default() });
    }
}

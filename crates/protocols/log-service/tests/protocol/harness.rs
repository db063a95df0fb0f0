//! Nodes with providers over one service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::{Driver, LogletHarness};
use atoll_contract::{Loglet, LogletId, LogletProvider, LogletSpec};
use atoll_core::{BoxFuture, Decode, Env, Level, NodeId};
use atoll_log_service::service::{Answer, Fault, Request, Service, Stream};
use atoll_log_service::testing::Memory;
use atoll_log_service::{KIND, LogServiceConfig, LogServiceOptions, LogServiceProvider};
use bytes::Bytes;

pub const NODES: u32 = 3;

/// Waits on this thread.
pub fn wait_for<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(f)
}

/// A real service for nodes on virtual time: time stands still until it has answered, and the answer takes its time afterwards. So calls of
/// several nodes overlap, although the service does them one after the other.
#[derive(Debug)]
struct Stopping {
    env: Env,
    inner: Arc<dyn Service>,
}

impl Service for Stopping {
    fn ask(&self, stream: Stream, request: Request) -> BoxFuture<'static, Result<Answer, Fault>> {
        let answer = wait_for(self.inner.ask(stream, request));
        let late = self.env.sleep(self.env.jitter(Duration::from_micros(500)));
        Box::pin(async move {
            late.await;
            answer
        })
    }

    /// Looks again after a while.
    fn news(&self, _: Stream, _: u64, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(self.env.sleep(self.env.jitter(Duration::from_millis(2))))
    }
}

/// What the nodes reach.
#[derive(Clone)]
pub enum Over {
    Memory(Memory),
    Servers(Arc<dyn Service>, String),
}

pub struct Harness {
    pub driver: Driver,
    pub over: Over,
    /// Whether `disturb` may start faults.
    faulty: bool,
    configs: BTreeMap<u64, Bytes>,
}

fn options(over: &Over) -> LogServiceOptions {
    match over {
        Over::Memory(_) => LogServiceOptions {
            append_timeout: Duration::from_millis(400),
            request_timeout: Duration::from_millis(20),
            retry: Duration::from_millis(1),
            courtesy: Duration::from_micros(300),
            ..LogServiceOptions::default()
        },
        Over::Servers(..) => LogServiceOptions::default(),
    }
}

impl Harness {
    pub fn new(over: Over, faulty: bool) -> Self {
        let mut driver = Driver::new(17);
        for n in 1..=NODES {
            let env = driver.add_node(NodeId(n), |_| {});
            env.levels().learn(Level::CURRENT).unwrap();
        }
        if let Over::Memory(memory) = &over {
            memory.faults.set_delay(Duration::from_micros(300));
        }
        Harness { driver, over, faulty, configs: BTreeMap::new() }
    }

    pub fn memory(faulty: bool) -> Self {
        Self::new(Over::Memory(Memory::default()), faulty)
    }

    /// Every call returns a provider of its own, so that handles on one node know nothing of each other.
    pub fn provider(&self, at: NodeId) -> LogServiceProvider {
        let env: Env = self.driver.env(at);
        let service: Arc<dyn Service> = match &self.over {
            Over::Memory(memory) => memory.of(&env),
            Over::Servers(service, _) => Arc::new(Stopping { env: env.clone(), inner: service.clone() }),
        };
        LogServiceProvider::over(env, options(&self.over), move |_| service.clone())
    }

    pub fn spec(&self) -> LogletSpec {
        let mut spec = LogletSpec::of(KIND);
        if let Over::Servers(_, servers) = &self.over {
            spec.options.insert("servers".to_owned(), servers.clone());
        }
        spec
    }

    pub fn stream(&self, loglet: u64) -> Stream {
        LogServiceConfig::from_bytes(self.configs[&loglet].clone()).unwrap().stream()
    }
}

impl LogletHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    fn fresh(&mut self) -> u64 {
        let (provider, spec) = (self.provider(NodeId(1)), self.spec());
        let config = self.driver.block_on(NodeId(1), async move { provider.plan(&spec, None).await });
        let id = self.configs.len() as u64 + 1;
        self.configs.insert(id, config.unwrap());
        id
    }

    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet> {
        self.provider(client).open(LogletId(loglet.into()), &self.configs[&loglet]).unwrap()
    }

    fn delete(&mut self, loglet: u64) -> bool {
        let (provider, config) = (self.provider(NodeId(NODES)), self.configs[&loglet].clone());
        let delete = async move { provider.delete(LogletId(loglet.into()), &config).await };
        assert_eq!(self.driver.block_on(NodeId(NODES), delete), Ok(()));
        true
    }

    fn disturb(&mut self, random: u64) {
        let Over::Memory(memory) = &self.over else { return };
        if !self.faulty {
            return;
        }
        let of = |shift: u32, values: [u32; 4]| values[(random >> shift) as usize % 4];
        let faults = &memory.faults;
        faults.set_delay(Duration::from_micros(of(0, [20, 300, 2_000, 8_000]).into()));
        faults.set(
            of(2, [0, 0, 50, 300]),
            of(4, [0, 0, 50, 300]),
            of(6, [0, 0, 10, 50]),
            of(8, [0, 0, 100, 300]),
        );
        faults.set_lag(of(10, [0, 100, 300, 800]));
        faults.set_one("store_cut_window_ms", of(12, [0, 0, 10, 40]).into());
    }

    fn heal(&mut self) {
        if let Over::Memory(memory) = &self.over {
            memory.faults.heal();
            memory.faults.set_one("store_cut_window_ms", 0);
            memory.faults.set_delay(Duration::from_micros(300));
        }
    }
}

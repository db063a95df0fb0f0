//! Nodes that use an etcd: one in memory, or a real one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::Registers;
use atoll_contract::conformance::{Driver, RegisterHarness};
use atoll_core::{BoxFuture, Env, NodeId};
use atoll_etcd_register::etcd::Etcd;
use atoll_etcd_register::proto::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use atoll_etcd_register::testing::{Faults, MemoryEtcd, client};
use atoll_etcd_register::{EtcdOptions, EtcdRegisters};
use atoll_register_store::Fault;

use crate::servers::Servers;

const NODES: u32 = 3;

/// What the nodes use.
pub enum Over {
    Memory(MemoryEtcd, Faults),
    /// Servers of a real one, and the number of the one that is down.
    Real(Servers, Option<usize>),
}

pub struct Harness {
    pub driver: Driver,
    over: Over,
    registers: BTreeMap<NodeId, Arc<EtcdRegisters>>,
}

/// A client of a real etcd for nodes on virtual time: time stands still until etcd has answered, and the answer takes its time afterwards.
/// So calls of several nodes overlap, although etcd does them one after the other.
#[derive(Debug)]
struct Stopping {
    env: Env,
    inner: Arc<dyn Etcd>,
}

impl Stopping {
    fn after<T: Send + 'static>(
        &self,
        asked: BoxFuture<'static, Result<T, Fault>>,
    ) -> BoxFuture<'static, Result<T, Fault>> {
        let answer = wait_for(asked);
        let late = self.env.sleep(self.env.jitter(Duration::from_micros(500)));
        Box::pin(async move {
            late.await;
            answer
        })
    }
}

/// Waits on this thread.
pub fn wait_for<T>(asked: BoxFuture<'static, T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(asked)
}

impl Etcd for Stopping {
    fn range(&self, request: RangeRequest) -> BoxFuture<'static, Result<RangeResponse, Fault>> {
        self.after(self.inner.range(request))
    }

    fn txn(&self, request: TxnRequest) -> BoxFuture<'static, Result<TxnResponse, Fault>> {
        self.after(self.inner.txn(request))
    }
}

impl Harness {
    pub fn new(over: Over) -> Self {
        let mut driver = Driver::new(5);
        let mut registers = BTreeMap::new();
        for node in (1..=NODES).map(NodeId) {
            let env = driver.add_node(node, |_| {});
            let etcd: Arc<dyn Etcd> = match &over {
                Over::Memory(memory, _) => memory.at(env.clone(), Duration::from_micros(300)),
                Over::Real(servers, _) => {
                    let inner = client(&servers.addresses(), Duration::from_secs(2)).unwrap();
                    Arc::new(Stopping { env: env.clone(), inner })
                }
            };
            let options = EtcdOptions { op_timeout: Duration::from_secs(20), ..EtcdOptions::default() };
            let all = EtcdRegisters::new(env, etcd, "/atoll", &options).unwrap();
            registers.insert(node, Arc::new(all));
        }
        Harness { driver, over, registers }
    }

    pub fn memory(faults: Faults) -> Self {
        Self::new(Over::Memory(MemoryEtcd::default(), faults))
    }

    pub fn over(&self) -> &Over {
        &self.over
    }
}

impl RegisterHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        self.registers[&client].clone()
    }

    fn disturb(&mut self, random: u64) {
        match &mut self.over {
            Over::Memory(memory, most) => {
                memory.set_faults(if random.is_multiple_of(2) { *most } else { Faults::default() });
            }
            // One at a time, so that the others are a majority.
            Over::Real(servers, down) => match down.take() {
                None if random.is_multiple_of(64) => {
                    let server = (random / 64 % 3) as usize;
                    servers.kill(server);
                    *down = Some(server);
                }
                Some(server) if random.is_multiple_of(4) => servers.restart(server),
                unchanged => *down = unchanged,
            },
        }
    }

    fn heal(&mut self) {
        match &mut self.over {
            Over::Memory(memory, _) => memory.set_faults(Faults::default()),
            Over::Real(servers, down) => {
                if let Some(server) = down.take() {
                    servers.restart(server);
                }
            }
        }
    }
}

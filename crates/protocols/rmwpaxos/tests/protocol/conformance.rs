//! Runs the conformance suite of registers on RMWPaxos.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::conformance::{Driver, RegisterHarness, register};
use atoll_contract::{Registers, Version};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{NodeCore, NodeId, StorageId};
use atoll_rmwpaxos::{Acceptor, GroupConfig, Member, Options, RmwRegisters};

struct Rmw {
    driver: Driver,
    group: GroupConfig,
    options: Options,
    /// The registers of each node. A restarted node gets new ones, with proposers of its new life.
    registers: BTreeMap<NodeId, Arc<RmwRegisters>>,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0))
}

fn assemble(node: NodeId, group: &GroupConfig) -> impl FnOnce(&mut NodeCore) + use<> {
    let acceptor = Acceptor::new(node, storage(node), Some(group.clone()));
    move |core| core.add_role(atoll_rmwpaxos::roles::ACCEPTOR, Box::new(acceptor))
}

impl Rmw {
    fn new(seed: u64, nodes: u32, acceptors: u32) -> Self {
        Rmw::with(seed, nodes, acceptors, Options::default())
    }

    fn with(seed: u64, nodes: u32, acceptors: u32, options: Options) -> Self {
        let member = |n| Member { node: NodeId(n), storage: storage(NodeId(n)) };
        let group = GroupConfig::new(1, (1..=acceptors).map(member).collect()).unwrap();
        let mut driver = Driver::new(seed);
        let mut registers = BTreeMap::new();
        for node in (1..=nodes).map(NodeId) {
            let env = driver.add_node(node, assemble(node, &group));
            registers.insert(node, Arc::new(RmwRegisters::new(env, group.clone(), options)));
        }
        Rmw { driver, group, options, registers }
    }
}

impl RegisterHarness for Rmw {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        // The suite's clients run on the first and the last node, which are never restarted.
        let all: Vec<NodeId> = self.registers.keys().copied().collect();
        if all.len() > 3 { vec![all[0], all[all.len() - 1]] } else { all }
    }

    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        self.registers[&client].clone()
    }

    /// Restarts an acceptor on a node without clients.
    fn disturb(&mut self, random: u64) {
        let nodes = self.registers.len() as u32;
        if nodes > 3 && random.is_multiple_of(3) {
            let node = NodeId(2 + (random / 3) as u32 % (nodes - 2));
            let roles = assemble(node, &self.group);
            let env = self.driver.restart(node, roles).unwrap();
            let registers = RmwRegisters::new(env, self.group.clone(), self.options);
            self.registers.insert(node, Arc::new(registers));
        }
    }
}

#[test]
fn rmwpaxos_on_one_three_and_five_nodes() {
    set_mutant(Mutant::NONE);
    register::all(&mut Rmw::new(1, 1, 1), 0..5);
    register::all(&mut Rmw::new(2, 3, 3), 0..30);
    register::all(&mut Rmw::new(3, 5, 5), 0..30);
    // Nodes without an acceptor can also use the registers.
    register::all(&mut Rmw::new(4, 4, 3), 0..30);
    // Proposers are dropped whenever nobody uses them.
    register::all(&mut Rmw::with(5, 3, 3, Options { idle_registers: 1, ..Options::default() }), 0..30);
}

#[test]
fn reads_of_ten_thousand_unknown_names_leave_little_behind() {
    set_mutant(Mutant::NONE);
    let mut rmw = Rmw::new(6, 3, 3);
    let registers = rmw.registers[&NodeId(1)].clone();
    let most = rmw.driver.block_on(NodeId(1), async move {
        let mut most = 0;
        for n in 0..10_000 {
            let read = registers.register(&format!("unknown-{n}")).read().await.unwrap();
            assert_eq!(read.version, Version(0));
            most = most.max(registers.open_registers());
        }
        most
    });
    let swept = rmw.registers[&NodeId(1)].clone();
    swept.sweep();
    assert_eq!(swept.open_registers(), 0, "proposers of registers that were only read go");
    let keep = Options::default().idle_registers;
    assert!(most <= keep + keep / 8 + 1, "{most} proposers");
    let mut held = Vec::new();
    rmw.driver.core(NodeId(1)).measures().into_iter().for_each(|m| held.push((m.name, m.value)));
    let acceptor = held.iter().find(|(name, _)| name.ends_with("registers"));
    assert_eq!(
        acceptor.map(|(_, value)| *value),
        Some(0.0),
        "an acceptor keeps nothing of a register that was only read"
    );
}

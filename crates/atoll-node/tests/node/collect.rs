//! Tests that abandoned Loglets of a dead node are deleted, while Loglets in the chain and Loglets that may still be installed stay.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::plugin::Host;
use atoll_contract::{Kinds, LogletId, LogletProvider, LogletSpec, Nonce, Registers, Registry};
use atoll_core::{Candidate, Directory, Env, Identity, Level, NodeId, StorageId, roles};
use atoll_log::memory::MemoryServers;
use atoll_log::origin::{Origin, new_id};
use atoll_log::virtual_log::Options as LogOptions;
use atoll_node::logs::Logs;
use atoll_node::members::Members;
use atoll_node::members::cluster::NodeCluster;
use atoll_node::members::role::MemberRole;
use atoll_node::members::table::MemberTable;
use atoll_node::policy::Collector;

const LOG: &str = "reef";
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// A directory in which every node is up.
struct AllUp;

impl Directory for AllUp {
    fn candidates(&self) -> Vec<Candidate> {
        let up = |node| Candidate {
            node,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            leaving: false,
            alive: true,
            failing: false,
        };
        NODES.map(up).into()
    }
}

/// A node with every protocol.
struct Node {
    env: Env,
    registry: Registry,
}

impl Node {
    fn assemble(driver: &mut Driver, node: NodeId) -> Node {
        let storage = StorageId(u128::from(node.0) + 100);
        let mut registry = Registry::new();
        let env = driver.add_node(node, |core| {
            let env = core.env();
            let me = Identity {
                node,
                incarnation: env.incarnation(),
                storage,
                log: true,
                sequencer: true,
                meta: true,
                draining: false,
                failed: false,
            };
            let members = Members::new(me, MemberTable::default());
            core.add_role(roles::MEMBER, Box::new(MemberRole::new(members.clone())));
            let cluster = Arc::new(NodeCluster::new(env.clone(), members, Vec::new()));
            let look_every = Duration::from_secs(1);
            let (directory, kinds) = (Arc::new(AllUp), Kinds::default());
            let host = Host { env, storage, directory, cluster, kinds, look_every };
            for protocol in atoll_protocols::all().iter() {
                let loglets = protocol.install(core, &host).loglets;
                registry = loglets.into_iter().fold(std::mem::take(&mut registry), Registry::with);
            }
        });
        Node { env, registry }
    }

    /// Returns the provider of the kind that a log of three servers has.
    fn provider(&self) -> Arc<dyn LogletProvider> {
        self.registry.provider(kind()).unwrap().clone()
    }

    /// Returns the logs of this node.
    fn logs(&self, memory: &MemoryServers) -> Logs {
        let options = LogOptions { first_kind: Some(kind().to_owned()), ..LogOptions::default() };
        let registers = memory.registers(&self.env);
        Logs::new(self.env.clone(), registers, self.registry.clone(), options, Default::default())
    }
}

fn kind() -> &'static str {
    atoll_protocols::all().first_choice(NODES.len()).unwrap()
}

/// Returns how many nodes hold a Loglet.
fn holders(driver: &mut Driver, nodes: &[Node], loglet: LogletId) -> usize {
    let mut holders = 0;
    for node in nodes {
        let provider = node.provider();
        let held = driver.block_on(node.env.node(), async move { provider.held_here(None).await.unwrap() });
        holders += usize::from(held.0.contains(&loglet));
    }
    holders
}

#[test]
fn what_a_dead_reconfigurer_made_goes_once_it_cannot_be_installed_any_more() {
    let mut driver = Driver::new(5);
    let nodes = NODES.map(|node| Node::assemble(&mut driver, node));
    let memory = MemoryServers::new(&NODES);
    let logs = nodes.each_ref().map(|node| node.logs(&memory));
    let log = logs[0].open(LOG).unwrap();
    let first = driver.block_on(NODES[0], {
        let log = log.clone();
        async move { log.create(LogletSpec::default()).await.unwrap().unwrap() }
    });
    let first = first.chain.active().clone();
    for (env, logs) in nodes.iter().map(|node| &node.env).zip(&logs) {
        // Learn the log, as the guardian does.
        let list = logs.list();
        assert_eq!(driver.block_on(env.node(), list).unwrap().unwrap(), [LOG]);
        let every = Duration::from_secs(1);
        let collector = Collector { env: env.clone(), logs: logs.clone(), every };
        env.spawn("collect", Box::pin(collector.run()));
    }

    // A node creates the next Loglet and then dies. No other node knows that it is dead.
    let orphan = new_id(1 << 40, LOG, Origin::Extend(first.loglet));
    driver.block_on(NODES[1], {
        let (provider, config) = (nodes[1].provider(), first.config.clone());
        async move { provider.provision(orphan, &config).await.unwrap() }
    });
    driver.run_for(Duration::from_secs(300));
    assert_eq!(holders(&mut driver, &nodes, orphan), 3, "he may be slow: his install could still succeed");

    // Another node extends the log first. From then on, the orphan can no longer be installed.
    let chain = driver.block_on(NODES[0], {
        let log = log.clone();
        async move { log.extend(LogletSpec::default()).await.unwrap().unwrap() }
    });
    driver.run_for(Duration::from_secs(300));
    assert_eq!(holders(&mut driver, &nodes, orphan), 0);
    for segment in chain.chain.segments() {
        assert_eq!(holders(&mut driver, &nodes, segment.loglet), 3, "what the chain names stays");
    }
}

#[test]
fn what_a_deletion_did_not_reach_goes_when_its_server_is_back() {
    let mut driver = Driver::new(6);
    let nodes = NODES.map(|node| Node::assemble(&mut driver, node));
    let memory = MemoryServers::new(&NODES);
    let logs = nodes.each_ref().map(|node| {
        node.env.levels().learn(Level::CURRENT).unwrap();
        node.logs(&memory)
    });
    let log = logs[0].open(LOG).unwrap();
    let chain = driver.block_on(NODES[0], {
        let log = log.clone();
        async move {
            log.create(LogletSpec::default()).await.unwrap().unwrap();
            log.extend(LogletSpec::default()).await.unwrap().unwrap()
        }
    });
    let loglets: Vec<LogletId> = chain.chain.segments().iter().map(|s| s.loglet).collect();
    // The node that deletes the log dies after it has changed the chain.
    let tail = chain.chain.active().start;
    let mark = new_id(9 << 40, LOG, Origin::Extend(chain.chain.active().loglet));
    let deleted = chain.chain.deleted(Nonce(77), mark, tail).unwrap().to_value().unwrap();
    driver.block_on(NODES[0], {
        let register =
            memory.registers(&nodes[0].env).register(&format!("{}{LOG}", atoll_node::logs::PREFIX));
        let version = chain.version;
        async move { register.write_if(version, deleted, Nonce(77)).await.unwrap() }
    });
    assert!(loglets.iter().all(|l| holders(&mut driver, &nodes, *l) == 3));
    for (env, logs) in nodes.iter().map(|node| &node.env).zip(&logs) {
        let list = logs.list();
        assert!(
            driver.block_on(env.node(), list).unwrap().unwrap().is_empty(),
            "deleted logs are not listed"
        );
        let collector = Collector { env: env.clone(), logs: logs.clone(), every: Duration::from_secs(1) };
        env.spawn("collect", Box::pin(collector.run()));
    }
    driver.run_for(Duration::from_secs(120));
    assert!(
        loglets.iter().all(|l| holders(&mut driver, &nodes, *l) == 0),
        "each server collects what no chain names"
    );
}

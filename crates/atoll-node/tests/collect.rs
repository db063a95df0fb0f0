//! Tests that abandoned Loglets of a dead node are deleted, while Loglets in the chain and Loglets that may still be installed stay.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::{LogletId, LogletProvider, LogletSpec, Nonce, Registers, Registry};
use atoll_core::{Candidate, Directory, Env, Identity, Level, NodeId, StorageId, roles};
use atoll_local::{LocalStore, LocalStoreOptions};
use atoll_log::memory::MemoryServers;
use atoll_log::origin::{Origin, new_id};
use atoll_log::virtual_log::Options as LogOptions;
use atoll_native::{LogServer, LogServerOptions, NativeOptions, NativeProvider, Sequencer, SequencerOptions};
use atoll_node::logs::Logs;
use atoll_node::members::Members;
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

fn assemble(driver: &mut Driver, node: NodeId) -> Env {
    let storage = StorageId(u128::from(node.0) + 100);
    driver.add_node(node, |core| {
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
        core.add_role(roles::MEMBER, Box::new(MemberRole::new(members)));
        let server = LogServer::new(env.clone(), storage, LogServerOptions::default());
        core.add_role(atoll_native::roles::LOG_SERVER, Box::new(server));
        core.add_role(
            atoll_native::roles::SEQUENCER,
            Box::new(Sequencer::new(env.clone(), SequencerOptions::default())),
        );
        let local = LocalStore::new(env, storage, LocalStoreOptions::default());
        core.add_role(atoll_local::roles::LOCAL_STORE, Box::new(local));
    })
}

fn native(env: &Env) -> NativeProvider {
    NativeProvider::new(env.clone(), Arc::new(AllUp), NativeOptions::default())
}

/// Returns how many nodes hold a Loglet.
fn holders(driver: &mut Driver, loglet: LogletId) -> usize {
    let mut holders = 0;
    for node in NODES {
        let provider = native(&driver.env(node));
        let held = driver.block_on(node, async move { provider.held_here(None).await.unwrap() });
        holders += usize::from(held.0.contains(&loglet));
    }
    holders
}

#[test]
fn what_a_dead_reconfigurer_made_goes_once_it_cannot_be_installed_any_more() {
    let mut driver = Driver::new(5);
    let envs = NODES.map(|node| assemble(&mut driver, node));
    let memory = MemoryServers::new(&NODES);
    let logs = envs.each_ref().map(|env| {
        let registry = Registry::new().with(Arc::new(native(env)));
        let options = LogOptions { first_kind: Some("native".into()), ..LogOptions::default() };
        Logs::new(env.clone(), memory.registers(env), registry, options, Default::default())
    });
    let log = logs[0].open(LOG).unwrap();
    let first = driver.block_on(NODES[0], {
        let log = log.clone();
        async move { log.create(LogletSpec::default()).await.unwrap().unwrap() }
    });
    let first = first.chain.active().clone();
    for (env, logs) in envs.iter().zip(&logs) {
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
        let (provider, config) = (native(&envs[1]), first.config.clone());
        async move { provider.provision(orphan, &config).await.unwrap() }
    });
    driver.run_for(Duration::from_secs(300));
    assert_eq!(holders(&mut driver, orphan), 3, "he may be slow: his install could still succeed");

    // Another node extends the log first. From then on, the orphan can no longer be installed.
    let chain = driver.block_on(NODES[0], {
        let log = log.clone();
        async move { log.extend(LogletSpec::default()).await.unwrap().unwrap() }
    });
    driver.run_for(Duration::from_secs(300));
    assert_eq!(holders(&mut driver, orphan), 0);
    for segment in chain.chain.segments() {
        assert_eq!(holders(&mut driver, segment.loglet), 3, "what the chain names stays");
    }
}

#[test]
fn what_a_deletion_did_not_reach_goes_when_its_server_is_back() {
    let mut driver = Driver::new(6);
    let envs = NODES.map(|node| assemble(&mut driver, node));
    let memory = MemoryServers::new(&NODES);
    let logs = envs.each_ref().map(|env| {
        env.levels().learn(Level::CURRENT).unwrap();
        let registry = Registry::new().with(Arc::new(native(env)));
        let options = LogOptions { first_kind: Some("native".into()), ..LogOptions::default() };
        Logs::new(env.clone(), memory.registers(env), registry, options, Default::default())
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
        let register = memory.registers(&envs[0]).register(&format!("{}{LOG}", atoll_node::logs::PREFIX));
        let version = chain.version;
        async move { register.write_if(version, deleted, Nonce(77)).await.unwrap() }
    });
    assert!(loglets.iter().all(|l| holders(&mut driver, *l) == 3));
    for (env, logs) in envs.iter().zip(&logs) {
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
        loglets.iter().all(|l| holders(&mut driver, *l) == 0),
        "each server collects what no chain names"
    );
}

//! Tests that the decision whether a node may be removed reads all chains afresh. A chain that another node has cached may date from before
//! the last copies were placed on the node.

use atoll_contract::conformance::Driver;
use atoll_contract::{ClientId, LogletSpec, OpId, Registry};
use atoll_core::{Env, Level, NodeId};
use atoll_log::memory::MemoryServers;
use atoll_log::virtual_log::{LogRecord, Options};
use atoll_node::logs::Logs;
use atoll_node::survey;

const STAYS: NodeId = NodeId(1);
const LEAVES: NodeId = NodeId(2);

fn logs(driver: &Driver, servers: &MemoryServers, node: NodeId) -> (Env, Logs) {
    let env = driver.env(node);
    let registry = Registry::new().with(servers.provider(&env, "memory", true));
    let logs =
        Logs::new(env.clone(), servers.registers(&env), registry, Options::default(), Default::default());
    (env, logs)
}

/// Returns a Loglet with one server, which is also the sequencer.
fn on(node: NodeId) -> LogletSpec {
    LogletSpec::default().place("server", [node]).place("sequencer", [node])
}

async fn write(logs: &Logs, name: &str) {
    let record = LogRecord { op: OpId { client: ClientId(5), seq: 1 }, floor: None, payload: "only".into() };
    logs.open(name).unwrap().submit(vec![record]).unwrap().await.unwrap().unwrap();
}

#[test]
fn the_last_copies_are_seen_although_the_chain_that_is_remembered_is_older() {
    let mut driver = Driver::new(67);
    for node in [STAYS, LEAVES] {
        driver.add_node(node, |core| {
            core.env().levels().learn(Level::CURRENT).unwrap();
        });
    }
    let servers = MemoryServers::new(&[STAYS, LEAVES]);
    let ((env, here), (_, there)) = (logs(&driver, &servers, STAYS), logs(&driver, &servers, LEAVES));
    let judge = {
        let here = here.clone();
        move |driver: &mut Driver| {
            let (env, here) = (env.clone(), here.clone());
            let read = async move { survey::held_afresh(&env, &here, LEAVES).await };
            driver.block_on(STAYS, read)
        }
    };
    let at_first = here.clone();
    driver.block_on(STAYS, async move {
        at_first.create("moved", on(STAYS)).unwrap().await.unwrap().unwrap();
        at_first.open("moved").unwrap().check_tail().await.unwrap().unwrap();
    });
    assert_eq!(judge(&mut driver), None, "nothing was laid on it");
    // The other node moves the log to itself, and then has the only copy of a record.
    let mover = there.clone();
    driver.block_on(LEAVES, async move {
        let log = mover.open("moved").unwrap();
        log.refresh().await.unwrap().unwrap();
        log.extend(on(LEAVES)).await.unwrap().unwrap();
        write(&mover, "moved").await;
    });
    assert_eq!(survey::held_by(&here, LEAVES), None, "what is remembered would have let it go");
    let held = judge(&mut driver).unwrap();
    assert!(held.contains("1 segments and 1 sequencers") && held.contains("moved"), "{held}");
    // The same holds for a log that this node does not know at all.
    driver.block_on(LEAVES, async move {
        there.create("unheard", on(LEAVES)).unwrap().await.unwrap().unwrap();
        write(&there, "unheard").await;
        let log = there.open("moved").unwrap();
        log.extend(on(STAYS)).await.unwrap().unwrap();
        log.trim(atoll_contract::LogPos(1)).await.unwrap().unwrap();
    });
    assert_eq!(here.known().iter().filter(|known| known.name == "unheard").count(), 0);
    let held = judge(&mut driver).unwrap();
    assert!(held.contains("1 segments and 1 sequencers") && held.contains("unheard"), "{held}");
}

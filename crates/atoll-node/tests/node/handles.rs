//! Tests of what a node keeps for unused logs, and for names that belong to no log.

use std::sync::Arc;

use atoll_contract::conformance::Driver;
use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom, Registry};
use atoll_core::{Env, NodeId};
use atoll_log::memory::MemoryServers;
use atoll_log::virtual_log::{LogRecord, Options};
use atoll_log::{LogError, LogReadError};
use atoll_node::logs::Logs;

const NODE: NodeId = NodeId(1);
const IDLE: usize = 64;

struct Nodes {
    driver: Driver,
    servers: MemoryServers,
}

impl Nodes {
    fn new() -> Self {
        let mut driver = Driver::new(61);
        for node in [NODE, NodeId(2)] {
            driver.add_node(node, |core| {
                core.env().levels().learn(atoll_core::Level::CURRENT).unwrap();
            });
        }
        Nodes { driver, servers: MemoryServers::new(&[NODE]) }
    }

    fn logs(&self, node: NodeId) -> Logs {
        let env: Env = self.driver.env(node);
        let registry = Registry::new().with(self.servers.provider(&env, "memory", true));
        let options = Options { idle_logs: IDLE, ..Options::default() };
        Logs::new(env.clone(), self.servers.registers(&env), registry, options, Default::default())
    }

    fn run<T: Send + 'static>(&mut self, node: NodeId, f: impl Future<Output = T> + Send + 'static) -> T {
        self.driver.block_on(node, f)
    }
}

fn record(seq: u64) -> LogRecord {
    LogRecord { op: OpId { client: ClientId(5), seq }, floor: None, payload: "record".into() }
}

async fn create(logs: &Logs, name: &str) {
    logs.create(name, LogletSpec::default()).unwrap().await.unwrap().unwrap();
}

/// Whether the number of handles is within the limit. It may be exceeded by an eighth, because the pool looks for idle handles only after
/// that many new ones.
fn is_bounded(handles: usize) -> bool {
    handles <= IDLE + IDLE / 8 + 1
}

#[test]
fn ten_thousand_unknown_names_leave_nothing_behind() {
    let mut nodes = Nodes::new();
    let logs = nodes.logs(NODE);
    let here = logs.clone();
    nodes.run(NODE, async move {
        for n in 0..10_000 {
            let log = here.open(&format!("unknown-{n}")).unwrap();
            match n % 3 {
                0 => assert_eq!(log.check_tail().await.unwrap(), Err(LogError::NoSuchLog)),
                1 => assert_eq!(log.wait_tail(LogPos(0)).await.unwrap(), Err(LogError::NoSuchLog)),
                _ => {
                    let read = log.read(LogPos(0)..LogPos(9), 100, ReadFrom::Anywhere).await.unwrap();
                    assert_eq!(read, Err(LogReadError::Log(LogError::NoSuchLog)));
                }
            }
            drop(log);
            assert!(is_bounded(here.open_handles()), "{} handles", here.open_handles());
        }
    });
    logs.sweep();
    assert_eq!(logs.open_handles(), 0);
    assert!(logs.known().is_empty() && logs.names().is_empty());
}

#[test]
fn idle_handles_are_given_up_and_their_logs_stay_known() {
    let mut nodes = Nodes::new();
    let (logs, there) = (nodes.logs(NODE), nodes.logs(NodeId(2)));
    let here = logs.clone();
    // One log is followed all the time.
    let (followed, waits) = nodes.run(NODE, async move {
        create(&here, "followed").await;
        let followed = here.open("followed").unwrap();
        let waits = followed.wait_tail(LogPos(0));
        for n in 0..500 {
            let name = format!("log-{n:03}");
            create(&here, &name).await;
            let log = here.open(&name).unwrap();
            log.submit(vec![record(1)]).unwrap().await.unwrap().unwrap();
        }
        (Arc::downgrade(&followed), waits)
    });
    assert!(is_bounded(logs.open_handles() - 1), "{} handles", logs.open_handles());
    assert!(followed.upgrade().is_some(), "somebody waits for its tail");
    assert_eq!(logs.known().len(), 501, "the policy looks at all of them");
    assert!(logs.known().iter().any(|k| k.name == "log-000" && k.tail == LogPos(1)), "what was known stays");
    let here = logs.clone();
    nodes.run(NODE, async move {
        let log = here.open("followed").unwrap();
        log.submit(vec![record(1)]).unwrap().await.unwrap().unwrap();
        assert_eq!(waits.await.unwrap(), Ok(LogPos(1)), "one handle for all");
        // A log whose handle was closed can be used as before.
        let log = here.open("log-000").unwrap();
        assert_eq!(log.submit(vec![record(2)]).unwrap().await.unwrap(), Ok(vec![LogPos(1)]));
    });
    // Another node that uses none of the logs learns of all of them, and opens no handles for that.
    let names = there.list();
    assert_eq!(nodes.run(NodeId(2), names).unwrap().unwrap().len(), 501);
    assert_eq!((there.known().len(), there.open_handles()), (501, 0));
}

#[test]
fn what_another_node_did_to_a_log_shows_in_the_next_list() {
    let mut nodes = Nodes::new();
    let (logs, there) = (nodes.logs(NODE), nodes.logs(NodeId(2)));
    let list = |nodes: &mut Nodes| {
        let names = there.list();
        nodes.run(NodeId(2), names).unwrap().unwrap()
    };
    let here = logs.clone();
    nodes.run(NODE, async move {
        create(&here, "kept").await;
        create(&here, "deleted").await;
    });
    assert_eq!(list(&mut nodes), ["deleted", "kept"]);
    let version = |logs: &Logs| logs.known().iter().map(|k| k.chain.version.0).collect::<Vec<_>>();
    assert_eq!(version(&there), [1, 1]);
    let here = logs.clone();
    nodes.run(NODE, async move {
        let log = here.open("kept").unwrap();
        log.extend(LogletSpec::default()).await.unwrap().unwrap();
        assert_eq!(here.open("deleted").unwrap().delete().await.unwrap(), Ok(true));
    });
    assert_eq!(list(&mut nodes), ["kept"]);
    assert_eq!(version(&there), [2], "its new chain is known");
    let here = logs.clone();
    nodes.run(NODE, async move { create(&here, "deleted").await });
    assert_eq!(list(&mut nodes), ["deleted", "kept"], "it was created anew");
}

#[test]
fn clients_create_so_many_logs_and_no_more() {
    let mut nodes = Nodes::new();
    let env = nodes.driver.env(NODE);
    let registry = Registry::new().with(nodes.servers.provider(&env, "memory", true));
    let options = Options { most_logs: 3, ..Options::default() };
    let logs = Logs::new(env.clone(), nodes.servers.registers(&env), registry, options, Default::default());
    let here = logs.clone();
    nodes.run(NODE, async move {
        for name in ["a", "b", "c"] {
            assert_eq!(here.check_number(), Ok(()));
            create(&here, name).await;
        }
        assert!(here.check_number().unwrap_err().to_string().contains("there are already 3 logs"));
        assert_eq!(here.open("b").unwrap().delete().await.unwrap(), Ok(true));
        assert_eq!(here.check_number(), Ok(()), "a deleted log makes room");
    });
}

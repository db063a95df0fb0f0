//! The status of a node when some logs do not answer.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::NodeId;
use atoll_door::Operations;
use atoll_node::assembly::Options;
use atoll_node::operations::NodeOperations;
use atoll_sim::scenario::node::{NodeHandles, Nodes};
use atoll_sim::scenario::phases::{Flag, Stage, stage};
use atoll_sim::world::fault::{Death, Fault};
use atoll_sim::world::{Weather, World};

/// How many logs have their only server on the node that dies. As many others have three servers.
const DEAD: usize = 20;

async fn create(stage: &Stage<NodeHandles>, name: &str, servers: &[u32]) {
    stage.waits_for(format!("{name} to be made"));
    let spec = LogletSpec::of("native")
        .place("server", servers.iter().map(|n| NodeId(*n)))
        .place("sequencer", [NodeId(servers[0])]);
    loop {
        if let Some(life) = stage.cluster.host(0)
            && let Some(log) = life.handles.log(name)
            && matches!(stage.cluster.ask(&life, log.create(spec.clone())).await, Some(Ok(Ok(_))))
        {
            return;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}

async fn asked(stage: Stage<NodeHandles>) {
    for n in 0..DEAD {
        create(&stage, &format!("dead{n}"), &[3]).await;
        create(&stage, &format!("live{n}"), &[1, 2, 3]).await;
    }
    stage.cluster.inject(Fault::Crash { host: 2, death: Death::Kill, back_after: None });
    // Meanwhile, the other logs are moved off the dead node.
    stage.env.sleep(Duration::from_secs(5)).await;
    let Some(life) = stage.cluster.host(0) else { return stage.cluster.fail("node 1 is gone".into()) };
    let began = stage.env.now();
    let status = NodeOperations::new(life.handles.0.clone()).status();
    let Some(Ok(status)) = stage.cluster.ask(&life, status).await else {
        return stage.cluster.fail("no status".into());
    };
    let took = stage.env.now().since(began);
    if took > Duration::from_secs(4) {
        stage.cluster.fail(format!("a status took {took:?}"));
    }
    let row = |name: &str| status.logs.iter().find(|l| l.name == name);
    for n in 0..DEAD {
        let (dead, live) = (row(&format!("dead{n}")), row(&format!("live{n}")));
        let Some(dead) = dead.filter(|l| !l.healthy) else {
            return stage.cluster.fail(format!("dead{n} is not shown as such: {dead:?}"));
        };
        if !dead.reason.contains("tail") {
            stage.cluster.fail(format!("dead{n}: its silence is not named: {}", dead.reason));
        }
        if !live.is_some_and(|l| l.healthy) {
            stage.cluster.fail(format!("live{n} is not shown as healthy: {live:?}"));
        }
    }
}

/// A status asks all logs at the same time, each with its own deadline. One after the other, 20 silent logs would take 20 s.
#[test]
fn silent_logs_hold_up_no_status_and_are_shown() {
    let nodes = Nodes {
        members: 3,
        founders: 3,
        options: Options::default(),
        programs: Default::default(),
        starts: 0,
    };
    let mut world = World::new(5, 3, Weather::default(), nodes, None);
    let stage = stage(&mut world);
    let done = Flag::default();
    let (people, over) = (stage.clone(), done.clone());
    stage.spawn("people", async move {
        asked(people).await;
        over.raise();
    });
    let in_time = world.run(120_000_000_000, &mut || done.is_up());
    let waiting_for = stage.waiting_for.lock().expect("a lock").clone();
    assert_eq!(world.verdict.failures, Vec::<String>::new());
    assert!(in_time, "still waiting for {waiting_for}; {}", world.stuck());
    world.finish();
    assert_eq!(world.verdict.failures, Vec::<String>::new());
}

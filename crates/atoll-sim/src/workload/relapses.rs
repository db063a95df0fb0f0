//! Directed: nodes die between the promises for the first write of a new key and the arrival of its votes, and then write the same key
//! again. Their new life must not be taken for the old one (rmw-T5).

use std::time::Duration;

use atoll_contract::keyspace::{Attempt, Change, Guard};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::hit;
use bytes::Bytes;

use crate::scenario::nemesis;
use crate::scenario::phases::Stage;
use crate::workload::keyspace::{self as load, Handles, Reef};
use crate::world::fault::{Death, Fault};
use crate::world::network::Slow;

/// How many nodes die.
const RELAPSES: u64 = 25;
/// Messages of the node that dies take this much longer. So its votes are still on their way when it dies, and its links break under them.
const SLOW: Slow = Slow { by_ns: 40_000_000, jitter_ns: 0, resent_permille: 0 };
/// How long after its promises have come the node dies, at most.
const DIES_WITHIN_NS: u64 = 8_000_000;
/// How long the next life waits for its links, on average. The first prepare that it sends has the number of the one that it sent before.
const RECONNECTS: Duration = Duration::from_millis(15);
const CLIENT: ClientId = ClientId(99);

fn slow_down(stage: &Stage<Handles>, from: usize, slow: Slow) {
    for to in (0..stage.cluster.hosts()).filter(|to| *to != from) {
        stage.cluster.inject(Fault::SlowLink { from, to, slow });
    }
}

fn put(seq: u64) -> (OpId, Guard, Change) {
    (OpId { client: CLIENT, seq }, Guard::Always, Change::Put(Bytes::from(format!("{seq}"))))
}

/// Writes a new key, kills the node that does it, and writes the key through its next life.
async fn relapse(stage: &Stage<Handles>, reef: &Reef, number: u64) {
    let host = stage.below(stage.cluster.hosts() as u64) as usize;
    let key = Bytes::from(format!("relapse-{number}"));
    let (Some(asked), Some(life)) = (load::request(stage, reef, key), stage.cluster.host(host)) else {
        return;
    };
    let (op, guard, change) = put(2 * number);
    reef.judge(stage, asked.layout.id, |judge| judge.writes(&asked.key, op, &guard, &change));
    slow_down(stage, host, SLOW);
    let (keyspace, key) = (life.handles.keyspace(&asked.layout), asked.key.clone());
    let write = async move { keyspace.write(op, Attempt::First, key, guard, change).await };
    drop(life.env.launch("client.write", write));
    // The prepares are slow, the promises are not.
    stage.env.sleep(Duration::from_nanos(SLOW.by_ns + stage.below(DIES_WITHIN_NS))).await;
    stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: Some(1_000_000) });
    slow_down(stage, host, Slow::default());
    while stage.cluster.host(host).is_none_or(|now| now.life == life.life) {
        stage.env.sleep(Duration::from_micros(200)).await;
    }
    stage.pause(RECONNECTS).await;
    hit("sim.keyspace.relapse");
    load::write_once(stage, reef, host, &asked, put(2 * number + 1)).await;
}

/// Lets nodes die, and then demands a write of each of some other keys.
pub async fn script(stage: Stage<Handles>, reef: Reef) {
    load::provide(&stage, &reef).await;
    for number in 1..=RELAPSES {
        relapse(&stage, &reef, number).await;
        stage.pause(Duration::from_millis(20)).await;
    }
    stage.over.raise();
    nemesis::heal(&stage.cluster, stage.cluster.hosts());
    load::write_all(&stage, &reef, 3, 1).await;
}

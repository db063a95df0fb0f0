//! Several nodes append to one loglet all the time, each with one append under way.

use std::time::Duration;

use atoll_contract::conformance::LogletHarness;
use atoll_contract::{Batch, ClientId, Entry, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{NodeId, Tick};
use atoll_zookeeper_loglet::mutants;
use atoll_zookeeper_loglet::testing::Faults;
use bytes::Bytes;

use crate::ensembles::Harness;

const NODES: u32 = 6;
const FOR: Duration = Duration::from_secs(3);
/// How long a client works with what it has appended before it appends again.
const THINK: Duration = Duration::from_micros(200);

/// Returns how many appends each node made, and the longest that one of them took.
fn crowd(bug: Mutant) -> (Vec<u64>, Duration) {
    set_mutant(bug);
    let mut harness = Harness::memory(NODES, Faults::default());
    let log = harness.fresh();
    let mut clients = Vec::new();
    for node in (1..=NODES).map(NodeId) {
        let (handle, env) = (harness.open(log, node), harness.driver.env(node));
        let append = async move {
            let until = Tick(0).after(FOR);
            let (mut seq, mut done, mut longest) = (0, 0, Duration::ZERO);
            while env.now() < until {
                seq += 1;
                let op = OpId { client: ClientId(node.0.into()), seq };
                let begun = env.now();
                let batch = Batch::of([Entry { op, payload: Bytes::from_static(b"x") }]);
                done += u64::from(handle.append(batch).await.unwrap().is_ok());
                longest = longest.max(env.now().since(begun));
                env.sleep(THINK).await;
            }
            (done, longest)
        };
        clients.push((node, harness.driver.env(node).launch("client", append)));
    }
    let done = clients.into_iter().map(|(node, done)| harness.driver.block_on(node, done).unwrap());
    let (counts, longest): (Vec<u64>, Vec<Duration>) = done.unzip();
    set_mutant(Mutant::NONE);
    (counts, longest.into_iter().max().unwrap_or_default())
}

#[test]
fn nodes_that_append_at_the_same_time_take_turns() {
    let (counts, longest) = crowd(Mutant::NONE);
    let (least, sum) = (counts.iter().min().unwrap(), counts.iter().sum::<u64>());
    assert!(2 * least * u64::from(NODES) > sum, "each gets half of its share at least: {counts:?}");
    assert!(longest < Duration::from_millis(100), "{longest:?} for one append; {counts:?}");
    // 300 appends per second in all, although a write and the reads before it take about two milliseconds.
    assert!(sum > 300 * FOR.as_secs(), "{counts:?}");
    let (counts, longest) = crowd(mutants::ZOOKEEPER_GREEDY);
    assert!(longest > Duration::from_millis(100), "the bug shows: {longest:?}, {counts:?}");
}

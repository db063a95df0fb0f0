//! What clients see of a unit that does not answer, and how many times a fill asks the units.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{self, Cluster, batch};
use atoll_contract::loglet::write_once::PositionState;
use atoll_contract::*;
use atoll_core::*;
use atoll_corfu::message::Take;
use atoll_corfu::{ClientOptions, CorfuLoglet, CorfuProvider};
use bytes::Bytes;

const LOGLET: LogletId = LogletId(77);
/// The node of the client, and that of the sequencer. Neither is a unit.
const CLIENT: u32 = 4;
const SEQUENCER: u32 = 5;
/// How long a message of the test cluster travels, at most.
const ONE_WAY: Duration = Duration::from_micros(80);

fn provider(c: &Cluster) -> CorfuProvider {
    CorfuProvider::new(c.env(CLIENT), c.directory(), ClientOptions::default())
}

fn world(seed: u64, units: &[u32]) -> (Cluster, Bytes, CorfuLoglet) {
    let c = cluster::new(5, seed);
    let config = cluster::projection(&c, SEQUENCER, &[units]).to_bytes();
    let log = provider(&c).open_corfu(LOGLET, &config).unwrap();
    (c, config, log)
}

fn append(c: &mut Cluster, log: &CorfuLoglet, texts: &[&str]) -> Tail {
    let (log, batch) = (log.clone(), batch(1, 1, texts));
    c.on(CLIENT, async move {
        log.append(batch).await.unwrap().unwrap();
        log.check_tail().await.unwrap()
    })
}

/// Reads each position a few times. Returns the longest time that a read took.
fn slowest_read(c: &mut Cluster, log: &Arc<dyn Loglet>, tail: u64) -> Duration {
    let mut slowest = Duration::ZERO;
    for at in (0..tail).cycle().take(40) {
        let (log, before) = (log.clone(), c.now);
        let range = Offset(at)..Offset(at + 1);
        c.on(CLIENT, async move { log.read(range, 1 << 16, ReadFrom::Anywhere).await.unwrap() });
        slowest = slowest.max(c.now.since(before));
    }
    slowest
}

#[test]
fn readers_do_not_wait_for_a_unit_that_does_not_answer() {
    for (seed, dead) in [(1, 1), (2, 2), (3, 3)] {
        for silent in [false, true] {
            let (mut c, config, log) = world(seed, &[1, 2, 3]);
            let tail = append(&mut c, &log, &["a", "b", "c", "d"]);
            let open: Arc<dyn Loglet> = Arc::new(log.clone());
            match silent {
                true => c.cut.extend([(NodeId(CLIENT), NodeId(dead)), (NodeId(dead), NodeId(CLIENT))]),
                false => c.kill(NodeId(dead)),
            }
            let options = ClientOptions::default();
            let took = slowest_read(&mut c, &open, tail.at.0);
            assert!(took <= 2 * options.slow_read, "{took:?} while it is open; silent: {silent}");
            // The next segment follows, and this one is sealed.
            let sealed = c.on(CLIENT, async move {
                log.seal().await.unwrap();
                log.check_tail().await.unwrap()
            });
            let log = provider(&c).open_sealed(LOGLET, &config, &sealed.sealed.unwrap()).unwrap();
            let took = slowest_read(&mut c, &log, tail.at.0);
            assert!(took <= 2 * options.slow_read, "{took:?} once it is sealed; silent: {silent}");
        }
    }
}

#[test]
fn a_fill_asks_each_unit_of_the_chain_once() {
    let (mut c, config, log) = world(4, &[1, 2]);
    append(&mut c, &log, &["a"]);
    let (env, take) = (c.env(CLIENT), Take { log: LOGLET, config, epoch: 1, count: 3 });
    c.on(CLIENT, async move { env.call(NodeId(SEQUENCER), take).await.unwrap() });
    for at in 1..4 {
        let (log, before) = (log.clone(), c.now);
        assert_eq!(c.on(CLIENT, async move { log.fill(Offset(at)).await }), Ok(PositionState::Junk));
        let took = c.now.since(before);
        // The first one has to find out how far the sequencer is.
        let round_trips = if at == 1 { 3 } else { 2 };
        // Each unit syncs once; one of them may have to end another sync first.
        let most = 2 * ONE_WAY * round_trips + 3 * c.sync;
        assert!(
            took <= most,
            "position {at}: {took:?}, and {most:?} is enough for {round_trips} round trips"
        );
    }
}

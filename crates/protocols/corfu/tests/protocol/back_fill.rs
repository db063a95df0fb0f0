//! Tests that a unit that was away gets what it lacks of a sealed Loglet, holes included, although its node has never opened the segment;
//! and what its progress says meanwhile.

use std::time::Duration;

use crate::cluster::{self, Cluster, batch, provider};
use atoll_contract::*;
use atoll_core::*;
use atoll_corfu::message::Take;

const LOGLET: LogletId = LogletId(77);

fn lacks(c: &mut Cluster, node: u32, extent: &Extent) -> (Offset, u64) {
    let (asker, extent) = (provider(c, 3), extent.clone());
    let progress = c.on(3, async move { asker.progress(NodeId(node), &[extent]).await.unwrap()[0] });
    (progress.has_up_to, progress.lacks)
}

fn fill(c: &mut Cluster, node: u32, extent: &Extent) {
    let (at, extent) = (provider(c, node), extent.clone());
    c.on(node, async move { at.back_fill(&extent).await });
}

/// Makes a sealed Loglet of 5 positions, of which 2 is a hole and 4 is not on unit 1.
fn sealed(c: &mut Cluster) -> Extent {
    let config = cluster::projection(c, 3, &[&[2, 1]]).to_bytes();
    let log = provider(c, 3).open(LOGLET, &config).unwrap();
    let second = Duration::from_secs(1);
    c.wait(log.append(batch(1, 1, &["a", "b"])), second).unwrap().unwrap();
    let (env, take) = (c.env(3), Take { log: LOGLET, config: config.clone(), epoch: 1, count: 1 });
    c.on(3, async move { env.call(NodeId(3), take).await.unwrap() });
    c.wait(log.append(batch(1, 3, &["c"])), second).unwrap().unwrap();
    c.kill(NodeId(1));
    assert!(c.wait(log.append(batch(1, 4, &["d"])), 3 * second).unwrap().is_err(), "the tail is down");
    let tail = c.on(3, async move {
        log.seal().await.unwrap();
        log.check_tail().await.unwrap()
    });
    assert_eq!(tail.at, Offset(5));
    c.restart(NodeId(1));
    Extent { loglet: LOGLET, config, sealed: tail.sealed.unwrap(), range: Offset(0)..Offset(5) }
}

#[test]
fn a_unit_that_was_away_gets_entries_and_holes() {
    let mut c = cluster::new(3, 5);
    let extent = sealed(&mut c);
    assert_eq!(lacks(&mut c, 1, &extent), (Offset(2), 2));
    assert_eq!(lacks(&mut c, 2, &extent), (Offset(2), 1), "nobody has recorded the hole yet");
    for node in [1, 2] {
        fill(&mut c, node, &extent);
        assert_eq!(lacks(&mut c, node, &extent), (Offset(5), 0));
    }
    let log = provider(&c, 1).open_sealed(LOGLET, &extent.config, &extent.sealed).unwrap();
    let read = c.on(1, async move {
        let mut ops = Vec::new();
        while ops.len() < 5 {
            let at = Offset(ops.len() as u64);
            let got = log.read(at..Offset(5), 1 << 16, ReadFrom::LocalOnly).await.unwrap();
            ops.extend(got.entries.iter().map(|entry| entry.op.seq));
        }
        ops
    });
    assert_eq!(read, [1, 2, 0, 3, 4]);
}

/// What the log has given up is not fetched, whether another unit still has it or not.
#[test]
fn what_was_trimmed_meanwhile_is_not_fetched() {
    let mut c = cluster::new(3, 5);
    let extent = Extent { range: Offset(4)..Offset(5), ..sealed(&mut c) };
    fill(&mut c, 1, &extent);
    assert_eq!(lacks(&mut c, 1, &extent), (Offset(5), 0));
    let log = provider(&c, 1).open_sealed(LOGLET, &extent.config, &extent.sealed).unwrap();
    let got = c.on(1, async move { log.read(Offset(3)..Offset(5), 1 << 16, ReadFrom::LocalOnly).await });
    assert_eq!(got, Err(ReadError::Trimmed(Offset(4))));
}

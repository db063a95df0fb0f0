//! The ordering log is trimmed once the records that its entries order were given up. Whoever comes later begins with a snapshot
//! (scalog-S8).

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{self, NativeLogs, Tapped};
use atoll_contract::*;
use atoll_core::*;
use atoll_scalog::*;

const LOGLET: LogletId = LogletId(77);
const CLIENT: u64 = 9;
const RECORDS: u64 = 200;
/// The first record that is not given up.
const KEPT: u64 = 190;

fn start(c: &cluster::Cluster, config: &ScalogConfig, node: u32) -> ScalogLoglet {
    let env = c.env(node);
    let logs = Arc::new(NativeLogs::new(env.clone()));
    let provider = ScalogProvider::new(env, c.directory(), logs, ScalogOptions::default());
    provider.open_scalog(LOGLET, &config.to_bytes()).unwrap()
}

async fn append(log: &ScalogLoglet, seq: u64, not_below: u64) -> Result<u64, AppendError> {
    let batch = cluster::batch(CLIENT, seq, &[&seq.to_string()]);
    let placed = log.append_above(batch, Offset(not_below)).await.unwrap()?;
    Ok(placed.offsets().next().unwrap().0)
}

#[test]
fn what_orders_records_that_were_given_up_leaves_the_ordering_log() {
    let mut c = cluster::new(7, 5, Tapped::default(), Duration::ZERO);
    let storages: Vec<StorageId> = c.nodes.values().map(|node| node.storage).collect();
    let storage = |node: NodeId| storages[node.0 as usize - 1];
    let config = cluster::config(storage, &c.env(5), &[5, 6, 7], &[&[1, 2], &[3, 4]], &[6, 5], &[]);
    let log = start(&c, &config, 7);
    c.on(7, async move {
        for seq in 1..=RECORDS {
            assert_eq!(append(&log, seq, seq - 1).await, Ok(seq - 1));
            if seq % 20 == 0 {
                log.prefix_trim(Offset(seq - 10)).await.unwrap();
            }
        }
    });
    c.run_for(Duration::from_secs(1));
    let ordering = NativeLogs::new(c.env(7)).open(LOGLET, &config.ordering).unwrap();
    let read = c.on(7, async move { ordering.read(Offset(0)..Offset(1), 1, ReadFrom::Anywhere).await });
    let Err(ReadError::Trimmed(first)) = read else { panic!("{read:?}") };
    // There is an entry for each record, and there are some for trims and snapshots.
    assert!(first.0 > KEPT - 50, "the ordering log begins at {first}");

    // All servers and orderers lose what they had in memory.
    for node in 1..=7 {
        if node != 5 {
            c.kill(NodeId(node));
            c.restart(NodeId(node));
        }
    }
    let log = start(&c, &config, 7);
    c.on(7, async move {
        let tail = log.check_tail().await.unwrap();
        assert_eq!((tail.at, tail.sealed), (Offset(RECORDS), None));
        for at in KEPT..RECORDS {
            let got = log.read(Offset(at)..tail.at, 1, ReadFrom::Anywhere).await.unwrap();
            assert_eq!(got.entries[0].op.seq, at + 1);
        }
        let gone = log.read(Offset(KEPT - 40)..tail.at, 1, ReadFrom::Anywhere).await;
        assert!(matches!(gone, Err(ReadError::Trimmed(_))), "{gone:?}");
        assert_eq!(append(&log, RECORDS, KEPT).await, Ok(RECORDS - 1), "it was done before");
        assert_eq!(append(&log, RECORDS + 1, RECORDS).await, Ok(RECORDS));
        assert_eq!(append(&log, 5, 0).await, Err(AppendError::Forgotten));
    });
}

//! The paper's interface over a cluster: policies, readRecord, subscriptions, and shards that end under them.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{self, NativeLogs, Tapped};
use atoll_contract::loglet::sharded;
use atoll_contract::*;
use atoll_core::*;
use atoll_scalog::*;

const LOGLET: LogletId = LogletId(77);

fn start(c: &cluster::Cluster, node: u32) -> ScalogLoglet {
    start_tapped(c, node, Tapped::default())
}

/// Returns a handle that notes what it reads of the ordering log.
fn start_tapped(c: &cluster::Cluster, node: u32, tapped: Tapped) -> ScalogLoglet {
    let storages: Vec<StorageId> = c.nodes.values().map(|node| node.storage).collect();
    let storage = |node: NodeId| storages[node.0 as usize - 1];
    let config = cluster::config(storage, &c.env(5), &[5, 6, 7], &[&[1, 2], &[3, 4]], &[6, 5], &[]);
    let env = c.env(node);
    let logs = Arc::new(NativeLogs::tapping(env.clone(), tapped));
    let provider = ScalogProvider::new(env, c.directory(), logs, ScalogOptions::default());
    provider.open_scalog(LOGLET, &config.to_bytes()).unwrap()
}

#[test]
fn records_go_where_the_policy_says_and_subscribers_see_them_in_order() {
    let mut c = cluster::new(7, 3, Tapped::default(), Duration::ZERO);
    let (log, far) = (start(&c, 4), start(&c, 7));
    let mut follower = ScalogClient::new(far).subscribe(Offset::ZERO);
    let follows = c.env(7).launch("follower", async move {
        let mut seen = Vec::new();
        while let Some((at, entry)) = follower.next().await? {
            seen.push((at, entry.payload));
        }
        Ok::<_, ReadError>(seen)
    });
    let shards = c.on(4, async move {
        let client = ScalogClient::new(log.clone());
        let append = async |seq: u64| client.append(cluster::batch(1, seq, &[&seq.to_string()])).await;
        let mut at = Vec::new();
        // The client's node has a server of shard 1.
        at.push(append(1).await.unwrap());
        client.set_shard_policy(ShardPolicy::RoundRobin);
        at.push(append(2).await.unwrap());
        at.push(append(3).await.unwrap());
        client.set_shard_policy(ShardPolicy::Custom(Arc::new(|_, _| 0)));
        at.push(append(4).await.unwrap());
        log.finalize(0, 0).await.unwrap();
        assert_eq!(append(5).await, Err(PolicyAppendError::NotLive(0)));
        client.set_shard_policy(ShardPolicy::Custom(Arc::new(|_, _| panic!("a bug of the user"))));
        assert_eq!(append(5).await, Err(PolicyAppendError::Panicked));
        client.set_shard_policy(ShardPolicy::Hash);
        at.push(append(5).await.unwrap());
        let shards: Vec<u32> = at.iter().map(|(_, shard)| *shard).collect();
        for (seq, (placement, shard)) in (1..).zip(&at) {
            let number = placement.offsets().next().unwrap();
            let entry = client.read_record(number, *shard).await.unwrap().unwrap();
            assert_eq!(entry.op.seq, seq);
            assert_eq!(client.read_record(number, 1 - shard).await, Ok(None), "{number} is elsewhere");
        }
        let wrong = client.append_to_shard(0, cluster::batch(1, 6, &["6"])).await;
        assert!(matches!(wrong, Err(AppendError::NotAppended(_))), "{wrong:?}");
        client.trim(Offset(1)).await.unwrap();
        assert_eq!(client.read_record(Offset(0), 1).await, Err(ReadError::Trimmed(Offset(1))));
        log.seal().await.unwrap();
        shards
    });
    assert_eq!(shards[0], 1);
    assert_ne!(shards[1], shards[2]);
    assert_eq!(shards[3..], [0, 1]);
    let seen = c.wait(follows, Duration::from_secs(60)).unwrap().unwrap();
    let expected = (0..5).map(|at| (Offset(at), bytes::Bytes::from((at + 1).to_string())));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

#[test]
fn appends_to_a_chosen_shard_need_the_ordering_log_only_now_and_then() {
    let mut c = cluster::new(7, 3, Tapped::default(), Duration::ZERO);
    let tapped = Tapped::default();
    let (log, other) = (start_tapped(&c, 7, tapped.clone()), start(&c, 4));
    let reads = move || tapped.lock().unwrap().len();
    let append = |c: &mut cluster::Cluster, seqs: std::ops::RangeInclusive<u64>| {
        let log = log.clone();
        c.on(7, async move {
            for seq in seqs {
                log.append_to_shard(0, 1, cluster::batch(1, seq, &["x"]), None).await.unwrap();
            }
        });
    };
    append(&mut c, 1..=50);
    assert!(reads() <= 1, "{} reads for appends within a few milliseconds", reads());
    c.run_for(Duration::from_secs(2));
    append(&mut c, 51..=51);
    assert!(log.known_tail() >= Offset(50), "a server may have forgotten what is below {}", log.known_tail());
    let after = c.on(7, async move {
        other.finalize(0, 0).await.unwrap();
        log.sharded().unwrap().append_to_shard(0, cluster::batch(1, 52, &["x"]), None).await
    });
    assert_eq!(after, Err(sharded::ShardAppendError::NotLive(0)));
}

/// Returns a client whose records go to a segment of a shard.
fn client_of(log: &ScalogLoglet, shard: u32, segment: usize) -> u64 {
    let is_there = |client: &u64| {
        let home = log.with_order(|order| order.home(*client)).unwrap();
        (home.shard, home.segment) == (shard, segment)
    };
    (1..).find(is_there).unwrap()
}

#[test]
fn an_append_to_a_dead_primary_goes_on_once_its_shard_has_ended() {
    let mut c = cluster::new(7, 3, Tapped::default(), Duration::ZERO);
    let (log, other) = (start(&c, 4), start(&c, 7));
    c.kill(NodeId(1));
    let client = client_of(&log, 0, 0);
    let append =
        c.env(4).launch("append", async move { log.append(cluster::batch(client, 1, &["a"])).await });
    c.run_for(Duration::from_millis(300));
    c.on(7, async move { other.finalize(0, 0).await.unwrap() });
    let placed = c.wait(append, Duration::from_secs(5)).unwrap().unwrap().unwrap();
    assert_eq!(placed.offsets().collect::<Vec<_>>(), [Offset(0)]);
}

#[test]
fn holders_of_the_ordering_log_lack_no_records_and_servers_look_for_what_they_have_not_applied() {
    let mut c = cluster::new(7, 3, Tapped::default(), Duration::ZERO);
    let log = start(&c, 4);
    let config = log.config().to_bytes();
    let client = client_of(&log, 0, 0);
    let tail = c.on(4, async move {
        log.append(cluster::batch(client, 1, &["a", "b"])).await.unwrap().unwrap();
        log.seal().await.unwrap();
        log.check_tail().await.unwrap()
    });
    let sealed = tail.sealed.unwrap();
    let extent = Extent { loglet: LOGLET, config, sealed, range: Offset::ZERO..tail.at };
    let provider = |c: &cluster::Cluster, node: u32| {
        let env = c.env(node);
        let logs = Arc::new(NativeLogs::new(env.clone()));
        Arc::new(ScalogProvider::new(env, c.directory(), logs, ScalogOptions::default()))
    };
    let progress = |c: &mut cluster::Cluster, of: u32| {
        let (provider, extent) = (provider(c, 7), extent.clone());
        c.on(7, async move { provider.progress(NodeId(of), &[extent]).await.unwrap()[0] })
    };
    let all = Progress { has_up_to: Offset(2), lacks: 0 };
    // Node 1 has the records, and node 5 only the ordering log. No record went to the shard of node 3, so it has not heard of the Loglet.
    assert_eq!([1, 5].map(|node| progress(&mut c, node)), [all, all]);
    assert_eq!(progress(&mut c, 3), Progress { has_up_to: Offset(0), lacks: 2 });
    let (own, wanted) = (provider(&c, 3), extent.clone());
    c.on(3, async move { own.back_fill(&wanted).await });
    assert_eq!(progress(&mut c, 3), all);
}

/// A caller repeats an append whose outcome is unknown, and searches for one whose outcome is "forgotten". Only
/// the search ends this: an entry of a client that has moved is refused until then, whatever becomes of the others in its batch.
#[test]
fn entries_of_a_client_that_has_moved_are_searched_for_also_if_others_of_their_batch_are_appended() {
    let mut c = cluster::new(7, 3, Tapped::default(), Duration::ZERO);
    let log = start(&c, 4);
    let (moves, stays) = (client_of(&log, 0, 0), client_of(&log, 1, 1));
    let op = |client: u64, seq: u64| OpId { client: ClientId(client), seq };
    let entry = move |client, seq| Entry { op: op(client, seq), payload: bytes::Bytes::from_static(b"x") };
    c.on(4, async move {
        log.append(Batch::of([entry(moves, 1)])).await.unwrap().unwrap();
        log.finalize(0, 0).await.unwrap();
        let both = Batch::of([entry(moves, 2), entry(stays, 1)]);
        assert_eq!(log.append(both.clone()).await.unwrap(), Err(AppendError::Forgotten));
        let tail = log.check_tail().await.unwrap().at;
        assert_eq!(tail, Offset(2), "one of the two is in the log");
        let placed = log.append_above(both, tail).await.unwrap().unwrap();
        assert_eq!(placed.offsets().collect::<Vec<_>>(), [Offset(2), Offset(1)]);
    });
}

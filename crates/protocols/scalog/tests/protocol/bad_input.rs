//! What is wrong is refused by name, and costs nobody else anything: maps of shards that overlap or name nodes that there are not, and
//! servers that have not the data that their shard says.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{self, Cluster, NativeLogs, Tapped};
use atoll_contract::*;
use atoll_core::*;
use atoll_scalog::*;

const LOGLET: LogletId = LogletId(77);

fn provider(c: &Cluster, node: u32) -> ScalogProvider {
    let (env, options) = (c.env(node), ScalogOptions::default());
    ScalogProvider::new(env.clone(), c.directory(), Arc::new(NativeLogs::new(env)), options)
}

/// Shards on nodes 1 and 2, and 3 and 4; the ordering log on nodes 5, 6 and 7.
fn config(c: &Cluster) -> ScalogConfig {
    let storage = |node: NodeId| c.nodes[&node].storage;
    cluster::config(storage, &c.env(5), &[5, 6, 7], &[&[1, 2], &[3, 4]], &[6, 5], &[])
}

fn start(c: &Cluster, node: u32) -> ScalogLoglet {
    provider(c, node).open_scalog(LOGLET, &config(c).to_bytes()).unwrap()
}

fn shard(c: &Cluster, shard: u32, nodes: &[u32]) -> ShardSpec {
    let server = |n: &u32| Server { node: NodeId(*n), storage: c.nodes[&NodeId(*n)].storage };
    ShardSpec { shard, servers: nodes.iter().map(server).collect() }
}

fn new_cluster() -> Cluster {
    cluster::new(7, 3, Tapped::default(), Duration::ZERO)
}

#[test]
fn placements_that_cannot_be_are_refused_by_name() {
    let mut c = new_cluster();
    let levels = c.env(4).levels().clone();
    levels.learn(levels.reads().highest).unwrap();
    let of =
        |role: &str, nodes: &[u32]| LogletSpec::of("scalog").place(role, nodes.iter().map(|n| NodeId(*n)));
    let option = |mut spec: LogletSpec, name: &str, value: &str| {
        spec.options.insert(name.to_owned(), value.to_owned());
        spec
    };
    let numbers = "options shards, replicas, interval_us and fan_in of a scalog loglet";
    let count = "number of storage servers";
    for (spec, words) in [
        (of("storage", &[1, 2, 2, 3]), "storage servers: each node once"),
        (of("storage", &[1, 99]), "node 99 does not answer"),
        (of("orderer", &[99]), "node 99 does not answer"),
        (of("aggregator", &[99]), "node 99 does not answer"),
        (of("storag", &[1, 2]), "has no role \"storag\""),
        (option(of("storage", &[1, 2, 3]), "shards", "2"), count),
        (option(LogletSpec::of("scalog"), "shards", "0"), numbers),
        (option(LogletSpec::of("scalog"), "replicas", "10"), numbers),
        (option(LogletSpec::of("scalog"), "interval_us", "soon"), numbers),
        (option(LogletSpec::of("scalog"), "shard", "2"), "has no option \"shard\""),
    ] {
        let provider = provider(&c, 4);
        let planned = c.on(4, async move { provider.plan(&spec, None).await });
        let refusal = planned.unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal:?} does not say {words:?}");
    }
}

#[test]
fn maps_of_shards_that_overlap_are_not_opened() {
    let c = new_cluster();
    let open = |change: &dyn Fn(&mut ScalogConfig)| {
        let mut config = config(&c);
        change(&mut config);
        provider(&c, 4).open_scalog(LOGLET, &config.to_bytes()).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(open(&|_| {}), Ok(()));
    for (change, words) in [
        (
            &(|c: &mut ScalogConfig| c.shards[1].servers[0].node = NodeId(2)) as &dyn Fn(&mut ScalogConfig),
            "node in two shards: 2 is not allowed",
        ),
        (&|c| c.shards[1].shard = 0, "number of two shards: 0 is not allowed"),
        (&|c| c.shards[1].servers[1] = c.shards[1].servers[0], "names a node twice, or node 0: 1"),
        (&|c| c.shards[0].servers[0].node = NodeId(0), "names a node twice, or node 0: 0"),
        (&|c| c.shards[0].servers.clear(), "servers of a shard: 0 is not allowed"),
        (&|c| c.added = vec![c.shards[1].clone()], "number of two shards: 1 is not allowed"),
    ] {
        let refusal = open(change).unwrap_err();
        assert!(refusal.contains(words), "{refusal:?} does not say {words:?}");
    }
}

/// Returns a client whose records go to a segment of a shard now, and then to another one once shard 0 has ended.
fn client_of(log: &ScalogLoglet, shard: u32, segment: usize) -> u64 {
    let is_there = |client: &u64| {
        let home = log.with_order(|order| order.home(*client)).unwrap();
        (home.shard, home.segment) == (shard, segment)
    };
    (1..).find(is_there).unwrap()
}

/// Replaces the disk of a node by an empty one.
fn lose_disk(c: &mut Cluster, node: u32) {
    c.kill(NodeId(node));
    c.wipe(NodeId(node));
}

/// Appends, and returns what came of it and how long it took.
fn append(
    c: &mut Cluster,
    log: &ScalogLoglet,
    client: u64,
    seq: u64,
) -> (Result<Placement, AppendError>, Duration) {
    let (log, began) = (log.clone(), c.now);
    let batch = cluster::batch(client, seq, &["x"]);
    let done = c.on(4, async move { log.append(batch).await.unwrap() });
    (done, c.now.since(began))
}

#[test]
fn a_server_with_another_data_directory_takes_nothing_and_what_it_had_is_read_elsewhere() {
    let mut c = new_cluster();
    let log = start(&c, 4);
    let client = client_of(&log, 0, 0);
    assert!(append(&mut c, &log, client, 1).0.is_ok());
    lose_disk(&mut c, 1);
    let (done, took) = append(&mut c, &log, client, 2);
    assert_eq!(done, Err(AppendError::NotAppended(Unavailability::NoQuorum)));
    assert!(took < Duration::from_millis(100), "it was refused after {took:?}");
    let read = c.on(4, async move { log.read(Offset(0)..Offset(1), 100, ReadFrom::Anywhere).await });
    assert_eq!(read.unwrap().entries[0].payload, "x");
}

/// The chain names the data directories of the first shards; those of a shard that was added may stand in the ordering log alone.
#[test]
fn a_server_of_an_added_shard_with_another_data_directory_says_so_too() {
    let mut c = new_cluster();
    let (log, added) = (start(&c, 4), shard(&c, 2, &[6, 7]));
    let changed = log.clone();
    c.on(4, async move {
        changed.add_shard(added).await.unwrap();
        changed.finalize(0, 0).await.unwrap();
    });
    let client = client_of(&log, 2, 0);
    assert!(append(&mut c, &log, client, 1).0.is_ok());
    lose_disk(&mut c, 6);
    // It has to hear of the shard from the ordering log first.
    let (_, _) = append(&mut c, &log, client, 2);
    let (done, took) = append(&mut c, &log, client, 2);
    assert_eq!(done, Err(AppendError::NotAppended(Unavailability::NoQuorum)));
    assert!(took < Duration::from_millis(100), "it was refused after {took:?}");
}

#[test]
fn shards_that_overlap_or_name_a_server_that_lost_its_disk_are_not_added() {
    let mut c = new_cluster();
    let log = start(&c, 4);
    let (overlaps, twice, exists) = (shard(&c, 2, &[5, 2]), shard(&c, 2, &[5, 5]), shard(&c, 1, &[5]));
    lose_disk(&mut c, 1);
    let lost = shard(&c, 2, &[1, 5]);
    c.on(4, async move {
        let refused = async |spec: ShardSpec| match log.add_shard(spec).await {
            Err(ChangeError::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(overlaps).await, ShardError::Overlap(NodeId(2), 0));
        assert_eq!(refused(twice).await, ShardError::Twice(2));
        assert_eq!(refused(exists).await, ShardError::Exists(1));
        // Its former shard still takes records, whatever it has on its disk.
        assert_eq!(refused(lost.clone()).await, ShardError::Overlap(NodeId(1), 0));
        log.finalize(0, 0).await.unwrap();
        let with = log.config().with_shard(lost);
        assert_eq!(with, Err(ShardError::OtherDirectory(NodeId(1), 0)));
    });
}

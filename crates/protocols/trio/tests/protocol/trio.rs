//! The trio loglet across restarts, with a mirror that is filled late, and after the loss of its store.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{self, Cluster, batch, provider};
use atoll_contract::*;
use atoll_core::*;
use bytes::Bytes;

const SOON: Duration = Duration::from_secs(10);

fn open(c: &Cluster, at: u32, id: u128, config: &Bytes) -> Arc<dyn Loglet> {
    provider(c, at).open(LogletId(id), config).unwrap()
}

/// Opens a sealed loglet with what its check has returned.
fn open_sealed(c: &mut Cluster, at: u32, id: u128, config: &Bytes) -> Arc<dyn Loglet> {
    let log = open(c, at, id, config);
    let sealed = c.on(at, async move { log.check_tail().await.unwrap().sealed.unwrap() });
    provider(c, at).open_sealed(LogletId(id), config, &sealed).unwrap()
}

fn append(c: &mut Cluster, log: &Arc<dyn Loglet>, seq: u64, what: &[&str]) -> Result<Placement, AppendError> {
    let ticket = log.append(batch(1, seq, what));
    c.wait(ticket, SOON).unwrap()
}

fn seal(c: &mut Cluster, at: u32, log: &Arc<dyn Loglet>) {
    let log = log.clone();
    c.on(at, async move { log.seal().await.unwrap() });
}

fn tail(c: &mut Cluster, at: u32, log: &Arc<dyn Loglet>) -> Result<(u64, bool), LogletError> {
    let log = log.clone();
    c.on(at, async move { log.check_tail().await }).map(|t| (t.at.0, t.sealed.is_some()))
}

fn read(
    c: &mut Cluster,
    at: u32,
    log: &Arc<dyn Loglet>,
    range: std::ops::Range<u64>,
    from: ReadFrom,
) -> Result<Vec<String>, ReadError> {
    let log = log.clone();
    c.on(at, async move {
        let got = log.read(Offset(range.start)..Offset(range.end), 1 << 20, from).await?;
        Ok(got.entries.iter().map(|e| String::from_utf8(e.payload.to_vec()).unwrap()).collect())
    })
}

/// Makes a sealed loglet of these many entries, one in each batch, with the clerk on node 1, the store on 2 and the mirror on 3.
fn sealed(c: &mut Cluster, id: u128, count: u64) -> (Bytes, Vec<String>) {
    let config = cluster::config(c, 1, 2, 3).to_bytes();
    let log = open(c, 1, id, &config);
    let all: Vec<String> = (0..count).map(|i| format!("entry {i}")).collect();
    for (i, entry) in all.iter().enumerate() {
        assert!(append(c, &log, 1 + i as u64, &[entry]).is_ok());
    }
    seal(c, 1, &log);
    (config, all)
}

/// Asks node 3 to fill its mirror, and returns how much it then lacks.
fn fill(c: &mut Cluster, id: u128, config: &Bytes, upto: u64) -> u64 {
    let (at, bytes) = (provider(c, 3), config.clone());
    c.on(3, async move { at.back_fill(&extent(id, &bytes, upto)).await });
    c.run_for(Duration::from_millis(500));
    lacks(c, 3, id, config, upto)
}

fn extent(id: u128, config: &Bytes, upto: u64) -> Extent {
    let (loglet, config, sealed) = (LogletId(id), config.clone(), SealedConfig::new());
    Extent { loglet, config, sealed, range: Offset(0)..Offset(upto) }
}

fn lacks(c: &mut Cluster, node: u32, id: u128, config: &Bytes, upto: u64) -> u64 {
    let asker = provider(c, 1);
    let extent = extent(id, config, upto);
    c.on(1, async move { asker.progress(NodeId(node), &[extent]).await.unwrap()[0].lacks })
}

/// A clerk's next life serves no loglet of the one before, although the store would take more.
#[test]
fn a_restarted_clerk_is_the_wrong_one() {
    let mut c = cluster::new(3, 5);
    let config = cluster::config(&c, 1, 2, 3).to_bytes();
    let log = open(&c, 3, 7, &config);
    assert_eq!(append(&mut c, &log, 1, &["a", "b"]), Ok(Placement::contiguous(Offset(0), 2)));
    c.kill(NodeId(1));
    let gone = append(&mut c, &log, 3, &["c"]);
    assert_eq!(gone, Err(AppendError::NotAppended(Unavailability::NoSequencer)));
    c.restart(NodeId(1));
    let wrong = append(&mut c, &log, 3, &["c"]);
    assert_eq!(wrong, Err(AppendError::NotAppended(Unavailability::WrongSequencer)));
    assert_eq!(tail(&mut c, 3, &log), Ok((2, false)));
    seal(&mut c, 3, &log);
    assert_eq!(tail(&mut c, 3, &log), Ok((2, true)));
}

/// The store remembers entries, offsets and the seal over a restart; the handle begins a new epoch.
#[test]
fn a_restarted_store_knows_the_places_of_a_retry() {
    for checkpoint in [false, true] {
        let mut c = cluster::new(3, 5);
        let config = cluster::config(&c, 1, 2, 3).to_bytes();
        let log = open(&c, 3, 7, &config);
        assert_eq!(append(&mut c, &log, 1, &["a", "b"]), Ok(Placement::contiguous(Offset(0), 2)));
        if checkpoint {
            c.checkpoint(NodeId(2));
        }
        c.kill(NodeId(2));
        let unknown = append(&mut c, &log, 3, &["c"]);
        assert_eq!(unknown, Err(AppendError::Unknown(Unavailability::NoQuorum)), "the relay was lost");
        c.restart(NodeId(2));
        let (b, next) = ((Offset(1), 1), (Offset(2), 1));
        assert_eq!(append(&mut c, &log, 2, &["b", "c"]).map(|p| p.runs), Ok(vec![b, next]));
        seal(&mut c, 1, &log);
        c.kill(NodeId(2));
        c.restart(NodeId(2));
        assert_eq!(tail(&mut c, 3, &log), Ok((3, true)));
        assert_eq!(append(&mut c, &log, 4, &["d"]), Err(AppendError::Sealed));
        assert_eq!(read(&mut c, 1, &log, 0..3, ReadFrom::Anywhere).unwrap(), ["a", "b", "c"]);
    }
}

/// An append in flight at the time of a seal is below the sealed tail if it was acknowledged.
#[test]
fn nothing_is_acked_before_the_sync_or_after_the_seal() {
    let mut c = cluster::new(3, 5);
    c.sync = Duration::from_millis(50);
    let config = cluster::config(&c, 1, 2, 3).to_bytes();
    let log = open(&c, 1, 7, &config);
    let mut tickets: Vec<_> = (0..4).map(|i| log.append(batch(1, 1 + i, &["x"]))).collect();
    c.run_for(Duration::from_millis(20));
    assert!(tickets.iter_mut().all(|t| t.try_take().is_none()));
    assert_eq!(tail(&mut c, 3, &log).unwrap().0, 0, "only what is durable is below the tail (native-T9)");
    seal(&mut c, 3, &log);
    assert_eq!(tail(&mut c, 3, &log), Ok((4, true)));
    for ticket in tickets {
        assert!(c.wait(ticket, SOON).unwrap().is_ok());
    }
    let other = open(&c, 2, 7, &config);
    assert_eq!(append(&mut c, &other, 9, &["late"]), Err(AppendError::Sealed));
}

/// The mirror has nothing until it is asked to fill itself. Then it serves everything, also while the store is down.
#[test]
fn a_mirror_is_filled_after_the_seal_and_serves_without_the_store() {
    let mut c = cluster::new(3, 5);
    let (config, all) = sealed(&mut c, 7, 40);
    assert_eq!(lacks(&mut c, 2, 7, &config, 40), 0);
    assert_eq!(lacks(&mut c, 3, 7, &config, 40), 40);
    let log = open_sealed(&mut c, 3, 7, &config);
    let early = read(&mut c, 3, &log, 0..40, ReadFrom::LocalOnly);
    assert!(matches!(early, Err(ReadError::Unavailable(_))), "{early:?}");
    assert_eq!(read(&mut c, 3, &log, 0..40, ReadFrom::Anywhere).unwrap()[..3], all[..3], "from the store");
    assert_eq!(fill(&mut c, 7, &config, 40), 0);
    c.checkpoint(NodeId(3));
    c.kill(NodeId(3));
    c.restart(NodeId(3));
    c.kill(NodeId(2));
    assert_eq!(lacks(&mut c, 3, 7, &config, 40), 0);
    let log = provider(&c, 3).open_sealed(LogletId(7), &config, &Offset(40).to_bytes()).unwrap();
    assert_eq!(read(&mut c, 3, &log, 0..40, ReadFrom::LocalOnly).unwrap(), all);
    assert_eq!(read(&mut c, 3, &log, 17..19, ReadFrom::Anywhere).unwrap(), all[17..19]);
    let far = provider(&c, 1).open_sealed(LogletId(7), &config, &Offset(40).to_bytes()).unwrap();
    assert_eq!(read(&mut c, 1, &far, 0..40, ReadFrom::Anywhere).unwrap(), all);
    assert_eq!(
        append(&mut c, &far, 90, &["late"]),
        Err(AppendError::Sealed),
        "it is known without a question"
    );
}

/// A back-fill that dies with its node continues where it was. Trims and deletions that the mirror missed reach it with the next one.
#[test]
fn a_mirror_that_was_away_catches_up_with_fills_trims_and_deletions() {
    let mut c = cluster::new(3, 5);
    let (config, all) = sealed(&mut c, 7, 40);
    let (at, bytes) = (provider(&c, 3), config.clone());
    c.on(3, async move { at.back_fill(&extent(7, &bytes, 40)).await });
    c.run_for(Duration::from_millis(2));
    c.kill(NodeId(3));
    let log = open(&c, 1, 7, &config);
    let trimmer = log.clone();
    c.on(1, async move { trimmer.prefix_trim(Offset(30)).await.unwrap() });
    c.restart(NodeId(3));
    assert!(lacks(&mut c, 3, 7, &config, 40) > 0, "it was killed in the middle");
    assert_eq!(fill(&mut c, 7, &config, 40), 0);
    let sealed_log = open_sealed(&mut c, 3, 7, &config);
    assert_eq!(read(&mut c, 3, &sealed_log, 30..40, ReadFrom::LocalOnly).unwrap(), all[30..40]);
    assert_eq!(
        read(&mut c, 3, &sealed_log, 29..40, ReadFrom::LocalOnly),
        Err(ReadError::Trimmed(Offset(30)))
    );

    let (config, _) = sealed(&mut c, 8, 5);
    c.kill(NodeId(3));
    let (deleter, bytes) = (provider(&c, 1), config.clone());
    c.on(1, async move { deleter.delete(LogletId(8), &bytes).await.unwrap() });
    c.restart(NodeId(3));
    fill(&mut c, 8, &config, 5);
    let log = open(&c, 3, 8, &config);
    assert_eq!(tail(&mut c, 3, &log), Err(LogletError::Gone));
    assert_eq!(read(&mut c, 3, &log, 0..5, ReadFrom::LocalOnly), Err(ReadError::Gone), "of the mirror");
}

/// What one node has on its disk is the union of both roles, and a deletion reaches both.
#[test]
fn a_node_lists_and_deletes_what_both_of_its_roles_hold() {
    let mut c = cluster::new(3, 5);
    let own = cluster::config(&c, 1, 3, 2).to_bytes();
    let log = open(&c, 3, 5, &own);
    assert!(append(&mut c, &log, 1, &["a"]).is_ok());
    let (config, _) = sealed(&mut c, 7, 3);
    assert_eq!(fill(&mut c, 7, &config, 3), 0);
    let held = |c: &mut Cluster| {
        let at = provider(c, 3);
        c.on(3, async move { at.held_here(None).await.unwrap() })
    };
    assert_eq!(held(&mut c), (vec![LogletId(5), LogletId(7)], false));
    for id in [5, 7] {
        let at = provider(&c, 3);
        assert!(c.on(3, async move { at.delete_here(LogletId(id)).await }));
    }
    assert_eq!(held(&mut c), (vec![], false));
    assert_eq!(tail(&mut c, 1, &log), Err(LogletError::Gone));
}

/// The disk of the store is lost. A filled mirror is enough to make a whole copy elsewhere.
#[test]
fn a_copy_can_be_made_from_the_mirror_alone() {
    let mut c = cluster::new(4, 5);
    let (config, all) = sealed(&mut c, 7, 20);
    assert_eq!(fill(&mut c, 7, &config, 20), 0);
    c.kill(NodeId(2));
    c.wipe(NodeId(2));
    let source = provider(&c, 1).open_sealed(LogletId(7), &config, &Offset(20).to_bytes()).unwrap();
    assert_eq!(
        tail(&mut c, 1, &source),
        Err(LogletError::Unavailable(Unavailability::StorageFailed)),
        "the new data directory does not answer for the old one (native-T8)"
    );
    let target = cluster::config(&c, 1, 4, 1).to_bytes();
    let (builder, bytes) = (provider(&c, 1), target.clone());
    let range = Offset(5)..Offset(20);
    c.on(1, async move { builder.build_sealed(LogletId(9), &bytes, &*source, range).await }).unwrap();
    let copy = open(&c, 3, 9, &target);
    assert_eq!(tail(&mut c, 3, &copy), Ok((15, true)));
    assert_eq!(read(&mut c, 3, &copy, 0..15, ReadFrom::Anywhere).unwrap(), all[5..20]);
}

#[test]
fn plans() {
    let mut c = cluster::new(3, 5);
    let plan = |c: &mut Cluster, spec: LogletSpec, previous: Option<Bytes>| {
        let at = provider(c, 2);
        c.on(2, async move {
            let config = at.plan(&spec, previous.as_ref()).await?;
            let nodes: Vec<u32> = at.duties(&config).0.iter().map(|duty| duty.node.0).collect();
            Ok::<_, PlanError>((nodes, config))
        })
    };
    let nodes = |planned: Result<(Vec<u32>, Bytes), PlanError>| planned.map(|(nodes, _)| nodes);
    let (first, config) = plan(&mut c, LogletSpec::default(), None).unwrap();
    assert_eq!(first, [2, 1, 3], "a node for each role");
    let there = LogletSpec::default().place("store", [NodeId(3)]);
    assert_eq!(nodes(plan(&mut c, there.clone(), Some(config.clone()))), Ok(vec![2, 3, 1]));
    let same = LogletSpec::default().place("store", [NodeId(3)]).place("mirror", [NodeId(3)]);
    assert_eq!(nodes(plan(&mut c, same, None)), Ok(vec![1, 3, 3]), "they may coincide if somebody wants it");
    let two = LogletSpec::default().place("clerk", [NodeId(1), NodeId(3)]);
    assert!(matches!(plan(&mut c, two, None), Err(PlanError::Invalid { .. })));
    let wrong = LogletSpec::default().place("server", [NodeId(1)]);
    assert!(matches!(plan(&mut c, wrong, None), Err(PlanError::Unknown { .. })));
    let avoided = LogletSpec::default().avoiding([NodeId(2)]);
    assert_eq!(nodes(plan(&mut c, avoided, Some(config.clone()))), Ok(vec![3, 1, 3]), "the clerk moves");
    c.kill(NodeId(3));
    assert_eq!(nodes(plan(&mut c, there, None)), Err(PlanError::NodeDown(NodeId(3))));
    assert_eq!(nodes(plan(&mut c, LogletSpec::default(), Some(config.clone()))), Ok(vec![2, 1, 2]));
    c.kill(NodeId(1));
    assert!(matches!(plan(&mut c, LogletSpec::default(), Some(config)), Err(PlanError::Missing { .. })));
    let reached = |only: u32| move |node: NodeId| node == NodeId(only);
    let config = cluster::config(&c, 1, 2, 3).to_bytes();
    let at = provider(&c, 2);
    assert!(at.can_seal(&config, &reached(2)) && !at.can_seal(&config, &reached(3)));
}

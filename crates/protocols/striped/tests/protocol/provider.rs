//! Where the stripes of a Loglet are placed, how it is copied, and what its provider says about it.

use std::sync::Arc;

use atoll_contract::conformance::LogletHarness;
use atoll_contract::{
    Batch, ClientId, Entry, Extent, Loglet, LogletId, LogletSpec, Offset, OpId, PlanError, ReadFrom,
};
use atoll_core::NodeId;
use atoll_core::level::since;
use atoll_striped::{Mode, StripedConfig};
use bytes::Bytes;

use crate::cluster::{Harness, Of};

const AT: NodeId = NodeId(1);

fn cluster(nodes: u32) -> Harness {
    Harness::new(nodes, Of::Native { servers: 3 }, Mode::Rotating, 2)
}

fn striped(options: &[(&str, &str)]) -> LogletSpec {
    let mut spec = LogletSpec::of("striped");
    spec.options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    spec
}

fn plan(h: &mut Harness, spec: LogletSpec, previous: Option<Bytes>) -> Result<Bytes, PlanError> {
    let provider = h.provider(AT);
    h.driver.block_on(AT, async move { provider.plan(&spec, previous.as_ref()).await })
}

/// Returns the holders and the orderers of each stripe.
fn places(h: &Harness, config: &Bytes) -> Vec<(Vec<u32>, Vec<u32>)> {
    use atoll_core::Decode;
    let config = StripedConfig::from_bytes(config.clone()).unwrap();
    let one = |part: &atoll_contract::PartLoglet| {
        let duties = h.part_provider(AT, &part.kind).duties(&part.config);
        (duties.holders().map(|(n, _)| n.0).collect(), duties.sequencers().map(|(n, _)| n.0).collect())
    };
    config.stripes.iter().map(one).collect()
}

#[test]
fn rotating_sequencers_are_on_the_same_servers_and_take_turns() {
    let mut h = cluster(4);
    let config = plan(&mut h, striped(&[("stripes", "3")]), None).unwrap();
    let all = vec![1, 2, 3];
    assert_eq!(places(&h, &config), [(all.clone(), vec![1]), (all.clone(), vec![2]), (all, vec![3])]);
    let duties = h.provider(AT).duties(&config);
    assert_eq!(duties.in_role("server"), [1, 2, 3].map(NodeId));
    assert_eq!(duties.holders().count(), 3, "a node that holds several stripes has one duty");
    assert_eq!(duties.sequencers().count(), 3);
    // What the next one inherits.
    let again = plan(&mut h, LogletSpec::default(), Some(config.clone())).unwrap();
    assert_eq!(again, config);
}

/// Otherwise it could not say for which offsets its pads are, and there would be too many (striped-I7).
#[test]
fn who_opens_one_knows_that_the_cluster_has_its_level() {
    let mut h = cluster(3);
    let config = plan(&mut h, LogletSpec::of("striped"), None).unwrap();
    let (env, provider) = h.newcomer();
    assert!(!env.levels().allows(since::NOT_BELOW));
    drop(provider.open(LogletId(7 << 64), &config).unwrap());
    assert!(env.levels().allows(since::NOT_BELOW));
}

#[test]
fn sharded_acceptors_have_servers_of_their_own() {
    let mut h = cluster(6);
    let config = plan(&mut h, striped(&[("mode", "sharded")]), None).unwrap();
    assert_eq!(places(&h, &config), [(vec![1, 2, 3], vec![1]), (vec![4, 5, 6], vec![4])]);
    let mut small = cluster(4);
    let refused = plan(&mut small, striped(&[("mode", "sharded")]), None).unwrap_err().to_string();
    assert!(refused.contains("servers of its own for each stripe"), "{refused}");
    // Local stripes need one node each.
    let config = plan(&mut small, striped(&[("mode", "sharded"), ("of", "local"), ("stripes", "4")]), None);
    assert_eq!(places(&small, &config.unwrap()).iter().map(|p| p.0[0]).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn places_are_dealt_out_to_the_stripes() {
    let mut h = cluster(6);
    let servers = [6, 5, 4, 3, 2, 1].map(NodeId);
    let spec =
        striped(&[("mode", "sharded")]).place("server", servers).place("sequencer", [2, 5].map(NodeId));
    let config = plan(&mut h, spec, None).unwrap();
    assert_eq!(places(&h, &config), [(vec![6, 5, 4], vec![2]), (vec![3, 2, 1], vec![5])]);
    let spec = striped(&[]).place("server", [2, 3, 4].map(NodeId)).place("sequencer", [NodeId(6)]);
    let config = plan(&mut h, spec, None).unwrap();
    assert_eq!(places(&h, &config), [(vec![2, 3, 4], vec![6]), (vec![2, 3, 4], vec![6])]);
    let words = h.provider(AT).describe(&config);
    assert_eq!(words[0], ("mode", "rotating".to_owned()));
    assert!(words[1].1.starts_with("1: native servers=2,3,4 sequencer=6"), "{words:?}");
}

#[test]
fn a_wrong_specification_is_refused_by_name() {
    let mut h = cluster(3);
    let mut refused = |spec| plan(&mut h, spec, None).unwrap_err().to_string();
    assert!(refused(striped(&[("stripes", "0")])).contains("1 to 64"));
    assert!(refused(striped(&[("stripes", "65")])).contains("1 to 64"));
    assert!(refused(striped(&[("mode", "woven")])).contains("rotating"));
    assert!(refused(striped(&[("of", "striped")])).contains("any other"));
    assert!(refused(striped(&[("of", "unheard-of")])).contains("known kinds"));
    assert!(refused(striped(&[("colour", "red")])).contains("stripes, of, mode"));
    assert!(refused(striped(&[]).place("keeper", [AT])).contains("server, sequencer"));
    let five = [1, 2, 3, 1, 2].map(NodeId);
    assert!(refused(striped(&[("mode", "sharded")]).place("server", five)).contains("as many for each"));
}

fn entry(seq: u64) -> Entry {
    let payload = Bytes::from(vec![seq as u8; 1 + (seq as usize * 7) % 40]);
    Entry { op: OpId { client: ClientId(9), seq }, payload }
}

async fn read_all(loglet: &Arc<dyn Loglet>, from: Offset, to: Offset) -> Vec<Entry> {
    let mut entries = Vec::new();
    while from.plus(entries.len() as u64) < to {
        let at = from.plus(entries.len() as u64);
        entries.extend(loglet.read(at..to, 100, ReadFrom::Anywhere).await.unwrap().entries);
    }
    entries
}

#[test]
fn a_copy_holds_exactly_the_range_in_order() {
    let mut h = Harness::new(3, Of::Local, Mode::Sharded, 3);
    let source = h.fresh();
    let loglet = h.open(source, AT);
    let (provider, config) = (h.provider(AT), h.config(source));
    let copied = LogletId(500);
    h.driver.block_on(AT, async move {
        loglet.append(Batch::of((1..40).map(entry))).await.unwrap().unwrap();
        loglet.seal().await.unwrap();
        let tail = loglet.check_tail().await.unwrap();
        let range = Offset(4)..Offset(31);
        provider.build_sealed(copied, &config, &*loglet, range.clone()).await.unwrap();
        let sealed = loglet.check_tail().await.unwrap().sealed.unwrap();
        let copy = provider.open_sealed(copied, &config, &sealed).unwrap();
        let copy_tail = copy.check_tail().await.unwrap();
        assert_eq!((copy_tail.at, copy_tail.sealed.is_some()), (Offset(27), true));
        let theirs = read_all(&loglet, range.start, range.end).await;
        assert_eq!(read_all(&copy, Offset::ZERO, Offset(27)).await, theirs);
        assert!(tail.at >= Offset(39));
    });
}

#[test]
fn progress_counts_the_stripes_that_a_node_holds() {
    let mut h = Harness::new(6, Of::Native { servers: 3 }, Mode::Sharded, 2);
    let id = h.fresh();
    let loglet = h.open(id, AT);
    let (provider, config) = (h.provider(AT), h.config(id));
    let (whole, sealed) = (LogletId(id.into()), Bytes::new());
    let extent = Extent { loglet: whole, config, sealed, range: Offset(0)..Offset(20) };
    let end = h.driver.block_on(AT, async move {
        loglet.append(Batch::of((1..21).map(entry))).await.unwrap().unwrap();
        loglet.seal().await.unwrap();
        loglet.check_tail().await.unwrap().at
    });
    assert!(end >= Offset(20));
    let progress = h.driver.block_on(AT, async move {
        let mut all = Vec::new();
        for node in 1..=6 {
            all.push(provider.progress(NodeId(node), std::slice::from_ref(&extent)).await.unwrap()[0]);
        }
        all
    });
    let whole = progress.iter().filter(|p| p.has_up_to == Offset(20) && p.lacks == 0).count();
    assert!(whole >= 4, "a majority of each stripe has it: {progress:?}");
}

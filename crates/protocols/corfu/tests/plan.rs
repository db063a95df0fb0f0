//! Tests which units a Loglet gets: as many as asked for, and fewer while nodes are down; and that older members keep it out of chains.
#![allow(clippy::unwrap_used)]

mod cluster;

use atoll_contract::*;
use atoll_core::level::Level;
use atoll_core::*;
use atoll_corfu::Projection;
use bytes::Bytes;
use cluster::{Cluster, provider};

fn plan(c: &mut Cluster, spec: LogletSpec, previous: Option<&Projection>) -> Result<Projection, PlanError> {
    let (provider, previous) = (provider(c, 1), previous.map(Encode::to_bytes));
    let planned: Bytes = c.on(1, async move { provider.plan(&spec, previous.as_ref()).await })?;
    Ok(Projection::parse(&planned).unwrap())
}

fn of_level(nodes: u32, level: Level) -> Cluster {
    let c = cluster::new(nodes, 3);
    for n in 1..=nodes {
        c.env(n).levels().learn(level).unwrap();
    }
    c
}

fn corfu(options: &[(&str, &str)]) -> LogletSpec {
    let mut spec = LogletSpec::of("corfu");
    spec.options.extend(options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    spec
}

fn lengths(projection: &Projection) -> Vec<usize> {
    projection.active().chains.iter().map(|chain| chain.units.len()).collect()
}

#[test]
fn a_cluster_with_older_members_gets_no_corfu_loglets() {
    let refused = plan(&mut of_level(3, Level(1)), corfu(&[]), None).unwrap_err();
    let words = refused.to_string();
    assert!(words.contains("CORFU") && words.contains("atoll cluster upgrade"), "{words}");
}

#[test]
fn chains_are_shorter_while_nodes_are_down_and_as_before_afterwards() {
    let mut c = of_level(4, Level(2));
    let usual = plan(&mut c, corfu(&[]), None).unwrap();
    assert_eq!((lengths(&usual), usual.wanted), (vec![2], (2, 1)));
    let three = plan(&mut c, corfu(&[("replicas", "3")]), None).unwrap();
    assert_eq!(lengths(&three), [3]);
    let two = plan(&mut c, corfu(&[("chains", "2")]), None).unwrap();
    assert_eq!((lengths(&two), two.wanted), (vec![2, 2], (2, 2)));
    for node in [3, 4] {
        c.kill(NodeId(node));
    }
    let shorter = plan(&mut c, LogletSpec::default(), Some(&three)).unwrap();
    assert_eq!((lengths(&shorter), shorter.wanted), (vec![2], (3, 1)));
    let fewer = plan(&mut c, LogletSpec::default(), Some(&two)).unwrap();
    assert_eq!((lengths(&fewer), fewer.wanted), (vec![2], (2, 2)));
    let asked = plan(&mut c, corfu(&[("replicas", "3")]), None);
    assert!(matches!(asked, Err(PlanError::TooFew { up: 2, wanted: 3 })), "{asked:?}");
    for node in [3, 4] {
        c.restart(NodeId(node));
    }
    assert_eq!(lengths(&plan(&mut c, LogletSpec::default(), Some(&shorter)).unwrap()), [3]);
    assert_eq!(lengths(&plan(&mut c, LogletSpec::default(), Some(&fewer)).unwrap()), [2, 2]);
}

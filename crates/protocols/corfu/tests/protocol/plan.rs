//! Tests which units a Loglet gets: as many as asked for, and fewer while nodes are down; and that older members keep it out of chains.

use std::time::Duration;

use crate::cluster::{self, Cluster, provider};
use atoll_contract::*;
use atoll_core::level::Level;
use atoll_core::*;
use atoll_corfu::Projection;
use bytes::Bytes;

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
    assert!(matches!(asked, Err(PlanError::Missing { role: "unit", up: 2, wanted: 3 })), "{asked:?}");
    for node in [3, 4] {
        c.restart(NodeId(node));
    }
    assert_eq!(lengths(&plan(&mut c, LogletSpec::default(), Some(&shorter)).unwrap()), [3]);
    assert_eq!(lengths(&plan(&mut c, LogletSpec::default(), Some(&fewer)).unwrap()), [2, 2]);
}

/// A log moves to CORFU while one node of three is down: the units are those that answer, and the ones that have the log's entries first.
#[test]
fn a_log_moves_here_while_a_node_is_down_and_its_holders_are_the_units() {
    let mut c = of_level(3, Level(2));
    let held: Vec<_> = [2, 3].map(|n| (NodeId(n), c.nodes[&NodeId(n)].storage)).to_vec();
    let after_another = LogletSpec { held: held.clone(), ..corfu(&[]) };
    let kept = plan(&mut c, after_another.clone(), None).unwrap();
    assert_eq!(kept.active().chains[0].units, held, "those that have the entries keep their places");
    let other_disk = LogletSpec { held: vec![(NodeId(3), StorageId(77))], ..corfu(&[]) };
    let others = plan(&mut c, other_disk, None).unwrap();
    assert_eq!(nodes_of(&others), [NodeId(1), NodeId(2)], "an empty disk has no claim");
    // Nobody knows yet that the node is down, so it is asked, and the log waits for the answer as briefly as for its own kind.
    let named = corfu(&[("replicas", "3")]);
    c.kill(NodeId(3));
    let began = c.env(1).now();
    let moved = plan(&mut c, after_another.clone(), None).unwrap();
    let took = c.env(1).now().since(began);
    assert_eq!((nodes_of(&moved), moved.wanted), (vec![NodeId(1), NodeId(2)], (2, 1)));
    assert!(took < Duration::from_millis(500), "appends waited {took:?}");
    // A chain takes appends only while all of its units are up, so what was asked for in numbers is refused.
    let three = LogletSpec { held: held.clone(), ..named };
    let refused = plan(&mut c, three, None).unwrap_err();
    assert_eq!(refused, PlanError::Missing { role: "unit", up: 2, wanted: 3 });
    let words =
        "a segment needs 3 nodes for the role \"unit\", all of them up; 2 answer (see `atoll status`)";
    assert_eq!(refused.to_string(), words);
    let dead = LogletSpec { held, ..corfu(&[]).place("unit", [NodeId(2), NodeId(3)]) };
    assert_eq!(plan(&mut c, dead, None), Err(PlanError::NodeDown(NodeId(3))));
    // With a single node left, one copy is all that there can be.
    c.kill(NodeId(2));
    assert_eq!(nodes_of(&plan(&mut c, after_another, None).unwrap()), [NodeId(1)]);
}

fn nodes_of(projection: &Projection) -> Vec<NodeId> {
    projection.units().into_iter().map(|(node, _)| node).collect()
}

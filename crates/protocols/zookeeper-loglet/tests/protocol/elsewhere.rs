//! Another ensemble at the address of a loglet's: it answers, and must not be taken for the right one.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::{
    AppendError, Batch, ClientId, Entry, LogletError, LogletId, LogletProvider, LogletSpec, OpId, PlanError,
    Unavailability,
};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Level, NodeId};
use atoll_zookeeper_loglet::testing::MemoryEnsemble;
use atoll_zookeeper_loglet::{ZooKeeperOptions, ZooKeeperProvider, mutants};
use bytes::Bytes;

const NODE: NodeId = NodeId(1);
const ID: LogletId = LogletId(9);

struct Place {
    driver: Driver,
    right: MemoryEnsemble,
    wrong: MemoryEnsemble,
    /// Of a node that reaches the right ensemble, and of one that reaches the wrong one.
    providers: [ZooKeeperProvider; 2],
    config: Bytes,
}

fn spec() -> LogletSpec {
    let mut spec = LogletSpec::of("zookeeper-loglet");
    spec.options.insert("connect".to_owned(), "ensemble:2181".to_owned());
    spec
}

fn place() -> Place {
    let mut driver = Driver::new(1);
    let env = driver.add_node(NODE, |_| {});
    env.levels().learn(Level::CURRENT).unwrap();
    let (right, wrong) = (MemoryEnsemble::default(), MemoryEnsemble::default());
    let providers = [&right, &wrong].map(|ensemble| {
        let session = ensemble.session(env.clone(), Duration::from_micros(300));
        ZooKeeperProvider::over(env.clone(), ZooKeeperOptions::default(), move |_| session.clone())
    });
    let planner = providers[0].clone();
    let config = driver.block_on(NODE, async move { planner.plan(&spec(), None).await }).unwrap();
    Place { driver, right, wrong, providers, config }
}

fn batch() -> Batch {
    let op = OpId { client: ClientId(1), seq: 1 };
    Batch::of([Entry { op, payload: Bytes::from_static(b"x") }])
}

/// Appends through both nodes; what the one with the wrong ensemble got.
fn append_through_both() -> (Result<(), AppendError>, Place) {
    let mut place = place();
    let [right, wrong] = [0, 1].map(|at| place.providers[at].open(ID, &place.config).unwrap());
    let done = right.append(batch());
    assert!(place.driver.block_on(NODE, done).unwrap().is_ok());
    let done = wrong.append(batch());
    let done = place.driver.block_on(NODE, done).unwrap();
    (done.map(|_| ()), place)
}

#[test]
fn an_ensemble_that_never_had_the_loglet_gets_none() {
    let (done, mut place) = append_through_both();
    assert_eq!(done, Err(AppendError::NotAppended(Unavailability::StorageFailed)));
    let failed = LogletError::Unavailable(Unavailability::StorageFailed);
    let handle: Arc<_> = place.providers[1].open(ID, &place.config).unwrap();
    let tail = handle.clone();
    assert_eq!(place.driver.block_on(NODE, async move { tail.check_tail().await }), Err(failed.clone()));
    assert_eq!(place.driver.block_on(NODE, async move { handle.seal().await }), Err(failed.clone()));
    let (provider, config) = (place.providers[1].clone(), place.config.clone());
    let deleted = place.driver.block_on(NODE, async move { provider.delete(ID, &config).await });
    assert_eq!(deleted, Err(failed));
    assert_eq!(place.wrong.paths(), Vec::<String>::new(), "nothing was written there");
    assert!(place.right.paths().iter().any(|path| path.ends_with("/0000000000/0000000000")));
}

#[test]
fn the_next_loglet_is_not_planned_there_either() {
    let mut place = place();
    let (provider, config) = (place.providers[1].clone(), place.config.clone());
    let planned = place.driver.block_on(NODE, async move { provider.plan(&spec(), Some(&config)).await });
    let Err(PlanError::Invalid { what, allowed }) = planned else { panic!("{planned:?}") };
    assert!(what.contains("connect") && allowed.contains("another one"), "{what}: {allowed}");
    assert_eq!(place.wrong.paths(), Vec::<String>::new(), "nothing was written there");
    let (provider, config) = (place.providers[0].clone(), place.config.clone());
    let planned = place.driver.block_on(NODE, async move { provider.plan(&spec(), Some(&config)).await });
    assert_eq!(planned, Ok(place.config));
}

#[test]
fn a_loglet_that_is_created_anywhere_is_found() {
    set_mutant(mutants::ZOOKEEPER_CREATES_ANYWHERE);
    let (done, _) = append_through_both();
    set_mutant(Mutant::NONE);
    assert_eq!(done, Ok(()), "the bug shows: two logs under one name");
}

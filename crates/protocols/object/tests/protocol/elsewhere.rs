//! Another store at the URL of a log's: it answers, and must not be taken for the right one.

use atoll_contract::conformance::Driver;
use atoll_contract::{LogletProvider, LogletSpec, PlanError};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Level, NodeId};
use atoll_object::testing::Memory;
use atoll_object::{ObjectOptions, ObjectProvider, mutants};
use bytes::Bytes;

const NODE: NodeId = NodeId(1);

/// Plans a Loglet in one store, and the next one at the same URL where another store is. What came of the second one.
fn plan_in_two_stores() -> Result<Bytes, PlanError> {
    let mut driver = Driver::new(1);
    let env = driver.add_node(NODE, |_| {});
    env.levels().learn(Level::CURRENT).unwrap();
    let [right, wrong] = [Memory::default(), Memory::default()]
        .map(|memory| ObjectProvider::with_store(env.clone(), ObjectOptions::default(), memory.of(&env)));
    let spec = || {
        let mut spec = LogletSpec::of("object");
        spec.options.insert("url".to_owned(), "s3://bucket/reef".to_owned());
        spec
    };
    driver.block_on(NODE, async move {
        let first = right.plan(&spec(), None).await.unwrap();
        assert_eq!(right.plan(&spec(), Some(&first)).await, Ok(first.clone()), "it is there");
        wrong.plan(&spec(), Some(&first)).await
    })
}

#[test]
fn a_store_without_what_the_log_has_there_is_refused() {
    let planned = plan_in_two_stores();
    let Err(PlanError::Invalid { what, allowed }) = planned else { panic!("{planned:?}") };
    assert!(what.contains("object store") && allowed.contains("has there already"), "{what}: {allowed}");
}

#[test]
fn a_plan_that_marks_any_store_is_found() {
    set_mutant(mutants::OBJECT_MARKS_ANY_STORE);
    let planned = plan_in_two_stores();
    set_mutant(Mutant::NONE);
    assert!(planned.is_ok(), "the bug shows: the wrong store counts as the right one from now on");
}

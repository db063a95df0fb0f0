use std::collections::BTreeMap;

use atoll_sim::coverage::{all, missing};

#[test]
fn a_run_that_reached_nothing_lacks_everything_and_one_that_reached_all_lacks_nothing() {
    assert_eq!(missing(&BTreeMap::new()).len(), all().len());
    let reached: BTreeMap<&'static str, u64> =
        all().iter().flat_map(|l| l.marks.iter().map(|m| (*m, 1))).collect();
    assert!(missing(&reached).is_empty());
    let mut one_less = reached.clone();
    one_less.remove("sim.rule_k");
    assert_eq!(missing(&one_less), ["native: rule K with five servers: sim.rule_k"]);
}

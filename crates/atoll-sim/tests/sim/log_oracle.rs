use std::collections::BTreeMap;

use atoll_contract::{ClientId, OpId};
use atoll_sim::oracle::log::LogOracle;

fn op(seq: u64) -> OpId {
    OpId { client: ClientId(7), seq }
}

fn failure_of(f: impl FnOnce(&LogOracle)) -> String {
    let oracle = LogOracle::default();
    for seq in 1..10 {
        oracle.append_begins("a", op(seq), b"x");
    }
    f(&oracle);
    oracle.take_failures().join("; ")
}

#[test]
fn a_correct_history_passes() {
    assert_eq!(
        failure_of(|o| {
            o.append_done("a", op(1), 0);
            o.append_done("a", op(2), 1);
            let asked = o.tail_begins("a");
            o.tail_done("a", asked, 3);
            o.read("a", 0, op(1), b"x");
            o.read("a", 2, op(4), b"x");
            o.whole("a", 0, 3, &[(0, op(1)), (1, op(2)), (2, op(4))].into());
            // Refused once, and sent again.
            o.append_refused("a", op(5));
            o.append_begins("a", op(5), b"x");
            o.append_done("a", op(5), 3);
        }),
        ""
    );
}

#[test]
fn each_kind_of_violation_is_found() {
    assert!(
        failure_of(|o| {
            o.append_done("a", op(2), 5);
            o.append_done("a", op(1), 7);
        })
        .contains("X15")
    );
    assert!(
        failure_of(|o| {
            o.append_done("a", op(1), 0);
            o.append_done("a", op(1), 1);
        })
        .contains("acknowledged twice")
    );
    assert!(
        failure_of(|o| {
            o.append_done("a", op(1), 0);
            o.read("a", 0, op(2), b"x");
        })
        .contains("two values")
    );
    assert!(
        failure_of(|o| {
            o.append_done("a", op(1), 4);
            o.tail_done("a", o.tail_begins("a"), 4);
        })
        .contains("tail behind")
    );
    assert!(
        failure_of(|o| {
            o.append_done("a", op(1), 4);
            o.append_begins("a", op(20), b"x");
            o.append_done("a", op(20), 3);
        })
        .contains("order")
    );
    assert!(
        failure_of(|o| {
            o.read("a", 1, op(1), b"x");
            o.append_done("a", op(1), 0);
        })
        .contains("doubled")
    );
    assert!(failure_of(|o| o.read("a", 1, op(30), b"x")).contains("invented"));
    assert!(failure_of(|o| o.read("a", 1, op(1), b"y")).contains("changed"));
    assert!(failure_of(|o| o.trimmed("a", 1)).contains("trimmed too far"));
    assert!(
        failure_of(|o| {
            o.append_refused("a", op(1));
            o.read("a", 1, op(1), b"x");
        })
        .contains("false refusal")
    );
    assert!(
        failure_of(|o| {
            o.read("a", 1, op(1), b"x");
            o.append_refused("a", op(1));
        })
        .contains("false refusal")
    );
    assert!(
        failure_of(|o| {
            o.append_done("a", op(1), 0);
            o.whole("a", 0, 1, &BTreeMap::new());
        })
        .contains("lost")
    );
}

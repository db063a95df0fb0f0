use atoll_contract::{Nonce, Version, Versioned, Written};
use atoll_sim::oracle::register::RegisterOracle;
use bytes::Bytes;

fn versioned(version: u64, nonce: u128) -> Versioned {
    Versioned { version: Version(version), value: Bytes::from_static(b"v"), nonce: Nonce(nonce) }
}

fn failure_of(f: impl FnOnce(&RegisterOracle)) -> String {
    let oracle = RegisterOracle::default();
    f(&oracle);
    oracle.take_failures().join("; ")
}

#[test]
fn a_correct_history_passes() {
    assert_eq!(
        failure_of(|o| {
            let a = o.write_begins("r", Nonce(1), Version(0), b"v");
            let b = o.write_begins("r", Nonce(2), Version(0), b"v");
            o.write_done("r", a, Nonce(1), &Written::Yes(Version(1)));
            o.write_done("r", b, Nonce(2), &Written::Conflict(versioned(1, 1)));
            let r = o.read_begins("r");
            o.read_done("r", r, &versioned(1, 1));
        }),
        ""
    );
}

#[test]
fn each_kind_of_violation_is_found() {
    assert!(
        failure_of(|o| {
            let a = o.write_begins("r", Nonce(1), Version(0), b"v");
            let b = o.write_begins("r", Nonce(2), Version(0), b"v");
            o.write_done("r", a, Nonce(1), &Written::Yes(Version(1)));
            o.write_done("r", b, Nonce(2), &Written::Yes(Version(1)));
        })
        .contains("lost update")
    );
    assert!(
        failure_of(|o| {
            let a = o.write_begins("r", Nonce(1), Version(0), b"v");
            o.write_done("r", a, Nonce(1), &Written::Yes(Version(1)));
            let r = o.read_begins("r");
            o.read_done("r", r, &versioned(0, 0));
        })
        .contains("stale read")
    );
    assert!(
        failure_of(|o| {
            let r = o.read_begins("r");
            o.read_done("r", r, &versioned(3, 9));
        })
        .contains("invented")
    );
    assert!(
        failure_of(|o| {
            o.write_begins("r", Nonce(1), Version(0), b"v");
            o.write_refused("r", Nonce(1));
            let r = o.read_begins("r");
            o.read_done("r", r, &versioned(1, 1));
        })
        .contains("outcome")
    );
}

//! The part of the suite for keyspaces that checks leases: fencing numbers, refusals, expiry. It needs nothing but the writes of an engine.

use std::time::Duration;

use bytes::Bytes;

use super::keyspace::KeyspaceHarness;
use crate::entry::{ClientId, OpId};
use crate::keyspace::{Lease, LeaseError, Leases};

const KEY: Bytes = Bytes::from_static(b"lease");

fn op(seq: u64) -> OpId {
    OpId { client: ClientId(81), seq }
}

fn owner(name: &'static str, for_ms: u64) -> (Bytes, u64) {
    (Bytes::from_static(name.as_bytes()), for_ms)
}

/// Repeats a request until the keyspace answers.
macro_rules! settled {
    ($leases:expr, $method:ident ( $($argument:expr),* )) => {
        loop {
            match $leases.$method($($argument),*).await {
                Err(LeaseError::Keys(_)) => $leases.pause(Duration::from_millis(5)).await,
                other => break other,
            }
        }
    };
}

/// Checks that a lease has one holder, that fencing numbers rise with every grant, and that a lease that nobody holds is refused by name.
pub fn leases_have_one_holder(h: &mut dyn KeyspaceHarness) {
    let nodes = h.clients();
    let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
    let (a, b) = (leases(h, first), leases(h, last));
    h.driver().block_on(first, async move {
        let none = Duration::ZERO;
        for missing in [
            settled!(a, renew(op(1), KEY, 1, 1_000)).err(),
            settled!(a, release(KEY, 1, false)).err(),
            settled!(a, holder(KEY)).err(),
        ] {
            assert_eq!(missing, Some(LeaseError::NobodyHolds));
        }
        let one = settled!(a, acquire(op(2), KEY, owner("a", 60_000), none)).expect("a free lease");
        assert_eq!(
            settled!(a, acquire(op(2), KEY, owner("a", 60_000), none)),
            Ok(one),
            "a repeat finds the grant"
        );
        let holder = settled!(b, holder(KEY)).expect("a holds it");
        assert_eq!((&holder.owner[..], holder.lease, holder.expired), (&b"a"[..], one, false));
        assert_eq!(
            settled!(b, acquire(op(3), KEY, owner("b", 60_000), none)),
            Err(LeaseError::Taken(holder.clone()))
        );
        assert_eq!(
            settled!(a, acquire(op(4), KEY, owner("a", 60_000), none)),
            Err(LeaseError::Taken(holder.clone())),
            "the name is not the holder"
        );
        let renewed = settled!(b, renew(op(5), KEY, one.fencing, 30_000));
        assert_eq!(renewed, Ok(Lease { fencing: one.fencing, for_ms: 30_000 }), "a renewal keeps the number");
        let wrong = settled!(b, release(KEY, one.fencing + 1, false));
        assert!(matches!(wrong, Err(LeaseError::NotHolder { .. })), "{wrong:?}");
        assert_eq!(settled!(b, release(KEY, one.fencing, true)), Ok(()));
        let again = settled!(a, release(KEY, one.fencing, false));
        assert_eq!(again, Err(LeaseError::NobodyHolds));
        let two = settled!(b, acquire(op(6), KEY, owner("b", 60_000), none)).expect("it is free");
        assert!(two.fencing > one.fencing);
        assert_eq!(settled!(b, release(KEY, two.fencing, false)), Ok(()));
    });
}

/// Checks that a lease that is not renewed goes to a contender, but not too early, and that one that is renewed does not.
pub fn leases_expire_for_contenders(h: &mut dyn KeyspaceHarness) {
    let nodes = h.clients();
    let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
    let (a, b) = (leases(h, first), leases(h, last));
    let (env, other) = (h.driver().env(first), h.driver().env(last));
    h.driver().block_on(first, async move {
        let for_ms = 1_000;
        let start = env.now();
        let none = Duration::ZERO;
        let one = settled!(a, acquire(op(11), KEY, owner("a", for_ms), none)).expect("a free lease");
        let contender = other.launch("contender", async move {
            let wait = Duration::from_secs(30);
            settled!(b, acquire(op(12), KEY, owner("b", for_ms), wait))
        });
        for seq in 0..4 {
            env.sleep(Duration::from_millis(for_ms / 2)).await;
            settled!(a, renew(op(20 + seq), KEY, one.fencing, for_ms))
                .expect("a renewed lease does not expire");
        }
        let renewed = env.now();
        assert!(renewed.since(start) >= Duration::from_millis(2 * for_ms));
        let two = contender.await.expect("the contender ends").expect("the lease expires at last");
        assert!(two.fencing > one.fencing);
        // The last renewal was sent less than a few milliseconds before.
        assert!(env.now().since(renewed) >= Duration::from_millis(for_ms * 9 / 10), "too early");
        let lost = settled!(a, renew(op(30), KEY, one.fencing, for_ms));
        assert!(
            matches!(&lost, Err(LeaseError::NotHolder { holder, .. }) if holder.owner == "b"),
            "{lost:?}"
        );
        settled!(a, release(KEY, two.fencing, true)).expect("released");
    });
}

fn leases(h: &mut dyn KeyspaceHarness, node: atoll_core::NodeId) -> Leases {
    let keyspace = h.keyspace(node);
    Leases::new(h.driver().env(node), keyspace)
}

//! The part of the suite for keyspaces that checks transactions, if the engine has them.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Env;
use bytes::Bytes;

use super::keyspace::KeyspaceHarness;
use crate::entry::{ClientId, OpId};
use crate::keyspace::{
    Ability, Change, Changed, Floor, Guard, Held, KeyVersion, Keyspace, KeyspaceError, Transacted, TxnPart,
};

fn part(key: &'static str, guard: Guard, change: Option<Change>) -> TxnPart {
    TxnPart::new(Bytes::from_static(key.as_bytes()), guard, change)
}

#[allow(clippy::unnecessary_wraps)] // It stands for the change of a part.
fn put(value: &'static str) -> Option<Change> {
    Some(Change::Put(Bytes::from_static(value.as_bytes())))
}

/// Sends a transaction until there is an answer.
async fn settle(env: &Env, keyspace: &Arc<dyn Keyspace>, seq: u64, parts: &[TxnPart]) -> Transacted {
    let op = OpId { client: ClientId(91), seq };
    let mut repeat = false;
    loop {
        match keyspace.transact(op, repeat, parts.to_vec()).await {
            Ok(done) => return done,
            Err(KeyspaceError::Unknown { .. }) => repeat = true,
            Err(KeyspaceError::NotDone(_)) => {}
            Err(e) => panic!("a transaction is decided at last: {e}"),
        }
        env.sleep(Duration::from_millis(5)).await;
    }
}

async fn get(env: &Env, keyspace: &Arc<dyn Keyspace>, key: &'static str) -> Option<Held> {
    loop {
        match keyspace.get(Bytes::from_static(key.as_bytes())).await {
            Ok(held) => return held,
            Err(_) => env.sleep(Duration::from_millis(5)).await,
        }
    }
}

fn version_of(changed: &Changed) -> KeyVersion {
    match changed {
        Changed::Done(version) => *version,
        Changed::Not(held) => panic!("nothing was changed: {held:?}"),
    }
}

/// Checks that a transaction changes all of its keys or none, shows what it reads, is done once, and keeps to its limits.
pub fn transactions_are_whole(h: &mut dyn KeyspaceHarness) {
    let (first, last) = (h.clients()[0], h.clients()[h.clients().len() - 1]);
    let (a, b) = (h.keyspace(first), h.keyspace(last));
    if !a.abilities().contains(&Ability::Transactions) {
        return;
    }
    let env = h.driver().env(first);
    h.driver().block_on(first, async move {
        let begin = [part("tb", Guard::Absent, put("1")), part("ta", Guard::Absent, put("2"))];
        let Transacted::Done(made) = settle(&env, &a, 1, &begin).await else { panic!("both are absent") };
        let b_now = get(&env, &b, "tb").await;
        assert_eq!(b_now, Some(Held { version: version_of(&made[0]), value: Bytes::from_static(b"1") }));
        // A repeat finds out that it was done, and so does a first attempt that arrives after its repeat.
        for repeat in [true, false] {
            let op = OpId { client: ClientId(91), seq: 1 };
            assert_eq!(b.transact(op, repeat, begin.to_vec()).await, Ok(Transacted::Done(made.clone())));
        }
        let Transacted::Not(held) = settle(&env, &a, 2, &begin).await else { panic!("both are there") };
        assert_eq!(held[0], b_now);
        // One condition that does not hold stops everything, also that of a key that is only read.
        let wrong = [part("tb", Guard::Always, put("3")), part("ta", Guard::Value("9".into()), None)];
        assert!(matches!(settle(&env, &a, 3, &wrong).await, Transacted::Not(_)));
        assert_eq!(get(&env, &a, "tb").await, b_now);
        let nothing = [part("tc", Guard::Always, Some(Change::Delete)), part("tb", Guard::Always, put("3"))];
        assert!(matches!(settle(&env, &a, 4, &nothing).await, Transacted::Not(_)), "nothing to delete");
    });
    let (env, a) = (h.driver().env(first), h.keyspace(first));
    h.driver().block_on(first, async move {
        let a_now = get(&env, &a, "ta").await;
        let change = [
            part("ta", Guard::Value("2".into()), None),
            part("tb", Guard::Present, Some(Change::Delete)),
            part("tc", Guard::Absent, put("4")),
        ];
        let Transacted::Done(made) = settle(&env, &a, 5, &change).await else { panic!("everything holds") };
        assert_eq!(made[0], Changed::Not(a_now), "what was only read");
        assert!(matches!(made[1], Changed::Done(_)));
        assert_eq!(get(&env, &a, "tb").await, None);
        let read = [part("tc", Guard::Always, None), part("tb", Guard::Always, None)];
        let Transacted::Done(read) = settle(&env, &a, 6, &read).await else { panic!("no condition") };
        let c_now = Some(Held { version: version_of(&made[2]), value: Bytes::from_static(b"4") });
        assert_eq!(read, [Changed::Not(c_now), Changed::Not(None)]);
        // The version of a condition has passed, so that no attempt can have succeeded since.
        let old = TxnPart { floor: Floor(0), ..part("tc", Guard::Version(KeyVersion(1)), put("5")) };
        assert!(matches!(settle(&env, &a, 7, &[old]).await, Transacted::Not(_)));
        limits(&a).await;
    });
}

async fn limits(keyspace: &Arc<dyn Keyspace>) {
    let op = |seq| OpId { client: ClientId(92), seq };
    let limits = keyspace.transaction_limits().expect("the engine has transactions");
    let read = |n: usize| TxnPart::new(Bytes::from(format!("t{n}")), Guard::Always, None);
    let most = limits.keys;
    assert_eq!(keyspace.transact(op(1), false, Vec::new()).await, Err(KeyspaceError::NoKeys));
    assert_eq!(
        keyspace.transact(op(2), false, (0..=most).map(read).collect()).await,
        Err(KeyspaceError::TooManyKeys { keys: most + 1, most })
    );
    let key = Bytes::from_static(b"t1");
    assert_eq!(
        keyspace.transact(op(3), false, vec![read(1), read(1)]).await,
        Err(KeyspaceError::KeyTwice { key })
    );
    let value = keyspace.limits().value_bytes;
    let long = |n: usize| TxnPart { change: Some(Change::Put(Bytes::from(vec![0; value]))), ..read(n) };
    let too_long = keyspace.transact(op(4), false, (0..limits.bytes / value + 1).map(long).collect()).await;
    let wrong =
        matches!(too_long, Err(KeyspaceError::TooManyBytes { .. } | KeyspaceError::TooManyKeys { .. }));
    assert!(wrong, "{too_long:?}");
}

//! Watchers see versions that never go back, and never miss the last one, whatever happens to acceptors and messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::world::{Faults, World};
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Durability, Guard, Held, KeyVersion, Keyspace, KeyspaceError,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};

fn op(seq: u64) -> OpId {
    OpId { client: ClientId(9), seq }
}

/// Writes until it is known to be done.
async fn write(keyspace: &dyn Keyspace, seq: u64, change: Change) -> KeyVersion {
    let mut attempt = Attempt::First;
    loop {
        match keyspace.write(op(seq), attempt, "k".into(), Guard::Always, change.clone()).await {
            Ok(Changed::Done(version)) => return version,
            Ok(Changed::Not(held)) => panic!("{held:?}"),
            Err(KeyspaceError::Unknown { floor, .. }) => attempt = Attempt::Again(floor),
            Err(KeyspaceError::NotDone(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

fn watch(world: &mut World, node: u32) -> Arc<Mutex<Vec<Option<Held>>>> {
    let seen: Arc<Mutex<Vec<Option<Held>>>> = Arc::default();
    let (space, all) = (world.space(node), seen.clone());
    world.env(node).spawn(
        "watch",
        Box::pin(async move {
            let mut version = KeyVersion(0);
            loop {
                if let Ok(held) = space.wait_change("k".into(), version).await {
                    version = held.as_ref().map_or(KeyVersion(0), |held| held.version);
                    all.lock().unwrap().push(held);
                }
            }
        }),
    );
    seen
}

#[test]
fn a_watcher_never_goes_back_and_sees_the_last_version() {
    set_mutant(Mutant::NONE);
    for seed in 0..30 {
        let mut world = World::new(seed, 5, 3, Durability::Disk);
        world.options.reply_timeout = Duration::from_millis(40);
        world.faults = Faults::CHAOS;
        world.start_all();
        let seen = watch(&mut world, 5);
        let (space, env, last) = (world.space(4), world.env(4), Arc::new(Mutex::new(None)));
        let told = last.clone();
        world.env(4).spawn(
            "write",
            Box::pin(async move {
                for seq in 1..=20 {
                    let version = write(&space, seq, Change::Put(seq.to_string().into())).await;
                    env.sleep(env.jitter(Duration::from_millis(8))).await;
                    if seq == 20 {
                        *told.lock().unwrap() = Some(version);
                    }
                }
            }),
        );
        for n in [1, 2, 3, 1] {
            world.run_for(Duration::from_millis(60));
            world.crash(NodeId(n));
            world.run_for(Duration::from_millis(10));
            world.start(NodeId(n));
        }
        world.run_for(Duration::from_secs(4));
        world.faults = Faults::NONE;
        world.run_for(Duration::from_secs(16));
        let seen = seen.lock().unwrap();
        let versions: Vec<u64> = seen.iter().flatten().map(|held| held.version.0).collect();
        assert!(versions.is_sorted(), "seed {seed}: {versions:?}");
        let last = last.lock().unwrap().expect("all writes are done");
        assert_eq!(versions.last(), Some(&last.0), "seed {seed}: the last version was missed");
        assert_eq!(world.verdict.failures, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_watcher_is_told_at_once_and_returns_when_its_time_is_over() {
    set_mutant(Mutant::NONE);
    let mut world = World::new(1, 5, 3, Durability::Disk);
    world.start_all();
    let space = world.space(4);
    let one = world.run_on(4, async move { write(&space, 1, Change::Put("one".into())).await }).unwrap();
    let (space, start) = (world.space(5), world.now);
    let held = world.run_on(5, async move { space.wait_change("k".into(), one).await.unwrap() }).unwrap();
    assert_eq!(held.map(|held| held.version), Some(one), "nothing has changed");
    assert!(world.now.since(start) >= Duration::from_secs(10));
    let seen = watch(&mut world, 5);
    world.run_for(Duration::from_millis(100));
    let space = world.space(4);
    world.run_on(4, async move { write(&space, 2, Change::Delete).await }).unwrap();
    world.run_for(Duration::from_millis(20));
    let first = Held { version: one, value: "one".into() };
    assert_eq!(*seen.lock().unwrap(), [Some(first), None]);
    assert!(world.marks.contains_key("in-place.acceptor.notifies"));
}

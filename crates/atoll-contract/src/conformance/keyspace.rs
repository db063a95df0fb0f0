//! The suite that every [`Keyspace`] must pass: values and versions, conditions, repeats that take effect once, listings in order, limits,
//! refusals by name, and linearizable keys under the faults of the harness.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_core::sync::lock;
use atoll_core::{Env, NodeId, Tick, Ticket};

use super::driver::Driver;
use super::history::Dice;
use super::{leases, transactions};
use crate::entry::{ClientId, OpId};
use crate::keyspace::{
    Ability, Attempt, Change, Changed, Floor, Guard, Happened, Held, Judge, KeyVersion, Keyspace,
    KeyspaceError, ListFrom, Told,
};

/// Virtual time within which every operation must end once the faults are over.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interface through which the suite drives an implementation.
pub trait KeyspaceHarness {
    /// Returns the driver of the nodes.
    fn driver(&mut self) -> &mut Driver;

    /// Returns the nodes that clients run on.
    fn clients(&self) -> Vec<NodeId>;

    /// Returns the keyspace as a node sees it.
    fn keyspace(&mut self, client: NodeId) -> Arc<dyn Keyspace>;

    /// Called from time to time during a random test. May start or end a fault.
    fn disturb(&mut self, _random: u64) {}

    /// Ends all faults.
    fn heal(&mut self) {}
}

/// Runs the whole suite, with these seeds for the random part.
pub fn all(h: &mut dyn KeyspaceHarness, seeds: std::ops::Range<u64>) {
    values_and_versions(h);
    conditions(h);
    repeats_take_effect_once(h);
    keys_are_listed_in_order(h);
    limits_are_refused(h);
    what_an_engine_lacks_is_refused_by_name(h);
    watches_see_the_last_change(h);
    leases::leases_have_one_holder(h);
    leases::leases_expire_for_contenders(h);
    transactions::transactions_are_whole(h);
    for seed in seeds {
        random(h, seed);
    }
}

/// A client of the suite: retries until an operation has an answer.
#[derive(Clone)]
struct Client {
    env: Env,
    keyspace: Arc<dyn Keyspace>,
    id: u64,
}

fn client(h: &mut dyn KeyspaceHarness, node: NodeId, id: u64) -> Client {
    Client { keyspace: h.keyspace(node), env: h.driver().env(node), id }
}

fn bytes(text: impl std::fmt::Display) -> Bytes {
    Bytes::from(text.to_string())
}

impl Client {
    async fn get(&self, key: &str) -> Option<Held> {
        let until = self.env.now().after(PATIENCE);
        loop {
            match self.keyspace.get(bytes(key)).await {
                Ok(held) => return held,
                Err(KeyspaceError::NotDone(_)) if self.env.now() < until => {
                    self.env.sleep(Duration::from_millis(5)).await;
                }
                Err(e) => panic!("a read fails only as not done, and not permanently: {e}"),
            }
        }
    }

    async fn write(&self, seq: u64, key: &str, guard: Guard, change: Change) -> Changed {
        let (until, op) = (self.env.now().after(PATIENCE), OpId { client: ClientId(self.id), seq });
        let mut attempt = Attempt::First;
        loop {
            let wrote = self.keyspace.write(op, attempt, bytes(key), guard.clone(), change.clone()).await;
            match wrote {
                Ok(changed) => return changed,
                Err(KeyspaceError::NotDone(_)) if self.env.now() < until => {}
                Err(KeyspaceError::Unknown { floor, .. }) if self.env.now() < until => {
                    attempt = Attempt::Again(floor);
                }
                Err(e) => panic!("a write is decided at last: {e}"),
            }
            self.env.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn put(&self, seq: u64, key: &str, value: &str) -> KeyVersion {
        match self.write(seq, key, Guard::Always, Change::Put(bytes(value))).await {
            Changed::Done(version) => version,
            Changed::Not(held) => panic!("a put without a condition was refused over {held:?}"),
        }
    }
}

fn held(version: KeyVersion, value: &str) -> Option<Held> {
    Some(Held { version, value: bytes(value) })
}

/// Checks that values come back through every node, that versions rise, and that none is used again after a deletion.
pub fn values_and_versions(h: &mut dyn KeyspaceHarness) {
    let nodes = h.clients();
    let (a, b) = (client(h, nodes[0], 11), client(h, nodes[nodes.len() - 1], 12));
    let last = h.driver().block_on(nodes[0], async move {
        assert_eq!(a.get("v").await, None);
        let one = a.put(1, "v", "one").await;
        assert!(one > KeyVersion(0));
        assert_eq!(a.get("v").await, held(one, "one"));
        let two = a.put(2, "v", "two").await;
        assert!(two > one);
        let gone = a.write(3, "v", Guard::Always, Change::Delete).await;
        assert!(matches!(gone, Changed::Done(v) if v > two), "{gone:?}");
        assert_eq!(a.get("v").await, None);
        assert_eq!(a.write(4, "v", Guard::Always, Change::Delete).await, Changed::Not(None));
        let empty = a.put(5, "v", "").await;
        assert!(empty > two, "a version is never used again");
        empty
    });
    h.driver().block_on(nodes[nodes.len() - 1], async move {
        assert_eq!(b.get("v").await, held(last, ""), "linearizable");
        let many = loop {
            match b.keyspace.get_many(vec![bytes("v"), bytes("never"), bytes("v")]).await {
                Ok(many) => break many,
                Err(_) => b.env.sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(many, [held(last, ""), None, held(last, "")]);
    });
}

/// Checks every condition, for puts and deletions.
pub fn conditions(h: &mut dyn KeyspaceHarness) {
    let node = h.clients()[0];
    let c = client(h, node, 21);
    h.driver().block_on(node, async move {
        let put = |value: &str| Change::Put(bytes(value));
        assert_eq!(c.write(1, "c", Guard::Present, put("x")).await, Changed::Not(None));
        assert_eq!(c.write(2, "c", Guard::Value(bytes("")), put("x")).await, Changed::Not(None));
        let Changed::Done(one) = c.write(3, "c", Guard::Absent, put("one")).await else { panic!("absent") };
        assert_eq!(c.write(4, "c", Guard::Absent, put("x")).await, Changed::Not(held(one, "one")));
        let other = Guard::Version(KeyVersion(one.0 + 1));
        assert_eq!(c.write(5, "c", other, put("x")).await, Changed::Not(held(one, "one")));
        let Changed::Done(two) = c.write(6, "c", Guard::Version(one), put("two")).await else {
            panic!("version")
        };
        assert_eq!(
            c.write(7, "c", Guard::Value(bytes("one")), Change::Delete).await,
            Changed::Not(held(two, "two"))
        );
        let Changed::Done(three) = c.write(8, "c", Guard::Present, put("three")).await else {
            panic!("present")
        };
        assert_eq!(c.get("c").await, held(three, "three"), "what was refused changed nothing");
        let gone = c.write(9, "c", Guard::Value(bytes("three")), Change::Delete).await;
        assert!(matches!(gone, Changed::Done(_)), "{gone:?}");
        assert_eq!(c.get("c").await, None);
    });
}

/// Checks that a repeated write gets the first answer and is not done again, through any node.
pub fn repeats_take_effect_once(h: &mut dyn KeyspaceHarness) {
    let nodes = h.clients();
    let first = client(h, nodes[0], 31);
    let version = h.driver().block_on(nodes[0], async move {
        let version = first.put(1, "r", "one").await;
        first.put(2, "r", "two").await;
        version
    });
    for node in [nodes[0], nodes[nodes.len() - 1]] {
        let c = client(h, node, 31);
        h.driver().block_on(node, async move {
            let again = loop {
                let op = OpId { client: ClientId(31), seq: 1 };
                let (attempt, put) = (Attempt::Again(Floor(0)), Change::Put(bytes("one")));
                match c.keyspace.write(op, attempt, bytes("r"), Guard::Always, put).await {
                    Ok(changed) => break changed,
                    Err(_) => c.env.sleep(Duration::from_millis(5)).await,
                }
            };
            assert_eq!(again, Changed::Done(version), "the first answer");
            assert_eq!(c.get("r").await.map(|held| held.value), Some(bytes("two")), "done once");
        });
    }
}

/// Checks that all keys are listed in order, by prefix and page by page.
pub fn keys_are_listed_in_order(h: &mut dyn KeyspaceHarness) {
    let node = h.clients()[0];
    let c = client(h, node, 41);
    h.driver().block_on(node, async move {
        let mut wanted = Vec::new();
        for n in 0..23 {
            let key = format!("list/{:02}", (n * 7) % 23);
            wanted.push((bytes(&key), c.put(n + 1, &key, "x").await));
        }
        wanted.sort();
        c.put(50, "lisu", "x").await;
        c.put(51, "list/00", "y").await;
        wanted[0].1 = c.get("list/00").await.map_or(KeyVersion(0), |held| held.version);
        for limit in [1, 5, 100] {
            let mut got = Vec::new();
            let mut after = None;
            loop {
                let from = ListFrom { prefix: bytes("list/"), after: after.clone(), limit };
                let Ok(page) = c.keyspace.list(from).await else {
                    c.env.sleep(Duration::from_millis(5)).await;
                    continue;
                };
                assert!(page.keys.len() <= limit);
                got.extend(page.keys);
                after = page.upto;
                if !page.more {
                    break;
                }
            }
            assert_eq!(got, wanted, "pages of {limit}");
        }
    });
}

/// Checks that what is beyond a limit is refused, and what is at a limit is not.
pub fn limits_are_refused(h: &mut dyn KeyspaceHarness) {
    let node = h.clients()[0];
    let c = client(h, node, 51);
    h.driver().block_on(node, async move {
        let limits = c.keyspace.limits();
        let write = async |seq, key: Bytes, value: Bytes| {
            let op = OpId { client: ClientId(51), seq };
            c.keyspace.write(op, Attempt::First, key, Guard::Always, Change::Put(value)).await
        };
        let (key, value) = (limits.key_bytes, limits.value_bytes);
        let long = |n: usize| Bytes::from(vec![b'x'; n]);
        assert_eq!(
            write(1, Bytes::new(), long(1)).await,
            Err(KeyspaceError::InvalidKey { bytes: 0, most: key })
        );
        let wrong_key = KeyspaceError::InvalidKey { bytes: key + 1, most: key };
        assert_eq!(write(2, long(key + 1), long(1)).await, Err(wrong_key.clone()));
        assert_eq!(c.keyspace.get(long(key + 1)).await, Err(wrong_key));
        let wrong_value = KeyspaceError::ValueTooLong { bytes: value + 1, most: value };
        assert_eq!(write(3, long(1), long(value + 1)).await, Err(wrong_value));
        let keys = limits.keys;
        assert_eq!(
            c.keyspace.get_many(vec![long(1); keys + 1]).await,
            Err(KeyspaceError::TooManyKeys { keys: keys + 1, most: keys })
        );
        let longest = String::from_utf8_lossy(&long(key)).into_owned();
        c.put(4, &longest, &String::from_utf8_lossy(&long(value))).await;
        assert_eq!(c.get(&longest).await.map(|held| held.value.len()), Some(value));
        c.write(5, &longest, Guard::Always, Change::Delete).await;
    });
}

/// Checks that an engine refuses by name what it does not offer.
pub fn what_an_engine_lacks_is_refused_by_name(h: &mut dyn KeyspaceHarness) {
    let node = h.clients()[0];
    let c = client(h, node, 61);
    h.driver().block_on(node, async move {
        let (keyspace, op) = (&c.keyspace, OpId { client: ClientId(61), seq: 1 });
        let refusal = |what| KeyspaceError::Unsupported { engine: keyspace.engine(), what };
        for what in Ability::ALL {
            if keyspace.abilities().contains(&what) {
                continue;
            }
            let got = match what {
                Ability::Snapshots => continue,
                Ability::Watches => keyspace.wait_change(bytes("k"), KeyVersion(0)).await.err(),
                Ability::Transactions => keyspace.transact(op, false, Vec::new()).await.err(),
            };
            assert_eq!(got, Some(refusal(what)));
            assert_eq!(refusal(what).happened(), Happened::No);
        }
    });
}

/// Checks that a watch sees each change that is the last one, also that of a key that does not exist yet, and never goes back.
pub fn watches_see_the_last_change(h: &mut dyn KeyspaceHarness) {
    let (first, last) = (h.clients()[0], h.clients()[h.clients().len() - 1]);
    let (watcher, writer) = (client(h, first, 71), client(h, last, 72));
    let env = writer.env.clone();
    h.driver().block_on(first, async move {
        if !watcher.keyspace.abilities().contains(&Ability::Watches) {
            return;
        }
        let watching = watcher.env.launch("watcher", async move {
            let (mut seen, mut shown) = (KeyVersion(0), Vec::new());
            loop {
                // A failed wait is repeated with the same version.
                let Ok(held) = watcher.keyspace.wait_change(bytes("watched"), seen).await else { continue };
                let Some(held) = held else { continue };
                if held.version != seen {
                    assert!(held.version > seen, "{held:?} after {seen}");
                    seen = held.version;
                    shown.push(held.value.clone());
                }
                if held.value == bytes("end") {
                    return shown;
                }
            }
        });
        let writing = env.launch("writer", async move {
            for (seq, value) in ["a", "b", "c", "end"].into_iter().enumerate() {
                writer.put(seq as u64 + 1, "watched", value).await;
            }
        });
        writing.await.expect("the writer ends");
        let shown = watching.await.expect("the watcher ends");
        assert_eq!(shown.last(), Some(&bytes("end")));
    });
}

/// One client of the random test.
async fn load(c: Client, judge: Arc<Mutex<Judge>>, keys: Vec<Bytes>, mut dice: Dice, until: Tick) {
    let mut seq = 0;
    let mut last: Option<Held> = None;
    while c.env.now() < until {
        let key = keys[dice.roll(keys.len() as u64) as usize].clone();
        if dice.roll(3) == 0 {
            let asked = lock(&judge).reads(&key);
            if let Ok(held) = c.keyspace.get(key.clone()).await {
                lock(&judge).told(&key, asked, &Told::Read(held.clone()));
                last = held;
            }
        } else {
            seq += 1;
            let op = OpId { client: ClientId(c.id), seq };
            let guard = match (dice.roll(6), &last) {
                (0, _) => Guard::Absent,
                (1, _) => Guard::Present,
                (2, Some(held)) => Guard::Version(held.version),
                (3, Some(held)) => Guard::Value(held.value.clone()),
                _ => Guard::Always,
            };
            let change = match dice.roll(4) {
                0 => Change::Delete,
                _ => Change::Put(bytes(format_args!("{}-{seq}", c.id))),
            };
            let mut attempt = Attempt::First;
            for _ in 0..1 + dice.roll(4) {
                let asked = lock(&judge).writes(&key, op, &guard, &change);
                match c.keyspace.write(op, attempt, key.clone(), guard.clone(), change.clone()).await {
                    Ok(changed) => {
                        lock(&judge).told(&key, asked, &Told::Wrote(op, changed));
                        break;
                    }
                    Err(error) => {
                        let happened = error.happened();
                        lock(&judge).told(&key, asked, &Told::Failed(op, happened));
                        match error {
                            KeyspaceError::Unknown { floor, .. } => attempt = Attempt::Again(floor),
                            _ => break,
                        }
                    }
                }
            }
        }
        c.env.sleep(Duration::from_micros(dice.roll(3000))).await;
    }
}

/// Runs many clients concurrently under the harness's faults, and judges what they saw.
pub fn random(h: &mut dyn KeyspaceHarness, seed: u64) {
    let mut dice = Dice::new(seed);
    let judge = Arc::new(Mutex::new(Judge::new()));
    let keys: Vec<Bytes> = (0..3).map(|n| bytes(format_args!("random/{seed}/{n}"))).collect();
    let until = h.driver().now().after(Duration::from_millis(100 + dice.roll(300)));
    let nodes = h.clients();
    let mut work: Vec<Ticket<()>> = Vec::new();
    for (i, node) in nodes.iter().cycle().take(nodes.len().max(2) * 2).enumerate() {
        let c = client(h, *node, 1_000 + seed * 100 + i as u64);
        let dice = Dice::new(seed * 100 + i as u64);
        let env = c.env.clone();
        work.push(env.launch("conformance.keyspace", load(c, judge.clone(), keys.clone(), dice, until)));
    }
    while h.driver().now() < until {
        let slice = Duration::from_micros(500 + dice.roll(5000));
        h.driver().run_for(slice);
        let random = dice.roll(u64::MAX);
        h.disturb(random);
    }
    h.heal();
    let limit = h.driver().now().after(PATIENCE);
    for mut ticket in work {
        while ticket.try_take().is_none() {
            assert!(h.driver().step(limit), "seed {seed}: an operation never ended after the faults did");
        }
    }
    for node in h.clients() {
        let (c, judge, keys) = (client(h, node, 1), judge.clone(), keys.clone());
        h.driver().block_on(node, async move {
            for key in keys {
                let asked = lock(&judge).reads(&key);
                let held = c.get(&String::from_utf8_lossy(&key)).await;
                lock(&judge).told(&key, asked, &Told::Read(held));
            }
        });
    }
    let failures = lock(&judge).take_failures();
    assert!(failures.is_empty(), "seed {seed}: {failures:?}");
}

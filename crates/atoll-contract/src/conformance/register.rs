//! The suite that every [`Register`] must pass: conditional writes, versions that rise by one, linearizable reads, and nonces by which a
//! writer finds out whether its write happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::{Env, NodeId, Tick, Ticket};

use super::driver::Driver;
use super::history::{Dice, Event, History};
use crate::register::{
    MAX_VALUE_BYTES, Nonce, Register, RegisterError, Registers, Version, Versioned, Written,
};

/// Virtual time within which every operation must end once the faults are over.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interface through which the suite drives an implementation.
pub trait RegisterHarness {
    /// Returns the driver of the nodes.
    fn driver(&mut self) -> &mut Driver;

    /// Returns the nodes that clients run on: at least two, unless the implementation has only one node.
    fn clients(&self) -> Vec<NodeId>;

    /// Returns the registers as a node sees them.
    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers>;

    /// Called from time to time during a random test. May start or end a fault.
    fn disturb(&mut self, _random: u64) {}

    /// Ends all faults.
    fn heal(&mut self) {}
}

/// Runs the whole suite, with these seeds for the random part.
pub fn all(h: &mut dyn RegisterHarness, seeds: std::ops::Range<u64>) {
    versions_rise_by_one(h);
    the_same_mark_answers_as_the_first_time(h);
    names_are_listed(h);
    marks_tell_values_apart(h);
    for seed in seeds {
        random(h, seed);
    }
}

fn value(n: u64) -> Bytes {
    Bytes::from(n.to_string())
}

async fn read(env: &Env, r: &Arc<dyn Register>) -> Versioned {
    let until = env.now().after(PATIENCE);
    loop {
        match r.read().await {
            Ok(v) => return v,
            Err(RegisterError::NotWritten(_)) if env.now() < until => {
                env.sleep(Duration::from_millis(5)).await
            }
            Err(e) => panic!("a read fails only as not done, and not permanently: {e}"),
        }
    }
}

/// Retries a write until its outcome is known.
async fn write(env: &Env, r: &Arc<dyn Register>, expected: u64, n: u64, nonce: u128) -> Written {
    let until = env.now().after(PATIENCE);
    loop {
        match r.write_if(Version(expected), value(n), Nonce(nonce)).await {
            Ok(w) => return w,
            Err(RegisterError::TooLarge(n)) => panic!("{n} bytes are allowed"),
            Err(_) if env.now() < until => env.sleep(Duration::from_millis(5)).await,
            Err(e) => panic!("a write is decided at last: {e}"),
        }
    }
}

/// Checks that the version is 0 at first and that each write raises it by one. A write at another version changes nothing and returns the
/// current value.
pub fn versions_rise_by_one(h: &mut dyn RegisterHarness) {
    let nodes = h.clients();
    let (a, b) = (nodes[0], nodes[nodes.len() - 1]);
    let (ra, rb) = (h.registers(a).register("rise"), h.registers(b).register("rise"));
    let env = h.driver().env(a);
    h.driver().block_on(a, async move {
        assert_eq!(read(&env, &ra).await, Versioned::default(), "never written");
        assert_eq!(write(&env, &ra, 0, 10, 1).await, Written::Yes(Version(1)));
        assert_eq!(write(&env, &ra, 1, 11, 2).await, Written::Yes(Version(2)));
        let too_long = Bytes::from(vec![0; MAX_VALUE_BYTES + 1]);
        let refused = ra.write_if(Version(2), too_long, Nonce(3)).await;
        assert_eq!(refused, Err(RegisterError::TooLarge(MAX_VALUE_BYTES + 1)));
    });
    let env = h.driver().env(b);
    h.driver().block_on(b, async move {
        let now = Versioned { version: Version(2), value: value(11), nonce: Nonce(2) };
        assert_eq!(read(&env, &rb).await, now, "linearizable");
        assert_eq!(write(&env, &rb, 1, 99, 4).await, Written::Conflict(now.clone()));
        assert_eq!(write(&env, &rb, 7, 99, 5).await, Written::Conflict(now.clone()));
        assert_eq!(read(&env, &rb).await, now, "a conflict changes nothing");
    });
}

/// Checks that a repeated write, recognised by its nonce, gets the first answer and is not applied again, even through another node.
pub fn the_same_mark_answers_as_the_first_time(h: &mut dyn RegisterHarness) {
    let nodes = h.clients();
    for node in [nodes[0], nodes[0], nodes[nodes.len() - 1]] {
        let (r, env) = (h.registers(node).register("mark"), h.driver().env(node));
        h.driver().block_on(node, async move {
            assert_eq!(write(&env, &r, 0, 1, 77).await, Written::Yes(Version(1)));
            assert_eq!(read(&env, &r).await.version, Version(1), "done once");
        });
    }
}

/// Checks that written registers are listed in order, by prefix.
pub fn names_are_listed(h: &mut dyn RegisterHarness) {
    let node = h.clients()[0];
    let (all, env) = (h.registers(node), h.driver().env(node));
    let list = h.driver().block_on(node, async move {
        for name in ["list/b", "list/a", "other/x"] {
            write(&env, &all.register(name), 0, 1, 5).await;
        }
        let _ = read(&env, &all.register("list/never-written")).await;
        loop {
            match all.list("list/").await {
                Ok(listed) => return listed,
                Err(_) => env.sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let names: Vec<&str> = list.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["list/a", "list/b"]);
}

/// Checks that the mark of a listed register changes with each write, and with nothing else.
pub fn marks_tell_values_apart(h: &mut dyn RegisterHarness) {
    let node = h.clients()[0];
    let (all, env) = (h.registers(node), h.driver().env(node));
    h.driver().block_on(node, async move {
        let marks = async || loop {
            let listed = all.list("mark/").await;
            // There may be no mark until all acceptors have the vote.
            match listed.map(|l| l.iter().filter_map(|l| l.mark).collect::<Vec<_>>()) {
                Ok(marks) if marks.len() == 2 => return marks,
                _ => env.sleep(Duration::from_millis(5)).await,
            }
        };
        let [changed, kept] = ["mark/changed", "mark/kept"].map(|name| all.register(name));
        write(&env, &changed, 0, 1, 5).await;
        write(&env, &kept, 0, 1, 6).await;
        let first = marks().await;
        read(&env, &kept).await;
        write(&env, &changed, 1, 1, 7).await;
        let second = marks().await;
        assert!(first[0] != second[0] && first[1] == second[1], "{first:?}, then {second:?}");
    });
}

#[derive(Clone, Debug)]
enum Seen {
    Read(Versioned),
    Wrote { nonce: u128, value: Bytes, got: Result<Written, RegisterError>, expected: Version },
}

/// Reads, then writes at the observed version with a new nonce. A write without an answer is abandoned or repeated.
async fn client(env: Env, r: Arc<dyn Register>, seen: History<Seen>, mut dice: Dice, until: Tick, base: u64) {
    let mut n = base;
    while env.now() < until {
        let start = seen.begin();
        if let Ok(v) = r.read().await {
            seen.end(start, Seen::Read(v.clone()));
            if dice.roll(3) > 0 {
                n += 1;
                let mark = u128::from(n);
                let stale = dice.roll(8) == 0 && v.version.0 > 0;
                let expected = Version(v.version.0 - u64::from(stale));
                let tries = 1 + dice.roll(3);
                for _ in 0..tries {
                    let start = seen.begin();
                    let got = r.write_if(expected, value(n), Nonce(mark)).await;
                    let decided = got.is_ok();
                    seen.end(start, Seen::Wrote { nonce: mark, value: value(n), got, expected });
                    if decided {
                        break;
                    }
                }
            }
        }
        env.sleep(Duration::from_micros(dice.roll(3000))).await;
    }
}

/// Runs many clients concurrently under the harness's faults, then checks the history.
pub fn random(h: &mut dyn RegisterHarness, seed: u64) {
    let mut dice = Dice::new(seed);
    let name = format!("random/{seed}");
    let seen: History<Seen> = History::new();
    let until = h.driver().now().after(Duration::from_millis(100 + dice.roll(300)));
    let nodes = h.clients();
    let mut work: Vec<Ticket<()>> = Vec::new();
    for (i, node) in nodes.iter().cycle().take(nodes.len().max(2) * 2).enumerate() {
        let (r, env) = (h.registers(*node).register(&name), h.driver().env(*node));
        let dice = Dice::new(seed * 100 + i as u64);
        let base = (seed << 32) + (i as u64) * 1_000_000;
        let task = client(env.clone(), r, seen.clone(), dice, until, base);
        work.push(env.launch("conformance.register", task));
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
    for node in nodes {
        let (r, env, seen) = (h.registers(node).register(&name), h.driver().env(node), seen.clone());
        h.driver().block_on(node, async move {
            let start = seen.begin();
            let v = read(&env, &r).await;
            seen.end(start, Seen::Read(v));
        });
    }
    judge(seed, &seen.events());
}

fn judge(seed: u64, events: &[Event<Seen>]) {
    // The content of each version that any client saw: one value with one nonce.
    let mut versions: BTreeMap<Version, (Nonce, Bytes)> = BTreeMap::new();
    let mut sent: BTreeMap<u128, (Version, Bytes)> = BTreeMap::new();
    let mut shown: Vec<(u64, u64, Versioned)> = Vec::new();
    for e in events {
        match &e.what {
            Seen::Read(v) => shown.push((e.start, e.end, v.clone())),
            Seen::Wrote { nonce, value, got, expected } => {
                sent.insert(*nonce, (*expected, value.clone()));
                match got {
                    Ok(Written::Yes(version)) => {
                        assert_eq!(version.0, expected.0 + 1, "seed {seed}: versions rise by one");
                        let v = Versioned { version: *version, value: value.clone(), nonce: Nonce(*nonce) };
                        shown.push((e.start, e.end, v));
                    }
                    Ok(Written::Conflict(v)) => {
                        assert_ne!(v.version, *expected, "seed {seed}: a conflict at the version expected");
                        assert_ne!(v.nonce.0, *nonce, "seed {seed}: a conflict with itself");
                        shown.push((e.start, e.end, v.clone()));
                    }
                    Err(_) => {}
                }
            }
        }
    }
    for (_, _, v) in &shown {
        if v.version == Version(0) {
            continue;
        }
        let first = versions.entry(v.version).or_insert((v.nonce, v.value.clone()));
        assert_eq!(*first, (v.nonce, v.value.clone()), "seed {seed}: version {} is two things", v.version);
        let (expected, value) = &sent[&v.nonce.0];
        assert_eq!(v.version.0, expected.0 + 1, "seed {seed}: written at a version that it did not expect");
        assert_eq!(*value, v.value, "seed {seed}: a value that nobody wrote");
    }
    judge_real_time(seed, events, &shown);
}

/// Checks that no client sees an older version than one that was seen or acknowledged before its read began. A `Yes` answer to a repeated
/// write may be old, although it is still true for its version. It therefore counts as an acknowledgement, not as a read.
fn judge_real_time(seed: u64, events: &[Event<Seen>], shown: &[(u64, u64, Versioned)]) {
    let looks = events.iter().filter_map(|e| match &e.what {
        Seen::Read(v) | Seen::Wrote { got: Ok(Written::Conflict(v)), .. } => Some((e.start, v.version)),
        _ => None,
    });
    for (start, version) in looks {
        let before = shown.iter().filter(|(_, end, _)| *end < start).map(|(_, _, v)| v.version).max();
        assert!(
            before.is_none_or(|b| b <= version),
            "seed {seed}: version {version} was shown after {before:?} had been"
        );
    }
}

//! The paper's interface on a cluster: appends with and without a sequencer, holes, trims, and reconfigurations while it is written.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{self, Cluster};
use crate::shelf::Shelf;
use atoll_contract::LogletId;
use atoll_core::*;
use atoll_corfu::log::{CorfuLog, Entry};
use atoll_corfu::{ClientOptions, Projection, UnitId};
use bytes::Bytes;

const SOON: Duration = Duration::from_secs(20);

struct World {
    c: Cluster,
    shelf: Arc<Shelf>,
}

impl World {
    /// Makes a cluster of six nodes and a log on these chains, with the sequencer on node 6.
    fn new(seed: u64, chains: &[&[u32]]) -> Self {
        let c = cluster::new(6, seed);
        let projection = cluster::projection(&c, 6, chains);
        let mut world = World { c, shelf: Arc::default() };
        world.on(5, |log| async move { log.create(projection).await.unwrap() });
        world
    }

    fn log(&self, at: u32) -> CorfuLog {
        let options = ClientOptions { round_timeout: Duration::from_millis(60), ..ClientOptions::default() };
        CorfuLog::new(self.c.env(at), LogletId(9), self.shelf.clone(), options)
    }

    fn on<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        at: u32,
        f: impl FnOnce(CorfuLog) -> F,
    ) -> T {
        let log = self.log(at);
        self.c.on(at, f(log))
    }

    fn unit(&self, node: u32) -> UnitId {
        (NodeId(node), self.c.nodes[&NodeId(node)].storage)
    }

    fn append(&mut self, at: u32, text: &'static str) -> u64 {
        self.on(at, |log| async move { log.append(Bytes::from(text)).await.unwrap() })
    }

    fn read(&mut self, at: u32, position: u64) -> Entry {
        self.on(at, |log| async move { log.read(position).await.unwrap() })
    }
}

fn data(text: &'static str) -> Entry {
    Entry::Data(Bytes::from(text))
}

#[test]
fn appends_go_on_without_a_sequencer_and_every_client_reads_the_same() {
    let mut w = World::new(1, &[&[1, 2], &[3, 4]]);
    assert_eq!((w.append(5, "a"), w.append(4, "b")), (0, 1));
    let first = w.on(5, |log| async move { log.take_batch(3).await.unwrap() });
    assert_eq!(first, 2, "a batch of positions, which stay holes");
    assert_eq!(w.append(5, "c"), 5);
    w.c.kill(NodeId(6));
    assert_eq!((w.append(4, "d"), w.append(5, "e")), (6, 7), "found by a probe");
    let all: Vec<Entry> = (0..9).map(|at| w.read(3, at)).collect();
    let junk = Entry::Junk;
    let expected = [
        data("a"),
        data("b"),
        junk.clone(),
        junk.clone(),
        junk,
        data("c"),
        data("d"),
        data("e"),
        Entry::Unwritten,
    ];
    assert_eq!(all, expected);
    w.on(3, |log| async move {
        log.trim(1).await.unwrap();
        log.trim(1).await.unwrap();
    });
    assert_eq!((w.read(4, 0), w.read(4, 1)), (data("a"), Entry::Trimmed));
    w.on(3, |log| async move { log.trim_prefix(6).await.unwrap() });
    assert_eq!((w.read(4, 5), w.read(4, 6)), (Entry::Trimmed, data("d")));
    assert_eq!(w.append(5, "f"), 8, "a trim does not move the tail (C14)");
}

#[test]
fn a_unit_is_replaced_at_once_rebuilt_and_then_read() {
    let mut w = World::new(2, &[&[1, 2]]);
    for text in ["a", "b", "c", "d", "e"] {
        w.append(5, text);
    }
    w.on(5, |log| async move { log.trim(1).await.unwrap() });
    w.c.kill(NodeId(1));
    let stuck = w.log(5);
    let stuck = w.c.env(5).launch("stuck", async move { stuck.append(Bytes::from("x")).await });
    w.c.run_for(Duration::from_millis(200));
    let (old, new) = (w.unit(1), w.unit(3));
    let view = w.on(4, |log| async move { log.replace_unit(old, new).await.unwrap() });
    assert_eq!((view.epoch(), view.projection.stretches.len()), (2, 2));
    let late = w.c.wait(stuck, SOON).unwrap();
    let at = w.append(5, "f");
    assert!(at >= view.projection.active().start);
    assert_eq!((w.read(4, 0), w.read(4, 1), w.read(4, at)), (data("a"), Entry::Trimmed, data("f")));
    if let Ok(position) = late {
        assert_eq!(w.read(4, position), data("x"), "it resumed where it began, or took another position");
    }
    // The new unit serves what is below once it has all of it.
    let view = w.on(4, |log| async move {
        let view = log.rebuild(new).await.unwrap();
        assert!(log.merge().await.unwrap());
        assert!(!log.merge().await.unwrap());
        view
    });
    assert!(view.epoch() >= 3);
    w.c.kill(NodeId(2));
    w.c.run_for(Duration::from_millis(50));
    let (old, new) = (w.unit(2), w.unit(4));
    w.on(4, |log| async move { log.replace_unit(old, new).await.unwrap() });
    assert_eq!((w.read(5, 0), w.read(5, 1), w.read(5, 4)), (data("a"), Entry::Trimmed, data("e")));
    assert_eq!(w.read(5, at), data("f"), "the copy is all that is left");
    // The one that was removed comes back, and is read by nobody (corfu-C8).
    w.c.restart(NodeId(1));
    assert_eq!(w.read(5, 2), data("c"));
}

#[test]
fn a_sequencer_is_replaced_from_the_sealed_units() {
    let mut w = World::new(3, &[&[1, 2], &[3, 4]]);
    assert_eq!((w.append(5, "a"), w.append(5, "b")), (0, 1));
    let old = w.log(4);
    assert_eq!(
        w.c.on(4, {
            let old = old.clone();
            async move { old.append(Bytes::from("c")).await.unwrap() }
        }),
        2
    );
    w.c.kill(NodeId(6));
    let life = w.c.env(5).incarnation();
    let view = w.on(3, |log| async move { log.replace_sequencer(NodeId(5), life).await.unwrap() });
    assert_eq!(view.epoch(), 2);
    assert_eq!(w.append(3, "d"), 3, "K7: above everything that is complete");
    let late = w.c.on(4, async move { old.append(Bytes::from("e")).await.unwrap() });
    assert_eq!((late, w.read(2, late)), (4, data("e")), "a client of the old epoch refreshes");
    let chains = vec![vec![w.unit(5), w.unit(1)]];
    let view = w.on(3, |log| async move { log.extend(chains, 4).await.unwrap() });
    let start = view.projection.active().start;
    assert_eq!(w.append(4, "f"), start);
    let all: Vec<Entry> = (0..=start).map(|at| w.read(2, at)).collect();
    assert_eq!((&all[3], &all[start as usize]), (&data("d"), &data("f")));
    assert!(
        all[5..start as usize].iter().all(|entry| *entry == Entry::Junk),
        "positions that were never given out"
    );
}

#[test]
fn of_two_reconfigurations_one_is_installed() {
    let mut w = World::new(4, &[&[1, 2]]);
    w.append(5, "a");
    let (units, life) = ((w.unit(1), w.unit(3)), w.c.env(4).incarnation());
    let (one, other) = (w.log(5), w.log(4));
    let one =
        w.c.env(5).launch("one", async move { one.replace_unit(units.0, units.1).await.map(|v| v.epoch()) });
    let other = w
        .c
        .env(4)
        .launch("other", async move { other.replace_sequencer(NodeId(4), life).await.map(|v| v.epoch()) });
    let outcomes = [w.c.wait(one, SOON).unwrap(), w.c.wait(other, SOON).unwrap()];
    assert!(outcomes.iter().any(Result::is_ok), "{outcomes:?}");
    let epochs: Vec<u64> = outcomes.iter().flatten().copied().collect();
    assert!(epochs.iter().all(|e| epochs.iter().filter(|f| *f == e).count() == 1), "{outcomes:?}");
    let at = w.append(5, "b");
    assert_eq!((w.read(2, 0), w.read(2, at)), (data("a"), data("b")));
}

#[test]
fn projections_that_cannot_be_are_refused_by_name() {
    let mut w = World::new(5, &[&[1, 2]]);
    let twice = w.unit(1);
    let refused =
        w.on(4, |log| async move { log.extend(vec![vec![twice], vec![twice]], 4).await.unwrap_err() });
    assert!(refused.to_string().contains("uses addresses of node 1"), "{refused}");
    let none = w.on(4, |log| async move { log.extend(vec![vec![]], 4).await.unwrap_err() });
    assert!(none.to_string().contains("a chain of 0 units"), "{none}");
    let again = Projection::simple(1, (NodeId(6), Incarnation(1)), 4, vec![vec![twice]]);
    w.on(4, |log| async move { log.create(again).await.unwrap_err() });
    assert_eq!(w.append(5, "a"), 0, "the log is as it was");
}

/// A reconfiguration that dies after its seal is completed by whoever needs the log.
#[test]
fn a_reconfiguration_that_died_is_completed() {
    let mut w = World::new(6, &[&[1, 2]]);
    w.append(5, "a");
    let (old, new, log) = (w.unit(1), w.unit(3), w.log(4));
    let moved =
        w.c.env(4).launch("moved", async move { log.replace_unit(old, new).await.map(|v| v.epoch()) });
    drop(moved);
    while w.c.nodes[&NodeId(1)].disk.last < Lsn(3) {
        assert!(w.c.step());
    }
    w.c.kill(NodeId(4));
    let at = w.append(5, "b");
    assert_eq!((w.read(3, 0), w.read(3, at)), (data("a"), data("b")));
}

/// A unit that has died refuses nothing, so an append that waits for it has to look for its successor by itself.
#[test]
fn an_append_in_flight_continues_as_soon_as_a_dead_unit_is_replaced() {
    for dead in [1, 2] {
        let mut w = World::new(7, &[&[1, 2]]);
        w.append(5, "a");
        let log = w.log(5);
        w.c.on(5, {
            let log = log.clone();
            async move { assert_eq!(log.append(Bytes::from("b")).await, Ok(1)) }
        });
        w.c.kill(NodeId(dead));
        let stuck = w.c.env(5).launch("stuck", async move { log.append(Bytes::from("x")).await });
        w.c.run_for(Duration::from_millis(150));
        let (old, new) = (w.unit(dead), w.unit(3));
        w.on(4, |log| async move { log.replace_unit(old, new).await.map(drop).unwrap() });
        let position = w.c.wait(stuck, Duration::from_millis(60)).unwrap().unwrap();
        assert_eq!((position, w.read(4, position)), (2, data("x")), "node {dead}: it resumed where it began");
    }
}

#[test]
fn readers_go_on_while_the_last_unit_of_a_chain_is_dead_and_after_it_was_replaced() {
    let mut w = World::new(8, &[&[1, 2]]);
    w.append(5, "a");
    w.append(5, "b");
    let reader = w.log(4);
    w.c.on(4, {
        let reader = reader.clone();
        async move { assert_eq!(reader.tail().await, Ok(2)) }
    });
    w.append(5, "c");
    w.c.kill(NodeId(2));
    w.c.run_for(Duration::from_millis(20));
    let read = |w: &mut World, at: u64, within_ms| {
        let reader = reader.clone();
        let call = w.c.env(4).launch("read", async move { reader.read(at).await });
        w.c.wait(call, Duration::from_millis(within_ms)).unwrap().unwrap()
    };
    assert_eq!((read(&mut w, 0, 20), read(&mut w, 1, 20)), (data("a"), data("b")), "known to be complete");
    // Whether the third entry is complete is not known to this reader (corfu-C6). It waits until another unit has the place of the last.
    let waits = reader.clone();
    let waits = w.c.env(4).launch("waits", async move { waits.read(2).await });
    w.c.run_for(Duration::from_millis(100));
    let (old, new) = (w.unit(2), w.unit(3));
    w.on(5, |log| async move { log.replace_unit(old, new).await.map(drop).unwrap() });
    assert_eq!(w.c.wait(waits, Duration::from_millis(60)).unwrap(), Ok(data("c")));
}

//! The paper's interface on a Loglet: look, fill and trim of single positions, before and after a seal.

use crate::cluster::{self, Cluster, batch, provider};
use atoll_contract::loglet::write_once::{PositionState, Replace};
use atoll_contract::*;
use atoll_core::*;
use atoll_corfu::message::{Take, Token, Write};
use atoll_corfu::{CorfuLoglet, Projection};
use bytes::Bytes;

const LOGLET: LogletId = LogletId(77);

struct World {
    c: Cluster,
    config: Bytes,
    log: CorfuLoglet,
}

impl World {
    /// Makes a cluster of five nodes and a Loglet on these chains, with the sequencer on node 5. Node 4 is the client.
    fn new(seed: u64, chains: &[&[u32]]) -> Self {
        let c = cluster::new(5, seed);
        let config = cluster::projection(&c, 5, chains).to_bytes();
        let log = provider(&c, 4).open_corfu(LOGLET, &config).unwrap();
        World { c, config, log }
    }

    fn on<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        f: impl FnOnce(CorfuLoglet) -> F,
    ) -> T {
        let log = self.log.clone();
        self.c.on(4, f(log))
    }

    fn append(&mut self, seq: u64, texts: &[&str]) -> Vec<u64> {
        let batch = batch(1, seq, texts);
        let placed = self.on(|log| async move { log.append(batch).await.unwrap().unwrap() });
        placed.offsets().map(|at| at.0).collect()
    }

    fn look(&mut self, at: u64) -> Result<PositionState, WriteOnceError> {
        self.on(|log| async move { log.look(Offset(at)).await })
    }

    fn fill(&mut self, at: u64) -> Result<PositionState, WriteOnceError> {
        self.on(|log| async move { log.fill(Offset(at)).await })
    }

    fn trim(&mut self, at: u64) -> Result<PositionState, WriteOnceError> {
        self.on(|log| async move { log.trim_one(Offset(at)).await })
    }

    /// Reads everything up to the tail as a reader does; "-" is a pad.
    fn read_all(&mut self) -> Vec<String> {
        self.on(|log| async move {
            let tail = log.check_tail().await.unwrap().at;
            let mut all = Vec::new();
            while Offset(all.len() as u64) < tail {
                let from = Offset(all.len() as u64);
                let got = log.read(from..tail, 1 << 16, ReadFrom::Anywhere).await.unwrap();
                all.extend(got.entries.iter().map(|entry| match entry.is_pad() {
                    true => "-".to_owned(),
                    false => String::from_utf8_lossy(&entry.payload).into_owned(),
                }));
            }
            all
        })
    }

    /// Takes positions, which stay holes.
    fn take(&mut self, count: u32) {
        let (env, config) = (self.c.env(4), self.config.clone());
        let take = Take { log: LOGLET, config, epoch: 1, count };
        self.c.on(4, async move { env.call(NodeId(5), take).await.unwrap() });
    }
}

#[test]
fn one_position_is_trimmed_and_readers_pass_it() {
    let mut w = World::new(1, &[&[1, 2]]);
    assert_eq!(w.append(1, &["a", "b", "c", "d"]), [0, 1, 2, 3]);
    assert_eq!(w.trim(1), Ok(PositionState::Trimmed));
    assert_eq!(w.trim(1), Ok(PositionState::Trimmed), "idempotent");
    assert_eq!(
        [0, 1, 2].map(|at| w.look(at)),
        [PositionState::Data, PositionState::Trimmed, PositionState::Data].map(Ok)
    );
    assert_eq!(w.read_all(), ["a", "-", "c", "d"], "it was in the middle of one write");
    // The first position, too: a reader must not take it for the end of a trim of all below.
    assert_eq!(w.trim(0), Ok(PositionState::Trimmed));
    assert_eq!(w.read_all(), ["-", "-", "c", "d"]);
    for node in [1, 2] {
        w.c.checkpoint(NodeId(node));
        w.c.kill(NodeId(node));
        w.c.restart(NodeId(node));
    }
    assert_eq!(w.read_all(), ["-", "-", "c", "d"]);
    w.on(|log| async move { log.prefix_trim(Offset(3)).await.unwrap() });
    let below = w.on(|log| async move { log.read(Offset(0)..Offset(4), 100, ReadFrom::Anywhere).await });
    assert_eq!(below, Err(ReadError::Trimmed(Offset(3))));
    assert_eq!((w.look(2), w.look(3)), (Ok(PositionState::Trimmed), Ok(PositionState::Data)));
}

/// A writer that repeats an append whose entry was read and trimmed meanwhile must not append it again.
#[test]
fn what_was_trimmed_alone_is_not_appended_again() {
    let mut w = World::new(2, &[&[1, 2], &[3]]);
    assert_eq!(w.append(1, &["a", "b"]), [0, 1]);
    assert_eq!(w.trim(0), Ok(PositionState::Trimmed));
    assert_eq!(w.append(1, &["a", "b"]), [0, 1], "the same append, sent again");
    assert_eq!(w.trim(1), Ok(PositionState::Trimmed));
    assert_eq!(w.append(1, &["a", "b"]), [0, 1]);
    assert_eq!(w.read_all(), ["-", "-"]);
}

#[test]
fn a_hole_is_filled_at_once_and_stays_junk() {
    let mut w = World::new(3, &[&[1, 2]]);
    assert_eq!(w.append(1, &["a"]), [0]);
    w.take(2);
    assert_eq!(w.look(1), Ok(PositionState::Unwritten));
    assert_eq!(w.fill(0), Ok(PositionState::Data));
    assert_eq!(w.fill(2), Ok(PositionState::Junk), "above it is another hole");
    assert_eq!(w.fill(3), Err(WriteOnceError::Beyond(Offset(3))));
    assert_eq!(w.trim(3), Err(WriteOnceError::Beyond(Offset(3))));
    assert_eq!(w.append(2, &["b"]), [3]);
    assert_eq!(w.trim(2), Ok(PositionState::Junk));
    assert_eq!(w.read_all(), ["a", "-", "-", "b"]);
    let reach = w.on(|log| async move { log.reach().await.unwrap() });
    assert_eq!((reach.complete, reach.written, reach.next), (Offset(4), Offset(4), Some(Offset(4))));
}

#[test]
fn what_an_append_has_begun_to_write_is_completed() {
    let mut w = World::new(4, &[&[1, 2]]);
    w.take(2);
    // The writer of position 0 dies after the head.
    let (env, config, data) = (w.c.env(4), w.config.clone(), batch(9, 1, &["x"]).bytes().clone());
    let token = Token { client: 9, number: 1 };
    let write = Write { log: LOGLET, config, epoch: 1, first: 0, count: 1, token, data };
    w.c.on(4, async move { env.call(NodeId(1), write).await.unwrap() });
    assert_eq!(w.look(0), Ok(PositionState::Unwritten), "only the tail knows what is decided");
    assert_eq!(w.fill(0), Ok(PositionState::Data));
    assert_eq!(w.trim(1), Ok(PositionState::Junk), "a hole is decided before it is trimmed");
    assert_eq!(w.read_all(), ["x", "-"]);
}

#[test]
fn a_sealed_loglet_keeps_its_interface() {
    let mut w = World::new(5, &[&[1, 2]]);
    assert_eq!(w.append(1, &["a"]), [0]);
    w.take(1);
    assert_eq!(w.append(2, &["b", "c"]), [2, 3]);
    let sealed = w.on(|log| async move {
        log.seal().await.unwrap();
        log.check_tail().await.unwrap()
    });
    assert_eq!(w.trim(0), Err(WriteOnceError::Sealed), "where it ends is not known yet");
    let loglet = provider(&w.c, 4).open_sealed(LOGLET, &w.config, &sealed.sealed.clone().unwrap()).unwrap();
    let tail = sealed.at;
    w.c.on(4, async move {
        let cells = loglet.write_once().unwrap();
        assert_eq!(cells.fill(Offset(1)).await, Ok(PositionState::Junk));
        assert_eq!(cells.fill(Offset(2)).await, Ok(PositionState::Data));
        assert_eq!(cells.trim_one(Offset(2)).await, Ok(PositionState::Trimmed));
        assert_eq!(cells.look(Offset(2)).await, Ok(PositionState::Trimmed));
        assert_eq!(cells.trim_one(tail).await, Err(WriteOnceError::Beyond(tail)));
        let got = loglet.read(Offset(0)..tail, 1 << 16, ReadFrom::Anywhere).await.unwrap();
        assert!(!got.entries[0].is_pad());
        let got = loglet.read(Offset(2)..tail, 1 << 16, ReadFrom::Anywhere).await.unwrap();
        assert_eq!(got.entries.iter().map(Entry::is_pad).collect::<Vec<_>>(), [true, false]);
    });
}

#[test]
fn a_replacement_keeps_the_shape_of_the_chains() {
    let w = World::new(6, &[&[1, 2], &[3, 4]]);
    let node = NodeId;
    let spec = w.log.replacing(Replace::Unit { old: node(3), new: node(5) }).unwrap();
    assert_eq!(spec.placed("unit"), Some(&[1, 2, 5, 4].map(node)[..]));
    assert_eq!((spec.options["chains"].as_str(), spec.options["stripe"].as_str()), ("2", "4"));
    assert_eq!(w.log.replacing(Replace::Unit { old: node(5), new: node(1) }), None);
    assert_eq!(w.log.replacing(Replace::Unit { old: node(3), new: node(4) }), None);
    let spec = w.log.replacing(Replace::Sequencer(node(2))).unwrap();
    assert_eq!((spec.placed("sequencer"), spec.placed("unit").unwrap().len()), (Some(&[node(2)][..]), 4));
    let layout = w.log.layout();
    assert_eq!((layout.sequencer, layout.chains.len(), layout.epoch), (node(5), 2, 1));
    assert!(Projection::parse(&w.config).is_ok());
}

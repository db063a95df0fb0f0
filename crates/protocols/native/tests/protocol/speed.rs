//! Measures what an append costs in the protocol itself: three node cores, with a network and a journal that cost nothing. This checks
//! nothing; run it with `cargo test --release -p atoll-native --test protocol speed:: -- --ignored --nocapture`.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use atoll_contract::{Batch, ClientId, Entry, Loglet, LogletId, OpId};
use atoll_core::*;
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeOptions, NativeProvider, Sequencer, SequencerOptions,
};
use bytes::Bytes;

struct Nobody;

impl Directory for Nobody {
    fn candidates(&self) -> Vec<Candidate> {
        Vec::new()
    }
}

fn node(n: u32) -> NodeCore {
    let mut core = NodeCore::new(NodeId(n), Incarnation(n.into()), n.into());
    let server = LogServer::new(core.env(), StorageId(n.into()), LogServerOptions::default());
    core.add_role(atoll_native::roles::LOG_SERVER, Box::new(server));
    let sequencer = Sequencer::new(core.env(), SequencerOptions::default());
    core.add_role(atoll_native::roles::SEQUENCER, Box::new(sequencer));
    for peer in (1..=3).filter(|p| *p != n) {
        for class in [Class::Control, Class::Data] {
            core.set_link(Tick(1), NodeId(peer), class, Link::Up);
        }
    }
    core
}

fn turn(cores: &mut [NodeCore], i: usize, wire: &mut VecDeque<(usize, Outgoing)>, now: Tick) {
    let mut out = Outputs::default();
    cores[i].turn(now, &mut out);
    wire.extend(out.frames.into_iter().map(|f| (i, f)));
    if let Some(batch) = out.journal {
        assert!(batch.cells.is_empty(), "this journal keeps no cells");
        let loc = |lsn: &Lsn| Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes: 1 };
        let written = batch.records.iter().map(|(lsn, _)| (*lsn, loc(lsn))).collect();
        cores[i].durable(now, Ok(written));
        turn(cores, i, wire, now);
    }
}

#[test]
#[ignore = "a measurement"]
fn cost_of_an_append() {
    for (entries, clients) in [(1u64, 1u64), (32, 1), (32, 32)] {
        let mut cores: Vec<NodeCore> = (1..=3).map(node).collect();
        let servers = (1..=3).map(|n| (NodeId(n), StorageId(n.into()))).collect();
        let config = NativeConfig::new(servers, (NodeId(1), Incarnation(1))).unwrap();
        let provider = NativeProvider::new(cores[0].env(), Arc::new(Nobody), NativeOptions::default());
        let log = provider.open_native(LogletId(1), &config.to_bytes()).unwrap();
        let payload = Bytes::from(vec![7u8; 1024]);
        let count = 50_000u64;
        let batches: Vec<Batch> = (0..count)
            .map(|i| {
                Batch::of((0..entries).map(|e| {
                    let client = ClientId(1 + e % clients);
                    let seq = 1 + if clients == 1 { i * entries + e } else { i };
                    Entry {
                        op: OpId { client, seq },
                        payload: payload.slice(..if count > 10_000 { 64 } else { 1024 }),
                    }
                }))
            })
            .collect();
        let mut wire = VecDeque::new();
        let start = Instant::now();
        let mut now = Tick(10);
        for chunk in batches.chunks(4) {
            let tickets: Vec<_> = chunk.iter().map(|b| log.append(b.clone())).collect();
            now = Tick(now.0 + 100_000);
            turn(&mut cores, 0, &mut wire, now);
            while let Some((from, out)) = wire.pop_front() {
                let to = out.to.0 as usize - 1;
                cores[to].deliver(now, NodeId(from as u32 + 1), out.class, out.envelope);
                while let Some((f, next)) = wire.front()
                    && *f == from
                    && next.to.0 as usize - 1 == to
                {
                    let (_, next) = wire.pop_front().unwrap();
                    cores[to].deliver(now, NodeId(from as u32 + 1), next.class, next.envelope);
                }
                turn(&mut cores, to, &mut wire, now);
            }
            for mut ticket in tickets {
                assert!(ticket.try_take().unwrap().unwrap().is_ok());
            }
        }
        let micros = start.elapsed().as_secs_f64() * 1e6 / count as f64;
        println!(
            "{entries} entries of {clients} clients: {micros:.2} µs per batch, client and all three nodes"
        );
    }
}

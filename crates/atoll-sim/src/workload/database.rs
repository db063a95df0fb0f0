//! Clients of the database: they write and read cells, through any node.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Level;
use atoll_core::testing::{hit, next_level};
use atoll_db::{AppId, Application, ApplyAt, Engine, LogPos, Observer, Rejected, StoreError, Tx, View};
use bytes::Bytes;

use crate::oracle::database::{DatabaseOracle, Place, Write};
use crate::scenario::database::Engines;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;

/// How many cells there are.
pub const CELLS: u64 = 16;

/// An application with cells, each of which holds the id of its last write. A command is `cell u64 | id u64`.
#[derive(Debug)]
pub struct Cells;

/// A write that was applied, and its place in the log.
pub type Applied = (Place, Write);

fn word(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().map(u64::from_le_bytes).ok()
}

impl Application for Cells {
    type Event = Applied;
    const ID: AppId = AppId(200);
    const NAME: &'static str = "cells";

    fn version_at(level: Level) -> u8 {
        if next_level(level) { 2 } else { 1 }
    }

    fn apply(&mut self, at: &ApplyAt, command: &[u8], tx: &mut Tx<'_, Applied>) -> Result<Bytes, Rejected> {
        let (Some(key), Some(id)) = (command.get(..8).and_then(word), command.get(8..).and_then(word)) else {
            return Err(Rejected(Bytes::new()));
        };
        let old = tx.get(&command[..8]).unwrap_or_default();
        tx.put(&command[..8], Bytes::copy_from_slice(&command[8..]));
        tx.emit(((at.position, at.index), Write { id, key, time_ms: at.time_ms }));
        // Some commands are rejected after they wrote. The newer version of the commands changes which ones.
        if id.is_multiple_of(if at.version > 1 { 13 } else { 11 }) { Err(Rejected(old)) } else { Ok(old) }
    }

    fn opened(&mut self, _view: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Passes events to the oracle, and checks that they arrive before the view that shows them (X19).
#[derive(Debug)]
pub struct Door {
    /// The engine of the node.
    pub engine: Engine<Cells>,
    /// Where events go.
    pub oracle: DatabaseOracle,
    /// Where violations are reported.
    pub fail: crate::world::clients::Cluster<NodeHandles>,
}

impl Observer<Applied> for Door {
    fn on_events(&self, below: LogPos, events: Vec<Applied>) {
        let shown = self.engine.view().below();
        if shown >= below {
            self.fail.fail(format!("X19: events below {below} came when the view was at {shown}"));
        }
        for (place, write) in events {
            self.oracle.applied(place, write);
        }
    }
}

/// An observer that ignores everything.
#[derive(Debug)]
struct Nobody;

impl<E> Observer<E> for Nobody {
    fn on_events(&self, _below: LogPos, _events: Vec<E>) {}
}

/// Removes a node's door. Engine and door hold references to each other, so neither would be freed otherwise.
pub fn close_door<A: Application>(engine: &Engine<A>) {
    engine.observe(Arc::new(Nobody));
}

/// Returns the engine of a node's life.
pub fn engine_of(life: &Life<NodeHandles>, engines: &Engines<Cells>) -> Option<Engine<Cells>> {
    engines.get(life.node, life.env.incarnation())
}

fn report(stage: &Stage<NodeHandles>, oracle: &DatabaseOracle) {
    oracle.take_failures().into_iter().for_each(|f| stage.cluster.fail(f));
    stage.report();
}

/// Every seed has at least so many acknowledged writes, and so many of them before everything is healed.
const LEAST_WRITES: u64 = 200;
const LEAST_UNDER_FAULTS: u64 = 50;

/// Writes until the load is over, a few at a time.
pub async fn writer(
    stage: Stage<NodeHandles>,
    engines: Engines<Cells>,
    oracle: DatabaseOracle,
    think: Duration,
) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let at = stage.below(64) as usize % stage.cluster.hosts();
        let Some(life) = stage.cluster.any_from(at) else { continue };
        for _ in 0..1 + stage.below(6) {
            drop(write(&stage, &engines, &oracle, &life));
        }
        report(&stage, &oracle);
    }
}

/// Proposes a write and reports its outcome to the oracle. The ticket returns whether it was applied; false means that it may not have
/// been.
fn write(
    stage: &Stage<NodeHandles>,
    engines: &Engines<Cells>,
    oracle: &DatabaseOracle,
    life: &Life<NodeHandles>,
) -> atoll_core::Ticket<bool> {
    let (key, id) = (stage.below(CELLS), stage.env.random() >> 1);
    let command = Bytes::from([key.to_le_bytes(), id.to_le_bytes()].concat());
    let since = oracle.now();
    let (stage, oracle, life) = (stage.clone(), oracle.clone(), life.clone());
    let ticket = engine_of(&life, engines).and_then(|engine| engine.propose(command).ok());
    stage.env.clone().launch("write", async move {
        let Some(ticket) = ticket else { return false };
        let done = match stage.cluster.ask(&life, ticket).await {
            Some(Ok(Ok(applied))) => {
                // A rejected command emits no event.
                if applied.reply.is_ok() {
                    oracle.acknowledged(id, (applied.position, applied.index), since);
                }
                true
            }
            Some(Ok(Err(error))) => {
                if error.did_not_happen() {
                    oracle.denied(id, error.to_string());
                }
                false
            }
            _ => false,
        };
        report(&stage, &oracle);
        done
    })
}

/// Reads after barriers and compares hashes, until the load is over.
pub async fn reader(
    stage: Stage<NodeHandles>,
    engines: Engines<Cells>,
    oracle: DatabaseOracle,
    think: Duration,
) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let at = stage.below(64) as usize % stage.cluster.hosts();
        let Some(life) = stage.cluster.any_from(at) else { continue };
        read(&stage, &engines, &oracle, &life).await;
        report(&stage, &oracle);
    }
}

async fn read(
    stage: &Stage<NodeHandles>,
    engines: &Engines<Cells>,
    oracle: &DatabaseOracle,
    life: &Life<NodeHandles>,
) -> bool {
    let Some(engine) = engine_of(life, engines) else { return false };
    let since = oracle.now();
    let Some(Ok(Ok(_))) = stage.cluster.ask(life, engine.barrier()).await else { return false };
    let view = engine.view();
    for key in 0..CELLS {
        // A store that fails returns an error and no wrong value.
        let Ok(value) = view.get(&key.to_le_bytes()) else { return false };
        let value = value.and_then(|v| word(&v));
        oracle.read(key, value, view.below(), since);
    }
    oracle.hashes(&format!("node {}", life.node), &engine.hashes());
    true
}

/// Demands that every node makes progress and shows the same state.
pub async fn demand(stage: Stage<NodeHandles>, engines: Engines<Cells>, oracle: DatabaseOracle) {
    for host in 0..stage.cluster.hosts() {
        stage.waits_for(format!("a write through host {host}"));
        loop {
            if let Some(life) = stage.cluster.host(host)
                && write(&stage, &engines, &oracle, &life).await == Ok(true)
            {
                break;
            }
            stage.pause(Duration::from_millis(50)).await;
        }
    }
    for host in 0..stage.cluster.hosts() {
        stage.waits_for(format!("a read through host {host}"));
        while let Some(life) = stage.cluster.host(host)
            && !read(&stage, &engines, &oracle, &life).await
        {
            stage.pause(Duration::from_millis(50)).await;
        }
        let life = stage.cluster.host(host);
        if let Some(engine) = life.and_then(|life| engine_of(&life, &engines)) {
            let health = engine.health();
            if health.halted.is_some() || health.divergence.is_some() {
                stage.cluster.fail(format!("DATABASE: host {host} ended as {health:?}"));
            }
        }
    }
    let writes = oracle.answered().writes;
    if writes < LEAST_UNDER_FAULTS {
        stage.cluster.fail(format!("SMALL: {writes} acknowledged writes"));
    }
    // Where two of three disks were slow for most of the load, there was time for few writes. A healed cluster soon makes up for them.
    stage.waits_for(format!("{LEAST_WRITES} acknowledged writes"));
    while oracle.answered().writes < LEAST_WRITES {
        if let Some(life) = stage.cluster.any_from(stage.below(64) as usize % stage.cluster.hosts()) {
            let _ = write(&stage, &engines, &oracle, &life).await;
        }
        stage.pause(Duration::from_millis(5)).await;
    }
    if oracle.compared() > 0 {
        hit("sim.database.hashes_compared");
    }
    report(&stage, &oracle);
}

/// Opens a node's door.
pub fn open_door(
    engine: Engine<Cells>,
    oracle: DatabaseOracle,
    fail: crate::world::clients::Cluster<NodeHandles>,
) {
    let door = Door { engine: engine.clone(), oracle, fail };
    engine.observe(Arc::new(door));
}

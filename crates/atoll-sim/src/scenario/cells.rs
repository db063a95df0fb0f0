//! Cells of a role that exists only here. Each node keeps numbers in cells, of which some are also noted in the journal. After any crash,
//! it must still have every number that it has acknowledged, or a later one that a client sent.
//!
//! Each client writes its own keys, so the oracle is simple: a key shows the last acknowledged write, or one that came after it and was
//! never answered.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{
    Caller, Decode, DecodeError, Effects, Encode, Frame, Loc, Lsn, Message, NodeCore, NodeId, RecordKind,
    Role, RoleKind, Space, StorageId, Stored, Tick, roles,
};
use bytes::{Bytes, BytesMut};

use crate::oracle::Answered;
use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::parts::{WhoAmI, identity};
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::world::observer::Who;
use crate::world::{Assembly, Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "cells",
    about: "directed: cells of a role for tests, under crashes, full and failing disks, rot and lost files",
    run,
    marks: &[&[
        "cells.move",
        "cells.no_space",
        "cells.recover.missing",
        "cells.recover.older",
        "cells.recover.rot",
        "cells.recover.torn",
        "sim.cells.refused",
        "sim.cells.unknown_kept",
        "sim.cells.unknown_lost",
    ]],
    full: false,
};

const SHELF: RoleKind = RoleKind(250);
/// The number that a node answers for a cell with another value than any that was written.
const BAD: u64 = u64::MAX;
/// How many keys each client writes on each node.
const KEYS: u64 = 5;

atoll_core::message! {
    /// Puts a number into a cell.
    pub struct Put = 65_000 {
        /// The key.
        pub key: u64,
        /// The data directory that the client means. Another one ignores the request.
        pub storage: StorageId,
        /// The number of this write of the key, from 1.
        pub number: u64,
        /// The length of the cell's value, in bytes; less than 16 deletes the cell.
        pub size: u32,
        /// Whether to note the number in the journal, too.
        pub note: bool,
    }
}
atoll_core::message! {
    /// Answers a [`Put`].
    pub struct PutDone = 65_001 {
        /// Whether it happened. If not, the disk has no room for a new cell.
        pub done: bool,
    }
}
atoll_core::message! {
    /// Asks for a key.
    pub struct Get = 65_002 {
        /// The key.
        pub key: u64,
    }
}
atoll_core::message! {
    /// Answers a [`Get`].
    pub struct Got = 65_003 {
        /// The number in the cell; 0 if there is none.
        pub number: u64,
        /// The last number of the key that was noted in the journal; 0 if there is none.
        pub noted: u64,
    }
}
atoll_core::rpc!(Put => PutDone, SHELF, Data);
atoll_core::rpc!(Get => Got, SHELF, Data);

/// Returns the value of a cell. Every byte depends on key and number, so that a mixture of two values is noticed.
fn value(key: u64, number: u64, size: u32) -> Bytes {
    let mut out = BytesMut::new();
    key.encode(&mut out);
    number.encode(&mut out);
    let at = out.len();
    out.resize((size as usize).max(at), 0);
    for (i, byte) in out.iter_mut().enumerate().skip(at) {
        *byte = (key.wrapping_mul(31) ^ number.wrapping_mul(101) ^ (i as u64).wrapping_mul(7)) as u8;
    }
    out.freeze()
}

/// What a node has of one key.
#[derive(Default)]
struct Slot {
    number: u64,
    noted: u64,
    lsn: Lsn,
}

/// The role.
struct Shelf {
    storage: StorageId,
    slots: BTreeMap<u64, Slot>,
}

impl Shelf {
    fn put(&mut self, m: &Put, out: &mut Effects) -> Option<Lsn> {
        let slot = self.slots.entry(m.key).or_default();
        let is_new = slot.number == 0;
        if is_new && out.space() == Space::FactsOnly {
            return None;
        }
        let key = m.key.to_bytes();
        if m.size < 16 {
            slot.lsn = out.delete_cell(key);
            slot.number = 0;
        } else {
            slot.lsn = out.write_cell(key, value(m.key, m.number, m.size));
            slot.number = m.number;
        }
        if m.note {
            slot.noted = m.number;
            slot.lsn = out.journal(RecordKind::Fact, (m.key, m.number).to_bytes(), Bytes::new());
        }
        Some(slot.lsn)
    }
}

impl Role for Shelf {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Ok(m) = Put::from_frame(frame.clone()) {
            if m.storage != self.storage {
                return;
            }
            match self.put(&m, out) {
                Some(lsn) => out.reply(from, PutDone { done: true }, lsn),
                None => out.reply(from, PutDone { done: false }, Lsn::NONE),
            }
        } else if let Ok(Get { key }) = Get::from_frame(frame) {
            let slot = self.slots.entry(key).or_default();
            out.reply(from, Got { number: slot.number, noted: slot.noted }, slot.lsn);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        let noted: Vec<(u64, u64)> = self.slots.iter().map(|(key, slot)| (*key, slot.noted)).collect();
        Some(noted.to_bytes())
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        for (key, noted) in Vec::<(u64, u64)>::from_bytes(checkpoint)? {
            self.slots.entry(key).or_default().noted = noted;
        }
        Ok(())
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let (key, noted) = <(u64, u64)>::from_bytes(stored.record.head)?;
        let slot = self.slots.entry(key).or_default();
        slot.noted = slot.noted.max(noted);
        Ok(())
    }

    fn recover_cell(&mut self, key: Bytes, found: Bytes) -> Result<(), DecodeError> {
        let key = u64::from_bytes(key)?;
        let number = u64::from_bytes(found.slice(8.min(found.len())..16.min(found.len()))).unwrap_or(BAD);
        // A wrong value must reach the oracle. An error would only make the node refuse its directory.
        let number = if found == value(key, number, found.len() as u32) { number } else { BAD };
        self.slots.entry(key).or_default().number = number;
        Ok(())
    }
}

/// Nodes with this role alone.
struct Shelves;

impl Assembly for Shelves {
    type Handles = ();

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, ()) {
        let mut core = NodeCore::new(who.node, who.incarnation, seed);
        core.add_role(roles::MEMBER, Box::new(WhoAmI(identity(who))));
        core.add_role(SHELF, Box::new(Shelf { storage: who.storage, slots: BTreeMap::new() }));
        (core, ())
    }
}

/// What a client knows of one key. The first of each list is acknowledged, or was read; the others belong to writes without an answer, of
/// which each may have happened or not.
#[derive(Clone, Debug)]
struct Known {
    /// The number of the last write.
    last: u64,
    /// Numbers that the cell may have.
    cell: Vec<u64>,
    /// Numbers that may be noted in the journal.
    noted: Vec<u64>,
}

impl Default for Known {
    fn default() -> Self {
        Known { last: 0, cell: vec![0], noted: vec![0] }
    }
}

impl Known {
    /// Takes what the node answered. Cell and journal become durable together, but a crash may keep either part of a write that was not
    /// acknowledged. Returns false if the node cannot have that.
    fn take(&mut self, got: &Got) -> bool {
        if self.cell.len() > 1 {
            let is_kept = self.cell.first() != Some(&got.number);
            hit(if is_kept { "sim.cells.unknown_kept" } else { "sim.cells.unknown_lost" });
        }
        let can_be = self.cell.contains(&got.number) && self.noted.contains(&got.noted);
        (self.cell, self.noted) = (vec![got.number], vec![got.noted]);
        can_be
    }
}

/// Writes and reads its own keys on random nodes until the load is over, then reads all of them.
async fn client(stage: Stage<()>, id: u64, think: Duration) {
    let hosts = stage.cluster.hosts();
    let mut known: BTreeMap<(usize, StorageId, u64), Known> = BTreeMap::new();
    while !stage.over.is_up() {
        stage.pause(think).await;
        let at = stage.below(hosts as u64) as usize;
        let key = id * KEYS + stage.below(KEYS);
        // A host that lost its disk has a new identity, and nothing that was written before counts.
        let Some(storage) = stage.cluster.storage(at) else { continue };
        let known = known.entry((at, storage, key)).or_default();
        if stage.below(3) == 0 || known.cell.len() > 3 {
            read(&stage, at, storage, key, known).await;
        } else {
            write(&stage, at, storage, key, known).await;
        }
    }
}

/// Sends a request to a node from a random node that runs. Returns None if there is no answer, or if the disk was replaced meanwhile.
async fn ask<R: atoll_core::ForRole + Send + 'static>(
    stage: &Stage<()>,
    at: usize,
    storage: StorageId,
    request: R,
) -> Option<R::Reply>
where
    R::Reply: Send + 'static,
{
    let via = stage.below(stage.cluster.hosts() as u64) as usize;
    let life = stage.cluster.host(via)?;
    let node = life.env.clone();
    let call = life.env.launch("ask", async move {
        let target = NodeId(at as u32 + 1);
        node.within(Duration::from_millis(300), node.call(target, request)).await
    });
    let answer = stage.cluster.ask(&life, call).await?;
    let answer = answer.ok()?.ok()?.ok()?;
    (stage.cluster.storage(at) == Some(storage)).then_some(answer)
}

async fn write(stage: &Stage<()>, at: usize, storage: StorageId, key: u64, known: &mut Known) {
    let number = known.last + 1;
    let size = match stage.below(8) {
        0 => 0,
        1..=4 => 16 + stage.below(300) as u32,
        5 | 6 => 300 + stage.below(1_500) as u32,
        _ => 1_500 + stage.below(6_000) as u32,
    };
    let note = stage.below(4) == 0;
    let cell = if size < 16 { 0 } else { number };
    let before = known.clone();
    known.last = number;
    known.cell.push(cell);
    if note {
        known.noted.push(number);
    }
    match ask(stage, at, storage, Put { key, storage, number, size, note }).await {
        Some(PutDone { done: true }) => {
            known.cell = vec![cell];
            if note {
                known.noted = vec![number];
            }
            stage.count(Answered { writes: 1, reads: 0 });
        }
        Some(PutDone { done: false }) => {
            *known = before;
            hit("sim.cells.refused");
        }
        // The request may still be on its way. A later one must not overtake it.
        None => stage.env.sleep(Duration::from_millis(400)).await,
    }
}

async fn read(stage: &Stage<()>, at: usize, storage: StorageId, key: u64, known: &mut Known) {
    let Some(got) = ask(stage, at, storage, Get { key }).await else { return };
    let before = known.clone();
    if !known.take(&got) {
        let node = at + 1;
        stage
            .cluster
            .fail(format!("CELLS: node {node} answers {got:?} for key {key}; what it may have: {before:?}"));
    }
    stage.count(Answered { writes: 0, reads: 1 });
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6365_6c6c);
    let hosts = 2;
    let mut world = World::new(rng.bits(), hosts, Weather::default(), Shelves, out);
    let stage = stage(&mut world);
    for id in 0..6 {
        stage.spawn("client", client(stage.clone(), id, Duration::from_millis(8)));
    }
    let menu = Menu { crash: 8, crash_all: 1, crash_mid_turn: 3, slow_disk: 1, ..Menu::NONE };
    let menu = match rng.below(3) {
        0 => menu,
        1 => Menu { full_disk: 4, failing_disk: 3, ..menu },
        _ => Menu { rot: 4, lost_files: 6, wipe: 1, ..menu },
    };
    let faults = Faults {
        during: Duration::from_secs(20),
        may_lose: Box::new(|_| true),
        ..Faults::usual(menu, Duration::from_millis(250))
    };
    let is_lossy = menu.rot + menu.lost_files > 0;
    if !is_lossy {
        stage.spawn("inspector", inspector(stage.clone()));
    }
    let demand = demand(stage.clone());
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Watches for nodes that refuse their data directories, although nothing damaged them.
async fn inspector(stage: Stage<()>) {
    while !stage.over.is_up() {
        stage.env.sleep(Duration::from_millis(20)).await;
        for at in 0..stage.cluster.hosts() {
            if let Some(why) = stage.cluster.health(at).refused {
                stage.cluster.fail(format!("CELLS: node {} refuses a sound directory: {why}", at + 1));
            }
        }
    }
}

/// Writes to each node until it answers.
async fn demand(stage: Stage<()>) {
    for at in 0..stage.cluster.hosts() {
        stage.waits_for(format!("a write of node {}", at + 1));
        loop {
            if let Some(storage) = stage.cluster.storage(at) {
                let put = Put { key: u64::MAX, storage, number: 1, size: 100, note: true };
                if let Some(PutDone { done: true }) = ask(&stage, at, storage, put).await {
                    break;
                }
            }
            stage.pause(Duration::from_millis(50)).await;
        }
    }
}

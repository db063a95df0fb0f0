//! Runs one role without a node: a trace feeds it, and sees what it stages, sends and requests.
//!
//! | command | what happens |
//! | --- | --- |
//! | `sync [N]` | what is staged, up to record N if given, becomes durable |
//! | `after MS` | MS milliseconds pass |
//! | `deadline` | time passes until the role's deadline |
//! | `space plenty`, `space facts-only`, `space closed` | how much the journal accepts |
//! | `disk`, `disk damaged` | the pending reads are answered with the records, or with an error |
//! | `piece` | the role assembles the next piece of a checkpoint, which must not be the last |
//! | `checkpoint` | the role completes a checkpoint |
//! | `recycle` | the records that the role has freed are lost |
//! | `restart`, `restart alone` | the role starts again from its checkpoint and its journal; `alone` leaves out the journal's facts |
//!
//! In the output, `after N` marks what leaves only once everything up to position N is durable.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::Command;
use crate::cell::CellWrite;
use crate::frame::{Class, Frame};
use crate::ids::{Lsn, NodeId, RoleKind, Tick};
use crate::role::{Caller, Effect, Effects, FetchError, Loc, Record, RecordKind, Role, Space, Stored};

/// How a trace prints what only the role's protocol can decode.
#[derive(Clone, Copy, Debug)]
pub struct Wording {
    /// Formats a message that the role sends.
    pub message: fn(Frame) -> String,
    /// Formats a record that the role stages.
    pub record: fn(&Record) -> String,
}

/// A role without a node; see the module documentation.
pub struct LoneRole {
    make: Box<dyn Fn() -> Box<dyn Role>>,
    role: Box<dyn Role>,
    wording: Wording,
    out: Effects,
    now: Tick,
    /// Records that are staged and not durable yet.
    staged: Vec<(Lsn, Record)>,
    /// Writes of cells that are staged and not durable yet.
    staged_cells: Vec<(Lsn, CellWrite)>,
    /// Records that are durable.
    journal: Vec<Stored>,
    /// Cells that are durable, by key.
    cells: BTreeMap<Bytes, Bytes>,
    freed: Vec<Loc>,
    /// The last checkpoint, and the record up to which it replaces facts.
    checkpoint: Option<(Lsn, Bytes)>,
    /// The record up to which the checkpoint under construction replaces facts.
    covers: Option<Lsn>,
    /// The commands whose requests have no answer yet, by request number.
    asked: BTreeMap<u64, String>,
    next_request: u64,
    /// Pending reads, by tag.
    fetches: Vec<(u64, Vec<Loc>)>,
    /// The output of this turn.
    lines: Vec<String>,
}

/// Returns the location of a record, which encodes its number.
fn place(lsn: Lsn) -> Loc {
    Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes: 1 }
}

fn numbers(places: &[Loc]) -> String {
    places.iter().map(|loc| loc.offset_bytes.to_string()).collect::<Vec<_>>().join(" ")
}

impl LoneRole {
    /// Returns a role of this node and kind. `make` creates it, and again after each restart.
    pub fn new(
        node: NodeId,
        kind: RoleKind,
        wording: Wording,
        make: impl Fn() -> Box<dyn Role> + 'static,
    ) -> Self {
        LoneRole {
            role: make(),
            make: Box::new(make),
            wording,
            out: Effects::detached(node, kind, Lsn::NONE),
            now: Tick(1_000_000),
            staged: Vec::new(),
            staged_cells: Vec::new(),
            journal: Vec::new(),
            cells: BTreeMap::new(),
            freed: Vec::new(),
            checkpoint: None,
            covers: None,
            asked: BTreeMap::new(),
            next_request: 1,
            fetches: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Delivers a request. The output shows its answer together with this command.
    pub fn request(&mut self, from: NodeId, command: &str, frame: Frame) {
        let request = self.next_request;
        self.next_request += 1;
        self.asked.insert(request, command.to_owned());
        self.give(Caller { node: from, request: Some(request), class: Class::Data }, frame);
    }

    /// Delivers a one-way message.
    pub fn post(&mut self, from: NodeId, frame: Frame) {
        self.give(Caller { node: from, request: None, class: Class::Data }, frame);
    }

    fn give(&mut self, from: Caller, frame: Frame) {
        self.role.on_frame(self.now, from, frame, &mut self.out);
        self.gather();
    }

    /// Reports that a connection came up or went down.
    pub fn link(&mut self, peer: NodeId, class: Class, up: bool) {
        self.role.on_link(self.now, peer, class, up, &mut self.out);
        self.gather();
    }

    /// Carries out a command of the table above, which does not depend on the protocol.
    pub fn command(&mut self, name: &str, command: &mut Command) {
        match name {
            "sync" => self.sync(command.maybe_number()),
            "after" => {
                self.now = self.now.after(Duration::from_millis(command.number()));
                self.run_if_due();
            }
            "deadline" => match self.role.deadline() {
                Some(at) => {
                    self.lines.push(format!("{:?} later", at.since(self.now)));
                    self.now = self.now.max(at);
                    self.run_if_due();
                }
                None => self.lines.push("no deadline".to_owned()),
            },
            "space" => {
                self.out.space = match command.word() {
                    "plenty" => Space::Plenty,
                    "facts-only" => Space::FactsOnly,
                    "closed" => Space::Closed,
                    other => panic!("{other} is not a space"),
                };
                self.role.on_space(self.now, self.out.space, &mut self.out);
            }
            "disk" => self.answer_reads(command.flag("damaged")),
            "piece" => {
                self.covers.get_or_insert(self.out.durable);
                assert!(self.role.checkpoint(1).is_none(), "that was the last piece: say checkpoint");
            }
            "checkpoint" => {
                let covers = self.covers.take().unwrap_or(self.out.durable);
                let image = self.role.checkpoint(usize::MAX);
                self.checkpoint = image.map(|image| (covers, image));
            }
            "recycle" => self.journal.retain(|stored| !self.freed.contains(&stored.loc)),
            "restart" => self.restart(command.flag("alone")),
            other => panic!("{other} is no command"),
        }
        self.gather();
    }

    fn run_if_due(&mut self) {
        if self.role.deadline().is_some_and(|at| at <= self.now) {
            self.role.on_deadline(self.now, &mut self.out);
        }
    }

    fn sync(&mut self, upto: Option<u64>) {
        let count = self.staged.partition_point(|(lsn, _)| upto.is_none_or(|upto| lsn.0 <= upto));
        let durable: Vec<(Lsn, Record)> = self.staged.drain(..count).collect();
        let count = self.staged_cells.partition_point(|(lsn, _)| upto.is_none_or(|upto| lsn.0 <= upto));
        let cells: Vec<(Lsn, CellWrite)> = self.staged_cells.drain(..count).collect();
        let ends = [durable.last().map(|(lsn, _)| *lsn), cells.last().map(|(lsn, _)| *lsn)];
        let Some(upto) = ends.into_iter().flatten().max() else { return };
        self.out.durable = upto;
        for (_, CellWrite { key, value, .. }) in cells {
            match value {
                Some(value) => self.cells.insert(key, value),
                None => self.cells.remove(&key),
            };
        }
        let mine: Vec<(Lsn, Loc)> = durable.iter().map(|(lsn, _)| (*lsn, place(*lsn))).collect();
        self.journal.extend(durable.into_iter().map(|(lsn, record)| Stored { lsn, loc: place(lsn), record }));
        self.role.on_durable(self.now, upto, &mine, &mut self.out);
    }

    fn answer_reads(&mut self, damaged: bool) {
        for (tag, locs) in std::mem::take(&mut self.fetches) {
            let read = |loc: &Loc| self.journal.iter().find(|stored| stored.loc == *loc).cloned();
            let got = match damaged {
                true => Err(FetchError { reason: format!("record {} is damaged", numbers(&locs)) }),
                false => Ok(locs.iter().filter_map(read).collect()),
            };
            self.role.on_fetched(self.now, tag, got, &mut self.out);
        }
    }

    fn restart(&mut self, alone: bool) {
        self.out = Effects::detached(self.out.node, self.out.role, self.out.durable);
        self.role = (self.make)();
        self.staged.clear();
        self.staged_cells.clear();
        self.asked.clear();
        self.fetches.clear();
        self.covers = None;
        let mut replaced = Lsn::NONE;
        if let Some((covers, image)) = &self.checkpoint {
            replaced = *covers;
            self.role.restore(image.clone()).unwrap_or_else(|e| panic!("the checkpoint: {e}"));
        }
        // Facts are replayed twice, because a fact may be replayed over a checkpoint that already includes it.
        for pass in 1..=2 {
            for stored in &self.journal {
                let wanted = match stored.record.kind {
                    RecordKind::Entry => pass == 1,
                    RecordKind::Fact => stored.lsn > replaced && !alone,
                };
                if wanted {
                    let recovered = self.role.recover(stored.clone());
                    recovered.unwrap_or_else(|e| panic!("record {}: {e}", stored.lsn.0));
                }
            }
        }
        for (key, value) in &self.cells {
            let recovered = self.role.recover_cell(key.clone(), value.clone());
            recovered.unwrap_or_else(|e| panic!("cell {}: {e}", key.escape_ascii()));
        }
        let dead = self.role.recovered();
        self.out.free(dead);
    }

    /// Adds to the output what the role has staged, freed and requested since the last call.
    fn gather(&mut self) {
        for (lsn, record) in self.out.take_staged() {
            self.lines.push(format!("journal {}: {}", lsn.0, (self.wording.record)(&record)));
            self.staged.push((lsn, record));
        }
        for (lsn, cell) in self.out.take_cells() {
            let key = cell.key.escape_ascii();
            self.lines.push(match &cell.value {
                Some(value) => format!("cell {}: {key}, {} bytes", lsn.0, value.len()),
                None => format!("cell {}: {key} deleted", lsn.0),
            });
            self.staged_cells.push((lsn, cell));
        }
        let freed = self.out.take_freed();
        if !freed.is_empty() {
            self.lines.push(format!("free {}", numbers(&freed)));
            self.freed.extend(freed);
        }
        for (reveals, effect) in std::mem::take(&mut self.out.todo) {
            let after = match reveals > self.out.durable {
                true => format!(", after {}", reveals.0),
                false => String::new(),
            };
            let line = match effect {
                Effect::Reply { to, frame, .. } => {
                    // An answer to a post is dropped.
                    let Some(request) = to.request else { continue };
                    let command = self.asked.remove(&request);
                    let command = command.as_deref().unwrap_or("answered before");
                    format!("reply to {} ({command}){after}: {}", to.node, (self.wording.message)(frame))
                }
                Effect::Post { to, frame, .. } => {
                    format!("send to {to}{after}: {}", (self.wording.message)(frame))
                }
                Effect::Run { name, .. } => format!("run {name}"),
                Effect::Fetch { tag, locs, .. } => {
                    let line = format!("read {}", numbers(&locs));
                    self.fetches.push((tag, locs));
                    line
                }
                Effect::Finish(_) => format!("finish{after}"),
            };
            self.lines.push(line);
        }
    }

    /// Ends a turn and returns its output.
    pub fn end_turn(&mut self) -> Vec<String> {
        self.role.flush(self.now, &mut self.out);
        self.gather();
        std::mem::take(&mut self.lines)
    }
}

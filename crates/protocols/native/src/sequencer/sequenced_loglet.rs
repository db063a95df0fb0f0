//! One loglet at its sequencer: its offsets, the entries in flight, what each server has, and when an append is committed (native §4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::loglet::offsets::ascend;
use atoll_contract::{Batch, Offset};
use atoll_core::Budget;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Lsn, NodeId, Tick};

use super::window::Window;
use crate::config::NativeConfig;
use crate::invariants;
use crate::message::{Ordered, StoredUpTo, Verdict};
use crate::mutants;
use atoll_loglet_store::deduplicator::{Deduplicator, Forgotten};
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_loglet_store::intake::{Arrived, Intake};

/// Appends that arrive closer together than this are dense: the next Store carries the known tail to the servers soon enough. Too large:
/// servers that wait for the end of a tail wait longer. Too small: each append of a lone client causes another message to each server.
const DENSE: Duration = Duration::from_micros(300);
/// Longer gaps between appends count as this long, so that a few dense gaps outweigh one of them.
const SPARSE: Duration = Duration::from_millis(1);
/// How long after the last append the known tail waits for a Store.
const TELL_WITHIN: Duration = Duration::from_millis(1);

/// Whether a loglet is open, draining or sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequencingState {
    /// The loglet accepts appends.
    Open,
    /// Some server is sealed. The sequencer accepts no appends, completes the seal, and waits for the outcome of entries in flight
    /// (native-T15).
    Draining,
    /// A majority is sealed, or no entry is in flight any more.
    Sealed,
}

/// The sequencer's view of one server: a cursor into the window, never a copy (native-T20).
#[derive(Debug)]
pub(super) struct Server {
    pub node: NodeId,
    /// Highest local tail that the server reported while unsealed. It holds every offset of [known tail, this).
    pub stored: Offset,
    /// The next offset to send.
    pub next: Offset,
    /// The round of Stores; going back starts a new one (X10).
    pub round: u32,
    pub sealed: bool,
    /// Whether the server knows the configuration, because it has answered.
    pub configured: bool,
    /// Whether the disk of the server is full.
    pub full: bool,
    /// Whether the server has the wrong identity or a closed journal, so that it will not store in its current life.
    pub useless: bool,
    /// The known tail that was last sent to the server, and the one that it has confirmed.
    pub sent_tail: Offset,
    pub confirmed: Offset,
    /// The offset to which the server last made the sequencer go back, and why. None once it has stored something since.
    pub went_back: Option<(Offset, Verdict)>,
    /// When the server last made progress, or was sent something while idle.
    pub progress_at: Tick,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub caller: Caller,
    pub runs: Vec<(Offset, u32)>,
    pub since: Tick,
}

/// See the module documentation.
pub(super) struct SequencedLoglet {
    pub config: NativeConfig,
    pub config_bytes: Bytes,
    pub state: SequencingState,
    pub next: Offset,
    pub known_tail: Offset,
    pub window: Window,
    /// Appends that wait for room in the window.
    pub intake: Intake,
    pub servers: Vec<Server>,
    /// Appends that wait for their answer, by the offset below which everything must be committed, then by arrival.
    pub waiting: BTreeMap<(Offset, u64), Waiting>,
    arrivals: u64,
    /// When the last append arrived, and the smoothed gap between appends.
    arrived_at: Tick,
    gap: Duration,
    pub deduplicator: Deduplicator,
    /// Whether the procedure that completes the seal is running.
    pub sealing: bool,
    /// Whether that procedure has ended with a sealed majority.
    pub seal_done: bool,
}

impl SequencedLoglet {
    pub fn new(
        config: NativeConfig,
        config_bytes: Bytes,
        dedupe_spans: usize,
        (in_flight, held): (Arc<Budget>, Arc<Budget>),
        now: Tick,
    ) -> Self {
        let server = |node: &NodeId| Server {
            node: *node,
            stored: Offset::ZERO,
            next: Offset::ZERO,
            round: 0,
            sealed: false,
            configured: false,
            full: false,
            useless: false,
            sent_tail: Offset::ZERO,
            confirmed: Offset::ZERO,
            went_back: None,
            progress_at: now,
        };
        let servers = config.nodes().iter().map(server).collect();
        SequencedLoglet {
            config,
            config_bytes,
            state: SequencingState::Open,
            next: Offset::ZERO,
            known_tail: Offset::ZERO,
            window: Window::new(in_flight),
            intake: Intake::new(held),
            servers,
            waiting: BTreeMap::new(),
            arrivals: 0,
            arrived_at: now,
            gap: SPARSE,
            deduplicator: Deduplicator::new(dedupe_spans, Offset::ZERO),
            sealing: false,
            seal_done: false,
        }
    }

    /// Returns why an append of this handle is refused, whether or not the window has room for it.
    pub fn refusal(&self, node: NodeId, place: HandlePlace) -> Option<Ordered> {
        if self.state != SequencingState::Open {
            return Some(Ordered::Sealed {});
        }
        if !self.deduplicator.in_order(node, place) {
            hit("native.sequencer.lane_gap");
            return Some(Ordered::Busy {});
        }
        (self.is_full() && !self.window.is_empty()).then_some(Ordered::DiskFull {})
    }

    /// Assigns offsets to the new entries of an append, and finds those of earlier attempts. Returns why it cannot. The caller has checked
    /// for room and for a [refusal](SequencedLoglet::refusal).
    pub fn order(&mut self, now: Tick, append: Arrived) -> Result<(), Ordered> {
        let Arrived { caller, place, not_below, batch, at } = append;
        let batch = Batch::parse(batch).map_err(|_| Ordered::TooLarge {})?;
        let parts = self.deduplicator.place(&batch, self.next, not_below);
        let parts = parts.map_err(|Forgotten| Ordered::Forgotten {})?;
        self.deduplicator.took(caller.node, place);
        let (mut runs, mut end) = (Vec::with_capacity(parts.len()), Offset::ZERO);
        for part in parts {
            let (first, count) = (part.first, part.count);
            let upto = first.plus(count.into());
            match part.new {
                Some(entries) => {
                    self.window.push(first, count, entries.bytes().clone());
                    self.next = upto;
                }
                None => hit("native.sequencer.duplicate"),
            }
            end = end.max(upto);
            runs.push((first, count));
        }
        self.deduplicator.forget_below(self.known_tail);
        self.arrivals += 1;
        let gap = Duration::from_nanos(now.0.saturating_sub(self.arrived_at.0)).min(SPARSE);
        (self.arrived_at, self.gap) = (now, (self.gap * 7 + gap) / 8);
        self.waiting.insert((end, self.arrivals), Waiting { caller, runs, since: at });
        Ok(())
    }

    /// Handles a server's report. Only entries that it stored while unsealed count (native-T1, native-T2, native-T5). Returns true if the
    /// loglet must be drained.
    pub fn on_stored(&mut self, now: Tick, from: NodeId, m: &StoredUpTo) -> bool {
        let (known_tail, next) = (self.known_tail, self.next);
        let Some(server) = self.servers.iter_mut().find(|s| s.node == from) else { return false };
        server.configured = !matches!(m.verdict, Verdict::Unconfigured {});
        server.confirmed = server.confirmed.max(m.state.known_tail);
        if m.state.sealed || matches!(m.verdict, Verdict::Sealed {} | Verdict::Gone {}) {
            server.sealed = true;
            if mutant(mutants::NATIVE_T2) {
                self.known_tail = known_tail.max(m.state.known_tail.min(next));
            }
            return true;
        }
        invariants::not_ahead_of_its_source(m.state.known_tail, known_tail);
        if m.state.local_tail > server.stored {
            server.stored = m.state.local_tail;
            server.went_back = None;
            server.progress_at = now;
            server.next = server.next.max(server.stored.min(next));
        }
        match m.verdict {
            Verdict::OutOfOrder {} | Verdict::Unconfigured {} if m.round == server.round => {
                // Go back at once only the first time. If the server does not get past this offset, wait before the next attempt (X10).
                // Otherwise the two would exchange messages without a pause, and endlessly if both are on one node.
                let to = m.expects.max(known_tail).min(next);
                if server.went_back.replace((to, m.verdict.clone())) == Some((to, m.verdict.clone())) {
                    hit("native.sequencer.no_way_back");
                } else {
                    hit("native.sequencer.go_back");
                    server.go_back(to);
                }
            }
            Verdict::DiskFull {} => server.full = true,
            Verdict::Done {} => server.full = false,
            Verdict::WrongIdentity {} | Verdict::StorageFailed {} | Verdict::WrongSequencer {} => {
                server.useless = true;
            }
            _ => {}
        }
        false
    }

    /// Raises the known tail to what a majority of all servers stored (native-T5), and for no other reason (native-T2). Returns true if it
    /// rose.
    pub fn commit(&mut self) -> bool {
        let mut stored: Vec<Offset> = self.servers.iter().map(|s| s.stored).collect();
        let mut quorum = self.config.quorum();
        if mutant(mutants::NATIVE_T5) {
            stored = self.servers.iter().filter(|s| !s.sealed).map(|s| s.stored).collect();
            quorum = stored.len() / 2 + 1;
        }
        stored.sort_unstable_by(|a, b| b.cmp(a));
        let reached = stored.get(quorum - 1).copied().unwrap_or_default().min(self.next);
        if reached > self.known_tail {
            self.known_tail = reached;
        }
        ascend(&[("known tail", self.known_tail), ("next offset", self.next)]);
        let before = self.window.len();
        self.window.commit(self.known_tail);
        before != self.window.len()
    }

    /// Removes and returns the appends that are committed now, in order.
    pub fn take_committed(&mut self) -> Vec<Waiting> {
        let mut done = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            if entry.key().0 > self.known_tail {
                break;
            }
            done.push(entry.remove());
        }
        done
    }

    /// Returns until when the known tail may wait for a Store that carries it, which saves a message to every server. None if appends are
    /// so rare that no Store is likely to come in time.
    pub fn carried_by(&self) -> Option<Tick> {
        (self.state == SequencingState::Open && self.gap < DENSE).then(|| self.arrived_at.after(TELL_WITHIN))
    }

    /// Returns the number of sealed servers.
    pub fn sealed_servers(&self) -> usize {
        self.servers.iter().filter(|s| s.sealed).count()
    }

    /// Returns whether so many disks are full that no majority can store.
    pub fn is_full(&self) -> bool {
        let usable = self.servers.iter().filter(|s| !s.full && !s.useless).count();
        usable < self.config.quorum() && self.servers.iter().any(|s| s.full)
    }
}

impl Server {
    /// Sends again from `to` on.
    pub fn go_back(&mut self, to: Offset) {
        self.next = to.max(self.stored);
        self.round = self.round.wrapping_add(1);
    }

    /// Returns true if the server has not yet stored everything below `next`, and still can.
    pub fn owes(&self, next: Offset) -> bool {
        !self.sealed && !self.useless && self.stored < next
    }
}

/// The facts that [`StoredUpTo`] reveals were already durable at its sender.
pub(super) const NOTHING_STAGED: Lsn = Lsn::NONE;

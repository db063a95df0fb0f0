//! One loglet at its sequencer: its offsets, the entries in flight, what each server has, and when an append is committed (native §4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{Batch, Offset};
use atoll_core::Budget;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Lsn, NodeId, Tick};

use super::window::Window;
use crate::config::NativeConfig;
use crate::invariants;
use crate::message::{StoredUpTo, Verdict};
use crate::mutants;
use atoll_loglet_store::deduplicator::{Deduplicator, Forgotten};

/// Appends that arrive closer together than this are dense: the next Store tells servers the known tail soon enough. Too large:
/// servers that wait for the end of a tail wait longer. Too small: each append of a lone client causes another message to each
/// server.
const DENSE: Duration = Duration::from_micros(300);
/// The longest gap that counts, so that a number of dense gaps can make up for it.
const SPARSE: Duration = Duration::from_millis(1);
/// The known tail waits for a Store no longer than this after the last append.
const TELL_WITHIN: Duration = Duration::from_millis(1);

/// Open, or on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequencingState {
    /// The loglet accepts appends.
    Open,
    /// Some server is sealed: accepts no appends, completes the seal, and lets entries in flight resolve (native-T15).
    Draining,
    /// A majority is sealed, or nothing is in flight any more.
    Sealed,
}

/// The sequencer's view of one server: a cursor into the window, never a copy (native-T20).
#[derive(Debug)]
pub(super) struct Server {
    pub node: NodeId,
    /// Highest local tail that the server reported while unsealed: it holds every offset of [known tail, this).
    pub stored: Offset,
    /// The next offset to send.
    pub next: Offset,
    /// The round of Stores; going back starts a new one (X10).
    pub round: u32,
    pub sealed: bool,
    /// It has answered, so it knows the configuration.
    pub configured: bool,
    /// Its disk is full.
    pub full: bool,
    /// The server has the wrong identity, or a closed journal: it will not store in its current life.
    pub useless: bool,
    /// The known tail last sent to the server, and the one that it confirmed.
    pub told: Offset,
    pub confirmed: Offset,
    /// The offset to which the server last made the sequencer go back, and why, since it last stored something.
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
    pub servers: Vec<Server>,
    /// Appends by the offset below which all must be committed, then by arrival.
    pub waiting: BTreeMap<(Offset, u64), Waiting>,
    arrivals: u64,
    /// When the last append came, and how far apart they come, smoothed.
    arrived_at: Tick,
    gap: Duration,
    pub deduplicator: Deduplicator,
    /// True while the procedure that completes the seal runs.
    pub sealing: bool,
    /// That procedure has ended with a majority.
    pub seal_done: bool,
}

impl SequencedLoglet {
    pub fn new(
        config: NativeConfig,
        config_bytes: Bytes,
        dedupe_spans: usize,
        shared: Arc<Budget>,
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
            told: Offset::ZERO,
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
            window: Window::new(shared),
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

    /// Assigns offsets to the new entries of a batch, and finds those of earlier attempts.
    pub fn order(
        &mut self,
        now: Tick,
        caller: Caller,
        batch: &Batch,
        not_below: Offset,
    ) -> Result<(), Forgotten> {
        let parts = self.deduplicator.place(batch, self.next, not_below)?;
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
        self.waiting.insert((end, self.arrivals), Waiting { caller, runs, since: now });
        Ok(())
    }

    /// Handles a server's report. Only entries that it stored while unsealed count (native-T1, native-T2, native-T5). True if the
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
                // Go back at once only the first time. A server that does not get past this offset is given time (X10);
                // otherwise the two would exchange messages without a pause and, on one node, without end.
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

    /// Raises the known tail to what a majority of all servers stored (native-T5), and never further for any other reason (native-T2).
    /// True if it rose.
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
        let before = self.window.len();
        self.window.commit(self.known_tail);
        before != self.window.len()
    }

    /// Takes the appends that are committed now, in order.
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

    /// Until when the known tail may wait for a Store that carries it, which saves a message to every server. None if appends are so
    /// rare that it would wait in vain.
    pub fn carried_by(&self) -> Option<Tick> {
        (self.state == SequencingState::Open && self.gap < DENSE).then(|| self.arrived_at.after(TELL_WITHIN))
    }

    /// The number of sealed servers.
    pub fn sealed_servers(&self) -> usize {
        self.servers.iter().filter(|s| s.sealed).count()
    }

    /// Whether so many disks are full that no majority can store.
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

    /// True if the server has been sent something that it has not answered, or lacks entries.
    pub fn owes(&self, next: Offset) -> bool {
        !self.sealed && !self.useless && self.stored < next
    }
}

/// The facts that [`StoredUpTo`] reveals were already durable at its sender.
pub(super) const NOTHING_STAGED: Lsn = Lsn::NONE;

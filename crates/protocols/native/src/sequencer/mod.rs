//! The sequencer assigns positions: it gives each batch the next offsets of its loglet, sends every entry to every server, and
//! acknowledges, in order, the entries that a majority stored (native §4).
//!
//! Its state is lost with its life. A configuration names that life, so no other life ever assigns the same offsets (native-T6).
//!
//! | file | what it is |
//! | --- | --- |
//! | `sequenced_loglet.rs` | one loglet: offsets, acks, duplicates |
//! | `window.rs` | the entries in flight |
//! | `sending.rs` | Stores, rounds, the known tail; what happens when no answer comes |

mod sending;
mod sequenced_loglet;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::LogletId;
use atoll_core::Budget;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, DecodeError, Effects, Env, Frame, Loc, Lsn, Measure, Message, NodeId, Refused, Role, Tick,
};

use self::sequenced_loglet::{NOTHING_STAGED, SequencedLoglet, SequencingState};
use self::window::Window;
use super::config;
use super::loglet::ServerSet;
use super::message::*;
use crate::mutants;
use crate::roles::SEQUENCER;
use atoll_loglet_store::intake::Arrived;

/// Limits and intervals of a sequencer.
#[derive(Clone, Debug)]
pub struct SequencerOptions {
    /// Maximum number of bytes in flight per loglet. Further appends wait for room.
    pub window_bytes: u64,
    /// The same limit for all loglets together. Too small: loglets without a majority hold up others. Too large: memory.
    pub node_window_bytes: usize,
    /// Maximum number of bytes of appends that wait for room in the windows, for all loglets together. Further appends are refused as
    /// busy. Too small: their senders pause. Too large: memory.
    pub held_bytes: usize,
    /// Maximum number of bytes that are sent to one server and not yet stored. Beyond that, the server is only a cursor that waits
    /// (native-T20).
    pub server_window_bytes: u64,
    /// How long a server may be silent before its Stores are sent again. Too small: a slow disk gets everything twice.
    pub resend_after: Duration,
    /// How long an append may wait for a majority before it is answered that there is none.
    pub quorum_patience: Duration,
    /// Number of spans of operations that are remembered per loglet, 32 bytes each.
    pub dedupe_spans: usize,
}

impl Default for SequencerOptions {
    fn default() -> Self {
        SequencerOptions {
            window_bytes: 64 << 20,
            node_window_bytes: 256 << 20,
            held_bytes: 64 << 20,
            server_window_bytes: 16 << 20,
            resend_after: Duration::from_millis(200),
            quorum_patience: Duration::from_millis(700),
            dedupe_spans: 512 * 1024,
        }
    }
}

impl SequencerOptions {
    /// Returns whether a batch fits into the window of its loglet, and into what all windows may hold together. An empty window takes a
    /// batch of any size.
    fn has_room(&self, window: &Window, in_flight: &Budget, bytes: usize) -> bool {
        let own_bytes = window.len_bytes();
        if own_bytes > 0 && own_bytes + bytes as u64 > self.window_bytes {
            hit("native.sequencer.window_full");
            return false;
        }
        let fits = in_flight.has_room(own_bytes as usize, bytes);
        if !fits {
            hit("native.sequencer.all_windows_full");
        }
        fits
    }
}

/// See the module documentation. One object serves all native loglets that this life of the node orders.
pub struct Sequencer {
    env: Env,
    options: SequencerOptions,
    loglets: BTreeMap<LogletId, SequencedLoglet>,
    /// Bytes in the windows of all loglets.
    in_flight: Arc<Budget>,
    /// Bytes of the appends to all loglets that wait for room.
    held: Arc<Budget>,
    /// The loglets to which some append waits for room.
    holding: BTreeSet<LogletId>,
    /// Sealed loglets. They are never opened again in this life, or offsets would be assigned twice. 16 bytes per segment.
    closed: BTreeSet<LogletId>,
    touched: BTreeSet<LogletId>,
    /// The next deadline of each loglet that has one, the earliest first.
    due: BTreeSet<(Tick, LogletId)>,
    /// The same by loglet.
    due_at: BTreeMap<LogletId, Tick>,
    committed: u64,
}

impl Sequencer {
    /// Creates a sequencer in the node and the life of `env`.
    pub fn new(env: Env, options: SequencerOptions) -> Self {
        Sequencer {
            env,
            in_flight: Arc::new(Budget::new(options.node_window_bytes)),
            held: Arc::new(Budget::new(options.held_bytes)),
            holding: BTreeSet::new(),
            options,
            loglets: BTreeMap::new(),
            closed: BTreeSet::new(),
            touched: BTreeSet::new(),
            due: BTreeSet::new(),
            due_at: BTreeMap::new(),
            committed: 0,
        }
    }

    fn reply(&self, to: Caller, loglet: LogletId, outcome: Ordered, out: &mut Effects) {
        let known_tail = self.loglets.get(&loglet).map(|o| o.known_tail).unwrap_or_default();
        out.reply(to, Appended { outcome, known_tail }, NOTHING_STAGED);
    }

    fn on_append(&mut self, now: Tick, from: Caller, m: Append, out: &mut Effects) {
        let loglet = m.loglet;
        if let Err(outcome) = self.take(now, from, m) {
            self.reply(from, loglet, outcome, out);
        }
        self.touched.insert(loglet);
    }

    /// Orders an append, or holds it until there is room for it, or returns why neither is possible. A second copy of an append is ignored:
    /// the first one gets the answer.
    fn take(&mut self, now: Tick, from: Caller, m: Append) -> Result<(), Ordered> {
        if m.life != self.env.incarnation() && !mutant(mutants::NATIVE_T6) {
            hit("native.sequencer.other_life");
            return Err(Ordered::WrongSequencer {});
        }
        if self.closed.contains(&m.loglet) {
            return Err(Ordered::Sealed {});
        }
        if !self.loglets.contains_key(&m.loglet) {
            self.open(now, m.loglet, &m.config)?;
        }
        let Some(ordering) = self.loglets.get_mut(&m.loglet) else { return Err(Ordered::Unconfigured {}) };
        if ordering.state != SequencingState::Open {
            return Err(Ordered::Sealed {});
        }
        let (place, not_below, batch) = (m.place, m.not_below, m.batch);
        if ordering.deduplicator.may_be_taken(from.node, place) || ordering.intake.holds(from.node, place) {
            hit("native.sequencer.copy");
            return Ok(());
        }
        let append = Arrived { caller: from, place, not_below, batch, at: now };
        // What arrives later waits too, so that nothing overtakes an append of the same handle (vlog-L8).
        if ordering.intake.is_empty() {
            if let Some(refusal) = ordering.refusal(from.node, place) {
                return Err(refusal);
            }
            if self.options.has_room(&ordering.window, &self.in_flight, append.batch.len()) {
                return ordering.order(now, append);
            }
        }
        hit("native.sequencer.held");
        if !ordering.intake.hold(append) {
            hit("native.sequencer.all_held_full");
            return Err(Ordered::Busy {});
        }
        self.holding.insert(m.loglet);
        Ok(())
    }

    /// Orders the appends that wait for room, as far as there is room now, and answers those that are refused.
    fn admit(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        if !self.holding.contains(&loglet) {
            return;
        }
        while let Some(ordering) = self.loglets.get_mut(&loglet)
            && let Some(first) = ordering.intake.first()
        {
            let (caller, bytes) = (first.caller, first.batch.len());
            let mut refusal = ordering.refusal(caller.node, first.place);
            if refusal.is_none() && !self.options.has_room(&ordering.window, &self.in_flight, bytes) {
                return;
            }
            if let Some(append) = ordering.intake.pop()
                && refusal.is_none()
            {
                hit("native.sequencer.admitted");
                refusal = ordering.order(now, append).err();
            }
            if let Some(refusal) = refusal {
                self.reply(caller, loglet, refusal, out);
            }
        }
        self.holding.remove(&loglet);
    }

    /// Starts to order a loglet, if its configuration names this node and this life.
    fn open(&mut self, now: Tick, loglet: LogletId, config: &Bytes) -> Result<(), Ordered> {
        if config.is_empty() {
            return Err(Ordered::Unconfigured {});
        }
        let parsed = config::parse(config).map_err(|_| Ordered::WrongSequencer {})?;
        let me = (self.env.node(), self.env.incarnation());
        if parsed.sequencer != me && !mutant(mutants::NATIVE_T6) {
            return Err(Ordered::WrongSequencer {});
        }
        let config = Bytes::copy_from_slice(config);
        let budgets = (self.in_flight.clone(), self.held.clone());
        let ordering = SequencedLoglet::new(parsed, config, self.options.dedupe_spans, budgets, now);
        self.loglets.insert(loglet, ordering);
        Ok(())
    }

    fn on_stored(&mut self, now: Tick, from: Caller, m: StoredUpTo, out: &mut Effects) {
        let Some(ordering) = self.loglets.get_mut(&m.loglet) else { return };
        if ordering.on_stored(now, from.node, &m) && ordering.state == SequencingState::Open {
            hit("native.seal.draining");
            ordering.state = SequencingState::Draining;
            self.complete_seal(m.loglet, out);
        }
        self.touched.insert(m.loglet);
    }

    /// Starts the procedure that completes a seal. The sealer may be dead, and an incomplete seal would leave appends without an answer
    /// (native-T15).
    fn complete_seal(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(ordering) = self.loglets.get_mut(&loglet) else { return };
        if std::mem::replace(&mut ordering.sealing, true) {
            return;
        }
        let (env, config) = (self.env.clone(), ordering.config.clone());
        let group =
            ServerSet::new(env.clone(), loglet, config, ordering.config_bytes.clone(), Default::default());
        let procedure = async move {
            let sealed = group.seal().await.is_ok();
            let ended = SealEnded { loglet, sealed };
            env.post(env.node(), Class::Control, SEQUENCER, ended);
        };
        out.run("native.complete_seal", Box::pin(procedure));
    }

    fn on_seal_ended(&mut self, from: Caller, m: SealEnded) {
        if from.node == self.env.node()
            && let Some(ordering) = self.loglets.get_mut(&m.loglet)
        {
            ordering.sealing = false;
            ordering.seal_done |= m.sealed;
            self.touched.insert(m.loglet);
        }
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Append::KIND => self.on_append(now, from, Append::from_frame(f)?, out),
            StoredUpTo::KIND => self.on_stored(now, from, StoredUpTo::from_frame(f)?, out),
            SealEnded::KIND => self.on_seal_ended(from, SealEnded::from_frame(f)?),
            got => return Err(DecodeError::WrongKind { expected: "a message for a sequencer", got }),
        }
        Ok(())
    }
}

impl Role for Sequencer {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, NOTHING_STAGED);
        }
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}

    fn deadline(&self) -> Option<Tick> {
        self.due.first().map(|(at, _)| *at)
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        while let Some((at, loglet)) = self.due.first().copied() {
            if at > now {
                break;
            }
            self.due.pop_first();
            self.due_at.remove(&loglet);
            self.look_after(now, loglet, out);
            self.touched.insert(loglet);
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        for loglet in std::mem::take(&mut self.touched) {
            self.advance(now, loglet, out);
        }
        // What one loglet commits makes room for the others too.
        for loglet in self.holding.clone() {
            self.advance(now, loglet, out);
        }
    }

    fn on_link(&mut self, now: Tick, peer: NodeId, class: Class, up: bool, _out: &mut Effects) {
        if class == Class::Data && up {
            self.reconnected(now, peer);
        }
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let mut put = |name, value: f64| out.push(Measure { name, label: None, value });
        put("sequencer_loglets", self.loglets.len() as f64);
        put("sequencer_committed_batches_total", self.committed as f64);
        put("sequencer_window_bytes", self.in_flight.used_bytes() as f64);
        put(
            "sequencer_waiting_appends",
            self.loglets.values().map(|o| (o.waiting.len() + o.intake.len()) as f64).sum(),
        );
    }
}

//! What the sequencer sends: Stores in order, the known tail when no Store carries it (X14), and answers. Also what it does when no answer
//! comes.

use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{Class, Effects, Env, Frame, Link, Message, NodeId, Tick};

use super::Sequencer;
use super::sequenced_loglet::{NOTHING_STAGED, SequencedLoglet, SequencingState, Server};
use super::window::InFlight;
use crate::message::*;
use crate::roles::LOG_SERVER;

/// How soon to try again when a connection's queue is full.
const QUEUE_RETRY: Duration = Duration::from_millis(5);

fn store_frame(
    loglet: LogletId,
    ordering: &SequencedLoglet,
    env: &Env,
    run: &InFlight,
    server: &Server,
) -> Frame {
    let store = Store {
        loglet,
        config: if server.configured { Bytes::new() } else { ordering.config_bytes.clone() },
        life: env.incarnation(),
        round: server.round,
        first: run.first,
        count: run.count,
        known_tail: ordering.known_tail,
        batch: run.batch.clone(),
    };
    store.into_frame(LOG_SERVER)
}

impl Sequencer {
    /// Ends a turn for one loglet: commits entries, answers appends, and sends messages.
    pub(super) fn advance(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let Some(ordering) = self.loglets.get_mut(&loglet) else { return };
        ordering.commit();
        let known_tail = ordering.known_tail;
        for done in ordering.take_committed() {
            self.committed += 1;
            let outcome = Ordered::Committed { runs: done.runs };
            out.reply(done.caller, Appended { outcome, known_tail }, NOTHING_STAGED);
        }
        self.admit(now, loglet, out);
        let Some(ordering) = self.loglets.get_mut(&loglet) else { return };
        if ordering.state != SequencingState::Open {
            let enough = ordering.sealed_servers() >= ordering.config.quorum();
            if enough || ordering.waiting.is_empty() {
                ordering.state = SequencingState::Sealed;
            }
        }
        if ordering.state == SequencingState::Sealed {
            return self.close(now, loglet, out);
        }
        self.send(now, loglet, out);
        self.set_due(now, loglet);
    }

    /// Handles a sealed majority: all offsets in flight and all later ones fail (native §4). What remains is to answer their appends.
    fn close(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let Some(ordering) = self.loglets.get_mut(&loglet) else { return };
        let known_tail = ordering.known_tail;
        for (_, failed) in std::mem::take(&mut ordering.waiting) {
            hit("native.sequencer.failed_by_seal");
            out.reply(failed.caller, Appended { outcome: Ordered::Sealed {}, known_tail }, NOTHING_STAGED);
        }
        ordering.window.clear();
        // If nothing was in flight, the seal itself may not be on a majority yet: the seal procedure continues, and its deadline stays.
        let enough = ordering.seal_done || ordering.sealed_servers() >= ordering.config.quorum();
        let done = enough && !ordering.sealing;
        if done {
            self.clear_due(loglet);
            self.loglets.remove(&loglet);
            self.closed.insert(loglet);
        } else {
            self.set_due(now, loglet);
        }
    }

    /// Sends each server as many entries as fit its window.
    fn send(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let Some(ordering) = self.loglets.get_mut(&loglet) else { return };
        // A run that goes to several servers in this turn is encoded once: (offset, round, configured) determines the bytes.
        let mut shared: Option<(Offset, u32, bool, Frame)> = None;
        for i in 0..ordering.servers.len() {
            let server = &mut ordering.servers[i];
            // Committed entries are dropped from a slow server's cursor; the server fetches them from its peers (X7).
            if server.next < ordering.known_tail {
                hit("native.sequencer.skipped_committed");
                server.next = ordering.known_tail;
            }
            if server.sealed || server.useless || self.env.link(server.node, Class::Data) != Link::Up {
                continue;
            }
            let mut sent = false;
            loop {
                let server = &ordering.servers[i];
                let from = server.stored.max(ordering.known_tail);
                let Some(run) = ordering.window.run_at(server.next) else { break };
                let in_flight = ordering.window.bytes_between(from, server.next);
                if in_flight > 0 && in_flight + run.batch.len() as u64 > self.options.server_window_bytes {
                    hit("native.sequencer.slow_server");
                    break;
                }
                let key = (run.first, server.round, server.configured);
                let frame = match &shared {
                    Some((first, round, configured, frame)) if key == (*first, *round, *configured) => {
                        frame.clone()
                    }
                    _ => store_frame(loglet, ordering, &self.env, run, server),
                };
                let end = run.end();
                out.post_frame(server.node, Class::Data, frame.clone(), NOTHING_STAGED);
                shared = Some((key.0, key.1, key.2, frame));
                let server = &mut ordering.servers[i];
                if !server.owes(server.next) {
                    server.progress_at = now;
                }
                server.next = end;
                sent = true;
            }
            // Send the known tail by itself only if no Store is about to carry it (X14).
            let alone = ordering.window.is_empty() && ordering.carried_by().is_none_or(|at| at <= now);
            let server = &mut ordering.servers[i];
            if sent {
                server.sent_tail = ordering.known_tail;
            } else if alone && server.sent_tail < ordering.known_tail {
                server.sent_tail = ordering.known_tail;
                server.progress_at = now;
                let (life, known_tail) = (self.env.incarnation(), ordering.known_tail);
                let message = Advance { loglet, life, known_tail, confirm: false };
                out.post(server.node, Class::Data, LOG_SERVER, message, NOTHING_STAGED);
            }
        }
    }

    /// Sets the next deadline of a loglet, at which something may have been lost.
    fn set_due(&mut self, now: Tick, loglet: LogletId) {
        let Some(ordering) = self.loglets.get(&loglet) else { return };
        let resend = self.options.resend_after;
        let mut at: Option<Tick> = None;
        let mut by = |tick: Tick| at = Some(at.map_or(tick, |a: Tick| a.min(tick)));
        for server in &ordering.servers {
            if server.useless || (server.sealed && ordering.state == SequencingState::Open) {
                continue;
            }
            let unstored = !ordering.window.is_empty() && server.owes(ordering.next);
            let unconfirmed =
                ordering.window.is_empty() && server.confirmed < ordering.known_tail && !server.sealed;
            let unsent =
                server.next < ordering.next || (unconfirmed && server.sent_tail < ordering.known_tail);
            match self.env.link(server.node, Class::Data) {
                Link::Up if unstored || unconfirmed => by(server.progress_at.after(resend)),
                // Nobody reports that the queue has room again.
                Link::Full if unsent && !server.sealed => {
                    hit("native.sequencer.queue_full");
                    by(now.after(QUEUE_RETRY));
                }
                Link::Full if unstored || unconfirmed => by(now.after(resend)),
                Link::Up | Link::Full | Link::Down => {}
            }
            if unconfirmed
                && server.sent_tail < ordering.known_tail
                && let Some(at) = ordering.carried_by()
            {
                by(at);
            }
        }
        if ordering.state != SequencingState::Open && !ordering.sealing {
            by(now.after(resend));
        }
        if let Some(first) = ordering.waiting.values().next() {
            by(first.since.after(self.options.quorum_patience));
        }
        if let Some(first) = ordering.intake.first() {
            by(first.at.after(self.options.quorum_patience));
        }
        // Never set a deadline that is due now: a check that changes nothing must not repeat in the same turn.
        let at = at.map(|at| at.max(now.after(Duration::from_millis(1))));
        self.clear_due(loglet);
        if let Some(at) = at {
            self.due.insert((at, loglet));
            self.due_at.insert(loglet, at);
        }
    }

    fn clear_due(&mut self, loglet: LogletId) {
        if let Some(at) = self.due_at.remove(&loglet) {
            self.due.remove(&(at, loglet));
        }
    }

    /// Handles the deadline of one loglet: sends unanswered Stores again, reports appends without a majority, and continues the seal.
    pub(super) fn look_after(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let Some(ordering) = self.loglets.get_mut(&loglet) else { return };
        let resend = self.options.resend_after;
        let (known_tail, next, idle) = (ordering.known_tail, ordering.next, ordering.window.is_empty());
        for server in &mut ordering.servers {
            if server.sealed || server.useless || now < server.progress_at.after(resend) {
                continue;
            }
            // What is sent now would be lost, and yet count as sent.
            if self.env.link(server.node, Class::Data) != Link::Up {
                continue;
            }
            if !idle && server.owes(next) {
                hit("native.sequencer.resend");
                server.progress_at = now;
                server.go_back(known_tail);
            } else if idle && server.confirmed < known_tail {
                // The first message about the known tail may have been lost; this one asks for an answer.
                hit("native.sequencer.resend_tail");
                server.progress_at = now;
                server.sent_tail = known_tail;
                if !server.configured {
                    // The server may have been away since before it got its first Store. Only a message with the configuration makes a
                    // copy there, and only a copy can learn what it lacks and fetch it.
                    hit("native.sequencer.resend_config");
                    let info = Info { loglet, config: ordering.config_bytes.clone() };
                    out.post(server.node, Class::Data, LOG_SERVER, info, NOTHING_STAGED);
                }
                let life = self.env.incarnation();
                let message = Advance { loglet, life, known_tail, confirm: true };
                out.post(server.node, Class::Data, LOG_SERVER, message, NOTHING_STAGED);
            }
        }
        let (patience, full) = (self.options.quorum_patience, ordering.is_full());
        while let Some(first) = ordering.waiting.first_entry() {
            if now < first.get().since.after(patience) {
                break;
            }
            // The append stays in the window and may still be committed, so its outcome is unknown, not refused.
            hit("native.sequencer.no_quorum");
            let waiting = first.remove();
            let outcome = if full { Ordered::NoSpace {} } else { Ordered::NoQuorum {} };
            let message = Appended { outcome, known_tail };
            out.reply(waiting.caller, message, NOTHING_STAGED);
        }
        while let Some(first) = ordering.intake.first() {
            if now < first.at.after(patience) {
                break;
            }
            // It was not ordered, so it did not happen. Later ones of its handle are refused when their turn comes.
            hit("native.sequencer.gave_up");
            let caller = first.caller;
            ordering.intake.pop();
            out.reply(caller, Appended { outcome: Ordered::Busy {}, known_tail }, NOTHING_STAGED);
        }
        if ordering.state != SequencingState::Open {
            if ordering.seal_done {
                // A majority is sealed, and there was time for its last answers.
                ordering.state = SequencingState::Sealed;
            } else {
                self.complete_seal(loglet, out);
            }
        }
    }

    /// Handles a re-established connection: messages on the old one may have been lost.
    pub(super) fn reconnected(&mut self, now: Tick, peer: NodeId) {
        for (loglet, ordering) in &mut self.loglets {
            let known_tail = ordering.known_tail;
            let Some(server) = ordering.servers.iter_mut().find(|s| s.node == peer) else { continue };
            if server.sealed {
                continue;
            }
            hit("native.sequencer.reconnected");
            server.go_back(known_tail);
            server.configured = false;
            server.useless = false;
            (server.sent_tail, server.confirmed) = (Offset::ZERO, Offset::ZERO);
            server.progress_at = now;
            self.touched.insert(*loglet);
        }
    }
}

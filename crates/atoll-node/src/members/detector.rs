//! The role that tells who is up. Evidence in band decides (X21): a connection that broke and is not restored, or silence
//! while this node's own timer was on time. A false alarm costs a seal and a register write, never safety (V11).

use std::collections::BTreeMap;

use atoll_core::{Caller, Class, Effects, Frame, Incarnation, Loc, Lsn, Message, NodeId, Role, Tick, roles};

use super::{Members, Told};
use crate::settings::Timings;

atoll_core::message! {
    /// "I live", one way, to every member.
    pub struct Heartbeat = 400 {
        /// The sender's life.
        pub incarnation: Incarnation,
        /// The version of its table of members: a receiver with an older one reads the register.
        pub table_version: u64,
        /// It is about to stop: move its sequencers.
        pub leaving: bool,
        /// Its disk takes no entries for want of space.
        pub full: bool,
    }
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    heard: Tick,
    /// Since when the control connection to it is broken.
    broken: Option<Tick>,
    ever_up: bool,
}

/// See the module's words.
#[derive(Debug)]
pub struct Detector {
    members: Members,
    timings: Timings,
    incarnation: Incarnation,
    peers: BTreeMap<NodeId, Peer>,
    next: Tick,
    last_ran: Tick,
}

impl Detector {
    /// A detector that has heard of nobody yet.
    pub fn new(members: Members, timings: Timings, incarnation: Incarnation) -> Self {
        Detector { members, timings, incarnation, peers: BTreeMap::new(), next: Tick(0), last_ran: Tick(0) }
    }

    fn peer(&mut self, now: Tick, node: NodeId) -> &mut Peer {
        self.peers.entry(node).or_insert(Peer { heard: now, broken: None, ever_up: false })
    }

    fn judge(&mut self, now: Tick) {
        let timings = &self.timings;
        for (node, p) in &self.peers {
            let broken = p.broken.is_some_and(|since| now.since(since) >= timings.link_down_for);
            let silent = now.since(p.heard) >= timings.silent_after;
            if p.ever_up && (broken || silent) {
                self.members.note(now, *node, false, None);
            }
        }
    }

    fn heard(&mut self, now: Tick, from: NodeId, beat: &Heartbeat) {
        let p = self.peer(now, from);
        p.heard = now;
        p.ever_up = true;
        let usable = p.broken.is_none();
        let told = Told { incarnation: beat.incarnation, leaving: beat.leaving, full: beat.full };
        self.members.note(now, from, usable, Some(told));
        self.members.heard_of_table(beat.table_version);
    }

    fn beat(&self, out: &mut Effects) {
        let beat = Heartbeat {
            incarnation: self.incarnation,
            table_version: self.members.table().version,
            leaving: self.members.is_leaving(),
            full: self.members.is_full(),
        };
        let frame = beat.into_frame(roles::DETECTOR);
        for node in self.members.peers() {
            out.post_frame(node, Class::Control, frame.clone(), Lsn::NONE);
        }
    }
}

impl Role for Detector {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, _out: &mut Effects) {
        if let Ok(beat) = Heartbeat::from_frame(frame) {
            self.heard(now, from.node, &beat);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn on_link(&mut self, now: Tick, peer: NodeId, class: Class, up: bool, out: &mut Effects) {
        // A process that is gone breaks both connections; heartbeats take this one.
        if class != Class::Control {
            return;
        }
        let p = self.peer(now, peer);
        if up {
            p.broken = None;
            // A first sign at once: the other side need not wait for the next beat.
            self.beat(out);
        } else {
            p.broken = p.broken.or(Some(now));
        }
    }

    fn deadline(&self) -> Option<Tick> {
        let broken =
            self.peers.values().filter_map(|p| p.broken).map(|t| t.after(self.timings.link_down_for));
        broken.filter(|t| *t > self.last_ran).chain([self.next]).min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        // Before accusing, see that the own timer was on time: after a pause nobody was heard because nobody listened.
        if now.since(self.last_ran) > self.timings.heartbeat_every * 3 {
            for p in self.peers.values_mut() {
                p.heard = now;
                p.broken = p.broken.map(|_| now);
            }
        }
        self.last_ran = now;
        if now >= self.next {
            self.next = now.after(self.timings.heartbeat_every);
            self.beat(out);
        }
        self.judge(now);
    }
}

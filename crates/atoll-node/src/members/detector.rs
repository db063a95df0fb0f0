//! The failure detector: the role that determines which nodes are up. Its thresholds are `Timings::silent_after` and
//! `Timings::link_down_for` of the settings, and the constants below. In-band evidence decides (X21): a connection that broke and is not
//! restored, or silence while this node's own timer was on time. A false alarm costs a seal and a register write, never safety (vlog-V11).
//!
//! Heartbeats carry what others cannot see from outside: the health of the sender's disk (vlog-V20), which members it reaches (vlog-V18),
//! and what its clock shows (X29). A peer counts as alive only if it hears this node, too.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::BytesMut;

use atoll_core::level::since;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, Decode, DecodeError, Effects, Encode, Env, Frame, Incarnation, Link, Loc, Lsn, Message,
    NodeId, Reader, Role, StorageId, Tick,
};

use super::liveness::{Health, Report};
use super::{MAX_HALTED_TOLD, Members};
use crate::mutants;
use crate::settings::Timings;

atoll_core::message! {
    /// "I live", one way, to every member.
    pub struct Heartbeat = 402 {
        /// The sender's life.
        pub incarnation: Incarnation,
        /// The version of its table of members: a receiver with an older one reads the register.
        pub table_version: u64,
        /// It is about to stop: move its sequencers.
        pub leaving: bool,
        /// The health of its disk, see [`Health::code`].
        pub health: u8,
        /// The members that it hears, whether or not they hear it.
        pub hears: Vec<NodeId>,
        /// Of these, those that hear it.
        pub reaches: Vec<NodeId>,
        /// Of these, those that it cannot work with.
        pub distrusts: Vec<NodeId>,
        /// Replicas on it that have halted, by the name of their log, at most eight.
        pub halted: Vec<String>,
        /// Its data directory; 0 if it is not given.
        pub storage: StorageId,
        /// Up to which record its journal is durable.
        pub durable: Lsn,
        /// Fields that earlier programs did not send.
        pub more: More,
    }
}

/// Fields that were added to heartbeats later. They are sent at every feature level, because a reader of this message ignores what follows
/// the fields that it knows. Fields that an older program does not send count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// What its wall clock shows, milliseconds since the Unix epoch.
    pub wall_ms: Option<u64>,
    /// The members that it reaches and that report that they reach a majority: they are up, even if other members do not hear them.
    pub vouches: Vec<NodeId>,
}

/// Stands for a clock that is not reported.
const NO_WALL: u64 = u64::MAX;

impl Encode for More {
    fn encode(&self, out: &mut BytesMut) {
        if self != &More::default() {
            self.wall_ms.unwrap_or(NO_WALL).encode(out);
            self.vouches.encode(out);
        }
    }
}

impl Decode for More {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let wall_ms = if from.left() > 0 { Some(u64::decode(from)?) } else { None };
        let vouches = if from.left() > 0 { Vec::decode(from)? } else { Vec::new() };
        Ok(More { wall_ms: wall_ms.filter(|ms| *ms != NO_WALL), vouches })
    }
}

atoll_core::message! {
    /// The heartbeat as programs of the first feature level send and read it. It is sent in addition to the other one until all members
    /// read that one.
    pub struct FirstHeartbeat = 400 {
        /// The sender's life.
        pub incarnation: Incarnation,
        /// The version of its table of members.
        pub table_version: u64,
        /// It is about to stop.
        pub leaving: bool,
        /// Its disk takes no entries for want of space.
        pub full: bool,
    }
}

/// A peer that has not heard this node yet may leave it out of this many heartbeats before that counts: two nodes that start at the same
/// time have not heard each other at first. A peer that did hear this node and leaves it out has lost it.
const DEAF_BEATS: u32 = 3;
/// A member that has not been heard from since this node started counts as gone after this many times `silent_after`, because it has to
/// start, too.
const GRACE: u32 = 2;
/// A peer that was silent for longer than `silent_after`, and spoke again before this many times that, was late and not gone: its link
/// is slow or loses packets, or its machine is busy. For [`LATE_FOR`] it is given that long.
const LATE: u32 = 3;
/// See [`LATE`].
const LATE_FOR: Duration = Duration::from_secs(30);
/// A data connection that is down for this many times `link_down_for`, and for at least [`DATA_DOWN_LEAST`], counts as unusable.
const DATA_DOWN: u32 = 8;
/// See [`DATA_DOWN`].
const DATA_DOWN_LEAST: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug)]
struct Peer {
    heard: Tick,
    /// When it was late the last time.
    late: Option<Tick>,
    /// Since when the control connection to it is broken.
    broken: Option<Tick>,
    /// Since when its heartbeats do not name this node.
    deaf: Option<Tick>,
    /// The life of it that has heard this node.
    heard_by: Option<Incarnation>,
    /// Since when the connection for data is down.
    data_down: Option<Tick>,
    ever_up: bool,
    /// The life of it that sends whole heartbeats.
    whole: Option<Incarnation>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Detector {
    env: Env,
    members: Members,
    timings: Timings,
    peers: BTreeMap<NodeId, Peer>,
    next: Tick,
    last_ran: Tick,
}

impl Detector {
    /// A detector that has not heard from any member yet.
    pub fn new(env: Env, members: Members, timings: Timings) -> Self {
        Detector { env, members, timings, peers: BTreeMap::new(), next: Tick(0), last_ran: Tick(0) }
    }

    fn peer(&mut self, now: Tick, node: NodeId) -> &mut Peer {
        let new = Peer {
            heard: now,
            late: None,
            broken: None,
            deaf: None,
            heard_by: None,
            data_down: None,
            ever_up: false,
            whole: None,
        };
        self.peers.entry(node).or_insert(new)
    }

    /// Whether it has been silent for longer than the threshold.
    fn is_silent(&self, now: Tick, p: &Peer) -> bool {
        // A member that has not been heard from since the start is as gone as one that fell silent (vlog-V19): the time then counts on this
        // node's own clock, from the moment at which it learned of the member.
        let times = match p.late {
            _ if !p.ever_up => GRACE,
            Some(late) if now.since(late) < LATE_FOR => LATE,
            _ => 1,
        };
        now.since(p.heard) >= self.timings.silent_after * times
    }

    fn is_broken(&self, now: Tick, p: &Peer) -> bool {
        p.ever_up && p.broken.is_some_and(|since| now.since(since) >= self.timings.link_down_for)
    }

    fn is_deaf(&self, now: Tick, p: &Peer) -> bool {
        let patience =
            if p.heard_by.is_some() { Duration::ZERO } else { self.timings.heartbeat_every * DEAF_BEATS };
        p.deaf.is_some_and(|since| now.since(since) >= patience)
    }

    fn hears(&self, now: Tick, p: &Peer) -> bool {
        p.ever_up && !self.is_silent(now, p) && !self.is_broken(now, p)
    }

    /// True if a peer was lost just now, or if the health of the disk changed: the others are told at once.
    fn judge(&mut self, now: Tick) -> bool {
        let before = self.members.health();
        let mut news = false;
        for (node, p) in &self.peers {
            if self.is_silent(now, p) || self.is_broken(now, p) || (p.ever_up && self.is_deaf(now, p)) {
                news |= self.members.is_alive(*node);
                self.members.note(now, *node, false, None);
            }
        }
        let hangs =
            self.env.journal_waits_since().is_some_and(|t| now.since(t) >= self.timings.disk_hangs_after);
        self.members.set_hanging(now, hangs);
        news || before != self.members.health()
    }

    /// The silence of a member counts from the moment at which this node learned of it. A node that is no longer a member is forgotten.
    fn follow_table(&mut self, now: Tick) {
        let members = self.members.peers();
        for node in &members {
            self.peer(now, *node);
        }
        self.peers.retain(|node, _| members.binary_search(node).is_ok());
        for (node, p) in &mut self.peers {
            p.data_down = match self.env.link(*node, Class::Data) {
                Link::Down => p.data_down.or(Some(now)),
                _ => None,
            };
        }
    }

    /// Before this node accuses a peer, it checks that its own timer was on time: after a pause it heard no peer because it was not
    /// listening.
    fn notice_pause(&mut self, now: Tick) {
        if now.since(self.last_ran) <= self.timings.heartbeat_every * 3 {
            return;
        }
        self.last_ran = now;
        for p in self.peers.values_mut() {
            p.heard = now;
            p.broken = p.broken.map(|_| now);
            p.deaf = p.deaf.map(|_| now);
            // They lost this node in the pause, and hear it again from now on.
            p.heard_by = None;
        }
    }

    fn heard(&mut self, now: Tick, from: NodeId, beat: Heartbeat) {
        self.notice_pause(now);
        let me = self.env.node();
        let told = beat.storage != StorageId(0);
        let witness = self.env.witness();
        if told && witness.check(from, beat.incarnation, beat.storage, beat.durable).is_err() {
            // A late heartbeat of an earlier life, or a data directory that was put back from an older copy: connections to that are
            // refused.
            hit("detector.put_back");
            return;
        }
        let silent_after = self.timings.silent_after;
        let p = self.peer(now, from);
        // A process that was started again was not late.
        let same_life = p.heard_by == Some(beat.incarnation);
        if same_life && (silent_after..silent_after * LATE).contains(&now.since(p.heard)) {
            hit("detector.late");
            p.late = Some(now);
        }
        p.heard = now;
        p.ever_up = true;
        if beat.hears.contains(&me) {
            (p.deaf, p.heard_by) = (None, Some(beat.incarnation));
        } else {
            p.deaf = p.deaf.or(Some(now));
            p.heard_by = p.heard_by.filter(|life| *life == beat.incarnation);
        }
        let p = *p;
        let usable = p.broken.is_none() && !self.is_deaf(now, &p);
        if !usable && self.members.is_alive(from) {
            // Send the next heartbeat at once: until the others hear it, they count a link that no longer works.
            self.next = now;
        }
        self.members.heard_of_table(beat.table_version);
        self.members.heard_wall(now, from, beat.more.wall_ms);
        let told = Report {
            incarnation: beat.incarnation,
            leaving: beat.leaving,
            health: Health::of_code(beat.health),
            reaches: beat.reaches,
            distrusts: beat.distrusts,
            halted: beat.halted.into_iter().take(MAX_HALTED_TOLD).collect(),
            vouches: beat.more.vouches,
        };
        self.members.note(now, from, usable, Some(told));
    }

    /// Nothing is known about a program of the first level except that it is alive, so it counts as one that reaches every member.
    fn heard_first(&mut self, now: Tick, from: NodeId, beat: &FirstHeartbeat) {
        if self.peer(now, from).whole == Some(beat.incarnation) {
            return;
        }
        hit("detector.first_heartbeat");
        let me = self.env.node();
        let others = self.members.peers().into_iter().chain([me]).filter(|n| *n != from);
        let mut reaches: Vec<NodeId> = others.collect();
        reaches.sort_unstable();
        let health = if beat.full { Health::Full } else { Health::Fine };
        let beat = Heartbeat {
            incarnation: beat.incarnation,
            table_version: beat.table_version,
            leaving: beat.leaving,
            health: health.code(),
            hears: reaches.clone(),
            reaches,
            distrusts: Vec::new(),
            halted: Vec::new(),
            storage: StorageId(0),
            durable: Lsn::NONE,
            more: More::default(),
        };
        self.heard(now, from, beat);
    }

    fn beat(&self, now: Tick, out: &mut Effects) {
        let heard = |p: &Peer| self.hears(now, p);
        let hears: Vec<NodeId> = self.peers.iter().filter(|(_, p)| heard(p)).map(|(n, _)| *n).collect();
        let health = if mutant(mutants::POLICY_HIDES_HEALTH) { Health::Fine } else { self.members.health() };
        let row = self.members.own_row(now);
        let beat = Heartbeat {
            incarnation: self.env.incarnation(),
            table_version: self.members.table().version,
            leaving: self.members.is_leaving(),
            health: health.code(),
            hears,
            reaches: row.reaches,
            distrusts: row.distrusts,
            halted: self.members.halted().into_iter().take(MAX_HALTED_TOLD).collect(),
            storage: self.members.identity().storage,
            durable: self.env.witness().own(),
            more: More { wall_ms: self.members.wall_ms(), vouches: self.members.vouches() },
        };
        let first = FirstHeartbeat {
            incarnation: beat.incarnation,
            table_version: beat.table_version,
            leaving: beat.leaving,
            full: beat.health == Health::Full.code(),
        };
        let frame = beat.into_frame(crate::members::roles::DETECTOR);
        // This one follows the whole heartbeat: a peer that reads the whole one ignores it.
        let first = (!self.env.levels().allows(since::WHOLE_HEARTBEATS))
            .then(|| first.into_frame(crate::members::roles::DETECTOR));
        for node in self.members.peers() {
            out.post_frame(node, Class::Control, frame.clone(), Lsn::NONE);
            if let Some(first) = &first {
                out.post_frame(node, Class::Control, first.clone(), Lsn::NONE);
            }
        }
    }

    /// A peer whose data does not come through is of no use as a sequencer, although its heartbeats arrive.
    fn distrust_broken(&self, now: Tick) {
        let patience = DATA_DOWN_LEAST.max(self.timings.link_down_for * DATA_DOWN);
        for (node, p) in &self.peers {
            if p.data_down.is_some_and(|since| now.since(since) >= patience) && self.hears(now, p) {
                self.members.distrust(*node, now.after(self.timings.heartbeat_every * 2));
            }
        }
    }
}

impl Role for Detector {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, _out: &mut Effects) {
        if frame.kind == FirstHeartbeat::KIND {
            if let Ok(beat) = FirstHeartbeat::from_frame(frame) {
                self.heard_first(now, from.node, &beat);
            }
        } else if let Ok(beat) = Heartbeat::from_frame(frame) {
            self.peer(now, from.node).whole = Some(beat.incarnation);
            self.heard(now, from.node, beat);
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
            self.beat(now, out);
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
        self.notice_pause(now);
        self.last_ran = now;
        self.follow_table(now);
        let news = self.judge(now);
        if news || now >= self.next {
            self.next = now.after(self.timings.heartbeat_every);
            self.distrust_broken(now);
            self.beat(now, out);
        }
    }
}

#[cfg(test)]
#[path = "detector_test.rs"]
mod tests;

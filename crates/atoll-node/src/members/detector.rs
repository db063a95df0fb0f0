//! The failure detector: the role that determines which nodes are up. Its thresholds are `Timings::silent_after` and
//! `Timings::link_down_for` of the settings, and the constants below. Only in-band evidence decides (X21): a broken connection that is not
//! re-established, or silence while this node's own timer ran on time. A false alarm costs a seal and a register write, never safety
//! (vlog-V11).
//!
//! Heartbeats carry what other nodes cannot observe: the health of the sender's disk (vlog-V20), which members it reaches (vlog-V18), and
//! what its clock shows (X29). A peer counts as alive only if it also hears this node.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::BytesMut;

use atoll_core::level::since;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, Decode, DecodeError, Effects, Encode, Env, Frame, Incarnation, Link, Loc, Lsn, Message,
    NodeId, Reader, Role, StorageId, Tick,
};

use super::{Health, liveness::Report};
use super::{MAX_HALTED_TOLD, Members};
use crate::mutants;
use crate::settings::Timings;

atoll_core::message! {
    /// Tells every member that the sender is alive. There is no reply.
    pub struct Heartbeat = 402 {
        /// The sender's life.
        pub incarnation: Incarnation,
        /// The version of its table of members. A receiver with an older table reads the register.
        pub table_version: u64,
        /// Whether it is about to stop. Its sequencers are then moved.
        pub leaving: bool,
        /// The health of its disk, see [`Health::code`].
        pub health: u8,
        /// The members that it hears, whether or not they hear it.
        pub hears: Vec<NodeId>,
        /// Of these, those that hear it.
        pub reaches: Vec<NodeId>,
        /// Of these, those that it cannot work with.
        pub distrusts: Vec<NodeId>,
        /// The replicas that have halted on it, by the name of their log; at most eight.
        pub halted: Vec<String>,
        /// The storage identity of its data directory; 0 if it is not reported.
        pub storage: StorageId,
        /// The record up to which its journal is durable.
        pub durable: Lsn,
        /// Fields that earlier programs did not send.
        pub more: More,
    }
}

/// Fields that were added to heartbeats later. They are sent at every feature level, because a reader ignores whatever follows the fields
/// that it knows. A field that an older program did not send is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// What its wall clock shows, milliseconds since the Unix epoch.
    pub wall_ms: Option<u64>,
    /// The members that it reaches and that themselves report reaching a majority. They are up, even if other members do not hear them.
    pub vouches: Vec<NodeId>,
    /// For how long the oldest unapplied entry has been waiting at its replica of the database, milliseconds.
    pub apply_delay_ms: u64,
}

/// The encoding of a clock that is not reported.
const NO_WALL: u64 = u64::MAX;

impl Encode for More {
    fn encode(&self, out: &mut BytesMut) {
        if self != &More::default() {
            self.wall_ms.unwrap_or(NO_WALL).encode(out);
            self.vouches.encode(out);
            self.apply_delay_ms.encode(out);
        }
    }
}

impl Decode for More {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let wall_ms = if from.left() > 0 { Some(u64::decode(from)?) } else { None };
        let vouches = if from.left() > 0 { Vec::decode(from)? } else { Vec::new() };
        let apply_delay_ms = if from.left() > 0 { u64::decode(from)? } else { 0 };
        Ok(More { wall_ms: wall_ms.filter(|ms| *ms != NO_WALL), vouches, apply_delay_ms })
    }
}

atoll_core::message! {
    /// The heartbeat that programs of the first feature level send and read. It is sent in addition to [`Heartbeat`] until all members can
    /// read [`Heartbeat`].
    pub struct FirstHeartbeat = 400 {
        /// The sender's life.
        pub incarnation: Incarnation,
        /// The version of its table of members.
        pub table_version: u64,
        /// Whether it is about to stop.
        pub leaving: bool,
        /// Whether its disk refuses entries for lack of space.
        pub full: bool,
    }
}

/// How many heartbeat intervals a peer that has never heard this node may omit it before the peer counts as deaf. Two nodes that start at
/// the same time have not heard each other at first. A peer that has heard this node before and now omits it has lost it.
const DEAF_BEATS: u32 = 3;
/// A member that has not been heard from since this node started counts as gone only after this many times `silent_after`, because it may
/// also be starting.
const GRACE: u32 = 2;
/// A peer that was silent for at least `silent_after`, but less than this many times as long, was late rather than gone: its link is slow
/// or loses packets, or its machine is busy. For the next [`LATE_FOR`], it counts as silent only after this many times `silent_after`.
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
    /// When it was last late.
    late: Option<Tick>,
    /// When the control connection to it broke, if it is still broken.
    broken: Option<Tick>,
    /// Since when its heartbeats have not listed this node, if they do not.
    deaf: Option<Tick>,
    /// The incarnation in which it has heard this node.
    heard_by: Option<Incarnation>,
    /// Since when its data connection has been down, if it is.
    data_down: Option<Tick>,
    ever_up: bool,
    /// The incarnation in which it sends [`Heartbeat`]s, not only [`FirstHeartbeat`]s.
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
    /// Creates a detector that has not heard from any member yet.
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

    /// Whether the peer has been silent for at least the threshold that applies to it.
    fn is_silent(&self, now: Tick, p: &Peer) -> bool {
        // A member that has never been heard from eventually counts as gone, like one that fell silent (vlog-V19). Its silence is measured
        // from the moment at which this node learned of it.
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

    /// Updates the members' state. Returns true if a peer was just lost or the health of the disk changed, because the other nodes must
    /// then learn of it at once.
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

    /// Starts to track new members, whose silence counts from now, and drops nodes that are no longer members. Updates the state of the
    /// data connections.
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

    /// Restarts all measurements if this node's own timer was late. During such a pause, the node heard no peer because it was not
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
            // The peers lost this node during the pause and have yet to hear it again.
            p.heard_by = None;
        }
    }

    fn heard(&mut self, now: Tick, from: NodeId, beat: Heartbeat) {
        self.notice_pause(now);
        let me = self.env.node();
        let told = beat.storage != StorageId(0);
        let witness = self.env.witness();
        if told && witness.check(from, beat.incarnation, beat.storage, beat.durable).is_err() {
            // This is a late heartbeat of an earlier life, or the peer's data directory was replaced with an older copy. Connections to
            // such a peer are refused.
            hit("detector.put_back");
            return;
        }
        // A node that this table does not list may be a new member, so its version counts.
        self.members.heard_of_table(beat.table_version);
        if !self.members.is_member(from) {
            hit("detector.stranger");
            return;
        }
        let silent_after = self.timings.silent_after;
        let p = self.peer(now, from);
        // A peer that was restarted in the meantime was not late.
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
            // Send the next heartbeat at once: until it arrives, the other nodes count on a link that no longer works.
            self.next = now;
        }
        self.members.heard_wall(now, from, beat.more.wall_ms);
        let report = Report {
            incarnation: beat.incarnation,
            leaving: beat.leaving,
            health: Health::of_code(beat.health),
            reaches: beat.reaches,
            distrusts: beat.distrusts,
            halted: beat.halted.into_iter().take(MAX_HALTED_TOLD).collect(),
            vouches: beat.more.vouches,
            apply_delay: Duration::from_millis(beat.more.apply_delay_ms),
        };
        self.members.note(now, from, usable, Some(report));
    }

    /// Handles a heartbeat of a program of the first level. It does not say which members the sender reaches, so the sender counts as
    /// reaching all of them.
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
            more: More {
                wall_ms: self.members.wall_ms(),
                vouches: self.members.vouches(),
                apply_delay_ms: u64::try_from(self.members.apply_delay(now).as_millis()).unwrap_or(u64::MAX),
            },
        };
        let first = FirstHeartbeat {
            incarnation: beat.incarnation,
            table_version: beat.table_version,
            leaving: beat.leaving,
            full: beat.health == Health::Full.code(),
        };
        let frame = beat.into_frame(crate::members::roles::DETECTOR);
        // The first-level heartbeat is sent second, so that a peer that reads the other one ignores it.
        let first = (!self.env.levels().allows(since::WHOLE_HEARTBEATS))
            .then(|| first.into_frame(crate::members::roles::DETECTOR));
        for node in self.members.peers() {
            out.post_frame(node, Class::Control, frame.clone(), Lsn::NONE);
            if let Some(first) = &first {
                out.post_frame(node, Class::Control, first.clone(), Lsn::NONE);
            }
        }
    }

    /// Distrusts the peers whose data connection has been down for long. Although their heartbeats arrive, they are of no use as
    /// sequencers.
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
        // A process that ends breaks both connections, so it is enough to watch the one that carries heartbeats.
        if class != Class::Control {
            return;
        }
        let p = self.peer(now, peer);
        if up {
            p.broken = None;
            // Send a heartbeat at once, so that the peer does not wait for the next regular one.
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

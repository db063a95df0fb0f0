//! A shard on one of its servers, and what the server knows about its peers.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::LogletId;
use atoll_core::{Caller, NodeId, Tick};

use super::numbers::Numbers;
use super::segment::Part;
use crate::pace::Pace;

/// A peer, as the primary of a segment sees it.
#[derive(Debug)]
pub(super) struct Peer {
    pub node: NodeId,
    /// The next record to send.
    pub next: u64,
    /// The peer has said that it takes this record next.
    pub taken: u64,
    /// The ends of the messages under way.
    pub under_way: VecDeque<u64>,
    /// Counts how often this primary went back.
    pub round: u64,
    /// Whether the next message only asks which record the peer takes next.
    pub probe: bool,
    /// Whether the peer has said which record it takes next, since this primary was started.
    pub heard: bool,
    /// Whether the next messages carry the configuration.
    pub introduce: bool,
    /// Whether records for this peer are being read from the disk.
    pub fetching: bool,
    /// When the peer was last heard, or sent something after silence.
    pub since: Tick,
}

impl Peer {
    /// Returns a peer about which nothing is known. `at` is a guess.
    pub fn new(node: NodeId, at: u64, now: Tick) -> Self {
        Peer {
            node,
            next: at,
            taken: at,
            under_way: VecDeque::new(),
            round: 0,
            probe: true,
            heard: false,
            introduce: true,
            fetching: false,
            since: now,
        }
    }

    /// Goes back to what the peer takes next (scalog-S10). Answers to what was sent before do not count any more.
    pub fn rewind(&mut self, to: u64) {
        self.round += 1;
        self.next = to;
        self.taken = to;
        self.under_way.clear();
    }
}

/// An append whose records wait for their cut.
#[derive(Debug)]
pub(super) struct Waiting {
    pub caller: Caller,
    pub parts: Vec<Part>,
}

/// A shard on this server.
#[derive(Debug)]
pub(super) struct Mine {
    /// The place of this server in the shard: it is the primary of the segment with the same number.
    pub me: usize,
    /// The segments in the store.
    pub segments: Vec<LogletId>,
    /// All other servers.
    pub peers: Vec<Peer>,
    pub numbers: Numbers,
    /// Appends by the place above their last record.
    pub waiting: BTreeMap<(u64, u64), Waiting>,
    /// The ends and lengths of own records that are not ordered.
    pub unordered: VecDeque<(u64, usize)>,
    pub unordered_bytes: usize,
    /// What was reported last, when, and how often without effect.
    pub reported: Vec<u64>,
    pub reported_at: Tick,
    pub attempts: u32,
    /// How many reports there were.
    pub reports: u64,
    pub pace: Pace,
    next_waiting: u64,
}

impl Mine {
    pub fn new(me: usize, segments: Vec<LogletId>, peers: Vec<Peer>, now: Tick) -> Self {
        Mine {
            me,
            segments,
            peers,
            numbers: Numbers::default(),
            waiting: BTreeMap::new(),
            unordered: VecDeque::new(),
            unordered_bytes: 0,
            reported: Vec::new(),
            reported_at: now,
            attempts: 0,
            reports: 0,
            pace: Pace::default(),
            next_waiting: 0,
        }
    }

    pub fn wait(&mut self, caller: Caller, parts: Vec<Part>) {
        let end = parts.iter().map(|part| part.first + u64::from(part.count)).max().unwrap_or(0);
        self.next_waiting += 1;
        self.waiting.insert((end, self.next_waiting), Waiting { caller, parts });
    }

    /// Takes the appends whose records are all below a place.
    pub fn take_below(&mut self, place: u64) -> Vec<Waiting> {
        let rest = self.waiting.split_off(&(place + 1, 0));
        std::mem::replace(&mut self.waiting, rest).into_values().collect()
    }

    /// Gives back the bytes of records that are ordered.
    pub fn ordered_below(&mut self, place: u64) {
        while let Some((end, len)) = self.unordered.front().copied()
            && end <= place
        {
            self.unordered.pop_front();
            self.unordered_bytes -= len;
        }
    }
}

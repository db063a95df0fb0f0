//! The simulated network. Each ordered pair of nodes has one FIFO connection per class. The side that sends requests and posts dials it,
//! and replies travel back on it, as in `atoll-net`.
//!
//! A connection breaks when a process dies or by a fault. Frames in flight still arrive up to a random moment, even from a dead process;
//! later ones are lost. Loss, duplicates and reordering of single frames are additional faults.

use std::collections::{BTreeMap, VecDeque};

use atoll_core::Class;
use atoll_core::testing::hit;
use bytes::Bytes;

use crate::rng::Rng;
use crate::world::queue::{Event, Queue};

/// The faults of single frames at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    /// Frames that are lost, per thousand.
    pub lost_permille: u32,
    /// Frames that arrive twice, per thousand.
    pub doubled_permille: u32,
    /// Frames that arrive late, so that later frames may overtake them, per thousand.
    pub swapped_permille: u32,
    /// Factor for all latencies.
    pub slower: u64,
}

impl Mood {
    /// A network without faults.
    pub const CALM: Mood = Mood { lost_permille: 0, doubled_permille: 0, swapped_permille: 0, slower: 1 };
}

/// A slow link from one host to another: frames take longer, but all arrive, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Mean extra latency of each frame, in ns.
    pub by_ns: u64,
    /// Largest deviation from that mean, in ns.
    pub jitter_ns: u64,
    /// Frames whose packet is lost, per thousand. The kernel resends it after `RESENT_AFTER_NS`, then after twice that time, and so on.
    /// Later frames of the same connection wait for it.
    pub resent_permille: u32,
}

/// The shortest time after which a kernel resends a packet.
const RESENT_AFTER_NS: u64 = 200_000_000;
/// How often that time doubles at most.
const MOST_DOUBLINGS: u32 = 6;
/// A connection breaks if a packet is not acknowledged for this long, as those of the product do (its sockets' user timeout).
const UNACKNOWLEDGED_NS: u64 = 3_000_000_000;

impl Slow {
    /// Draws the extra latency of one frame, in ns.
    fn draw(self, rng: &mut Rng) -> u64 {
        if self == Slow::default() {
            return 0;
        }
        let least = self.by_ns.saturating_sub(self.jitter_ns);
        let mut late = rng.range(least, self.by_ns + self.jitter_ns + 1);
        let mut again = 0;
        while rng.permille(self.resent_permille) {
            late += RESENT_AFTER_NS << again;
            again = (again + 1).min(MOST_DOUBLINGS);
        }
        late
    }
}

#[derive(Debug, Default)]
struct Direction {
    last_at: u64,
    bytes: usize,
    /// Frames that wait for the end of a partition.
    stalled: VecDeque<Bytes>,
}

/// A connection, from dialing until both sides have lost it.
#[derive(Debug)]
pub struct Conn {
    /// The host that dialed.
    pub dialer: usize,
    /// The host that was dialed.
    pub peer: usize,
    /// The class of its frames.
    pub class: Class,
    /// The life of the dialer when it dialed.
    pub dialer_life: u64,
    /// The life of the peer at that time.
    pub peer_life: u64,
    /// The tag of this connection in the request numbers that the peer sees.
    pub tag: u16,
    /// Frames after this time do not arrive.
    pub cut_at: u64,
    full: bool,
    to_peer: Direction,
    to_dialer: Direction,
}

/// The result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// In flight, or lost by a fault.
    Taken,
    /// Taken, and the queue is now full.
    Filled,
    /// The connection does not exist.
    NoConnection,
}

/// All connections of the world.
#[derive(Debug)]
pub struct Network {
    hosts: usize,
    /// By id. None for a connection that was removed.
    conns: Vec<Option<Conn>>,
    current: Vec<Option<u64>>,
    tags: Vec<BTreeMap<u16, u64>>,
    blocked: Vec<bool>,
    /// The same for data connections only.
    data_blocked: Vec<bool>,
    base_ns: Vec<u64>,
    slow: Vec<Slow>,
    rng: Rng,
    /// The current faults of single frames.
    pub mood: Mood,
    /// Bytes in flight in one direction above which a connection counts as full.
    pub queue_bytes: usize,
    /// Frames sent so far.
    pub frames: u64,
    /// Faults of single frames so far.
    pub faults: u64,
}

impl Network {
    /// Creates a network without connections. The latencies of the pairs are around `latency_ns`.
    pub fn new(hosts: usize, latency_ns: u64, mut rng: Rng) -> Self {
        let base_ns = (0..hosts * hosts).map(|_| latency_ns / 2 + rng.below(latency_ns.max(1))).collect();
        Network {
            hosts,
            conns: vec![None],
            current: vec![None; hosts * hosts * 2],
            tags: vec![BTreeMap::new(); hosts],
            blocked: vec![false; hosts * hosts],
            data_blocked: vec![false; hosts * hosts],
            base_ns,
            slow: vec![Slow::default(); hosts * hosts],
            rng,
            mood: Mood::CALM,
            queue_bytes: 4 * 1024 * 1024,
            frames: 0,
            faults: 0,
        }
    }

    /// Returns the slot of the connection that `dialer` makes to `peer`.
    pub fn slot(&self, dialer: usize, peer: usize, class: Class) -> usize {
        (dialer * self.hosts + peer) * 2 + usize::from(class == Class::Data)
    }

    /// Returns dialer, peer and class of a slot.
    pub fn of_slot(&self, slot: usize) -> (usize, usize, Class) {
        let class = if slot % 2 == 1 { Class::Data } else { Class::Control };
        (slot / 2 / self.hosts, slot / 2 % self.hosts, class)
    }

    /// Returns a connection that was not removed yet.
    pub fn conn(&self, id: u64) -> Option<&Conn> {
        self.conns.get(id as usize)?.as_ref()
    }

    fn conn_mut(&mut self, id: u64) -> Option<&mut Conn> {
        self.conns.get_mut(id as usize)?.as_mut()
    }

    /// Returns whether frames of this class from one host to another are held up.
    pub fn holds_up(&self, from: usize, to: usize, class: Class) -> bool {
        let at = from * self.hosts + to;
        self.blocked[at] || (class == Class::Data && self.data_blocked[at])
    }

    /// Returns the connection in a slot, as its dialer sees it.
    pub fn current(&self, slot: usize) -> Option<u64> {
        self.current[slot]
    }

    fn latency(&mut self, from: usize, to: usize, bytes: usize) -> u64 {
        let at = from * self.hosts + to;
        (self.rng.tail(self.base_ns[at]) + bytes as u64) * self.mood.slower
    }

    /// Makes a new connection in a slot and returns its id.
    pub fn connect(&mut self, slot: usize, dialer_life: u64, peer_life: u64) -> u64 {
        let (dialer, peer, class) = self.of_slot(slot);
        let id = self.conns.len() as u64;
        let tag = (id & 0xffff) as u16;
        self.tags[peer].insert(tag, id);
        self.current[slot] = Some(id);
        self.conns.push(Some(Conn {
            dialer,
            peer,
            class,
            dialer_life,
            peer_life,
            tag,
            cut_at: u64::MAX,
            full: false,
            to_peer: Direction::default(),
            to_dialer: Direction::default(),
        }));
        id
    }

    /// Returns the connection on which a request with this tag came to a host.
    pub fn by_tag(&self, peer: usize, tag: u16) -> Option<u64> {
        self.tags[peer].get(&tag).copied()
    }

    /// Sends a frame to the side that was dialed (`to_peer`) or from it.
    pub fn send(&mut self, now: u64, id: u64, to_peer: bool, bytes: Bytes, queue: &mut Queue) -> Sent {
        let Some(conn) = self.conn(id) else { return Sent::NoConnection };
        let (from, to) = if to_peer { (conn.dialer, conn.peer) } else { (conn.peer, conn.dialer) };
        let class = conn.class;
        self.frames += 1;
        if self.rng.permille(self.mood.lost_permille) {
            self.faults += 1;
            return Sent::Taken;
        }
        let late = self.slow[from * self.hosts + to].draw(&mut self.rng);
        if late >= UNACKNOWLEDGED_NS {
            hit("sim.network.unacknowledged");
            queue.push(now + UNACKNOWLEDGED_NS, Event::Unacknowledged { conn: id });
        }
        let latency = self.latency(from, to, bytes.len()) + late;
        let swapped = self.rng.permille(self.mood.swapped_permille);
        let doubled = self.rng.permille(self.mood.doubled_permille);
        let extra = if swapped { self.rng.below(20 * latency) } else { 0 };
        let again = self.rng.below(200 * latency);
        self.faults += u64::from(swapped) + u64::from(doubled);
        let blocked = self.holds_up(from, to, class);
        let limit = self.queue_bytes;
        let Some(conn) = self.conn_mut(id) else { return Sent::NoConnection };
        let side = if to_peer { &mut conn.to_peer } else { &mut conn.to_dialer };
        side.bytes += bytes.len();
        if doubled {
            queue.push(
                now + latency + again,
                Event::Arrive { conn: id, to_peer, bytes: bytes.clone(), copy: true },
            );
        }
        if blocked || !side.stalled.is_empty() {
            side.stalled.push_back(bytes);
        } else if swapped {
            // Later frames may overtake this one.
            queue.push(now + latency + extra, Event::Arrive { conn: id, to_peer, bytes, copy: false });
        } else {
            let at = (now + latency).max(side.last_at);
            side.last_at = at;
            queue.push(at, Event::Arrive { conn: id, to_peer, bytes, copy: false });
        }
        if side.bytes > limit && !conn.full {
            conn.full = true;
            return Sent::Filled;
        }
        Sent::Taken
    }

    /// Handles the arrival of a frame. The first flag says whether to deliver it, the second whether a full queue has room again.
    pub fn arrived(&mut self, now: u64, id: u64, to_peer: bool, bytes: &Bytes, copy: bool) -> (bool, bool) {
        let limit = self.queue_bytes;
        let Some(conn) = self.conn(id) else { return (false, false) };
        let (from, to) = if to_peer { (conn.dialer, conn.peer) } else { (conn.peer, conn.dialer) };
        if now > conn.cut_at {
            return (false, false);
        }
        let is_held_up = self.holds_up(from, to, conn.class);
        let Some(conn) = self.conn_mut(id) else { return (false, false) };
        if is_held_up {
            if !copy {
                let side = if to_peer { &mut conn.to_peer } else { &mut conn.to_dialer };
                side.stalled.push_back(bytes.clone());
            }
            return (false, false);
        }
        let mut room = false;
        if !copy {
            let side = if to_peer { &mut conn.to_peer } else { &mut conn.to_dialer };
            side.bytes = side.bytes.saturating_sub(bytes.len());
            if to_peer && conn.full && side.bytes < limit / 2 {
                conn.full = false;
                room = true;
            }
        }
        (true, room)
    }

    /// Breaks a connection. Frames that arrive within a random time are still delivered; then the dialer notices.
    pub fn cut(&mut self, now: u64, id: u64, queue: &mut Queue) {
        let within = self.rng.below(2_000_000);
        let notice = self.rng.below(3_000_000);
        let Some(conn) = self.conn_mut(id) else { return };
        if conn.cut_at != u64::MAX {
            return;
        }
        conn.cut_at = now + within;
        queue.push(conn.cut_at + 1 + notice, Event::Down { conn: id });
    }

    /// Breaks the connections of a process that died. The operating system still delivers what the process had sent: usually at once, or,
    /// for frames that a partition holds up, when the partition ends, if it ends soon.
    pub fn sender_died(&mut self, now: u64, host: usize, queue: &mut Queue) {
        for id in self.ids(host, None) {
            let late = self.rng.below(4) == 0;
            let within = if late { self.rng.below(1_500_000_000) } else { self.rng.below(2_000_000) };
            let notice = self.rng.below(3_000_000);
            let Some(conn) = self.conn_mut(id) else { continue };
            if conn.cut_at != u64::MAX {
                continue;
            }
            conn.cut_at = now + within;
            // If the dialer died, the other side may notice only at the cut. If the peer died, the dialer notices soon.
            let at = if conn.dialer == host { conn.cut_at } else { conn.cut_at.min(now + 5_000_000) };
            queue.push(at + 1 + notice, Event::Down { conn: id });
        }
    }

    /// Breaks all connections of a host, or only those with one other host.
    pub fn cut_all(&mut self, now: u64, host: usize, with: Option<usize>, queue: &mut Queue) {
        let ids: Vec<u64> = self.ids(host, with);
        for id in ids {
            self.cut(now, id, queue);
        }
    }

    fn ids(&self, host: usize, with: Option<usize>) -> Vec<u64> {
        let fits = |c: &Conn| {
            (c.dialer == host && with.is_none_or(|w| c.peer == w))
                || (c.peer == host && with.is_none_or(|w| c.dialer == w))
        };
        (0..self.conns.len() as u64).filter(|id| self.conn(*id).is_some_and(fits)).collect()
    }

    /// Removes a broken connection and returns it with its slot. Returns None if it was removed before.
    pub fn down(&mut self, id: u64) -> Option<(usize, Conn)> {
        let conn = self.conns.get_mut(id as usize)?.take()?;
        if self.tags[conn.peer].get(&conn.tag) == Some(&id) {
            self.tags[conn.peer].remove(&conn.tag);
        }
        let slot = self.slot(conn.dialer, conn.peer, conn.class);
        if self.current[slot] == Some(id) {
            self.current[slot] = None;
        }
        Some((slot, conn))
    }

    /// Removes all connections of a dialer that died from their slots, even if frames are still in flight.
    pub fn forget_dialer(&mut self, host: usize) {
        for peer in 0..self.hosts {
            for class in [Class::Control, Class::Data] {
                let slot = self.slot(host, peer, class);
                self.current[slot] = None;
            }
        }
    }

    /// Sets how slow frames from one host to another are from now on.
    pub fn slow_down(&mut self, from: usize, to: usize, slow: Slow) {
        self.slow[from * self.hosts + to] = slow;
    }

    /// Holds up all frames from one host to another, or releases them. Connections that stay held up break after a while.
    pub fn block(&mut self, now: u64, from: usize, to: usize, blocked: bool, queue: &mut Queue) {
        let at = from * self.hosts + to;
        if self.blocked[at] == blocked {
            return;
        }
        self.blocked[at] = blocked;
        self.hold_up(now, from, to, blocked, None, queue);
    }

    /// Does the same for data connections only, so heartbeats still arrive.
    pub fn block_data(&mut self, now: u64, from: usize, to: usize, blocked: bool, queue: &mut Queue) {
        let at = from * self.hosts + to;
        if self.data_blocked[at] == blocked {
            return;
        }
        self.data_blocked[at] = blocked;
        self.hold_up(now, from, to, blocked, Some(Class::Data), queue);
    }

    fn hold_up(
        &mut self,
        now: u64,
        from: usize,
        to: usize,
        blocked: bool,
        only: Option<Class>,
        queue: &mut Queue,
    ) {
        let at = from * self.hosts + to;
        for id in self.ids(from, Some(to)) {
            let class = self.conn(id).map(|c| c.class);
            if only.is_some() && only != class {
                continue;
            }
            if !blocked && class.is_some_and(|c| self.holds_up(from, to, c)) {
                continue;
            }
            if blocked {
                let patience = self.rng.range(200_000_000, 3_000_000_000);
                queue.push(now + patience, Event::Silent { conn: id });
                continue;
            }
            let Some(conn) = self.conn_mut(id) else { continue };
            let to_peer = conn.dialer == from;
            let side = if to_peer { &mut conn.to_peer } else { &mut conn.to_dialer };
            let waiting = std::mem::take(&mut side.stalled);
            let mut due = side.last_at.max(now);
            for bytes in waiting {
                due += 1_000 + self.rng.below(self.base_ns[at].max(1));
                queue.push(due, Event::Arrive { conn: id, to_peer, bytes, copy: false });
            }
            if let Some(conn) = self.conn_mut(id) {
                let side = if to_peer { &mut conn.to_peer } else { &mut conn.to_dialer };
                side.last_at = due;
            }
        }
    }

    /// Lets the connections of a paused host break after a while, because it answers nothing.
    pub fn watch_silence(&mut self, now: u64, host: usize, queue: &mut Queue) {
        for id in self.ids(host, None) {
            let patience = self.rng.range(200_000_000, 6_000_000_000);
            queue.push(now + patience, Event::Silent { conn: id });
        }
    }

    /// Ends all partitions, slow links, and faults of single frames.
    pub fn heal(&mut self, now: u64, queue: &mut Queue) {
        self.mood = Mood::CALM;
        self.slow.fill(Slow::default());
        for from in 0..self.hosts {
            for to in 0..self.hosts {
                self.block(now, from, to, false, queue);
                self.block_data(now, from, to, false, queue);
            }
        }
    }
}

//! The simulated network: for each ordered pair of nodes and each class one connection, first in, first out, dialed by the
//! side that sends requests and posts; replies travel back on it, as in `atoll-net`.
//!
//! A connection breaks when a process dies or by a fault. What is in flight then arrives up to a random cut, even from a
//! dead process; the rest is lost. Loss, duplicates and reordering of single frames are faults on top of that.

use std::collections::{BTreeMap, VecDeque};

use atoll_core::Class;
use bytes::Bytes;

use crate::rng::Rng;
use crate::world::queue::{Event, Queue};

/// What the network does to frames at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    /// Frames lost, of a thousand.
    pub lost_permille: u32,
    /// Frames that arrive twice, of a thousand.
    pub doubled_permille: u32,
    /// Frames that overtake, of a thousand.
    pub swapped_permille: u32,
    /// Latencies are multiplied by this.
    pub slower: u64,
}

impl Mood {
    /// A network without faults.
    pub const CALM: Mood = Mood { lost_permille: 0, doubled_permille: 0, swapped_permille: 0, slower: 1 };
}

/// What is wrong with what one host sends to another, for as long as it is: slow, but whole and in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Each frame takes so much longer.
    pub by_ns: u64,
    /// Give or take so much.
    pub jitter_ns: u64,
    /// Frames whose packet is lost, of a thousand: the kernel sends it again after `RESENT_AFTER_NS`, then after twice that, and so on.
    /// What comes after it in the same connection waits for it.
    pub resent_permille: u32,
}

/// The least time after which kernels send a packet again.
const RESENT_AFTER_NS: u64 = 200_000_000;
/// That time doubles no more often than this.
const MOST_DOUBLINGS: u32 = 6;

impl Slow {
    /// How much longer a frame takes.
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
    /// Frames that wait for a partition to end.
    stalled: VecDeque<Bytes>,
}

/// One connection in one of its lives.
#[derive(Debug)]
pub struct Conn {
    /// Host that dialed.
    pub dialer: usize,
    /// Host that was dialed.
    pub peer: usize,
    /// Which of the two.
    pub class: Class,
    /// Life of the dialer at the time.
    pub dialer_life: u64,
    /// Life of the peer at the time.
    pub peer_life: u64,
    /// The mark of this connection in request numbers at the peer.
    pub tag: u16,
    /// Nothing arrives after this.
    pub cut_at: u64,
    full: bool,
    to_peer: Direction,
    to_dialer: Direction,
}

/// What became of a frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Under way, or lost on the way.
    Taken,
    /// Taken, and the queue is full now.
    Filled,
    /// There is no connection.
    NoConnection,
}

/// All connections.
#[derive(Debug)]
pub struct Network {
    hosts: usize,
    /// By id; None: forgotten.
    conns: Vec<Option<Conn>>,
    current: Vec<Option<u64>>,
    tags: Vec<BTreeMap<u16, u64>>,
    blocked: Vec<bool>,
    /// The same for connections that carry data.
    data_blocked: Vec<bool>,
    base_ns: Vec<u64>,
    slow: Vec<Slow>,
    rng: Rng,
    /// Faults of single frames.
    pub mood: Mood,
    /// Bytes that one direction of a connection holds.
    pub queue_bytes: usize,
    /// Frames sent so far.
    pub frames: u64,
    /// Faults done to single frames and connections so far.
    pub faults: u64,
}

impl Network {
    /// A network without connections. Latencies between pairs lie around `latency_ns`.
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

    /// The place of a connection between two hosts.
    pub fn slot(&self, dialer: usize, peer: usize, class: Class) -> usize {
        (dialer * self.hosts + peer) * 2 + usize::from(class == Class::Data)
    }

    /// Dialer, peer and class of a slot.
    pub fn of_slot(&self, slot: usize) -> (usize, usize, Class) {
        let class = if slot % 2 == 1 { Class::Data } else { Class::Control };
        (slot / 2 / self.hosts, slot / 2 % self.hosts, class)
    }

    /// A connection that is not forgotten yet.
    pub fn conn(&self, id: u64) -> Option<&Conn> {
        self.conns.get(id as usize)?.as_ref()
    }

    fn conn_mut(&mut self, id: u64) -> Option<&mut Conn> {
        self.conns.get_mut(id as usize)?.as_mut()
    }

    /// Whether a connection's frames from one host to another are held up.
    pub fn holds_up(&self, from: usize, to: usize, class: Class) -> bool {
        let at = from * self.hosts + to;
        self.blocked[at] || (class == Class::Data && self.data_blocked[at])
    }

    /// The connection in a slot, as its dialer sees it.
    pub fn current(&self, slot: usize) -> Option<u64> {
        self.current[slot]
    }

    fn latency(&mut self, from: usize, to: usize, bytes: usize) -> u64 {
        let at = from * self.hosts + to;
        let late = self.slow[at].draw(&mut self.rng);
        (self.rng.tail(self.base_ns[at]) + bytes as u64) * self.mood.slower + late
    }

    /// A new connection in a slot.
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

    /// The connection by which a request with this mark came to a host.
    pub fn by_tag(&self, peer: usize, tag: u16) -> Option<u64> {
        self.tags[peer].get(&tag).copied()
    }

    /// Sends from the side that dialed or to it.
    pub fn send(&mut self, now: u64, id: u64, to_peer: bool, bytes: Bytes, queue: &mut Queue) -> Sent {
        let Some(conn) = self.conn(id) else { return Sent::NoConnection };
        let (from, to) = if to_peer { (conn.dialer, conn.peer) } else { (conn.peer, conn.dialer) };
        let class = conn.class;
        self.frames += 1;
        if self.rng.permille(self.mood.lost_permille) {
            self.faults += 1;
            return Sent::Taken;
        }
        let latency = self.latency(from, to, bytes.len());
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
            // Later frames may overtake it.
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

    /// A frame has arrived: true if it is to be delivered. The second flag says that a full queue has room again.
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

    /// Breaks a connection: what arrives within a random time still arrives, and then the dialer notices.
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

    /// A process has died. Its operating system still delivers the frames that the process had sent: most of them at once, and
    /// those that a partition holds up when the partition ends, if it ends soon.
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

    /// Breaks all connections of a host, or those between two.
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

    /// Forgets a broken connection; returns its slot if its dialer had not another one already.
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

    /// The dialer has died: it has no connections any more, whatever is still in flight.
    pub fn forget_dialer(&mut self, host: usize) {
        for peer in 0..self.hosts {
            for class in [Class::Control, Class::Data] {
                let slot = self.slot(host, peer, class);
                self.current[slot] = None;
            }
        }
    }

    /// From now on what one host sends to another is as slow as this.
    pub fn slow_down(&mut self, from: usize, to: usize, slow: Slow) {
        self.slow[from * self.hosts + to] = slow;
    }

    /// Holds up, or releases, what one host sends to another. Connections that stay held up break after a while.
    pub fn block(&mut self, now: u64, from: usize, to: usize, blocked: bool, queue: &mut Queue) {
        let at = from * self.hosts + to;
        if self.blocked[at] == blocked {
            return;
        }
        self.blocked[at] = blocked;
        self.hold_up(now, from, to, blocked, None, queue);
    }

    /// The same for what carries data; heartbeats arrive.
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

    /// A stopped host answers nothing, so its connections may break.
    pub fn watch_silence(&mut self, now: u64, host: usize, queue: &mut Queue) {
        for id in self.ids(host, None) {
            let patience = self.rng.range(200_000_000, 6_000_000_000);
            queue.push(now + patience, Event::Silent { conn: id });
        }
    }

    /// Ends all partitions, slow links and faults of single frames.
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

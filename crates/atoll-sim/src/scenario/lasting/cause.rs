//! The lasting faults, the longest pause that each may cause, and whose clients each may cut off.

use std::time::Duration;

use atoll_core::NodeId;
use atoll_node::members::Health;

use super::{LASTS, node_of};
use crate::rng::Rng;
use crate::world::fault::{Death, Fault};
use crate::world::network::Slow;

/// A fault that lasts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// A process ends.
    Dead(usize, Death),
    /// All nodes lose power, and all but this one restart.
    NeverBack(usize),
    /// A link is cut in both directions.
    Cut(usize, usize),
    /// A link is cut in one direction.
    OneWay(usize, usize),
    /// Only data connections are cut, so heartbeats still arrive.
    DataCut(usize, usize),
    /// A sync fails, so the journal closes, and nobody restarts the node.
    Closed(usize),
    /// No sync ends.
    Hung(usize),
    /// The disk is full, so the node accepts no entries.
    Full(usize),
    /// Another link is cut every `TURN`, so the best place for the sequencer changes each time.
    Turning,
    /// Of five nodes, the second and third do not reach the fourth and fifth. The first reaches all, and is a majority together with either
    /// pair.
    Bridge([usize; 5]),
    /// Of five nodes, each reaches only this one, so only this one reaches a majority.
    Star(usize),
    /// All links of a host are slow.
    SlowNode(usize),
    /// One link is slow, in both directions.
    SlowLink(usize, usize),
    /// All links between hosts are slow.
    SlowLinks,
    /// On all links between hosts, this many packets per thousand are lost.
    Lossy(u32),
}

/// A slow link: 100 ± 30 ms extra in each direction.
const SLOW: Slow = Slow { by_ns: 100_000_000, jitter_ns: 30_000_000, resent_permille: 0 };
/// When all links are slow: 20 ± 10 ms extra.
const ALL_SLOW: Slow = Slow { by_ns: 20_000_000, jitter_ns: 10_000_000, resent_permille: 0 };

impl Cause {
    /// Draws a fault that cuts, ends or hangs something.
    pub(super) fn draw(rng: &mut Rng, hosts: usize) -> Cause {
        let a = rng.below(hosts as u64) as usize;
        let b = (a + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
        let death = if rng.below(2) == 0 { Death::Kill } else { Death::PowerCut };
        match rng.below(if hosts == 5 { 16 } else { 11 }) {
            0 => Cause::Dead(a, death),
            1 | 2 => Cause::NeverBack(a),
            3 | 4 => Cause::Cut(a, b),
            5 => Cause::OneWay(a, b),
            6 => Cause::DataCut(a, b),
            7 => Cause::Closed(a),
            8 => Cause::Hung(a),
            9 if hosts == 3 => Cause::Turning,
            11..=14 => Cause::bridge(rng),
            15 => Cause::Star(a),
            _ => Cause::Full(a),
        }
    }

    /// Draws a fault that slows something down.
    pub(super) fn draw_slow(rng: &mut Rng, hosts: usize) -> Cause {
        let a = rng.below(hosts as u64) as usize;
        let b = (a + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
        match rng.below(8) {
            0..=2 => Cause::SlowNode(a),
            3 | 4 => Cause::SlowLink(a, b),
            5 => Cause::SlowLinks,
            6 => Cause::Lossy(10),
            _ => Cause::Lossy(100),
        }
    }

    fn bridge(rng: &mut Rng) -> Cause {
        let mut order = [0, 1, 2, 3, 4];
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        Cause::Bridge(order)
    }

    /// Returns its coverage mark.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Cause::Dead(..) => "sim.lasting.dead",
            Cause::NeverBack(_) => "sim.lasting.never_back",
            Cause::Cut(..) => "sim.lasting.cut",
            Cause::OneWay(..) => "sim.lasting.one_way",
            Cause::DataCut(..) => "sim.lasting.data_cut",
            Cause::Closed(_) => "sim.lasting.closed",
            Cause::Hung(_) => "sim.lasting.hung",
            Cause::Full(_) => "sim.lasting.full",
            Cause::Turning => "sim.lasting.turning",
            Cause::Bridge(_) => "sim.lasting.bridge",
            Cause::Star(_) => "sim.lasting.star",
            Cause::SlowNode(_) => "sim.lasting.slow_node",
            Cause::SlowLink(..) => "sim.lasting.slow_link",
            Cause::SlowLinks => "sim.lasting.slow_links",
            Cause::Lossy(_) => "sim.lasting.lossy",
        }
    }

    /// Returns whether clients of a host may wait until the cause ends, for a log on these servers.
    pub(super) fn loses(self, client_of: usize, servers: &[NodeId]) -> bool {
        match self {
            Cause::Dead(host, _)
            | Cause::NeverBack(host)
            | Cause::Closed(host)
            | Cause::Hung(host)
            | Cause::Full(host) => host == client_of,
            Cause::Star(middle) => middle != client_of,
            Cause::Cut(..) | Cause::OneWay(..) | Cause::DataCut(..) => false,
            Cause::Turning
            | Cause::SlowNode(_)
            | Cause::SlowLink(..)
            | Cause::SlowLinks
            | Cause::Lossy(_) => false,
            // A majority of the members is not enough: entries that servers on the other side accepted just before the cut may be nowhere
            // else.
            Cause::Bridge([middle, a, b, c, d]) => {
                let mine = if client_of == a || client_of == b { [a, b] } else { [c, d] };
                let reaches =
                    |n: &&NodeId| client_of == middle || [middle, mine[0], mine[1]].map(node_of).contains(n);
                servers.iter().filter(reaches).count() * 2 <= servers.len()
            }
        }
    }

    /// Returns the faults that start it.
    pub(super) fn faults(self, hosts: usize) -> Vec<Fault> {
        match self {
            Cause::Dead(host, death) => vec![Fault::Crash { host, death, back_after: None }],
            Cause::NeverBack(gone) => {
                let back = |host: usize| (host != gone).then_some(20_000_000 * (host as u64 + 1));
                let crash = |host| Fault::Crash { host, death: Death::PowerCut, back_after: back(host) };
                (0..hosts).map(crash).collect()
            }
            Cause::Cut(a, b) => cut([(a, b)]),
            Cause::OneWay(from, to) => vec![Fault::Block { from, to, blocked: true }],
            Cause::Bridge([_, a, b, c, d]) => cut([(a, c), (a, d), (b, c), (b, d)]),
            Cause::Star(middle) => cut(pairs(hosts).filter(|(a, b)| *a != middle && *b != middle)),
            Cause::DataCut(a, b) => {
                let block = |(from, to)| Fault::BlockData { from, to, blocked: true };
                [(a, b), (b, a)].map(block).into()
            }
            Cause::Closed(host) => vec![Fault::FailSync { host }],
            Cause::Hung(host) => vec![Fault::HangDisk { host, hung: true }],
            Cause::Full(host) => vec![Fault::FullDisk { host, full: true }],
            Cause::Turning => Vec::new(),
            Cause::SlowNode(host) => slow(pairs(hosts).filter(|(a, b)| *a == host || *b == host), SLOW),
            Cause::SlowLink(a, b) => slow([(a, b)], SLOW),
            Cause::SlowLinks => slow(pairs(hosts), ALL_SLOW),
            Cause::Lossy(resent_permille) => slow(pairs(hosts), Slow { resent_permille, ..Slow::default() }),
        }
    }

    /// Returns the host whose disk keeps no entries, and the health that all other nodes must report for it.
    pub(super) fn without_disk(self) -> Option<(usize, Health)> {
        match self {
            Cause::Closed(host) => Some((host, Health::Closed)),
            Cause::Hung(host) => Some((host, Health::Hanging)),
            Cause::Full(host) => Some((host, Health::Full)),
            _ => None,
        }
    }

    /// Returns the longest pause that clients may see, with the product's timings.
    pub(super) fn longest_pause(self) -> Duration {
        match self {
            Cause::Dead(..) | Cause::Cut(..) | Cause::OneWay(..) | Cause::Full(_) => {
                Duration::from_millis(1_000)
            }
            Cause::Bridge(_) | Cause::Star(_) => Duration::from_millis(1_000),
            // Counted from the power cut. The last node is back after at most 100 ms.
            Cause::NeverBack(_) => Duration::from_millis(3_000),
            // The journal closes at the next write, but the process still answers.
            Cause::Closed(_) => Duration::from_millis(1_000),
            // Failed appends are slower evidence than missing heartbeats.
            Cause::DataCut(..) => Duration::from_millis(4_000),
            Cause::Hung(_) => Duration::from_millis(2_500),
            // A node that is cut off from the sequencer waits for the rest of the segment's minimum life, but no node waits forever.
            Cause::Turning => LASTS / 2,
            Cause::SlowNode(_) | Cause::SlowLink(..) | Cause::SlowLinks => Duration::from_millis(3_000),
            // A packet that is lost four times in a row arrives after 3 s.
            Cause::Lossy(_) => Duration::from_millis(5_000),
        }
    }
}

/// Returns the faults that cut links in both directions.
fn cut(links: impl IntoIterator<Item = (usize, usize)>) -> Vec<Fault> {
    let block = |(from, to)| Fault::Block { from, to, blocked: true };
    links.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]).map(block).collect()
}

/// Returns the faults that slow down links in both directions.
fn slow(links: impl IntoIterator<Item = (usize, usize)>, slow: Slow) -> Vec<Fault> {
    let slow = |(from, to)| Fault::SlowLink { from, to, slow };
    links.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]).map(slow).collect()
}

/// Returns each pair of hosts once.
fn pairs(hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..hosts).flat_map(move |a| (a + 1..hosts).map(move |b| (a, b)))
}

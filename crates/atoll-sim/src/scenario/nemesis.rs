//! The source of faults: draws them from the menu of a scenario until it is told to stop, then heals everything.

use std::time::Duration;

use atoll_core::{Env, Tick};

use crate::rng::Rng;
use crate::world::clients::{Cluster, Health};
use crate::world::fault::{Death, Fault};
use crate::world::network::Mood;

const MS: u64 = 1_000_000;
/// The minimum time between two disk losses. It is longer than any operation takes, so no operation that relied on the last lost disk is
/// still in progress.
pub const LOSSES_APART: Duration = Duration::from_secs(3);

/// The weight of each kind of fault; 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct Menu {
    /// Kill or power cut of one node.
    pub crash: u64,
    /// Kill or power cut of all nodes at once.
    pub crash_all: u64,
    /// Kill of a node between two of its sends.
    pub crash_mid_turn: u64,
    /// SIGSTOP.
    pub pause: u64,
    /// A full partition into two sides.
    pub split: u64,
    /// One direction between two hosts is held up.
    pub one_way: u64,
    /// The connections between two hosts break.
    pub reset: u64,
    /// Frames are lost, duplicated, reordered, or slow.
    pub mood: u64,
    /// A slow disk.
    pub slow_disk: u64,
    /// A full disk.
    pub full_disk: u64,
    /// A write or sync fails, so the journal closes.
    pub failing_disk: u64,
    /// A power cut, and a bit flips in the journal while the node is down.
    pub rot: u64,
    /// A disk is replaced by an empty one.
    pub wipe: u64,
    /// Files of a node that is down are deleted, truncated, or put back from an older copy.
    pub lost_files: u64,
    /// Reads fail for a while.
    pub failing_reads: u64,
    /// A bit flips in the journal of a running node.
    pub live_rot: u64,
    /// Files of a node that is down, or its whole data directory, are put back from a copy.
    pub put_back: u64,
}

impl Menu {
    /// No faults.
    pub const NONE: Menu = Menu {
        crash: 0,
        crash_all: 0,
        crash_mid_turn: 0,
        pause: 0,
        split: 0,
        one_way: 0,
        reset: 0,
        mood: 0,
        slow_disk: 0,
        full_disk: 0,
        failing_disk: 0,
        rot: 0,
        wipe: 0,
        lost_files: 0,
        failing_reads: 0,
        live_rot: 0,
        put_back: 0,
    };

    /// Faults that cost no disk.
    pub const USUAL: Menu = Menu {
        crash: 8,
        crash_all: 1,
        crash_mid_turn: 4,
        pause: 5,
        split: 5,
        one_way: 3,
        reset: 5,
        mood: 3,
        slow_disk: 2,
        full_disk: 0,
        failing_disk: 1,
        rot: 0,
        wipe: 0,
        ..Menu::NONE
    };

    /// Removes some kinds of faults at random. Runs without some kinds reach states that others do not reach.
    #[must_use]
    pub fn some(mut self, rng: &mut Rng) -> Menu {
        for part in [
            &mut self.crash,
            &mut self.crash_all,
            &mut self.crash_mid_turn,
            &mut self.pause,
            &mut self.split,
            &mut self.one_way,
            &mut self.reset,
            &mut self.mood,
            &mut self.slow_disk,
            &mut self.full_disk,
            &mut self.failing_disk,
            &mut self.rot,
            &mut self.wipe,
        ] {
            if rng.below(4) == 0 {
                *part = 0;
            }
        }
        if self.crash + self.pause + self.split + self.reset == 0 {
            self.crash = 1;
            self.reset = 1;
        }
        self
    }

    fn weights(&self) -> [u64; 17] {
        [
            self.crash,
            self.crash_all,
            self.crash_mid_turn,
            self.pause,
            self.split,
            self.one_way,
            self.reset,
            self.mood,
            self.slow_disk,
            self.full_disk,
            self.failing_disk,
            self.rot,
            self.wipe,
            self.lost_files,
            self.failing_reads,
            self.live_rot,
            self.put_back,
        ]
    }
}

/// Decides whether a host may lose its disk now. Says no while an earlier loss is not made good.
pub type MayLose = Box<dyn Fn(usize) -> bool + Send>;

/// How frequent the faults of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As frequent as the scenario requests.
    Usual,
    /// The phase is over, but the run is still too small: everything is healed once, and from then on faults are rare.
    Rare,
    /// No more faults.
    Over,
}

/// How many times rarer faults then are.
const RARE: u32 = 10;

/// Draws faults until `pace` says that the run is over, or `ends` has come. The mean time between two faults is `every`.
pub async fn run<H: Clone>(
    env: Env,
    cluster: Cluster<H>,
    mut rng: Rng,
    menu: Menu,
    every: Duration,
    (pace, ends): (impl Fn(Tick) -> Pace, Tick),
    may_lose: MayLose,
) {
    let hosts = cluster.hosts() as u64;
    let mut quiet_at = Tick(0);
    let mut last = Pace::Usual;
    loop {
        let now = pace(env.now());
        let is_rare = now == Pace::Rare;
        let every = match now {
            Pace::Usual => every,
            Pace::Rare => every * RARE,
            Pace::Over => break,
        };
        if now != std::mem::replace(&mut last, now) {
            heal(&cluster, hosts as usize);
        }
        let next = env.now().after(Duration::from_nanos(rng.tail(every.as_nanos() as u64)));
        env.sleep_until(next.min(ends)).await;
        // Rare faults are minutes apart, and a pause must not keep the load going when the phase has to be over.
        if next > ends {
            break;
        }
        let weights = menu.weights();
        let mut drawn = rng.below(weights.iter().sum::<u64>().max(1));
        let kind = weights.iter().position(|w| {
            let here = drawn < *w;
            drawn = drawn.saturating_sub(*w);
            here
        });
        let host = rng.below(hosts) as usize;
        let other = (host + 1 + rng.below(hosts.max(2) - 1) as usize) % hosts as usize;
        let death = if rng.below(2) == 0 { Death::Kill } else { Death::PowerCut };
        // Sometimes the node restarts before the messages of its last life have arrived.
        let usual = [1_500 * MS, 150 * MS, 150 * MS, 2 * MS][rng.below(4) as usize];
        let back = rng.tail(usual);
        match kind {
            Some(0) => cluster.inject(Fault::Crash { host, death, back_after: Some(back) }),
            Some(1) => cluster.inject(Fault::CrashAll { death, back_within: back }),
            Some(2) => {
                let frames = rng.below(40);
                cluster.inject(Fault::CrashAfterFrames { host, frames, back_after: back });
            }
            Some(3) => cluster.inject(Fault::Pause { host, nanos: rng.tail(600 * MS) }),
            Some(4) => {
                let mut all: Vec<usize> = (0..hosts as usize).collect();
                rng.shuffle(&mut all);
                all.truncate(1 + rng.below(hosts / 2) as usize);
                cluster.inject(Fault::Split { side: all });
            }
            Some(5) => cluster.inject(Fault::Block { from: host, to: other, blocked: true }),
            Some(6) => cluster.inject(Fault::Reset { a: host, b: other }),
            Some(7) => cluster.inject(Fault::Mood(mood(&mut rng))),
            Some(8) => cluster.inject(Fault::SlowDisk { host, factor: 1 + rng.below(200) }),
            Some(9) => {
                let full = rng.below(2) == 0;
                cluster.inject(Fault::FullDisk { host, full });
            }
            Some(10) if rng.below(2) == 0 => cluster.inject(Fault::FailWrite { host }),
            Some(10) => cluster.inject(Fault::FailSync { host }),
            Some(11..=13 | 15 | 16) if !may_lose(host) => {}
            Some(11) => cluster.inject(Fault::Rot { host, back_after: back }),
            Some(12) => cluster.inject(Fault::Wipe { host, back_after: back }),
            Some(13) => cluster.inject(Fault::LoseFiles { host, back_after: back }),
            Some(14) => cluster.inject(Fault::FailReads { host, failing: true }),
            Some(15) => {
                let frames = 100 + rng.below(3_000);
                cluster.inject(Fault::RotLive { host, frames, back_after: back });
            }
            Some(16) => put_back(&env, &cluster, &mut rng, host, back).await,
            _ => {}
        }
        // Partitions, frame faults, closed journals and full disks have no end of their own, so end them from time to time.
        if env.now() >= quiet_at {
            quiet_at = env.now().after(Duration::from_millis(500 + rng.below(4_000)));
            quieten(&cluster, &mut rng, &menu, is_rare);
        }
    }
    heal(&cluster, hosts as usize);
}

/// Ends faults that have no end of their own: partitions, faults of frames, closed journals, full disks.
fn quieten<H: Clone>(cluster: &Cluster<H>, rng: &mut Rng, menu: &Menu, is_rare: bool) {
    let hosts = cluster.hosts();
    cluster.inject(Fault::HealNetwork);
    restart_closed(cluster, rng);
    // A run that continues because it is too small must make progress. If a single acceptor with a slow disk is the whole group, each of
    // its syncs may take longer than anybody waits.
    if is_rare {
        (0..hosts).for_each(|host| cluster.inject(Fault::SlowDisk { host, factor: 1 }));
    }
    if menu.failing_reads > 0 {
        all_read_again(cluster);
    }
    if menu.put_back > 0 {
        cluster.inject(Fault::CopyDisk { host: rng.below(hosts as u64) as usize });
    }
    if menu.full_disk > 0 {
        cluster.inject(Fault::FullDisk { host: rng.below(hosts as u64) as usize, full: false });
    }
}

/// Puts a data directory back from an older copy, as a whole or in part.
async fn put_back<H: Clone>(env: &Env, cluster: &Cluster<H>, rng: &mut Rng, host: usize, back_after: u64) {
    let whole = rng.below(3) == 0;
    if whole && rng.below(2) == 0 {
        // The node first runs with an empty directory, and its peers hear of that one.
        cluster.inject(Fault::Unmount { host, back_after });
        env.sleep(Duration::from_nanos(back_after + 500 * MS + rng.below(1_500 * MS))).await;
    }
    cluster.inject(Fault::PutBack { host, whole, back_after });
}

/// Makes the journals of all hosts readable again.
pub fn all_read_again<H: Clone>(cluster: &Cluster<H>) {
    (0..cluster.hosts()).for_each(|host| cluster.inject(Fault::FailReads { host, failing: false }));
}

/// Repeatedly holds up single directions between two hosts for some milliseconds. A message to several hosts then reaches some of them much
/// later than others.
pub async fn nervous<H: Clone>(env: Env, cluster: Cluster<H>, mut rng: Rng, until: Tick) {
    let hosts = cluster.hosts() as u64;
    while env.now() < until && hosts > 1 {
        let from = rng.below(hosts) as usize;
        let to = (from + 1 + rng.below(hosts - 1) as usize) % hosts as usize;
        cluster.inject(Fault::Block { from, to, blocked: true });
        let held = [10 * MS, 40 * MS, 150 * MS][rng.below(3) as usize];
        env.sleep(Duration::from_nanos(rng.tail(held))).await;
        cluster.inject(Fault::Block { from, to, blocked: false });
        env.sleep(Duration::from_nanos(rng.tail(20 * MS))).await;
    }
}

/// Restarts nodes whose journal is closed, after everything was healed. Runs forever.
pub async fn medic<H: Clone>(env: Env, cluster: Cluster<H>, mut rng: Rng) {
    loop {
        env.sleep(Duration::from_millis(500)).await;
        restart_closed(&cluster, &mut rng);
    }
}

fn mood(rng: &mut Rng) -> Mood {
    let some = |rng: &mut Rng| if rng.below(2) == 0 { 0 } else { rng.below(60) as u32 };
    Mood {
        lost_permille: some(rng),
        doubled_permille: some(rng),
        swapped_permille: some(rng),
        slower: [1, 1, 1 + rng.below(10), 1 + rng.below(300)][rng.below(4) as usize],
    }
}

/// Returns whether the data on a disk must not be used. If only the program is too old for the data, the disk is good.
fn must_be_wiped(health: &Health) -> bool {
    health.refused.as_ref().is_some_and(|why| !why.contains("too old"))
}

/// Does what an operator does about nodes with a closed journal or unusable data.
fn restart_closed<H: Clone>(cluster: &Cluster<H>, rng: &mut Rng) {
    for host in 0..cluster.hosts() {
        let health = cluster.health(host);
        if health.closed {
            let back_after = Some(rng.below(500 * MS));
            cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
        } else if must_be_wiped(&health) {
            // The data must not be used, so the host gets an empty disk.
            cluster.inject(Fault::Wipe { host, back_after: rng.below(500 * MS) });
        }
    }
}

/// Ends all faults and starts all nodes that are down.
pub fn heal<H: Clone>(cluster: &Cluster<H>, hosts: usize) {
    cluster.inject(Fault::HealNetwork);
    for host in 0..hosts {
        let health = cluster.health(host);
        cluster.inject(Fault::SlowDisk { host, factor: 1 });
        cluster.inject(Fault::HealDisk { host });
        cluster.inject(Fault::HangDisk { host, hung: false });
        cluster.inject(Fault::FullDisk { host, full: false });
        if health.closed {
            cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: Some(10 * MS) });
        } else if must_be_wiped(&health) {
            cluster.inject(Fault::Wipe { host, back_after: 10 * MS });
        } else if !health.up {
            cluster.inject(Fault::Boot { host });
        }
    }
}

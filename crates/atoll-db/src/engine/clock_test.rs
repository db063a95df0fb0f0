#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_core::{Incarnation, NodeCore, Outputs};

use super::*;

const MINUTE: u64 = 60_000;
const ALLOWED: u64 = 10 * MINUTE;
/// An arbitrary day, in milliseconds since the Unix epoch.
const TODAY: u64 = 1_800_000_000_000;
/// The time of a clock that has jumped 70 years ahead.
const FAR: u64 = TODAY + 70 * 365 * 24 * 60 * MINUTE;

fn reported(clocks: &[u64]) -> PeerClocks {
    let reported = (2..).map(NodeId).zip(clocks.iter().copied()).collect();
    PeerClocks { reported, ..PeerClocks::default() }
}

fn verdict(own: u64, log: u64, clocks: &[u64]) -> ClockCheck {
    judge(own, log, &reported(clocks), ALLOWED)
}

fn is_ahead(own: u64, log: u64, clocks: &[u64]) -> bool {
    matches!(verdict(own, log, clocks), ClockCheck::Ahead { .. })
}

#[test]
fn one_clock_in_another_century_is_refused_and_the_others_are_not() {
    assert_eq!(
        verdict(FAR, TODAY, &[TODAY, TODAY + 5]),
        ClockCheck::Ahead { of: vec![NodeId(2), NodeId(3)], ahead_ms: FAR - TODAY - 5 }
    );
    assert_eq!(verdict(TODAY, TODAY - MINUTE, &[TODAY, FAR]), ClockCheck::Agreed);
    assert_eq!(verdict(TODAY, TODAY - MINUTE, &[FAR]), ClockCheck::Agreed, "the third node is down");
    assert!(is_ahead(FAR, TODAY, &[TODAY]), "of two the later one is refused");
}

#[test]
fn what_is_allowed_is_allowed() {
    assert_eq!(verdict(TODAY + ALLOWED, TODAY, &[TODAY, TODAY]), ClockCheck::Agreed);
    assert!(is_ahead(TODAY + ALLOWED + 1, TODAY, &[TODAY, TODAY]));
}

#[test]
fn a_majority_decides() {
    assert_eq!(verdict(FAR, TODAY, &[TODAY, FAR]), ClockCheck::Agreed, "two of three");
    assert!(is_ahead(FAR, TODAY, &[TODAY, TODAY, FAR]), "two and two");
    assert_eq!(verdict(FAR, TODAY, &[TODAY, TODAY, FAR, FAR]), ClockCheck::Agreed, "three of five");
}

#[test]
fn a_cluster_that_was_off_for_long_goes_on() {
    let week = 7 * 24 * 60 * MINUTE;
    assert_eq!(verdict(TODAY, TODAY - week, &[TODAY, TODAY]), ClockCheck::Agreed);
    assert_eq!(verdict(TODAY, TODAY - week, &[TODAY]), ClockCheck::Agreed, "a minority never came back");
    assert_eq!(verdict(TODAY, TODAY - week, &[]), ClockCheck::Agreed, "a node that stands alone");
}

#[test]
fn a_clock_that_is_behind_the_log_accuses_nobody() {
    assert_eq!(verdict(TODAY, TODAY - MINUTE, &[0, 0]), ClockCheck::Unheard);
    assert_eq!(verdict(TODAY, TODAY - MINUTE, &[0, TODAY]), ClockCheck::Agreed);
    // A correct clock still counts when the log's time is ahead by as much as is allowed.
    assert!(is_ahead(TODAY + 2 * ALLOWED, TODAY + ALLOWED, &[TODAY, TODAY - MINUTE]));
}

#[test]
fn a_time_that_does_not_move_the_log_is_not_refused() {
    assert_eq!(verdict(TODAY, FAR, &[0, 0]), ClockCheck::Agreed);
}

#[test]
fn the_earliest_clock_that_counts_is_never_refused() {
    let mut bits = 1_u64;
    for _ in 0..10_000 {
        let mut clock = || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            TODAY + (bits >> 33) % (6 * ALLOWED)
        };
        let log = clock();
        let clocks: Vec<u64> = (0..5).map(|_| clock()).collect();
        let earliest = clocks.iter().copied().filter(|ms| ms + 2 * ALLOWED >= log).min();
        let Some(own) = earliest else { continue };
        let at = clocks.iter().position(|ms| *ms == own).unwrap();
        let others: Vec<u64> =
            clocks.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, ms)| *ms).collect();
        assert!(!is_ahead(own, log, &others), "{own} of {clocks:?}, log {log}");
    }
}

#[test]
fn programs_without_clocks_are_not_asked() {
    let peers = PeerClocks { unreported: 1, silent: 1, ..PeerClocks::default() };
    assert_eq!(judge(FAR, TODAY, &peers, ALLOWED), ClockCheck::Agreed);
}

/// The clock of node 1. The test sets its time and the clocks of its peers.
struct Bench {
    core: NodeCore,
    own: Arc<AtomicU64>,
    peers: Arc<Mutex<PeerClocks>>,
    clock: CheckedClock,
}

impl Bench {
    fn new(own_ms: u64, log_ms: u64, peers: PeerClocks) -> Bench {
        let core = NodeCore::new(NodeId(1), Incarnation(1), 1);
        let own = Arc::new(AtomicU64::new(own_ms));
        let peers = Arc::new(Mutex::new(peers));
        let (shows, heard) = (own.clone(), peers.clone());
        let clock = CheckedClock::new(
            core.env(),
            Arc::new(move || shows.load(Ordering::Relaxed)),
            Some(Arc::new(move || heard.lock().unwrap().clone())),
            Duration::from_millis(ALLOWED),
            log_ms,
        );
        Bench { core, own, peers, clock }
    }

    fn pass(&mut self, seconds: u64) {
        let now = self.core.env().now().after(Duration::from_secs(seconds));
        self.core.turn(now, &mut Outputs::default());
        self.own.fetch_add(seconds * 1000, Ordering::Relaxed);
    }

    fn hear(&self, peers: PeerClocks) {
        *self.peers.lock().unwrap() = peers;
    }
}

fn silent() -> PeerClocks {
    PeerClocks { silent: 2, ..PeerClocks::default() }
}

#[test]
fn a_node_that_hears_nobody_listens_and_then_keeps_the_pace_of_the_log() {
    let mut bench = Bench::new(FAR, TODAY, silent());
    assert_eq!(bench.clock.read(TODAY), Reading::Listening);
    bench.pass(3);
    assert_eq!(bench.clock.read(TODAY), Reading::At(TODAY + 3000));
    bench.pass(60);
    assert_eq!(bench.clock.read(TODAY + 3000), Reading::At(TODAY + 63_000));
}

/// The monotonic clock starts at an arbitrary value and cannot be read before the first turn.
#[test]
fn time_before_the_first_reading_does_not_count() {
    let mut bench = Bench::new(FAR, TODAY, silent());
    bench.pass(1_000_000);
    assert_eq!(bench.clock.read(TODAY), Reading::Listening);
    bench.pass(3);
    assert_eq!(bench.clock.read(TODAY), Reading::At(TODAY + 3000));
}

#[test]
fn a_clock_that_jumps_while_nobody_is_heard_moves_nothing() {
    let mut bench = Bench::new(TODAY, TODAY - MINUTE, reported(&[TODAY, TODAY]));
    assert_eq!(bench.clock.read(TODAY - MINUTE), Reading::At(TODAY));
    bench.hear(silent());
    bench.pass(30);
    bench.own.store(FAR, Ordering::Relaxed);
    assert_eq!(bench.clock.read(TODAY), Reading::At(TODAY + 30_000));
}

#[test]
fn a_clock_that_is_set_right_is_taken_again() {
    let bench = Bench::new(FAR, TODAY, reported(&[TODAY, TODAY]));
    let Reading::Ahead(ahead) = bench.clock.read(TODAY) else { panic!("it was taken") };
    let words = ahead.to_string();
    assert!(words.contains("clock of node 1 ") && words.contains("node 2 and of node 3"), "{words}");
    bench.own.store(TODAY + 1, Ordering::Relaxed);
    assert_eq!(bench.clock.read(TODAY), Reading::At(TODAY + 1));
}

//! Race points: named places in the code at which a test delays what follows, so that others come in between (Bizur §4). Without the
//! feature `testing` they compile to nothing; with it, they do nothing until `set_races` or `set_races_everywhere` gives a seed.
//!
//! A procedure waits at its point: [`Env::race_point`]. So a point between two uncontended locks lets another procedure take them in
//! between, which otherwise happens only between two awaits. A role is a synchronous state machine and cannot wait. The next message
//! after its point leaves late instead, and so after messages that it sends later: `Effects::race_point` in `role.rs`.
//!
//! The seed decides which points delay, how often, and for how long. Half of the points are quiet, so that each run stresses a few.

use crate::env::Env;
use crate::frame::{Class, Envelope};
use crate::ids::NodeId;

#[cfg(feature = "testing")]
mod on {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Of so many passages of a point, one has a delay on average; 0 stands for a quiet point.
    const ONE_IN: [u64; 6] = [0, 0, 0, 2, 5, 20];
    /// The longest delay of a point, in microseconds: less than a round trip, several of them, and longer than a heartbeat.
    const LONGEST_US: [u64; 3] = [300, 5_000, 60_000];

    /// What delays the points of a whole program.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Wanted {
        seed: u64,
        /// Only these points delay, half of the time, and for up to the longest delay. If there are none, the seed decides.
        only: Vec<String>,
    }

    thread_local! {
        /// The seed of this thread, if it has one, and how many delays were drawn.
        static HERE: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    }
    static EVERYWHERE: OnceLock<Wanted> = OnceLock::new();
    static DRAWN_EVERYWHERE: AtomicU64 = AtomicU64::new(0);

    /// Makes race points on this thread delay, until the next call. The simulator uses it.
    pub fn set_races(seed: Option<u64>) {
        HERE.set(seed.map(|seed| (seed, 0)));
    }

    /// Makes race points on all threads delay from now on: `SEED`, or `SEED:POINT,POINT` for some of them. Drills use it on whole programs.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the text. Nothing delays then.
    pub fn set_races_everywhere(text: &str) -> Result<(), String> {
        // A second call changes nothing.
        let _ = EVERYWHERE.set(Wanted::read(text)?);
        Ok(())
    }

    impl Wanted {
        pub(super) fn read(text: &str) -> Result<Self, String> {
            let (seed, only) = text.split_once(':').unwrap_or((text, ""));
            let seed = seed
                .parse()
                .map_err(|_| format!("{text:?} does not begin with a number from 0 to {}", u64::MAX))?;
            let only = only.split(',').filter(|point| !point.is_empty()).map(str::to_owned).collect();
            Ok(Wanted { seed, only })
        }

        pub(super) fn delay(&self, drawn: u64, point: &str) -> Option<Duration> {
            if self.only.is_empty() {
                return delay(self.seed, drawn, point);
            }
            let longest_us = LONGEST_US[LONGEST_US.len() - 1];
            let delays = self.only.iter().any(|one| one == point);
            draw(name(self.seed, point), drawn, if delays { 2 } else { 0 }, longest_us)
        }
    }

    /// A step of SplitMix64.
    fn mix(n: u64) -> u64 {
        let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    fn name(seed: u64, point: &str) -> u64 {
        point.bytes().fold(seed, |sum, byte| mix(sum ^ u64::from(byte)))
    }

    fn draw(name: u64, drawn: u64, one_in: u64, longest_us: u64) -> Option<Duration> {
        let draw = mix(name ^ mix(drawn));
        let delays = one_in > 0 && draw.is_multiple_of(one_in);
        delays.then(|| Duration::from_micros(1 + (draw >> 32) % longest_us))
    }

    /// Draws from the seed for one passage of a point.
    pub(super) fn delay(seed: u64, drawn: u64, point: &str) -> Option<Duration> {
        let name = name(seed, point);
        let one_in = ONE_IN[(name % ONE_IN.len() as u64) as usize];
        let longest_us = LONGEST_US[((name >> 32) % LONGEST_US.len() as u64) as usize];
        draw(name, drawn, one_in, longest_us)
    }

    pub(super) fn delay_at(point: &'static str) -> Option<Duration> {
        if let Some((seed, drawn)) = HERE.get() {
            HERE.set(Some((seed, drawn + 1)));
            return delay(seed, drawn, point);
        }
        let wanted = EVERYWHERE.get()?;
        wanted.delay(DRAWN_EVERYWHERE.fetch_add(1, Ordering::Relaxed), point)
    }
}

#[cfg(feature = "testing")]
pub use on::{set_races, set_races_everywhere};

impl Env {
    /// Waits at a race point, if a test wants that: see [`crate::races`].
    #[cfg(feature = "testing")]
    pub async fn race_point(&self, point: &'static str) {
        if let Some(delay) = on::delay_at(point) {
            self.sleep(delay).await;
        }
    }

    /// Passes a race point: a no-op outside tests. An empty async function would keep the name in its future.
    #[cfg(not(feature = "testing"))]
    #[inline(always)]
    pub fn race_point(&self, _: &'static str) -> std::future::Ready<()> {
        std::future::ready(())
    }
}

/// By how much a message that a role sends is late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Late(#[cfg(feature = "testing")] Option<std::time::Duration>);

// Outside tests, no message carries anything of this.
#[cfg(not(feature = "testing"))]
const _: () = assert!(size_of::<Late>() == 0);

impl Late {
    /// Draws it at a race point.
    #[inline(always)]
    pub(crate) fn drawn(_point: &'static str) -> Self {
        Late(
            #[cfg(feature = "testing")]
            on::delay_at(_point),
        )
    }

    /// Sends a message, after the delay if there is one. It is lost if it cannot be sent, and if the node dies before.
    #[inline(always)]
    pub(crate) fn send(self, env: &Env, to: NodeId, class: Class, envelope: Envelope) {
        #[cfg(feature = "testing")]
        if let Some(delay) = self.0 {
            let sender = env.clone();
            let later = async move {
                sender.sleep(delay).await;
                let _ = sender.state().send(sender.node(), to, class, envelope);
            };
            env.spawn("race point", Box::pin(later));
            return;
        }
        let _ = env.state().send(env.node(), to, class, envelope);
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::{on, set_races};
    use crate::ids::{Incarnation, NodeId, Tick};
    use crate::node_core::{NodeCore, Outputs};

    /// Two procedures that each add one to a number, which they read and write under a lock that nobody else ever holds. The planted race:
    /// the lock is free between the two.
    fn added(seed: Option<u64>) -> u64 {
        set_races(seed);
        let mut core = NodeCore::new(NodeId(1), Incarnation(1), 1);
        let number = Arc::new(Mutex::new(0_u64));
        for _ in 0..2 {
            let (env, number) = (core.env(), number.clone());
            let add = async move {
                let read = *number.lock().unwrap_or_else(PoisonError::into_inner);
                env.race_point("test.between_two_locks").await;
                *number.lock().unwrap_or_else(PoisonError::into_inner) = read + 1;
            };
            core.env().spawn("add", Box::pin(add));
        }
        let mut out = Outputs::default();
        let mut now = Tick::default();
        while let Some(next) = core.next_deadline() {
            now = next.max(now);
            core.turn(now, &mut out);
        }
        set_races(None);
        *number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_race_around_an_uncontended_lock_is_found_with_race_points_only() {
        assert_eq!(added(None), 2, "without a seed, nothing comes in between");
        assert!((0..20).any(|seed| added(Some(seed)) == 1), "no seed lets both read before one writes");
    }

    #[test]
    fn a_seed_decides_which_points_delay_and_when() {
        let drawn = |seed, point| (0..1_000).map(|n| on::delay(seed, n, point)).collect::<Vec<_>>();
        let (mut quiet, mut busy) = (0, 0);
        for seed in 0..100 {
            let delays = drawn(seed, "a.point");
            assert_eq!(delays, drawn(seed, "a.point"));
            let count = delays.iter().flatten().count();
            quiet += usize::from(count == 0);
            busy += usize::from(count > 30);
        }
        assert!(quiet > 25 && busy > 25, "{quiet} of 100 seeds leave the point quiet, {busy} delay often");
    }

    #[test]
    fn a_program_delays_the_points_that_it_is_told() {
        let delays = |text: &str, point: &str| {
            let wanted = on::Wanted::read(text).expect(text);
            (0..1_000).filter_map(|n| wanted.delay(n, point)).count()
        };
        for seed in 0..20 {
            let some = format!("{seed}:a.point,another.point");
            assert!((400..600).contains(&delays(&some, "a.point")), "{some}");
            assert!((400..600).contains(&delays(&some, "another.point")), "{some}");
            assert_eq!(delays(&some, "a.point.too"), 0, "{some}");
        }
        assert!((0..20).any(|seed| delays(&seed.to_string(), "a.point") > 0));
        for wrong in ["", "-1", "x", ":a.point", "a.point", "18446744073709551616"] {
            assert!(on::Wanted::read(wrong).is_err_and(|why| why.contains("from 0 to 18446744073709551615")));
        }
    }
}

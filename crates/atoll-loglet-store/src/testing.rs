//! The way of a node to a store or service outside of the cluster, which is slow, loses requests, and loses the answers to requests that
//! were carried out. Time and chance come from the node's `Env`, so that a seed shows the same faults again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env};

/// How the ways to a store or service fail. Clones share the settings, which may change at any time.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    /// The longest time that a request takes there, and its answer back, in nanoseconds.
    delay_ns: AtomicU64,
    /// Of a thousand requests, how many are lost on the way there.
    lost: AtomicU32,
    /// Of a thousand requests, how many are carried out and not answered.
    unanswered: AtomicU32,
    /// Of a thousand requests, how many take a hundred times as long. A put among them overtakes nothing that came after it.
    late: AtomicU32,
    /// Of a thousand conditional writes, how many are refused although the condition holds. S3 does this while puts meet, and JetStream
    /// while an earlier message is on its way to its servers.
    conflicts: AtomicU32,
    /// Of a thousand reads, how many show an older state, where that is allowed.
    lag: AtomicU32,
    /// The length of a window of time, in nanoseconds. In every fourth window, every second node is cut off. 0 is never.
    cut_window_ns: AtomicU64,
}

impl Faults {
    /// Sets how slow the way is.
    pub fn set_delay(&self, longest: Duration) {
        self.0.delay_ns.store(longest.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Sets how many of a thousand requests are lost, not answered, late, or refused because of a conflict.
    pub fn set(&self, lost: u32, unanswered: u32, late: u32, conflicts: u32) {
        let s = &self.0;
        for (to, value) in
            [(&s.lost, lost), (&s.unanswered, unanswered), (&s.late, late), (&s.conflicts, conflicts)]
        {
            to.store(value, Ordering::Relaxed);
        }
    }

    /// Sets how many of a thousand reads show an older state.
    pub fn set_lag(&self, per_mille: u32) {
        self.0.lag.store(per_mille, Ordering::Relaxed);
    }

    /// Sets one of the settings by its name. Returns false if there is none.
    pub fn set_one(&self, setting: &str, value: u64) -> bool {
        let (s, Ok(value)) = (&self.0, u32::try_from(value)) else { return false };
        match setting {
            "store_delay_us" => s.delay_ns.store(u64::from(value) * 1000, Ordering::Relaxed),
            "store_cut_window_ms" => s.cut_window_ns.store(u64::from(value) * 1_000_000, Ordering::Relaxed),
            "store_lost" => s.lost.store(value, Ordering::Relaxed),
            "store_unanswered" => s.unanswered.store(value, Ordering::Relaxed),
            "store_late" => s.late.store(value, Ordering::Relaxed),
            "store_conflicts" => s.conflicts.store(value, Ordering::Relaxed),
            "store_lag" => self.set_lag(value),
            _ => return false,
        }
        true
    }

    /// Ends all faults, except the delay.
    pub fn heal(&self) {
        self.set(0, 0, 0, 0);
        self.set_lag(0);
    }
}

/// The marks of a protocol: a request was lost, was carried out and not answered, came from a node that is cut off.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// A request was lost.
    pub lost: &'static str,
    /// A request was carried out and not answered.
    pub unanswered: &'static str,
    /// A node is cut off.
    pub cut_off: &'static str,
}

/// The way of one node. See the module documentation.
#[derive(Clone, Debug)]
pub struct Way {
    env: Env,
    faults: Faults,
    marks: Marks,
}

/// What happens to one request, drawn when it is made.
struct Fate {
    there: Duration,
    back: Duration,
    lost: bool,
    unanswered: bool,
}

impl Way {
    /// Returns the way of the node of `env`.
    pub fn new(env: Env, faults: Faults, marks: Marks) -> Self {
        Way { env, faults, marks }
    }

    /// Returns the environment of the node.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// If this node cannot reach the others' side now, returns the number of the window in which it cannot. The other nodes can, so those
    /// that can and those that cannot meet in one log.
    pub fn cut_window(&self) -> Option<u64> {
        let window_ns = self.faults.0.cut_window_ns.load(Ordering::Relaxed);
        let window = self.env.now().0.checked_div(window_ns)?;
        let cut = window % 4 == 3 && (window / 4 + u64::from(self.env.node().0)).is_multiple_of(2);
        if cut {
            hit(self.marks.cut_off);
        }
        cut.then_some(window)
    }

    fn draw(&self, per_mille: &AtomicU32) -> bool {
        let per_mille = per_mille.load(Ordering::Relaxed);
        per_mille > 0 && self.env.random() % 1000 < u64::from(per_mille)
    }

    /// Draws whether a conditional write is refused without a reason.
    pub fn conflicts(&self) -> bool {
        self.draw(&self.faults.0.conflicts)
    }

    /// Draws whether a read shows an older state.
    pub fn lags(&self) -> bool {
        self.draw(&self.faults.0.lag)
    }

    fn fate(&self) -> Fate {
        let s = &self.faults.0;
        let delay = s.delay_ns.load(Ordering::Relaxed);
        let draw = || if delay == 0 { 0 } else { self.env.random() % delay };
        let late = if self.draw(&s.late) { 100 } else { 1 };
        Fate {
            there: Duration::from_nanos(draw() * late),
            back: Duration::from_nanos(draw()),
            lost: self.draw(&s.lost),
            unanswered: self.draw(&s.unanswered),
        }
    }

    /// Carries a request out as its fate says; `silence` is the error of one without an answer. It continues even if nobody waits for it
    /// any more, as a request on a network does.
    pub fn carry<T: Send + 'static, E: Clone + Send + 'static>(
        &self,
        name: &'static str,
        silence: E,
        request: impl FnOnce() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, E>> {
        let (way, fate, silent) = (self.clone(), self.fate(), silence.clone());
        let work = async move {
            way.env.sleep(fate.there).await;
            if way.cut_window().is_some() {
                return Err(silent);
            }
            if fate.lost {
                hit(way.marks.lost);
                return Err(silent);
            }
            let answer = request().await;
            way.env.sleep(fate.back).await;
            if fate.unanswered || way.cut_window().is_some() {
                hit(way.marks.unanswered);
                return Err(silent);
            }
            answer
        };
        let wait = self.env.launch(name, work);
        Box::pin(async move { wait.await.unwrap_or(Err(silence)) })
    }
}

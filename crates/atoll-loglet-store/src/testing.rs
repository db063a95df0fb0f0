//! The way of a node to a store or service outside of the cluster, which is slow, loses requests, and loses the answers to requests that
//! were carried out. Time and chance come from the node's `Env`, so that a seed shows the same faults again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env};
use bytes::Bytes;

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
    /// Of a thousand answers that were read, how many are altered or cut short on their way.
    wrong: AtomicU32,
    /// The length of a window of time, in nanoseconds. In every fourth window, every second node is cut off. 0 is never.
    cut_window_ns: AtomicU64,
    /// The length of another one. In every eighth of these, nobody is answered. 0 is never.
    away_window_ns: AtomicU64,
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
            "store_away_window_ms" => s.away_window_ns.store(u64::from(value) * 1_000_000, Ordering::Relaxed),
            "store_wrong" => s.wrong.store(value, Ordering::Relaxed),
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
        self.0.wrong.store(0, Ordering::Relaxed);
        self.0.cut_window_ns.store(0, Ordering::Relaxed);
        self.0.away_window_ns.store(0, Ordering::Relaxed);
    }
}

/// The marks of a protocol: what happened to a request.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// A request was lost.
    pub lost: &'static str,
    /// A request was carried out and not answered.
    pub unanswered: &'static str,
    /// A node is cut off.
    pub cut_off: &'static str,
    /// Nobody is answered.
    pub away: &'static str,
    /// An answer was altered, or cut short.
    pub wrong: &'static str,
}

/// The way of one node. See the module documentation.
#[derive(Clone, Debug)]
pub struct Way {
    env: Env,
    faults: Faults,
    marks: Marks,
}

/// What happens to one request, drawn when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// How long it takes there.
    pub there: Duration,
    /// How long its answer takes back.
    pub back: Duration,
    /// It is lost on its way there.
    pub lost: bool,
    /// It is carried out and not answered.
    pub unanswered: bool,
    /// It takes a hundred times as long as others; `there` has that already.
    pub late: bool,
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

    /// Returns whether nobody is answered now.
    pub fn is_away(&self) -> bool {
        let window_ns = self.faults.0.away_window_ns.load(Ordering::Relaxed);
        let away = self.env.now().0.checked_div(window_ns).is_some_and(|window| window % 8 == 5);
        if away {
            hit(self.marks.away);
        }
        away
    }

    /// Alters bytes that were read, or cuts them short, if the draw says so.
    pub fn mangle(&self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() || !self.draw(&self.faults.0.wrong) {
            return bytes;
        }
        hit(self.marks.wrong);
        let at = (self.env.random() % bytes.len() as u64) as usize;
        if self.env.random().is_multiple_of(2) {
            return bytes.slice(..at);
        }
        let mut altered = bytes.to_vec();
        altered[at] ^= 1 << (self.env.random() % 8);
        altered.into()
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

    /// Draws how long one way takes.
    pub fn delay(&self) -> Duration {
        let longest = self.faults.0.delay_ns.load(Ordering::Relaxed);
        Duration::from_nanos(if longest == 0 { 0 } else { self.env.random() % longest })
    }

    /// Draws what happens to a request.
    pub fn fate(&self) -> Fate {
        let s = &self.faults.0;
        let delay = s.delay_ns.load(Ordering::Relaxed);
        let draw = || if delay == 0 { 0 } else { self.env.random() % delay };
        let late = self.draw(&s.late);
        Fate {
            there: Duration::from_nanos(draw() * if late { 100 } else { 1 }),
            back: Duration::from_nanos(draw()),
            lost: self.draw(&s.lost),
            unanswered: self.draw(&s.unanswered),
            late,
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
            if way.cut_window().is_some() || way.is_away() {
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

//! A store that is slow, loses requests, and loses the answers to requests that were carried out. Time and chance come from the node's
//! `Env`, so that a seed shows the same faults again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env};
use bytes::Bytes;

use crate::store::{Put, Store, StoreError};

/// How a store fails. Clones share the settings, which may change at any time.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    /// The longest time that a request takes to the store, and its answer back, in nanoseconds.
    delay_ns: AtomicU64,
    /// Of a thousand requests, how many are lost on the way there.
    lost: AtomicU32,
    /// Of a thousand requests, how many are carried out and not answered.
    unanswered: AtomicU32,
    /// Of a thousand requests, how many take a hundred times as long. A put among them overtakes nothing that came after it.
    late: AtomicU32,
    /// Of a thousand conditional puts, how many are told that there is an object, although there is none. S3 does this while puts meet.
    conflicts: AtomicU32,
    /// The length of a window of time, in nanoseconds. In every fourth window, every second node cannot reach the store. 0 is never.
    cut_window_ns: AtomicU64,
}

impl Faults {
    /// Sets how slow the store is.
    pub fn set_delay(&self, longest: Duration) {
        self.0.delay_ns.store(longest.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Sets how many of a thousand requests are lost, not answered, late, or get a wrong answer because of a conflict.
    pub fn set(&self, lost: u32, unanswered: u32, late: u32, conflicts: u32) {
        let s = &self.0;
        for (to, value) in
            [(&s.lost, lost), (&s.unanswered, unanswered), (&s.late, late), (&s.conflicts, conflicts)]
        {
            to.store(value, Ordering::Relaxed);
        }
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
            _ => return false,
        }
        true
    }

    /// Ends all faults, except the delay.
    pub fn heal(&self) {
        self.set(0, 0, 0, 0);
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Faulty {
    env: Env,
    inner: Arc<dyn Store>,
    faults: Faults,
}

/// What happens to one request, drawn when it is made.
struct Fate {
    there: Duration,
    back: Duration,
    lost: bool,
    unanswered: bool,
    conflict: bool,
}

impl Faulty {
    /// Returns a store that fails like this on its way to `inner`.
    pub fn new(env: Env, inner: Arc<dyn Store>, faults: Faults) -> Self {
        Faulty { env, inner, faults }
    }

    /// Whether this node cannot reach the store now. The other nodes can, so those that can and those that cannot meet in one log.
    fn is_cut_off(&self) -> bool {
        let window_ns = self.faults.0.cut_window_ns.load(Ordering::Relaxed);
        if window_ns == 0 {
            return false;
        }
        let window = self.env.now().0 / window_ns;
        window % 4 == 3 && (window / 4 + u64::from(self.env.node().0)).is_multiple_of(2)
    }

    fn fate(&self) -> Fate {
        let s = &self.faults.0;
        let of = |per_mille: &AtomicU32| {
            let per_mille = per_mille.load(Ordering::Relaxed);
            per_mille > 0 && self.env.random() % 1000 < u64::from(per_mille)
        };
        let delay = s.delay_ns.load(Ordering::Relaxed);
        let draw = || if delay == 0 { 0 } else { self.env.random() % delay };
        let late = if of(&s.late) { 100 } else { 1 };
        Fate {
            there: Duration::from_nanos(draw() * late),
            back: Duration::from_nanos(draw()),
            lost: of(&s.lost),
            unanswered: of(&s.unanswered),
            conflict: of(&s.conflicts),
        }
    }

    /// Carries a request out as its fate says. It continues even if nobody waits for it any more, as a request on a network does.
    fn carry<T: Send + 'static>(
        &self,
        request: impl FnOnce() -> BoxFuture<'static, Result<T, StoreError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (way, fate) = (self.clone(), self.fate());
        let work = async move {
            way.env.sleep(fate.there).await;
            if way.is_cut_off() {
                hit("object.store.cut_off");
                return Err(StoreError::NoAnswer);
            }
            if fate.lost {
                hit("object.store.lost");
                return Err(StoreError::NoAnswer);
            }
            let answer = request().await;
            way.env.sleep(fate.back).await;
            if fate.unanswered || way.is_cut_off() {
                hit("object.store.unanswered");
                return Err(StoreError::NoAnswer);
            }
            answer
        };
        let wait = self.env.launch("object.store", work);
        Box::pin(async move { wait.await.unwrap_or(Err(StoreError::NoAnswer)) })
    }
}

impl Store for Faulty {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        let inner = self.inner.clone();
        if how == Put::Create && self.fate().conflict {
            hit("object.store.conflict");
            return Box::pin(std::future::ready(Ok(false)));
        }
        self.carry(move || inner.put(name, bytes, how))
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        let inner = self.inner.clone();
        self.carry(move || inner.get(name, most))
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.inner.clone();
        self.carry(move || inner.delete(names))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        self.inner.compute(work);
    }
}

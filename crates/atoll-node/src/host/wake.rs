//! What other threads have for the node thread, and how they wake it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use atoll_core::{FetchError, Loc, Lsn, NodeCore, RoleKind, Space, Stored};

/// Something for the core. Bounded by what is under way: one batch, one checkpoint, queued reads, callers who wait.
pub(crate) enum Incoming {
    /// The batch is durable, or the journal is closed.
    Durable(Result<Vec<(Lsn, Loc)>, String>),
    /// What the journal takes has changed.
    Space(Space),
    /// A checkpoint is due.
    WantsCheckpoint,
    /// This segment is sparse.
    Compact(u64),
    /// A read has ended.
    Fetched { role: RoleKind, tag: u64, got: Result<Vec<Stored>, FetchError> },
    /// Somebody wants to see the core.
    Inject(Box<dyn FnOnce(&mut NodeCore) + Send>),
    /// A clean stop.
    Stop,
}

#[derive(Default)]
struct Events {
    list: Vec<Incoming>,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Inbound {
    events: Mutex<Events>,
    pub(crate) bell: Arc<NodeBell>,
}

impl Inbound {
    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dropped, and with it whoever waits for it, if the driver has ended.
    pub(crate) fn put(&self, event: Incoming) {
        let mut events = self.lock();
        if events.closed {
            drop(events);
            return drop(event);
        }
        events.list.push(event);
        drop(events);
        self.bell.ring();
    }

    /// Exchanges what waits for an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Incoming>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut self.lock().list, into);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().list.is_empty()
    }

    /// The driver has ended: nothing is taken any more.
    pub(crate) fn close(&self) {
        let left = {
            let mut events = self.lock();
            events.closed = true;
            std::mem::take(&mut events.list)
        };
        drop(left);
    }
}

/// Wakes the driver's task if it sleeps. Whoever rings has put something where the driver looks *before* it rings; the
/// driver looks *after* [`NodeBell::clear`], so nothing is missed, and a driver that is at work is not woken.
#[derive(Default)]
pub(crate) struct NodeBell {
    rung: AtomicBool,
    asleep: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl NodeBell {
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner)
        {
            task.wake_by_ref();
        }
    }

    /// The driver is about to look for work.
    pub(crate) fn clear(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.rung.store(false, Ordering::SeqCst);
    }

    /// The driver found nothing since [`NodeBell::clear`]. False: somebody rang meanwhile, look again.
    pub(crate) fn sleep(&self, task: &Waker) -> bool {
        {
            let mut slot = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *slot {
                Some(old) => old.clone_from(task),
                None => *slot = Some(task.clone()),
            }
        }
        self.asleep.store(true, Ordering::SeqCst);
        !self.rung.load(Ordering::SeqCst)
    }
}

impl Wake for NodeBell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn only_a_sleeper_is_woken_and_no_ring_is_lost() {
        let count = Arc::new(Count::default());
        let (task, bell) = (Waker::from(count.clone()), NodeBell::default());
        let woken = || count.0.load(Ordering::SeqCst);
        bell.clear();
        bell.ring();
        assert_eq!(woken(), 0, "at work");
        assert!(!bell.sleep(&task), "rung since it looked");
        bell.clear();
        assert!(bell.sleep(&task));
        bell.ring();
        bell.ring();
        assert_eq!(woken(), 1, "once is enough");
    }
}

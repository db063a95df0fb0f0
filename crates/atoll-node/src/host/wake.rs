//! How other threads pass events to the node thread, and how they wake it.

use std::task::{Context, Poll, Wake, Waker};

use atoll_core::sync::atomic::{AtomicBool, Ordering};
use atoll_core::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Events<E> {
    list: Vec<E>,
    closed: bool,
}

/// Events that wait for the driver. Their number is bounded by the work in progress: see [`super::incoming::Incoming`].
pub(crate) struct Inbound<E> {
    events: Mutex<Events<E>>,
    pub(crate) bell: Arc<NodeBell>,
}

impl<E> Default for Inbound<E> {
    fn default() -> Self {
        let events = Mutex::new(Events { list: Vec::new(), closed: false });
        Inbound { events, bell: Arc::default() }
    }
}

impl<E> Inbound<E> {
    fn lock(&self) -> MutexGuard<'_, Events<E>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes an event to the driver. If the driver has ended, drops the event, and whoever waits for it gets an error.
    pub(crate) fn put(&self, event: E) {
        let mut events = self.lock();
        if events.closed {
            drop(events);
            return drop(event);
        }
        events.list.push(event);
        drop(events);
        self.bell.ring();
    }

    /// Moves the waiting events to `into`, which must be empty.
    pub(crate) fn take(&self, into: &mut Vec<E>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut self.lock().list, into);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().list.is_empty()
    }

    /// Drops the waiting events and all later ones, because the driver has ended.
    pub(crate) fn close(&self) {
        let left = {
            let mut events = self.lock();
            events.closed = true;
            std::mem::take(&mut events.list)
        };
        drop(left);
    }
}

/// Wakes the driver's task if it sleeps. Another thread adds work *before* it rings, and the driver looks for work *after*
/// [`NodeBell::clear`]. So no work is missed, and a driver that is running is not woken.
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

    /// Ready when `look` finds work or the bell was rung in the meantime. `look` may register the task's waker elsewhere.
    pub(crate) fn poll(&self, cx: &mut Context<'_>, look: impl FnOnce(&mut Context<'_>) -> bool) -> Poll<()> {
        self.clear();
        if look(cx) || !self.sleep(cx.waker()) {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Called before the driver looks for work.
    fn clear(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.rung.store(false, Ordering::SeqCst);
    }

    /// Called when the driver has found no work since [`NodeBell::clear`]. Returns false if the bell was rung in the meantime, so that the
    /// driver must look again.
    fn sleep(&self, task: &Waker) -> bool {
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
    use std::sync::atomic::AtomicUsize;

    use super::*;

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

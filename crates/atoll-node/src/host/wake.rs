//! How other threads hand something to the node thread, and how they wake it.

use std::task::{Context, Poll, Wake, Waker};

use atoll_core::sync::atomic::{AtomicBool, Ordering};
use atoll_core::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Events<E> {
    list: Vec<E>,
    closed: bool,
}

/// Events that wait for the driver. Bounded by what is under way: see [`super::incoming::Incoming`].
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

    /// Hands an event to the driver. If the driver has ended, the event is dropped, and with it whatever waits for it.
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

    /// Exchanges what waits for an empty list.
    pub(crate) fn take(&self, into: &mut Vec<E>) {
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

/// Wakes the driver's task if it sleeps. The ringing thread has put something where the driver looks *before* it rings, and the driver
/// looks *after* [`NodeBell::clear`]. So nothing is missed, and a driver that is at work is not woken.
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

    /// Ready once there is work, which `look` looks for; it may leave wakers of its own elsewhere.
    pub(crate) fn poll(&self, cx: &mut Context<'_>, look: impl FnOnce(&mut Context<'_>) -> bool) -> Poll<()> {
        self.clear();
        if look(cx) || !self.sleep(cx.waker()) {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// The driver is about to look for work.
    fn clear(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.rung.store(false, Ordering::SeqCst);
    }

    /// The driver found nothing since [`NodeBell::clear`]. False: the bell was rung meanwhile, look again.
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

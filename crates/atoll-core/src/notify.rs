//! Wakes everyone who waits for a change.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};

#[derive(Debug, Default)]
struct NotifyState {
    count: u64,
    next_key: u64,
    /// At most one for each waiting future, which removes its waker when it is dropped.
    wakers: BTreeMap<u64, Waker>,
}

/// Counts notifications and wakes everyone who waits for the next one. A waiter reads the count before it examines the state that may
/// change, so it misses no change. Cheap to clone; clones share one count.
#[derive(Clone, Debug, Default)]
pub struct Notify(Arc<Mutex<NotifyState>>);

impl Notify {
    /// Returns how many notifications there have been.
    pub fn count(&self) -> u64 {
        lock(&self.0).count
    }

    /// Wakes all waiters, in the order in which they began to wait.
    pub fn notify(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.count += 1;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    /// Completes with the new count once more than `seen` notifications have happened.
    pub fn after(&self, seen: u64) -> Notified {
        Notified { notify: self.clone(), seen, key: None }
    }
}

/// See [`Notify::after`].
#[derive(Debug)]
pub struct Notified {
    notify: Notify,
    seen: u64,
    key: Option<u64>,
}

impl Future for Notified {
    type Output = u64;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u64> {
        let me = &mut *self;
        let mut state = lock(&me.notify.0);
        if state.count > me.seen {
            return Poll::Ready(state.count);
        }
        let key = *me.key.get_or_insert_with(|| {
            state.next_key += 1;
            state.next_key
        });
        state.wakers.insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = lock(&self.notify.0).wakers.remove(&key);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn is_ready(waiting: Pin<&mut Notified>) -> bool {
        waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_notification_between_the_look_and_the_wait_is_not_missed() {
        let notify = Notify::default();
        let seen = notify.count();
        notify.notify();
        assert!(is_ready(pin!(notify.after(seen))));
        let mut waiting = pin!(notify.after(notify.count()));
        assert!(!is_ready(waiting.as_mut()));
        notify.clone().notify();
        assert!(is_ready(waiting));
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let notify = Notify::default();
        for _ in 0..3 {
            assert!(!is_ready(pin!(notify.after(0))));
        }
        assert!(lock(&notify.0).wakers.is_empty());
    }
}

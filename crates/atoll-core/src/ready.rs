//! The tasks that are ready to be polled, and the wake-up of the host when one becomes ready.
//!
//! Any thread may make a task ready, for example the thread of a store or of a door that completes a ticket. Only the core takes tasks.

use std::collections::VecDeque;
use std::task::{Wake, Waker};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, lock};

pub(crate) type TaskId = u64;

/// The ready tasks, in the order in which they were woken.
#[derive(Default)]
pub(crate) struct Ready {
    queue: Mutex<VecDeque<TaskId>>,
    host: Mutex<Option<Waker>>,
}

impl Ready {
    fn push(&self, id: TaskId) {
        lock(&self.queue).push_back(id);
        self.wake_host();
    }

    pub(crate) fn pop(&self) -> Option<TaskId> {
        lock(&self.queue).pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    /// Wakes the host if it sleeps. The caller has already put the work for a turn where the host finds it.
    pub(crate) fn wake_host(&self) {
        if let Some(waker) = &*lock(&self.host) {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn set_host(&self, waker: Waker) {
        *lock(&self.host) = Some(waker);
    }
}

/// Makes one task ready, at most once until the task is polled.
pub(crate) struct TaskWaker {
    id: TaskId,
    ready: Arc<Ready>,
    queued: AtomicBool,
}

impl TaskWaker {
    pub(crate) fn new(id: TaskId, ready: Arc<Ready>) -> Self {
        TaskWaker { id, ready, queued: AtomicBool::new(false) }
    }

    /// Must be called before the task is polled: any later wake queues it again.
    pub(crate) fn polling(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.id);
        }
    }
}

//! Scenarios with the host's loop, as in `driver.rs`, and threads that make work for it.

use std::task::{Wake, Waker};

use shuttle::future::block_on;
use shuttle::thread;

use super::ready::{Ready, TaskWaker};
use super::ticket::{Completer, ticket};
use super::wake::Inbound;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Two threads each make a task ready twice, as a completed ticket does, and one of them also puts an event. The host sleeps when
/// it finds nothing, and must handle all of them.
pub(crate) fn wakes_up() {
    let inbound = Arc::new(Inbound::<usize>::default());
    let ready = Arc::new(Ready::default());
    ready.set_host(Waker::from(inbound.bell.clone()));
    let tasks: Arc<[_; 2]> = Arc::new([0, 1].map(|id| Arc::new(TaskWaker::new(id, ready.clone()))));
    let values: Arc<[AtomicUsize; 2]> = Arc::default();
    let wakers = [0, 1].map(|i| {
        let (tasks, values, inbound) = (tasks.clone(), values.clone(), inbound.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                values[i].fetch_add(1, Ordering::SeqCst);
                tasks[i].wake_by_ref();
            }
            if i == 1 {
                inbound.put(1);
            }
        })
    });
    let (mut seen, mut events, mut batch) = ([0, 0], 0, Vec::new());
    block_on(async {
        loop {
            inbound.take(&mut batch);
            events += batch.drain(..).count();
            while let Some(id) = ready.pop() {
                let id = id as usize;
                tasks[id].polling();
                seen[id] = values[id].load(Ordering::SeqCst);
            }
            if (seen, events) == ([2, 2], 1) {
                return;
            }
            let look = || !inbound.is_empty() || !ready.is_empty();
            std::future::poll_fn(|cx| inbound.bell.poll(cx, |_| look())).await;
        }
    });
    assert!(wakers.into_iter().all(|waker| waker.join().is_ok()));
}

/// A thread asks the host something, as for metrics, while the host ends. It must get an answer or an error.
pub(crate) fn closes() {
    let inbound = Arc::new(Inbound::<Completer<u32>>::default());
    let asks = inbound.clone();
    let asking = thread::spawn(move || {
        let (done, wait) = ticket();
        asks.put(done);
        block_on(wait)
    });
    let mut batch = Vec::new();
    inbound.take(&mut batch);
    batch.drain(..).for_each(|done| done.complete(1));
    inbound.close();
    assert!(asking.join().is_ok());
}

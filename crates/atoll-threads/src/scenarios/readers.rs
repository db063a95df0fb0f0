//! Scenarios with two threads that read records back, and the node's thread, which requests the reads.

use shuttle::thread;

use super::queue::Queue;
use super::wake::Inbound;
use crate::sync::{Arc, Mutex};

const LIMIT: usize = 2;

type Taken = Arc<Mutex<Vec<u32>>>;

fn readers(queue: &Arc<Queue<u32>>, told: &Arc<Inbound<u32>>) -> [thread::JoinHandle<()>; 2] {
    [(), ()].map(|()| {
        let (queue, told) = (queue.clone(), told.clone());
        thread::spawn(move || {
            while let Some(read) = queue.next() {
                told.put(read);
            }
        })
    })
}

/// Each accepted read is answered once. Then both threads end.
pub(crate) fn read_and_stop() {
    let (queue, told) = (Arc::new(Queue::new(LIMIT)), Arc::new(Inbound::default()));
    let threads = readers(&queue, &told);
    let mut owed: Vec<u32> = (0..3).filter(|n| queue.put(*n).is_ok()).collect();
    assert!(owed.len() >= LIMIT && queue.waiting() <= LIMIT, "as many wait as may");
    let mut got = Vec::new();
    shuttle::future::block_on(async {
        while !owed.is_empty() {
            std::future::poll_fn(|cx| told.bell.poll(cx, |_| !told.is_empty())).await;
            told.take(&mut got);
            for read in got.drain(..) {
                let place = owed.iter().position(|n| *n == read);
                owed.swap_remove(place.unwrap_or_else(|| panic!("{read} was answered twice")));
            }
        }
    });
    queue.stop();
    assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
}

/// A stop may come at any moment. Reads that no thread has taken are returned or dropped, and no thread sleeps forever.
pub(crate) fn stop_while_asked() {
    let (queue, told) = (Arc::new(Queue::new(LIMIT)), Arc::new(Inbound::default()));
    let threads = readers(&queue, &told);
    let (asks, refused) = (queue.clone(), Taken::default());
    let sees = refused.clone();
    let asking = thread::spawn(move || {
        let given_back: Vec<u32> = (0..3).filter_map(|n| asks.put(n).err()).collect();
        sees.lock().expect("nobody panicked").extend(given_back);
    });
    queue.stop();
    assert!(asking.join().is_ok());
    assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
    assert_eq!(queue.waiting(), 0, "kept after the stop");
    assert_eq!(queue.put(9), Err(9));
    let mut answered = Vec::new();
    told.take(&mut answered);
    let refused = refused.lock().expect("nobody panicked");
    assert!(answered.iter().all(|read| !refused.contains(read)), "refused and answered");
}

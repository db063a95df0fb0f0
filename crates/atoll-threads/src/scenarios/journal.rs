//! Scenarios with the journal's thread, the node's thread, which writes some batches itself, and the thread that prepares journal
//! segments.

use std::time::Duration;

use shuttle::future::block_on;
use shuttle::thread;

use super::port::{self, Left, Port, Worker};
use super::wake::Inbound;
use crate::sync::{Arc, Mutex};

const BATCHES: u32 = 3;
const PREPARED: u32 = 2;

#[derive(Default)]
struct Work {
    batch: Option<u32>,
    prepared: Vec<u32>,
}

impl Left for Work {
    fn is_empty(&self) -> bool {
        self.batch.is_none() && self.prepared.is_empty()
    }
}

struct Writer {
    told: Arc<Inbound<Result<u32, u32>>>,
    written: Vec<u32>,
    prepared: u32,
    /// The first batch that cannot be written. All later ones fail, too.
    fails_at: u32,
    /// The number of rounds left that do not wait because the writer's patience is zero.
    quiet_rounds: u32,
    ended: bool,
}

impl Writer {
    fn write(&mut self, batch: u32) {
        assert!(!self.ended, "a batch after the end");
        if batch >= self.fails_at {
            return self.told.put(Err(batch));
        }
        self.written.push(batch);
        self.told.put(Ok(batch));
    }
}

impl Worker for Writer {
    type Left = Work;

    fn patience(&self) -> Option<Duration> {
        (self.quiet_rounds > 0).then_some(Duration::ZERO)
    }

    fn round(&mut self, left: Work) {
        self.quiet_rounds = self.quiet_rounds.saturating_sub(1);
        self.prepared += left.prepared.len() as u32;
        if let Some(batch) = left.batch {
            self.write(batch);
        }
    }

    fn end(&mut self) {
        self.ended = true;
    }
}

/// Writes one batch at a time, every second one in the node's thread if possible, and then stops. Returns the written batches.
fn write(fails_at: u32) -> Vec<u32> {
    let told = Arc::new(Inbound::default());
    let port = Arc::new(Port::<Work>::default());
    let (written, quiet_rounds) = (Vec::new(), 1);
    let writer = Writer { told: told.clone(), written, prepared: 0, fails_at, quiet_rounds, ended: false };
    let writer = Arc::new(Mutex::new(writer));
    let (its, left) = (writer.clone(), port.clone());
    let journal = thread::spawn(move || port::run(&its, &left));
    let left = port.clone();
    let prepare = thread::spawn(move || (0..PREPARED).for_each(|n| left.leave(|work| work.prepared.push(n))));
    for batch in 0..BATCHES {
        match port.take_over(&*writer) {
            Some(mut here) if batch % 2 == 1 => here.write(batch),
            other => {
                drop(other);
                port.leave(|work| assert!(work.batch.replace(batch).is_none(), "two batches under way"));
            }
        }
        let mut answers = Vec::new();
        block_on(async {
            while answers.is_empty() {
                std::future::poll_fn(|cx| told.bell.poll(cx, |_| !told.is_empty())).await;
                told.take(&mut answers);
            }
        });
        let right = if batch < fails_at { Ok(batch) } else { Err(batch) };
        assert_eq!(answers, [right], "one answer for one batch");
    }
    assert!(prepare.join().is_ok());
    port.stop();
    assert!(journal.join().is_ok());
    let Ok(writer) = writer.lock() else { panic!("nobody panicked") };
    assert!(writer.ended && port.is_stopping());
    assert_eq!(writer.prepared, PREPARED, "was left before the stop");
    writer.written.clone()
}

pub(crate) fn writes_and_stops() {
    assert_eq!(write(u32::MAX), [0, 1, 2], "each batch once, in order");
}

pub(crate) fn fails() {
    assert_eq!(write(1), [0], "nothing behind a failure");
}

//! Scenarios with the feeder (the node's thread, which applies some entries itself), the applying thread, and a thread that reports
//! ended commits.

use shuttle::future::block_on;
use shuttle::thread;

use atoll_core::Tick;

use super::inlet::{Inlet, Work};
use super::ticket::{Completer, ticket};
use crate::sync::{Arc, Mutex};

/// The number of bytes that may be queued, and the size of each entry.
const MAX_BYTES: usize = 2;
const BYTES: usize = 1;
const ENTRIES: u32 = 4;

type Entries = Inlet<u32, Completer<u32>>;

/// The entries that were applied. None after the close.
type Applied = Arc<Mutex<Option<Vec<u32>>>>;

fn apply(slot: &mut Option<Vec<u32>>, entry: u32) {
    let Some(applied) = slot.as_mut() else { panic!("applied after the close") };
    assert_eq!(applied.len() as u32, entry, "out of order");
    applied.push(entry);
}

/// Performs one piece of work, as in `feed.rs`. Returns false if it was the last one.
fn work_on(applied: &Applied, work: Work<u32, Completer<u32>>) -> bool {
    let Ok(mut slot) = applied.lock() else { panic!("nobody panicked") };
    match work {
        Work::Entries(entry) => apply(&mut slot, entry),
        Work::Adopt | Work::Commit | Work::Retry => {}
        Work::Refill(done) => done.complete(1),
        Work::Close(done) => {
            let applied = slot.take().expect("closed once");
            assert_eq!(applied.len() as u32, ENTRIES, "lost");
            done.complete(());
            return false;
        }
        Work::End => return false,
    }
    true
}

pub(crate) fn applies_in_order() {
    let inlet = Arc::new(Entries::new(MAX_BYTES));
    let applied: Applied = Arc::new(Mutex::new(Some(Vec::new())));
    let (works, its) = (inlet.clone(), applied.clone());
    let applying = thread::spawn(move || {
        while work_on(&its, works.next()) {}
        works.end();
    });
    let kicks = inlet.clone();
    let committing = thread::spawn(move || kicks.kick());
    for entry in 0..ENTRIES {
        // The first two entries are always queued, so that later ones could overtake them.
        let here = if entry < 2 { None } else { inlet.take_over(&*applied) };
        match here {
            Some(mut slot) => apply(&mut slot, entry),
            None => {
                if let Some(room) = inlet.entries(entry, BYTES, Tick(0)) {
                    assert_eq!(block_on(room), Ok(()), "there is room some time");
                }
            }
        }
    }
    inlet.commit();
    assert_eq!(block_on(inlet.close()), Ok(()));
    inlet.orphan();
    assert!(applying.join().is_ok() && committing.join().is_ok());
}

/// The applying thread ends because of a broken invariant. Everyone who waits for room, for a refill or for the close must be
/// notified.
pub(crate) fn ends_under_the_feeder() {
    let inlet = Arc::new(Entries::new(MAX_BYTES));
    let works = inlet.clone();
    let applying = thread::spawn(move || {
        let work = works.next();
        works.end();
        drop(work);
    });
    for entry in 0..3 {
        if let Some(room) = inlet.entries(entry, BYTES, Tick(0))
            && block_on(room).is_err()
        {
            break;
        }
    }
    let (done, refilled) = ticket();
    inlet.refill(done);
    assert!(block_on(refilled).is_err(), "nobody is there to do it");
    assert!(block_on(inlet.close()).is_err(), "nobody is there to do it");
    assert!(applying.join().is_ok());
}

//! The store is read again, as a whole and slowly: what it has must be what was written to it.
//!
//! The hash of everything that a read snapshot shows must be the one in its own state record. What cannot be read is named by its
//! keys; of what reads well but is not what was written, only the sum is known to be wrong.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::testing::hit;
use atoll_core::{Env, Ticket};
use atoll_log::LogPos;

use super::server::in_thread;
use crate::key_range::{Direction, KeyRange};
use crate::replica::{StateHash, StateRecord};
use crate::store::{StoreError, StoreSnapshot};

/// Entries that are read at once.
const PAGE_ENTRIES: usize = 256;
/// Pause after each page: the disk and the cores are for others.
const PAUSE: Duration = Duration::from_millis(5);

/// What a scrub found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// Of entries below.
    pub below: LogPos,
    /// Keys that were read.
    pub keys: u64,
    /// What is wrong; None: nothing.
    pub wrong: Option<Rot>,
}

/// A part of the store that is not what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    /// The first key that may be in it, as the store has it: with the application's number in front.
    pub from: Bytes,
    /// What the store said, or which hashes differ.
    pub reason: String,
}

type Read = Result<Vec<(Bytes, Bytes)>, StoreError>;

/// Reads everything. The pause between pages is the caller's only cost beside the reads.
pub(super) async fn scrub(env: &Env, base: Arc<dyn StoreSnapshot>, threads: bool) -> Scrubbed {
    let record = match StateRecord::read(&*base) {
        Ok(record) => record,
        Err(error) => {
            let wrong = Some(Rot { from: Bytes::new(), reason: error.to_string() });
            return Scrubbed { below: LogPos::ZERO, keys: 0, wrong };
        }
    };
    let mut done = Scrubbed { below: record.next, keys: 0, wrong: None };
    let mut hash = StateHash::default();
    // The engine's own keys come first and are not in the hash.
    let mut left = KeyRange { start: Bytes::from_static(&[1]), end: None };
    loop {
        let page = match read(base.clone(), left.clone(), threads).await {
            Ok(page) => page,
            Err(error) => {
                hit("db.scrub.unreadable");
                done.wrong = Some(Rot { from: left.start, reason: error.to_string() });
                return done;
            }
        };
        for (key, value) in &page {
            hash.replace(key, None, Some(value));
        }
        done.keys += page.len() as u64;
        match page.last() {
            Some((last, _)) if page.len() == PAGE_ENTRIES => left = left.above(last),
            _ => break,
        }
        env.sleep(PAUSE).await;
    }
    if hash.0 != record.hash {
        hit("db.scrub.differs");
        let reason = format!("the hash of all keys is {:032x}, of all writes {:032x}", hash.0, record.hash);
        done.wrong = Some(Rot { from: Bytes::from_static(&[1]), reason });
    }
    done
}

async fn read(base: Arc<dyn StoreSnapshot>, range: KeyRange, threads: bool) -> Read {
    let page = move || base.page(&range, Direction::Forward, PAGE_ENTRIES);
    let wait: Ticket<Read> = if threads { in_thread("scrub", page) } else { Ticket::ready(page()) };
    let gone = |_| Err(StoreError { doing: "read", reason: "its reader is gone".to_owned() });
    wait.await.unwrap_or_else(gone)
}

//! Reads the whole store again, slowly: it must hold what was written to it.
//!
//! The hash of every range of keys that a read snapshot shows must be the one that its commits maintained (`replica/ranges.rs`). A
//! scrub therefore names, by their keys, both data that cannot be read and data that reads well but is not what was written.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_core::testing::hit;
use atoll_core::{Env, Tick, Ticket};

use super::server::in_thread;
use crate::key_range::{Direction, KeyRange};
use crate::replica::{FIRST, Ranges, StateRecord, hash_of};
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
    /// The keys that it is among, as the store has them: with the application's number in front.
    pub keys: KeyRange,
    /// Of entries below.
    pub below: LogPos,
    /// How it was noticed.
    pub fault: Fault,
    /// How many more ranges are wrong.
    pub more: u64,
}

/// How it was noticed that the store does not have what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be read.
    Unreadable(StoreError),
    /// It reads well, and is something else.
    Differs {
        /// The hash of what was written.
        written: u128,
        /// The hash of what was read.
        read: u128,
    },
}

impl fmt::Display for Rot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys from \"{}\" ", self.keys.start.escape_ascii())?;
        match &self.keys.end {
            Some(end) => write!(f, "to \"{}\" (not in it)", end.escape_ascii())?,
            None => write!(f, "on")?,
        }
        write!(f, ", entries below {}: ", self.below)?;
        match &self.fault {
            Fault::Unreadable(error) => write!(f, "{error}")?,
            Fault::Differs { written, read } => {
                write!(f, "the hash of what was written is {written:032x}, of what is read {read:032x}")?;
            }
        }
        if self.more > 0 {
            write!(f, "; and {} more such ranges", self.more)?;
        }
        Ok(())
    }
}

type Read = Result<Vec<(Bytes, Bytes)>, StoreError>;

/// How fast a scrub runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// With a pause after each page.
    Slowly,
    /// As fast as possible, and no longer than until this time: somebody waits for it.
    Until(Tick),
}

struct Scrub<'a> {
    env: &'a Env,
    base: Arc<dyn StoreSnapshot>,
    threads: bool,
    pace: Pace,
    done: Scrubbed,
}

/// Reads everything. None: either the store was short of a resource, which says nothing about its contents; or time ran out, and
/// nothing wrong was found in the part that was read.
pub(super) async fn scrub(
    env: &Env,
    base: Arc<dyn StoreSnapshot>,
    threads: bool,
    pace: Pace,
) -> Option<Scrubbed> {
    let done = Scrubbed { below: LogPos::ZERO, keys: 0, wrong: None };
    let mut scrub = Scrub { env, base, threads, pace, done };
    let engine = KeyRange::new(Bytes::new(), Bytes::from_static(FIRST));
    match StateRecord::read(&*scrub.base)
        .and_then(|record| Ok((record, Ranges::read(&*scrub.base, u64::MAX)?)))
    {
        Err(error) if error.can_pass() => return None,
        Err(error) => scrub.found(engine, Fault::Unreadable(error)),
        Ok((record, ranges)) => {
            scrub.done.below = record.next;
            for (index, row) in ranges.rows.iter().enumerate() {
                if scrub.is_late() {
                    return Some(scrub.done).filter(|done| done.wrong.is_some());
                }
                scrub.range(ranges.range(index), row.sum).await?;
            }
            // The engine wrote both itself: they can differ only if one of them was altered.
            if ranges.total() != record.hash && scrub.done.wrong.is_none() {
                scrub.found(engine, Fault::Differs { written: record.hash, read: ranges.total() });
            }
        }
    }
    Some(scrub.done)
}

impl Scrub<'_> {
    fn found(&mut self, keys: KeyRange, fault: Fault) {
        let below = self.done.below;
        match &mut self.done.wrong {
            Some(first) => first.more += 1,
            None => self.done.wrong = Some(Rot { keys, below, fault, more: 0 }),
        }
    }

    fn is_late(&self) -> bool {
        matches!(self.pace, Pace::Until(until) if self.env.now() >= until)
    }

    async fn range(&mut self, range: KeyRange, written: u128) -> Option<()> {
        let mut left = range.clone();
        let mut read = 0u128;
        loop {
            let page = match self.read(left.clone()).await {
                Ok(page) => page,
                Err(error) if error.can_pass() => return None,
                Err(error) => {
                    hit("db.scrub.unreadable");
                    self.found(range, Fault::Unreadable(error));
                    return Some(());
                }
            };
            for (key, value) in &page {
                read = read.wrapping_add(hash_of(key, value));
            }
            self.done.keys += page.len() as u64;
            match self.pace {
                Pace::Slowly => self.env.sleep(PAUSE).await,
                // A range that is not read as a whole cannot be judged.
                Pace::Until(_) if self.is_late() => return Some(()),
                Pace::Until(_) => {}
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE_ENTRIES => left = left.above(last),
                _ => break,
            }
        }
        if read != written {
            hit("db.scrub.differs");
            self.found(range, Fault::Differs { written, read });
        }
        Some(())
    }

    async fn read(&self, range: KeyRange) -> Read {
        let base = self.base.clone();
        let page = move || base.page(&range, Direction::Forward, PAGE_ENTRIES);
        let wait: Ticket<Read> = if self.threads { in_thread("scrub", page) } else { Ticket::ready(page()) };
        let gone = |_| Err(StoreError::passing("read", "its reader is gone"));
        wait.await.unwrap_or_else(gone)
    }
}

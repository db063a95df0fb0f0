//! Scrubs the store: reads all of it and checks that it holds what was written.
//!
//! In a store snapshot, the hash of every range of keys must equal the hash that the commits maintained (`replica/ranges.rs`). A
//! scrub therefore reports the keys both of data that cannot be read and of data that can be read but is not what was written.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_core::testing::hit;
use atoll_core::{Env, Tick, Ticket};

use super::server::in_thread;
use crate::replica::{FIRST, Ranges, StateRecord, hash_of};
use crate::store::{StoreError, StoreSnapshot, may_continue};
use atoll_contract::application::{Direction, KeyRange};

/// The number of entries that are read at a time.
const PAGE_ENTRIES: usize = 256;
/// The pause after each page, which leaves the disk and the cores to other work.
const PAUSE: Duration = Duration::from_millis(5);

/// The result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// The first position that the scrubbed state does not include.
    pub below: LogPos,
    /// The number of keys that were read.
    pub keys: u64,
    /// The damage that was found, if any.
    pub wrong: Option<Rot>,
}

/// A part of the store that is not what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    /// The range of keys that contains the damage. As in the store, the application's number precedes each key.
    pub keys: KeyRange,
    /// The first position that the scrubbed state does not include.
    pub below: LogPos,
    /// How the damage was detected.
    pub kind: RotKind,
    /// The number of other damaged ranges.
    pub more: u64,
}

/// How damage to the store was detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotKind {
    /// The range cannot be read.
    Unreadable(StoreError),
    /// The range can be read, but its contents are not what was written.
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
        match &self.kind {
            RotKind::Unreadable(error) => write!(f, "{error}")?,
            RotKind::Differs { written, read } => {
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
    /// It pauses after each page.
    Slowly,
    /// As fast as possible, and only until this time, because a caller is waiting.
    Until(Tick),
}

struct Scrub<'a> {
    env: &'a Env,
    base: Arc<dyn StoreSnapshot>,
    threads: bool,
    pace: Pace,
    done: Scrubbed,
}

/// Scrubs a store snapshot. Returns None if the store was short of a resource, which says nothing about its contents, or if time
/// ran out before any damage was found.
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
        Err(error) => scrub.found(engine, RotKind::Unreadable(error)),
        Ok((record, ranges)) => {
            scrub.done.below = record.next;
            for (index, row) in ranges.rows.iter().enumerate() {
                if scrub.is_late() {
                    return Some(scrub.done).filter(|done| done.wrong.is_some());
                }
                scrub.range(ranges.range(index), row.sum).await?;
            }
            // The engine keeps both consistent, so they can differ only if one of them is damaged.
            if ranges.total() != record.hash && scrub.done.wrong.is_none() {
                scrub.found(engine, RotKind::Differs { written: record.hash, read: ranges.total() });
            }
        }
    }
    Some(scrub.done)
}

impl Scrub<'_> {
    fn found(&mut self, keys: KeyRange, kind: RotKind) {
        let below = self.done.below;
        match &mut self.done.wrong {
            Some(first) => first.more += 1,
            None => self.done.wrong = Some(Rot { keys, below, kind, more: 0 }),
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
                    self.found(range, RotKind::Unreadable(error));
                    return Some(());
                }
            };
            for (key, value) in &page {
                read = read.wrapping_add(hash_of(key, value));
            }
            self.done.keys += page.len() as u64;
            match self.pace {
                Pace::Slowly => self.env.sleep(PAUSE).await,
                // A range that was not read completely cannot be checked.
                Pace::Until(_) if self.is_late() => return Some(()),
                Pace::Until(_) => {}
            }
            match page.last() {
                Some((last, _)) if may_continue(&page, PAGE_ENTRIES) => left = left.above(last),
                _ => break,
            }
        }
        if read != written {
            hit("db.scrub.differs");
            self.found(range, RotKind::Differs { written, read });
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

//! Views: published states of the replica, which any thread may read.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::state::{InMemory, ShowState, StoreError};
use super::{AppId, Direction, KeyRange};
use crate::position::LogPos;

/// The number of entries that a scan fetches at a time.
pub(super) const PAGE_ENTRIES: usize = 128;

/// An application's state after whole log entries: immutable, cheap to clone, usable from any thread. Hold it no longer than one
/// request takes: the data that it shows stays in memory or on disk until it is dropped.
///
/// [`View::get_in_memory`] never waits for a disk. All other reads may, and large scans take long: they belong on a thread that may
/// wait (contracts X20).
#[derive(Clone, Debug)]
pub struct View {
    state: Arc<dyn ShowState>,
    app: AppId,
    /// The reason why the state must not be read, if there is one.
    withheld: Option<&'static str>,
}

/// Returns the key of an application as the store keeps it, with the application's number in front.
pub fn full_key(app: AppId, key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(key.len() + 1);
    full.extend_from_slice(&[app.0]);
    full.extend_from_slice(key);
    full.freeze()
}

/// The maximum length of a key, including the application's number, that is looked up without an allocation.
const SHORT_KEY_BYTES: usize = 256;

/// Calls `f` with the key as the store keeps it. Like [`full_key`], but without an allocation for short keys.
pub(super) fn with_full_key<T>(app: AppId, key: &[u8], f: impl FnOnce(&[u8]) -> T) -> T {
    let mut short = [0; SHORT_KEY_BYTES];
    match short.get_mut(..=key.len()) {
        Some(full) => {
            full[0] = app.0;
            full[1..].copy_from_slice(key);
            f(full)
        }
        None => f(&full_key(app, key)),
    }
}

impl View {
    /// Creates an application's view of a state.
    pub fn new(state: Arc<dyn ShowState>, app: AppId) -> Self {
        View { state, app, withheld: None }
    }

    /// Creates a view whose reads fail, and says why.
    pub fn withheld(state: Arc<dyn ShowState>, app: AppId, why: &'static str) -> Self {
        View { state, app, withheld: Some(why) }
    }

    fn check(&self) -> Result<(), StoreError> {
        self.withheld.map_or(Ok(()), |why| Err(StoreError::passing("read", why)))
    }

    /// Returns the first position that the view does not include. It includes all entries below.
    pub fn below(&self) -> LogPos {
        self.state.below()
    }

    /// Returns the time of the last entry in the view (see [`super::ApplyAt::time_ms`]), or 0 if there is none.
    pub fn time_ms(&self) -> u64 {
        self.state.time_ms()
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The store cannot be read, or the state must not be shown now.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.check()?;
        with_full_key(self.app, key, |key| self.state.get(key))
    }

    /// Returns the value of a key if that needs no disk. Keys that were read or written lately do not need it.
    pub fn get_in_memory(&self, key: &[u8]) -> InMemory {
        if self.withheld.is_some() {
            // The caller that then reads the key gets the reason.
            return InMemory::OnDisk;
        }
        with_full_key(self.app, key, |key| self.state.get_in_memory(key))
    }

    /// Returns true if no read of this view ever waits for a disk.
    pub fn is_in_memory(&self) -> bool {
        self.state.is_in_memory()
    }

    /// Returns an iterator over the entries of a range in the given direction. It fetches them page by page.
    pub fn scan(&self, range: &KeyRange, direction: Direction) -> Scan {
        Scan {
            view: self.clone(),
            direction,
            rest: Some(range.within(self.app.0)),
            page: Vec::new().into_iter(),
            failed: false,
        }
    }
}

/// The iterator of [`View::scan`]. It ends after an error.
#[derive(Debug)]
pub struct Scan {
    view: View,
    direction: Direction,
    rest: Option<KeyRange>,
    page: std::vec::IntoIter<(Bytes, Bytes)>,
    failed: bool,
}

impl Iterator for Scan {
    type Item = Result<(Bytes, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.failed {
                return None;
            }
            if let Some((key, value)) = self.page.next() {
                return Some(Ok((key.slice(1..), value)));
            }
            let range = self.rest.take()?;
            let may_read = self.view.check();
            match may_read.and_then(|()| self.view.state.page(&range, self.direction, PAGE_ENTRIES)) {
                Ok(page) => {
                    self.page = page.items.into_iter();
                    self.rest = page.rest;
                }
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

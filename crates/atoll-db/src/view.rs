//! A published state of the replica, to be read by anybody.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use atoll_contract::LogPos;

use crate::application::AppId;
use crate::key_range::{Direction, KeyRange};
use crate::layers::Layers;
use crate::store::{Hold, StoreError};

/// Entries of a scan that are fetched at once.
pub(crate) const PAGE_ENTRIES: usize = 128;

/// One published state. It retains the data that it shows for as long as it lives.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) layers: Layers,
    pub(crate) hold: Hold,
    /// Entries below are in it.
    pub(crate) below: LogPos,
    pub(crate) time_ms: u64,
}

/// An application's state after whole log entries: immutable, cheap to clone, usable from any thread. Keep it no longer than a
/// request: the data that it shows stays in memory or on disk as long as it lives.
///
/// Reads may touch the disk. Large scans belong on a separate thread (contracts X20).
#[derive(Clone, Debug)]
pub struct View {
    published: Arc<Published>,
    app: AppId,
    /// The replica was found to be wrong.
    /// Why it is not to be shown.
    withheld: Option<&'static str>,
}

/// A key of an application as the store has it.
pub(crate) fn full_key(app: AppId, key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(key.len() + 1);
    full.extend_from_slice(&[app.0]);
    full.extend_from_slice(key);
    full.freeze()
}

/// Most bytes of a key that is looked up without memory of its own.
const SHORT_KEY_BYTES: usize = 256;

/// Calls `f` with the key as the store has it.
pub(crate) fn with_full_key<T>(app: AppId, key: &[u8], f: impl FnOnce(&[u8]) -> T) -> T {
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
    pub(crate) fn new(published: Arc<Published>, app: AppId) -> Self {
        View { published, app, withheld: None }
    }

    /// A state that is not to be shown, and why.
    pub(crate) fn withheld(published: Arc<Published>, app: AppId, why: &'static str) -> Self {
        View { published, app, withheld: Some(why) }
    }

    fn check(&self) -> Result<(), StoreError> {
        self.withheld.map_or(Ok(()), |why| Err(StoreError::passing("read", why)))
    }

    /// All log entries below this position are in it, and none from there on.
    pub fn below(&self) -> LogPos {
        self.published.below
    }

    /// The time of the last entry in it, see [`crate::ApplyAt::time_ms`]; 0 before the first.
    pub fn time_ms(&self) -> u64 {
        self.published.time_ms
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.check()?;
        let published = &self.published;
        with_full_key(self.app, key, |key| published.layers.get(key, published.hold.version))
    }

    /// The entries of a range in a direction, fetched page by page as it goes.
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

/// See [`View::scan`]. Ends after an error.
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
            let published = &self.view.published;
            let (layers, at) = (&published.layers, published.hold.version);
            let page = self.view.check();
            match page.and_then(|()| layers.page(&range, self.direction, at, PAGE_ENTRIES)) {
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

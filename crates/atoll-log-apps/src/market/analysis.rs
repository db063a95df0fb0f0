//! The analyser's state. A state machine that plays the log.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use atoll_core::testing::mutant;
use atoll_core::{Decode, DecodeError, Encode, Reader};

use super::event::{Kind, UserEvent, category};
use crate::mutants;
use crate::player::Machine;

/// The most items that are counted by name.
pub const MAX_ITEMS: usize = 10_000;
/// The name under which further items are counted.
pub const OTHERS: &str = "others/others";
/// The most sessions with anomalous rates that are remembered. Older ones go.
pub const MAX_NOTED: usize = 100;
/// The most sessions whose rates are followed in one bucket.
const MAX_SESSIONS: usize = 10_000;

atoll_core::record! {
    /// How often something was done.
    #[derive(Copy, Default)]
    pub struct Counts {
        /// Looked at.
        pub views: u64,
        /// Put into a cart.
        pub carts: u64,
        /// Bought.
        pub purchases: u64,
        /// Found.
        pub searches: u64,
        /// The prices of what was bought, together.
        pub revenue_cents: u64,
    }
}

impl Counts {
    fn add(&mut self, event: &UserEvent) {
        match event.kind {
            Kind::View {} => self.views += 1,
            Kind::Cart {} => self.carts += 1,
            Kind::Purchase {} => {
                self.purchases += 1;
                self.revenue_cents = self.revenue_cents.saturating_add(event.price_cents);
            }
            Kind::Search {} => self.searches += 1,
        }
    }

    /// Adds what was counted elsewhere.
    pub fn merge(&mut self, other: &Counts) {
        self.views += other.views;
        self.carts += other.carts;
        self.purchases += other.purchases;
        self.searches += other.searches;
        self.revenue_cents = self.revenue_cents.saturating_add(other.revenue_cents);
    }

    /// Returns how many events these are.
    pub fn events(&self) -> u64 {
        self.views + self.carts + self.purchases + self.searches
    }
}

atoll_core::record! {
    /// How time is divided. Part of the state: all analysers of a log have the same. Times are those of events.
    #[derive(Copy)]
    pub struct Windows {
        /// Events are counted in buckets of so many milliseconds, at least 1.
        pub bucket_ms: u64,
        /// The sliding window covers the buckets of the newest event and before, so many milliseconds in all.
        pub window_ms: u64,
        /// An event that is so much older than the newest one is late: it counts in the totals, and in no window.
        pub lateness_ms: u64,
        /// A session with more events than this in one bucket is anomalous.
        pub burst: u64,
    }
}

impl Default for Windows {
    fn default() -> Self {
        Windows { bucket_ms: 5_000, window_ms: 60_000, lateness_ms: 30_000, burst: 100 }
    }
}

atoll_core::record! {
    /// What happened in one bucket of event time.
    #[derive(Default)]
    pub struct Bucket {
        /// By item.
        pub items: BTreeMap<String, Counts>,
        /// Events of each session.
        pub sessions: BTreeMap<String, u64>,
    }
}

/// The state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    windows: Windows,
    totals: BTreeMap<String, Counts>,
    /// The buckets of the sliding window.
    buckets: BTreeMap<u64, Bucket>,
    /// The largest number of events in a bucket, by bucket and session.
    noted: BTreeMap<(u64, String), u64>,
    newest_ms: u64,
    late: u64,
}

impl Analysis {
    /// Returns an analysis of nothing.
    pub fn new(windows: Windows) -> Self {
        Analysis {
            windows,
            totals: BTreeMap::new(),
            buckets: BTreeMap::new(),
            noted: BTreeMap::new(),
            newest_ms: 0,
            late: 0,
        }
    }

    /// Returns how time is divided.
    pub fn windows(&self) -> Windows {
        self.windows
    }

    /// Returns the counts of each item over all time.
    pub fn totals(&self) -> &BTreeMap<String, Counts> {
        &self.totals
    }

    /// Returns how many events were late.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns the counts of each category over all time.
    pub fn categories(&self) -> BTreeMap<&str, Counts> {
        let mut found = BTreeMap::<&str, Counts>::new();
        self.totals.iter().for_each(|(item, counts)| found.entry(category(item)).or_default().merge(counts));
        found
    }

    /// Returns the counts of each item in the sliding window.
    pub fn window(&self) -> BTreeMap<&str, Counts> {
        let mut found = BTreeMap::<&str, Counts>::new();
        for bucket in self.buckets.range(self.first_bucket()..).map(|(_, bucket)| bucket) {
            bucket
                .items
                .iter()
                .for_each(|(item, counts)| found.entry(item.as_str()).or_default().merge(counts));
        }
        found
    }

    /// Returns the number of events in each bucket of the sliding window, the oldest first. Buckets without events have 0.
    pub fn timeline(&self) -> Vec<u64> {
        let last = self.newest_ms / self.windows.bucket_ms.max(1);
        let of = |bucket: &Bucket| bucket.items.values().map(Counts::events).sum();
        (self.first_bucket()..=last).map(|at| self.buckets.get(&at).map_or(0, of)).collect()
    }

    /// Returns the sessions with anomalous rates, the newest first: the session, and its events in one bucket.
    pub fn anomalies(&self) -> impl Iterator<Item = (&str, u64)> + '_ {
        self.noted.iter().rev().map(|((_, session), count)| (session.as_str(), *count))
    }

    fn first_bucket(&self) -> u64 {
        let wide = self.windows.bucket_ms.max(1);
        let count = self.windows.window_ms.div_ceil(wide).max(1);
        (self.newest_ms / wide).saturating_sub(count - 1)
    }

    /// Returns the name under which an item is counted.
    fn name(&self, item: &str) -> String {
        match self.totals.contains_key(item) || self.totals.len() < MAX_ITEMS {
            true => item.to_owned(),
            false => OTHERS.to_owned(),
        }
    }

    fn count(&mut self, event: &UserEvent) {
        let item = self.name(&event.item);
        self.totals.entry(item.clone()).or_default().add(event);
        self.newest_ms = self.newest_ms.max(event.time_ms);
        let is_late = event.time_ms.saturating_add(self.windows.lateness_ms) < self.newest_ms;
        if is_late {
            self.late += 1;
            if !mutant(mutants::APPS_K2) {
                return;
            }
        }
        let at = event.time_ms.max(if is_late { self.newest_ms } else { 0 }) / self.windows.bucket_ms.max(1);
        let bucket = self.buckets.entry(at).or_default();
        bucket.items.entry(item).or_default().add(event);
        if bucket.sessions.len() < MAX_SESSIONS || bucket.sessions.contains_key(&event.session) {
            let count = bucket.sessions.entry(event.session.clone()).or_default();
            *count += 1;
            if *count > self.windows.burst {
                self.noted.insert((at, event.session.clone()), *count);
            }
        }
        while self.noted.len() > MAX_NOTED {
            self.noted.pop_first();
        }
        // What no window can see any more, whatever comes: neither now nor when a late event fills an older bucket.
        let first = self.first_bucket();
        self.buckets = self.buckets.split_off(&first);
    }
}

impl Machine for Analysis {
    fn apply(&mut self, _: u64, body: Bytes) -> Result<(), DecodeError> {
        self.count(&UserEvent::from_bytes(body)?);
        Ok(())
    }

    fn save(&self) -> Bytes {
        self.to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        *self = Analysis::from_bytes(state)?;
        Ok(())
    }
}

impl Encode for Analysis {
    fn encode(&self, out: &mut BytesMut) {
        self.windows.encode(out);
        self.totals.encode(out);
        self.buckets.encode(out);
        self.noted.encode(out);
        (self.newest_ms, self.late).encode(out);
    }
}

impl Decode for Analysis {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (windows, totals) = Decode::decode(from)?;
        let (buckets, noted) = Decode::decode(from)?;
        let (newest_ms, late) = Decode::decode(from)?;
        Ok(Analysis { windows, totals, buckets, noted, newest_ms, late })
    }
}

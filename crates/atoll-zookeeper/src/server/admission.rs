//! Admission of connections: limits on their number and rate. A refused connection briefly occupies a socket, and no task.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use super::figures::{ConnectionFigures, Refusal};
use super::options::{ConnectionThrottle, Options};
use crate::watch::ConnectionId;

/// Refused connections are reported in the log output at most once in this time.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// The bucket of a connection throttle: the tokens that are left, and when the last ones were added.
#[derive(Debug)]
struct Bucket {
    throttle: ConnectionThrottle,
    left: u64,
    filled: Instant,
}

impl Bucket {
    fn full(throttle: ConnectionThrottle, now: Instant) -> Bucket {
        Bucket { throttle, left: throttle.tokens, filled: now }
    }

    /// Takes a token; returns false if there is none.
    fn take(&mut self, now: Instant) -> bool {
        let ConnectionThrottle { tokens, fill_every, fill_count } = self.throttle;
        let passed = now.saturating_duration_since(self.filled).as_nanos();
        let fills = u64::try_from(passed / fill_every.as_nanos().max(1)).unwrap_or(u64::MAX);
        if fills > 0 {
            self.left = self.left.saturating_add(fills.saturating_mul(fill_count)).min(tokens);
            // The rest of an incomplete period counts toward the next fill.
            let whole = fill_every.saturating_mul(u32::try_from(fills).unwrap_or(u32::MAX));
            self.filled = self.filled.checked_add(whole).filter(|at| *at <= now).unwrap_or(now);
        }
        let there = self.left > 0;
        self.left -= u64::from(there);
        there
    }
}

/// The connections of a door, counted by the clients' addresses: whoever accepts one must not walk through all of them.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: BTreeMap<ConnectionId, Arc<ConnectionFigures>>,
    of_address: HashMap<IpAddr, usize>,
}

impl Connections {
    fn insert(&mut self, id: ConnectionId, figures: Arc<ConnectionFigures>) {
        *self.of_address.entry(figures.peer.ip()).or_default() += 1;
        self.all.insert(id, figures);
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        let Some(gone) = self.all.remove(&id) else { return };
        let address = gone.peer.ip();
        let left = self.of_address.get_mut(&address).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            self.of_address.remove(&address);
        }
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns how many come from this address.
    fn of_address(&self, address: IpAddr) -> usize {
        self.of_address.get(&address).copied().unwrap_or_default()
    }

    /// Returns the counters of a connection.
    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Arc<ConnectionFigures>> {
        self.all.get(&id)
    }

    /// Returns the counters of all, in the order in which they were accepted.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<ConnectionFigures>> {
        self.all.values()
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Admission {
    next: AtomicU64,
    bucket: Option<Mutex<Bucket>>,
    warned_at: Mutex<Option<Instant>>,
}

impl Admission {
    /// Creates the state without any connection.
    pub(crate) fn new(options: &Options) -> Admission {
        let bucket = options.connection_throttle.map(|t| Mutex::new(Bucket::full(t, Instant::now())));
        Admission { next: AtomicU64::new(1), bucket, warned_at: Mutex::default() }
    }
}

impl Shared {
    /// Registers a new connection. Returns None if there are too many connections or they arrive too fast.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Option<(ConnectionId, Arc<ConnectionFigures>)> {
        match self.try_admit(peer) {
            Ok(admitted) => Some(admitted),
            Err(refusal) => {
                self.figures.refuse(refusal);
                let now = Instant::now();
                let mut warned_at = self.admission.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
                if warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARN_EVERY) {
                    *warned_at = Some(now);
                    let so_far = self.figures.refused(refusal);
                    let reason = refusal.name();
                    tracing::warn!(%peer, reason, so_far, "a ZooKeeper client was refused");
                }
                None
            }
        }
    }

    fn try_admit(&self, peer: SocketAddr) -> Result<(ConnectionId, Arc<ConnectionFigures>), Refusal> {
        let mut connections = self.connections();
        let over = |limit: usize, count: usize| limit > 0 && count >= limit;
        if over(self.options.max_connections, connections.len()) {
            return Err(Refusal::Connections);
        }
        if over(self.options.max_connections_of_address, connections.of_address(peer.ip())) {
            return Err(Refusal::ConnectionsOfAddress);
        }
        if let Some(bucket) = &self.admission.bucket
            && !bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
        {
            return Err(Refusal::ConnectionRate);
        }
        let id = self.admission.next.fetch_add(1, Ordering::Relaxed);
        let figures = Arc::new(ConnectionFigures::new(peer));
        connections.insert(id, figures.clone());
        Ok((id, figures))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn connections_are_counted_by_address() {
        let mut connections = Connections::default();
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        for (id, address) in [(1, one), (2, two), (3, one)] {
            connections.insert(id, Arc::new(ConnectionFigures::new((address, 7).into())));
        }
        let count = |c: &Connections| (c.len(), c.of_address(one), c.of_address(two));
        assert_eq!(count(&connections), (3, 2, 1));
        connections.remove(2);
        connections.remove(2);
        assert_eq!(count(&connections), (2, 2, 0));
        assert_eq!(connections.of_address.len(), 1, "addresses without connections are forgotten");
    }

    #[test]
    fn tokens_are_taken_and_come_back_up_to_their_number() {
        let throttle = ConnectionThrottle { tokens: 3, fill_every: Duration::from_millis(10), fill_count: 2 };
        let start = Instant::now();
        let mut bucket = Bucket::full(throttle, start);
        let mut take = |ms| bucket.take(start + Duration::from_millis(ms));
        assert_eq!([0, 1, 2, 3].map(&mut take), [true, true, true, false]);
        assert_eq!([9, 10, 11, 12].map(&mut take), [false, true, true, false], "two at 10 ms");
        assert_eq!(
            [19, 20, 20, 20].map(&mut take),
            [false, true, true, false],
            "the rest of a period counts"
        );
        assert_eq!([9_999, 9_999, 9_999, 9_999].map(&mut take), [true, true, true, false], "three at most");
    }
}

//! Tracks the connections of the gRPC door and limits their number, both in total and per address. At the limit, a connection without a
//! request in progress is closed to make room. Connections that never sent a request are closed first. Those come last whose requests are
//! all at rest: open streams that owe their clients nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use atoll_core::sync::lock;

use super::budget::group;

/// How long all requests of a connection must have been at rest before it may be closed. A client that appends again and again has pauses,
/// and would have to find out what became of a message that arrives during the close.
const REST_AT_LEAST: Duration = Duration::from_secs(1);

/// One connection.
#[derive(Debug)]
pub struct Connection {
    /// The client's address, or rather the one that stands for its group, see `group`.
    pub address: IpAddr,
    number: u64,
    /// Whether the client has sent the HTTP/2 preface.
    greeted: AtomicBool,
    /// The number of read streams that ended because the client did not take the replies.
    given_up: AtomicUsize,
    use_: Mutex<Use>,
    end: Notify,
}

#[derive(Debug, Default)]
struct Use {
    /// The number of requests in progress, those at rest included.
    requests: usize,
    /// The number of requests at rest, and when the last of them came to rest.
    resting: usize,
    rested_at: Option<Instant>,
    /// When the last request ended, measured by the number of ended requests of the whole door; 0 if there was none.
    idle_since: u64,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Arc<Connection>>,
    by_address: BTreeMap<IpAddr, usize>,
    ends: u64,
}

/// All connections of a door.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    of_address: usize,
    table: Mutex<Table>,
}

/// A connection's entry in the table. Dropping it removes the connection.
pub(super) struct Place {
    connections: Arc<Connections>,
    pub(super) connection: Arc<Connection>,
}

/// A request in progress.
pub(super) struct Working {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
}

/// A request at rest. Dropping it ends the rest.
#[derive(Debug)]
pub struct Rest {
    connection: Arc<Connection>,
}

impl Connections {
    pub(super) fn new(most: usize, of_address: usize) -> Arc<Self> {
        Arc::new(Connections { most, of_address, table: Mutex::default() })
    }

    /// Admits a connection, and closes an idle one if necessary. Returns None if all connections that could make room have requests in
    /// progress that are not at rest.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        self.admit_at(address, Instant::now())
    }

    fn admit_at(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<Place> {
        let address = group(address);
        let mut table = lock(&self.table);
        if table.by_address.get(&address).is_some_and(|n| *n >= self.of_address) {
            table.make_room(Some(address), now)?;
        }
        if table.open.len() >= self.most {
            table.make_room(None, now)?;
        }
        table.next += 1;
        let number = table.next;
        let connection = Arc::new(Connection {
            address,
            number,
            greeted: AtomicBool::new(false),
            given_up: AtomicUsize::new(0),
            use_: Mutex::default(),
            end: Notify::new(),
        });
        table.open.insert(number, connection.clone());
        *table.by_address.entry(address).or_default() += 1;
        Some(Place { connections: self.clone(), connection })
    }

    /// Records that a request of this connection is in progress until the result is dropped.
    pub(super) fn working(self: &Arc<Self>, connection: &Arc<Connection>) -> Working {
        lock(&connection.use_).requests += 1;
        Working { connections: self.clone(), connection: connection.clone() }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        lock(&self.table).open.len()
    }
}

impl Table {
    /// Closes the connection that has been without a request for the longest time, among those of one address or among all. If there is
    /// none, closes the one whose requests have been at rest for the longest time. Returns None if all of them have other requests.
    fn make_room(&mut self, of: Option<IpAddr>, now: Instant) -> Option<()> {
        let idle = |c: &Arc<Connection>| {
            let use_ = lock(&c.use_);
            let rested_at = match use_.requests {
                0 => None,
                n if n > use_.resting => return None,
                _ => use_.rested_at,
            };
            let may_end = rested_at.is_none_or(|at| now.saturating_duration_since(at) >= REST_AT_LEAST);
            may_end.then_some((rested_at, use_.idle_since, c.number))
        };
        let candidates = self.open.values().filter(|c| of.is_none_or(|address| c.address == address));
        let (_, _, number) = candidates.filter_map(idle).min()?;
        if let Some(connection) = self.remove(number) {
            // Only the connection's own task waits for this. The permit is stored if that task is not waiting yet.
            connection.end.notify_one();
        }
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.open.remove(&number)?;
        if let Some(count) = self.by_address.get_mut(&connection.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&connection.address);
            }
        }
        Some(connection)
    }
}

/// Returns the connection on which a request came.
pub fn connection_of<T>(request: &tonic::Request<T>) -> Result<Arc<Connection>, tonic::Status> {
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    connection.ok_or_else(|| tonic::Status::internal("a request of no connection"))
}

impl Connection {
    /// Completes when the door closes this connection.
    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }

    /// Makes the connection's task close the connection.
    pub fn close(&self) {
        self.end.notify_one();
    }

    /// Records that a request of this connection is at rest until the result is dropped: it stays open, but nothing of it is unanswered. If
    /// all requests of a connection are at rest, the connection may be closed to make room for another one.
    pub fn rest(self: &Arc<Self>) -> Rest {
        let mut use_ = lock(&self.use_);
        use_.resting += 1;
        use_.rested_at = Some(Instant::now());
        drop(use_);
        Rest { connection: self.clone() }
    }

    /// Counts a read stream of this connection that ended because the client did not take the replies. Returns the number so far.
    pub fn give_up(&self) -> usize {
        self.given_up.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records that the client has sent the HTTP/2 preface.
    pub(super) fn greet(&self) {
        self.greeted.store(true, Ordering::Relaxed);
    }

    /// Whether the client has sent the HTTP/2 preface.
    pub(super) fn has_greeted(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.connections.table).remove(self.connection.number);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let end = {
            let mut table = lock(&self.connections.table);
            table.ends += 1;
            table.ends
        };
        let mut use_ = lock(&self.connection.use_);
        use_.requests -= 1;
        use_.idle_since = end;
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        lock(&self.connection.use_).resting -= 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn is_ended(place: &Place) -> bool {
        let ended = place.connection.ended();
        tokio::pin!(ended);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        ended.poll(&mut cx).is_ready()
    }

    #[test]
    fn who_never_asked_for_anything_makes_room_first_and_who_works_never() {
        let connections = Connections::new(3, 3);
        let asked = connections.admit(address(1)).unwrap();
        drop(connections.working(&asked.connection));
        let works = connections.admit(address(1)).unwrap();
        let _request = connections.working(&works.connection);
        let silent = connections.admit(address(2)).unwrap();
        let fourth = connections.admit(address(3)).unwrap();
        assert!(is_ended(&silent) && !is_ended(&asked) && !is_ended(&works));
        let _fourth = connections.working(&fourth.connection);
        let fifth = connections.admit(address(3)).unwrap();
        assert!(is_ended(&asked), "idle, if not silent");
        let _fifth = connections.working(&fifth.connection);
        assert!(connections.admit(address(4)).is_none(), "all work");
        assert_eq!(connections.count(), 3);
        // Connections that were closed to make room are not removed a second time.
        drop((silent, asked));
        assert_eq!(connections.count(), 3);
    }

    #[test]
    fn who_only_has_streams_at_rest_makes_room_last() {
        let connections = Connections::new(3, 3);
        let places = [1, 2, 3].map(|n| connections.admit(address(n)).unwrap());
        let _requests = places.each_ref().map(|p| connections.working(&p.connection));
        let second = places[1].connection.rest();
        let _first = places[0].connection.rest();
        drop(second);
        let _second = places[1].connection.rest();
        assert!(connections.admit(address(4)).is_none(), "they have just come to rest");
        let later = Instant::now() + REST_AT_LEAST;
        let fourth = connections.admit_at(address(4), later).unwrap();
        assert!(is_ended(&places[0]) && !is_ended(&places[1]) && !is_ended(&places[2]));
        let fifth = connections.admit_at(address(5), later).unwrap();
        assert!(is_ended(&fourth) && !is_ended(&places[1]), "who has no request at all goes first");
        let _works = connections.working(&fifth.connection);
        let _another = connections.working(&places[1].connection);
        assert!(connections.admit_at(address(6), later).is_none(), "one of its requests is not at rest");
    }

    #[test]
    fn an_address_displaces_its_own_connections_alone() {
        let connections = Connections::new(10, 2);
        let other = connections.admit(address(1)).unwrap();
        let first = connections.admit(address(2)).unwrap();
        let second = connections.admit(address(2)).unwrap();
        let third = connections.admit(address(2)).unwrap();
        assert!(is_ended(&first) && !is_ended(&second) && !is_ended(&other));
        let _two = [&second, &third].map(|p| connections.working(&p.connection));
        assert!(connections.admit(address(2)).is_none());
        assert!(connections.admit(address(3)).is_some());
    }
}

//! Tracks the connections of the gRPC door and limits their number, both in total and per address. At the limit, a connection without a
//! request in progress is closed to make room. Connections that never sent a request are closed first.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use atoll_core::sync::lock;

use super::budget::group;

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
    /// The number of requests in progress.
    requests: usize,
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

impl Connections {
    pub(super) fn new(most: usize, of_address: usize) -> Arc<Self> {
        Arc::new(Connections { most, of_address, table: Mutex::default() })
    }

    /// Admits a connection, and closes an idle one if necessary. Returns None if all connections that could make room have requests in
    /// progress.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = group(address);
        let mut table = lock(&self.table);
        if table.by_address.get(&address).is_some_and(|n| *n >= self.of_address) {
            table.make_room(Some(address))?;
        }
        if table.open.len() >= self.most {
            table.make_room(None)?;
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
    /// Closes the connection that has been without a request for the longest time, among those of one address or among all. Returns None if
    /// all of them have requests in progress.
    fn make_room(&mut self, of: Option<IpAddr>) -> Option<()> {
        let idle = |c: &Arc<Connection>| {
            let use_ = lock(&c.use_);
            (use_.requests == 0).then_some((use_.idle_since, c.number))
        };
        let candidates = self.open.values().filter(|c| of.is_none_or(|address| c.address == address));
        let (_, number) = candidates.filter_map(idle).min()?;
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

impl Connection {
    /// Completes when the door closes this connection.
    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }

    /// Makes the connection's task close the connection.
    pub fn close(&self) {
        self.end.notify_one();
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

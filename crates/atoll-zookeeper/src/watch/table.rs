//! The watches of all connections, and the search for those that a change concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use atoll_core::testing::mutant;
use atoll_db::LogPos;

use super::ConnectionId;
use super::batch::Batch;
use super::outbox::{End, Outbox};
use crate::acl::ReadersOf;
use crate::event::{Change, Event};
use crate::jute::codes::EventType;
use crate::mutants;
use crate::path;

/// The kinds of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Set by getData and exists. Fires once.
    Data,
    /// Set by getChildren. Fires once.
    Child,
    /// Stays, and covers the node and its children.
    Persistent,
    /// Stays, and covers the node and everything below it.
    Recursive,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Data, Kind::Child, Kind::Persistent, Kind::Recursive];
}

/// The watches of one path.
#[derive(Debug, Default)]
struct Watchers([BTreeSet<ConnectionId>; 4]);

impl Watchers {
    fn of(&self, kind: Kind) -> &BTreeSet<ConnectionId> {
        &self.0[kind as usize]
    }

    fn of_mut(&mut self, kind: Kind) -> &mut BTreeSet<ConnectionId> {
        &mut self.0[kind as usize]
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeSet::is_empty)
    }
}

/// Approximate memory of a watch besides its path, in bytes.
const BYTES_BESIDE_PATH: usize = 400;

/// The memory that watches may take, in bytes. Each counts with its whole path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the watches of one connection.
    pub of_connection: usize,
    /// For the watches of all connections of the node.
    pub of_all: usize,
}

#[derive(Debug)]
struct Connection {
    outbox: Arc<Outbox>,
    watches: BTreeSet<(Kind, Arc<str>)>,
    /// The memory that the watches take, as it is counted.
    bytes: usize,
}

fn bytes_of(path: &str) -> usize {
    path.len() + BYTES_BESIDE_PATH
}

/// All watches of a node. Each is stored twice: by its path and by its connection.
#[derive(Debug, Default)]
pub struct Table {
    by_path: BTreeMap<Arc<str>, Watchers>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Watches of each kind.
    counts: [usize; 4],
    /// The memory that all watches take, as it is counted.
    bytes: usize,
    /// Notifications handed out so far.
    sent: u64,
    /// Who may read the nodes that events concern.
    readers: ReadersOf,
    /// Empty between two calls.
    batch: Batch,
}

impl Table {
    /// Adds a new connection.
    pub fn join(&mut self, id: ConnectionId, outbox: Arc<Outbox>) {
        self.connections.insert(id, Connection { outbox, watches: BTreeSet::new(), bytes: 0 });
    }

    /// Removes at most `most` watches of a connection that is gone, and the connection itself if none is left; returns whether it
    /// is removed. Events that trigger a remaining watch reach nobody.
    pub fn part(&mut self, id: ConnectionId, most: usize) -> bool {
        for _ in 0..most {
            let next = self.connections.get(&id).and_then(|c| c.watches.first().cloned());
            let Some((kind, path)) = next else { break };
            self.take_from(id, kind, &path);
            self.forget(id, kind, &path);
        }
        let is_all = self.connections.get(&id).is_none_or(|c| c.watches.is_empty());
        if is_all {
            self.connections.remove(&id);
        }
        is_all
    }

    /// Returns whether a connection may add these watches. Watches that it already has need no more room.
    pub fn has_room<'p>(
        &self,
        id: ConnectionId,
        watches: impl IntoIterator<Item = (Kind, &'p str)>,
        limits: Limits,
    ) -> bool {
        let Some(connection) = self.connections.get(&id) else { return true };
        let mut more = 0;
        for (kind, path) in watches {
            // No node has such a path, and each comparison with it takes long.
            if path.len() > path::MAX_PATH_BYTES {
                return false;
            }
            more += if self.has(id, kind, path) { 0 } else { bytes_of(path) };
        }
        more == 0 || (connection.bytes + more <= limits.of_connection && self.bytes + more <= limits.of_all)
    }

    /// Adds a watch; returns whether it is new. Does nothing for a connection that is gone.
    pub fn add(&mut self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let path = match self.by_path.get_key_value(path) {
            Some((known, _)) => known.clone(),
            None => Arc::from(path),
        };
        let new = connection.watches.insert((kind, path.clone()));
        if new {
            connection.bytes += bytes_of(&path);
            self.bytes += bytes_of(&path);
            self.by_path.entry(path).or_default().of_mut(kind).insert(id);
            self.counts[kind as usize] += 1;
        }
        new
    }

    /// Returns whether a connection has the watch.
    pub fn has(&self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        self.by_path.get(path).is_some_and(|w| w.of(kind).contains(&id))
    }

    /// Removes a watch; returns whether it existed.
    pub fn remove(&mut self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        let Some((path, _)) = self.by_path.get_key_value(path) else { return false };
        let path = path.clone();
        let known = self.take_from(id, kind, &path);
        if known {
            self.forget(id, kind, &path);
        }
        known
    }

    /// Removes a watch from its connection; returns whether it existed there.
    fn take_from(&mut self, id: ConnectionId, kind: Kind, path: &Arc<str>) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let known = connection.watches.remove(&(kind, path.clone()));
        if known {
            connection.bytes -= bytes_of(path);
            self.bytes -= bytes_of(path);
        }
        known
    }

    /// Removes a watch from its path.
    fn forget(&mut self, id: ConnectionId, kind: Kind, path: &Arc<str>) {
        let Some(watchers) = self.by_path.get_mut(path) else { return };
        if watchers.of_mut(kind).remove(&id) {
            self.counts[kind as usize] -= 1;
        }
        if watchers.is_empty() {
            self.by_path.remove(path);
        }
    }

    /// Triggers the watches that events concern: puts the events, of entries below `below`, into the outboxes of their connections,
    /// and removes the one-time watches among them.
    pub fn trigger(&mut self, below: LogPos, events: &[Event]) {
        let mut batch = std::mem::take(&mut self.batch);
        for event in events {
            self.collect(event, &mut batch);
            if batch.is_full() {
                self.send(below, &mut batch);
            }
        }
        self.send(below, &mut batch);
        self.batch = batch;
        // Who may read the nodes of these events may take much memory.
        self.readers.forget();
    }

    /// Adds the notifications of an event to the batch.
    fn collect(&mut self, event: &Event, batch: &mut Batch) {
        let Event::Node { change, path, zxid, acl, parent_acl } = event else { return };
        if self.by_path.is_empty() {
            return;
        }
        let (kind, once): (_, &[Kind]) = match change {
            Change::Created => (EventType::NodeCreated, &[Kind::Data]),
            Change::DataSet => (EventType::NodeDataChanged, &[Kind::Data]),
            Change::Deleted => (EventType::NodeDeleted, &[Kind::Data, Kind::Child]),
            Change::AclSet => return,
        };
        let mut any = self.take_once(path, once, batch) | self.staying(path, Kind::Persistent, batch);
        if self.counts[Kind::Recursive as usize] > 0 {
            for top in std::iter::once(path.as_str()).chain(path::ancestors(path)) {
                any |= self.staying(top, Kind::Recursive, batch);
            }
        }
        if any {
            batch.add(kind, path, *zxid, self.readers.list(acl));
        }
        if let (Change::Created | Change::Deleted, Some((parent, _))) = (change, path::split(path)) {
            let once = self.take_once(parent, &[Kind::Child], batch);
            if once | self.staying(parent, Kind::Persistent, batch) {
                batch.add(EventType::NodeChildrenChanged, parent, *zxid, self.readers.list(parent_acl));
            }
        }
    }

    /// Removes the one-time watches of these kinds, whose connections the next notification concerns; returns whether there were any.
    fn take_once(&mut self, path: &str, kinds: &[Kind], batch: &mut Batch) -> bool {
        let Some((path, _)) = self.by_path.get_key_value(path) else { return false };
        let (path, mut any) = (path.clone(), false);
        for kind in kinds {
            let Some(watchers) = self.by_path.get_mut(&path) else { break };
            any |= !watchers.of(*kind).is_empty();
            if mutant(mutants::ZK_WATCH_FIRES_AGAIN) {
                watchers.of(*kind).iter().for_each(|id| batch.concerns(*id));
                continue;
            }
            for id in std::mem::take(watchers.of_mut(*kind)) {
                self.counts[*kind as usize] -= 1;
                self.take_from(id, *kind, &path);
                batch.concerns(id);
            }
        }
        if self.by_path.get(&path).is_some_and(Watchers::is_empty) {
            self.by_path.remove(&path);
        }
        any
    }

    /// Finds the watches of a kind that stay, whose connections the next notification concerns; returns whether there are any.
    fn staying(&self, path: &str, kind: Kind, batch: &mut Batch) -> bool {
        let watchers = self.by_path.get(path).map(|watchers| watchers.of(kind));
        watchers.into_iter().flatten().for_each(|id| batch.concerns(*id));
        watchers.is_some_and(|watchers| !watchers.is_empty())
    }

    fn send(&mut self, below: LogPos, batch: &mut Batch) {
        batch.drain(|id, notes| {
            if let Some(connection) = self.connections.get(&id) {
                self.sent += u64::try_from(notes.len()).unwrap_or(u64::MAX);
                connection.outbox.push_all(below, notes);
            }
        });
    }

    /// Moves a connection's unsent events to the end of `out`; returns their number.
    pub fn drain(&self, id: ConnectionId, out: &mut Vec<u8>) -> u64 {
        self.connections.get(&id).map_or(0, |connection| connection.outbox.drain(out))
    }

    /// Asks all connections to end.
    pub fn end_all(&self, why: End) {
        self.connections.values().for_each(|connection| connection.outbox.end(why));
    }

    /// Returns the number of watches of one kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }

    /// Returns the approximate memory of all watches, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of notifications handed out so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of watched paths.
    pub fn watched(&self) -> usize {
        self.by_path.len()
    }

    /// Returns the number of connections with a watch.
    pub fn watching(&self) -> usize {
        self.connections().count()
    }

    /// Returns at most `most` watched paths after `last`, in order, each with the connections that watch it.
    pub fn paths_after(&self, last: Option<&String>, most: usize) -> Vec<(String, Vec<ConnectionId>)> {
        let behind = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_str()));
        let some = self.by_path.range::<str, _>((behind, Bound::Unbounded)).take(most);
        some.map(|(path, watchers)| {
            let ids: BTreeSet<ConnectionId> = watchers.0.iter().flatten().copied().collect();
            ((**path).to_owned(), ids.into_iter().collect())
        })
        .collect()
    }

    /// Returns the connections with a watch.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.iter().filter(|(_, c)| !c.watches.is_empty()).map(|(id, _)| *id)
    }

    /// Returns at most `most` paths after `last` that a connection watches, in order and each once. Returns None if there are no
    /// more.
    pub fn paths_of(&self, id: ConnectionId, last: Option<&String>, most: usize) -> Option<Vec<String>> {
        let connection = self.connections.get(&id)?;
        let mut found = BTreeSet::new();
        for kind in Kind::ALL {
            let start: (Kind, Arc<str>) = (kind, Arc::from(last.map_or("", String::as_str)));
            let of_kind = connection.watches.range(start..).take_while(|(k, _)| *k == kind);
            let behind = of_kind.filter(|(_, path)| last.is_none_or(|last| **path > **last));
            found.extend(behind.take(most).map(|(_, path)| (**path).to_owned()));
        }
        // Only the first `most` are certain to be complete: of each kind, no more than that were examined.
        let some: Vec<String> = found.into_iter().take(most).collect();
        (!some.is_empty()).then_some(some)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::acl;
    use crate::jute::codes::perms;
    use crate::jute::records::{Acl, Id};

    /// A notification for each change and watcher, in the order of the changes, however many fit into a batch.
    #[test]
    fn notifications_of_a_large_transaction_come_in_order_and_once() {
        let mut table = Table::default();
        let outboxes: Vec<Arc<Outbox>> = (0..3).map(|_| Arc::default()).collect();
        for (id, outbox) in (0..).zip(&outboxes) {
            table.join(id, outbox.clone());
        }
        // The first has three watches that each change concerns, the second one, the third one that fires once.
        for (id, kind, path) in [
            (0, Kind::Recursive, "/"),
            (0, Kind::Recursive, "/a"),
            (0, Kind::Persistent, "/a/b"),
            (1, Kind::Recursive, "/a"),
            (2, Kind::Data, "/a/b"),
        ] {
            assert!(table.add(id, kind, path));
        }
        let set = |zxid| Event::Node {
            change: Change::DataSet,
            path: "/a/b".to_owned(),
            zxid,
            acl: Bytes::new(),
            parent_acl: Bytes::new(),
        };
        table.trigger(LogPos(1), &(0..20_000).map(set).collect::<Vec<_>>());
        let mut one = Vec::new();
        super::super::outbox::write_event(EventType::NodeDataChanged, "/a/b", 0, &mut one);
        for (outbox, count) in outboxes.iter().zip([20_000_i64, 20_000, 1]) {
            let mut out = Vec::new();
            assert_eq!(outbox.drain(&mut out), count.unsigned_abs());
            // The zxid stands behind the length and the xid.
            let zxids = out
                .chunks(one.len())
                .map(|frame| i64::from_be_bytes(frame[8..16].try_into().expect("8 bytes")));
            assert!(zxids.eq(0..count));
        }
        assert_eq!((table.sent(), table.watched()), (40_001, 3));
    }

    #[test]
    fn each_list_of_an_entry_is_read_once_for_all_watchers() {
        let mut table = Table::default();
        let outboxes: Vec<Arc<Outbox>> = (0..20).map(|_| Arc::default()).collect();
        for (id, outbox) in (0..).zip(&outboxes) {
            table.join(id, outbox.clone());
            assert!(table.add(id, Kind::Recursive, "/"));
        }
        let list = |n: i32| {
            let entry = |perms| Acl { perms, id: Id { scheme: "world", id: "anyone" } };
            // Nobody may write, so this is not the open ACL. The bits that mean nothing differ.
            Bytes::from(acl::stored(&[entry(n << 5 | perms::READ)]))
        };
        let set = |n: i32| Event::Node {
            change: Change::DataSet,
            path: format!("/{n}"),
            zxid: 1,
            acl: list(n % 10),
            parent_acl: Bytes::new(),
        };
        table.trigger(LogPos(1), &(0..100).map(set).collect::<Vec<_>>());
        assert_eq!(table.readers.count(), 10);
        for outbox in outboxes {
            assert_eq!(outbox.drain(&mut Vec::new()), 100);
        }
    }
}

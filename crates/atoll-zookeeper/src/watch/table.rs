//! Which connections watch what, and which of them a change concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use atoll_core::testing::mutant;
use atoll_db::LogPos;

use super::ConnectionId;
use super::outbox::{End, Outbox};
use crate::event::{Change, Event};
use crate::jute::codes::EventType;
use crate::mutants;
use crate::path;

/// Kinds of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Of getData and exists; once.
    Data,
    /// Of getChildren; once.
    Child,
    /// Stays: the node and its children.
    Persistent,
    /// Stays: the node and all below it.
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

/// Approximate bytes that a watch takes besides its path.
const BYTES_BESIDE_PATH: usize = 128;

/// What watches may take, bytes; each counts with its whole path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Those of one connection.
    pub of_connection: usize,
    /// Those of all connections of the node.
    pub of_all: usize,
}

#[derive(Debug)]
struct Connection {
    outbox: Arc<Outbox>,
    watches: BTreeSet<(Kind, Arc<str>)>,
    /// What they take.
    bytes: usize,
}

fn bytes_of(path: &str) -> usize {
    path.len() + BYTES_BESIDE_PATH
}

/// All watches of a node. A watch is here twice: by its path and by its connection.
#[derive(Debug, Default)]
pub struct Table {
    by_path: BTreeMap<Arc<str>, Watchers>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Of each kind.
    counts: [usize; 4],
    /// What all take.
    bytes: usize,
    /// Notifications handed out.
    told: u64,
}

impl Table {
    /// A new connection.
    pub fn join(&mut self, id: ConnectionId, outbox: Arc<Outbox>) {
        self.connections.insert(id, Connection { outbox, watches: BTreeSet::new(), bytes: 0 });
    }

    /// A connection is gone: forgets it and at most this many of its watches; returns whether those were all. The remaining ones
    /// fire for nobody.
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

    /// Whether a connection may have these watches besides its own. None of those that it has counts again.
    pub fn has_room<'p>(
        &self,
        id: ConnectionId,
        watches: impl IntoIterator<Item = (Kind, &'p str)>,
        limits: Limits,
    ) -> bool {
        let Some(connection) = self.connections.get(&id) else { return true };
        let new = watches.into_iter().filter(|(kind, path)| !self.has(id, *kind, path));
        let more: usize = new.map(|(_, path)| bytes_of(path)).sum();
        more == 0 || (connection.bytes + more <= limits.of_connection && self.bytes + more <= limits.of_all)
    }

    /// Adds a watch; whether it is new. Nothing for a connection that is gone.
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

    /// Whether there is such a watch.
    pub fn has(&self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        self.by_path.get(path).is_some_and(|w| w.of(kind).contains(&id))
    }

    /// Takes a watch away; whether it was there.
    pub fn remove(&mut self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        let Some((path, _)) = self.by_path.get_key_value(path) else { return false };
        let path = path.clone();
        let known = self.take_from(id, kind, &path);
        if known {
            self.forget(id, kind, &path);
        }
        known
    }

    /// Takes a watch away from its connection; whether it had it.
    fn take_from(&mut self, id: ConnectionId, kind: Kind, path: &Arc<str>) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let known = connection.watches.remove(&(kind, path.clone()));
        if known {
            connection.bytes -= bytes_of(path);
            self.bytes -= bytes_of(path);
        }
        known
    }

    /// Takes it out of the paths.
    fn forget(&mut self, id: ConnectionId, kind: Kind, path: &Arc<str>) {
        let Some(watchers) = self.by_path.get_mut(path) else { return };
        if watchers.of_mut(kind).remove(&id) {
            self.counts[kind as usize] -= 1;
        }
        if watchers.is_empty() {
            self.by_path.remove(path);
        }
    }

    /// Triggers the watches that an event concerns: sends the event, of an entry below `below`, to their connections, and removes the
    /// one-time watches among them.
    pub fn tell(&mut self, below: LogPos, event: &Event) {
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
        let mut concerned = self.take_once(path, once);
        concerned.extend(self.staying(path, Kind::Persistent));
        if self.counts[Kind::Recursive as usize] > 0 {
            for top in std::iter::once(path.as_str()).chain(path::ancestors(path)) {
                concerned.extend(self.staying(top, Kind::Recursive));
            }
        }
        self.send(below, &concerned, (kind, path), *zxid, acl);
        if let (Change::Created | Change::Deleted, Some((parent, _))) = (change, path::split(path)) {
            let mut concerned = self.take_once(parent, &[Kind::Child]);
            concerned.extend(self.staying(parent, Kind::Persistent));
            self.send(below, &concerned, (EventType::NodeChildrenChanged, parent), *zxid, parent_acl);
        }
    }

    /// Connections with a watch that fires once, which is gone now.
    fn take_once(&mut self, path: &str, kinds: &[Kind]) -> BTreeSet<ConnectionId> {
        let mut out = BTreeSet::new();
        let Some((path, _)) = self.by_path.get_key_value(path) else { return out };
        let path = path.clone();
        for kind in kinds {
            let Some(watchers) = self.by_path.get_mut(&path) else { break };
            if mutant(mutants::ZK_WATCH_FIRES_AGAIN) {
                out.extend(watchers.of(*kind));
                continue;
            }
            for id in std::mem::take(watchers.of_mut(*kind)) {
                self.counts[*kind as usize] -= 1;
                self.take_from(id, *kind, &path);
                out.insert(id);
            }
        }
        if self.by_path.get(&path).is_some_and(Watchers::is_empty) {
            self.by_path.remove(&path);
        }
        out
    }

    fn staying(&self, path: &str, kind: Kind) -> impl Iterator<Item = ConnectionId> {
        self.by_path.get(path).into_iter().flat_map(move |w| w.of(kind)).copied()
    }

    fn send(
        &mut self,
        below: LogPos,
        to: &BTreeSet<ConnectionId>,
        (kind, path): (EventType, &str),
        zxid: i64,
        list: &[u8],
    ) {
        for connection in to.iter().filter_map(|id| self.connections.get(id)) {
            connection.outbox.tell(below, kind, path, zxid, list);
            self.told += 1;
        }
    }

    /// Moves the unsent events of a connection behind `out`; returns how many.
    pub fn drain(&self, id: ConnectionId, out: &mut Vec<u8>) -> u64 {
        self.connections.get(&id).map_or(0, |connection| connection.outbox.drain(out))
    }

    /// Ends all connections.
    pub fn end_all(&self, why: End) {
        self.connections.values().for_each(|connection| connection.outbox.end(why));
    }

    /// Watches of one kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }

    /// Approximate bytes that all watches take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notifications handed out so far.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// How many paths are watched.
    pub fn watched(&self) -> usize {
        self.by_path.len()
    }

    /// How many connections watch something.
    pub fn watching(&self) -> usize {
        self.connections().count()
    }

    /// Paths that are watched behind one, in order, with the connections that watch them: at most so many paths.
    pub fn paths_after(&self, last: Option<&String>, most: usize) -> Vec<(String, Vec<ConnectionId>)> {
        let behind = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_str()));
        let some = self.by_path.range::<str, _>((behind, Bound::Unbounded)).take(most);
        some.map(|(path, watchers)| {
            let ids: BTreeSet<ConnectionId> = watchers.0.iter().flatten().copied().collect();
            ((**path).to_owned(), ids.into_iter().collect())
        })
        .collect()
    }

    /// Connections that watch something.
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
        // The first ones of all kinds: each was looked through that far.
        let some: Vec<String> = found.into_iter().take(most).collect();
        (!some.is_empty()).then_some(some)
    }
}

//! The watches that one client believes to have, and the events that it must get. It gets each change once, in order, and before any reply
//! that shows the change, even across connections.

use atoll_core::testing::hit;
use atoll_zookeeper::jute::codes::EventType;

use super::model::{Change, Model};

/// The kinds of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Set by getData, or by exists on a znode that exists. Fires once.
    Data,
    /// Set by exists on a znode that does not exist. Fires once.
    Exist,
    /// Set by getChildren. Fires once.
    Child,
    /// Fires for each change of the znode and of its list of children.
    Persistent,
    /// Fires for each change of the znode and of all znodes below it.
    Recursive,
}

impl Kind {
    fn is_once(self) -> bool {
        matches!(self, Kind::Data | Kind::Exist | Kind::Child)
    }

    /// The kind as servers distinguish it.
    fn on_server(self) -> Kind {
        if self == Kind::Exist { Kind::Data } else { self }
    }
}

/// A watch that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOfClient {
    /// Its kind.
    pub kind: Kind,
    /// Its path.
    pub path: String,
    /// The index in [`Model::changes`] of the first change that may concern it.
    next: usize,
}

fn is_within(path: &str, top: &str) -> bool {
    top == "/" || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl WatchOfClient {
    fn concerns(&self, change: &Change) -> bool {
        use EventType as E;
        match (self.kind, change.kind) {
            (Kind::Recursive, E::NodeChildrenChanged) => false,
            (Kind::Recursive, _) => is_within(&change.path, &self.path),
            (Kind::Persistent, _) => change.path == self.path,
            (Kind::Child, E::NodeDeleted | E::NodeChildrenChanged) => change.path == self.path,
            (Kind::Child, _) | (_, E::NodeChildrenChanged) => false,
            (Kind::Data | Kind::Exist, _) => change.path == self.path,
        }
    }

    /// Returns the first change that concerns it and was not reported yet.
    fn due<'m>(&mut self, model: &'m Model) -> Option<&'m Change> {
        while let Some(change) = model.changes.get(self.next) {
            if self.concerns(change) {
                return Some(change);
            }
            self.next += 1;
        }
        None
    }
}

/// All watches of a client.
#[derive(Debug, Default)]
pub struct Watches(Vec<WatchOfClient>);

/// Returns the index after all changes up to `zxid`.
fn behind(model: &Model, zxid: i64) -> usize {
    model.changes.partition_point(|c| c.zxid <= zxid)
}

impl Watches {
    /// Returns the paths of the watches of a kind.
    pub fn of(&self, kind: Kind) -> Vec<&str> {
        self.0.iter().filter(|w| w.kind == kind).map(|w| w.path.as_str()).collect()
    }

    /// Returns the number of watches.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Removes all watches, because the session has ended.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a watch that the client set in the state at `zxid`, unless it has the same one already.
    pub fn add(&mut self, model: &Model, kind: Kind, path: &str, zxid: i64) {
        let same = |w: &WatchOfClient| w.path == path && w.kind.on_server() == kind.on_server();
        if !self.0.iter().any(same) {
            self.0.push(WatchOfClient { kind, path: path.to_owned(), next: behind(model, zxid) });
        }
    }

    /// Removes all watches of a path. Returns whether there were any.
    pub fn remove(&mut self, path: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|w| w.path != path);
        self.0.len() < before
    }

    /// Returns the first change of a watched znode of which the client was not notified. No reply may show it yet.
    pub fn untold<'m>(&mut self, model: &'m Model) -> Option<&'m Change> {
        self.0.iter_mut().filter_map(|w| w.due(model)).min_by_key(|c| c.zxid)
    }

    /// Checks an event for the change `zxid`, and removes the watches that fired.
    ///
    /// # Errors
    /// Why the event is wrong.
    pub fn told(&mut self, model: &Model, kind: EventType, path: &str, zxid: i64) -> Result<(), String> {
        let is_it = |c: &Change| c.zxid == zxid && c.kind == kind && c.path == path;
        for watch in &mut self.0 {
            watch.due(model);
        }
        let is_due = |w: &&WatchOfClient| model.changes.get(w.next).is_some_and(is_it);
        let Some(place) = self.0.iter().filter(is_due).map(|w| w.next).min() else {
            let here: Vec<&WatchOfClient> = self.0.iter().filter(|w| w.path == path).collect();
            return Err(format!(
                "{kind:?} of {path} by {zxid:#x} came, which no watch is waiting for; there: {here:?}"
            ));
        };
        if let Some(early) = self.0.iter().find(|w| w.next < place) {
            let change = &model.changes[early.next];
            return Err(format!("{kind:?} of {path} by {zxid:#x} came before {change:?}, which is watched"));
        }
        self.0.retain_mut(|w| {
            let concerned = w.next == place;
            w.next += usize::from(concerned);
            !(concerned && w.kind.is_once())
        });
        Ok(())
    }

    /// Checks an event for a change that the client missed while it was disconnected. The server's state was at most `zxid`.
    ///
    /// # Errors
    /// Why the event is wrong.
    pub fn told_late(&mut self, model: &Model, kind: EventType, path: &str, zxid: i64) -> Result<(), String> {
        use EventType as E;
        let fits = |w: &WatchOfClient| {
            w.path == path
                && matches!(
                    (w.kind, kind),
                    (Kind::Data, E::NodeDataChanged | E::NodeDeleted)
                        | (Kind::Exist, E::NodeCreated)
                        | (Kind::Child, E::NodeChildrenChanged | E::NodeDeleted)
                )
        };
        let found = self.0.iter_mut().position(|w| fits(w) && w.due(model).is_some_and(|c| c.zxid <= zxid));
        match found {
            Some(place) => {
                hit("sim.zookeeper.told_late");
                self.0.remove(place);
                Ok(())
            }
            None => Err(format!("{kind:?} of {path} was told as missed, and was not")),
        }
    }

    /// Checks that all events were sent for changes that the client missed, when the client has set its watches again at a server in the
    /// state `zxid`.
    ///
    /// # Errors
    /// An event is missing.
    pub fn left_again(&mut self, model: &Model, zxid: i64) -> Result<(), String> {
        for watch in &mut self.0 {
            let Some(change) = watch.due(model).filter(|c| c.zxid <= zxid) else { continue };
            let came_and_went = watch.kind == Kind::Exist && model.at(&watch.path, zxid).is_none();
            if watch.kind.is_once() && !came_and_went {
                return Err(format!(
                    "{:?} watch of {}: {change:?} was missed and not told, left again at {zxid:#x}",
                    watch.kind, watch.path
                ));
            }
            // Persistent watches report only later changes.
            watch.next = behind(model, zxid);
        }
        Ok(())
    }
}

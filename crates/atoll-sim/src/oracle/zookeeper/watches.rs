//! The watches of one client, as the client knows them, and the events that it must receive: each change once, the earliest first,
//! before a reply that shows it, across all its connections.

use atoll_core::testing::hit;
use atoll_zookeeper::jute::codes::EventType;

use super::model::{Change, Model};

/// Kinds of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Of getData, and of exists on a node that is there; once.
    Data,
    /// Of exists on a node that is not there; once.
    Exist,
    /// Of getChildren; once.
    Child,
    /// Stays: the node and its children.
    Persistent,
    /// Stays: the node and all below it.
    Recursive,
}

impl Kind {
    fn is_once(self) -> bool {
        matches!(self, Kind::Data | Kind::Exist | Kind::Child)
    }

    /// As servers tell them apart.
    fn on_server(self) -> Kind {
        if self == Kind::Exist { Kind::Data } else { self }
    }
}

/// A watch that has not fired, or stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Which.
    pub kind: Kind,
    /// Where.
    pub path: String,
    /// Changes before this place of [`Model::changes`] do not concern it.
    next: usize,
}

fn is_within(path: &str, top: &str) -> bool {
    top == "/" || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Watch {
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

    /// The first change that concerns it.
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
pub struct Watches(Vec<Watch>);

/// The place behind the changes up to `zxid`.
fn behind(model: &Model, zxid: i64) -> usize {
    model.changes.partition_point(|c| c.zxid <= zxid)
}

impl Watches {
    /// Those of a kind.
    pub fn of(&self, kind: Kind) -> Vec<&str> {
        self.0.iter().filter(|w| w.kind == kind).map(|w| w.path.as_str()).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Its session is gone, and they with it.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The client left one with a read of the state at `zxid`.
    pub fn add(&mut self, model: &Model, kind: Kind, path: &str, zxid: i64) {
        let same = |w: &Watch| w.path == path && w.kind.on_server() == kind.on_server();
        if !self.0.iter().any(same) {
            self.0.push(Watch { kind, path: path.to_owned(), next: behind(model, zxid) });
        }
    }

    /// The client took all of a path away; whether there were any.
    pub fn remove(&mut self, path: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|w| w.path != path);
        self.0.len() < before
    }

    /// The first change of a watched node that the client has not been notified of: no state that contains it may be shown.
    pub fn untold<'m>(&mut self, model: &'m Model) -> Option<&'m Change> {
        self.0.iter_mut().filter_map(|w| w.due(model)).min_by_key(|c| c.zxid)
    }

    /// An event came, of the change `zxid`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn told(&mut self, model: &Model, kind: EventType, path: &str, zxid: i64) -> Result<(), String> {
        let is_it = |c: &Change| c.zxid == zxid && c.kind == kind && c.path == path;
        for watch in &mut self.0 {
            watch.due(model);
        }
        let is_due = |w: &&Watch| model.changes.get(w.next).is_some_and(is_it);
        let Some(place) = self.0.iter().filter(is_due).map(|w| w.next).min() else {
            let here: Vec<&Watch> = self.0.iter().filter(|w| w.path == path).collect();
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

    /// An event came that tells what the client missed while it was away; the server's state was that of `zxid`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn told_late(&mut self, model: &Model, kind: EventType, path: &str, zxid: i64) -> Result<(), String> {
        use EventType as E;
        let fits = |w: &Watch| {
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
    /// One was not told.
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
            // Persistent watches report changes from here on.
            watch.next = behind(model, zxid);
        }
        Ok(())
    }
}

//! Checks ZooKeeper as its clients see it. The oracle replays the commands in log order on its own tree and compares.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | each write is applied once, in an order that agrees with real time; each read shows one state, never an older one |
//! | `model/` | a second implementation of the tree, its quotas and the sessions |
//! | `watches.rs` | which events a client must get from its watches |
//! | `sessions.rs` | which sessions may be expired, and when |

pub mod model;
mod sessions;
pub mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::NodeId;
use atoll_core::testing::{AppliedCommand, hit, take_applied};
use atoll_db::{Application, View};
use atoll_zookeeper::ZooKeeper;
use atoll_zookeeper::command::Command;
use atoll_zookeeper::jute::codes::{ErrorCode, EventType};
use atoll_zookeeper::jute::records::Stat;
use atoll_zookeeper::tree::read;

use model::{Holder, Model, SessionEnd};
use sessions::Contacts;
use watches::{Kind, Watches};

/// The place of a command in the order of all commands: log position, index within the entry.
pub type Place = (u64, u32);
/// A connection's number. Numbers rise during a run.
pub type ConnId = u64;
/// A client's number.
pub type ClientId = usize;

/// A write as its client sent it: session, operation, body. No session sends the same write twice.
pub type Sent = (i64, i32, Vec<u8>);

#[derive(Debug)]
struct Write {
    conn: ConnId,
    /// The newest zxid that any client had seen when the write was sent.
    since: i64,
    /// Where it was applied, its zxid if it took effect, and its answer.
    applied: Option<(Place, Option<i64>, Vec<u8>)>,
}

/// The result that a client got for a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// exists.
    Stat(String, Result<Stat, ErrorCode>),
    /// getData.
    Data(String, Result<(Option<Vec<u8>>, Stat), ErrorCode>),
    /// getChildren, getChildren2.
    Children(String, Result<(BTreeSet<String>, Option<Stat>), ErrorCode>),
    /// multiRead.
    Many(Vec<Shown>),
}

impl Shown {
    fn paths(&self) -> Vec<&str> {
        match self {
            Shown::Stat(path, _) | Shown::Data(path, _) | Shown::Children(path, _) => vec![path],
            Shown::Many(all) => all.iter().flat_map(Shown::paths).collect(),
        }
    }

    /// Returns whether the state at `zxid` gives this result.
    fn is_of(&self, model: &Model, zxid: i64) -> bool {
        let none = Err(ErrorCode::NoNode);
        match self {
            Shown::Stat(path, shown) => *shown == model.at(path, zxid).map_or(none, |n| Ok(n.stat)),
            Shown::Data(path, shown) => match (shown, model.at(path, zxid)) {
                (Ok((data, stat)), Some(node)) => *data == node.data && *stat == node.stat,
                (Err(ErrorCode::NoNode), None) => true,
                _ => false,
            },
            Shown::Children(path, shown) => match (shown, model.at(path, zxid)) {
                (Ok((names, stat)), Some(node)) => {
                    *names == *node.children && stat.is_none_or(|stat| stat == node.stat)
                }
                (Err(ErrorCode::NoNode), None) => true,
                _ => false,
            },
            Shown::Many(all) => all.iter().all(|one| one.is_of(model, zxid)),
        }
    }
}

/// What the header of a reply says, and the state of its sender.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The zxid in the header.
    pub zxid: i64,
    /// The newest zxid in the view of the node when it sent the reply.
    pub at_most: i64,
}

#[derive(Debug, Default)]
struct Client {
    /// The client has seen this state, or later ones.
    floor: i64,
    /// The zxid of the last reply, as real clients remember it.
    last_zxid: i64,
    watches: Watches,
}

#[derive(Debug, Default)]
struct ZooKeeperOracleState {
    model: Model,
    log: BTreeMap<Place, AppliedCommand>,
    writes: BTreeMap<Sent, Write>,
    clients: BTreeMap<ClientId, Client>,
    /// By session, the newest connection on which its client knows that it is attached.
    back: BTreeMap<i64, ConnId>,
    contacts: Contacts,
    highest: i64,
    failures: Vec<String>,
}

/// See the module documentation. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperOracle(Arc<Mutex<ZooKeeperOracleState>>);

impl ZooKeeperOracleState {
    fn fail(&mut self, what: String) {
        self.failures.push(format!("ZOOKEEPER: {what}"));
    }

    /// Handles a command that a replica applied.
    fn applied(&mut self, command: AppliedCommand, now_ns: u64) {
        if let Some(first) = self.log.get(&command.place) {
            if *first != command {
                let first = first.clone();
                self.fail(format!("two replicas differ: {first:?} and {command:?}"));
            }
            return;
        }
        let place = command.place;
        if self.log.last_key_value().is_some_and(|(last, _)| *last > place) {
            return self.fail(format!("{command:?} was applied by nobody who applied what follows it"));
        }
        let by: Holder = (command.proposer.0.0, command.proposer.1.0);
        let parsed = Command::read(&command.command).ok();
        let expected = self.model.apply(by, command.time_ms, &command.command);
        let (done, answer) = match &command.reply {
            Ok(answer) => (true, answer),
            Err(answer) => (false, answer),
        };
        if (done, &answer[..]) != (expected.done, &expected.answer[..]) {
            self.fail(format!(
                "{parsed:?} by {by:?} at {place:?} was answered {done} {answer:?}; expected: {} {:?}",
                expected.done, expected.answer
            ));
        }
        if let Some(Command::Write(head, body)) = &parsed {
            let zxid = done.then_some(self.model.zxid);
            self.write_applied((head.session, head.op, body.to_vec()), place, zxid, answer.to_vec());
        }
        if matches!(parsed, Some(Command::TakeOver(_))) && done {
            hit("sim.zookeeper.taken_over");
        }
        if let SessionEnd::Expired(id, session) = expected.ended {
            hit("sim.zookeeper.expired");
            if let Err(why) = self.contacts.expired(id, &session, now_ns) {
                self.fail(why);
            }
        } else if matches!(parsed, Some(Command::Expire(_) | Command::End(_))) && !done {
            hit("sim.zookeeper.expiry_refused");
        }
        self.log.insert(place, command);
    }

    fn write_applied(&mut self, sent: Sent, place: Place, zxid: Option<i64>, answer: Vec<u8>) {
        let back = self.back.get(&sent.0).copied();
        let Some(write) = self.writes.get_mut(&sent) else {
            return self.fail(format!("{sent:?} was applied at {place:?}; nobody has sent it"));
        };
        let conn = write.conn;
        if let Some((first, ..)) = &write.applied {
            let first = *first;
            return self.fail(format!("{sent:?} was applied at {first:?} and at {place:?}"));
        }
        write.applied = Some((place, zxid, answer));
        // If the session had moved, the write must have been refused.
        if back.is_some_and(|back| back > conn) && zxid.is_some() {
            self.fail(format!(
                "{sent:?} of connection {conn} was done after its client was back by {back:?}"
            ));
        }
    }

    /// Checks what every reply must satisfy, and notes its zxid.
    fn replied(&mut self, client: ClientId, head: Head, what: &str) {
        let model = &self.model;
        let of = self.clients.entry(client).or_default();
        let mut wrong = None;
        if head.zxid < of.last_zxid {
            wrong = Some(format!("{what}: its zxid {:#x} is behind {:#x}", head.zxid, of.last_zxid));
        }
        if let Some(untold) = of.watches.untold(model).filter(|c| c.zxid <= head.zxid) {
            wrong = Some(format!("{what} with zxid {:#x} came before the event of {untold:?}", head.zxid));
        }
        of.last_zxid = head.zxid;
        if let Some(wrong) = wrong {
            self.fail(format!("client {client}: {wrong}"));
        }
    }

    fn read(&mut self, client: ClientId, shown: &Shown, head: Head, before: Option<i64>) {
        let model = &self.model;
        let of = self.clients.entry(client).or_default();
        let untold = of.watches.untold(model).map(|c| c.zxid - 1);
        let most = head.at_most.min(before.map_or(i64::MAX, |z| z - 1)).min(untold.unwrap_or(i64::MAX));
        let first_of = |from: i64, most: i64| {
            let mut states: Vec<i64> =
                shown.paths().into_iter().flat_map(|path| model.turns(path, from, most)).collect();
            states.push(from);
            states.sort_unstable();
            states.into_iter().find(|z| *z <= most && shown.is_of(model, *z))
        };
        match first_of(of.floor, most) {
            Some(zxid) => of.floor = zxid,
            None => {
                let ever = first_of(0, i64::MAX);
                let words = format!(
                    "client {client}: {shown:?} is of {ever:#x?}; it must be of {:#x} or later, and at most of {most:#x} \
                     (view {:#x}, own later write {before:#x?}, before an event {untold:#x?})",
                    of.floor, head.at_most
                );
                self.fail(words);
            }
        }
    }
}

impl ZooKeeperOracle {
    fn lock(&self) -> MutexGuard<'_, ZooKeeperOracleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the commands that replicas have applied since the last call.
    pub fn follow(&self, now_ns: u64) {
        let mut state = self.lock();
        for command in take_applied().into_iter().filter(|c| c.app == ZooKeeper::ID.0) {
            state.applied(command, now_ns);
        }
    }

    /// Notes that an event told a node that it holds a session.
    pub fn held(&self, session: i64, moves: i64, now_ns: u64) {
        self.lock().contacts.held(session, moves, now_ns);
    }

    /// Notes that a node's state was replaced. It now holds the sessions that the new state says.
    pub fn refilled(&self, holder: Holder, now_ns: u64) {
        let mut state = self.lock();
        let ZooKeeperOracleState { model, contacts, .. } = &mut *state;
        for (id, session) in model.sessions.iter().filter(|(_, s)| s.holder == holder) {
            contacts.held(*id, session.moves, now_ns);
        }
    }

    /// Notes that a node has read bytes from a connection.
    pub fn heard(&self, conn: ConnId, now_ns: u64) {
        self.lock().contacts.heard(conn, now_ns);
    }

    /// Notes that a client is attached to its session through a connection to a node.
    pub fn connected(&self, client: ClientId, conn: ConnId, to: Holder, session: i64, is_new: bool) {
        let mut state = self.lock();
        state.back.insert(session, conn);
        state.contacts.belongs(conn, session, to);
        let lives = state.model.lives(session);
        let of = state.clients.entry(client).or_default();
        of.floor = of.floor.max(of.last_zxid);
        if is_new {
            of.watches.clear();
        } else {
            hit("sim.zookeeper.came_back");
        }
        if !lives {
            // The session may have expired since the answer was sent.
            hit("sim.zookeeper.gone_on_the_way");
        }
    }

    /// Checks that a session is gone when its client is told so.
    pub fn told_gone(&self, client: ClientId, session: i64) {
        let mut state = self.lock();
        if state.model.lives(session) {
            state.fail(format!("client {client} was told that session {session:#x} is gone; it is there"));
        }
        state.clients.entry(client).or_default().watches.clear();
    }

    /// Returns the zxid that a client sends when it reconnects.
    pub fn last_zxid(&self, client: ClientId) -> i64 {
        self.lock().clients.entry(client).or_default().last_zxid
    }

    /// Returns the paths on which a client has watches of a kind.
    pub fn watches(&self, client: ClientId, kind: Kind) -> Vec<String> {
        let mut state = self.lock();
        state.clients.entry(client).or_default().watches.of(kind).into_iter().map(str::to_owned).collect()
    }

    /// Returns how many watches a client has.
    pub fn watch_count(&self, client: ClientId) -> usize {
        self.lock().clients.entry(client).or_default().watches.count()
    }

    /// Notes a write that is about to be sent. Returns false if this session has sent the same write before.
    pub fn sends(&self, conn: ConnId, sent: &Sent) -> bool {
        let mut state = self.lock();
        let since = state.highest;
        if state.writes.contains_key(sent) {
            return false;
        }
        state.writes.insert(sent.clone(), Write { conn, since, applied: None });
        true
    }

    /// Returns the zxid of a write, if it has taken effect by now.
    pub fn zxid_of(&self, sent: &Sent) -> Option<i64> {
        self.lock().writes.get(sent)?.applied.as_ref()?.1
    }

    /// Returns the newest zxid that any client has seen.
    pub fn highest(&self) -> i64 {
        self.lock().highest
    }

    /// Checks the answer to a write: the bytes after the xid.
    pub fn wrote(&self, client: ClientId, sent: &Sent, head: Head, answer: &[u8]) {
        let mut state = self.lock();
        let Some(write) = state.writes.get(sent) else { return };
        let (since, applied) = (write.since, write.applied.clone());
        match applied {
            Some((_, zxid, expected)) if expected.get(8..) == answer.get(8..) => {
                if let Some(zxid) = zxid {
                    if zxid <= since {
                        state.fail(format!(
                            "{sent:?} is {zxid:#x}, sent after {since:#x} had been answered to somebody"
                        ));
                    }
                    state.highest = state.highest.max(zxid);
                    let of = state.clients.entry(client).or_default();
                    of.floor = of.floor.max(zxid);
                }
            }
            other => state.fail(format!("{sent:?} was answered {answer:?}; applied: {other:?}")),
        }
        state.replied(client, head, "the answer to a write");
    }

    /// Checks the answer to a read. `before` is the zxid of a write that the client sent after the read, and which the read must not show.
    pub fn read(&self, client: ClientId, shown: &Shown, head: Head, before: Option<i64>) {
        let mut state = self.lock();
        state.read(client, shown, head, before);
        let floor = state.clients.entry(client).or_default().floor;
        state.highest = state.highest.max(floor);
        state.replied(client, head, "a read");
    }

    /// Checks the answer to a sync. When the sync was sent, `since` was the newest zxid that any client had seen.
    pub fn synced(&self, client: ClientId, head: Head, since: i64) {
        let mut state = self.lock();
        let of = state.clients.entry(client).or_default();
        of.floor = of.floor.max(since);
        state.replied(client, head, "a sync");
    }

    /// Notes a watch that a read or addWatch has set, in the state at zxid `at`.
    pub fn left(&self, client: ClientId, kind: Kind, path: &str, at: i64) {
        let mut state = self.lock();
        let ZooKeeperOracleState { model, clients, .. } = &mut *state;
        clients.entry(client).or_default().watches.add(model, kind, path, at);
    }

    /// Checks the answer to addWatch.
    pub fn added_watch(&self, client: ClientId, head: Head) {
        self.lock().replied(client, head, "addWatch");
    }

    /// Checks the answer to removeWatches.
    pub fn removed_watches(&self, client: ClientId, path: &str, found: bool, head: Head) {
        let mut state = self.lock();
        let had = state.clients.entry(client).or_default().watches.remove(path);
        if had != found {
            state.fail(format!("client {client}: removeWatches of {path} found {found}, and had {had}"));
        }
        state.replied(client, head, "removeWatches");
    }

    /// Checks the answer to setWatches.
    pub fn left_again(&self, client: ClientId, head: Head) {
        let mut state = self.lock();
        let ZooKeeperOracleState { model, clients, .. } = &mut *state;
        let left = clients.entry(client).or_default().watches.left_again(model, head.at_most);
        if let Err(why) = left {
            state.fail(format!("client {client}: {why}"));
        }
        state.replied(client, head, "setWatches");
    }

    /// Checks an event. `again` is set while the client registers its watches again, and is the zxid from which it does. The node's view is
    /// at `head.at_most`.
    pub fn event(&self, client: ClientId, kind: EventType, path: &str, head: Head, again: Option<i64>) {
        let mut state = self.lock();
        let ZooKeeperOracleState { model, clients, .. } = &mut *state;
        let watches = &mut clients.entry(client).or_default().watches;
        let told = match again {
            Some(since) if head.zxid == since.max(0) => watches.told_late(model, kind, path, head.at_most),
            _ => watches.told(model, kind, path, head.zxid),
        };
        hit("sim.zookeeper.event");
        if let Err(why) = told {
            state.fail(format!("client {client}: {why}"));
        }
    }

    /// Compares the whole view of a node with the oracle's own tree.
    pub fn audit(&self, who: &str, view: &View) {
        let mut state = self.lock();
        let Ok(counters) = read::counters(view) else {
            return state.fail(format!("{who}: its counters cannot be read"));
        };
        let zxid = counters.zxid;
        let model = &state.model;
        let differs = |path: &&str| match (read::data(view, path, &[]), model.at(path, zxid)) {
            (Ok((node, data)), Some(m)) => node.stat() != m.stat || data.as_deref() != m.data.as_deref(),
            // A store that cannot be read shows nothing, so it cannot show anything wrong.
            (Err(read::ReadError::Store(_)), _) | (Err(_), None) => false,
            _ => true,
        };
        let found = model.paths().find(differs).map(str::to_owned);
        if let Some(path) = found.filter(|_| zxid > model::FIRST_ZXID) {
            let (here, there) = (read::node(view, &path), state.model.at(&path, zxid).cloned());
            state.fail(format!("{who}: {path} at {zxid:#x} is {here:?}; expected: {there:?}"));
        }
        let (nodes, ephemerals) = state.model.counts();
        let (has, has_ephemerals) = (counters.nodes as usize, counters.ephemerals as usize);
        if zxid == state.model.zxid
            && zxid > model::FIRST_ZXID
            && (nodes, ephemerals) != (has, has_ephemerals)
        {
            state.fail(format!(
                "{who}: {has} nodes, {has_ephemerals} ephemerals; expected: {nodes}, {ephemerals}"
            ));
        }
        hit("sim.zookeeper.audited");
    }

    /// Returns the sessions that a node holds, according to the applied commands.
    pub fn held_by(&self, node: NodeId) -> Vec<i64> {
        let state = self.lock();
        let held = state.model.sessions.iter().filter(|(_, s)| s.holder.0 == node.0);
        held.map(|(id, _)| *id).collect()
    }

    /// Returns the number of sessions.
    pub fn sessions(&self) -> usize {
        self.lock().model.sessions.len()
    }

    /// Returns the znodes that must be deleted sooner or later without a request of a client.
    pub fn transients(&self) -> Vec<String> {
        self.lock().model.transients().map(str::to_owned).collect()
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().failures)
    }
}

//! ZooKeeper as its clients see it, compared with the oracle's own tree, which replays the commands in log order.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | writes: once, in one order that agrees with real time; reads: each of one state, never an older one |
//! | `model/` | the tree, its quotas and the sessions, written again |
//! | `watches.rs` | what a client must be told by its watches |
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

use model::{Holder, Model, Told};
use sessions::Contacts;
use watches::{Kind, Watches};

/// A command's place in the order of all: log position, index.
pub type Place = (u64, u32);
/// A connection's number in the run, rising.
pub type ConnId = u64;
/// A client's number.
pub type ClientId = usize;

/// A write as its client sent it: session, operation, body. No session sends the same twice.
pub type Sent = (i64, i32, Vec<u8>);

#[derive(Debug)]
struct Write {
    conn: ConnId,
    /// The newest change that anybody had been answered when it was sent.
    since: i64,
    /// Where it was applied, its zxid if it changed something, and its answer.
    applied: Option<(Place, Option<i64>, Vec<u8>)>,
}

/// What a read was answered.
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

    /// Whether the state at `zxid` shows this.
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

/// A reply, as far as its header goes.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Its zxid.
    pub zxid: i64,
    /// The newest change in the view of the node that sent it, when it did.
    pub at_most: i64,
}

#[derive(Debug, Default)]
struct Client {
    /// It has seen this state, or later ones.
    floor: i64,
    /// As real clients keep it: of the last reply.
    last_zxid: i64,
    watches: Watches,
}

#[derive(Debug, Default)]
struct State {
    model: Model,
    log: BTreeMap<Place, AppliedCommand>,
    writes: BTreeMap<Sent, Write>,
    clients: BTreeMap<ClientId, Client>,
    /// The connection through which the client of a session knows that it is back.
    back: BTreeMap<i64, ConnId>,
    contacts: Contacts,
    highest: i64,
    failures: Vec<String>,
}

/// See the module documentation. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperOracle(Arc<Mutex<State>>);

impl State {
    fn fail(&mut self, what: String) {
        self.failures.push(format!("ZOOKEEPER: {what}"));
    }

    /// A replica applied a command.
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
        if let Told::Expired(id, session) = expected.told {
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
        // If the session had moved, the write was refused and has done nothing.
        if back.is_some_and(|back| back > conn) && zxid.is_some() {
            self.fail(format!(
                "{sent:?} of connection {conn} was done after its client was back by {back:?}"
            ));
        }
    }

    /// Checks what every reply must satisfy; afterwards the client knows it.
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what replicas have applied since the last call.
    pub fn follow(&self, now_ns: u64) {
        let mut state = self.lock();
        for command in take_applied().into_iter().filter(|c| c.app == ZooKeeper::ID.0) {
            state.applied(command, now_ns);
        }
    }

    /// A node was told that it holds a session, by an event.
    pub fn held(&self, session: i64, moves: i64, now_ns: u64) {
        self.lock().contacts.held(session, moves, now_ns);
    }

    /// A node's state was replaced: its sessions are now those in the new state.
    pub fn refilled(&self, holder: Holder, now_ns: u64) {
        let mut state = self.lock();
        let State { model, contacts, .. } = &mut *state;
        for (id, session) in model.sessions.iter().filter(|(_, s)| s.holder == holder) {
            contacts.held(*id, session.moves, now_ns);
        }
    }

    /// A node has read something from a connection.
    pub fn heard(&self, conn: ConnId, now_ns: u64) {
        self.lock().contacts.heard(conn, now_ns);
    }

    /// A client has its session by a connection to a node.
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
            // It may have been expired again on the way.
            hit("sim.zookeeper.gone_on_the_way");
        }
    }

    /// A client was told that its session is gone.
    pub fn told_gone(&self, client: ClientId, session: i64) {
        let mut state = self.lock();
        if state.model.lives(session) {
            state.fail(format!("client {client} was told that session {session:#x} is gone; it is there"));
        }
        state.clients.entry(client).or_default().watches.clear();
    }

    /// What a client tells when it comes back: the newest change that it knows of.
    pub fn last_zxid(&self, client: ClientId) -> i64 {
        self.lock().clients.entry(client).or_default().last_zxid
    }

    /// The watches of a kind that a client has.
    pub fn watches(&self, client: ClientId, kind: Kind) -> Vec<String> {
        let mut state = self.lock();
        state.clients.entry(client).or_default().watches.of(kind).into_iter().map(str::to_owned).collect()
    }

    /// How many it has.
    pub fn watch_count(&self, client: ClientId) -> usize {
        self.lock().clients.entry(client).or_default().watches.count()
    }

    /// Sends a write, once per session; false if this session has sent the very same before.
    pub fn sends(&self, conn: ConnId, sent: &Sent) -> bool {
        let mut state = self.lock();
        let since = state.highest;
        if state.writes.contains_key(sent) {
            return false;
        }
        state.writes.insert(sent.clone(), Write { conn, since, applied: None });
        true
    }

    /// The zxid of a write, if it has changed something by now.
    pub fn zxid_of(&self, sent: &Sent) -> Option<i64> {
        self.lock().writes.get(sent)?.applied.as_ref()?.1
    }

    /// The newest change that anybody was answered.
    pub fn highest(&self) -> i64 {
        self.lock().highest
    }

    /// A write was answered with these bytes behind the xid.
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

    /// A read was answered. `before`: the zxid of the client's own write that was sent later, which the read must not show.
    pub fn read(&self, client: ClientId, shown: &Shown, head: Head, before: Option<i64>) {
        let mut state = self.lock();
        state.read(client, shown, head, before);
        let floor = state.clients.entry(client).or_default().floor;
        state.highest = state.highest.max(floor);
        state.replied(client, head, "a read");
    }

    /// A sync was answered, sent when `since` was the newest change that anybody had been answered.
    pub fn synced(&self, client: ClientId, head: Head, since: i64) {
        let mut state = self.lock();
        let of = state.clients.entry(client).or_default();
        of.floor = of.floor.max(since);
        state.replied(client, head, "a sync");
    }

    /// A request about watches was answered, or a watch was left by a read.
    pub fn left(&self, client: ClientId, kind: Kind, path: &str, at: i64) {
        let mut state = self.lock();
        let State { model, clients, .. } = &mut *state;
        clients.entry(client).or_default().watches.add(model, kind, path, at);
    }

    /// addWatch was answered.
    pub fn added_watch(&self, client: ClientId, head: Head) {
        self.lock().replied(client, head, "addWatch");
    }

    /// removeWatches was answered.
    pub fn removed_watches(&self, client: ClientId, path: &str, found: bool, head: Head) {
        let mut state = self.lock();
        let had = state.clients.entry(client).or_default().watches.remove(path);
        if had != found {
            state.fail(format!("client {client}: removeWatches of {path} found {found}, and had {had}"));
        }
        state.replied(client, head, "removeWatches");
    }

    /// setWatches was answered.
    pub fn left_again(&self, client: ClientId, head: Head) {
        let mut state = self.lock();
        let State { model, clients, .. } = &mut *state;
        let left = clients.entry(client).or_default().watches.left_again(model, head.at_most);
        if let Err(why) = left {
            state.fail(format!("client {client}: {why}"));
        }
        state.replied(client, head, "setWatches");
    }

    /// An event came. `again`: the client is leaving its watches again, relative to this zxid; the node's view is at `at_most`.
    pub fn event(&self, client: ClientId, kind: EventType, path: &str, head: Head, again: Option<i64>) {
        let mut state = self.lock();
        let State { model, clients, .. } = &mut *state;
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

    /// Compares a node's whole view with the tree of our own.
    pub fn audit(&self, who: &str, view: &View) {
        let mut state = self.lock();
        let Ok(counters) = read::counters(view) else {
            return state.fail(format!("{who}: its counters cannot be read"));
        };
        let zxid = counters.zxid;
        let model = &state.model;
        let differs = |path: &&str| match (read::data(view, path, &[]), model.at(path, zxid)) {
            (Ok((node, data)), Some(m)) => node.stat() != m.stat || data.as_deref() != m.data.as_deref(),
            // A store that cannot be read shows nothing, and therefore nothing wrong.
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

    /// Sessions that a node holds, by the commands that were applied.
    pub fn held_by(&self, node: NodeId) -> Vec<i64> {
        let state = self.lock();
        let held = state.model.sessions.iter().filter(|(_, s)| s.holder.0 == node.0);
        held.map(|(id, _)| *id).collect()
    }

    /// Sessions that are there.
    pub fn sessions(&self) -> usize {
        self.lock().model.sessions.len()
    }

    /// Nodes that must go by themselves, as nobody comes any more.
    pub fn transients(&self) -> Vec<String> {
        self.lock().model.transients().map(str::to_owned).collect()
    }

    /// What was found wrong since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().failures)
    }
}

//! An ensemble in memory, on virtual time, with the faults that a real one has: servers that lag behind, answers and requests that are
//! lost, requests that are done long after their sender gave them up, and sessions that continue at a server that is further behind.
//!
//! A node that is cut off reaches one server only, which is parted from the others: it answers reads with what it had, and does no write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, Tick, Ticket};
use atoll_loglet_store::testing::{Faults as Ways, Marks, Way};
use bytes::Bytes;

use crate::ensemble::{Answer, Ensemble, Fault, Node, Op, Refusal, Request};
use crate::mutants;

const MARKS: Marks = Marks {
    lost: "zookeeper.lost",
    unanswered: "zookeeper.unanswered",
    cut_off: "zookeeper.cut_off",
    away: "zookeeper.away",
    wrong: "zookeeper.wrong",
};
/// The servers of the ensemble in the memory of the process, in a specification.
pub const MEMORY: &str = "memory:1";
/// How often a session looks whether its server has news for those who wait.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The longest that a lost request may still be under way.
const LATE_MS: u64 = 800;
/// The most transactions that a server lags behind when it is read.
const LAG: u64 = 6;
/// The number of servers. Sessions of consecutive nodes begin at different ones.
const SERVERS: usize = 3;
/// How soon an ensemble with that bug forgets a seal.
const FORGETS_AFTER: Duration = Duration::from_millis(20);

/// How often faults happen, in percent of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The requests of a call are lost.
    pub lost_requests: u64,
    /// The requests of a call are done, and the answers are lost.
    pub lost_answers: u64,
    /// The requests of a call count as lost, and are done later.
    pub late: u64,
    /// Reads show an older state where that is allowed.
    pub lag: bool,
}

/// The znodes at one moment.
#[derive(Clone, Debug, Default)]
struct Tree(BTreeMap<String, Node>);

impl Tree {
    fn parent(path: &str) -> &str {
        path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    fn children(&self, path: &str) -> Vec<String> {
        let under = format!("{path}/");
        let inside = self.0.range(under.clone()..).map_while(|(p, _)| p.strip_prefix(&under));
        let names: BTreeSet<&str> = inside.map(|rest| rest.split('/').next().unwrap_or(rest)).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    fn is_at(&self, path: &str, version: Option<i32>) -> Result<(), Refusal> {
        let node = self.0.get(path).ok_or(Refusal::Missing)?;
        if version.is_none_or(|version| version == node.version) { Ok(()) } else { Err(Refusal::Version) }
    }

    fn has_children(&self, path: &str) -> bool {
        let under = format!("{path}/");
        self.0.range(under.clone()..).next().is_some_and(|(first, _)| first.starts_with(&under))
    }

    fn do_one(&mut self, op: &Op, zxid: i64) -> Result<(), Refusal> {
        match op {
            Op::Check { path, version } => self.is_at(path, Some(*version)),
            Op::Create { path, data } => {
                let parent = Self::parent(path);
                if !parent.is_empty() && !self.0.contains_key(parent) {
                    return Err(Refusal::Missing);
                }
                if self.0.contains_key(path) {
                    return Err(Refusal::Exists);
                }
                self.0.insert(path.clone(), Node { data: data.clone(), version: 0, mzxid: zxid });
                Ok(())
            }
            Op::Set { path, data, version } => {
                self.is_at(path, *version)?;
                if let Some(node) = self.0.get_mut(path) {
                    *node = Node { data: data.clone(), version: node.version + 1, mzxid: zxid };
                }
                Ok(())
            }
            Op::Delete { path } => {
                self.is_at(path, None)?;
                if self.has_children(path) {
                    return Err(Refusal::NotEmpty);
                }
                self.0.remove(path);
                Ok(())
            }
        }
    }

    /// Does all operations, or none.
    fn write(&mut self, ops: &[Op], zxid: i64) -> Result<(), Refusal> {
        let mut before: Vec<(&String, Option<Node>)> = Vec::with_capacity(ops.len());
        for op in ops {
            let (Op::Check { path, .. }
            | Op::Create { path, .. }
            | Op::Set { path, .. }
            | Op::Delete { path }) = op;
            before.push((path, self.0.get(path).cloned()));
            let Err(refusal) = self.do_one(op, zxid) else { continue };
            for (path, node) in before.into_iter().rev() {
                match node {
                    Some(node) => drop(self.0.insert(path.clone(), node)),
                    None => drop(self.0.remove(path)),
                }
            }
            return Err(refusal);
        }
        Ok(())
    }
}

/// A server of the ensemble.
#[derive(Debug, Default)]
struct Server {
    tree: Tree,
    /// How many transactions it knows.
    knows: usize,
}

#[derive(Default)]
struct State {
    leader: Tree,
    /// The transactions that changed something.
    log: Vec<Vec<Op>>,
    servers: [Server; SERVERS],
}

impl State {
    /// Lets a server learn the transactions up to a number.
    fn bring_up(&mut self, server: usize, to: usize) {
        let server = &mut self.servers[server];
        while server.knows < to.min(self.log.len()) {
            let zxid = server.knows as i64 + 1;
            // It succeeded at the leader.
            let done = server.tree.write(&self.log[server.knows], zxid);
            debug_assert!(done.is_ok(), "servers do what the leader did");
            server.knows += 1;
        }
    }
}

/// An ensemble in memory, which all clones share, and its faults.
#[derive(Clone, Default)]
pub struct MemoryEnsemble {
    state: Arc<Mutex<State>>,
    /// The faults of every node's way to the ensemble.
    pub faults: Ways,
}

impl fmt::Debug for MemoryEnsemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryEnsemble")
    }
}

impl MemoryEnsemble {
    /// Sets how often faults happen from now on.
    pub fn set_faults(&self, faults: Faults) {
        let per_mille = |percent: u64| u32::try_from(percent * 10).unwrap_or(1000);
        let Faults { lost_requests, lost_answers, late, lag } = faults;
        self.faults.set(per_mille(lost_requests), per_mille(lost_answers), per_mille(late), 0);
        self.faults.set_lag(if lag { 1000 } else { 0 });
    }

    /// Returns the paths of all znodes.
    pub fn paths(&self) -> Vec<String> {
        lock(&self.state).leader.0.keys().cloned().collect()
    }

    /// Replaces the data of a znode behind everybody's back.
    pub fn damage(&self, path: &str, data: Bytes) {
        let mut state = lock(&self.state);
        let op = vec![Op::Set { path: path.to_owned(), data, version: None }];
        let zxid = state.log.len() as i64 + 1;
        if state.leader.write(&op, zxid).is_ok() {
            state.log.push(op);
        }
    }

    /// Opens a session for a node. The time that one way to the ensemble takes is up to twice this long, and what its faults add.
    pub fn session(&self, env: Env, latency: Duration) -> Arc<dyn Ensemble> {
        let server = env.node().0 as usize % SERVERS;
        let line = Arc::new(Mutex::new(Line { next: Tick(0), server }));
        let way = Way::new(env.clone(), self.faults.clone(), MARKS);
        Arc::new(MemorySession { env, ensemble: self.clone(), way, latency, line })
    }
}

/// What keeps the requests of a session in order.
#[derive(Debug)]
struct Line {
    /// When the last requests reach the ensemble.
    next: Tick,
    /// The server of the session.
    server: usize,
}

#[derive(Clone, Debug)]
struct MemorySession {
    env: Env,
    ensemble: MemoryEnsemble,
    way: Way,
    latency: Duration,
    line: Arc<Mutex<Line>>,
}

/// Whether a path is that of a batch, whose data has a checksum.
fn is_batch(path: &str) -> bool {
    path.rsplit('/').nth(2) == Some("e")
}

impl MemorySession {
    fn do_all(&self, requests: &[Request]) -> Vec<Result<Answer, Fault>> {
        let (mut state, server) = (lock(&self.ensemble.state), lock(&self.line).server);
        requests.iter().map(|request| self.do_one(&mut state, server, request)).collect()
    }

    fn do_one(&self, state: &mut State, server: usize, request: &Request) -> Result<Answer, Fault> {
        let Request::Write(ops) = request else {
            self.read_news(state, server);
            return Ok(self.read(state, server, request));
        };
        let zxid = state.log.len() as i64 + 1;
        let done = state.leader.write(ops, zxid);
        if done.is_ok() {
            state.log.push(ops.clone());
            self.forget_seal(ops);
        }
        // A refusal is a transaction, too: what follows on this session sees all before it.
        let all = state.log.len();
        state.bring_up(server, all);
        done.map(|()| Answer::Written).map_err(Fault::Refused)
    }

    /// Answers a read with what a server has.
    fn read(&self, state: &State, server: usize, request: &Request) -> Answer {
        let tree = &state.servers[server].tree;
        match request {
            Request::Children(path) => {
                Answer::Children(tree.0.contains_key(path).then(|| tree.children(path)))
            }
            Request::Get(path) => {
                let mut found = tree.0.get(path).cloned();
                if let Some(node) = found.as_mut().filter(|_| is_batch(path)) {
                    node.data = self.way.mangle(node.data.clone());
                }
                Answer::Node(found)
            }
            Request::Write(_) => Answer::Written,
        }
    }

    /// Lets the server learn of what happened, or of a part of it.
    fn read_news(&self, state: &mut State, server: usize) {
        let all = state.log.len();
        let lag = if self.way.lags() { self.env.random() % LAG } else { 0 };
        state.bring_up(server, all.saturating_sub(lag as usize));
    }

    /// With that bug, sets the znode of a seal back soon after it was confirmed.
    fn forget_seal(&self, ops: &[Op]) {
        if !mutant(mutants::ZOOKEEPER_FORGETS_SEALS) {
            return;
        }
        let is_seal = |op: &&Op| matches!(op, Op::Set { path, .. } if path.ends_with("/seal"));
        let Some(Op::Set { path, .. }) = ops.iter().find(is_seal) else { return };
        let (me, path) = (self.clone(), path.clone());
        let forget = async move {
            me.env.sleep(FORGETS_AFTER).await;
            let mut state = lock(&me.ensemble.state);
            let State { leader, servers, .. } = &mut *state;
            for tree in servers.iter_mut().map(|server| &mut server.tree).chain([leader]) {
                if let Some(node) = tree.0.get_mut(&path) {
                    node.version = 0;
                }
            }
        };
        self.env.spawn("ensemble.forget", Box::pin(forget));
    }

    /// Continues the session as a new one, at a server that may be further behind.
    fn move_on(&self) {
        lock(&self.line).server = self.env.random() as usize % SERVERS;
    }

    /// Answers as a server that is parted from the others.
    fn do_parted(&self, requests: &[Request]) -> Vec<Result<Answer, Fault>> {
        if requests.iter().any(|request| matches!(request, Request::Write(_))) {
            return vec![Err(Fault::Lost); requests.len()];
        }
        hit("zookeeper.old_server");
        let (state, server) = (lock(&self.ensemble.state), lock(&self.line).server);
        requests.iter().map(|request| Ok(self.read(&state, server, request))).collect()
    }

    async fn serve(self, at: Tick, requests: Vec<Request>) -> Vec<Result<Answer, Fault>> {
        let fate = self.way.fate();
        let lost = vec![Err(Fault::Lost); requests.len()];
        self.env.sleep_until(at).await;
        if self.way.is_away() {
            return vec![Err(Fault::NotConnected); requests.len()];
        }
        if self.way.cut_window().is_some() {
            return self.do_parted(&requests);
        }
        if fate.lost {
            hit(MARKS.lost);
            self.move_on();
            return lost;
        }
        if fate.late {
            self.move_on();
            let late = self.clone();
            let after = Duration::from_millis(self.env.random() % LATE_MS);
            self.env.spawn(
                "ensemble.late",
                Box::pin(async move {
                    late.env.sleep(after).await;
                    late.do_all(&requests);
                }),
            );
            return lost;
        }
        let answers = self.do_all(&requests);
        self.env.sleep(self.env.jitter(self.latency) + fate.back).await;
        if fate.unanswered || self.way.cut_window().is_some() || self.way.is_away() {
            hit(MARKS.unanswered);
            self.move_on();
            return lost;
        }
        answers
    }
}

impl Ensemble for MemorySession {
    fn send(&self, requests: Vec<Request>) -> Ticket<Vec<Result<Answer, Fault>>> {
        let at = {
            let mut line = lock(&self.line);
            let way = self.env.jitter(self.latency) + self.way.delay();
            line.next = line.next.max(self.env.now().after(way));
            line.next
        };
        self.env.launch("ensemble.send", self.clone().serve(at, requests))
    }

    fn wait(&self, seen: Vec<(String, i32)>, patience: Duration) -> Ticket<Result<(), Fault>> {
        let session = self.clone();
        let until = self.env.now().after(patience);
        self.env.launch("ensemble.wait", async move {
            while session.env.now() < until {
                session.env.sleep(session.env.jitter(LOOK_EVERY)).await;
                let requests: Vec<_> = seen.iter().map(|(path, _)| Request::Get(path.clone())).collect();
                let is_as_seen = |(answer, (_, version)): (Result<Answer, Fault>, &(String, i32))| {
                    matches!(answer, Ok(Answer::Node(Some(node))) if node.version == *version)
                };
                let answers = match session.way.cut_window() {
                    Some(_) => session.do_parted(&requests),
                    None => session.do_all(&requests),
                };
                if !answers.into_iter().zip(&seen).all(is_as_seen) {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Opens a session of its own with a real ensemble, whose servers are given as `host:port,host:port`.
pub fn remote(servers: &str, session_timeout: Duration) -> Arc<dyn Ensemble> {
    crate::session::Ensembles::default().ensemble(servers, session_timeout)
}

//! A ZooKeeper client that behaves like real ones. It has one session, uses one connection after the other, pipelines requests, and
//! registers its watches again on each connection. It moves to other nodes, pauses, and leaves connections half open.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{NodeId, Tick};
use atoll_zookeeper::jute::codes::{ErrorCode, EventType, OpCode, xid};
use atoll_zookeeper::jute::records::{ConnectRequest, ConnectResponse, ReplyHeader, RequestHeader};
use atoll_zookeeper::jute::reply::{
    Create2Reply, GetChildren2Reply, GetDataReply, NamesReply, PathReply, StatReply, WatcherEvent,
};
use atoll_zookeeper::jute::transaction::MultiResult;
use atoll_zookeeper::jute::{Jute, Reader};

use super::asks::{self, Asking, Draw, Knowledge, Request};
use super::host::Doors;
use super::socket::ClientEnd;
use crate::oracle::Answered;
use crate::oracle::zookeeper::watches::Kind;
use crate::oracle::zookeeper::{ClientId, Head, Sent, Shown, ZooKeeperOracle};
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;

/// How long the client waits for a connection or an answer.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// The most requests that it sends at once.
const REQUESTS: u64 = 10;

/// Why a connection ended.
enum Over {
    /// It broke, it was too slow, or the client leaves it.
    Leave,
    /// The client received an impossible answer.
    Wrong(String),
}

struct Waiting {
    xid: i32,
    asking: Asking,
    sent: Option<Sent>,
    /// The newest zxid that any client had seen when the request was sent.
    since: i64,
}

/// A connection with a session.
struct Link {
    end: ClientEnd,
    input: Vec<u8>,
    at_most: i64,
    waiting: VecDeque<Waiting>,
    said_at: Tick,
}

/// See the module documentation.
pub struct Client {
    stage: Stage<NodeHandles>,
    doors: Doors,
    oracle: ZooKeeperOracle,
    id: ClientId,
    think: Duration,
    timeout_ms: i32,
    session: i64,
    password: Vec<u8>,
    knows: Knowledge,
    count: u64,
    xid: i32,
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as i32).to_be_bytes()[..], body].concat()
}

fn wrong(what: impl std::fmt::Debug) -> Over {
    Over::Wrong(format!("cannot be understood: {what:?}"))
}

impl Link {
    /// Returns the next whole frame. None if the connection has ended.
    async fn frame(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(head) = self.input.first_chunk::<4>() {
                let length = i32::from_be_bytes(*head) as usize;
                if self.input.len() >= 4 + length {
                    let rest = self.input.split_off(4 + length);
                    let whole = std::mem::replace(&mut self.input, rest);
                    return Some(whole[4..].to_vec());
                }
            }
            let (at_most, bytes) = self.end.receive().await?;
            self.at_most = at_most;
            self.input.extend(bytes);
        }
    }
}

impl Client {
    /// Creates a client that pauses for about `think` between requests and requests this session timeout.
    pub fn new(
        stage: Stage<NodeHandles>,
        doors: Doors,
        oracle: ZooKeeperOracle,
        id: ClientId,
        think: Duration,
        timeout_ms: i32,
    ) -> Client {
        let (password, knows) = (Vec::new(), Knowledge::default());
        Client { stage, doors, oracle, id, think, timeout_ms, session: 0, password, knows, count: 0, xid: 0 }
    }

    /// Runs the client until the load is over.
    pub async fn run(mut self) {
        while !self.stage.over.is_up() {
            if let Some(mut link) = self.connect().await {
                let over = self.converse(&mut link).await;
                if let Err(Over::Wrong(why)) = over {
                    self.stage.cluster.fail(format!("ZOOKEEPER: client {}: {why}", self.id));
                }
                // The client closes the connection (its bytes arrive), resets it (they are lost), or leaves it half open (they arrive
                // late).
                let later = match self.stage.below(4) {
                    0 => None,
                    1 => Some(Duration::from_millis(self.stage.below(6_000))),
                    _ => Some(Duration::ZERO),
                };
                link.end.leave(later);
            }
            self.report();
            match self.stage.below(12) {
                0 => self.stage.pause(self.timeout() / 2).await,
                1 => self.stage.pause(self.timeout() * 3 / 2).await,
                _ => self.stage.pause(Duration::from_millis(60)).await,
            }
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms as u64)
    }

    fn report(&self) {
        self.oracle.take_failures().into_iter().for_each(|f| self.stage.cluster.fail(f));
        self.stage.report();
    }

    /// Connects to a random node and attaches the session, or opens a new one. Returns None if that failed.
    async fn connect(&mut self) -> Option<Link> {
        let node = NodeId(1 + self.stage.below(self.stage.cluster.hosts() as u64) as u32);
        let latency = Duration::from_micros([200, 2_000, 20_000][self.stage.below(3) as usize]);
        let end = self.doors.connect(node, latency)?;
        let now = self.stage.env.now();
        let mut link = Link { end, input: Vec::new(), at_most: 0, waiting: VecDeque::new(), said_at: now };
        let asked = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: self.oracle.last_zxid(self.id),
            timeout_ms: self.timeout_ms,
            session: self.session,
            password: Some(&self.password),
            read_only: Some(false),
        };
        link.end.send(frame(&asked.to_vec()));
        let answered = self.stage.env.within(PATIENCE, link.frame()).await;
        let Some(answer) = answered.ok().flatten() else {
            link.end.leave(Some(Duration::ZERO));
            return None;
        };
        self.oracle.follow(self.stage.env.now().0);
        self.stage.count(Answered::one(false));
        let Ok(response) = ConnectResponse::parse(&answer) else {
            self.stage.cluster.fail(format!("ZOOKEEPER: {answer:?} is no answer to a connect"));
            return None;
        };
        if response.timeout_ms == 0 {
            self.oracle.told_gone(self.id, self.session);
            self.session = 0;
            link.end.leave(Some(Duration::ZERO));
            return None;
        }
        let is_new = self.session == 0;
        self.session = response.session;
        self.password = response.password.unwrap_or_default().to_vec();
        self.oracle.connected(self.id, link.end.id(), link.end.to, self.session, is_new);
        Some(link)
    }

    /// Uses a connection until it ends.
    async fn converse(&mut self, link: &mut Link) -> Result<(), Over> {
        if self.oracle.watch_count(self.id) > 0 {
            let since = self.oracle.last_zxid(self.id);
            let request = asks::set_watches(since, &|kind| self.oracle.watches(self.id, kind));
            self.send(link, vec![request]);
            self.answers(link).await?;
        } else {
            let data = self.data();
            self.send(link, asks::base(&data));
        }
        while !self.stage.over.is_up() {
            self.listen(link).await?;
            match self.stage.below(120) {
                // The client pauses, and does not read either.
                0 | 1 => self.stage.pause(self.timeout()).await,
                2 | 3 => return Err(Over::Leave),
                4 if self.stage.below(3) == 0 => self.send(link, vec![asks::close()]),
                _ => {
                    let requests = (0..1 + self.stage.below(REQUESTS)).map(|_| self.draw()).collect();
                    self.send(link, requests);
                    // Sometimes leave before the answers arrive.
                    if self.stage.below(60) == 0 {
                        return Err(Over::Leave);
                    }
                }
            }
            self.answers(link).await?;
            if self.session == 0 {
                return Err(Over::Leave);
            }
        }
        Ok(())
    }

    fn data(&mut self) -> Vec<u8> {
        self.count += 1;
        format!("{}-{}", self.id, self.count).into_bytes()
    }

    fn draw(&mut self) -> Request {
        let data = self.data();
        let stage = self.stage.clone();
        let below = move |n: u64| stage.below(n);
        Draw { below: &below, knows: &self.knows, data }.next()
    }

    /// Sends several requests at once.
    fn send(&mut self, link: &mut Link, requests: Vec<Request>) {
        let mut bytes = Vec::new();
        for Request { op, body, asking } in requests {
            let is_write = matches!(asking, Asking::Write(_));
            let sent = is_write.then(|| (self.session, op.number(), body.clone()));
            if sent.as_ref().is_some_and(|sent| !self.oracle.sends(link.end.id(), sent)) {
                continue;
            }
            self.xid += 1;
            let xid = if op == OpCode::SetWatches || op == OpCode::SetWatches2 {
                xid::SET_WATCHES
            } else {
                self.xid
            };
            let head = RequestHeader { xid, op: op.number() }.to_vec();
            bytes.extend(frame(&[head, body].concat()));
            link.waiting.push_back(Waiting { xid, asking, sent, since: self.oracle.highest() });
        }
        link.said_at = self.stage.env.now();
        if !bytes.is_empty() {
            link.end.send(bytes);
        }
    }

    /// Receives events during the pause between requests. Then pings if it has sent nothing for a third of its timeout.
    async fn listen(&mut self, link: &mut Link) -> Result<(), Over> {
        let env = self.stage.env.clone();
        let until = env.now().after(env.jitter(self.think));
        while env.now() < until {
            let left = until.since(env.now());
            match env.within(left, link.frame()).await {
                Ok(Some(frame)) => self.take(link, &frame)?,
                Ok(None) => return Err(Over::Leave),
                Err(_) => break,
            }
        }
        if env.now().since(link.said_at) > self.timeout() / 3 {
            link.end.send(frame(&RequestHeader { xid: xid::PING, op: OpCode::Ping.number() }.to_vec()));
            link.said_at = env.now();
        }
        Ok(())
    }

    /// Waits for the answers to all requests.
    async fn answers(&mut self, link: &mut Link) -> Result<(), Over> {
        while !link.waiting.is_empty() {
            match self.stage.env.within(PATIENCE, link.frame()).await {
                Ok(Some(frame)) => self.take(link, &frame)?,
                _ => return Err(Over::Leave),
            }
        }
        Ok(())
    }

    /// Handles a reply or an event.
    fn take(&mut self, link: &mut Link, bytes: &[u8]) -> Result<(), Over> {
        self.oracle.follow(self.stage.env.now().0);
        let mut from = Reader::new(bytes);
        let header = ReplyHeader::read(&mut from).map_err(wrong)?;
        let head = Head { zxid: header.zxid, at_most: link.at_most };
        match header.xid {
            xid::PING => return Ok(()),
            xid::NOTIFICATION => {
                let event = WatcherEvent::read(&mut from).map_err(wrong)?;
                let kind = EventType::of(event.kind).ok_or_else(|| wrong(event))?;
                let again = link.waiting.front().and_then(|w| match w.asking {
                    Asking::SetWatches(since) => Some(since),
                    _ => None,
                });
                self.oracle.event(self.id, kind, event.path, head, again);
                self.report();
                return Ok(());
            }
            _ => {}
        }
        let waiting = link.waiting.pop_front().filter(|w| w.xid == header.xid);
        let waiting =
            waiting.ok_or_else(|| Over::Wrong(format!("a reply to {}, out of turn", header.xid)))?;
        let error = match header.err {
            0 => None,
            number => Some(ErrorCode::of(number).ok_or_else(|| wrong(header))?),
        };
        self.stage.count(Answered::one(error.is_none() && matches!(waiting.asking, Asking::Write(_))));
        let before = self.later_write(link, &waiting.asking);
        self.answered(waiting, head, error, bytes, from.rest(), before)?;
        self.report();
        Ok(())
    }

    /// Returns the zxid of the client's first write that was sent after a read, that is already done, and that the read would show.
    fn later_write(&self, link: &Link, read: &Asking) -> Option<i64> {
        let writes = link.waiting.iter().filter(|later| match &later.asking {
            Asking::Write(paths) => paths.iter().any(|path| read.shows(path)),
            _ => false,
        });
        writes.filter_map(|later| self.oracle.zxid_of(later.sent.as_ref()?)).min()
    }

    fn answered(
        &mut self,
        waiting: Waiting,
        head: Head,
        error: Option<ErrorCode>,
        bytes: &[u8],
        body: &[u8],
        before: Option<i64>,
    ) -> Result<(), Over> {
        let (id, oracle) = (self.id, self.oracle.clone());
        let left = |kind: Option<Kind>, path: &str| {
            if let Some(kind) = kind {
                // A read that took long was made from an earlier view than the node's present one. The reply's zxid is that of its view.
                oracle.left(id, kind, path, head.zxid.min(head.at_most));
            }
        };
        match &waiting.asking {
            Asking::Write(_) => {
                if let Some(sent) = &waiting.sent {
                    oracle.wrote(id, sent, head, &bytes[4..]);
                    if error.is_none() {
                        self.learn(sent.1, body);
                    }
                }
            }
            // The session has moved or ended. The next connection shows which.
            Asking::Close if error.is_some() => return Err(Over::Leave),
            Asking::Close => {
                oracle.told_gone(id, self.session);
                self.session = 0;
                hit("sim.zookeeper.closed");
            }
            Asking::Exists { path, watch } => {
                let stat = result(error, || StatReply::parse(body).map(|r| r.stat))?;
                oracle.read(id, &Shown::Stat(path.clone(), stat), head, before);
                let kind = if stat.is_ok() { Kind::Data } else { Kind::Exist };
                left(watch.then_some(kind), path);
            }
            Asking::Data { path, watch } => {
                let data = result(error, || {
                    GetDataReply::parse(body).map(|r| (r.data.map(<[u8]>::to_vec), r.stat))
                })?;
                if let Ok((_, stat)) = &data {
                    self.knows.versions.insert(path.clone(), stat.version);
                }
                let is_there = data.is_ok();
                oracle.read(id, &Shown::Data(path.clone(), data), head, before);
                left((*watch && is_there).then_some(Kind::Data), path);
            }
            Asking::Children { path, watch, with_stat } => {
                let children = result(error, || children(body, *with_stat))?;
                if let Ok((names, _)) = &children
                    && path == "/q"
                {
                    self.knows.queue = names.clone();
                }
                let is_there = children.is_ok();
                oracle.read(id, &Shown::Children(path.clone(), children), head, before);
                left((*watch && is_there).then_some(Kind::Child), path);
            }
            Asking::Many(paths) => {
                let results = MultiResult::read_row(&mut Reader::new(body)).map_err(wrong)?;
                let shown = paths.iter().zip(&results).map(|((path, _), result)| many(path, result));
                oracle.read(id, &Shown::Many(shown.collect()), head, before);
            }
            Asking::Sync => oracle.synced(id, head, waiting.since),
            Asking::AddWatch(kind, path) => {
                oracle.added_watch(id, head);
                left(Some(*kind), path);
            }
            Asking::RemoveWatches(path) => oracle.removed_watches(id, path, error.is_none(), head),
            Asking::SetWatches(_) => oracle.left_again(id, head),
        }
        Ok(())
    }

    /// Updates the client's knowledge from the reply to a write.
    fn learn(&mut self, op: i32, body: &[u8]) {
        let path = match OpCode::of(op) {
            Some(OpCode::Create) => PathReply::parse(body).ok().map(|r| r.path),
            Some(OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl) => {
                Create2Reply::parse(body).ok().map(|r| r.path)
            }
            _ => None,
        };
        let Some(path) = path else { return };
        match path.strip_prefix("/q/") {
            Some(name) => drop(self.knows.queue.insert(name.to_owned())),
            None => drop(self.knows.versions.insert(path.to_owned(), 0)),
        }
    }
}

fn result<T>(
    error: Option<ErrorCode>,
    body: impl FnOnce() -> Result<T, atoll_zookeeper::jute::JuteError>,
) -> Result<Result<T, ErrorCode>, Over> {
    match error {
        Some(code) => Ok(Err(code)),
        None => body().map(Ok).map_err(wrong),
    }
}

type Children = (BTreeSet<String>, Option<atoll_zookeeper::jute::records::Stat>);

fn children(body: &[u8], with_stat: bool) -> Result<Children, atoll_zookeeper::jute::JuteError> {
    let names = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    if with_stat {
        return GetChildren2Reply::parse(body).map(|r| (names(r.names), Some(r.stat)));
    }
    NamesReply::parse(body).map(|r| (names(r.names), None))
}

fn many(path: &str, result: &MultiResult<'_>) -> Shown {
    let path = path.to_owned();
    match result {
        MultiResult::GetData(data, stat) => Shown::Data(path, Ok((data.map(<[u8]>::to_vec), *stat))),
        MultiResult::GetChildren(names) => {
            Shown::Children(path, Ok((names.iter().map(|n| (*n).to_owned()).collect(), None)))
        }
        MultiResult::Error(Some(code)) => Shown::Stat(path, Err(*code)),
        other => Shown::Stat(format!("{path} as {other:?}"), Err(ErrorCode::RuntimeInconsistency)),
    }
}

//! The real ensemble: a thread with a session of a ZooKeeper client. Nothing here runs on the node's thread, and nothing of it is part of a
//! simulation, so the rules for protocol code do not hold: it uses tokio, and time is the machine's.
//!
//! The client connects again by itself until its session ends. The thread then opens another session for the next request. Requests that
//! were under way are lost, as is their order with respect to later ones; no caller relies on more (`lib.rs`, table of cases).

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::{Completer, Ticket, ticket};
use bytes::Bytes;
use futures_util::future::select_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError, Stat};

use crate::ensemble::{Answer, Ensemble, Fault, Node, Op, Refusal, Request};

/// The most requests in flight to one ensemble. Beyond that, requests are refused.
const MAX_REQUESTS: usize = 4096;

/// The ensembles of a node, by their servers. An ensemble that nobody uses any more is closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ensembles(Arc<Mutex<BTreeMap<String, Weak<Remote>>>>);

impl Ensembles {
    /// Returns the ensemble with these servers. It connects with the first request. The session timeout counts only for a new one.
    pub(crate) fn ensemble(&self, connect: &str, session_timeout: Duration) -> Arc<dyn Ensemble> {
        let mut all = lock(&self.0);
        if let Some(open) = all.get(connect).and_then(Weak::upgrade) {
            return open;
        }
        all.retain(|_, remote| remote.strong_count() > 0);
        let remote = Arc::new(Remote {
            connect: connect.to_owned(),
            session_timeout,
            work: Mutex::new(None),
            load: Arc::default(),
        });
        all.insert(connect.to_owned(), Arc::downgrade(&remote));
        remote
    }
}

type Answers = Vec<Result<Answer, Fault>>;

/// What the thread is to do.
enum Work {
    Send { requests: Vec<Request>, done: Completer<Answers>, load: Load },
    Wait { seen: Vec<(String, i32)>, patience: Duration, done: Completer<Result<(), Fault>>, load: Load },
}

/// A part of the requests in flight. It ends when it is dropped.
struct Load(usize, Arc<AtomicUsize>);

impl Load {
    fn of(count: usize, all: &Arc<AtomicUsize>) -> Option<Self> {
        let before = all.fetch_add(count, Ordering::Relaxed);
        let load = Load(count, all.clone());
        // An empty ensemble takes a call of any size.
        (before == 0 || before + count <= MAX_REQUESTS).then_some(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// An ensemble that a thread of this process talks to.
struct Remote {
    connect: String,
    session_timeout: Duration,
    /// The way to the thread. None until the first request, and after the thread could not be started.
    work: Mutex<Option<UnboundedSender<Work>>>,
    load: Arc<AtomicUsize>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.connect)
    }
}

impl Remote {
    fn give(&self, work: Work) -> Result<(), Work> {
        let mut sender = lock(&self.work);
        let sender = sender.get_or_insert_with(|| {
            let (sender, receiver) = unbounded_channel();
            let (connect, timeout) = (self.connect.clone(), self.session_timeout);
            let thread = std::thread::Builder::new().name("zookeeper".to_owned());
            // If there is no thread, the receiver is gone, and so every request is refused.
            if let Err(error) = thread.spawn(move || run(&connect, timeout, receiver)) {
                tracing::error!(%error, "there is no thread for the session with ZooKeeper");
            }
            sender
        });
        // The number of items is bounded by the load.
        sender.send(work).map_err(|refused| refused.0)
    }
}

impl Ensemble for Remote {
    fn send(&self, requests: Vec<Request>) -> Ticket<Answers> {
        let count = requests.len();
        let (done, wait) = ticket();
        let Some(load) = Load::of(count, &self.load) else {
            return Ticket::ready(vec![Err(Fault::Busy); count]);
        };
        if let Err(work) = self.give(Work::Send { requests, done, load }) {
            work.refuse();
        }
        wait
    }

    fn wait(&self, seen: Vec<(String, i32)>, patience: Duration) -> Ticket<Result<(), Fault>> {
        let (done, wait) = ticket();
        let Some(load) = Load::of(seen.len(), &self.load) else {
            return Ticket::ready(Err(Fault::Busy));
        };
        if let Err(work) = self.give(Work::Wait { seen, patience, done, load }) {
            work.refuse();
        }
        wait
    }
}

impl Work {
    /// Answers that nothing was sent.
    fn refuse(self) {
        match self {
            Work::Send { requests, done, .. } => {
                done.complete(vec![Err(Fault::NotConnected); requests.len()]);
            }
            Work::Wait { done, .. } => done.complete(Err(Fault::NotConnected)),
        }
    }
}

/// Does the work of an ensemble until nobody has any more.
fn run(connect: &str, timeout: Duration, work: UnboundedReceiver<Work>) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(serve(connect, timeout, work)),
        Err(error) => tracing::error!(%error, "there is no runtime for the session with ZooKeeper"),
    }
}

async fn serve(connect: &str, timeout: Duration, mut work: UnboundedReceiver<Work>) {
    let mut session: Option<Client> = None;
    // Bounded by the load. They are completed also if nobody uses the ensemble any more: their callers wait for the answers alone.
    let mut under_way = JoinSet::new();
    while let Some(next) = work.recv().await {
        while under_way.try_join_next().is_some() {}
        if session.as_ref().is_none_or(|client| client.state().is_terminated()) {
            let connector = Client::connector().with_session_timeout(timeout).with_fail_eagerly();
            session = match tokio::time::timeout(timeout, connector.connect(connect)).await {
                Ok(Ok(client)) => Some(client),
                failed => {
                    let why =
                        failed.map_or_else(|_| "it takes too long".to_owned(), |r| format!("{:?}", r.err()));
                    tracing::warn!(connect, why, "cannot connect to ZooKeeper");
                    None
                }
            };
        }
        let Some(client) = session.clone() else {
            // Whatever came in the meantime would only wait for the next attempt.
            next.refuse();
            while let Ok(also) = work.try_recv() {
                also.refuse();
            }
            continue;
        };
        let mut doing: Pin<Box<dyn Future<Output = ()> + Send>> = match next {
            Work::Send { requests, done, load } => Box::pin(async move {
                done.complete(send(&client, requests).await);
                drop(load);
            }),
            Work::Wait { seen, patience, done, load } => Box::pin(async move {
                let waited = tokio::time::timeout(patience, changed(&client, seen)).await;
                done.complete(waited.unwrap_or(Ok(())));
                drop(load);
            }),
        };
        // The first poll hands all requests to the session, in the order of the work. Everything else may happen in any order.
        let first = std::future::poll_fn(|cx| Poll::Ready(doing.as_mut().poll(cx))).await;
        if first.is_pending() {
            under_way.spawn(doing);
        }
    }
    while under_way.join_next().await.is_some() {}
}

type Asked<'a> = Pin<Box<dyn Future<Output = Result<Answer, Fault>> + Send + 'a>>;

/// Hands all requests to the session before it waits for the first answer.
async fn send(client: &Client, requests: Vec<Request>) -> Answers {
    let asked: Vec<Asked<'_>> = requests.iter().map(|request| ask(client, request)).collect();
    let mut answers = Vec::with_capacity(asked.len());
    for one in asked {
        answers.push(one.await);
    }
    answers
}

fn ask<'a>(client: &'a Client, request: &Request) -> Asked<'a> {
    match request {
        Request::Write(ops) => {
            let commit = multi(client, ops).map(|mut writer| writer.commit());
            Box::pin(async move {
                match commit {
                    Ok(commit) => {
                        commit.await.map(|_| Answer::Written).map_err(|error| fault(&of_multi(error)))
                    }
                    Err(error) => Err(Fault::Denied(error.to_string())),
                }
            })
        }
        Request::Get(path) => {
            let got = client.get_data(path);
            Box::pin(async move {
                match got.await {
                    Ok((data, stat)) => Ok(Answer::Node(Some(node(data, &stat)))),
                    Err(Error::NoNode) => Ok(Answer::Node(None)),
                    Err(error) => Err(fault(&error)),
                }
            })
        }
        Request::Children(path) => {
            let got = client.get_children(path);
            Box::pin(async move {
                match got.await {
                    Ok((names, _)) => Ok(Answer::Children(Some(names))),
                    Err(Error::NoNode) => Ok(Answer::Children(None)),
                    Err(error) => Err(fault(&error)),
                }
            })
        }
    }
}

fn node(data: Vec<u8>, stat: &Stat) -> Node {
    Node { data: Bytes::from(data), version: stat.version, mzxid: stat.mzxid }
}

fn multi<'a>(client: &'a Client, ops: &[Op]) -> Result<zookeeper_client::MultiWriter<'a>, Error> {
    let mut writer = client.new_multi_writer();
    for op in ops {
        match op {
            Op::Check { path, version } => writer.add_check_version(path, *version)?,
            Op::Create { path, data } => {
                writer.add_create(path, data, &CreateMode::Persistent.with_acls(Acls::anyone_all()))?;
            }
            Op::Set { path, data, version } => writer.add_set_data(path, data, *version)?,
            Op::Delete { path } => writer.add_delete(path, None)?,
        }
    }
    Ok(writer)
}

fn of_multi(error: MultiWriteError) -> Error {
    match error {
        MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. } => source,
    }
}

/// Returns what an error says about a request. Whatever does not say for certain that nothing happened is unknown.
fn fault(error: &Error) -> Fault {
    match error {
        Error::NoNode => Fault::Refused(Refusal::Missing),
        Error::BadVersion => Fault::Refused(Refusal::Version),
        Error::NodeExists => Fault::Refused(Refusal::Exists),
        Error::NotEmpty => Fault::Refused(Refusal::NotEmpty),
        Error::NoAuth
        | Error::InvalidAcl
        | Error::QuotaExceeded
        | Error::Throttled
        | Error::NotReadOnly
        | Error::Unimplemented
        | Error::BadArguments(_) => Fault::Denied(error.to_string()),
        _ => Fault::Lost,
    }
}

/// Waits until one of these znodes is at another version.
async fn changed(client: &Client, seen: Vec<(String, i32)>) -> Result<(), Fault> {
    let got: Vec<_> = seen.iter().map(|(path, _)| client.get_and_watch_data(path)).collect();
    let mut watches = Vec::with_capacity(got.len());
    for (one, (_, version)) in got.into_iter().zip(&seen) {
        match one.await {
            Ok((_, stat, watch)) if stat.version == *version => watches.push(Box::pin(watch.changed())),
            Ok(_) | Err(Error::NoNode) => return Ok(()),
            Err(error) => return Err(fault(&error)),
        }
    }
    if !watches.is_empty() {
        select_all(watches).await;
    }
    Ok(())
}

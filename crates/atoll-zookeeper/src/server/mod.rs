//! The door itself: connections of ZooKeeper clients.
//!
//! A connection is one task. It reads the input that is there, proposes writes without waiting for each other, answers reads from
//! the published view once all earlier requests of its session are answered, and writes all output of a turn at once. There is no
//! task per request, and no lock is held across an await.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the door: listener, what its connections share |
//! | `options.rs` | how it behaves |
//! | `admission.rs` | which connections come in |
//! | `handshake.rs` | a new connection: four letters, or a session |
//! | `connection.rs`, `answers.rs` | the turn of an established connection; its answers in order |
//! | `pending.rs`, `order.rs` | requests that are not answered yet, in order; which write waits for which read; `sync` and read-your-writes |
//! | `reads.rs`, `watching.rs` | requests that are answered from the view |
//! | `walk.rs` | reads of many keys, step by step |
//! | `turn.rs` | how much a connection may do before the others get their turn |
//! | `tls.rs`, `subject.rs` | TLS, and the name in a client's certificate |
//! | `sasl.rs`, `digest_md5.rs` | SASL |
//! | `writes.rs`, `room.rs`, `counted.rs` | requests that go into the log: checked, made whole; large ones in turn |
//! | `frame.rs` | frames of replies |
//! | `housekeeping.rs` | expiry, takeover, containers |
//! | `membership.rs` | keeps `/zookeeper/config` true |
//! | `read_only.rs` | reads without the log |
//! | `words.rs` | the four-letter words |
//! | `admin/` | ZooKeeper's AdminServer |
//! | `figures.rs`, `latency.rs` | counts |
//! | `monitor.rs` | all figures under ZooKeeper's names |

pub mod admin;
mod admission;
mod answers;
mod connection;
mod counted;
pub mod digest_md5;
pub mod figures;
pub(crate) mod frame;
mod handshake;
mod housekeeping;
pub mod latency;
pub mod membership;
pub mod monitor;
pub mod options;
mod order;
mod pending;
mod read_only;
mod reads;
mod room;
mod sasl;
mod subject;
pub mod tls;
mod turn;
mod walk;
mod watching;
mod window;
mod words;
mod writes;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::NodeId;
use atoll_db::{Engine, LogPos, Observer, View};
use ring::rand::SecureRandom;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinError;
use tokio_rustls::TlsAcceptor;

use crate::command::PASSWORD_BYTES;
use crate::event::Event;
use crate::jute::records::ConnectRequest;
use crate::session::keeper::Sessions;
use crate::tree::ZooKeeper;
use crate::tree::read::{self, ReadError};
use crate::watch::outbox::End;
use crate::watch::table::Limits;
use crate::watch::{ConnectionId, Watches};
use figures::{ConnectionFigures, Figures};
use membership::Addresses;
use options::Options;

pub use words::KNOWN as KNOWN_WORDS;

/// One line of the node's log reports this many writes above a quota.
const QUOTA_TOLD_EVERY: u64 = 1_000;

/// What a door needs to know of the cluster.
pub trait Cluster: Send + Sync {
    /// The nodes that seem to be alive and whose replica is in service; this one among them in any case.
    fn living(&self) -> Vec<NodeId>;

    /// How many nodes belong to it, alive or not.
    fn members(&self) -> usize {
        self.living().len()
    }

    /// Whether this node orders the entries of the log: what ZooKeeper calls the leader.
    fn leads(&self) -> bool {
        false
    }

    /// Fills a new session's password with random bytes; false if there are none. The system's, unless a host has its own.
    fn draw_password(&self, password: &mut [u8; PASSWORD_BYTES]) -> bool {
        ring::rand::SystemRandom::new().fill(password).is_ok()
    }

    /// What the clock on the wall shows, milliseconds since the Unix epoch. The system's, unless a host has its own.
    fn wall_ms(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns whether long work may run on threads other than the node's. Not in a simulator: the machine would decide when such a
    /// thread finishes, and a seed would no longer determine one run.
    fn has_threads(&self) -> bool {
        true
    }

    /// This node's disk is nearly full: writes that make the data grow are refused.
    fn is_short_of_space(&self) -> bool {
        false
    }

    /// All of them by id; none where that is not known.
    fn member_ids(&self) -> Vec<NodeId> {
        Vec::new()
    }

    /// Where this node is reached; None keeps it out of `/zookeeper/config`.
    fn addresses(&self) -> Option<Addresses> {
        None
    }
}

/// What the connections of a node share.
pub(crate) struct Shared {
    pub(crate) engine: Engine<ZooKeeper>,
    pub(crate) options: Options,
    pub(crate) watches: Watches,
    pub(crate) sessions: Sessions,
    pub(crate) figures: Figures,
    pub(crate) walks: walk::Walks,
    pub(crate) room: room::Room,
    pub(crate) window: window::Window,
    cluster: Arc<dyn Cluster>,
    /// See `read_only.rs`.
    read_only: AtomicBool,
    /// The newest change whose events were handed out: never older than any published view.
    zxid: AtomicI64,
    admission: admission::Admission,
    connections: Mutex<BTreeMap<ConnectionId, Arc<ConnectionFigures>>>,
}

impl Shared {
    /// What replies tell as the newest change.
    pub(crate) fn zxid(&self) -> i64 {
        self.zxid.load(Ordering::Acquire)
    }

    /// The session timeout that a client gets.
    pub(crate) fn timeout_ms(&self, asked: &ConnectRequest<'_>) -> i32 {
        asked.timeout_ms.clamp(self.options.min_session_timeout_ms, self.options.max_session_timeout_ms)
    }

    pub(crate) fn connections(&self) -> MutexGuard<'_, BTreeMap<ConnectionId, Arc<ConnectionFigures>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Runs long work beside the node's thread (contracts X20). The work continues even if nobody waits for it any more.
    ///
    /// # Errors
    /// The work panicked, or the node stops.
    pub(crate) async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        if !self.cluster.has_threads() {
            return Ok(work());
        }
        tokio::task::spawn_blocking(work).await
    }

    /// Counts what is above its quota, and says so now and then.
    fn tell_quotas(&self, events: &[Event]) {
        for event in events {
            let Event::OverQuota { top, .. } = event else { continue };
            let before = self.figures.over_quota.get();
            self.figures.over_quota.add(1);
            if before.is_multiple_of(QUOTA_TOLD_EVERY) {
                tracing::warn!(path = top, writes = before + 1, "a subtree is above its quota");
            }
        }
    }
}

struct Follower(Arc<Shared>);

impl Observer<Event> for Follower {
    fn on_events(&self, below: LogPos, events: Vec<Event>) {
        self.0.watches.tell(below, &events);
        // Set this after the events: a reader of it finds the events of all changes up to it in its outbox.
        if let Some(newest) = events.iter().map(Event::zxid).max() {
            self.0.zxid.fetch_max(newest, Ordering::AcqRel);
        }
        self.0.tell_quotas(&events);
        events.iter().for_each(|event| self.0.sessions.tell(event));
    }

    /// Events are missing: the clients reconnect, bring their watches, and are notified of what they missed.
    fn on_restored(&self, _below: LogPos, view: &View) {
        if let Ok(counters) = read::counters(view) {
            self.0.zxid.store(counters.zxid, Ordering::Release);
        }
        if let Err(error) = self.0.sessions.refill(view) {
            tracing::error!(%error, "the sessions of ZooKeeper's clients cannot be read");
        }
        self.0.sessions.end_all(End::Closed);
    }
}

/// The ZooKeeper door of a node. Cheap to clone.
#[derive(Clone)]
pub struct Door(Arc<Shared>);

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZooKeeper door of node {}", self.0.engine.proposer().node)
    }
}

impl Door {
    /// A door over an engine, whose observer it becomes.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn open(
        engine: Engine<ZooKeeper>,
        cluster: Arc<dyn Cluster>,
        options: Options,
    ) -> Result<Door, ReadError> {
        let shared = Arc::new(Shared {
            watches: Watches::new(Limits {
                of_connection: options.max_watch_bytes_of_connection,
                of_all: options.max_watch_bytes,
            }),
            sessions: Sessions::new(engine.proposer()),
            figures: Figures::default(),
            walks: walk::Walks::default(),
            room: room::Room::default(),
            window: window::Window::default(),
            cluster,
            read_only: AtomicBool::new(false),
            zxid: AtomicI64::new(0),
            admission: admission::Admission::new(&options),
            connections: Mutex::default(),
            options,
            engine,
        });
        // Set the observer first, then take the view: changes that are applied in between are in both.
        shared.engine.observe(Arc::new(Follower(shared.clone())));
        // While the state is compared after a start nobody is shown it; the observer is notified if another state replaces it.
        let counters = read::counters(&shared.engine.view_for_door())?;
        shared.zxid.fetch_max(counters.zxid, Ordering::AcqRel);
        Ok(Door(shared))
    }

    /// Returns the observer that [`Door::open`] registered with the engine, for a host that wants to observe the events as well.
    pub fn observer(&self) -> Arc<dyn Observer<Event>> {
        Arc::new(Follower(self.0.clone()))
    }

    /// Serves one connection until it ends, if one more is allowed. Sessions are kept by [`Door::serve`], which runs besides.
    pub async fn serve_stream<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, peer: SocketAddr) {
        if let Some((id, figures)) = self.0.admit(peer) {
            handshake::serve(self.0.clone(), stream, id, figures).await;
        }
    }

    /// The figures of this door.
    pub fn metrics(&self) -> Vec<monitor::Metric> {
        monitor::metrics(&self.0)
    }

    /// Serves the admin commands over HTTP until `stop` is done. Anybody who reaches the port may run them, except those that carry
    /// the tree.
    pub async fn serve_admin(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        admin::serve(self.0.clone(), listener, stop).await;
    }

    /// Keeps the sessions of this node forever, for a host that accepts connections itself.
    pub async fn keep(&self) {
        housekeeping::run(self.0.clone()).await;
    }

    /// Serves connections until `stop` is done, and keeps the sessions of this node.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        self.serve_all(vec![Listening { listener, tls: None }], stop).await;
    }

    /// The same at several places.
    pub async fn serve_all(self, places: Vec<Listening>, stop: impl Future<Output = ()>) {
        let shared = self.0;
        let keeping = housekeeping::run(shared.clone());
        let accepting = futures_util::future::join_all(places.into_iter().map(|p| accept(&shared, p)));
        tokio::pin!(keeping, accepting, stop);
        tokio::select! {
            () = &mut stop => {}
            () = &mut keeping => {}
            _ = &mut accepting => {}
        }
        shared.sessions.end_all(End::Closed);
    }
}

/// Where connections come in.
pub struct Listening {
    /// The socket.
    pub listener: TcpListener,
    /// With TLS.
    pub tls: Option<TlsAcceptor>,
}

/// Accepts connections forever.
async fn accept(shared: &Arc<Shared>, at: Listening) {
    loop {
        match at.listener.accept().await {
            Ok((stream, peer)) => {
                let Some((id, figures)) = shared.admit(peer) else { continue };
                // Small replies must not wait for one another; a failure here shows in the connection.
                let _ = stream.set_nodelay(true);
                match &at.tls {
                    None => tokio::spawn(handshake::serve(shared.clone(), stream, id, figures)),
                    Some(tls) => tokio::spawn(tls::serve(shared.clone(), tls.clone(), stream, id, figures)),
                };
            }
            Err(error) => {
                // Out of file descriptors, say: it will not be better at once.
                tracing::warn!(%error, "the ZooKeeper door cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

//! The ZooKeeper door: it serves connections of ZooKeeper clients.
//!
//! A connection is one task. It reads the available input, proposes writes without waiting for earlier ones, answers reads from the
//! published view once all earlier requests of its session are answered, and writes all output of a turn at once. There is no task
//! per request, and no lock is held across an await.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the door: listeners, and the state that connections share |
//! | `options.rs` | options |
//! | `admission.rs` | limits on the number of connections |
//! | `handshake.rs` | a new connection: a four-letter word, or a session |
//! | `connection.rs`, `answers.rs` | the turns of an established connection; its answers in order |
//! | `pending.rs`, `order.rs` | the queue of unanswered requests; which writes wait for which reads; `sync` and read-your-writes |
//! | `reads.rs`, `watching.rs` | requests that are answered from the view |
//! | `part.rs` | reads of one node |
//! | `walk.rs`, `job.rs` | reads in steps that other threads make: of many keys, and of what is not in memory |
//! | `turn.rs` | how much a connection may do before the others get their turn |
//! | `tls.rs`, `subject.rs` | TLS, and the subject of a client's certificate |
//! | `sasl.rs`, `digest_md5.rs` | SASL |
//! | `writes.rs`, `room.rs`, `window.rs`, `counted.rs` | writes: checks, commands, and limits on large ones and on their number |
//! | `frame.rs` | frames of replies |
//! | `housekeeping.rs` | expiry, takeover, containers |
//! | `membership.rs` | maintains `/zookeeper/config` |
//! | `read_only.rs` | reads without the log |
//! | `words.rs`, `described.rs` | the four-letter words; what those about clients, settings and the system tell |
//! | `admin/` | ZooKeeper's AdminServer |
//! | `figures.rs`, `latency.rs` | counters and latencies |
//! | `monitor.rs` | all metrics, under ZooKeeper's names |

pub mod admin;
mod admission;
mod answers;
mod connection;
mod counted;
mod described;
pub mod digest_md5;
pub mod figures;
pub(crate) mod frame;
mod handshake;
mod housekeeping;
mod job;
pub mod latency;
pub mod membership;
pub mod monitor;
pub mod options;
mod order;
mod part;
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

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::{Incarnation, NodeId};
use atoll_db::{Engine, LogPos, Observer, View};
use atoll_socket::{Fresh, Handshakes, LimitedWarning};
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
use crate::tree::read::{self, OnlyInMemory, ReadError, Source};
use crate::watch::Watches;
use crate::watch::outbox::End;
use crate::watch::table::Limits;
use admission::Connections;
use figures::{ConnectionFigures, Figures};
use handshake::Ended;
use membership::Addresses;
use options::Options;

pub use words::KNOWN as KNOWN_WORDS;

/// Of this many writes above a quota, one is reported in the node's log output.
const QUOTA_WARN_EVERY: u64 = 1_000;

/// What a door needs to know about the cluster.
pub trait Cluster: Send + Sync {
    /// Returns the nodes that appear to be alive and whose replica is in service. Always includes this node.
    fn living(&self) -> Vec<NodeId>;

    /// Returns the life that another node is in, if this node has heard of it. Sessions that are held by an earlier life of that node
    /// have lost their holder, even if the node lives: it may run no such door any more.
    fn life(&self, _node: NodeId) -> Option<Incarnation> {
        None
    }

    /// Returns the number of the cluster's nodes, alive or not.
    fn members(&self) -> usize {
        self.living().len()
    }

    /// Returns whether this node sequences the log. ZooKeeper calls that node the leader.
    fn leads(&self) -> bool {
        false
    }

    /// Fills a new session's password with random bytes; returns false if none are available. Uses the operating system's random
    /// numbers unless a host overrides it.
    fn draw_password(&self, password: &mut [u8; PASSWORD_BYTES]) -> bool {
        ring::rand::SystemRandom::new().fill(password).is_ok()
    }

    /// Returns the wall-clock time in milliseconds since the Unix epoch. Uses the operating system's clock unless a host overrides
    /// it.
    fn wall_ms(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns whether long work may run on threads other than the node's. Not in a simulator: the machine would decide when such a
    /// thread finishes, and a seed would no longer determine one run.
    fn has_threads(&self) -> bool {
        true
    }

    /// Returns how long such work takes where there are no other threads. It is done at the end of that time.
    fn work_takes(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns for how long the oldest unapplied entry of the log has been waiting at the slowest of the other replicas in service, as
    /// far as this node knows.
    fn longest_apply_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether this node's disk is nearly full. Writes that would add data are then refused.
    fn is_short_of_space(&self) -> bool {
        false
    }

    /// Returns the ids of all nodes of the cluster, or an empty list if they are not known.
    fn member_ids(&self) -> Vec<NodeId> {
        Vec::new()
    }

    /// Returns the addresses of this node. None keeps the node out of `/zookeeper/config`.
    fn addresses(&self) -> Option<Addresses> {
        None
    }
}

/// The state that the connections of a node share.
pub(crate) struct Shared {
    pub(crate) engine: Engine<ZooKeeper>,
    pub(crate) options: Options,
    pub(crate) watches: Watches,
    pub(crate) sessions: Sessions,
    pub(crate) figures: Figures,
    pub(crate) walks: walk::Walks,
    /// The connections that have more to do than fits into their turns.
    pub(crate) crowd: turn::Crowd,
    pub(crate) room: room::Room,
    pub(crate) window: window::Window,
    cluster: Arc<dyn Cluster>,
    /// Whether reads are served without the log (see `read_only.rs`).
    read_only: AtomicBool,
    /// The zxid of the newest change whose events were handed out. Never older than any published view.
    zxid: AtomicI64,
    admission: admission::Admission,
    connections: Mutex<Connections>,
    /// The TLS handshakes of clients.
    handshakes: Handshakes,
    /// Where clients reach this node.
    ports: OnceLock<Ports>,
    /// ZooKeeper's trace mask, which has no effect here.
    trace_mask: AtomicI64,
}

/// The ports for clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ports {
    pub(crate) plain: Option<u16>,
    pub(crate) secure: Option<u16>,
}

impl Shared {
    /// Returns the zxid of the newest change, which replies report.
    pub(crate) fn zxid(&self) -> i64 {
        self.zxid.load(Ordering::Acquire)
    }

    /// Returns the session timeout that the client is granted, in milliseconds.
    pub(crate) fn timeout_ms(&self, asked: &ConnectRequest<'_>) -> i32 {
        asked.timeout_ms.clamp(self.options.min_session_timeout_ms, self.options.max_session_timeout_ms)
    }

    pub(crate) fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of all connections, for whoever takes longer than the lock may be held.
    pub(crate) fn all_connections(&self) -> Vec<Arc<ConnectionFigures>> {
        self.connections().values().cloned().collect()
    }
}

impl Shared {
    /// Runs long work on another thread than the node's (contracts X20). The work continues even if nobody waits for it any more.
    ///
    /// # Errors
    /// The work panicked, or the node is stopping.
    pub(crate) async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        if !self.cluster.has_threads() {
            let takes = self.cluster.work_takes();
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            return Ok(work());
        }
        tokio::task::spawn_blocking(work).await
    }

    /// Reads from memory if everything is there, and otherwise on another thread, which may wait for the disk.
    ///
    /// # Errors
    /// The store cannot be read, or the node is stopping.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        view: View,
        read: impl Fn(&dyn Source) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Ended> {
        match read(&OnlyInMemory(&view)) {
            Err(ReadError::OnDisk) => {
                let done = self.beside(move || read(&view)).await;
                Ok(done.map_err(|e| Ended::Log(e.to_string()))??)
            }
            done => Ok(done?),
        }
    }

    /// Counts writes above a quota, and logs a warning for some of them.
    fn report_quotas(&self, events: &[Event]) {
        for event in events {
            let Event::OverQuota { top, .. } = event else { continue };
            let before = self.figures.over_quota.get();
            self.figures.over_quota.add(1);
            if before.is_multiple_of(QUOTA_WARN_EVERY) {
                tracing::warn!(path = top, writes = before + 1, "a subtree is above its quota");
            }
        }
    }
}

struct Follower(Arc<Shared>);

impl Observer<Event> for Follower {
    fn on_events(&self, below: LogPos, events: Vec<Event>) {
        hand_out(&self.0.watches, &self.0.sessions, &self.0.zxid, below, &events);
        self.0.report_quotas(&events);
    }

    /// Disconnects all clients, because events are missing. They reconnect, register their watches again, and are notified of what
    /// they missed.
    fn on_restored(&self, _below: LogPos, view: &View) {
        if let Err(error) = self.0.sessions.refill(view) {
            tracing::error!(%error, "the sessions of ZooKeeper's clients cannot be read");
        }
        self.0.watches.end_all(End::Closed);
        // Last, for the reason given in `hand_out`.
        if let Ok(counters) = read::counters(view) {
            self.0.zxid.store(counters.zxid, Ordering::Release);
        }
    }
}

/// Hands out the events of entries below `below`: to the connections that watch the nodes, and to those whose sessions they concern.
fn hand_out(watches: &Watches, sessions: &Sessions, zxid: &AtomicI64, below: LogPos, events: &[Event]) {
    watches.trigger(below, events);
    events.iter().for_each(|event| sessions.apply(event));
    if events.iter().any(|event| matches!(event, Event::Restored { .. })) {
        // Also those that are served without the log, and those that have no session yet.
        watches.end_all(End::Closed);
    }
    // Set this last. Whoever reads it then finds the events of all changes up to it in its outbox, or the outbox has ended. If a client
    // were told the zxid of a restore by a connection that continues, it would come back with it, and its watches would not report
    // what the restore has changed.
    if let Some(newest) = events.iter().map(Event::zxid).max() {
        zxid.fetch_max(newest, Ordering::AcqRel);
    }
}

/// The ZooKeeper door of a node. Cloning it is cheap.
#[derive(Clone)]
pub struct Door(Arc<Shared>);

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZooKeeper door of node {}", self.0.engine.proposer().node)
    }
}

impl Door {
    /// Opens a door over an engine and registers the door as the engine's observer.
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
            crowd: turn::Crowd::default(),
            room: room::Room::default(),
            window: window::Window::default(),
            cluster,
            read_only: AtomicBool::new(false),
            zxid: AtomicI64::new(0),
            admission: admission::Admission::new(&options),
            connections: Mutex::default(),
            handshakes: Handshakes::default(),
            ports: OnceLock::new(),
            trace_mask: AtomicI64::new(words::FIRST_MASK),
            options,
            engine,
        });
        // Register the observer first and then take the view: changes that are applied in between reach both.
        shared.engine.observe(Arc::new(Follower(shared.clone())));
        // During the start check nobody is shown the state. If another state replaces it, the observer is notified.
        let counters = read::counters(&shared.engine.view_for_door())?;
        shared.zxid.fetch_max(counters.zxid, Ordering::AcqRel);
        Ok(Door(shared))
    }

    /// Returns the observer that [`Door::open`] registered with the engine, for a host that wants to observe the events as well.
    pub fn observer(&self) -> Arc<dyn Observer<Event>> {
        Arc::new(Follower(self.0.clone()))
    }

    /// Serves one connection until it ends, if another one is admitted. The sessions need [`Door::serve`] or [`Door::keep`] to run
    /// as well.
    pub async fn serve_stream<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, peer: SocketAddr) {
        if let Some((id, figures)) = self.0.admit(peer) {
            handshake::serve(self.0.clone(), stream, id, figures).await;
        }
    }

    /// Returns the metrics of this door.
    pub fn metrics(&self) -> Vec<monitor::Metric> {
        monitor::metrics(&self.0)
    }

    /// Serves the admin commands over HTTP until `stop` completes. Anyone who can reach the port may run them, except for the
    /// commands that transfer the tree.
    pub async fn serve_admin(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        admin::serve(self.0.clone(), listener, stop).await;
    }

    /// Maintains the sessions of this node, forever. For a host that accepts connections itself.
    pub async fn keep(&self) {
        housekeeping::run(self.0.clone()).await;
    }

    /// Serves connections and maintains the sessions of this node until `stop` completes.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        self.serve_all(vec![Listening { listener, tls: None }], stop).await;
    }

    /// Like [`Door::serve`], with several listeners.
    pub async fn serve_all(self, places: Vec<Listening>, stop: impl Future<Output = ()>) {
        let shared = self.0;
        let port = |secure: bool| {
            let place = places.iter().find(|place| place.tls.is_some() == secure);
            place.and_then(|place| place.listener.local_addr().ok()).map(|address| address.port())
        };
        // Whoever serves a door twice keeps the first ports.
        let _ = shared.ports.set(Ports { plain: port(false), secure: port(true) });
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

/// A listener for client connections.
pub struct Listening {
    /// The socket.
    pub listener: TcpListener,
    /// The TLS acceptor, if the connections use TLS.
    pub tls: Option<Arc<Fresh<TlsAcceptor>>>,
}

/// Accepts connections forever.
async fn accept(shared: &Arc<Shared>, at: Listening) {
    let mut failed = LimitedWarning::default();
    loop {
        match at.listener.accept().await {
            Ok((stream, peer)) => {
                let Some((id, figures)) = shared.admit(peer) else { continue };
                // A small reply must not wait for the next one. If this fails, the connection itself will show it.
                let _ = atoll_socket::tune(&stream);
                match &at.tls {
                    None => tokio::spawn(handshake::serve(shared.clone(), stream, id, figures)),
                    Some(tls) => {
                        let tls = (*tls.get()).clone();
                        tokio::spawn(tls::serve(shared.clone(), tls, stream, id, figures))
                    }
                };
            }
            Err(error) => {
                // For example, no file descriptors are left. An immediate retry would fail, too.
                if let Some(times) = failed.pass() {
                    tracing::warn!(%error, times, "the ZooKeeper door cannot accept");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::task::{Wake, Waker};

    use super::*;
    use crate::watch::outbox::Outbox;
    use crate::watch::table::Limits;

    /// What a connection sees when it is woken.
    struct Woken {
        zxid: Arc<AtomicI64>,
        late: AtomicU64,
        times: AtomicU64,
    }

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.times.fetch_add(1, Ordering::SeqCst);
            self.late.fetch_add(u64::from(self.zxid.load(Ordering::SeqCst) >= 2), Ordering::SeqCst);
        }
    }

    /// Until a connection has ended, its thread may serve a read with the zxid that it finds.
    #[test]
    fn nobody_is_told_the_zxid_of_a_restore_by_a_connection_that_continues() {
        const CLIENTS: u64 = 10;
        let me = atoll_db::Proposer { node: NodeId(1), incarnation: Incarnation(1) };
        let (sessions, zxid) = (Sessions::new(me), Arc::new(AtomicI64::new(0)));
        let watches = Watches::new(Limits { of_connection: 1 << 20, of_all: 1 << 20 });
        let woken = Arc::new(Woken { zxid: zxid.clone(), late: AtomicU64::new(0), times: AtomicU64::new(0) });
        let outboxes: Vec<_> = (0..CLIENTS).map(|_| Arc::new(Outbox::default())).collect();
        for (id, outbox) in (0..).zip(&outboxes) {
            watches.join(id, outbox.clone());
            outbox.register(&Waker::from(woken.clone()));
            // The first one is served without the log, so no session that this node holds is bound to it.
            if id > 0 {
                let (session, moves) = (id as i64, 0);
                let (timeout_ms, by_client, zxid) = (1_000, true, 1);
                sessions.apply(&Event::SessionHeld { session, by: me, moves, timeout_ms, by_client, zxid });
                assert!(sessions.bind(session, moves, id, outbox).is_some());
            }
        }
        hand_out(&watches, &sessions, &zxid, LogPos(2), &[Event::Restored { zxid: 2 }]);
        assert_eq!(zxid.load(Ordering::SeqCst), 2);
        assert!(outboxes.iter().all(|outbox| outbox.ended().is_some()));
        assert!(woken.times.load(Ordering::SeqCst) >= CLIENTS);
        assert_eq!(
            woken.late.load(Ordering::SeqCst),
            0,
            "connections that ended after the zxid was there to be told"
        );
    }
}

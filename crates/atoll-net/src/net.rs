//! The network of one node: routes envelopes to connections and keeps the address book.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::env::Refused;
use atoll_core::level::since;
use atoll_core::{Class, Envelope, Exchange, Link, Message, NodeId, Outgoing, roles};
use atoll_socket::{Fresh, Handshakes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::conn::Conn;
use crate::handshake::{Hello, Identity, MAX_CLUSTER_BYTES, Refusal, RefusalCode};
use crate::inbox::{Inbox, NetEvent, NetEvents};
use crate::listen::{ListenRefused, check_listener};
use crate::options::NetOptions;
use crate::stats::{Counters, NetStats, Throttle, count};
use crate::tls::{Tls, TlsError};
use crate::wire::{Limits, REQUEST_BITS, Wire};

const CLASSES: [Class; 2] = [Class::Control, Class::Data];

/// Why the network did not start. Nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The listener cannot be opened.
    #[error("listening on {address}: {error}")]
    Listen {
        /// The address as configured.
        address: String,
        /// The error.
        error: std::io::Error,
    },
    /// The listener would be plaintext beyond loopback.
    #[error(transparent)]
    Refused(#[from] ListenRefused),
    /// The PEM files cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// No peer would accept the cluster name.
    #[error("the cluster name has {0} bytes; 1 to {MAX_CLUSTER_BYTES} are allowed")]
    Cluster(usize),
}

struct Peer {
    address: String,
    dialers: Vec<AbortHandle>,
    /// Notified when the peer connects to this node. It is back, so the pause before the next attempt ends.
    back: Arc<Notify>,
}

#[derive(Default)]
struct NetState {
    peers: BTreeMap<NodeId, Peer>,
    dialed: BTreeMap<(NodeId, Class), Arc<Conn>>,
    accepted: BTreeMap<(NodeId, Class), Arc<Conn>>,
    /// The last life of each peer that was reported to the host.
    lives: BTreeMap<NodeId, Identity>,
    next_generation: u16,
    acceptor: Option<AbortHandle>,
    stopping: bool,
}

pub(crate) struct Shared {
    pub(crate) options: NetOptions,
    pub(crate) tls: Option<Arc<Fresh<Tls>>>,
    pub(crate) handshakes: Handshakes,
    pub(crate) local: SocketAddr,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Counters,
    pub(crate) log_garbage: Throttle,
    pub(crate) log_refused: Throttle,
    pub(crate) log_accept: Throttle,
    log_dropped: Throttle,
    state: Mutex<NetState>,
}

/// A handle to the network of this node. Cheap to clone. The network runs until [`Net::shutdown`] or [`Net::close`].
#[derive(Clone)]
pub struct Net(Arc<Shared>);

impl Net {
    /// Opens the listener and starts to accept connections. Peers are dialed once [`Net::set_peers`] names them, and only peers are
    /// admitted. Runs on the current runtime.
    pub async fn start(options: NetOptions) -> Result<(Net, NetEvents), StartError> {
        if options.cluster.is_empty() || options.cluster.len() > MAX_CLUSTER_BYTES {
            return Err(StartError::Cluster(options.cluster.len()));
        }
        let tls = options.tls.as_ref().map(|files| Tls::load_fresh(files, options.node)).transpose()?;
        let listener = open_listener(&options).await?;
        let failed = |error| StartError::Listen { address: options.listen.clone(), error };
        let local = listener.local_addr().map_err(failed)?;
        let inbox = Arc::new(Inbox::new(options.inbox_bytes));
        let shared = Arc::new(Shared {
            tls,
            handshakes: Handshakes::default(),
            local,
            inbox: inbox.clone(),
            counters: Counters::default(),
            log_garbage: Throttle::default(),
            log_refused: Throttle::default(),
            log_accept: Throttle::default(),
            log_dropped: Throttle::default(),
            state: Mutex::default(),
            options,
        });
        let acceptor = tokio::spawn(crate::accept::run(shared.clone(), listener));
        shared.lock().acceptor = Some(acceptor.abort_handle());
        Ok((Net(shared), NetEvents(inbox)))
    }

    /// Returns the address on which this node listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    /// Returns the counters since start.
    pub fn stats(&self) -> NetStats {
        self.0.counters.snapshot()
    }

    /// Returns the bytes in the send queue of each connection.
    pub fn queued(&self) -> Vec<(NodeId, Class, usize)> {
        let state = self.0.lock();
        let conns = state.dialed.values().chain(state.accepted.values());
        conns.map(|c| (c.peer, c.class, c.queued_bytes())).collect()
    }

    /// Returns the events that wait for the host, per class: number and bytes.
    pub fn waiting(&self) -> [(Class, usize, usize); 2] {
        self.0.inbox.waiting()
    }

    /// Sets the nodes to connect to, with their addresses (`host:port`). All other nodes are disconnected and refused. If an address has
    /// changed, the new one is dialed at once. The list may contain this node itself.
    pub fn set_peers(&self, peers: BTreeMap<NodeId, String>) {
        let mut state = self.0.lock();
        if state.stopping {
            return;
        }
        let gone: Vec<NodeId> = state
            .peers
            .iter()
            .filter(|(id, p)| peers.get(*id) != Some(&p.address))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(peer) = state.peers.remove(&id) {
                peer.dialers.iter().for_each(AbortHandle::abort);
            }
            for class in CLASSES {
                if let Some(conn) = state.dialed.get(&(id, class)).cloned() {
                    conn.close("the peer's address has changed");
                    self.0.forget_dialed(&mut state, &conn);
                }
            }
            if !peers.contains_key(&id) {
                state.lives.remove(&id);
                for class in CLASSES {
                    if let Some(conn) = state.accepted.remove(&(id, class)) {
                        conn.close("the peer was removed");
                    }
                }
            }
        }
        for (id, address) in peers {
            if id == self.0.options.node || state.peers.contains_key(&id) {
                continue;
            }
            let back = Arc::new(Notify::new());
            let dial = |class| {
                let dialer = crate::dial::run(self.0.clone(), id, class, address.clone(), back.clone());
                tokio::spawn(dialer).abort_handle()
            };
            let dialers = CLASSES.map(dial).into();
            state.peers.insert(id, Peer { address, dialers, back });
        }
    }

    /// Queues envelopes on their connections without waiting. An envelope without a connection is dropped; a [`NetEvent::Link`] tells the
    /// core that the connection is down. If a request does not fit, the core gets a reply that says that it was not sent.
    pub fn send(&self, frames: impl IntoIterator<Item = Outgoing>) {
        let state = self.0.lock();
        for outgoing in frames {
            self.0.route(&state, outgoing);
        }
    }

    /// Ends all connections once their queues are written, or after `patience`. Events that already wait can still be read; no more follow.
    pub async fn shutdown(&self, patience: Duration) {
        let conns: Vec<Arc<Conn>> = {
            let mut state = self.0.lock();
            state.stopping = true;
            state.dialed.values().chain(state.accepted.values()).cloned().collect()
        };
        conns.iter().for_each(|c| c.finish());
        let drained = async {
            for conn in &conns {
                conn.closed().await;
            }
        };
        let _ = tokio::time::timeout(patience, drained).await;
        self.close();
    }

    /// Ends all connections at once, without writing their queues. For a node that cannot continue.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.stopping = true;
        // Accepted connections end with the acceptor. A clean shutdown therefore keeps it until they have written their queues.
        state.acceptor.take().iter().for_each(AbortHandle::abort);
        for peer in std::mem::take(&mut state.peers).into_values() {
            peer.dialers.iter().for_each(AbortHandle::abort);
        }
        for conn in state.dialed.values().chain(state.accepted.values()) {
            conn.close("this node stops");
        }
        drop(state);
        self.0.inbox.close();
    }
}

async fn open_listener(options: &NetOptions) -> Result<TcpListener, StartError> {
    let failed = |error| StartError::Listen { address: options.listen.clone(), error };
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host(&options.listen).await.map_err(failed)?.collect();
    // Check all addresses of a name, so that none of them bypasses the check.
    for address in &addresses {
        check_listener(*address, options.tls.is_some(), options.allow_plaintext_beyond_loopback)?;
    }
    TcpListener::bind(&addresses[..]).await.map_err(failed)
}

/// A connection breaks if what was sent is not acknowledged for this long, and is dialed anew. While packets are lost again and again,
/// the kernel waits twice as long before each attempt, and a new connection is usually quicker. A peer whose process hangs
/// acknowledges until its buffers are full.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_FOR: Duration = Duration::from_secs(3);

/// Sets the options of a socket: frames are sent without delay, and again soon if they were lost, and an unreachable machine is noticed
/// even if nothing is sent to it.
pub(crate) fn tune(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(2))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    let set = atoll_socket::tune(stream).and_then(|()| socket.set_tcp_keepalive(&keepalive));
    #[cfg(target_os = "linux")]
    let set = set.and_then(|()| socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_FOR)));
    if let Err(error) = set {
        tracing::debug!(%error, "socket options");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn route(&self, state: &NetState, outgoing: Outgoing) {
        let Outgoing { to, class, envelope } = outgoing;
        if let Exchange::Reply(n) = envelope.exchange {
            return self.route_reply(state, to, class, n, envelope);
        }
        let Some(conn) = state.dialed.get(&(to, class)) else { return count(&self.counters.dropped) };
        if !conn.limits.allow(&envelope.frame)
            || matches!(envelope.exchange, Exchange::Request(n) if n >> REQUEST_BITS != 0)
        {
            count(&self.counters.oversized);
            let (kind, bytes) = (envelope.frame.kind, envelope.frame.size_bytes());
            tracing::error!(%to, kind, bytes, "a message that exceeds the limits was not sent");
            return self.refuse_here(to, class, envelope.exchange, "it is above the limits of a frame");
        }
        let exchange = envelope.exchange;
        let counted = matches!(exchange, Exchange::Request(_));
        if counted && !conn.begin_request() {
            count(&self.counters.dropped);
            if let Some(times) = self.log_dropped.pass() {
                tracing::warn!(%to, ?class, times, "requests not sent: the peer's limit of requests in flight is reached");
            }
            return self.refuse_here(
                to,
                class,
                exchange,
                "the peer's limit of requests in flight is reached",
            );
        }
        if conn.push(Wire::Envelope(envelope)).is_err() {
            if counted {
                conn.end_request();
            }
            count(&self.counters.dropped);
            if let Some(times) = self.log_dropped.pass() {
                tracing::warn!(%to, ?class, times, "messages dropped: the send queue is at twice its limit");
            }
            self.refuse_here(to, class, exchange, "the send queue is full");
        }
    }

    /// Sends a reply on the connection of its request, or drops it: a later life of the peer counts its requests from zero again.
    fn route_reply(&self, state: &NetState, to: NodeId, class: Class, n: u64, envelope: Envelope) {
        let conn = state.accepted.get(&(to, class)).filter(|c| u64::from(c.generation) == n >> REQUEST_BITS);
        let Some(conn) = conn else { return count(&self.counters.dropped_replies) };
        if !conn.limits.allow(&envelope.frame) {
            count(&self.counters.oversized);
            let (kind, bytes) = (envelope.frame.kind, envelope.frame.size_bytes());
            tracing::error!(%to, kind, bytes, "a reply exceeds the limits; closing its connection");
            return conn.close("a reply is above the limits of a frame");
        }
        conn.end_request();
        let exchange = Exchange::Reply(n & ((1 << REQUEST_BITS) - 1));
        if conn.push(Wire::Envelope(Envelope { exchange, frame: envelope.frame })).is_err()
            && !conn.is_closed()
        {
            // Without the reply, the call would wait forever. The closed connection notifies the peer (contracts X12).
            count(&self.counters.broken_by_full_replies);
            tracing::warn!(%to, ?class, "the peer does not read its replies; closing its connection");
            conn.close("the peer does not read its replies");
        }
    }

    /// Answers a request that was not sent with a reply that says so. A post is dropped, which is allowed for posts.
    fn refuse_here(&self, to: NodeId, class: Class, exchange: Exchange, why: &str) {
        if let Exchange::Request(n) = exchange {
            let frame = Refused { reason: format!("not sent: {why}") }.into_frame(roles::NONE);
            let envelope = Envelope { exchange: Exchange::Reply(n), frame };
            self.inbox.put(class, [NetEvent::Frame { from: to, class, envelope }]);
        }
    }

    /// Returns the hello of this node to `to`.
    pub(crate) fn hello(&self, to: NodeId, class: Class) -> Hello {
        let o = &self.options;
        Hello {
            cluster: o.cluster.clone(),
            node: o.node,
            to,
            identity: Identity { incarnation: o.incarnation, storage: o.storage },
            class,
            limits: Limits::OURS,
            highest: o.levels.reads().highest,
            durable: o.levels.allows(since::WITNESS).then(|| o.witness.own()),
        }
    }

    /// Decides whether to admit the node that sent the hello. If a node with the same id is connected in another life, first waits for an
    /// answer from it.
    pub(crate) async fn admit(&self, hello: &Hello, remote: SocketAddr) -> Result<(), Refusal> {
        self.admit_by_name(hello, remote)?;
        let others: Vec<Arc<Conn>> = {
            let state = self.lock();
            let conns = state.dialed.values().chain(state.accepted.values());
            conns.filter(|c| c.peer == hello.node && c.identity != hello.identity).cloned().collect()
        };
        for other in others {
            let answers = tokio::time::timeout(self.options.duplicate_probe_timeout, other.answers());
            if answers.await == Ok(true) {
                let (id, at, life) = (hello.node, other.remote, other.identity.incarnation);
                let reason = format!(
                    "node {id} is already connected from {at} (life {life}, data {}); two nodes have one id",
                    other.identity.storage
                );
                return Err(Refusal { code: RefusalCode::Duplicate, reason });
            }
            other.close("the peer has restarted");
        }
        Ok(())
    }

    fn admit_by_name(&self, hello: &Hello, remote: SocketAddr) -> Result<(), Refusal> {
        let o = &self.options;
        let refuse = |code, reason| Err(Refusal { code, reason });
        if o.rescued_from.as_ref() == Some(&hello.cluster) {
            let reason = format!(
                "cluster {:?} was rescued as {:?} without node {}: its data directory is not part of that and must not be used; move it \
                 away, and add the node again, as one of {:?} with an empty directory",
                hello.cluster, o.cluster, hello.node, o.cluster
            );
            return refuse(RefusalCode::PutBack, reason);
        }
        if hello.cluster != o.cluster {
            let reason = format!("this is cluster {:?}, not {:?}", o.cluster, hello.cluster);
            return refuse(RefusalCode::Cluster, reason);
        }
        if hello.to != o.node {
            let reason = format!("this is node {}, not node {}; an address is wrong", o.node, hello.to);
            return refuse(RefusalCode::WrongNode, reason);
        }
        if hello.node == o.node {
            if hello.identity.incarnation == o.incarnation {
                let reason = format!("the address of a peer is that of node {} itself", o.node);
                return refuse(RefusalCode::WrongNode, reason);
            }
            let reason = format!("node {} is this node, at {}; two nodes have one id", o.node, self.local);
            return refuse(RefusalCode::Duplicate, reason);
        }
        if !self.lock().peers.contains_key(&hello.node) {
            let reason =
                format!("node {} (from {remote}) is not a member that node {} knows", hello.node, o.node);
            return refuse(RefusalCode::UnknownNode, reason);
        }
        let active = o.levels.active();
        if hello.highest < active {
            let reason = format!(
                "node {} (from {remote}) runs a program that is too old: it reads feature levels up to {}, and the cluster is at level {active} since its upgrade was finished; start it with a program that reads level {active}",
                hello.node, hello.highest
            );
            return refuse(RefusalCode::Level, reason);
        }
        if let Some(durable) = hello.durable
            && let Err(back) =
                o.witness.check(hello.node, hello.identity.incarnation, hello.identity.storage, durable)
        {
            return refuse(RefusalCode::PutBack, back.to_string());
        }
        Ok(())
    }

    /// Registers a connection and closes an older one of the same peer, class and direction. Returns None if the peer was removed or this
    /// node stops.
    pub(crate) fn register(&self, hello: &Hello, dialed: bool, remote: SocketAddr) -> Option<Arc<Conn>> {
        let mut state = self.lock();
        if state.stopping || !state.peers.contains_key(&hello.node) {
            return None;
        }
        let generation = state.next_generation;
        state.next_generation = generation.wrapping_add(1);
        let conn = Arc::new(Conn::new(
            hello.node,
            hello.class,
            dialed,
            generation,
            remote,
            hello.identity,
            Limits::OURS.both(hello.limits),
            self.inbox.clone(),
            self.options.queue_bytes,
        ));
        let key = (conn.peer, conn.class);
        let old = if dialed { state.dialed.get(&key) } else { state.accepted.get(&key) }.cloned();
        if let Some(old) = old {
            old.close("replaced by a newer connection");
            self.forget(&mut state, &old);
        }
        if state.lives.insert(conn.peer, conn.identity) != Some(conn.identity) {
            self.inbox.put(conn.class, [NetEvent::Peer { peer: conn.peer, identity: conn.identity }]);
        }
        if dialed {
            state.dialed.insert(key, conn.clone());
            self.inbox
                .put(conn.class, [NetEvent::Link { peer: conn.peer, class: conn.class, link: Link::Up }]);
        } else {
            state.accepted.insert(key, conn.clone());
            if let Some(peer) = state.peers.get(&conn.peer) {
                peer.back.notify_waiters();
            }
        }
        Some(conn)
    }

    /// Closes a connection and removes it, unless it was removed before.
    pub(crate) fn unregister(&self, conn: &Arc<Conn>) {
        conn.close("the connection has ended");
        self.forget(&mut self.lock(), conn);
    }

    fn forget(&self, state: &mut NetState, conn: &Arc<Conn>) {
        if conn.dialed {
            return self.forget_dialed(state, conn);
        }
        let key = (conn.peer, conn.class);
        if state.accepted.get(&key).is_some_and(|c| Arc::ptr_eq(c, conn)) {
            state.accepted.remove(&key);
        }
    }

    /// Must be called after the connection is closed, so that only a new `Up` can follow this `Down`.
    fn forget_dialed(&self, state: &mut NetState, conn: &Arc<Conn>) {
        let key = (conn.peer, conn.class);
        if state.dialed.get(&key).is_some_and(|c| Arc::ptr_eq(c, conn)) {
            state.dialed.remove(&key);
            self.inbox
                .put(conn.class, [NetEvent::Link { peer: conn.peer, class: conn.class, link: Link::Down }]);
        }
    }
}

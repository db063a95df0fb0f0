//! The interface between a procedure and the world: time, randomness, other procedures, and calls to nodes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::codec::DecodeError;
use crate::frame::{Class, Envelope, Exchange, ForRole, Frame, Message, Outgoing, Rpc};
use crate::ids::{Incarnation, NodeId, RoleKind, Tick};
use crate::level::{Level, Levels};
use crate::ready::{Ready, TaskId};
use crate::sync::lock;
use crate::ticket::{Abandoned, BoxFuture, Completer, Ticket, ticket};
use crate::witness::Witness;

/// How long an operation waits for the feature level that it needs.
const LEVEL_WAIT: Duration = Duration::from_secs(2);
/// How often it looks.
const LEVEL_LOOK: Duration = Duration::from_millis(20);

crate::message! {
    /// The answer to a request that its receiver refused: nothing happened.
    pub struct Refused = 1 {
        /// Why it was refused, and what would be accepted.
        pub reason: String,
    }
}

/// Why a request got no reply, and whether it may have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request did not leave this node, so it did not happen.
    #[error("not sent: {0}")]
    NotSent(Unsent),
    /// The request left, and no reply came: the outcome is unknown.
    #[error("no reply from node {0}: the connection was lost; whether it happened is unknown")]
    Lost(NodeId),
    /// The receiver refused the request, so it did not happen.
    #[error("refused by node {node}: {reason}")]
    Refused {
        /// The node that refused.
        node: NodeId,
        /// The reason.
        reason: String,
    },
    /// A reply came and could not be decoded: the outcome is unknown.
    #[error("unreadable reply from node {node}: {error}; whether it happened is unknown")]
    Malformed {
        /// The node that answered.
        node: NodeId,
        /// The decoding error.
        error: DecodeError,
    },
}

/// Why a message did not leave this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// There is no connection to that node at the moment.
    #[error("no connection to node {0}")]
    NotConnected(NodeId),
    /// The queue to that node is full.
    #[error("the queue to node {0} is full")]
    QueueFull(NodeId),
    /// This node is stopping.
    #[error("this node is stopping")]
    Stopping,
}

/// The time limit of [`Env::within`] passed before the future completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// The state of the outgoing side to one peer and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Frames are accepted.
    Up,
    /// Connected, but the queue is full.
    Full,
    /// Not connected.
    Down,
}

pub(crate) struct Spawned {
    pub(crate) id: TaskId,
    pub(crate) name: &'static str,
    pub(crate) future: BoxFuture<'static, ()>,
}

struct Pending {
    to: NodeId,
    class: Class,
    reply: Completer<Result<Frame, CallError>>,
}

pub(crate) struct EnvState {
    pub(crate) now: Tick,
    random: u64,
    pub(crate) timers: BTreeMap<(Tick, u64), Waker>,
    next_timer: u64,
    next_task: TaskId,
    pub(crate) spawned: Vec<Spawned>,
    pub(crate) aborted: Vec<TaskId>,
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) local: VecDeque<Envelope>,
    pub(crate) local_replies: VecDeque<(u64, Frame)>,
    pending: BTreeMap<u64, Pending>,
    next_request: u64,
    links: BTreeMap<(NodeId, Class), Link>,
    /// When the journal got the batch that it is writing.
    pub(crate) journal_since: Option<Tick>,
    pub(crate) dead: bool,
}

pub(crate) struct Inner {
    node: NodeId,
    incarnation: Incarnation,
    levels: Levels,
    witness: Witness,
    pub(crate) state: Mutex<EnvState>,
    pub(crate) ready: Arc<Ready>,
}

/// Returns the first request number of a life. The numbers of two lives start far apart, because a slow disk may delay the reply to a
/// request of an earlier life until this life is connected, and that reply must not pass for one to a request of this life. Numbers stay
/// below 2^47: hosts use the bits from 48 on to identify the connection.
fn first_request(life: Incarnation) -> u64 {
    let mixed = (life.0 ^ (life.0 >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 17
}

/// A handle to one node's executor, clock, randomness and transport. Cheap to clone; usable from any thread of the
/// node, but procedures themselves run only inside the core's turn.
#[derive(Clone)]
pub struct Env(pub(crate) Arc<Inner>);

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Env(node {} life {})", self.0.node, self.0.incarnation)
    }
}

impl Env {
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, seed: u64, levels: Levels) -> Self {
        Env(Arc::new(Inner {
            node,
            incarnation,
            levels,
            witness: Witness::default(),
            ready: Arc::default(),
            state: Mutex::new(EnvState {
                now: Tick(0),
                random: seed,
                timers: BTreeMap::new(),
                next_timer: 0,
                next_task: 0,
                spawned: Vec::new(),
                aborted: Vec::new(),
                outgoing: Vec::new(),
                local: VecDeque::new(),
                local_replies: VecDeque::new(),
                pending: BTreeMap::new(),
                next_request: first_request(incarnation),
                links: BTreeMap::new(),
                journal_since: None,
                dead: false,
            }),
        }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, EnvState> {
        lock(&self.0.state)
    }

    /// Returns the id of this node.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Returns the incarnation of this node's current life.
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    /// Returns the feature levels, which say what this node may write.
    pub fn levels(&self) -> &Levels {
        &self.0.levels
    }

    /// Returns whether a kind that came with this level may be written, now or within two seconds. A node that has just started does not
    /// know yet what the other members of its cluster can read.
    pub async fn allows_soon(&self, since: Level) -> bool {
        let until = self.now().after(LEVEL_WAIT);
        while !self.levels().allows(since) {
            if self.now() >= until {
                return false;
            }
            self.sleep(LEVEL_LOOK).await;
        }
        true
    }

    /// Returns the memory of how far the journals of this node and of the other nodes have come.
    pub fn witness(&self) -> &Witness {
        &self.0.witness
    }

    /// Returns the time of the current turn on this node's clock.
    pub fn now(&self) -> Tick {
        self.state().now
    }

    /// Returns when the journal got the batch that it has not synced yet; None if it is idle. If the disk hangs, this time stops moving.
    pub fn journal_waits_since(&self) -> Option<Tick> {
        self.state().journal_since
    }

    /// Returns 64 random bits, derived from the node's seed.
    pub fn random(&self) -> u64 {
        self.state().draw()
    }

    /// Returns a random duration in `[d / 2, 3 d / 2)`, for back-off.
    pub fn jitter(&self, d: Duration) -> Duration {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4).max(1);
        Duration::from_nanos(nanos / 2 + self.random() % nanos)
    }

    /// Registers the waker to call when work for a turn arrives from outside a turn.
    pub fn set_host_waker(&self, waker: Waker) {
        self.0.ready.set_host(waker);
    }

    /// Returns a future that completes at `at`. Dropping it removes its timer.
    pub fn sleep_until(&self, at: Tick) -> Sleep {
        Sleep { env: self.clone(), at, key: None }
    }

    /// Returns a future that completes after `d`.
    pub fn sleep(&self, d: Duration) -> Sleep {
        self.sleep_until(self.now().after(d))
    }

    /// Starts a procedure. It runs to its end unless it is aborted; dropping the handle detaches it.
    pub fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        let id = {
            let mut state = self.state();
            let id = state.next_task;
            state.next_task += 1;
            if !state.dead {
                state.spawned.push(Spawned { id, name, future });
            }
            id
        };
        self.0.ready.wake_host();
        Task { env: self.clone(), id }
    }

    /// Starts a procedure and returns a ticket for its result. The procedure continues if the ticket is dropped.
    pub fn launch<T: Send + 'static>(
        &self,
        name: &'static str,
        f: impl Future<Output = T> + Send + 'static,
    ) -> Ticket<T> {
        let (done, wait) = ticket();
        self.spawn(name, Box::pin(async move { done.complete(f.await) }));
        wait
    }

    /// Sends a request. It is queued before this returns, so calls leave in the order in which they are made. There is no hidden timeout or
    /// retry. Dropping the future discards the reply.
    pub fn call<R: ForRole>(&self, to: NodeId, request: R) -> Call<R> {
        self.call_role(to, R::ROLE, request)
    }

    /// Like [`Env::call`], for a request that more than one role accepts.
    pub fn call_role<R: Rpc>(&self, to: NodeId, role: RoleKind, request: R) -> Call<R> {
        self.call_frame(to, R::CLASS, request.into_frame(role))
    }

    /// Like [`Env::call`], with a frame that is already encoded. A broadcast encodes its request once.
    pub fn call_frame<R: Rpc>(&self, to: NodeId, class: Class, frame: Frame) -> Call<R> {
        let (reply, wait) = ticket();
        let mut state = self.state();
        let request = state.next_request;
        state.next_request += 1;
        let envelope = Envelope { exchange: Exchange::Request(request), frame };
        let sent = state.send(self.0.node, to, class, envelope);
        match sent {
            Ok(()) => {
                state.pending.insert(request, Pending { to, class, reply });
            }
            Err(why) => reply.complete(Err(CallError::NotSent(why))),
        }
        drop(state);
        self.0.ready.wake_host();
        Call { env: self.clone(), to, request, wait, _reply: PhantomData }
    }

    /// Sends a one-way message. False means that it was dropped on this node.
    pub fn post<M: Message>(&self, to: NodeId, class: Class, target: RoleKind, message: M) -> bool {
        let envelope = Envelope { exchange: Exchange::Post, frame: message.into_frame(target) };
        let sent = self.state().send(self.0.node, to, class, envelope).is_ok();
        self.0.ready.wake_host();
        sent
    }

    /// Returns whether frames to a peer are accepted at the moment. The link to this node itself is always up.
    pub fn link(&self, to: NodeId, class: Class) -> Link {
        if to == self.0.node {
            return Link::Up;
        }
        self.state().links.get(&(to, class)).copied().unwrap_or(Link::Down)
    }

    /// Runs `f`, or returns [`Elapsed`] once `d` has passed; `f` wins if both are ready.
    pub async fn within<F: Future>(&self, d: Duration, f: F) -> Result<F::Output, Elapsed> {
        let mut sleep = self.sleep(d);
        let mut f = std::pin::pin!(f);
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(out) = f.as_mut().poll(cx) {
                return Poll::Ready(Ok(out));
            }
            Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Sends the same request to several nodes and collects replies until `enough` returns true, every node has answered or failed, or the
    /// time `until` has come.
    pub async fn gather<R: ForRole + Clone>(
        &self,
        to: &[NodeId],
        request: R,
        until: Tick,
        enough: impl FnMut(&Replies<R>) -> bool,
    ) -> Replies<R> {
        self.gather_role(to, R::ROLE, request, until, enough).await
    }

    /// Like [`Env::gather`], for a request that more than one role accepts.
    pub async fn gather_role<R: Rpc + Clone>(
        &self,
        to: &[NodeId],
        role: RoleKind,
        request: R,
        until: Tick,
        mut enough: impl FnMut(&Replies<R>) -> bool,
    ) -> Replies<R> {
        let frame = request.into_frame(role);
        let mut calls: Vec<Option<Call<R>>> =
            to.iter().map(|n| Some(self.call_frame(*n, R::CLASS, frame.clone()))).collect();
        let mut replies = Replies { slots: to.iter().map(|n| (*n, None)).collect() };
        let mut sleep = self.sleep_until(until);
        std::future::poll_fn(move |cx| {
            for (i, call) in calls.iter_mut().enumerate() {
                if let Some(c) = call
                    && let Poll::Ready(r) = Pin::new(c).poll(cx)
                {
                    replies.slots[i].1 = Some(r);
                    *call = None;
                }
            }
            let done = enough(&replies) || replies.pending() == 0;
            if done || Pin::new(&mut sleep).poll(cx).is_ready() {
                let got = std::mem::replace(&mut replies, Replies { slots: Vec::new() });
                return Poll::Ready(got);
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn set_link(&self, peer: NodeId, class: Class, link: Link) {
        let lost = {
            let mut state = self.state();
            state.links.insert((peer, class), link);
            if link == Link::Down {
                state.take_pending(|p| p.to == peer && p.class == class)
            } else {
                Vec::new()
            }
        };
        for p in lost {
            p.reply.complete(Err(CallError::Lost(peer)));
        }
    }

    pub(crate) fn complete(&self, request: u64, frame: Frame) {
        let pending = self.state().pending.remove(&request);
        if let Some(p) = pending {
            p.reply.complete(Ok(frame));
        }
    }

    /// Refuses everything from now on and drops everything that waits: the simulator's `kill -9`.
    pub(crate) fn kill(&self) {
        let (pending, spawned, timers) = {
            let mut state = self.state();
            state.dead = true;
            state.outgoing.clear();
            state.local.clear();
            state.local_replies.clear();
            (
                std::mem::take(&mut state.pending),
                std::mem::take(&mut state.spawned),
                std::mem::take(&mut state.timers),
            )
        };
        drop((pending, spawned, timers));
    }
}

impl EnvState {
    fn draw(&mut self) -> u64 {
        // SplitMix64: every seed gives a well mixed sequence with full period, and the state is a single word.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn send(
        &mut self,
        me: NodeId,
        to: NodeId,
        class: Class,
        envelope: Envelope,
    ) -> Result<(), Unsent> {
        if self.dead {
            return Err(Unsent::Stopping);
        }
        if to == me {
            crate::testing::show_local(me, class, &envelope);
            match envelope.exchange {
                Exchange::Reply(request) => self.local_replies.push_back((request, envelope.frame)),
                _ => self.local.push_back(envelope),
            }
            return Ok(());
        }
        // A reply takes the connection on which its request came. The state of this node's outgoing side says nothing about that
        // connection: if a reply were held back here, the caller would wait although its connection works.
        if !matches!(envelope.exchange, Exchange::Reply(_)) {
            match self.links.get(&(to, class)).copied().unwrap_or(Link::Down) {
                Link::Up => {}
                Link::Full => return Err(Unsent::QueueFull(to)),
                Link::Down => return Err(Unsent::NotConnected(to)),
            }
        }
        self.outgoing.push(Outgoing { to, class, envelope });
        Ok(())
    }

    fn take_pending(&mut self, which: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let ids: Vec<u64> = self.pending.iter().filter(|(_, p)| which(p)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.pending.remove(&id)).collect()
    }
}

/// A future that completes at a given time; see [`Env::sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    env: Env,
    at: Tick,
    key: Option<(Tick, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { env, at, key } = &mut *self;
        let mut state = env.state();
        if state.now >= *at {
            if let Some(key) = key.take() {
                state.timers.remove(&key);
            }
            return Poll::Ready(());
        }
        let state = &mut *state;
        let key = key.get_or_insert_with(|| {
            state.next_timer += 1;
            (*at, state.next_timer - 1)
        });
        match state.timers.entry(*key) {
            // The future was polled for another reason than its deadline, and the same waker is already registered.
            Entry::Occupied(timer) if timer.get().will_wake(cx.waker()) => {}
            Entry::Occupied(mut timer) => drop(timer.insert(cx.waker().clone())),
            Entry::Vacant(timer) => drop(timer.insert(cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let waker = self.env.state().timers.remove(&key);
            drop(waker);
        }
    }
}

/// A running procedure. Dropping the handle detaches it.
#[derive(Debug)]
pub struct Task {
    env: Env,
    id: TaskId,
}

impl Task {
    /// Drops the procedure before its next poll, if it is still running.
    pub fn abort(&self) {
        self.env.state().aborted.push(self.id);
        self.env.0.ready.wake_host();
    }
}

/// A request that waits for its reply. Dropping it discards the reply.
#[derive(Debug)]
pub struct Call<R: Rpc> {
    env: Env,
    to: NodeId,
    request: u64,
    wait: Ticket<Result<Frame, CallError>>,
    _reply: PhantomData<fn() -> R>,
}

impl<R: Rpc> Future for Call<R> {
    type Output = Result<R::Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let node = self.to;
        Pin::new(&mut self.wait).poll(cx).map(|got| match got {
            Ok(Ok(frame)) if frame.kind == Refused::KIND => match Refused::from_frame(frame) {
                Ok(refused) => Err(CallError::Refused { node, reason: refused.reason }),
                Err(error) => Err(CallError::Malformed { node, error }),
            },
            Ok(Ok(frame)) => {
                R::Reply::from_frame(frame).map_err(|error| CallError::Malformed { node, error })
            }
            Ok(Err(e)) => Err(e),
            Err(Abandoned) => Err(CallError::Lost(node)),
        })
    }
}

impl<R: Rpc> Drop for Call<R> {
    fn drop(&mut self) {
        let pending = self.env.state().pending.remove(&self.request);
        drop(pending);
    }
}

/// A node that was asked, and its answer if it has one.
type Slot<Reply> = (NodeId, Option<Result<Reply, CallError>>);

/// The result of [`Env::gather`]: one slot per node, in the order in which they were asked.
#[derive(Debug)]
pub struct Replies<R: Rpc> {
    slots: Vec<Slot<R::Reply>>,
}

impl<R: Rpc> Replies<R> {
    /// Returns the replies so far, in the order in which the nodes were asked.
    pub fn ok(&self) -> impl Iterator<Item = (NodeId, &R::Reply)> {
        self.slots.iter().filter_map(|(n, r)| match r {
            Some(Ok(reply)) => Some((*n, reply)),
            _ => None,
        })
    }

    /// Returns the replies so far, by value.
    pub fn into_ok(self) -> impl Iterator<Item = (NodeId, R::Reply)> {
        self.slots.into_iter().filter_map(|(n, r)| r.and_then(Result::ok).map(|reply| (n, reply)))
    }

    /// Returns how many nodes failed to answer.
    pub fn failed(&self) -> usize {
        self.slots.iter().filter(|(_, r)| matches!(r, Some(Err(_)))).count()
    }

    /// Returns the failures with their nodes.
    pub fn errors(&self) -> impl Iterator<Item = (NodeId, &CallError)> {
        self.slots.iter().filter_map(|(n, r)| match r {
            Some(Err(e)) => Some((*n, e)),
            _ => None,
        })
    }

    /// Returns how many nodes have neither answered nor failed.
    pub fn pending(&self) -> usize {
        self.slots.iter().filter(|(_, r)| r.is_none()).count()
    }
}

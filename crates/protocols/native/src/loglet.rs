//! The client of a NativeLoglet. Each procedure has a file of its own; this one implements the [`Loglet`] trait with them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, Entry, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError,
    ReadFrom, SealedConfig, Tail, Unavailability,
};
use atoll_core::level::since;
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Completer, Env, NodeId, Tick, Ticket, ticket};

use super::config::NativeConfig;
use super::message::{Answer, ReadNext, ServerState, Verdict, Wait};
use crate::mutants;
use crate::roles::LOG_SERVER;
use atoll_core::sync::lock;
use atoll_loglet_store::decode_entries;
use atoll_loglet_store::handle_order::HandleOrder;
use atoll_loglet_store::tails::Tails;

/// Timeouts and sizes of a native client.
#[derive(Clone, Debug)]
pub struct NativeOptions {
    /// How long an append may go unanswered before its outcome is reported as unknown. Too small: a slow disk looks like a
    /// dead sequencer. Too large: failures are noticed late.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one round of requests waits for answers.
    pub round_timeout: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long a check of an open tail waits for entries in flight to settle, before it reports that the sequencer makes
    /// no progress (native-T14).
    pub settle_timeout: Duration,
    /// How long a server may hold a request that waits for the tail.
    pub wait_patience: Duration,
    /// Number of servers of a new loglet, unless the specification sets another.
    pub replicas: usize,
    /// Maximum number of bytes of entries that one step of a repair, a back-fill or a copy moves. A server writes them as one record of
    /// its journal, so they must fit into a journal segment.
    pub step_bytes: u32,
}

impl Default for NativeOptions {
    fn default() -> Self {
        NativeOptions {
            append_timeout: Duration::from_millis(1000),
            op_timeout: Duration::from_secs(5),
            round_timeout: Duration::from_millis(300),
            retry: Duration::from_millis(20),
            settle_timeout: Duration::from_millis(1000),
            wait_patience: Duration::from_secs(2),
            replicas: 3,
            step_bytes: atoll_loglet_store::STEP_BYTES,
        }
    }
}

/// For how long a server that was slow to answer a read is asked last.
const SLOW_FOR: Duration = Duration::from_secs(1);

/// One loglet as its procedures see it.
#[derive(Clone)]
pub(crate) struct ServerSet {
    pub env: Env,
    pub id: LogletId,
    pub config: Arc<NativeConfig>,
    pub config_bytes: Bytes,
    pub nodes: Arc<Vec<NodeId>>,
    pub options: Arc<NativeOptions>,
    /// Servers that were slow to answer a read, and when.
    slow: Arc<Mutex<BTreeMap<NodeId, Tick>>>,
}

impl ServerSet {
    pub fn new(
        env: Env,
        id: LogletId,
        config: NativeConfig,
        config_bytes: Bytes,
        options: Arc<NativeOptions>,
    ) -> Self {
        let nodes = Arc::new(config.nodes());
        ServerSet { env, id, config: Arc::new(config), config_bytes, nodes, options, slow: Arc::default() }
    }

    /// Returns the deadline of an operation that starts now.
    pub fn op_deadline(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }

    /// Returns the end of a round of requests that starts now.
    pub fn round_end(&self) -> Tick {
        self.env.now().after(self.options.round_timeout)
    }

    /// Pauses before another attempt. Returns false, without a pause, if the operation's time is up.
    pub async fn pause(&self, until: Tick) -> bool {
        if self.env.now() >= until {
            return false;
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        true
    }

    /// Returns the servers in the order in which to ask them for a copy: this node first (converged), then the others from a random one
    /// on, to spread the load. Servers that were slow recently come last, so that a long scan of a segment does not wait for each of them
    /// at every step.
    pub fn readers(&self) -> Vec<NodeId> {
        let mut nodes = self.nodes.as_ref().clone();
        let start = (self.env.random() % nodes.len() as u64) as usize;
        nodes.rotate_left(start);
        if let Some(own) = nodes.iter().position(|n| *n == self.env.node()) {
            nodes[..=own].rotate_right(1);
        }
        let slow = lock(&self.slow);
        if !slow.is_empty() {
            let (now, own) = (self.env.now(), self.env.node());
            let is_slow = |n: &NodeId| slow.get(n).is_some_and(|t| now.since(*t) < SLOW_FOR) && *n != own;
            nodes.sort_by_key(is_slow);
        }
        nodes
    }

    /// Waits at a server until its known tail is above `above`. With `max_bytes`, about as many bytes of the entries from there on come
    /// along. None if it does not answer.
    async fn wait_at(&self, server: NodeId, above: Offset, max_bytes: Option<usize>) -> Option<Heard> {
        let (loglet, config) = (self.id, self.config_bytes.clone());
        let patience_ms = u32::try_from(self.options.wait_patience.as_millis()).unwrap_or(u32::MAX);
        let Some(max_bytes) = max_bytes.filter(|_| self.env.levels().allows(since::READ_NEXT)) else {
            let wait = Wait { loglet, config, target: above.plus(1), known_only: true, patience_ms };
            let Answer { verdict, state } = self.env.call_role(server, LOG_SERVER, wait).await.ok()?;
            return Some(Heard { verdict, state, entries: Vec::new() });
        };
        let max_bytes = u32::try_from(max_bytes).unwrap_or(u32::MAX);
        let request = ReadNext { loglet, config, from: above, max_bytes, patience_ms };
        let answer = self.env.call_role(server, LOG_SERVER, request).await.ok()?;
        let (verdict, state) = (answer.verdict.clone(), answer.state.clone());
        // Whoever gets none reads them, which tells what is wrong with a copy.
        let entries = decode_entries(answer).filter(|_| !state.sealed).unwrap_or_default();
        Some(Heard { verdict, state, entries })
    }

    /// Records that a server was slow to answer a read.
    pub fn was_slow(&self, node: NodeId) {
        lock(&self.slow).insert(node, self.env.now());
    }
}

/// What a server said to a request that waited.
struct Heard {
    verdict: Verdict,
    state: ServerState,
    entries: Vec<Entry>,
}

/// Returns the error that these verdicts amount to when no quorum did what was requested.
pub(crate) fn failure<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> LogletError {
    let mut why = Unavailability::NoQuorum;
    for verdict in verdicts {
        match verdict {
            Verdict::Gone {} => return LogletError::Gone,
            Verdict::DiskFull {} => why = Unavailability::DiskFull,
            Verdict::StorageFailed {} => why = Unavailability::StorageFailed,
            _ => {}
        }
    }
    LogletError::Unavailable(why)
}

type TailResult = Result<Tail, LogletError>;

/// Checks that wait for the next round to start, and whether a round is running (vlog-V14).
#[derive(Debug, Default)]
struct Checks {
    running: bool,
    next: Vec<Completer<TailResult>>,
}

pub(crate) struct Shared {
    pub group: ServerSet,
    pub tails: Tails,
    checks: Mutex<Checks>,
    pub order: Mutex<HandleOrder>,
    /// The server to which the next wait goes, counted from this node's own, or from one that follows from the node's number.
    wait_at: AtomicUsize,
    /// Whether a seal through this handle has succeeded. A hint for checks.
    sealed: AtomicBool,
}

/// A handle to one NativeLoglet.
#[derive(Clone)]
pub struct NativeLoglet(pub(crate) Arc<Shared>);

impl std::fmt::Debug for NativeLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NativeLoglet({})", self.0.group.id)
    }
}

impl Shared {
    /// Learns the known tail of a server, but only if the server is unsealed (native-T3, vlog-V4).
    pub fn learn_from(&self, state: &ServerState) {
        if !state.sealed {
            self.tails.learn(state.known_tail);
        }
    }

    /// Runs rounds of checks, one after the other, until no check waits.
    async fn run_checks(self: Arc<Self>) {
        loop {
            let waiting = {
                let mut checks = lock(&self.checks);
                let waiting = std::mem::take(&mut checks.next);
                checks.running = !waiting.is_empty();
                waiting
            };
            if waiting.is_empty() {
                return;
            }
            if waiting.len() > 1 {
                hit("native.check_tail.shared");
            }
            let tail = match mutant(mutants::NATIVE_T19).then(|| self.tails.sealed()).flatten() {
                Some(at) => Ok(Tail { at, sealed: Some(SealedConfig::new()) }),
                None => self.group.check_tail(self.sealed.load(Ordering::Relaxed)).await,
            };
            match &tail {
                Ok(Tail { at, sealed: None }) => self.tails.learn(*at),
                Ok(Tail { at, sealed: Some(_) }) => self.tails.learn_sealed(*at),
                Err(_) => {}
            }
            for who in waiting {
                who.complete(tail.clone());
            }
        }
    }
}

impl NativeLoglet {
    pub(crate) fn new(group: ServerSet) -> Self {
        let order = Mutex::new(HandleOrder::new(group.env.random()));
        let (tails, checks, wait_at, sealed) = Default::default();
        NativeLoglet(Arc::new(Shared { group, tails, checks, order, wait_at, sealed }))
    }

    fn start_check(&self) -> Ticket<TailResult> {
        let (done, wait) = ticket();
        let start = {
            let mut checks = lock(&self.0.checks);
            checks.next.push(done);
            !std::mem::replace(&mut checks.running, true)
        };
        if start {
            let shared = self.0.clone();
            self.0.group.env.spawn("native.check_tail", Box::pin(shared.run_checks()));
        }
        wait
    }

    /// Sends a wait to one server, and returns its answer or a tail that this handle learns meanwhile, whichever comes first. With
    /// `max_bytes`, the answer may have entries.
    async fn wait_once(
        &self,
        above: Offset,
        max_bytes: Option<usize>,
    ) -> Result<(Tail, Vec<Entry>), LogletError> {
        let without = |tail| (tail, Vec::new());
        let (shared, group) = (&self.0, &self.0.group);
        let turn = shared.wait_at.load(Ordering::Relaxed);
        // Handles on nodes without a server begin at different ones.
        let me = group.env.node();
        let own = group.nodes.iter().position(|n| *n == me).unwrap_or(me.0 as usize);
        let server = group.nodes[(own + turn) % group.nodes.len()];
        let call = Box::pin(group.wait_at(server, above, max_bytes));
        let patience = group.options.wait_patience + group.options.round_timeout;
        let answer = group.env.within(patience, shared.tails.or(above, call)).await;
        match answer {
            Ok(Ok(tail)) => return Ok(without(tail)),
            Ok(Err(Some(heard))) => {
                shared.learn_from(&heard.state);
                match heard.verdict {
                    Verdict::Done {} if heard.state.sealed && !mutant(mutants::NATIVE_T18) => {
                        hit("native.wait.sealed");
                        // Do not trust this server alone: a sealed tail is one that a majority reports (native-T3, native-T18).
                        return self.check_tail().await.map(without);
                    }
                    Verdict::Done {} if self.known_tail() > above => {
                        return Ok((Tail { at: self.known_tail(), sealed: None }, heard.entries));
                    }
                    Verdict::Gone {} => return Err(LogletError::Gone),
                    _ => {}
                }
            }
            Ok(Err(None)) => {
                group.env.sleep(group.env.jitter(group.options.retry)).await;
            }
            Err(_) => {}
        }
        // This server knows nothing new, and may have missed the seal. The next wait goes to another.
        shared.wait_at.fetch_add(1, Ordering::Relaxed);
        Ok(without(Tail { at: self.known_tail(), sealed: None }))
    }
}

impl Loglet for NativeLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(batch, not_below)
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn fills_once(&self) -> bool {
        self.0.group.env.levels().allows(since::NOT_BELOW)
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        let round = self.start_check();
        Box::pin(
            async move { round.await.unwrap_or(Err(LogletError::Unavailable(Unavailability::Stopping))) },
        )
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            if let Some(tail) = self.0.tails.above(above) {
                return Ok(tail);
            }
            self.wait_once(above, None).await.map(|(tail, _)| tail)
        })
    }

    fn wait_entries(
        &self,
        above: Offset,
        max_bytes: usize,
    ) -> BoxFuture<'_, Result<(Tail, Vec<Entry>), LogletError>> {
        Box::pin(async move {
            if let Some(tail) = self.0.tails.above(above) {
                return Ok((tail, Vec::new()));
            }
            self.wait_once(above, Some(max_bytes)).await
        })
    }

    fn known_tail(&self) -> Offset {
        self.0.tails.tail()
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(self.0.group.read(range, max_bytes, from))
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.0.group.prefix_trim(to))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move {
            self.0.group.seal().await?;
            self.0.sealed.store(true, Ordering::Relaxed);
            Ok(())
        })
    }
}

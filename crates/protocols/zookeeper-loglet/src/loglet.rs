//! The handle of a loglet, on any node.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    SealedConfig, Tail, Unavailability,
};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Abandoned, BoxFuture, Decode, Elapsed, Encode, Env, Tick, Ticket};
use atoll_loglet_store::tails::Tails;

use crate::append::Queue;
use crate::config::ZooKeeperConfig;
use crate::ensemble::{Answer, Ensemble, Fault, Node, Op, Refusal, Request};
use crate::layout::{self, ALIVE, Paths, TailNode, TrimNode};
use crate::mutants;
use crate::read::Recent;

/// Timeouts and sizes.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// How long an append is tried before it is given up, as unknown if the ensemble may have it.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one request waits for its answer.
    pub round_timeout: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long a handle waits for a change before it looks again.
    pub wait_patience: Duration,
    /// After how long without contact the ensemble ends the session of this node.
    pub session_timeout: Duration,
    /// Maximum number of bytes of entries that wait for their turn in one handle. A batch that is alone always fits.
    pub window_bytes: usize,
    /// Maximum number of bytes of entries that a handle keeps for readers.
    pub cache_bytes: usize,
    /// About how many bytes of entries one step of a copy moves.
    pub step_bytes: u32,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        ZooKeeperOptions {
            append_timeout: Duration::from_secs(3),
            op_timeout: Duration::from_secs(5),
            round_timeout: Duration::from_secs(2),
            retry: Duration::from_millis(20),
            wait_patience: Duration::from_secs(2),
            session_timeout: Duration::from_secs(6),
            window_bytes: 8 << 20,
            cache_bytes: 8 << 20,
            step_bytes: 512 << 10,
        }
    }
}

/// A handle to one loglet. Cheap to clone.
#[derive(Clone)]
pub struct ZooKeeperLoglet(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) ensemble: Arc<dyn Ensemble>,
    pub(crate) id: LogletId,
    pub(crate) paths: Paths,
    /// The znode without which the loglet is not created. None in chains of programs before there were tokens.
    pub(crate) token: Option<String>,
    pub(crate) options: Arc<ZooKeeperOptions>,
    pub(crate) tails: Tails,
    /// The most batches that the loglet was seen to have.
    pub(crate) batches: AtomicU64,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) recent: Mutex<Recent>,
}

impl std::fmt::Debug for ZooKeeperLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZooKeeperLoglet({} in {:?})", self.0.id, self.0.ensemble)
    }
}

/// The state of a loglet at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) sealed: bool,
    /// The number of batches, which is the version of the tail's znode.
    pub(crate) batches: u64,
    pub(crate) next: Offset,
}

/// Why a step of an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The loglet was deleted.
    Gone,
    /// The ensemble did not do the step.
    Fault(Fault),
    /// What is in a znode is not what belongs there.
    Damaged(String),
    /// The ensemble has never had the loglet, or has lost it.
    Elsewhere,
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Fault(fault)
    }
}

/// Returns what callers of the Loglet learn of a fault.
pub(crate) fn unavailability(fault: &Fault) -> Unavailability {
    match fault {
        Fault::Busy | Fault::Refused(_) => Unavailability::Busy,
        Fault::NotConnected | Fault::Lost => Unavailability::NoQuorum,
        Fault::Denied(_) => Unavailability::StorageFailed,
    }
}

/// Returns the data of a znode that was read, if it exists.
pub(crate) fn node(answer: Option<Result<Answer, Fault>>) -> Result<Option<Node>, Trouble> {
    match answer {
        Some(Ok(Answer::Node(node))) => Ok(node),
        Some(Err(fault)) => Err(fault.into()),
        // Every request has an answer of its kind.
        Some(Ok(_)) | None => Err(Fault::Lost.into()),
    }
}

/// Decodes the data of a znode.
pub(crate) fn decode<T: Decode>(node: &Node) -> Result<T, Trouble> {
    T::from_bytes(node.data.clone()).map_err(|error| Trouble::Damaged(error.to_string()))
}

impl Shared {
    /// Sends requests and waits for the answers, for the time of one round.
    pub(crate) async fn ask(&self, requests: Vec<Request>) -> Vec<Result<Answer, Fault>> {
        let count = requests.len();
        let answers = self.env.within(self.options.round_timeout, self.ensemble.send(requests)).await;
        match answers {
            Ok(Ok(answers)) => answers,
            Ok(Err(Abandoned)) | Err(Elapsed) => vec![Err(Fault::Lost); count],
        }
    }

    pub(crate) async fn write(&self, ops: Vec<Op>) -> Result<(), Fault> {
        let mut answers = self.ask(vec![Request::Write(ops)]).await;
        answers.pop().unwrap_or(Err(Fault::Lost)).map(|_| ())
    }

    pub(crate) async fn get(&self, path: String) -> Result<Option<Node>, Trouble> {
        node(self.ask(vec![Request::Get(path)]).await.pop())
    }

    /// Returns an operation that fails once the loglet was deleted. Alone, it takes a quorum's agreement that it was not.
    pub(crate) fn lives(&self) -> Op {
        Op::Check { path: self.paths.home.clone(), version: 0 }
    }

    /// Reads the state of the loglet. If `fresh`, it is not older than the call: a write goes ahead, on the same session. Creates the
    /// loglet if it does not exist.
    pub(crate) async fn look(&self, fresh: bool) -> Result<Seen, Trouble> {
        // The seal comes before the tail (vlog-V1): after a seal that was seen, no append moves the tail.
        let reads = [&self.paths.seal, &self.paths.tail].map(|path| Request::Get(path.clone()));
        let mut requests = if fresh { vec![Request::Write(vec![self.lives()])] } else { Vec::new() };
        requests.extend(reads);
        let mut answers = self.ask(requests).await.into_iter();
        if fresh {
            match answers.next() {
                Some(Ok(_)) => {}
                Some(Err(Fault::Refused(Refusal::Version))) => return Err(Trouble::Gone),
                Some(Err(Fault::Refused(Refusal::Missing))) => {
                    self.create().await?;
                    return Ok(Seen { sealed: false, batches: 0, next: Offset::ZERO });
                }
                Some(Err(fault)) => return Err(fault.into()),
                None => return Err(Fault::Lost.into()),
            }
        }
        let (Some(seal), Some(tail)) = (node(answers.next())?, node(answers.next())?) else {
            // It was not created yet, or was deleted, or the server lags behind.
            return if fresh { Err(Fault::Lost.into()) } else { Box::pin(self.look(true)).await };
        };
        let next = decode::<TailNode>(&tail)?.next;
        let batches =
            u64::try_from(tail.version).map_err(|_| Trouble::Damaged("the tail's version".into()))?;
        let seen = Seen { sealed: seal.version > 0, batches, next };
        self.learn(seen);
        Ok(seen)
    }

    /// Creates the znodes of the loglet, unless the ensemble is not the one in which it was planned: an empty loglet there would answer in
    /// the place of the real one. If they exist, nothing changes. A lost answer is an error, although they may exist.
    ///
    /// The answer of `look` after it may be old, but not wrong: the loglet was empty and open after that call had begun.
    pub(crate) async fn create(&self) -> Result<(), Trouble> {
        let create = |path: String, data: Bytes| Op::Create { path, data };
        let guard = self.token.clone().filter(|_| !mutant(mutants::ZOOKEEPER_CREATES_ANYWHERE));
        let above = if guard.is_some() { vec![self.paths.logs()] } else { self.paths.above() };
        let check = || guard.clone().map(|path| Op::Check { path, version: 0 });
        let guarded = |op: Op| Request::Write(check().into_iter().chain([op]).collect());
        let above = above.into_iter().map(|path| guarded(create(path, Bytes::new())));
        let paths = self.paths.clone();
        let mut loglet: Vec<Op> = check().into_iter().collect();
        loglet.extend([
            create(paths.home, Bytes::from_static(ALIVE)),
            create(paths.seal, Bytes::new()),
            create(paths.tail, TailNode::default().to_bytes()),
            create(paths.trim, TrimNode::default().to_bytes()),
            create(paths.entries, Bytes::new()),
        ]);
        let answers = self.ask(above.chain([Request::Write(loglet)]).collect()).await;
        match answers.into_iter().next_back() {
            Some(Ok(_)) => Ok(()),
            // Somebody else was faster, and may have done more in the meantime.
            Some(Err(Fault::Refused(Refusal::Exists))) => Err(Fault::Busy.into()),
            // With the token there would be all znodes above the loglet's.
            Some(Err(Fault::Refused(Refusal::Missing))) if guard.is_some() => {
                hit("zookeeper.elsewhere");
                Err(Trouble::Elsewhere)
            }
            Some(Err(fault)) => Err(fault.into()),
            None => Err(Fault::Lost.into()),
        }
    }

    pub(crate) fn learn(&self, seen: Seen) {
        self.batches.fetch_max(seen.batches, Ordering::Relaxed);
        self.tails.learn(seen.next);
        if seen.sealed {
            self.tails.learn_sealed(seen.next);
        }
    }

    /// Says that this is not the ensemble of the loglet. Returns what callers learn of it.
    pub(crate) fn elsewhere(&self) -> Unavailability {
        let (loglet, ensemble) = (self.id, &self.ensemble);
        tracing::error!(
            %loglet, ?ensemble,
            "the ensemble does not have the loglet: it is another one than that in which it was planned, or has lost its data"
        );
        Unavailability::StorageFailed
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }

    /// Waits before another attempt, or returns why there is none.
    pub(crate) async fn again(&self, until: Tick, trouble: Trouble) -> Result<(), LogletError> {
        let fault = match trouble {
            Trouble::Gone => return Err(LogletError::Gone),
            Trouble::Damaged(why) => {
                tracing::error!(loglet = %self.id, why, "a znode is damaged");
                return Err(LogletError::Unavailable(Unavailability::StorageFailed));
            }
            Trouble::Elsewhere => return Err(LogletError::Unavailable(self.elsewhere())),
            Trouble::Fault(fault) => fault,
        };
        if matches!(fault, Fault::Denied(_)) || self.env.now() >= until {
            tracing::debug!(loglet = %self.id, %fault, "given up");
            return Err(LogletError::Unavailable(unavailability(&fault)));
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        Ok(())
    }

    pub(crate) async fn check(&self) -> Result<Seen, LogletError> {
        let until = self.deadline();
        loop {
            match self.look(!mutant(mutants::ZOOKEEPER_STALE_TAIL)).await {
                Ok(seen) => return Ok(seen),
                Err(trouble) => self.again(until, trouble).await?,
            }
        }
    }

    /// Seals the loglet. Appends check the version of this znode, so none succeeds once it has changed.
    pub(crate) async fn seal(&self) -> Result<(), LogletError> {
        let until = self.deadline();
        loop {
            let seal = Op::Set { path: self.paths.seal.clone(), data: Bytes::new(), version: None };
            match self.write(vec![self.lives(), seal]).await {
                Ok(()) => return Ok(()),
                Err(Fault::Refused(Refusal::Missing)) => match self.look(true).await {
                    Ok(_) => {}
                    Err(trouble) => self.again(until, trouble).await?,
                },
                Err(Fault::Refused(_)) => return Err(LogletError::Gone),
                // Whether it happened or not: another seal does no harm.
                Err(fault) => self.again(until, fault.into()).await?,
            }
        }
    }

    async fn wait(&self, above: Offset) -> Result<Tail, LogletError> {
        if let Some(tail) = self.tails.above(above) {
            return Ok(tail);
        }
        let patience = self.options.wait_patience;
        let batches = i32::try_from(self.batches.load(Ordering::Relaxed)).unwrap_or(i32::MAX);
        let seen = vec![(self.paths.tail.clone(), batches), (self.paths.seal.clone(), 0)];
        let change = self.ensemble.wait(seen, patience);
        match self.env.within(patience + self.options.round_timeout, self.tails.or(above, change)).await {
            Ok(Ok(tail)) => return Ok(tail),
            Ok(Err(Ok(Ok(())))) => hit("zookeeper.change"),
            Ok(Err(Ok(Err(_)) | Err(Abandoned))) | Err(Elapsed) => {
                self.env.sleep(self.env.jitter(self.options.retry)).await;
            }
        }
        match self.look(false).await {
            Err(Trouble::Gone) => return Err(LogletError::Gone),
            Err(Trouble::Damaged(_) | Trouble::Elsewhere) => {
                return Err(LogletError::Unavailable(Unavailability::StorageFailed));
            }
            // It is a hint only.
            Ok(_) | Err(Trouble::Fault(_)) => {}
        }
        Ok(self.tails.above(above).unwrap_or(Tail { at: self.tails.tail(), sealed: None }))
    }
}

impl ZooKeeperLoglet {
    pub(crate) fn new(
        env: Env,
        ensemble: Arc<dyn Ensemble>,
        id: LogletId,
        config: &ZooKeeperConfig,
        options: Arc<ZooKeeperOptions>,
    ) -> Self {
        let queue = Mutex::new(Queue::new(env.random()));
        ZooKeeperLoglet(Arc::new(Shared {
            env,
            ensemble,
            id,
            paths: Paths::new(&config.root, id),
            token: config.token.map(|token| layout::token(&config.root, token)),
            options,
            tails: Tails::default(),
            batches: AtomicU64::new(0),
            queue,
            recent: Mutex::default(),
        }))
    }
}

impl Loglet for ZooKeeperLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.append_above(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        if self.0.tails.sealed().is_some() {
            return Ticket::ready(Err(AppendError::Sealed));
        }
        let (ticket, start) = lock(&self.0.queue).push(batch, not_below, self.0.options.window_bytes);
        if start {
            let shared = self.0.clone();
            self.0.env.spawn("zookeeper.append", Box::pin(async move { shared.append_all().await }));
        }
        ticket
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            let seen = self.0.check().await?;
            Ok(Tail { at: seen.next, sealed: seen.sealed.then(SealedConfig::new) })
        })
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(self.0.wait(above))
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
        Box::pin(self.0.read(range, max_bytes, from))
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.0.trim(to))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.0.seal())
    }
}

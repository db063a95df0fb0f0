//! The client of a LocalLoglet, on its own node or on any other.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    SealedConfig, Tail, Unavailability,
};
use atoll_core::level::since;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, CallError, Elapsed, Env, Rpc, Ticket};

use super::config::LocalConfig;
use super::message::LocalAppend;
use crate::roles::LOCAL_STORE;
use atoll_core::sync::lock;
use atoll_loglet_store::decode_entries;
use atoll_loglet_store::handle_order::{HandleOrder, answered, unanswered};
use atoll_loglet_store::message::{
    Answer, Appended, Info, NotBelow, Ordered, Read, Repair, Seal, Trim, Verdict, Wait,
};
use atoll_loglet_store::tails::Tails;

/// Timeouts and sizes of a local client.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// How long an append may go unanswered before its outcome is reported as unknown.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one request waits for its answer.
    pub round_timeout: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long the store may hold a request that waits for the tail.
    pub wait_patience: Duration,
    /// Maximum number of bytes of entries that one step of a copy moves. The store writes them as one record of its journal, so they must
    /// fit into a journal segment.
    pub step_bytes: u32,
}

impl Default for LocalOptions {
    fn default() -> Self {
        LocalOptions {
            append_timeout: Duration::from_secs(1),
            op_timeout: Duration::from_secs(5),
            round_timeout: Duration::from_millis(1000),
            retry: Duration::from_millis(20),
            wait_patience: Duration::from_secs(2),
            step_bytes: atoll_loglet_store::STEP_BYTES,
        }
    }
}

/// A handle to one LocalLoglet.
#[derive(Clone)]
pub struct LocalLoglet(Arc<Shared>);

struct Shared {
    env: Env,
    id: LogletId,
    config: LocalConfig,
    config_bytes: Bytes,
    options: Arc<LocalOptions>,
    tails: Tails,
    order: Mutex<HandleOrder>,
}

impl std::fmt::Debug for LocalLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalLoglet({} on node {})", self.0.id, self.0.config.node)
    }
}

impl LocalLoglet {
    pub(super) fn new(
        env: Env,
        id: LogletId,
        config: LocalConfig,
        config_bytes: Bytes,
        options: Arc<LocalOptions>,
    ) -> Self {
        let order = Mutex::new(HandleOrder::new(env.random()));
        let tails = Tails::default();
        LocalLoglet(Arc::new(Shared { env, id, config, config_bytes, options, tails, order }))
    }

    /// Asks the store until it answers, or until time is up.
    pub(super) async fn ask<R: Rpc<Reply = Answer> + Clone>(
        &self,
        request: R,
    ) -> Result<Answer, LogletError> {
        let s = &self.0;
        let until = s.env.now().after(s.options.op_timeout);
        loop {
            let call = s.env.call_role(s.config.node, LOCAL_STORE, request.clone());
            if let Ok(Ok(answer)) = s.env.within(s.options.round_timeout, call).await {
                return match answer.verdict {
                    Verdict::Done {} => Ok(answer),
                    Verdict::Gone {} => Err(LogletError::Gone),
                    Verdict::DiskFull {} => Err(LogletError::Unavailable(Unavailability::DiskFull)),
                    // This includes a data directory other than the one configured: the entries of the configured one are lost.
                    _ => Err(LogletError::Unavailable(Unavailability::StorageFailed)),
                };
            }
            if s.env.now() >= until {
                return Err(LogletError::Unavailable(Unavailability::NoQuorum));
            }
            s.env.sleep(s.env.jitter(s.options.retry)).await;
        }
    }

    async fn check(&self) -> Result<Tail, LogletError> {
        let s = &self.0;
        let answer = self.ask(Info { loglet: s.id, config: s.config_bytes.clone() }).await?;
        let at = answer.state.local_tail;
        if answer.state.sealed {
            s.tails.learn_sealed(at);
            return Ok(Tail { at, sealed: Some(SealedConfig::new()) });
        }
        s.tails.learn(at);
        Ok(Tail { at, sealed: None })
    }

    async fn wait(&self, above: Offset) -> Result<Tail, LogletError> {
        let s = &self.0;
        if let Some(tail) = s.tails.above(above) {
            return Ok(tail);
        }
        let wait = Wait {
            loglet: s.id,
            config: s.config_bytes.clone(),
            target: above.plus(1),
            known_only: true,
            patience_ms: u32::try_from(s.options.wait_patience.as_millis()).unwrap_or(u32::MAX),
        };
        let call = s.env.call_role(s.config.node, LOCAL_STORE, wait);
        let patience = s.options.wait_patience + s.options.round_timeout;
        match s.env.within(patience, s.tails.or(above, call)).await {
            Ok(Ok(tail)) => return Ok(tail),
            Ok(Err(Ok(answer))) => match answer.verdict {
                // There is only one server, so its sealed tail is final.
                Verdict::Done {} if answer.state.sealed => s.tails.learn_sealed(answer.state.local_tail),
                Verdict::Done {} => s.tails.learn(answer.state.local_tail),
                Verdict::Gone {} => return Err(LogletError::Gone),
                _ => return Err(LogletError::Unavailable(Unavailability::StorageFailed)),
            },
            Ok(Err(Err(_))) => s.env.sleep(s.env.jitter(s.options.retry)).await,
            Err(Elapsed) => {}
        }
        Ok(s.tails.above(above).unwrap_or(Tail { at: s.tails.tail(), sealed: None }))
    }

    async fn read_entries(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<ReadBatch, ReadError> {
        let s = &self.0;
        if range.is_empty() {
            return Err(ReadError::BeyondTail(range.start));
        }
        let own = s.config.node == s.env.node();
        if from == ReadFrom::LocalOnly && !own {
            return Err(ReadError::Unavailable(Unavailability::NoQuorum));
        }
        let until = s.env.now().after(s.options.op_timeout);
        let max_bytes = u32::try_from(max_bytes).unwrap_or(u32::MAX);
        loop {
            let request = Read { loglet: s.id, from: range.start, to: range.end, max_bytes };
            let call = s.env.call_role(s.config.node, LOCAL_STORE, request);
            if let Ok(Ok(entries)) = s.env.within(s.options.round_timeout, call).await {
                match entries.verdict {
                    Verdict::Done {} => {
                        let got = decode_entries(entries);
                        let got = got.ok_or_else(|| ReadError::Damaged("a malformed batch".into()))?;
                        let remote = if own { 0 } else { got.len() as u64 };
                        return Ok(ReadBatch { entries: got, remote });
                    }
                    Verdict::Trimmed {} => return Err(ReadError::Trimmed(entries.state.trim)),
                    Verdict::Gone {} => return Err(ReadError::Gone),
                    Verdict::Damaged { reason } => return Err(ReadError::Damaged(reason)),
                    Verdict::NotHere {} => return Err(ReadError::BeyondTail(range.start)),
                    _ => hit("local.read_again"),
                }
            }
            if s.env.now() >= until {
                return Err(ReadError::Unavailable(Unavailability::NoQuorum));
            }
            s.env.sleep(s.env.jitter(s.options.retry)).await;
        }
    }

    /// Copies entries into this loglet, which is sealed (`build_sealed`).
    pub(super) async fn copy_in(&self, first: Offset, batch: &Batch) -> Result<(), LogletError> {
        let request = Repair {
            loglet: self.0.id,
            config: self.0.config_bytes.clone(),
            first,
            count: batch.len() as u32,
            known_tail: first,
            batch: batch.bytes().clone(),
        };
        self.ask(request).await.map(|_| ())
    }
}

fn outcome(
    s: &Shared,
    answer: Result<Result<Appended, CallError>, Elapsed>,
) -> Result<Placement, AppendError> {
    let answer = match answer.map_err(|Elapsed| None).and_then(|answer| answer.map_err(Some)) {
        Ok(answer) => answer,
        Err(error) => {
            lock(&s.order).configured = false;
            return Err(unanswered(error));
        }
    };
    lock(&s.order).configured = !matches!(answer.outcome, Ordered::Unconfigured {});
    let placement = answered(answer.outcome)?;
    s.tails.learn(answer.known_tail);
    Ok(placement)
}

impl Loglet for LocalLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.append_above(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let s = &self.0;
        let call = {
            let mut order = lock(&s.order);
            if order.sealed {
                return Ticket::ready(Err(AppendError::Sealed));
            }
            let Some(place) = order.next_place() else {
                return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy)));
            };
            let config = if order.configured { Bytes::new() } else { s.config_bytes.clone() };
            let (not_below, batch) = (NotBelow::say(&s.env, not_below), batch.bytes().clone());
            s.env.call(s.config.node, LocalAppend { loglet: s.id, config, place, not_below, batch })
        };
        let shared = s.clone();
        s.env.launch("local.append", async move {
            let answer = shared.env.within(shared.options.append_timeout, call).await;
            let result = outcome(&shared, answer);
            let mut order = lock(&shared.order);
            order.settle(result.is_ok());
            order.sealed |= matches!(result, Err(AppendError::Sealed));
            drop(order);
            result
        })
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn fills_once(&self) -> bool {
        self.0.env.levels().allows(since::NOT_BELOW)
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(self.check())
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(self.wait(above))
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
        Box::pin(self.read_entries(range, max_bytes, from))
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        let request = Trim { loglet: self.0.id, config: self.0.config_bytes.clone(), to };
        Box::pin(async move { self.ask(request).await.map(|_| ()) })
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        let request = Seal { loglet: self.0.id, config: self.0.config_bytes.clone() };
        Box::pin(async move { self.ask(request).await.map(|_| ()) })
    }
}

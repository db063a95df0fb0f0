//! The handle of a trio loglet. Appends and reads have files of their own; this one implements the [`Loglet`] trait with them.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    Tail, Unavailability,
};
use atoll_core::level::since;
use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Elapsed, Env, Rpc, Ticket};
use atoll_loglet_store::handle_order::HandleOrder;
use atoll_loglet_store::message::{Answer, Info, Repair, Seal, Trim, Verdict, Wait};
use atoll_loglet_store::tails::Tails;

use crate::config::{TrioConfig, sealed_at};
use crate::roles::{MIRROR, STORE};

/// Timeouts and sizes of a handle.
#[derive(Clone, Debug)]
pub struct TrioOptions {
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

impl Default for TrioOptions {
    fn default() -> Self {
        TrioOptions {
            append_timeout: Duration::from_secs(1),
            op_timeout: Duration::from_secs(5),
            round_timeout: Duration::from_millis(500),
            retry: Duration::from_millis(20),
            wait_patience: Duration::from_secs(2),
            step_bytes: atoll_loglet_store::STEP_BYTES,
        }
    }
}

/// A handle to one trio loglet.
#[derive(Clone)]
pub struct TrioLoglet(pub(crate) Arc<Shared>);

/// What the procedures of a handle share.
pub(crate) struct Shared {
    pub env: Env,
    pub id: LogletId,
    pub config: TrioConfig,
    pub config_bytes: Bytes,
    pub options: Arc<TrioOptions>,
    pub tails: Tails,
    pub order: Mutex<HandleOrder>,
}

impl std::fmt::Debug for TrioLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TrioLoglet({} on node {})", self.0.id, self.0.config.store.0)
    }
}

impl TrioLoglet {
    pub(crate) fn new(
        env: Env,
        id: LogletId,
        config: TrioConfig,
        config_bytes: Bytes,
        options: Arc<TrioOptions>,
    ) -> Self {
        let order = Mutex::new(HandleOrder::new(env.random()));
        let tails = Tails::default();
        TrioLoglet(Arc::new(Shared { env, id, config, config_bytes, options, tails, order }))
    }

    /// Tells the handle that the loglet is sealed, and where it ends (vlog-L9).
    pub(crate) fn ends_at(&self, tail: Offset) {
        self.0.tails.learn_sealed(tail);
        lock(&self.0.order).sealed = true;
    }

    /// Asks the store until it answers, or until time is up.
    pub(crate) async fn ask<R: Rpc<Reply = Answer> + Clone>(
        &self,
        request: R,
    ) -> Result<Answer, LogletError> {
        let s = &self.0;
        let until = s.env.now().after(s.options.op_timeout);
        loop {
            let call = s.env.call_role(s.config.store.0, STORE, request.clone());
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

    /// Asks both holders, and waits for both. Only the answer of the store counts, because the mirror may be away.
    pub(crate) async fn ask_both<R: Rpc<Reply = Answer> + Clone>(
        &self,
        request: R,
    ) -> Result<(), LogletError> {
        let s = &self.0;
        let mirror = s.env.call_role(s.config.mirror.0, MIRROR, request.clone());
        let done = self.ask(request).await.map(|_| ());
        let _ = s.env.within(s.options.round_timeout, mirror).await;
        done
    }

    /// Learns from a state that the store has reported. It is the only one that decides, so its sealed tail is final.
    fn learn(&self, answer: &Answer) -> Tail {
        let (tails, at) = (&self.0.tails, answer.state.local_tail);
        if answer.state.sealed {
            tails.learn_sealed(at);
            return Tail { at, sealed: Some(sealed_at(at)) };
        }
        tails.learn(at);
        Tail { at, sealed: None }
    }

    async fn check(&self) -> Result<Tail, LogletError> {
        let s = &self.0;
        let answer = self.ask(Info { loglet: s.id, config: s.config_bytes.clone() }).await?;
        Ok(self.learn(&answer))
    }

    /// Returns the sealed tail if it is known, otherwise an open tail if it is above `above`.
    fn known_above(&self, above: Offset) -> Option<Tail> {
        let known = self.0.tails.above(above)?;
        Some(Tail { sealed: known.sealed.map(|_| sealed_at(known.at)), at: known.at })
    }

    async fn wait(&self, above: Offset) -> Result<Tail, LogletError> {
        let s = &self.0;
        let wait = Wait {
            loglet: s.id,
            config: s.config_bytes.clone(),
            target: above.plus(1),
            known_only: true,
            patience_ms: u32::try_from(s.options.wait_patience.as_millis()).unwrap_or(u32::MAX),
        };
        if let Some(tail) = self.known_above(above) {
            return Ok(tail);
        }
        let call = s.env.call_role(s.config.store.0, STORE, wait);
        let patience = s.options.wait_patience + s.options.round_timeout;
        match s.env.within(patience, s.tails.or(above, call)).await {
            Ok(Err(Ok(answer))) => match answer.verdict {
                Verdict::Done {} => drop(self.learn(&answer)),
                Verdict::Gone {} => return Err(LogletError::Gone),
                _ => return Err(LogletError::Unavailable(Unavailability::StorageFailed)),
            },
            Ok(Err(Err(_))) => s.env.sleep(s.env.jitter(s.options.retry)).await,
            Ok(Ok(_)) | Err(Elapsed) => {}
        }
        Ok(self.known_above(above).unwrap_or(Tail { at: s.tails.tail(), sealed: None }))
    }

    /// Copies entries into this loglet, which is sealed (`build_sealed`).
    pub(crate) async fn copy_in(&self, first: Offset, batch: &Batch) -> Result<(), LogletError> {
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

impl Loglet for TrioLoglet {
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
        Box::pin(self.ask_both(request))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        let request = Seal { loglet: self.0.id, config: self.0.config_bytes.clone() };
        Box::pin(async move { self.ask(request).await.map(|_| ()) })
    }
}

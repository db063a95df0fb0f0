//! The handle of a striped Loglet. Each procedure has a file of its own; this one implements the [`Loglet`] trait with them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, Offset, Placement, ReadBatch, ReadError, ReadFrom, Tail,
};
use atoll_core::{BoxFuture, Env, Ticket};

use crate::check_tail::{all_or_error, check_tail, seal, wait_tail};
use crate::read::read;
use crate::stripes::{Stripes, on_each};

/// Timeouts and defaults of striped Loglets.
#[derive(Clone, Debug)]
pub struct StripedOptions {
    /// How long an append may wait for earlier positions to be filled before its outcome is reported as unknown. Too small: a slow stripe
    /// looks like a dead one. Too large: failures are noticed late.
    pub append_timeout: Duration,
    /// How long a check of the tail repeats itself while sealers are at work.
    pub op_timeout: Duration,
    /// Pause before a pad is sent again, with jitter.
    pub retry: Duration,
    /// The number of stripes, unless a specification sets another.
    pub stripes: usize,
    /// The kind of the stripes, unless a specification sets another.
    pub of: String,
}

impl Default for StripedOptions {
    fn default() -> Self {
        StripedOptions {
            append_timeout: Duration::from_secs(1),
            op_timeout: Duration::from_secs(5),
            retry: Duration::from_millis(20),
            stripes: 2,
            of: "native".to_owned(),
        }
    }
}

/// A handle to one striped Loglet.
#[derive(Clone)]
pub struct StripedLoglet(pub(crate) Arc<Stripes>);

impl std::fmt::Debug for StripedLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.0.parts).finish()
    }
}

impl StripedLoglet {
    /// Returns a handle to the Loglet with these stripes, which must have contiguous offsets.
    pub fn new(env: Env, stripes: Vec<Arc<dyn Loglet>>, options: Arc<StripedOptions>) -> Self {
        StripedLoglet(Arc::new(Stripes::new(env, stripes, options)))
    }
}

impl Loglet for StripedLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(&batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(&batch, not_below)
    }

    fn keeps_order(&self) -> bool {
        false
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(check_tail(&self.0))
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(wait_tail(&self.0, above))
    }

    fn known_tail(&self) -> Offset {
        self.0.known_tail()
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(read(&self.0, range, max_bytes, from))
    }

    /// Trims all stripes, each up to the same position of the whole.
    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move {
            let layout = self.0.layout;
            let trimmed = on_each(&self.0, "striped.trim", |stripe, part| async move {
                part.prefix_trim(layout.below(stripe, to)).await
            });
            all_or_error(trimmed.await).map(|_| ())
        })
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(seal(&self.0))
    }
}

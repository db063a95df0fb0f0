//! Changes of the set of shards, without stopping anything, and appends to a shard of the caller's choice (scalog.md §6, §7).

use atoll_contract::{AppendError, Batch, LogletError, Placement, Unavailability};
use atoll_core::sync::lock;

use super::ScalogLoglet;
use super::append::Goal;
use crate::config::{ShardError, ShardSpec};
use crate::order::OrderEntry;
use crate::ordering::write;

/// Why the set of shards was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The shard cannot be; nothing happened.
    #[error("nothing was changed: {0}")]
    Refused(#[from] ShardError),
    /// The log has ended; nothing happened.
    #[error("nothing was changed: the loglet is sealed")]
    Sealed,
    /// The ordering log did not answer. The change may have happened, or may still happen.
    #[error("it is unknown whether the shards were changed: {0}")]
    Unknown(LogletError),
}

impl ScalogLoglet {
    /// Adds a shard. It takes records as soon as its servers have applied the entry of the ordering log. Adding the same shard with the
    /// same servers again changes nothing.
    ///
    /// # Errors
    /// See [`ChangeError`]. A number that was ever used, and a server of another shard that takes records, are refused.
    pub async fn add_shard(&self, spec: ShardSpec) -> Result<(), ChangeError> {
        self.refresh().await.map_err(ChangeError::Unknown)?;
        if self.is_there(&spec) {
            return Ok(());
        }
        if self.is_sealed() {
            return Err(ChangeError::Sealed);
        }
        self.with_order(|order| order.check_add(&spec))?;
        self.change(&OrderEntry { add: vec![spec.clone()], ..OrderEntry::nothing() }).await?;
        if self.is_there(&spec) {
            return Ok(());
        }
        // Another client may have used the number, or a server, in the meantime, or may have ended the log.
        self.with_order(|order| order.check_add(&spec))?;
        Err(ChangeError::Sealed)
    }

    fn is_there(&self, spec: &ShardSpec) -> bool {
        self.with_order(|order| order.shards().get(&spec.shard).is_some_and(|s| s.servers == spec.servers))
    }

    /// Ends a shard after this many further cuts; 0: at once. Its records stay readable. Clients whose records are not ordered by then get
    /// to know that they never will be, and append them to another shard.
    ///
    /// # Errors
    /// See [`ChangeError`]. The last shard that takes records, and is not about to end, is refused.
    pub async fn finalize(&self, shard: u32, after: u32) -> Result<(), ChangeError> {
        self.refresh().await.map_err(ChangeError::Unknown)?;
        match self.with_order(|order| order.shards().get(&shard).map(|s| (s.is_live(), order.is_last(shard))))
        {
            None => return Err(ShardError::Unknown(shard).into()),
            Some((false, _)) => return Ok(()),
            Some(_) if self.is_sealed() => return Err(ChangeError::Sealed),
            Some((_, true)) => return Err(ShardError::Last(shard).into()),
            Some(_) => {}
        }
        self.change(&OrderEntry { finalize: vec![(shard, after)], ..OrderEntry::nothing() }).await?;
        let goes = self.with_order(|order| {
            order.shards().get(&shard).is_some_and(|s| !s.is_live() || s.leaving.is_some())
        });
        match goes {
            true => Ok(()),
            false if self.is_sealed() => Err(ChangeError::Sealed),
            // Another client ended the others in the meantime.
            false => Err(ShardError::Last(shard).into()),
        }
    }

    async fn change(&self, entry: &OrderEntry) -> Result<(), ChangeError> {
        let s = &self.0;
        let until = s.env.now().after(s.options.op_timeout);
        write(&s.env, &s.log, entry, until).await.map_err(ChangeError::Unknown)?;
        self.refresh().await.map_err(ChangeError::Unknown)
    }

    /// Appends to one segment of a shard of the caller's choice: the paper's appendToShard. A retry is recognised only if it goes to the
    /// same segment. `not_below`: an end of the log that was known before the first attempt; None if this is the first one.
    ///
    /// # Errors
    /// Like [`atoll_contract::Loglet::append`]. A shard that has ended is `NotAppended`, unless some of the entries are in it.
    pub async fn append_to_shard(
        &self,
        shard: u32,
        segment: usize,
        batch: Batch,
        not_below: Option<u64>,
    ) -> Result<Placement, AppendError> {
        self.refresh_if_old().await.map_err(|_| AppendError::NotAppended(Unavailability::NoQuorum))?;
        if self.is_sealed() {
            return Err(AppendError::Sealed);
        }
        // Records that are sent for the first time are not below what was ordered before. Without that, a server that has forgotten old
        // records could not tell these from them.
        let not_below = not_below.unwrap_or_else(|| self.with_order(crate::order::Order::base));
        let bytes = batch.bytes().len();
        self.reserve(bytes)?;
        let done = self.run_append(batch, not_below, Some(Goal { shard, segment })).await;
        lock(&self.0.known).in_flight_bytes -= bytes;
        done
    }
}

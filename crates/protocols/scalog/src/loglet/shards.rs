//! Changes of the set of shards, without stopping anything, and appends to a shard of the caller's choice (scalog.md §6, §7).

use atoll_contract::{AppendError, Batch, LogletError, Placement, Unavailability};

use super::ScalogLoglet;
use super::append::Goal;
use crate::config::{ShardError, ShardSpec};
use crate::order::OrderEntry;
use crate::ordering::write;

/// Why the set of shards was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardChange {
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
    /// Adds a shard. It takes records as soon as its servers have applied the entry of the ordering log.
    ///
    /// # Errors
    /// See [`ShardChange`]. A number that was ever used, and a server of another shard that takes records, are refused.
    pub async fn add_shard(&self, spec: ShardSpec) -> Result<(), ShardChange> {
        self.refresh().await.map_err(ShardChange::Unknown)?;
        if self.is_sealed() {
            return Err(ShardChange::Sealed);
        }
        self.with_order(|order| order.check_add(&spec))?;
        let number = spec.shard;
        let servers = spec.servers.clone();
        self.change(&OrderEntry { add: vec![spec], ..OrderEntry::nothing() }).await?;
        // Another client may have used the number, or a server, in the meantime.
        let there = self.with_order(|order| order.shards().get(&number).map(|shard| shard.servers.clone()));
        if there == Some(servers) { Ok(()) } else { Err(ShardError::Exists(number).into()) }
    }

    /// Ends a shard after this many further cuts; 0: at once. Its records stay readable. Clients whose records are not ordered by then get
    /// to know that they never will be, and append them to another shard.
    ///
    /// # Errors
    /// See [`ShardChange`].
    pub async fn finalize(&self, shard: u32, after: u32) -> Result<(), ShardChange> {
        self.refresh().await.map_err(ShardChange::Unknown)?;
        match self.with_order(|order| order.shards().get(&shard).map(|s| s.is_live())) {
            None => return Err(ShardError::Unknown(shard).into()),
            Some(false) => return Ok(()),
            Some(true) => {}
        }
        if self.is_sealed() {
            return Err(ShardChange::Sealed);
        }
        self.change(&OrderEntry { finalize: vec![(shard, after)], ..OrderEntry::nothing() }).await
    }

    async fn change(&self, entry: &OrderEntry) -> Result<(), ShardChange> {
        let s = &self.0;
        let until = s.env.now().after(s.options.op_timeout);
        write(&s.env, &s.log, entry, until).await.map_err(ShardChange::Unknown)?;
        self.refresh().await.map_err(ShardChange::Unknown)
    }

    /// Appends to one segment of a shard of the caller's choice: the paper's appendToShard. A retry is recognised only if it goes to the
    /// same segment.
    ///
    /// # Errors
    /// Like [`atoll_contract::Loglet::append`]. A shard that has ended is `NotAppended`, unless some of the entries are in it.
    pub async fn append_to_shard(
        &self,
        shard: u32,
        segment: usize,
        batch: Batch,
    ) -> Result<Placement, AppendError> {
        self.refresh().await.map_err(|_| AppendError::NotAppended(Unavailability::NoQuorum))?;
        self.run_append(batch, 0, Some(Goal { shard, segment })).await
    }
}

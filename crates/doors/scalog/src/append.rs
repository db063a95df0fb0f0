//! Appends: to a shard of the caller's choice, to one that a policy chooses, or as the log does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_client::scalog_proto as proto;
use atoll_client::{Reason, ShardPolicy};
use atoll_contract::{ClientId, LogPos, OpId};
use atoll_door::backend::{LogRecords, Refusal, ShardBackend, Submitted};
use atoll_door::grpc::{Caller, Shared};
use atoll_door::shards::LogRecord;
use bytes::Bytes;

use crate::convert;

/// How long an append waits for room.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// How many shards may end one after the other under an append.
const MOVES: u32 = 16;

/// A record to be appended.
pub(crate) struct Named {
    pub log: String,
    pub data: Bytes,
    pub client: u64,
    pub floor: Option<u64>,
}

impl Named {
    fn record(&self) -> LogRecord {
        let op = OpId { client: ClientId(self.client), seq: 1 };
        LogRecord { op, floor: self.floor.map(LogPos), payload: self.data.clone() }
    }
}

/// Appends for the clients of a node.
pub(crate) struct Appends {
    shared: Shared,
    /// How many appends were placed in turn.
    turn: AtomicU64,
}

impl Appends {
    pub(crate) fn new(shared: Shared) -> Self {
        Appends { shared, turn: AtomicU64::new(0) }
    }

    /// Returns the operations on shards.
    pub(crate) fn shards(&self) -> Result<Arc<dyn ShardBackend>, Refusal> {
        let missing = || Refusal::no(Reason::Unavailable, "this node serves no shards", "ask another node");
        self.shared.backend.shards().ok_or_else(missing)
    }

    /// Appends to the shard of the caller's choice.
    pub(crate) async fn to_shard(
        &self,
        caller: &Caller,
        named: Named,
        shard: u32,
    ) -> Result<proto::AppendReply, Refusal> {
        convert::check_name_to_change(caller, &named.log)?;
        convert::check_record(&named.data, named.client)?;
        let position = self.shards()?.append(&named.log, shard, named.record()).await?.0;
        Ok(proto::AppendReply { position, shard: Some(shard) })
    }

    /// Appends to the shard that a policy chooses.
    pub(crate) async fn by_policy(
        &self,
        caller: &Caller,
        named: Named,
        policy: i32,
    ) -> Result<proto::AppendReply, Refusal> {
        convert::check_name_to_change(caller, &named.log)?;
        convert::check_record(&named.data, named.client)?;
        match convert::policy(policy, named.floor.is_some())? {
            None => self.as_usual(named).await,
            Some(policy) => self.placed(named, &policy).await,
        }
    }

    async fn placed(&self, named: Named, policy: &ShardPolicy) -> Result<proto::AppendReply, Refusal> {
        let (backend, node) = (self.shards()?, self.shared.backend.node());
        let mut ended = Refusal::no(Reason::Busy, "every shard that was chosen has ended", "try again");
        for _ in 0..MOVES {
            let active = backend.shards(&named.log).await?;
            let start = active.start;
            let live = active.shards.shards.into_iter().filter(|shard| shard.is_live());
            let live: Vec<proto::Shard> = live.map(|shard| convert::shard(shard, start)).collect();
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let chosen = policy.choose(&named.data, &live, node.0, (named.client, turn));
            let shard = chosen.map_err(|words| Refusal::no(Reason::Unavailable, words, "try again later"))?;
            match backend.append(&named.log, shard, named.record()).await {
                Ok(at) => return Ok(proto::AppendReply { position: at.0, shard: Some(shard) }),
                // It is not there, and will not be: another shard takes it.
                Err(refusal) if refusal.failure.reason == Reason::Conflict => ended = refusal,
                Err(mut refusal) => {
                    if refusal.happened == atoll_client::Outcome::Unknown {
                        refusal.failure.next = format!("send it again with AppendToShard, to shard {shard}");
                    }
                    return Err(refusal);
                }
            }
        }
        Err(ended)
    }

    /// Appends like everybody who knows nothing of shards.
    async fn as_usual(&self, named: Named) -> Result<proto::AppendReply, Refusal> {
        self.shards()?.check(&named.log).await?;
        let log = self.shared.backend.log(&named.log)?;
        let until = tokio::time::Instant::now() + BUSY_FOR;
        let mut records = LogRecords {
            client: ClientId(named.client),
            first_seq: 1,
            payloads: vec![named.data],
            floor: named.floor.map(LogPos),
            known: None,
        };
        loop {
            let busy = match log.submit(records) {
                Submitted::Pending(pending) => {
                    let lost = || Refusal::unknown(Reason::Abandoned, "the append has no position", "");
                    let position = pending.await?.first().map(|at| at.0).ok_or_else(lost)?;
                    return Ok(proto::AppendReply { position, shard: None });
                }
                Submitted::Busy(back, busy) => {
                    records = back;
                    busy
                }
            };
            let room = log.room(1, records.payload_bytes());
            if tokio::time::timeout_at(until, room).await.is_err() {
                let next = "try again later, or through another node";
                return Err(Refusal::no(Reason::Busy, busy.to_string(), next));
            }
        }
    }
}

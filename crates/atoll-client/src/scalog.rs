//! Scalog's own interface to one log: records in shards, and the set of shards.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::MAX_RECORD_BYTES;
use crate::connections::{Channel, Connections, Repeat};
use crate::error::{Error, Failure, Outcome, is_worth_retrying};
use crate::lane::random_client;
use crate::proto::Reason;
use crate::scalog_proto as proto;
use crate::scalog_proto::scalog_service_client::ScalogServiceClient;

pub use proto::Shard;
pub use proto::read_record_reply::What as ShardRecord;

/// The maximum length of a message that a node sends, in bytes.
const MAX_REPLY_BYTES: usize = 4 * 1024 * 1024;
/// How long an append to a shard may take until the next attempt. A shard whose node died ends within that time.
const APPEND_TIMEOUT: Duration = Duration::from_secs(12);
/// A change of the shards may have to wait for a node that is down.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// For how long a policy chooses among shards that were seen once.
const SHARDS_FOR: Duration = Duration::from_secs(1);
/// How many shards may end one after the other under an append.
const MOVES: usize = 16;

/// A user's function: chooses one of the shards that take records, of which there is at least one.
pub type ChooseShard = dyn Fn(&[u8], &[Shard]) -> u32 + Send + Sync;

/// Which shard gets the records of later appends. It never changes their order.
#[derive(Clone, Default)]
pub enum ShardPolicy {
    /// The shard follows from the append, as for every other append to the log.
    #[default]
    Hash,
    /// A shard that the node in use keeps. If it keeps none, the shard follows from the append.
    Nearest,
    /// One shard after the other.
    RoundRobin,
    /// A user's function. If it panics, or chooses a shard that takes no records, its append fails and nothing else does.
    Custom(Arc<ChooseShard>),
}

impl fmt::Debug for ShardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ShardPolicy {
    /// Returns the built-in policy with this name.
    pub fn named(name: &str) -> Option<Self> {
        [ShardPolicy::Hash, ShardPolicy::Nearest, ShardPolicy::RoundRobin]
            .into_iter()
            .find(|p| p.name() == name)
    }

    fn name(&self) -> &'static str {
        match self {
            ShardPolicy::Hash => "hash",
            ShardPolicy::Nearest => "nearest",
            ShardPolicy::RoundRobin => "round-robin",
            ShardPolicy::Custom(_) => "custom",
        }
    }

    /// Chooses one of the shards that take records. `node` is the node in use, and an append has a client and a turn.
    ///
    /// # Errors
    /// There is no shard, or the function of the user did something wrong: the words say what.
    pub fn choose(
        &self,
        data: &[u8],
        live: &[Shard],
        node: u32,
        (client, turn): (u64, u64),
    ) -> Result<u32, String> {
        if live.is_empty() {
            return Err("no shard takes records".to_owned());
        }
        let at = |n: u64| live[(n % live.len() as u64) as usize].number;
        let near = || live.iter().find(|shard| shard.nodes.contains(&node)).map(|shard| shard.number);
        let shard = match self {
            ShardPolicy::Hash => at(client),
            ShardPolicy::Nearest => near().unwrap_or_else(|| at(client)),
            ShardPolicy::RoundRobin => at(turn),
            ShardPolicy::Custom(choose) => catch_unwind(AssertUnwindSafe(|| choose(data, live)))
                .map_err(|_| "the policy panicked".to_owned())?,
        };
        let is_live = live.iter().any(|one| one.number == shard);
        is_live
            .then_some(shard)
            .ok_or_else(|| format!("the policy chose shard {shard}, which takes no records"))
    }
}

#[derive(Debug, Default)]
struct State {
    policy: ShardPolicy,
    shards: Option<(Instant, proto::ShardsReply)>,
}

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    log: String,
    state: Mutex<State>,
    turn: AtomicU64,
    /// The highest tail that this client knows.
    tail: AtomicU64,
}

/// The shards of a log, and appends to them. Cheap to clone; the clones share a policy.
#[derive(Clone, Debug)]
pub struct Scalog(Arc<Inner>);

fn client(channel: Channel) -> ScalogServiceClient<Channel> {
    ScalogServiceClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES)
}

/// Performs a call.
macro_rules! call {
    ($self:ident, $repeat:expr, $within:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = $self.0.connections.call($repeat, $within, |channel| {
            let request = request.clone();
            async move { client(channel).$method(request).await }
        });
        call.await
    }};
}

impl Scalog {
    pub(crate) fn new(log: &str, connections: Arc<Connections>) -> Self {
        let (state, turn, tail) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Scalog(Arc::new(Inner { connections, log: log.to_owned(), state, turn, tail }))
    }

    /// Returns the name of the log.
    pub fn log(&self) -> &str {
        &self.0.log
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn within(&self) -> Duration {
        self.0.connections.options.attempt_timeout
    }

    /// Changes where the records of later appends go: setShardPolicy.
    pub fn set_shard_policy(&self, policy: ShardPolicy) {
        self.state().policy = policy;
    }

    /// Appends a record to the shard that the policy chooses: append. Returns its position, and its shard if a policy chose one. If the
    /// shard ends meanwhile, the record goes to another one.
    ///
    /// # Errors
    /// An append that is sent again, after a failure, is done once. After [`Error::Unknown`] it may be in the log, or may still get there.
    /// A policy that panics, or chooses a shard that takes no records, is [`Reason::Invalid`]; nothing happened.
    pub async fn append(&self, data: impl Into<Bytes>) -> Result<(u64, Option<u32>), Error> {
        let (data, policy) = (checked(data.into())?, self.state().policy.clone());
        if matches!(policy, ShardPolicy::Hash) {
            return self.append_hashed(data).await;
        }
        let (mut fresh, who) = (false, random_client());
        let mut ended = Failure::new(Reason::Busy, "every shard that was chosen has ended", "try again");
        for _ in 0..MOVES {
            let reply = self.seen(fresh).await?;
            let live: Vec<Shard> = reply.shards.into_iter().filter(|shard| shard.ended.is_none()).collect();
            let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
            let chosen = policy.choose(&data, &live, reply.node, (who, turn));
            let shard = match chosen {
                // It may not have known that the shard has ended.
                Err(_) if !fresh => {
                    fresh = true;
                    continue;
                }
                chosen => chosen.map_err(|words| Error::invalid(words, "correct the policy"))?,
            };
            match self.to_shard(shard, data.clone(), who).await {
                Ok(position) => return Ok((position, Some(shard))),
                // It is not there, and will not be, whatever became of earlier attempts.
                Err(error) if error.failure().reason == Reason::Conflict => {
                    (fresh, ended) = (true, error.failure().clone());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::DidNotHappen(ended))
    }

    async fn append_hashed(&self, data: Bytes) -> Result<(u64, Option<u32>), Error> {
        let floor = self.floor().await?;
        let (log, policy) = (self.0.log.clone(), proto::Policy::Hash.into());
        let request = proto::AppendRequest { log, data, client: random_client(), policy, floor: None };
        let was_sent = AtomicBool::new(false);
        let call = self.0.connections.call(Repeat::Idempotent, APPEND_TIMEOUT, |channel| {
            let mut request = request.clone();
            request.floor = was_sent.swap(true, Ordering::Relaxed).then_some(floor);
            async move { client(channel).append(request).await }
        });
        let reply = call.await?;
        self.0.tail.fetch_max(reply.position + 1, Ordering::Relaxed);
        Ok((reply.position, reply.shard))
    }

    /// Appends a record to a shard of the caller's choice, and returns its position: appendToShard.
    ///
    /// # Errors
    /// As for [`Scalog::append`]. After [`Reason::Conflict`], the shard takes no records, and this one is not in the log.
    pub async fn append_to_shard(&self, shard: u32, data: impl Into<Bytes>) -> Result<u64, Error> {
        let done = self.to_shard(shard, checked(data.into())?, random_client()).await;
        done.map_err(|error| match error {
            Error::Unknown(failure) if failure.reason == Reason::Conflict => Error::DidNotHappen(failure),
            error => error,
        })
    }

    async fn to_shard(&self, shard: u32, data: Bytes, who: u64) -> Result<u64, Error> {
        let floor = self.floor().await?;
        let log = self.0.log.clone();
        let request = proto::AppendToShardRequest { log, data, client: who, shard, floor: None };
        let was_sent = AtomicBool::new(false);
        let call = self.0.connections.call(Repeat::Idempotent, APPEND_TIMEOUT, |channel| {
            let mut request = request.clone();
            request.floor = was_sent.swap(true, Ordering::Relaxed).then_some(floor);
            async move { client(channel).append_to_shard(request).await }
        });
        let position = call.await?.position;
        self.0.tail.fetch_max(position + 1, Ordering::Relaxed);
        Ok(position)
    }

    /// Returns a tail that was known before an append: no copy of the append is below it.
    async fn floor(&self) -> Result<u64, Error> {
        match self.0.tail.load(Ordering::Relaxed) {
            0 => {
                let known = self.shards().await?.tail;
                Ok(self.0.tail.fetch_max(known, Ordering::Relaxed).max(known))
            }
            known => Ok(known),
        }
    }

    /// Returns the shards as they were a short while ago.
    async fn seen(&self, fresh: bool) -> Result<proto::ShardsReply, Error> {
        let seen = self.state().shards.clone();
        match seen.filter(|(at, _)| !fresh && at.elapsed() < SHARDS_FOR) {
            Some((_, reply)) => Ok(reply),
            None => self.shards().await,
        }
    }

    /// Reads the record at a position, from a shard, or from whatever shard has it: readRecord.
    ///
    /// # Errors
    /// [`Reason::BeyondTail`] if there is none yet.
    pub async fn read_record(&self, position: u64, shard: Option<u32>) -> Result<ShardRecord, Error> {
        let request = proto::ReadRecordRequest { log: self.0.log.clone(), position, shard };
        let reply = call!(self, Repeat::Idempotent, self.within(), read_record, request)?;
        reply.what.ok_or_else(|| {
            Error::DidNotHappen(Failure::new(
                Reason::Damaged,
                "the answer says nothing that this client knows",
                "are the versions of client and server compatible?",
            ))
        })
    }

    /// Returns the records from a position on, in their order, as they are appended: subscribe. Contacts no node.
    pub fn subscribe(&self, from: u64) -> Subscription {
        let connections = self.0.connections.clone();
        let (log, ready) = (self.0.log.clone(), VecDeque::new());
        Subscription { connections, log, next: from, ready, stream: None, failing_since: None }
    }

    /// Gives up all records below a position: trim.
    pub async fn trim(&self, below: u64) -> Result<(), Error> {
        let request = proto::TrimRequest { log: self.0.log.clone(), below };
        call!(self, Repeat::Idempotent, self.within(), trim, request).map(drop)
    }

    /// Returns the shards of the active segment.
    pub async fn shards(&self) -> Result<proto::ShardsReply, Error> {
        let request = proto::ShardsRequest { log: self.0.log.clone() };
        let reply = call!(self, Repeat::Idempotent, self.within(), shards, request)?;
        self.state().shards = Some((Instant::now(), reply.clone()));
        Ok(reply)
    }

    /// Adds a shard, and returns its number and the shards. Without a number and nodes, the node that is asked chooses them. It takes
    /// records on return.
    ///
    /// # Errors
    /// After [`Error::Unknown`] it may have happened, or may still happen; [`Scalog::shards`] shows whether it did.
    pub async fn add_shard(
        &self,
        number: Option<u32>,
        nodes: &[u32],
    ) -> Result<(u32, proto::ShardsReply), Error> {
        let request = proto::AddShardRequest { log: self.0.log.clone(), number, nodes: nodes.to_vec() };
        let reply = call!(self, Repeat::Once, CHANGE_TIMEOUT, add_shard, request)?;
        Ok(self.changed(reply))
    }

    /// Ends a shard after so many further cuts, and returns the shards. Its records stay.
    ///
    /// # Errors
    /// As for [`Scalog::add_shard`]. The last shard that takes records is [`Reason::Refused`].
    pub async fn finalize_shard(&self, shard: u32, after: u32) -> Result<proto::ShardsReply, Error> {
        let request = proto::FinalizeShardRequest { log: self.0.log.clone(), shard, after };
        let reply = call!(self, Repeat::Idempotent, CHANGE_TIMEOUT, finalize_shard, request)?;
        Ok(self.changed(reply).1)
    }

    fn changed(&self, reply: proto::ChangeShardReply) -> (u32, proto::ShardsReply) {
        let shards = reply.shards.unwrap_or_default();
        self.state().shards = Some((Instant::now(), shards.clone()));
        (reply.shard, shards)
    }
}

fn checked(data: Bytes) -> Result<Bytes, Error> {
    if data.len() <= MAX_RECORD_BYTES {
        return Ok(data);
    }
    let words = format!("the record has {} bytes; at most {MAX_RECORD_BYTES} are allowed", data.len());
    Err(Error::DidNotHappen(Failure::new(Reason::TooLarge, words, "split it")))
}

/// Records in their order. It continues at another node if its node fails. An owner that stops asking for records costs the node two
/// replies.
#[derive(Debug)]
pub struct Subscription {
    connections: Arc<Connections>,
    log: String,
    next: u64,
    ready: VecDeque<proto::Record>,
    stream: Option<(usize, Streaming<proto::SubscribeReply>)>,
    failing_since: Option<Instant>,
}

impl Subscription {
    /// Waits for the next record, and returns it with its position. Dropping the future and calling this again loses nothing.
    ///
    /// # Errors
    /// No node could continue for [`crate::Options::operation_timeout`], or none ever can: [`Reason::Trimmed`] if the record was given up.
    pub async fn next(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok((record.position, record.data));
            }
            let at = self.stream.as_ref().map_or_else(|| self.connections.current(), |(at, _)| *at);
            let outcome = match &mut self.stream {
                Some((_, replies)) => replies.message().await,
                None => match self.open(at).await {
                    Ok(replies) => {
                        self.stream = Some((at, replies));
                        continue;
                    }
                    Err(status) => Err(status),
                },
            };
            match outcome {
                Ok(Some(reply)) => {
                    self.failing_since = None;
                    self.next = self.next.max(reply.next);
                    self.ready.extend(reply.records);
                }
                Ok(None) => self.recover(at, &Status::unavailable("the stream ended")).await?,
                Err(status) => self.recover(at, &status).await?,
            }
        }
    }

    async fn open(&self, at: usize) -> Result<Streaming<proto::SubscribeReply>, Status> {
        let unavailable = |failure: Failure| crate::error::status(Outcome::No, &failure);
        let channel = self.connections.channel(at).await.map_err(unavailable)?;
        let request = proto::SubscribeRequest { log: self.log.clone(), from: self.next };
        let mut client = client(channel);
        match timeout(self.connections.options.attempt_timeout, client.subscribe(request)).await {
            Ok(response) => {
                let stream = response?.into_inner();
                self.connections.note_answer();
                Ok(stream)
            }
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// Gets ready to continue at another node.
    async fn recover(&mut self, at: usize, status: &Status) -> Result<(), Error> {
        self.stream = None;
        let (_, failure) = self.connections.parsed(at, status).await;
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let is_late = since.elapsed() >= self.connections.options.operation_timeout;
        self.connections.failed(at, &failure);
        if is_late || !is_worth_retrying(failure.reason) || self.connections.is_hopeless() {
            return Err(Error::DidNotHappen(failure));
        }
        tokio::time::sleep(self.connections.options.backoff(0)).await;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn policies_choose_among_the_shards_that_take_records() {
        let shard = |number, nodes: [u32; 2]| Shard { number, nodes: nodes.to_vec(), ..Shard::default() };
        let live = [shard(3, [1, 2]), shard(8, [3, 4])];
        let choose =
            |policy: &ShardPolicy, node, client, turn| policy.choose(b"x", &live, node, (client, turn));
        assert_eq!(choose(&ShardPolicy::Nearest, 4, 6, 0), Ok(8));
        assert_eq!(choose(&ShardPolicy::Nearest, 9, 6, 0), Ok(3), "by the client");
        assert_eq!(choose(&ShardPolicy::Hash, 1, 7, 0), Ok(8));
        let turns: Vec<_> = (0..3).map(|turn| choose(&ShardPolicy::RoundRobin, 1, 7, turn)).collect();
        assert_eq!(turns, [Ok(3), Ok(8), Ok(3)]);
        let custom = |f: fn(&[u8], &[Shard]) -> u32| ShardPolicy::Custom(Arc::new(f));
        assert_eq!(choose(&custom(|_, live| live[1].number), 1, 7, 0), Ok(8));
        let words = choose(&custom(|_, _| 5), 1, 7, 0).unwrap_err();
        assert_eq!(words, "the policy chose shard 5, which takes no records");
        let words = choose(&custom(|_, _| panic!("a bug")), 1, 7, 0).unwrap_err();
        assert_eq!(words, "the policy panicked");
        assert_eq!(ShardPolicy::Hash.choose(b"x", &[], 1, (1, 1)).unwrap_err(), "no shard takes records");
        assert!(ShardPolicy::named("round-robin").is_some() && ShardPolicy::named("random").is_none());
    }
}

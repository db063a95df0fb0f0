//! Keyspaces: their layouts, and reads and writes of their keys.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::timeout;
use tonic::Streaming;

use crate::connections::{Channel, Connections, Earlier, Repeat, ended};
use crate::error::{Error, Failure, Outcome, is_worth_retrying, parse};
use crate::keyspace_proto as proto;
use crate::keyspace_proto::keyspace_service_client::KeyspaceServiceClient;
use crate::keyspace_proto::operate_reply::answer;
use crate::keyspace_proto::operate_request::operation::What;
use crate::lane::random_client;
use crate::operations::{MAX_OPERATION_BYTES, bytes_of};
use crate::placement::Placement;
use crate::proto::Reason;

/// The maximum length of a message that a node sends, in bytes.
const MAX_REPLY_BYTES: usize = 16 * 1024 * 1024;
/// Creating or deleting a keyspace may have to wait for nodes that do not answer.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of keys whose floors a handle remembers.
const MAX_FLOORS: usize = 16 * 1024;

/// The keyspaces of a cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keyspaces {
    connections: Arc<Connections>,
}

fn client(channel: Channel) -> KeyspaceServiceClient<Channel> {
    KeyspaceServiceClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES)
}

/// How long one call waits for a lease.
const LEASE_WAIT: Duration = Duration::from_secs(5);

/// Performs a call.
macro_rules! call {
    ($self:ident, $repeat:expr, $within:expr, $method:ident, $request:expr) => {{
        let request = $request;
        $self
            .connections
            .call($repeat, $within, |channel| {
                let request = request.clone();
                async move { client(channel).$method(request).await }
            })
            .await
    }};
}

impl Keyspaces {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        Keyspaces { connections }
    }

    /// Creates a keyspace, and returns where it is. After [`Error::Unknown`] it may exist; [`Keyspaces::describe`] shows whether it does.
    pub async fn create(&self, request: proto::CreateKeyspaceRequest) -> Result<proto::Keyspace, Error> {
        call!(self, Repeat::Once, CHANGE_TIMEOUT, create_keyspace, request)
    }

    /// Returns the names of all keyspaces, in order.
    pub async fn list(&self) -> Result<Vec<String>, Error> {
        let within = self.connections.options.attempt_timeout;
        let request = proto::ListKeyspacesRequest {};
        Ok(call!(self, Repeat::Idempotent, within, list_keyspaces, request)?.names)
    }

    /// Returns the engine of a keyspace, and where it is.
    pub async fn describe(&self, name: &str) -> Result<proto::Keyspace, Error> {
        let within = self.connections.options.attempt_timeout;
        let request = proto::DescribeKeyspaceRequest { name: name.to_owned() };
        call!(self, Repeat::Idempotent, within, describe_keyspace, request)
    }

    /// Begins to move the replicas of a keyspace to other nodes. [`Keyspaces::describe`] shows how far the move is. A repeat changes
    /// nothing.
    pub async fn relocate(&self, request: proto::MoveKeyspaceRequest) -> Result<proto::Keyspace, Error> {
        call!(self, Repeat::Idempotent, CHANGE_TIMEOUT, move_keyspace, request)
    }

    /// Deletes a keyspace and all its keys.
    ///
    /// # Errors
    /// After [`Error::Unknown`] it may be deleted, or may still be deleted. The call is not repeated then, because it names the keyspace
    /// by its name alone: it would delete one that somebody has created since the first attempt.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let request = proto::DeleteKeyspaceRequest { name: name.to_owned() };
        call!(self, Repeat::Once, CHANGE_TIMEOUT, delete_keyspace, request).map(drop)
    }

    /// Returns a handle to the keys of a keyspace. Contacts no node.
    pub fn open(&self, name: &str) -> Keyspace {
        Keyspace(Arc::new(Inner {
            connections: self.connections.clone(),
            name: name.to_owned(),
            client: random_client(),
            seq: AtomicU64::new(0),
            floors: Mutex::default(),
            placement: Placement::default(),
        }))
    }
}

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    name: String,
    client: u64,
    seq: AtomicU64,
    /// Lower bounds for writes, by key: what the last reply for the key said.
    floors: Mutex<BTreeMap<Bytes, u64>>,
    placement: Placement,
}

/// The keys of one keyspace. Cheap to clone; all clones are one client. Reads and writes of one key go straight to the node that leads its
/// shard, or to another one if that fails. A write that returns `Ok` was done at most once, however often it was sent; an error says
/// whether it happened.
#[derive(Clone, Debug)]
pub struct Keyspace(Arc<Inner>);

/// What became of the attempt at the node that leads the shard of a key.
enum Straight<T> {
    Answered(T),
    /// There was none, or it failed. Another node may be able to do it.
    Not(Earlier),
}

impl Inner {
    /// Sends an operation to the node that leads the shard of its key, unless that node is not known, or failed lately. `of` takes the
    /// answer to this operation out of an answer.
    ///
    /// # Errors
    /// Fails if that node refuses it, and every other one would.
    async fn straight<T>(
        &self,
        key: &Bytes,
        what: What,
        of: impl FnOnce(answer::Outcome) -> Option<T>,
    ) -> Result<Straight<T>, Error> {
        let earlier = Earlier::none();
        if bytes_of(&what) > MAX_OPERATION_BYTES {
            return Ok(Straight::Not(earlier));
        }
        let Some(node) = self.placement.node(&self.connections, &self.name, key).await else {
            return Ok(Straight::Not(earlier));
        };
        let options = &self.connections.options;
        let until = earlier.began + options.operation_timeout;
        let until = until.min(tokio::time::Instant::now() + options.attempt_timeout);
        match node.operate(what, until).await {
            Ok(outcome) => Ok(match of(outcome) {
                Some(reply) => Straight::Answered(reply),
                // Not an answer to this operation.
                None => Straight::Not(Earlier { happened: Outcome::Unknown, ..earlier }),
            }),
            Err((happened, failure)) if is_worth_retrying(failure.reason) => {
                node.connections.failed(0, &failure);
                Ok(Straight::Not(Earlier { happened, ..earlier }))
            }
            Err((happened, failure)) => Err(ended(happened, failure)),
        }
    }

    fn floor(&self, key: &Bytes) -> u64 {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or(0)
    }

    fn saw_floor(&self, key: &Bytes, floor: u64) {
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a floor, a write is still done at most once. Only more of the repeats are refused.
        if floors.len() >= MAX_FLOORS {
            floors.clear();
        }
        let known = floors.entry(key.clone()).or_default();
        *known = floor.max(*known);
    }

    fn next_lease_name(&self) -> proto::LeaseName {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        proto::LeaseName { client: self.client, seq }
    }

    fn next_name(&self, key: &Bytes) -> proto::WriteName {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        proto::WriteName { client: self.client, seq, again: false, floor: self.floor(key) }
    }
}

/// A lease that this client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// What the lease protects must refuse numbers that are lower than one it has seen.
    pub fencing: u64,
    /// For how long it was granted, in milliseconds.
    pub for_ms: u64,
    /// Renew it before this time, or stop what it protects.
    pub usable_until: Instant,
}

impl HeldLease {
    fn new(lease: proto::Lease, sent: Instant) -> Self {
        let granted = Duration::from_millis(lease.for_ms);
        let usable_until = sent + (granted - granted / 8);
        HeldLease { fencing: lease.fencing, for_ms: lease.for_ms, usable_until }
    }
}

impl Keyspace {
    /// Returns the name of the keyspace.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Reads keys, 256 at most. Each read is linearizable; together they are no snapshot. Returns None for a key that does not exist.
    pub async fn get(&self, keys: Vec<Bytes>) -> Result<Vec<Option<proto::Held>>, Error> {
        let me = &*self.0;
        let request = proto::GetRequest { keyspace: me.name.clone(), keys: keys.clone() };
        let within = me.connections.options.attempt_timeout;
        let found = |outcome| match outcome {
            answer::Outcome::Got(reply) => Some(reply),
            _ => None,
        };
        // Keys of several shards have no node in common.
        let straight = match keys.as_slice() {
            [key] => me.straight(key, What::Get(request.clone()), found).await?,
            _ => Straight::Not(Earlier::none()),
        };
        let reply = match straight {
            Straight::Answered(reply) => reply,
            Straight::Not(earlier) => {
                let call = me.connections.call_after(earlier, Repeat::Idempotent, within, |channel, _| {
                    let request = request.clone();
                    async move { client(channel).get(request).await }
                });
                call.await?
            }
        };
        keys.iter().zip(&reply.found).for_each(|(key, found)| me.saw_floor(key, found.floor));
        Ok(reply.found.into_iter().map(|found| found.held).collect())
    }

    /// Writes a value if the condition holds. `None` is no condition.
    pub async fn put(
        &self,
        key: Bytes,
        value: Bytes,
        condition: Option<proto::condition::What>,
    ) -> Result<proto::WriteReply, Error> {
        let me = &*self.0;
        let condition = condition.map(|what| proto::Condition { what: Some(what) });
        let (keyspace, write) = (me.name.clone(), Some(me.next_name(&key)));
        let request = proto::PutRequest { keyspace, write, key: key.clone(), value, condition };
        let earlier = match me.straight(&key, What::Put(request.clone()), wrote).await? {
            Straight::Answered(reply) => return Ok(me.wrote(&key, reply)),
            Straight::Not(earlier) => earlier,
        };
        let within = me.connections.options.attempt_timeout;
        let reply = me.connections.call_after(earlier, Repeat::Idempotent, within, |channel, happened| {
            let mut request = request.clone();
            request.write = again(request.write, happened);
            async move { client(channel).put(request).await }
        });
        Ok(me.wrote(&key, reply.await?))
    }

    /// Deletes a key if the condition holds. `None` is no condition.
    pub async fn delete(
        &self,
        key: Bytes,
        condition: Option<proto::condition::What>,
    ) -> Result<proto::WriteReply, Error> {
        let me = &*self.0;
        let condition = condition.map(|what| proto::Condition { what: Some(what) });
        let (keyspace, write) = (me.name.clone(), Some(me.next_name(&key)));
        let request = proto::DeleteRequest { keyspace, write, key: key.clone(), condition };
        let earlier = match me.straight(&key, What::Delete(request.clone()), wrote).await? {
            Straight::Answered(reply) => return Ok(me.wrote(&key, reply)),
            Straight::Not(earlier) => earlier,
        };
        let within = me.connections.options.attempt_timeout;
        let reply = me.connections.call_after(earlier, Repeat::Idempotent, within, |channel, happened| {
            let mut request = request.clone();
            request.write = again(request.write, happened);
            async move { client(channel).delete(request).await }
        });
        Ok(me.wrote(&key, reply.await?))
    }

    /// Reads and changes several keys at one moment if all conditions hold, or changes none of them. The floors of the parts are filled in.
    ///
    /// # Errors
    /// Fails with the reason `invalid` if the engine of the keyspace has no transactions.
    pub async fn transact(&self, mut parts: Vec<proto::TransactPart>) -> Result<proto::TransactReply, Error> {
        let me = &*self.0;
        parts.iter_mut().for_each(|part| part.floor = me.floor(&part.key));
        let name = proto::WriteName { floor: 0, ..me.next_name(&Bytes::new()) };
        let (keyspace, write) = (me.name.clone(), Some(name));
        let request = proto::TransactRequest { keyspace, write, parts };
        let within = me.connections.options.attempt_timeout;
        let reply =
            me.connections.call_after(Earlier::none(), Repeat::Idempotent, within, |channel, happened| {
                let mut request = request.clone();
                request.write = again(request.write, happened);
                async move { client(channel).transact(request).await }
            });
        let reply = reply.await?;
        request
            .parts
            .iter()
            .zip(&reply.outcomes)
            .for_each(|(part, made)| me.saw_floor(&part.key, made.floor));
        Ok(reply)
    }

    /// Watches a key: shows its state, and then its changes, but may leave some out. The last one is never left out, and none is shown
    /// after a later one. With `seen`, begins with the first state that has another version; 0 stands for a key that does not exist.
    ///
    /// # Errors
    /// Fails if the key or the keyspace is refused, or if no node answers.
    pub async fn watch(&self, key: Bytes, seen: Option<u64>) -> Result<Watch, Error> {
        let stream = self.begin_watch(&key, seen).await?;
        Ok(Watch { keyspace: self.clone(), key, seen, stream: Some(stream) })
    }

    async fn begin_watch(
        &self,
        key: &Bytes,
        seen: Option<u64>,
    ) -> Result<Streaming<proto::WatchReply>, Error> {
        let me = &*self.0;
        let request = proto::WatchRequest { keyspace: me.name.clone(), key: key.clone(), seen };
        let within = me.connections.options.attempt_timeout;
        call!(me, Repeat::Idempotent, within, watch, request)
    }

    /// Takes the lease on a key, waiting for it for up to `wait`. The owner is a name that others are shown.
    ///
    /// # Errors
    /// Fails with the reason `conflict` if somebody else holds it. After [`Error::Unknown`] the lease may be granted to nobody who knows of
    /// it; it then expires.
    pub async fn acquire_lease(
        &self,
        key: Bytes,
        owner: Bytes,
        for_ms: u64,
        wait: Duration,
    ) -> Result<HeldLease, Error> {
        let me = &*self.0;
        let name = Some(me.next_lease_name());
        let (sent, until) = (Instant::now(), Instant::now() + wait);
        let lease = loop {
            let left = until.saturating_duration_since(Instant::now()).min(LEASE_WAIT);
            let request = proto::AcquireLeaseRequest {
                keyspace: me.name.clone(),
                name,
                key: key.clone(),
                owner: owner.clone(),
                for_ms,
                wait_ms: left.as_millis() as u64,
            };
            let within = me.connections.options.attempt_timeout + left;
            match call!(me, Repeat::Idempotent, within, acquire_lease, request) {
                Err(error) if error.failure().reason == Reason::Conflict && Instant::now() < until => {}
                other => break other?,
            }
        };
        let held = HeldLease::new(lease, sent);
        // The grant may be younger than the request, but nobody knows by how much. A renewal counts from now on.
        if sent.elapsed() > Duration::from_millis(for_ms / 8) {
            return self.renew_lease(key, held.fencing, for_ms).await;
        }
        Ok(held)
    }

    /// Renews a lease, for so many milliseconds from now on.
    ///
    /// # Errors
    /// Fails with the reason `lease-not-held` if it is lost.
    pub async fn renew_lease(&self, key: Bytes, fencing: u64, for_ms: u64) -> Result<HeldLease, Error> {
        let me = &*self.0;
        let (keyspace, name) = (me.name.clone(), Some(me.next_lease_name()));
        let request = proto::RenewLeaseRequest { keyspace, name, key, fencing, for_ms };
        let (sent, within) = (Instant::now(), me.connections.options.attempt_timeout);
        let lease = call!(me, Repeat::Idempotent, within, renew_lease, request)?;
        Ok(HeldLease::new(lease, sent))
    }

    /// Gives up a lease.
    ///
    /// # Errors
    /// Fails with the reason `lease-not-held` if it is lost.
    pub async fn release_lease(&self, key: Bytes, fencing: u64) -> Result<(), Error> {
        let me = &*self.0;
        let request = proto::ReleaseLeaseRequest { keyspace: me.name.clone(), key, fencing, again: false };
        let attempts = AtomicU64::new(0);
        let within = me.connections.options.attempt_timeout;
        let reply = me.connections.call(Repeat::Idempotent, within, |channel| {
            let mut request = request.clone();
            request.again = attempts.fetch_add(1, Ordering::Relaxed) > 0;
            async move { client(channel).release_lease(request).await }
        });
        reply.await.map(drop)
    }

    /// Returns who holds the lease on a key.
    ///
    /// # Errors
    /// Fails with the reason `lease-not-held` if nobody does.
    pub async fn lease_holder(&self, key: Bytes) -> Result<proto::LeaseHolderReply, Error> {
        let me = &*self.0;
        let request = proto::LeaseHolderRequest { keyspace: me.name.clone(), key };
        let within = me.connections.options.attempt_timeout;
        call!(me, Repeat::Idempotent, within, lease_holder, request)
    }

    /// Lists keys in order. If the node fails before it begins to answer, another one is asked.
    pub async fn keys(&self, prefix: Bytes, after: Bytes, limit: u64) -> Result<Keys, Error> {
        let me = &*self.0;
        let request = proto::KeysRequest { keyspace: me.name.clone(), prefix, after, limit };
        let within = me.connections.options.attempt_timeout;
        let stream = call!(me, Repeat::Idempotent, within, keys, request)?;
        Ok(Keys { stream, within: me.connections.options.operation_timeout })
    }
}

impl Inner {
    fn wrote(&self, key: &Bytes, reply: proto::WriteReply) -> proto::WriteReply {
        self.saw_floor(key, reply.floor);
        reply
    }
}

fn wrote(outcome: answer::Outcome) -> Option<proto::WriteReply> {
    match outcome {
        answer::Outcome::Wrote(reply) => Some(reply),
        _ => None,
    }
}

/// Returns the name of a write for the next attempt. Earlier ones that certainly did nothing, and will do nothing, do not count: a key that
/// has forgotten its last writes would refuse what it takes for a repeat.
fn again(name: Option<proto::WriteName>, happened: Outcome) -> Option<proto::WriteName> {
    name.map(|name| proto::WriteName { again: happened != Outcome::No, ..name })
}

/// The states of a key, as they change. If the node that serves them fails, another one continues after the last state that was shown.
#[derive(Debug)]
pub struct Watch {
    keyspace: Keyspace,
    key: Bytes,
    seen: Option<u64>,
    stream: Option<Streaming<proto::WatchReply>>,
}

impl Watch {
    /// Waits for the next state; None stands for a key that does not exist. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Fails if no node can serve the watch, or if the keyspace was deleted. Call it again to try again.
    pub async fn next(&mut self) -> Result<Option<proto::Held>, Error> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => self.stream.insert(self.keyspace.begin_watch(&self.key, self.seen).await?),
            };
            let failure = match stream.message().await {
                Ok(Some(proto::WatchReply { held })) => {
                    self.seen = Some(held.as_ref().map_or(0, |held| held.version));
                    return Ok(held);
                }
                Ok(None) => None,
                Err(status) => Some(parse(&status).1),
            };
            self.stream = None;
            // Another node may be able to serve it. Everything else is the same at every node.
            if let Some(failure) = failure.filter(|failure| !is_of_the_node(failure.reason)) {
                return Err(Error::DidNotHappen(failure));
            }
        }
    }
}

/// Returns whether a watch ended for a reason that concerns only the node that served it, or that time.
fn is_of_the_node(reason: Reason) -> bool {
    matches!(reason, Reason::Unavailable | Reason::Stopping | Reason::Busy | Reason::StorageFailed)
}

/// Keys, as they arrive.
#[derive(Debug)]
pub struct Keys {
    stream: Streaming<proto::KeysReply>,
    within: Duration,
}

impl Keys {
    /// Returns the next keys, or None at the end. After an error, continue with a new listing after the last key.
    pub async fn next(&mut self) -> Result<Option<Vec<proto::keys_reply::Key>>, Error> {
        match timeout(self.within, self.stream.message()).await {
            Ok(Ok(reply)) => Ok(reply.map(|reply| reply.keys)),
            Ok(Err(status)) => Err(Error::DidNotHappen(parse(&status).1)),
            Err(_) => {
                let words = "the node sends no more keys";
                Err(Error::DidNotHappen(Failure::new(Reason::Unavailable, words, "begin after the last key")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_new_until_an_attempt_may_have_happened() {
        let name = proto::WriteName { client: 1, seq: 2, again: false, floor: 3 };
        assert_eq!(again(Some(name), Outcome::No), Some(name));
        for happened in [Outcome::Unknown, Outcome::Yes] {
            assert_eq!(again(Some(name), happened), Some(proto::WriteName { again: true, ..name }));
        }
    }
}

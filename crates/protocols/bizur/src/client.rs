//! The client of a keyspace: finds the leader of a key's shard, retries what is safe to retry, and says what may have happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::OpId;
use atoll_contract::keyspace::{
    Ability, Attempt, Change, Changed, Floor, Guard, Held, KeyPlace, KeyVersion, Keyspace, KeyspaceError,
    Layout, Limits, ListFrom, Page, Unavailability,
};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, CallError, Env, NodeId, Ticket};
use bytes::Bytes;

use crate::bucket::{MAX_CONTENT_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::groups;
use crate::message::{Answer, Ask, AskReply, Instance, Question, ShardConfig, wire_change};
use crate::provider::{ENGINE, instances_on, tell};
use crate::search::Search;

/// Intervals of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// How long an attempt waits for its answer. Too small: slow leaders are asked twice. Too large: dead ones are noticed late.
    pub attempt: Duration,
    /// How long an operation is retried before it fails.
    pub patience: Duration,
    /// Mean pause before a retry.
    pub pause: Duration,
    /// How long a leader may leave a client without an answer before the client asks another replica to lead, although that one hears the
    /// leader. Too small: clients of a slow leader replace it, in turn. Too large: a leader that only some nodes reach keeps the others
    /// waiting.
    pub depose_after: Duration,
    /// How long a wait for a change of a key lasts at most.
    pub watch: Duration,
    /// How long a leader is asked to wait for a change. It is also how late a change is seen if the leader that was asked has been replaced
    /// and does not know it. Too small: keys that do not change cost more reads.
    pub watch_at_leader: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            attempt: Duration::from_millis(150),
            patience: Duration::from_secs(3),
            pause: Duration::from_millis(8),
            depose_after: Duration::from_millis(1_500),
            watch: Duration::from_secs(10),
            watch_at_leader: Duration::from_secs(2),
        }
    }
}

/// The most keys of one read.
const MAX_KEYS: usize = 256;
/// The most keys in a page of a listing.
const MAX_PAGE_KEYS: usize = 2048;
/// How many shards a listing asks at the same time. After a change of leaders, each of them has to recover all of its buckets first.
const LISTED_AT_ONCE: usize = 16;
/// For the same reason, the question for a page has this many times longer for its answer.
const LIST_PATIENCE: u32 = 8;
/// How often a leader is asked whether it has copied all buckets, each time for as long as an operation is retried.
const COPY_TRIES: u32 = 5;

#[derive(Debug, Default)]
struct Known {
    /// The node that last answered as the leader of a shard.
    leaders: BTreeMap<u32, NodeId>,
    /// Clocks of buckets that have been shown: floors of later writes.
    floors: BTreeMap<KeyPlace, u64>,
    /// Replicas of which is known that they have lost their memory: shard, epoch and node.
    gone: BTreeSet<(u32, u64, NodeId)>,
    /// The instances to which shards have moved since the layout was read.
    moved: BTreeMap<u32, Arc<Serving>>,
}

/// The instance of a shard that serves. Every operation looks at one, so they share it.
#[derive(Debug)]
struct Serving {
    instance: Instance,
    nodes: Arc<[NodeId]>,
}

impl Serving {
    fn new(instance: Instance) -> Arc<Serving> {
        let nodes = instance.config.nodes().into();
        Arc::new(Serving { instance, nodes })
    }

    fn config(&self) -> &ShardConfig {
        &self.instance.config
    }
}

#[derive(Debug)]
struct Inner {
    env: Env,
    layout: Layout,
    /// The instances of its shards.
    instances: Vec<Arc<Serving>>,
    options: ClientOptions,
    known: Mutex<Known>,
}

/// A keyspace on Bizur, as a node sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BizurKeyspace(Arc<Inner>);

/// An operation that got no answer.
struct NoAnswer {
    why: Unavailability,
    /// Whether an attempt may have reached the leader.
    maybe: bool,
}

impl BizurKeyspace {
    /// Returns a handle to the keyspace with this layout.
    pub fn new(env: Env, layout: Layout, options: ClientOptions) -> Self {
        let instances = groups::instances(&layout).into_iter().map(Serving::new).collect();
        BizurKeyspace(Arc::new(Inner { env, layout, instances, options, known: Mutex::default() }))
    }

    /// Returns the node that last led a shard.
    pub fn leader(&self, shard: u32) -> Option<NodeId> {
        lock(&self.0.known).leaders.get(&shard).copied()
    }

    /// Returns the instance of a shard that serves, as far as this client knows.
    fn serving(&self, shard: u32) -> Arc<Serving> {
        let known = lock(&self.0.known).moved.get(&shard).cloned();
        known.unwrap_or_else(|| self.0.instances[shard as usize].clone())
    }

    /// Adopts the instance that serves in place of another one. Returns whether that is news.
    fn adopt(&self, shard: u32, to: Instance) -> bool {
        let now = self.serving(shard).config().key;
        let key = to.config.key;
        let is_news = (key.keyspace, key.shard) == (now.keyspace, shard) && key.epoch > now.epoch;
        if is_news && !to.config.replicas.is_empty() {
            hit("bizur.client.follows");
            lock(&self.0.known).moved.insert(shard, Serving::new(to));
        }
        is_news
    }

    /// Asks the leader of a shard, whichever node that is, until there is an answer. `question` gets whether an earlier attempt may have
    /// reached a leader; the result says so, too.
    async fn ask(
        &self,
        shard: u32,
        mut maybe: bool,
        is_write: bool,
        question: impl Fn(bool) -> Question,
    ) -> Result<(Answer, bool), NoAnswer> {
        let (env, options) = (&self.0.env, self.0.options);
        let mut serving = self.serving(shard);
        if serving.nodes.is_empty() {
            return Err(NoAnswer { why: Unavailability::StorageFailed, maybe });
        }
        let until = env.now().after(options.patience);
        let mut search = Search::new(serving.nodes.clone(), self.leader(shard));
        let mut why = Unavailability::NoQuorum;
        loop {
            let (node, began) = (search.node, env.now());
            let question = question(maybe);
            let lists = matches!(question, Question::List { .. });
            let attempt = if lists { options.attempt * LIST_PATIENCE } else { options.attempt };
            let ask = Ask { shard: serving.config().key, insist: search.insist, question };
            env.race_point("bizur.client.asks").await;
            match env.within(search.wait(attempt), env.call(node, ask)).await {
                Ok(Ok(reply)) => match search.heard(reply.answer) {
                    Answer::NotLeader { leader } => {
                        search.not_leader(env.now(), options.depose_after, leader.map(NodeId));
                    }
                    Answer::Unknown {} => maybe |= is_write,
                    Answer::Absent {} => {
                        if !self.create(node, &serving).await {
                            let epoch = serving.config().key.epoch;
                            lock(&self.0.known).gone.insert((shard, epoch, node));
                            search.cannot_lead();
                        }
                    }
                    Answer::Moved { to } => {
                        // The next instance is known soon after this one was sealed.
                        if to.is_some_and(|to| self.adopt(shard, to)) {
                            serving = self.serving(shard);
                            search = Search::new(serving.nodes.clone(), None);
                            continue;
                        }
                        why = Unavailability::Gone;
                        search.moves();
                    }
                    Answer::Dropped {} => return Err(NoAnswer { why: Unavailability::Gone, maybe }),
                    Answer::StorageFailed {} => {
                        why = Unavailability::StorageFailed;
                        search.cannot_lead();
                    }
                    Answer::DiskFull {} => why = Unavailability::DiskFull,
                    Answer::Busy {} => why = Unavailability::Busy,
                    answer => {
                        lock(&self.0.known).leaders.insert(shard, node);
                        return Ok((answer, maybe));
                    }
                },
                Ok(Err(CallError::NotSent(_))) => search.no_answer(began, false),
                late => {
                    hit("bizur.client.no_answer");
                    maybe |= is_write;
                    search.no_answer(began, late.is_err());
                }
            }
            if self.lost_majority(serving.config()) {
                hit("bizur.client.lost_majority");
                return Err(NoAnswer { why: Unavailability::LostMajority, maybe });
            }
            if env.now() >= until {
                return Err(NoAnswer { why, maybe });
            }
            env.sleep(env.jitter(options.pause)).await;
        }
    }

    /// Returns whether a majority of the replicas of a shard has lost its memory. Then nobody ever leads this instance again.
    fn lost_majority(&self, config: &ShardConfig) -> bool {
        let (shard, epoch) = (config.key.shard, config.key.epoch);
        let known = lock(&self.0.known);
        let gone = config.nodes().into_iter().filter(|node| known.gone.contains(&(shard, epoch, *node)));
        config.replicas.len() - gone.count() < config.majority()
    }

    /// Tells a node of its replica of an instance, and of the others of the layout. Returns false if it is not one of them any more.
    async fn create(&self, node: NodeId, serving: &Serving) -> bool {
        let instance = &serving.instance;
        let is_first = self.0.instances.iter().any(|first| first.instance == *instance);
        let shards = if is_first { instances_on(&self.0.layout, node) } else { vec![instance.clone()] };
        tell(&self.0.env, node, shards, self.0.options.attempt).await.unwrap_or(true)
    }

    /// Waits until the leader of a shard has recovered all of its buckets, from the instance before if need be.
    pub(crate) async fn copy(&self, shard: u32) -> Result<(), KeyspaceError> {
        let mut why = Unavailability::NoQuorum;
        for _ in 0..COPY_TRIES {
            // A page is answered only once all buckets are recovered.
            let question = |_| Question::List { prefix: Bytes::new(), after: None, limit: 1 };
            match self.ask(shard, false, false, question).await {
                Ok((Answer::Page { .. }, _)) => return Ok(()),
                Ok(_) => {}
                Err(no) => why = no.why,
            }
        }
        Err(KeyspaceError::NotDone(why))
    }

    fn saw_clock(&self, place: KeyPlace, clock: u64) {
        let mut known = lock(&self.0.known);
        let floor = known.floors.entry(place).or_default();
        *floor = (*floor).max(clock);
    }

    async fn get_one(&self, key: Bytes) -> Result<Option<Held>, KeyspaceError> {
        let place = self.0.layout.place(&key);
        let question = |_| Question::Get { key: key.clone() };
        match self.ask(place.shard, false, false, question).await {
            Ok((Answer::Held { held: found }, _)) => Ok(held(found)),
            Ok(_) => Err(KeyspaceError::NotDone(Unavailability::NoQuorum)),
            Err(no) => Err(KeyspaceError::NotDone(no.why)),
        }
    }

    async fn write_one(
        &self,
        op: OpId,
        attempt: Attempt,
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> Result<Changed, KeyspaceError> {
        self.limits().check_write(&key, &guard, &change)?;
        let place = self.0.layout.place(&key);
        let (mut floor, mut maybe) = match attempt {
            Attempt::First => (self.floor(&key).0, false),
            Attempt::Again(floor) => (floor.0, true),
        };
        loop {
            let question = |repeat| Question::Write {
                op,
                floor,
                repeat,
                key: key.clone(),
                guard: guard.clone().into(),
                value: wire_change(change.clone()),
            };
            let answer = match self.ask(place.shard, maybe, true, question).await {
                Ok((answer, attempted)) => {
                    maybe = attempted;
                    answer
                }
                Err(NoAnswer { why, maybe: true }) => {
                    return Err(KeyspaceError::Unknown { why, floor: Floor(floor) });
                }
                Err(NoAnswer { why, .. }) => return Err(KeyspaceError::NotDone(why)),
            };
            return match answer {
                Answer::Done { version } => {
                    self.saw_clock(place, version);
                    Ok(Changed::Done(KeyVersion(version)))
                }
                Answer::Not { held: found, clock } => {
                    self.saw_clock(place, clock);
                    Ok(Changed::Not(held(found)))
                }
                Answer::ConditionFailed {} => Err(KeyspaceError::ConditionFailed),
                Answer::Stale { clock } => {
                    self.saw_clock(place, clock);
                    // Only an attempt without an answer can have been forgotten. All attempts so far were answered.
                    if !maybe && clock > floor {
                        hit("bizur.client.raises_floor");
                        floor = clock;
                        continue;
                    }
                    Err(KeyspaceError::Forgotten)
                }
                Answer::BucketFull {} => {
                    Err(KeyspaceError::Full { what: "the bucket of this key", most: MAX_CONTENT_BYTES })
                }
                Answer::ReplicasFull {} => {
                    Err(KeyspaceError::Full { what: "a majority of the replicas", most: 0 })
                }
                _ => Err(KeyspaceError::NotDone(Unavailability::NoQuorum)),
            };
        }
    }

    /// Asks a shard for its next keys.
    fn list_shard(
        &self,
        shard: u32,
        from: &ListFrom,
        limit: usize,
    ) -> Ticket<Result<(Answer, bool), NoAnswer>> {
        let (me, prefix, after) = (self.clone(), from.prefix.clone(), from.after.clone());
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        self.0.env.launch("bizur.list", async move {
            let question = |_| Question::List { prefix: prefix.clone(), after: after.clone(), limit };
            me.ask(shard, false, false, question).await
        })
    }

    /// Waits until a key has another version than `seen`, or for a while, and reads it. The leader answers once it has committed a change.
    /// If it does not answer, it may be gone, and the key is read again. So what is shown never goes back, and the last change is never
    /// missed.
    async fn changed(&self, key: Bytes, seen: KeyVersion) -> Result<Option<Held>, KeyspaceError> {
        let (env, options) = (&self.0.env, self.0.options);
        let until = env.now().after(options.watch);
        let is_new = |held: &Option<Held>| held.as_ref().map_or(KeyVersion(0), |held| held.version) != seen;
        let mut pause = options.pause;
        loop {
            let asked = env.now();
            if let Some(held) = self.wait_at_leader(&key, seen).await.filter(is_new) {
                hit("bizur.client.watch_notified");
                return Ok(held);
            }
            let found = self.get_one(key.clone()).await?;
            if is_new(&found) || env.now() >= until {
                return Ok(found);
            }
            // A node that does not lead, or that has no room for the watch, answers at once.
            if env.now().since(asked) < options.attempt {
                env.sleep(env.jitter(pause)).await;
                pause = (pause * 2).min(options.attempt);
            } else {
                pause = options.pause;
            }
        }
    }

    /// Asks the node that last led the shard of a key to wait for a change. None if it answers nothing that is new.
    async fn wait_at_leader(&self, key: &Bytes, seen: KeyVersion) -> Option<Option<Held>> {
        let (env, options, layout) = (&self.0.env, self.0.options, &self.0.layout);
        let shard = layout.place(key).shard;
        let serving = self.serving(shard);
        let nodes = &serving.nodes;
        let leader = self.leader(shard).filter(|node| nodes.contains(node)).or(nodes.first().copied())?;
        let for_ms = options.watch_at_leader.as_millis() as u32;
        let question = Question::Wait { key: key.clone(), seen: seen.0, for_ms };
        let call = env.call(leader, Ask { shard: serving.config().key, insist: false, question });
        match env.within(options.watch_at_leader + options.attempt, call).await {
            Ok(Ok(AskReply { answer: Answer::Held { held: found } })) => Some(held(found)),
            _ => None,
        }
    }

    /// Asks all shards for the next keys, and merges them in order. A shard that has more keys than it sent limits how far the page goes.
    async fn list_all(&self, from: ListFrom) -> Result<Page, KeyspaceError> {
        let limit = from.limit.clamp(1, MAX_PAGE_KEYS);
        let mut keys = Vec::new();
        let mut complete_upto: Option<Bytes> = None;
        let shards: Vec<u32> = (0..self.0.layout.shards.len() as u32).collect();
        let share = share_of_page(limit, shards.len());
        for part in shards.chunks(LISTED_AT_ONCE) {
            let asked: Vec<_> = part.iter().map(|shard| self.list_shard(*shard, &from, share)).collect();
            for ticket in asked {
                match ticket.await {
                    Ok(Ok((Answer::Page { keys: found, more }, _))) => {
                        let last = found.last().filter(|_| more).map(|(key, _)| key.clone());
                        if let Some(last) = last
                            && complete_upto.as_ref().is_none_or(|upto| last < *upto)
                        {
                            complete_upto = Some(last);
                        }
                        keys.extend(found.into_iter().map(|(key, version)| (key, KeyVersion(version))));
                    }
                    Ok(Err(no)) => return Err(KeyspaceError::NotDone(no.why)),
                    _ => return Err(KeyspaceError::NotDone(Unavailability::Stopping)),
                }
            }
        }
        keys.sort_unstable();
        if let Some(upto) = &complete_upto {
            keys.retain(|(key, _)| key <= upto);
        }
        let more = complete_upto.is_some() || keys.len() > limit;
        keys.truncate(limit);
        let upto = keys.last().filter(|_| more).map(|(key, _)| key.clone());
        Ok(Page { keys, more, upto })
    }
}

/// Returns how many keys each of some shards is asked for, for a page of `limit` keys: its share, and as many more as its share may well be
/// larger, because a page ends at the last key of the shard that sent too few. Asking each of them for a whole page would read as many
/// pages as there are shards, and use one.
fn share_of_page(limit: usize, shards: usize) -> usize {
    let share = limit.div_ceil(shards.max(1));
    (share + 4 * share.isqrt() + 8).min(limit)
}

fn held(found: Option<(u64, Bytes)>) -> Option<Held> {
    // The answer pins its whole read buffer, so copy the value (X13).
    found.map(|(version, value)| Held { version: KeyVersion(version), value: Bytes::copy_from_slice(&value) })
}

impl Keyspace for BizurKeyspace {
    fn engine(&self) -> &'static str {
        ENGINE
    }

    fn limits(&self) -> Limits {
        Limits {
            key_bytes: MAX_KEY_BYTES,
            value_bytes: MAX_VALUE_BYTES,
            keys: MAX_KEYS,
            page_keys: MAX_PAGE_KEYS,
        }
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Watches]
    }

    fn wait_change(
        &self,
        key: Bytes,
        seen: KeyVersion,
    ) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_key(&key)?;
            self.changed(key, seen).await
        })
    }

    fn get(&self, key: Bytes) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_key(&key)?;
            self.get_one(key).await
        })
    }

    fn get_many(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Result<Vec<Option<Held>>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_keys(&keys)?;
            // Most reads are of one key: they need no procedures beside this one.
            if let [key] = keys.as_slice() {
                return Ok(vec![self.get_one(key.clone()).await?]);
            }
            let mut asked = Vec::with_capacity(keys.len());
            for key in keys {
                let me = self.clone();
                asked.push(self.0.env.launch("bizur.get", async move { me.get_one(key).await }));
            }
            let mut found = Vec::with_capacity(asked.len());
            for ticket in asked {
                found.push(ticket.await.unwrap_or(Err(KeyspaceError::NotDone(Unavailability::Stopping)))?);
            }
            Ok(found)
        })
    }

    fn floor(&self, key: &[u8]) -> Floor {
        let place = self.0.layout.place(key);
        Floor(lock(&self.0.known).floors.get(&place).copied().unwrap_or(0))
    }

    fn write(
        &self,
        op: OpId,
        attempt: Attempt,
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> BoxFuture<'_, Result<Changed, KeyspaceError>> {
        Box::pin(self.write_one(op, attempt, key, guard, change))
    }

    fn list(&self, from: ListFrom) -> BoxFuture<'_, Result<Page, KeyspaceError>> {
        Box::pin(async move {
            if from.prefix.len() > MAX_KEY_BYTES
                || from.after.as_ref().is_some_and(|k| k.len() > MAX_KEY_BYTES)
            {
                let bytes = from.prefix.len().max(from.after.as_ref().map_or(0, Bytes::len));
                return Err(KeyspaceError::InvalidKey { bytes, most: MAX_KEY_BYTES });
            }
            self.list_all(from).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_little_more_than_a_share_from_each_shard() {
        assert_eq!(share_of_page(1000, 1), 1000);
        assert_eq!(share_of_page(3, 256), 3, "a shard may have all of them");
        for shards in [2, 16, 256, 1024] {
            let share = share_of_page(MAX_PAGE_KEYS, shards);
            assert!(
                share * shards >= MAX_PAGE_KEYS && share * shards <= 8 * MAX_PAGE_KEYS,
                "{share} of {shards}"
            );
        }
    }
}

//! Sends the requests of all proposers of a node: what is for the same acceptor at the same moment goes out in one message. Reads and what
//! writes travel apart, because an answer to a write waits for the disk.
//!
//! The courier also tells a node of its group if the node does not know it. A round does not wait for that if it has a majority without
//! this node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{Completer, Env, NodeId, Ticket, ticket};

use crate::message::{Answer, Ask, Create, GroupConfig, GroupKey, Mode, Reject, Request, Step};

/// The most requests in one message.
const MAX_ITEMS: usize = 64;
/// The most bytes of keys and states in one message. A single request may be longer.
const MAX_BYTES: usize = 256 * 1024;
/// The most requests that wait for one acceptor. Further ones count as lost.
const MAX_WAITING: usize = 16 * 1024;

/// Gets the answer; None if there is none.
type Waiting = (Request, Completer<Option<Answer>>);
/// An acceptor, and whether the requests are reads.
type Way = (NodeId, bool);

#[derive(Debug)]
pub(crate) struct Courier {
    env: Env,
    groups: Arc<Vec<GroupConfig>>,
    patience: Duration,
    queues: Mutex<BTreeMap<Way, Vec<Waiting>>>,
}

fn bytes(request: &Request) -> usize {
    let state = match &request.step {
        Step::Write { state, .. } => state.len(),
        _ => 0,
    };
    request.key.len() + state
}

impl Courier {
    /// Returns a courier that waits this long for an answer.
    pub(crate) fn new(env: Env, groups: Arc<Vec<GroupConfig>>, patience: Duration) -> Arc<Self> {
        Arc::new(Courier { env, groups, patience, queues: Mutex::default() })
    }

    /// Queues a request. The ticket gets the answer, or None if there is none.
    pub(crate) fn send(self: &Arc<Self>, to: NodeId, request: Request) -> Ticket<Option<Answer>> {
        let is_read = matches!(request.step, Step::Prep { mode: Mode::ReadOnly {}, .. });
        let (done, wait) = ticket();
        let mut queues = lock(&self.queues);
        let queue = queues.entry((to, is_read)).or_default();
        if queue.len() >= MAX_WAITING {
            drop(queues);
            done.complete(None);
            return wait;
        }
        queue.push((request, done));
        let is_first = queue.len() == 1;
        drop(queues);
        if is_first {
            let me = self.clone();
            self.env.spawn("in-place.send", Box::pin(async move { me.flush((to, is_read)) }));
        }
        wait
    }

    /// Sends what has been queued for an acceptor.
    fn flush(self: &Arc<Self>, way: Way) {
        let mut waiting = lock(&self.queues).remove(&way).unwrap_or_default().into_iter().peekable();
        while waiting.peek().is_some() {
            let (mut requests, mut tickets, mut size) = (Vec::new(), Vec::new(), 0);
            while let Some((request, done)) = waiting.next_if(|(request, _)| {
                requests.is_empty() || (requests.len() < MAX_ITEMS && size + bytes(request) <= MAX_BYTES)
            }) {
                size += bytes(&request);
                requests.push(request);
                tickets.push(done);
            }
            if requests.len() > 1 {
                hit("in-place.courier.batch");
            }
            self.env.spawn("in-place.call", Box::pin(self.clone().deliver(way.0, requests, tickets)));
        }
    }

    async fn deliver(
        self: Arc<Self>,
        to: NodeId,
        items: Vec<Request>,
        tickets: Vec<Completer<Option<Answer>>>,
    ) {
        let groups: Vec<GroupKey> = items.iter().map(|request| request.group).collect();
        self.env.race_point("in-place.courier.sends").await;
        let call = self.env.call(to, Ask { items });
        let answers = match self.env.within(self.patience, call).await {
            Ok(Ok(reply)) if reply.items.len() == tickets.len() => reply.items,
            _ => Vec::new(),
        };
        let mut created: BTreeMap<GroupKey, Option<Answer>> = BTreeMap::new();
        let mut answers = answers.into_iter();
        for (done, group) in tickets.into_iter().zip(groups) {
            let answer = answers.next();
            if !matches!(answer, Some(Answer::Rejected { why: Reject::Unknown {} })) {
                done.complete(answer);
                continue;
            }
            let told = match created.get(&group) {
                Some(told) => told.clone(),
                None => self.create(to, group).await,
            };
            created.insert(group, told.clone());
            done.complete(told);
        }
    }

    /// Tells a node that it is an acceptor of a group. Returns what counts as its answer: that it did not know the group, or that it has
    /// another identity. None if it did not answer.
    async fn create(&self, to: NodeId, group: GroupKey) -> Option<Answer> {
        hit("in-place.courier.create");
        let config = self.groups.get(group.shard as usize)?.clone();
        let call = self.env.call(to, Create { groups: vec![config] });
        let why = match self.env.within(self.patience, call).await {
            Ok(Ok(created)) if created.not_member > 0 => Reject::WrongIdentity {},
            Ok(Ok(created)) if created.dropped > 0 => Reject::Dropped {},
            Ok(Ok(_)) => Reject::Unknown {},
            _ => return None,
        };
        Some(Answer::Rejected { why })
    }
}

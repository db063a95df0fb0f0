//! The leader of a shard (§2): its term, its copies of the committed buckets, and the requests that wait.
//!
//! The state is volatile. Every message of a leader is part of a numbered *round*: a confirmation, a read for recovery, or a write. A
//! round is acknowledged once a majority of different replicas has answered it in the leader's election. An acknowledged round proves that
//! the leader still led when the last of these answers was given. So a request may be answered from the committed buckets as soon as a
//! round that was sent after its arrival is acknowledged (bizur-B7). All waiting reads share one confirmation, and the next one serves all
//! that have arrived meanwhile.
//!
//! The replica on the leader's node is not special: it gets the same messages, and may refuse (bizur-B12). The copies of the leader change
//! only when a write is acknowledged (bizur-B5).
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | state, terms, waiting requests |
//! | `rounds.rs` | rounds: sending, acknowledgements, retransmission, recovery |
//! | `serve.rs` | the requests of clients |
//! | `watches.rs` | the watches of keys that have not changed |

mod rounds;
mod serve;
mod watches;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Effects, Lsn, NodeId, Tick};
use bytes::Bytes;

use crate::bucket::{Bucket, BucketWrite};
use crate::bundle::Outgoing;
use crate::elect::ElectId;
use crate::message::{Answer, AskReply, Question};
use crate::mutants;
use crate::shard::Shard;

use rounds::Round;
use watches::Watches;

/// Intervals and limits of a leader.
#[derive(Clone, Debug)]
pub struct LeaderOptions {
    /// How long a message may be without an answer before it is sent again (bizur-B13). Too small: a slow disk gets everything twice.
    pub resend_after: Duration,
    /// How long a round may lack a majority before the leader steps down.
    pub give_up_after: Duration,
    /// How long an election may last. After each one that has found no majority in time, the next may last twice as long: a vote takes two
    /// syncs, and nobody knows how slow they are.
    pub election_patience: Duration,
    /// How long any election may last.
    pub longest_election: Duration,
    /// How many requests of one shard may wait. More are refused as busy.
    pub waiting: usize,
    /// How many buckets one message of a recovery carries.
    pub recovery_batch: usize,
    /// How many rounds of background recovery are under way at once.
    pub recovery_rounds: usize,
}

/// How often the time of an election doubles at most.
const MAX_DOUBLINGS: u32 = 16;

impl Default for LeaderOptions {
    fn default() -> Self {
        LeaderOptions {
            resend_after: Duration::from_millis(50),
            give_up_after: Duration::from_millis(700),
            election_patience: Duration::from_millis(200),
            longest_election: Duration::from_millis(3_200),
            waiting: 4096,
            recovery_batch: 16,
            recovery_rounds: 2,
        }
    }
}

/// How far a bucket is in this term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// It was not recovered. Nothing may be read from it or written to it (bizur-B6).
    #[default]
    Unknown,
    /// Its recovery is under way.
    Recovering,
    /// A majority has acknowledged its recovery (bizur-B4).
    Ready,
}

/// A write that waits for its bucket.
#[derive(Debug)]
struct Queued {
    caller: Caller,
    arrived: u64,
    write: BucketWrite,
}

/// A bucket, as its leader sees it.
#[derive(Debug, Default)]
struct LedBucket {
    progress: Progress,
    /// The committed content.
    content: Bucket,
    /// The highest counter that was used in this term.
    ctr: u64,
    queue: VecDeque<Queued>,
    /// The write under way. One at a time (bizur-B14).
    flight: Option<u64>,
}

/// What a waiting request needs.
#[derive(Debug)]
enum Wanted {
    /// The value of a key in a bucket.
    Get { index: u32, key: Bytes },
    /// Keys in order.
    List { prefix: Bytes, after: Option<Bytes>, limit: usize },
    /// The value of a key in a bucket once its version is not `seen`.
    Change { index: u32, key: Bytes, seen: u64, until: Tick },
    /// Nothing but the proof that the leader still leads.
    Proof { answer: Answer },
}

/// A request that waits for an acknowledged round.
#[derive(Debug)]
struct Reader {
    caller: Caller,
    /// It may be answered once this round, or a later one, is acknowledged.
    arrived: u64,
    wanted: Wanted,
}

/// An election in which this server stands.
#[derive(Debug)]
struct Election {
    elect: ElectId,
    /// The replicas that have voted for it.
    votes: BTreeSet<usize>,
    since: Tick,
    resend_at: Tick,
    /// The fact that the server stands in it. Requests for votes wait for it (bizur-B3).
    stood: Lsn,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Leader {
    options: LeaderOptions,
    /// The election that was won (bizur-B2): everything that is sent names it, and it changes only through [`Leader::won`].
    term: Option<ElectId>,
    election: Option<Election>,
    /// No election before this time, because the last one was lost (bizur-B9).
    not_before: Tick,
    /// How many elections in a row have found no majority in time.
    slow_elections: u32,
    /// The highest election that was heard of in a refusal.
    hint: ElectId,
    next_round: u64,
    /// The highest round that was acknowledged in this term.
    confirmed: u64,
    confirming: Option<u64>,
    rounds: BTreeMap<u64, Round>,
    /// The writes of this turn. Its end sends them.
    outbox: Vec<Outgoing>,
    buckets: Vec<LedBucket>,
    /// The buckets that nobody has begun to recover.
    unknown: BTreeSet<u32>,
    /// Those of them that a request waits for.
    demanded: BTreeSet<u32>,
    /// How many rounds of recovery are under way.
    recovering: usize,
    /// How many buckets are ready.
    ready: usize,
    /// The buckets with queued writes and nothing under way.
    runnable: BTreeSet<u32>,
    readers: VecDeque<Reader>,
    queued: usize,
    /// The keys of all buckets that are ready, in order, and the bucket of each. A write over an existing key changes nothing here.
    keys: BTreeMap<Bytes, u32>,
    /// Requests that came during an election.
    early: VecDeque<(Caller, Question)>,
    /// The watches of keys that have not changed.
    watches: Watches,
    /// How many rounds of each kind have begun, and how many pages of listings were asked for, since the last
    /// [`Leader::take_counted`].
    counted: BTreeMap<&'static str, u64>,
}

/// What pages of listings are counted as.
pub(crate) const PAGES: &str = "pages";

impl Leader {
    pub(crate) fn new(options: LeaderOptions) -> Self {
        Leader {
            options,
            term: None,
            election: None,
            not_before: Tick(0),
            slow_elections: 0,
            hint: ElectId::ZERO,
            next_round: 1,
            confirmed: 0,
            confirming: None,
            rounds: BTreeMap::new(),
            outbox: Vec::new(),
            buckets: Vec::new(),
            unknown: BTreeSet::new(),
            demanded: BTreeSet::new(),
            recovering: 0,
            ready: 0,
            runnable: BTreeSet::new(),
            readers: VecDeque::new(),
            queued: 0,
            keys: BTreeMap::new(),
            early: VecDeque::new(),
            watches: Watches::default(),
            counted: BTreeMap::new(),
        }
    }

    /// Returns what was counted since the last time.
    pub(crate) fn take_counted(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.counted)
    }

    /// Returns the election that this server has won, if it leads.
    pub(crate) fn term(&self) -> Option<ElectId> {
        self.term
    }

    /// Takes the writes that are to be sent now.
    pub(crate) fn take_writes(&mut self) -> impl Iterator<Item = Outgoing> {
        self.outbox.drain(..)
    }

    /// Returns whether the server leads, or is about to.
    pub(crate) fn is_active(&self) -> bool {
        self.term.is_some() || self.election.is_some()
    }

    /// Returns when [`Leader::look`] is needed: soon if something waits for an answer of a replica, otherwise when a watch ends.
    pub(crate) fn next_look(&self, soon: Tick) -> Option<Tick> {
        let waits = self.election.is_some() || !self.rounds.is_empty();
        if waits { Some(soon) } else { self.watches.next_end() }
    }

    /// Returns whether an election may begin now.
    pub(crate) fn may_stand(&self, now: Tick) -> bool {
        !self.is_active() && now >= self.not_before
    }

    /// Stands in a new election (Algorithm 1, with bizur-B3 and bizur-B9).
    pub(crate) fn stand(&mut self, now: Tick, shard: &mut Shard, out: &mut Effects) {
        self.step_down(None, out);
        let highest = shard.stood.max(shard.voted).max(self.hint);
        let server = shard.identity();
        let mut elect = ElectId { round: highest.round + 1, server };
        if mutant(mutants::BIZUR_B3) && shard.voted.server == server {
            elect = shard.voted;
        }
        let stood = shard.stand(elect, out);
        let resend_at = now.after(self.options.resend_after);
        self.election = Some(Election { elect, votes: BTreeSet::new(), since: now, resend_at, stood });
        hit("bizur.leader.stands");
        rounds::ask_for_votes(shard, elect, |_| true, stood, out);
        if mutant(mutants::BIZUR_B2) {
            self.won(now, elect, shard, out);
        }
    }

    /// Counts a vote of the replica at a position. `voted` is what it has voted for (bizur-B8).
    pub(crate) fn on_vote(
        &mut self,
        now: Tick,
        shard: &mut Shard,
        position: usize,
        (elect, voted): (ElectId, ElectId),
        backoff: Duration,
        out: &mut Effects,
    ) {
        let Some(election) = self.election.as_mut().filter(|election| election.elect == elect) else {
            hit("bizur.leader.late_vote");
            return;
        };
        if voted != elect {
            return self.lose(now, voted, backoff, out);
        }
        election.votes.insert(position);
        if election.votes.len() >= shard.config.majority() {
            self.won(now, elect, shard, out);
        }
    }

    /// Returns how long the next election may last.
    pub(crate) fn election_patience(&self) -> Duration {
        let times = 1_u32 << self.slow_elections.min(MAX_DOUBLINGS);
        self.options.election_patience.saturating_mul(times).min(self.options.longest_election)
    }

    fn lose(&mut self, now: Tick, voted: ElectId, backoff: Duration, out: &mut Effects) {
        hit("bizur.leader.lost_election");
        self.hint = self.hint.max(voted);
        self.not_before = now.after(backoff);
        self.election = None;
        self.refuse_early(Some(voted.server.node), out);
    }

    fn refuse_early(&mut self, leader: Option<NodeId>, out: &mut Effects) {
        for (caller, _) in std::mem::take(&mut self.early) {
            reply(caller, not_leader(leader), out);
        }
    }

    /// Begins a term. Nothing is recovered in it yet.
    fn won(&mut self, now: Tick, elect: ElectId, shard: &mut Shard, out: &mut Effects) {
        hit("bizur.leader.elected");
        self.election = None;
        self.slow_elections = 0;
        self.term = Some(elect);
        self.buckets.clear();
        self.buckets.resize_with(shard.config.buckets as usize, LedBucket::default);
        self.unknown = (0..shard.config.buckets).collect();
        self.ready = 0;
        self.confirmed = 0;
        for (caller, question) in std::mem::take(&mut self.early) {
            self.ask(now, shard, caller, question, out);
        }
    }

    /// Gives up the term, and any election. Writes under way have an unknown outcome; everything else was not done (bizur-B10).
    pub(crate) fn step_down(&mut self, leader: Option<NodeId>, out: &mut Effects) {
        self.election = None;
        self.refuse_early(leader, out);
        if self.term.take().is_none() {
            return;
        }
        hit("bizur.leader.deposed");
        self.outbox.clear();
        for (_, round) in std::mem::take(&mut self.rounds) {
            round.fail(leader, out);
        }
        for reader in std::mem::take(&mut self.readers) {
            reply(reader.caller, not_leader(leader), out);
        }
        self.watches.end_all(leader, out);
        for bucket in std::mem::take(&mut self.buckets) {
            bucket.queue.into_iter().for_each(|queued| reply(queued.caller, not_leader(leader), out));
        }
        self.confirming = None;
        self.runnable.clear();
        self.keys.clear();
        self.unknown.clear();
        self.demanded.clear();
        self.recovering = 0;
        self.queued = 0;
    }

    /// Notes that the replica on this node has voted for another server, or answered one (bizur-B8).
    pub(crate) fn heard_of(&mut self, elect: ElectId, out: &mut Effects) {
        self.hint = self.hint.max(elect);
        let own = self.term.or(self.election.as_ref().map(|election| election.elect));
        if own.is_some_and(|own| own < elect) {
            self.step_down(Some(elect.server.node), out);
        }
    }

    /// Looks after what waits: sends again what has no answer, and gives up what has had none for too long.
    pub(crate) fn look(&mut self, now: Tick, shard: &mut Shard, backoff: Duration, out: &mut Effects) {
        let patience = self.election_patience();
        if let Some(election) = &mut self.election {
            if now.since(election.since) >= patience {
                hit("bizur.leader.slow_election");
                self.slow_elections = self.slow_elections.saturating_add(1);
                let voted = shard.voted;
                return self.lose(now, voted, backoff, out);
            }
            if now >= election.resend_at {
                election.resend_at = now.after(self.options.resend_after);
                let (elect, votes, stood) = (election.elect, election.votes.clone(), election.stood);
                rounds::ask_for_votes(shard, elect, |position| !votes.contains(&position), stood, out);
            }
        }
        self.watches.expire(now, out);
        self.resend(now, shard, out);
    }
}

/// Answers a client.
fn reply(caller: Caller, answer: Answer, out: &mut Effects) {
    out.race_point("bizur.leader.answers");
    out.reply(caller, AskReply { answer }, Lsn::NONE);
}

/// Returns the answer of a server that does not lead.
pub(crate) fn not_leader(leader: Option<NodeId>) -> Answer {
    Answer::NotLeader { leader: leader.map(|node| node.0) }
}

//! The rounds of a leader: what it sends to all replicas, and what becomes of it once a majority has acknowledged it.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Class, Decode, Effects, Encode, Lsn, NodeId, Tick};
use bytes::{Bytes, BytesMut};

use super::{Leader, Progress, not_leader, reply};
use crate::bucket::Bucket;
use crate::bundle::Outgoing;
use crate::elect::{ElectId, Ver};
use crate::invariants;
use crate::message::{
    Address, Answer, Fetch, PleaseVote, ReadAnswer, ReadItem, ReplicaRead, ShardConfig, ShardWrite,
    WriteAnswer, WriteItem,
};
use crate::mutants;
use crate::roles::REPLICA;
use crate::shard::Shard;

/// A client that waits for a write.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) caller: Caller,
    /// Its answer, once the write is acknowledged.
    pub(super) answer: Answer,
    /// Whether the write contains a change of this client.
    pub(super) effective: bool,
}

/// A write of a bucket on behalf of clients.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) index: u32,
    pub(super) content: Bucket,
    /// The keys that it changes.
    pub(super) keys: Vec<Bytes>,
    pub(super) waiters: Vec<Waiter>,
}

/// What follows once a write is acknowledged.
#[derive(Debug)]
pub(super) enum Then {
    /// These buckets are recovered.
    Recovered(Vec<(u32, Bucket)>),
    /// Buckets have new content.
    Commit(Vec<Written>),
    /// The replicas had no room for a write. Its bucket has its old content under a newer version, so the write did not happen.
    Undone { index: u32, waiters: Vec<Waiter> },
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Proves that the leader still leads.
    Confirm,
    /// Reads buckets for their recovery. `best` are the latest copies so far.
    Recover { indices: Vec<u32>, best: BTreeMap<u32, (Ver, Bytes)> },
    /// Reads buckets that were never written here from the instance before this one (§6). Its replicas answer, not those of the shard.
    Fetch { former: ShardConfig, indices: Vec<u32>, best: BTreeMap<u32, (Ver, Bytes)> },
    /// Writes buckets.
    Write { items: Vec<WriteItem>, buckets: Bytes, recovery: bool, then: Then },
}

impl Kind {
    /// Returns the label of these rounds in metrics.
    fn name(&self) -> &'static str {
        match self {
            Kind::Confirm => "confirm",
            Kind::Recover { .. } => "recover",
            Kind::Fetch { .. } => "fetch",
            Kind::Write { .. } => "write",
        }
    }
}

/// One request to all replicas.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) kind: Kind,
    /// The positions of the replicas that have acknowledged it: each counts once (bizur-B12).
    acks: BTreeSet<usize>,
    /// How many acknowledgements came, for the mutant that counts them.
    ack_messages: usize,
    /// The positions of the replicas that have no room for it.
    full: BTreeSet<usize>,
    since: Tick,
    sent_at: Tick,
}

impl Round {
    /// Answers the clients that wait for this round, whose outcome is unknown.
    pub(super) fn fail(self, leader: Option<NodeId>, out: &mut Effects) {
        let waiters: Vec<Waiter> = match self.kind {
            Kind::Write { then: Then::Commit(group), .. } => {
                group.into_iter().flat_map(|written| written.waiters).collect()
            }
            Kind::Write { then: Then::Undone { waiters, .. }, .. } => waiters,
            _ => return,
        };
        for waiter in waiters {
            let lost = waiter.effective && !mutant(mutants::BIZUR_B10);
            if waiter.effective {
                hit("bizur.leader.unknown");
            }
            reply(waiter.caller, if lost { Answer::Unknown {} } else { not_leader(leader) }, out);
        }
    }
}

/// Adds copies of buckets to the latest ones so far.
fn keep_latest(best: &mut BTreeMap<u32, (Ver, Bytes)>, items: &[ReadItem], payload: &Bytes) {
    let mut at = 0;
    for item in items {
        let bytes = payload.slice(at..at + item.bytes as usize);
        at += item.bytes as usize;
        if best.get(&item.index).is_none_or(|(ver, _)| *ver < item.ver) {
            best.insert(item.index, (item.ver, Bytes::copy_from_slice(&bytes)));
        }
    }
}

fn address(shard: &Shard, position: usize) -> Address {
    let to = shard.config.replicas[position].identity;
    Address { shard: shard.config.key, from: shard.identity().identity, to }
}

/// Asks the replicas at some positions for their votes.
pub(super) fn ask_for_votes(
    shard: &Shard,
    elect: ElectId,
    which: impl Fn(usize) -> bool,
    stood: Lsn,
    out: &mut Effects,
) {
    for (position, replica) in shard.config.replicas.iter().enumerate().filter(|(p, _)| which(*p)) {
        let ask = PleaseVote { to: address(shard, position), elect };
        out.race_point("bizur.leader.asks_for_votes");
        out.post(replica.node, Class::Control, REPLICA, ask, stood);
    }
}

impl Leader {
    /// Begins a round in this term.
    pub(super) fn begin(&mut self, now: Tick, shard: &Shard, kind: Kind, out: &mut Effects) -> u64 {
        let number = self.next_round;
        self.next_round += 1;
        *self.counted.entry(kind.name()).or_default() += 1;
        let (acks, full) = (BTreeSet::new(), BTreeSet::new());
        let round = Round { kind, acks, ack_messages: 0, full, since: now, sent_at: now };
        self.send(shard, number, &round, |_| true, out);
        self.rounds.insert(number, round);
        number
    }

    fn send(
        &mut self,
        shard: &Shard,
        round: u64,
        what: &Round,
        which: impl Fn(usize) -> bool,
        out: &mut Effects,
    ) {
        let Some(elect) = self.term else { return };
        if let Kind::Fetch { former, indices, .. } = &what.kind {
            for (_, replica) in former.replicas.iter().enumerate().filter(|(p, _)| which(*p)) {
                let (former, indices, to) = (former.clone(), indices.clone(), replica.identity);
                let fetch = Fetch { former, to, shard: shard.config.key, elect, round, indices };
                out.post(replica.node, Class::Data, REPLICA, fetch, Lsn::NONE);
            }
            return;
        }
        for (position, replica) in shard.config.replicas.iter().enumerate().filter(|(p, _)| which(*p)) {
            let to = address(shard, position);
            if !matches!(what.kind, Kind::Write { .. }) {
                // Each replica is reached at another moment, and may be reached by a later round first.
                out.race_point("bizur.leader.sends");
            }
            match &what.kind {
                Kind::Confirm => {
                    let read = ReplicaRead { to, elect, round, indices: Vec::new() };
                    out.post(replica.node, Class::Data, REPLICA, read, Lsn::NONE);
                }
                Kind::Recover { indices, .. } => {
                    let read = ReplicaRead { to, elect, round, indices: indices.clone() };
                    out.post(replica.node, Class::Data, REPLICA, read, Lsn::NONE);
                }
                Kind::Fetch { .. } => {}
                Kind::Write { items, buckets, recovery, .. } => {
                    let write = ShardWrite { to, elect, round, recovery: *recovery, items: items.clone() };
                    self.outbox.push(Outgoing { node: replica.node, write, buckets: buckets.clone() });
                }
            }
        }
    }

    /// Sends rounds again to the replicas that have not answered (bizur-B13), and steps down if one has lacked a majority for too long.
    pub(super) fn resend(&mut self, now: Tick, shard: &mut Shard, out: &mut Effects) {
        // A majority of the instance before, which nobody else could replace, is waited for without end.
        let is_own = |round: &&Round| !matches!(round.kind, Kind::Fetch { .. });
        let is_over = |round: &Round| now.since(round.since) >= self.options.give_up_after;
        if self.rounds.values().filter(is_own).any(is_over) {
            hit("bizur.leader.no_majority");
            return self.step_down(None, out);
        }
        let late: Vec<u64> = self
            .rounds
            .iter()
            .filter(|(_, round)| now.since(round.sent_at) >= self.options.resend_after)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let Some(mut round) = self.rounds.remove(&number) else { continue };
            round.sent_at = now;
            hit("bizur.leader.resend");
            self.send(shard, number, &round, |position| !round.acks.contains(&position), out);
            self.rounds.insert(number, round);
        }
    }

    /// Handles the answer of a replica to a write.
    pub(crate) fn on_write_reply(
        &mut self,
        now: Tick,
        shard: &mut Shard,
        position: usize,
        (elect, number): (ElectId, u64),
        answer: &WriteAnswer,
        out: &mut Effects,
    ) {
        if self.term != Some(elect) {
            return;
        }
        match answer {
            WriteAnswer::Nack { voted } => self.deposed(*voted, out),
            WriteAnswer::Sealed {} => self.step_down(None, out),
            WriteAnswer::Full {} => self.on_full(now, shard, position, number, out),
            WriteAnswer::Ack {} => {
                let is_recovery =
                    |round: &Round| matches!(&round.kind, Kind::Write { then: Then::Recovered(_), .. });
                if mutant(mutants::BIZUR_B4) && self.rounds.get(&number).is_some_and(is_recovery) {
                    return self.complete(now, shard, number, out);
                }
                self.acknowledged(now, shard, position, number, out);
            }
        }
    }

    /// Handles the answer of a replica to a read.
    pub(crate) fn on_read_reply(
        &mut self,
        now: Tick,
        shard: &mut Shard,
        position: usize,
        (elect, number): (ElectId, u64),
        (answer, payload): (&ReadAnswer, &Bytes),
        out: &mut Effects,
    ) {
        if self.term != Some(elect) {
            return;
        }
        let items = match answer {
            ReadAnswer::Nack { voted } => return self.deposed(*voted, out),
            ReadAnswer::Sealed {} => return self.step_down(None, out),
            ReadAnswer::Ack { items } => items,
        };
        if let Some(Round { kind: Kind::Recover { best, .. }, .. }) = self.rounds.get_mut(&number) {
            keep_latest(best, items, payload);
        }
        self.acknowledged(now, shard, position, number, out);
    }

    /// Handles the buckets that a replica of the instance before this one holds.
    pub(crate) fn on_fetched(
        &mut self,
        now: Tick,
        shard: &mut Shard,
        position: usize,
        (elect, number): (ElectId, u64),
        (items, payload): (&[ReadItem], &Bytes),
        out: &mut Effects,
    ) {
        if self.term != Some(elect) {
            return;
        }
        let Some(round) = self.rounds.get_mut(&number) else { return };
        let Kind::Fetch { former, best, .. } = &mut round.kind else { return };
        keep_latest(best, items, payload);
        round.acks.insert(position);
        let enough = if mutant(mutants::BIZUR_FETCH_ONE) { 1 } else { former.majority() };
        if round.acks.len() < enough {
            return;
        }
        // Other replicas than those of the shard have answered, so this proves nothing about the term.
        if let Some(Round { kind: Kind::Fetch { indices, best, .. }, .. }) = self.rounds.remove(&number) {
            hit("bizur.leader.copied");
            self.write_recovered(now, shard, indices, best, out);
        }
    }

    fn deposed(&mut self, voted: ElectId, out: &mut Effects) {
        self.hint = self.hint.max(voted);
        self.step_down(Some(voted.server.node), out);
    }

    fn acknowledged(
        &mut self,
        now: Tick,
        shard: &mut Shard,
        position: usize,
        number: u64,
        out: &mut Effects,
    ) {
        let Some(round) = self.rounds.get_mut(&number) else { return };
        round.acks.insert(position);
        round.ack_messages += 1;
        let count = if mutant(mutants::BIZUR_B12) { round.ack_messages } else { round.acks.len() };
        if count >= shard.config.majority() {
            self.complete(now, shard, number, out);
        }
    }

    /// Does what follows from a round that a majority has acknowledged.
    fn complete(&mut self, now: Tick, shard: &mut Shard, number: u64, out: &mut Effects) {
        let Some(round) = self.rounds.remove(&number) else { return };
        self.confirmed = self.confirmed.max(number);
        // A confirmation that this round has overtaken proves nothing more. The next one need not wait for it.
        if let Some(overtaken) = self.confirming.filter(|confirming| *confirming < number) {
            self.rounds.remove(&overtaken);
            self.confirming = None;
        }
        match round.kind {
            Kind::Confirm => self.confirming = None,
            Kind::Recover { indices, best } => self.write_or_fetch(now, shard, indices, best, out),
            Kind::Fetch { .. } => {}
            Kind::Write { then, .. } => match then {
                Then::Recovered(buckets) => {
                    self.recovering -= 1;
                    for (index, content) in buckets {
                        self.recovered(index, content);
                    }
                }
                Then::Commit(group) => {
                    group.into_iter().for_each(|written| self.commit(number, written, out));
                }
                Then::Undone { index, waiters } => {
                    self.landed(number, index);
                    for waiter in waiters {
                        // What saw a change that was undone has no answer: it may try again.
                        let refused =
                            if waiter.effective { Answer::ReplicasFull {} } else { Answer::Busy {} };
                        reply(waiter.caller, refused, out);
                    }
                }
            },
        }
        self.settle(out);
    }

    /// After the first half of a recovery: what was never written in this instance is still in the one before, if there is one (R3).
    fn write_or_fetch(
        &mut self,
        now: Tick,
        shard: &Shard,
        indices: Vec<u32>,
        best: BTreeMap<u32, (Ver, Bytes)>,
        out: &mut Effects,
    ) {
        let Some(former) = &shard.former else { return self.write_recovered(now, shard, indices, best, out) };
        let is_here = |index: &u32| best.contains_key(index) && !mutant(mutants::BIZUR_COPIES_AGAIN);
        let (here, there): (Vec<u32>, Vec<u32>) = indices.into_iter().partition(is_here);
        // Each half is a recovery of its own.
        self.recovering += usize::from(!here.is_empty() && !there.is_empty());
        if !there.is_empty() {
            let former = former.clone();
            let kind = Kind::Fetch { former, indices: there, best: BTreeMap::new() };
            self.begin(now, shard, kind, out);
        }
        if !here.is_empty() {
            self.write_recovered(now, shard, here, best, out);
        }
    }

    /// Second half of a recovery (Algorithm 4): writes the latest copies in this term. Buckets that were never written are written, too, so
    /// that no older write can surface later.
    fn write_recovered(
        &mut self,
        now: Tick,
        shard: &Shard,
        indices: Vec<u32>,
        mut best: BTreeMap<u32, (Ver, Bytes)>,
        out: &mut Effects,
    ) {
        let (mut items, mut buckets, mut contents) = (Vec::new(), BytesMut::new(), Vec::new());
        for index in indices {
            let (content, bytes) = match best.remove(&index) {
                None => (Bucket::default(), Bucket::default().to_bytes()),
                Some((_, bytes)) => match Bucket::from_bytes(bytes.clone()) {
                    Ok(content) => (content, bytes),
                    Err(_) => {
                        // A later program wrote it. Another replica may be able to read it.
                        hit("bizur.leader.unreadable_bucket");
                        return self.step_down(None, out);
                    }
                },
            };
            let content_bytes = content.content_bytes() as u32;
            invariants::write_follows(index, false, 0, 1);
            items.push(WriteItem { index, ctr: 1, bytes: bytes.len() as u32, content_bytes });
            buckets.extend_from_slice(&bytes);
            contents.push((index, content));
        }
        let then = Then::Recovered(contents);
        self.begin(now, shard, Kind::Write { items, buckets: buckets.freeze(), recovery: true, then }, out);
    }

    fn recovered(&mut self, index: u32, content: Bucket) {
        for (key, _) in content.keys() {
            self.keys.insert(key.clone(), index);
        }
        let Some(bucket) = self.buckets.get_mut(index as usize) else { return };
        bucket.content = content;
        bucket.ctr = bucket.ctr.max(1);
        if bucket.progress != Progress::Ready {
            bucket.progress = Progress::Ready;
            self.ready += 1;
        }
        if !bucket.queue.is_empty() {
            self.runnable.insert(index);
        }
    }

    /// A bucket has new content. Only the keys that the write has changed are looked at, however many the bucket has.
    fn commit(&mut self, number: u64, written: Written, out: &mut Effects) {
        let Written { index, content, keys, waiters } = written;
        let Some(bucket) = self.buckets.get_mut(index as usize) else { return };
        for key in keys {
            match (content.key(&key), bucket.content.key(&key)) {
                (Some(key), None) => drop(self.keys.insert(key.clone(), index)),
                (None, Some(_)) => drop(self.keys.remove(&key)),
                _ => {}
            }
        }
        bucket.content = content;
        self.watches.changed(index, &bucket.content, out);
        waiters.into_iter().for_each(|waiter| reply(waiter.caller, waiter.answer, out));
        self.landed(number, index);
    }

    /// The write of a bucket is over. The next one may follow.
    fn landed(&mut self, number: u64, index: u32) {
        let Some(bucket) = self.buckets.get_mut(index as usize) else { return };
        if bucket.flight == Some(number) {
            bucket.flight = None;
        }
        if !bucket.queue.is_empty() {
            self.runnable.insert(index);
        }
    }

    /// Writes the new contents of a group of buckets with one round. There is at least one.
    pub(super) fn write_group(&mut self, now: Tick, shard: &Shard, group: Vec<Written>, out: &mut Effects) {
        let (mut items, mut buckets) = (Vec::with_capacity(group.len()), BytesMut::new());
        let indices: Vec<u32> = group.iter().map(|written| written.index).collect();
        for Written { index, content, .. } in &group {
            let Some(bucket) = self.buckets.get_mut(*index as usize) else { continue };
            bucket.ctr += 1;
            if mutant(mutants::BIZUR_B5) {
                bucket.content = content.clone();
            }
            let begin = buckets.len();
            content.encode(&mut buckets);
            let (bytes, content_bytes) = ((buckets.len() - begin) as u32, content.content_bytes() as u32);
            items.push(WriteItem { index: *index, ctr: bucket.ctr, bytes, content_bytes });
        }
        let then = Then::Commit(group);
        let kind = Kind::Write { items, buckets: buckets.freeze(), recovery: false, then };
        let number = self.begin(now, shard, kind, out);
        for index in indices {
            if let Some(bucket) = self.buckets.get_mut(index as usize) {
                bucket.flight = Some(number);
            }
        }
    }

    /// Notes that a replica has no room for a write. If a majority can then no longer take it, each bucket of a group is written again on
    /// its own. A single bucket gets its old content under a newer version: only after that is it certain that the write will not surface
    /// later.
    fn on_full(&mut self, now: Tick, shard: &Shard, position: usize, number: u64, out: &mut Effects) {
        let Some(round) = self.rounds.get_mut(&number) else { return };
        round.full.insert(position);
        if shard.config.replicas.len() - round.full.len() >= shard.config.majority() {
            return;
        }
        let Some(round) = self.rounds.remove(&number) else { return };
        match round.kind {
            Kind::Write { then: Then::Commit(mut group), .. } => match group.pop() {
                Some(written) if group.is_empty() => self.undo(now, shard, written, out),
                last => {
                    // Some of them may have room. The versions are new, so an answer to the group is none to them.
                    hit("bizur.leader.splits_group");
                    for written in group.into_iter().chain(last) {
                        self.write_group(now, shard, vec![written], out);
                    }
                }
            },
            // Recoveries and undone writes pass the capacity, so no replica refuses them for it.
            _ => drop(self.rounds.insert(number, round)),
        }
    }

    /// Writes the old content of a bucket again, instead of a write that a majority has no room for.
    fn undo(&mut self, now: Tick, shard: &Shard, written: Written, out: &mut Effects) {
        hit("bizur.leader.undo");
        let Written { index, waiters, .. } = written;
        let Some(bucket) = self.buckets.get_mut(index as usize) else { return };
        bucket.ctr += 1;
        let (ctr, content) = (bucket.ctr, bucket.content.to_bytes());
        let content_bytes = bucket.content.content_bytes() as u32;
        let items = vec![WriteItem { index, ctr, bytes: content.len() as u32, content_bytes }];
        let then = Then::Undone { index, waiters };
        let number =
            self.begin(now, shard, Kind::Write { items, buckets: content, recovery: true, then }, out);
        if let Some(bucket) = self.buckets.get_mut(index as usize) {
            bucket.flight = Some(number);
        }
    }
}

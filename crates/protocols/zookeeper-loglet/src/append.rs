//! append: everything that waits goes out as one batch, in one write that checks that the loglet is open and has not changed since the
//! handle looked. While one write is under way, the next batch gathers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use atoll_contract::entry::{MAX_BATCH_BYTES, MAX_BATCH_ENTRIES};
use atoll_contract::{AppendError, Batch, Offset, Placement, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Completer, Encode, Tick, Ticket, ticket};

use crate::ensemble::{Fault, Op, Request};
use crate::invariants;
use crate::layout::{BUCKET_BATCHES, BucketNode, MAX_BATCHES, Stored, TailNode, TrimNode};
use crate::loglet::{Seen, Shared, Trouble, decode, node, unavailability};
use crate::mutants;
use crate::names::{Names, Plan};

/// How many batches a handle reads back for the names in them when it begins to append.
const READ_BACK: u64 = 256;
/// How many batches a handle reads at once to catch up with others. A handle that is further behind begins anew at the tail.
const CATCH_UP: u64 = 1024;
/// How many batches go into one request.
const AT_ONCE: u64 = 16;
/// For how long a handle takes turns with one that has appended.
const CONTENDS_FOR: Duration = Duration::from_secs(1);
/// The most handles with which it takes turns.
const MAX_CONTENDERS: usize = 8;
/// After how many batches a handle that sees no others leaves a gap.
const GAP_EVERY: u64 = 64;
/// For how many writes a gap is, at least: whoever was overtaken must look, read, and write before the next batch.
const GAP_TURNS: u32 = 4;
/// The longest time for which a handle lets others go first.
const MAX_TURN: Duration = Duration::from_millis(100);

type Outcome = Result<Placement, AppendError>;

/// An append that waits for its turn.
#[derive(Debug)]
struct Waiting {
    batch: Batch,
    not_below: Offset,
    done: Completer<Outcome>,
}

/// The appends of a handle that have no outcome yet.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
    /// The bytes that wait.
    bytes: usize,
    /// Whether the procedure runs that appends them.
    running: bool,
    /// Whether an append was refused for lack of room while earlier ones had no outcome. Until they have, none may overtake it (vlog-L8).
    refused: bool,
    /// What the procedure knows of the loglet, between two runs.
    appender: Option<Appender>,
}

/// What the procedure that appends knows of the loglet.
#[derive(Debug)]
pub(crate) struct Appender {
    /// The author of this handle's batches: a random number.
    author: u64,
    /// The number of the next batch of this author.
    serial: u64,
    /// None if the handle must look at the loglet first.
    known: Option<Known>,
    contenders: Contenders,
    /// How many batches it has appended since it last saw one of another handle.
    alone: u64,
    /// Until when others go first.
    not_before: Tick,
}

/// The other handles that have appended lately: the authors of their batches, and when each was seen last. At most [`MAX_CONTENDERS`].
#[derive(Debug, Default)]
struct Contenders(BTreeMap<u64, Tick>);

impl Contenders {
    fn note(&mut self, author: u64, now: Tick) {
        if self.0.len() < MAX_CONTENDERS || self.0.contains_key(&author) {
            self.0.insert(author, now);
        }
    }

    /// Returns how many there are now.
    fn count(&mut self, now: Tick) -> u32 {
        self.0.retain(|_, seen| now.since(*seen) < CONTENDS_FOR);
        self.0.len() as u32
    }
}

impl Appender {
    /// Notes that a write of this handle has succeeded, which took this long. The others have lost their attempts, and must read before
    /// they try again, while this handle could go on at once, time after time. So it lets each of them go first. Of those that never get
    /// anywhere it does not know, so from time to time it leaves a gap for them.
    fn has_appended(&mut self, now: Tick, took: Duration) {
        let contenders = self.contenders.count(now);
        self.alone = if contenders == 0 { self.alone + 1 } else { 0 };
        let turns = match contenders {
            0 if !self.alone.is_multiple_of(GAP_EVERY) => 0,
            contenders => contenders.max(GAP_TURNS),
        };
        let turn = (took * turns).min(MAX_TURN);
        if !mutant(mutants::ZOOKEEPER_GREEDY) {
            self.not_before = now.after(turn);
        }
    }
}

/// A loglet at one version of its tail.
#[derive(Debug)]
struct Known {
    names: Names,
    batches: u64,
    next: Offset,
}

/// What a handle found when it looked for what others had appended.
enum Caught {
    /// The loglet is open, and everything up to its tail is known.
    Up,
    /// One of the handle's attempts is in the loglet, and its batches are here.
    Own(Vec<Placement>),
    /// The loglet is sealed or deleted, and none of the handle's attempts with an unknown outcome is in it.
    Closed,
}

impl Queue {
    pub(crate) fn new(author: u64) -> Self {
        let (contenders, not_before) = (Contenders::default(), Tick(0));
        let appender = Some(Appender { author, serial: 0, known: None, contenders, alone: 0, not_before });
        Queue { waiting: VecDeque::new(), bytes: 0, running: false, refused: false, appender }
    }

    /// Adds an append, or refuses it. Returns whether the procedure must be started.
    pub(crate) fn push(&mut self, batch: Batch, not_below: Offset, room: usize) -> (Ticket<Outcome>, bool) {
        let len = batch.bytes().len();
        if self.refused || (self.bytes > 0 && self.bytes + len > room) {
            self.refused = self.running;
            return (Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy))), false);
        }
        let (done, wait) = ticket();
        self.bytes += len;
        self.waiting.push_back(Waiting { batch, not_below, done });
        (wait, !std::mem::replace(&mut self.running, true))
    }

    /// Takes as many appends as fit into one batch.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut taken, mut bytes, mut entries) = (Vec::new(), 0, 0);
        while let Some(next) = self.waiting.front() {
            bytes += next.batch.bytes().len();
            entries += next.batch.len();
            if !taken.is_empty() && (bytes > MAX_BATCH_BYTES || entries > MAX_BATCH_ENTRIES) {
                break;
            }
            taken.extend(self.waiting.pop_front());
        }
        self.bytes = self.waiting.iter().map(|w| w.batch.bytes().len()).sum();
        taken
    }
}

impl Shared {
    /// Appends whatever waits until nothing does.
    pub(crate) async fn append_all(&self) {
        let Some(mut appender) = lock(&self.queue).appender.take() else { return };
        loop {
            // What arrives meanwhile goes into the same batch.
            if self.env.now() < appender.not_before {
                hit("zookeeper.lets_others_go_first");
                self.env.sleep_until(appender.not_before).await;
            }
            let group = {
                let mut queue = lock(&self.queue);
                let group = queue.take();
                if group.is_empty() {
                    (queue.running, queue.refused) = (false, false);
                    queue.appender = Some(appender);
                    return;
                }
                group
            };
            let outcomes = self.append_group(&mut appender, &group).await;
            self.settle(group, outcomes);
        }
    }

    /// Tells the callers. If one append failed, those behind it fail, too: they must not overtake its next attempt (vlog-L8).
    fn settle(&self, group: Vec<Waiting>, outcomes: Vec<Outcome>) {
        let failed = outcomes.iter().any(Result::is_err);
        let sealed = outcomes.contains(&Err(AppendError::Sealed));
        let behind = if failed {
            let mut queue = lock(&self.queue);
            queue.bytes = 0;
            std::mem::take(&mut queue.waiting)
        } else {
            VecDeque::new()
        };
        let why = if sealed { AppendError::Sealed } else { AppendError::NotAppended(Unavailability::Busy) };
        for (waiting, outcome) in group.into_iter().zip(outcomes) {
            waiting.done.complete(outcome);
        }
        behind.into_iter().for_each(|waiting| waiting.done.complete(Err(why.clone())));
    }

    /// Appends these batches one behind the other. Their write is atomic; what comes behind a batch that cannot be appended is not tried.
    async fn append_group(&self, appender: &mut Appender, group: &[Waiting]) -> Vec<Outcome> {
        let now = self.env.now();
        let mut attempts = Attempts::new(now.after(self.options.append_timeout));
        // An attempt at a tail that others have moved is in vain.
        attempts.stale = appender.contenders.count(now) > 0;
        appender.serial += 1;
        loop {
            let fault = match self.catch_up(appender, &mut attempts).await {
                Ok(Caught::Up) => match self.attempt(appender, &mut attempts, group).await {
                    Ok(placements) => return outcomes(placements, group.len()),
                    Err(fault) => fault,
                },
                Ok(Caught::Own(placements)) => {
                    hit("zookeeper.own_attempt_found");
                    return outcomes(placements, group.len());
                }
                Ok(Caught::Closed) | Err(Trouble::Gone) => {
                    return vec![Err(AppendError::Sealed); group.len()];
                }
                Err(Trouble::Damaged(why)) => {
                    tracing::error!(loglet = %self.id, why, "a znode is damaged");
                    return attempts.give_up(Unavailability::StorageFailed, group.len());
                }
                Err(Trouble::Elsewhere) => return attempts.give_up(self.elsewhere(), group.len()),
                Err(Trouble::Fault(fault)) => fault,
            };
            if matches!(fault, Fault::Denied(_)) || self.env.now() >= attempts.until {
                return attempts.give_up(unavailability(&fault), group.len());
            }
            // A refused attempt shows that another handle has appended. Whoever waits now only gives its turn to those that do not.
            if !matches!(fault, Fault::Refused(_)) {
                let pause = self.options.retry * attempts.conflicts.clamp(1, 8);
                self.env.sleep(self.env.jitter(pause)).await;
            }
        }
    }

    /// Plans the append of a group at the known tail and tries it. On an error other than `Lost`, it did not happen.
    async fn attempt(
        &self,
        appender: &mut Appender,
        attempts: &mut Attempts,
        group: &[Waiting],
    ) -> Result<Vec<Placement>, Fault> {
        let Some(known) = &mut appender.known else { return Err(Fault::Busy) };
        let Plan { placements, new } =
            known.names.plan(group.iter().map(|w| (&w.batch, w.not_below)), known.next);
        let Some(batch) = new else { return Ok(placements) };
        let number = known.batches;
        if number >= MAX_BATCHES {
            return Err(Fault::Denied("the loglet has as many batches as a znode has versions".to_owned()));
        }
        let stored = Stored { author: appender.author, serial: appender.serial, first: known.next, batch };
        let begun = self.env.now();
        match self.write(self.append_ops(number, &stored)).await {
            Ok(()) => {
                known.note(&stored);
                self.learn(Seen { sealed: false, batches: known.batches, next: known.next });
                lock(&self.recent).keep(number, stored, self.options.cache_bytes);
                let now = self.env.now();
                appender.has_appended(now, now.since(begun));
                Ok(placements)
            }
            Err(fault) => {
                attempts.stale = true;
                if fault == Fault::Lost {
                    hit("zookeeper.append_lost");
                    attempts.unknown.insert(number, placements);
                } else {
                    hit("zookeeper.append_refused");
                    attempts.conflicts += 1;
                }
                Err(fault)
            }
        }
    }

    /// Returns the write that appends a batch as this number. It is refused if the loglet is sealed (the first check), or if any batch was
    /// appended that the handle does not know (the version of the tail).
    fn append_ops(&self, number: u64, stored: &Stored) -> Vec<Op> {
        let mut ops = Vec::with_capacity(4);
        if !mutant(mutants::ZOOKEEPER_SEAL_UNCHECKED) {
            ops.push(Op::Check { path: self.paths.seal.clone(), version: 0 });
        }
        let tail = TailNode { next: stored.end() }.to_bytes();
        // `MAX_BATCHES` keeps the number within the range of versions.
        let version = Some(i32::try_from(number).unwrap_or(i32::MAX));
        ops.push(Op::Set { path: self.paths.tail.clone(), data: tail, version });
        if number.is_multiple_of(BUCKET_BATCHES) {
            let data = BucketNode { first: stored.first }.to_bytes();
            ops.push(Op::Create { path: self.paths.bucket(number / BUCKET_BATCHES), data });
        }
        ops.push(Op::Create { path: self.paths.batch(number), data: stored.to_data() });
        ops
    }

    /// Reads what was appended since the handle looked last. Afterwards it knows the loglet up to some version of the tail; whether that is
    /// the newest one shows when the append is tried.
    async fn catch_up(&self, appender: &mut Appender, attempts: &mut Attempts) -> Result<Caught, Trouble> {
        if appender.known.is_some() && !attempts.stale {
            return Ok(Caught::Up);
        }
        // After a lost answer, and where the server of this session shows nothing new, only a quorum knows what happened. After a refused
        // attempt it usually has all that came before: a refusal is a transaction, too.
        let fresh = appender.known.is_none() || !attempts.unknown.is_empty() || attempts.saw_no_news;
        let seen = self.look(fresh).await?;
        let blind = mutant(mutants::ZOOKEEPER_LOSS_IS_FAILURE) && !attempts.unknown.is_empty();
        let behind = appender.known.as_ref().map(|known| seen.batches.saturating_sub(known.batches));
        attempts.saw_no_news = attempts.conflicts > 0 && behind == Some(0);
        if blind {
            let names = Names::from(Offset::ZERO);
            appender.known = Some(Known { names, batches: seen.batches, next: seen.next });
        } else if behind.is_none_or(|n| n > CATCH_UP && attempts.unknown.is_empty()) {
            appender.known = Some(self.begin_at(seen).await?);
        }
        let Some(known) = &mut appender.known else { return Err(Fault::Lost.into()) };
        while known.batches < seen.batches {
            let to = seen.batches.min(known.batches + AT_ONCE);
            let Some(batches) = self.batches(known.batches..to).await? else {
                hit("zookeeper.trimmed_under_an_append");
                // What is gone cannot be caught up with. While the outcome of an attempt is unknown, it stays so.
                if attempts.unknown.is_empty() {
                    appender.known = None;
                }
                return Err(Fault::Lost.into());
            };
            for stored in batches {
                invariants::follows(known.next, &stored);
                let own = (stored.author, stored.serial) == (appender.author, appender.serial);
                if stored.author != appender.author {
                    appender.contenders.note(stored.author, self.env.now());
                }
                let number = known.batches;
                known.note(&stored);
                lock(&self.recent).keep(number, stored, self.options.cache_bytes);
                if own && let Some(placements) = attempts.unknown.remove(&number) {
                    // What is behind it is read when the next append needs it.
                    return Ok(Caught::Own(placements));
                }
            }
        }
        attempts.stale = false;
        Ok(if seen.sealed { Caught::Closed } else { Caught::Up })
    }

    /// Begins to know the loglet: at its tail, or, if that is not far, at its begin.
    async fn begin_at(&self, seen: Seen) -> Result<Known, Trouble> {
        let at_tail = Known { names: Names::from(seen.next), batches: seen.batches, next: seen.next };
        let trim = node(self.ask(vec![Request::Get(self.paths.trim.clone())]).await.pop())?;
        let trim: TrimNode = trim.as_ref().map_or(Ok(TrimNode::default()), decode)?;
        let first = trim.first_bucket.saturating_mul(BUCKET_BATCHES);
        if seen.batches.saturating_sub(first) > READ_BACK {
            return Ok(at_tail);
        }
        let bucket = node(self.ask(vec![Request::Get(self.paths.bucket(trim.first_bucket))]).await.pop())?;
        let Some(bucket) = bucket else { return Ok(at_tail) };
        let next = decode::<BucketNode>(&bucket)?.first;
        Ok(Known { names: Names::from(next), batches: first, next })
    }

    /// Reads batches by their numbers. None if one is missing: it was trimmed in the meantime, or the server lags behind.
    async fn batches(&self, numbers: std::ops::Range<u64>) -> Result<Option<Vec<Stored>>, Trouble> {
        let requests = numbers.map(|number| Request::Get(self.paths.batch(number))).collect();
        let mut batches = Vec::new();
        for answer in self.ask(requests).await {
            let Some(node) = node(Some(answer))? else { return Ok(None) };
            batches.push(Stored::parse(node.data).map_err(Trouble::Damaged)?);
        }
        Ok(Some(batches))
    }
}

impl Known {
    fn note(&mut self, stored: &Stored) {
        self.names.note(stored.first, &stored.batch);
        (self.batches, self.next) = (self.batches + 1, stored.end());
    }
}

/// The attempts to append a group.
#[derive(Debug)]
struct Attempts {
    until: Tick,
    /// Those without an answer, by the number that the batch would have. An attempt can be in the loglet under its number only, and at most
    /// one of all is, because the first one that succeeds is found before another one is made at a higher number.
    unknown: BTreeMap<u64, Vec<Placement>>,
    /// How often others were ahead.
    conflicts: u32,
    /// Whether the loglet must be looked at before the next attempt.
    stale: bool,
    /// Whether the last look after an attempt that others were ahead of showed nothing new.
    saw_no_news: bool,
}

impl Attempts {
    fn new(until: Tick) -> Self {
        Attempts { until, unknown: BTreeMap::new(), conflicts: 0, stale: false, saw_no_news: false }
    }

    /// Returns the outcomes of a group that is not tried any more. An attempt may be in the loglet only if its answer was lost.
    fn give_up(&self, why: Unavailability, count: usize) -> Vec<Outcome> {
        let error =
            if self.unknown.is_empty() { AppendError::NotAppended(why) } else { AppendError::Unknown(why) };
        vec![Err(error); count]
    }
}

/// Returns the outcomes of a group whose first batches are in the loglet. The next one could not be planned, and those behind it wait for
/// its next attempt.
fn outcomes(placements: Vec<Placement>, count: usize) -> Vec<Outcome> {
    let mut all: Vec<Outcome> = placements.into_iter().map(Ok).collect();
    if all.len() < count {
        all.push(Err(AppendError::Forgotten));
        all.resize(count, Err(AppendError::NotAppended(Unavailability::Busy)));
    }
    all
}

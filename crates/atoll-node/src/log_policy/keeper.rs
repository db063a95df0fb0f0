//! The procedure that follows the policies of all logs, and acts if this node ranks first.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_contract::{LogPos, LogletId, LogletSpec};
use atoll_core::NodeId;
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_log::virtual_log::{ReconfigError, Remake, Step as ReconfigStep, TrimError, VirtualLog};

use super::decide::{Act, Step, Watch, decide};
use super::declared::{Action, Book, Cold, Kind, LogPolicy, Outcome, WantedLoglet, short};
use super::facts::{Scales, Unseen, observe};
use super::state::{Followed, LogPolicies, PREFIX, Pace};
use crate::kept::{self, KeptError};
use crate::policy::assess::View;
use crate::policy::guardian::tell_of;

/// Policies are looked at once in so many patrols: they are slow, and a look costs a read of a register and of a tail.
const PATROLS: u32 = 2;
/// Two looks have this part of a patrol between them, even if something has changed.
const LEAST_PART: u32 = 8;
/// How long a read of a register may take.
const ANSWER: Duration = Duration::from_secs(2);
/// The most actions that are under way on this node.
const MOST_AT_ONCE: usize = 8;
/// How long an action may take. A move copies a segment.
const ACT_WITHIN: Duration = Duration::from_mins(1);
/// See [`ACT_WITHIN`].
const COOL_WITHIN: Duration = Duration::from_hours(4);
/// The wait after the first failed attempt. It doubles with each further one.
const BACKOFF: Duration = Duration::from_secs(2);
/// The longest such wait.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// The outcome of an action is written so many times before the node leaves it open.
const TELLS: u32 = 5;

/// What this node remembers of a log from one look to the next.
#[derive(Debug, Default)]
struct Eyes {
    scales: Scales,
    watch: Watch,
}

impl LogPolicies {
    /// Runs until the node stops.
    pub(crate) async fn run(self) {
        let mut eyes: BTreeMap<String, Eyes> = BTreeMap::new();
        loop {
            let seen = self.0.changed.count();
            let every = self.0.timings.patrol_every;
            let _ = self.0.env.within(self.0.env.jitter(every * PATROLS), self.0.changed.after(seen)).await;
            // Each write to a register may be followed by another one.
            self.0.env.sleep(every / LEAST_PART).await;
            // Without registers, what this node knows stays in force, but it can claim no action.
            self.follow().await;
            let books = self.books();
            self.drop_copies(&books);
            lock(&self.0.paces)
                .retain(|(log, _), pace| pace.busy || books.iter().any(|(name, _)| name == log));
            if !self.ranks_first() {
                // Whoever does has its own view. This node starts to look anew when its turn comes.
                eyes.clear();
                continue;
            }
            eyes.retain(|log, _| books.iter().any(|(name, _)| name == log));
            for (log, book) in books {
                self.look(&log, &book, eyes.entry(log.clone()).or_default()).await;
            }
        }
    }

    /// Returns whether this node decides.
    pub(super) fn ranks_first(&self) -> bool {
        let me = self.0.members.identity();
        View::of(&self.0.members, &me, self.0.env.now(), &self.0.timings).turn(None).is_zero()
    }

    /// Deletes the parts of copies that no policy wants any more.
    fn drop_copies(&self, books: &[(String, Arc<Book>)]) {
        let is_wanted =
            |log: &str| books.iter().any(|(name, book)| name == log && book.policy.cold.is_some());
        let left: Vec<(String, Remake)> = {
            let mut copies = lock(&self.0.copies);
            copies.extract_if(.., |log, _| !is_wanted(log)).collect()
        };
        for (name, remake) in left {
            if let Ok(log) = self.0.logs.open(&name) {
                log.give_up(&remake);
            }
        }
    }

    /// Reads the policies that have changed.
    async fn follow(&self) {
        let listed = self.0.env.within(ANSWER, self.0.registers.list(PREFIX)).await;
        let Ok(Ok(listed)) = listed else { return };
        let mut all = BTreeMap::new();
        for register in listed {
            let Some(log) = register.name.strip_prefix(PREFIX) else { continue };
            let known = self.followed(log);
            let is_known =
                known.as_ref().is_some_and(|known| known.mark.is_some() && known.mark == register.mark);
            let followed = if is_known { known } else { self.read(log, register.mark).await.or(known) };
            if let Some(followed) = followed {
                all.insert(log.to_owned(), followed);
            }
        }
        self.know(all);
    }

    async fn read(&self, log: &str, mark: Option<u128>) -> Option<Followed> {
        let register = self.register(log);
        match self.0.env.within(ANSWER, kept::read::<Book>(&*register)).await.ok()? {
            Ok(book) => Some(Followed { mark, book: book.map(Arc::new), trouble: None }),
            Err(KeptError::Unreadable(why)) => Some(Followed { mark, book: None, trouble: Some(why) }),
            Err(_) => None,
        }
    }

    /// Looks at one log, and begins what its policy demands.
    async fn look(&self, name: &str, book: &Book, eyes: &mut Eyes) {
        let (Some(now_ms), Ok(log)) = (self.0.members.wall_ms(), self.0.logs.open(name)) else { return };
        let (env, members) = (&self.0.env, &self.0.members);
        let facts = match observe(env, members, &log, &book.policy, &mut eyes.scales, now_ms).await {
            Ok(facts) => facts,
            Err(Unseen::Deleted) => {
                hit("policy.log.forgotten");
                // If this fails, the next look repeats it.
                let _ = self.forget(name).await;
                return;
            }
            Err(Unseen::NoLog | Unseen::Silent(_)) => return,
        };
        let (begins, trim) = (facts.active.start, facts.trim);
        if book.sealed_by(begins).is_none() {
            let noted = self.change(name, |book| {
                book.map(|mut book| {
                    book.mark(begins, now_ms, trim);
                    book
                })
            });
            // If this fails, the next look repeats it. Segments seem a little younger then.
            let _ = noted.await;
        }
        for step in decide(&book.policy, &facts, book, &mut eyes.watch).steps {
            if self.may_begin(name, &step, book, now_ms) {
                self.begin(name, log.clone(), book.policy.clone(), step, now_ms);
            }
        }
    }

    /// Whether a step may begin. If so, it counts as begun.
    fn may_begin(&self, log: &str, step: &Step, book: &Book, now_ms: u64) -> bool {
        let is_taken = book.last(&step.kind()).is_some_and(|last| self.is_at_work(last, now_ms));
        let mut paces = lock(&self.0.paces);
        let busy = paces.values().filter(|pace| pace.busy).count();
        let pace = paces.entry((log.to_owned(), step.kind().word())).or_default();
        if pace.busy || busy >= MOST_AT_ONCE || is_taken || self.0.env.now() < pace.not_before {
            return false;
        }
        if matches!(step.act, Act::Cool { .. }) && self.0.cooling.swap(true, Ordering::AcqRel) {
            return false;
        }
        pace.busy = true;
        true
    }

    /// Whether another node that is still in the same life has begun an action, and may not have ended it.
    fn is_at_work(&self, action: &Action, now_ms: u64) -> bool {
        let me = self.0.members.identity();
        if action.outcome != (Outcome::Begun {}) || action.node == me.node {
            return false;
        }
        let within = if action.kind == (Kind::Cool {}) { COOL_WITHIN } else { ACT_WITHIN };
        let age = Duration::from_millis(now_ms.saturating_sub(action.at_ms));
        let life = self.0.members.liveness(action.node).filter(|life| life.alive);
        age < within && life.is_some_and(|life| life.incarnation.is_none_or(|known| known == action.life))
    }

    /// Begins a step in the background.
    fn begin(&self, name: &str, log: Arc<VirtualLog>, policy: LogPolicy, step: Step, now_ms: u64) {
        let (me, name) = (self.clone(), name.to_owned());
        let work = async move {
            let done = me.carry_out(&name, &log, &policy, &step, now_ms).await;
            me.settle(&name, &step, done);
        };
        self.0.env.spawn("policy.act", Box::pin(work));
    }

    /// Notes that an attempt has ended. None: it was not made.
    fn settle(&self, log: &str, step: &Step, done: Option<bool>) {
        if matches!(step.act, Act::Cool { .. }) {
            self.0.cooling.store(false, Ordering::Release);
        }
        let now = self.0.env.now();
        let mut paces = lock(&self.0.paces);
        let pace = paces.entry((log.to_owned(), step.kind().word())).or_default();
        *pace = match done {
            Some(true) => Pace::default(),
            // Nothing was tried: the registers do not answer, or another node was faster.
            None => Pace { busy: false, not_before: now.after(self.0.env.jitter(BACKOFF)), ..*pace },
            Some(false) => {
                let wait = MAX_BACKOFF.min(BACKOFF * 2u32.pow(pace.failed.min(10)));
                Pace { busy: false, failed: pace.failed + 1, not_before: now.after(self.0.env.jitter(wait)) }
            }
        };
    }

    /// Claims a step in the register, does it, and writes what became of it. Returns whether it is done; None if the claim failed.
    async fn carry_out(
        &self,
        name: &str,
        log: &Arc<VirtualLog>,
        policy: &LogPolicy,
        step: &Step,
        now_ms: u64,
    ) -> Option<bool> {
        let me = self.0.members.identity();
        let action = Action {
            at_ms: now_ms,
            node: me.node,
            life: me.incarnation,
            kind: step.kind(),
            what: short(&step.what),
            reason: short(&step.reason),
            attempts: 1,
            outcome: Outcome::Begun {},
        };
        let mut is_mine = false;
        let claimed = self.change(name, |book| {
            let mut book = book?;
            let last = book.last(&action.kind);
            is_mine = book.policy == *policy && !last.is_some_and(|last| self.is_at_work(last, now_ms));
            if is_mine {
                book.begin(action.clone());
            }
            Some(book)
        });
        claimed.await.ok().filter(|_| is_mine)?;
        tracing::info!(log = name, reason = step.reason, "the policy begins to {}", step.what);
        let outcome = self.act(log, policy, step).await;
        match &outcome {
            Outcome::Done {} => {
                self.count(|counts| counts.done += 1);
                tracing::info!(log = name, reason = step.reason, "the policy did {}", step.what);
            }
            Outcome::Failed { why } | Outcome::Unknown { why } => {
                hit("policy.log.failed");
                self.count(|counts| counts.failed += 1);
                tracing::info!(log = name, reason = step.reason, why, "the policy could not {}", step.what);
            }
            Outcome::Begun {} => {}
        }
        let done = outcome == Outcome::Done {};
        for _ in 0..TELLS {
            let told = self.change(name, |book| {
                book.map(|mut book| {
                    book.end(&action, outcome.clone());
                    book
                })
            });
            if told.await.is_ok() {
                break;
            }
            self.0.env.sleep(self.0.env.jitter(BACKOFF)).await;
        }
        Some(done)
    }

    /// Does what a step demands, and returns what became of it.
    async fn act(&self, log: &Arc<VirtualLog>, policy: &LogPolicy, step: &Step) -> Outcome {
        let within = if matches!(step.act, Act::Cool { .. }) { COOL_WITHIN } else { ACT_WITHIN };
        let outcome = self.0.env.within(within, self.attempt(log, policy, &step.act)).await;
        let late = || Outcome::Unknown { why: format!("it was not done within {} s", within.as_secs()) };
        let outcome = outcome.unwrap_or_else(|_| late());
        if outcome == (Outcome::Done {}) {
            hit(match step.kind() {
                Kind::Place {} => "policy.log.placed",
                Kind::Trim {} => "policy.log.trimmed",
                Kind::Seal {} => "policy.log.sealed",
                Kind::Cool {} => "policy.log.cooled",
            });
        }
        outcome
    }

    async fn attempt(&self, log: &Arc<VirtualLog>, policy: &LogPolicy, act: &Act) -> Outcome {
        let (from, spec) = match act {
            Act::Trim { to } => {
                return ended(log.trim(*to).await, |error| matches!(error, TrimError::Unknown(_)));
            }
            Act::Cool { loglet, start } => {
                let Some(cold) = &policy.cold else { return failed("the policy names no place") };
                return self.cool(log, *loglet, *start, cold).await;
            }
            Act::Converge { from, nodes } => (from, self.converged(policy, nodes)),
            Act::Leave { from } => {
                let placement = policy.placement.as_ref();
                let elsewhere = placement.and_then(|placement| placement.elsewhere.as_ref());
                (from, elsewhere.map(WantedLoglet::spec))
            }
            Act::Seal { from } => (from, Some(LogletSpec::default())),
        };
        let Some(spec) = spec else { return failed("the policy names no loglet for that") };
        let unfit = {
            let me = self.0.members.identity();
            let view = View::of(&self.0.members, &me, self.0.env.now(), &self.0.timings);
            view.cluster.unfit().collect::<Vec<NodeId>>()
        };
        let extended = log.extend_from(*from, spec.avoiding(unfit)).await;
        if matches!(extended, Ok(Ok(false))) {
            return failed("another segment followed meanwhile");
        }
        let outcome = ended(extended, is_unknown);
        if outcome == (Outcome::Done {}) {
            tell_of(&self.0.env, &self.0.members, log);
        }
        outcome
    }

    /// Moves a segment to the store. An attempt continues where the last one of this node ended, unless that was at another segment.
    async fn cool(&self, log: &Arc<VirtualLog>, loglet: LogletId, start: LogPos, cold: &Cold) -> Outcome {
        let begun = lock(&self.0.copies).remove(log.name());
        let remake = match begun {
            Some(remake) if remake.of == loglet => {
                hit("policy.log.resumed");
                remake
            }
            other => {
                other.iter().for_each(|remake| log.give_up(remake));
                match log.plan_remake(loglet, start, cold.to.spec()).await {
                    Ok(Ok(remake)) => remake,
                    not => return ended(not, is_unknown),
                }
            }
        };
        let done = log.remake(remake.clone()).await;
        match &done {
            Ok(Err(ReconfigError::Unavailable { step, .. })) if *step != ReconfigStep::Install => {
                lock(&self.0.copies).insert(log.name().to_owned(), remake);
            }
            Ok(Err(error)) if !is_unknown(error) => log.give_up(&remake),
            // It is in place, or may be.
            _ => {}
        }
        ended(done, is_unknown)
    }

    /// Returns the specification of a converged Loglet on these nodes.
    fn converged(&self, policy: &LogPolicy, nodes: &[NodeId]) -> Option<LogletSpec> {
        let kind = &policy.placement.as_ref()?.kind;
        let role = self.0.logs.registry().provider(kind).ok()?.roles().iter().find(|role| role.holds)?;
        Some(LogletSpec::of(kind).place(role.name, nodes.to_vec()))
    }
}

fn failed(why: &str) -> Outcome {
    Outcome::Failed { why: short(why) }
}

/// Whether a change of a chain may have happened although it failed.
fn is_unknown(error: &ReconfigError) -> bool {
    matches!(error, ReconfigError::Unavailable { step: ReconfigStep::Install, .. })
}

/// Returns what became of an operation on a log.
fn ended<T, E: Display, G>(result: Result<Result<T, E>, G>, is_unknown: impl Fn(&E) -> bool) -> Outcome {
    match result {
        Ok(Ok(_)) => Outcome::Done {},
        Ok(Err(error)) if is_unknown(&error) => Outcome::Unknown { why: short(&error.to_string()) },
        Ok(Err(error)) => failed(&error.to_string()),
        Err(_) => Outcome::Unknown { why: "the node is stopping".to_owned() },
    }
}

//! Applies entries, answers their callers, and commits the applied changes to the store in larger batches.

use std::sync::Arc;

use atoll_contract::LogPos;
use atoll_core::testing::{hit, mutant};

use super::Applied;
use super::Options;
use super::ProposeError;
use super::commit::{Committer, Failed, Refill};
use super::core::{Core, Waiting};
use crate::entry::{Delivered, Surgery};
use crate::mutants;
use crate::replica::{EntryOutcome, Halt, Reads, Replica, Stop};
use crate::store::StoreError;

/// A replica that lacks at least this many entries is catching up. A replica that keeps pace never has so many entries in flight.
pub(super) const BEHIND_ENTRIES: u64 = 256;

/// Drives a replica on behalf of a core. Each replica has one applier, and one thread at a time uses it.
pub(crate) struct Applier {
    replica: Replica,
    core: Arc<Core>,
    committer: Box<dyn Committer>,
    commit_above_bytes: usize,
    catch_up_commit_bytes: usize,
    sync_above_bytes: usize,
    /// Bytes committed to the store since the last durable commit.
    unsynced_bytes: usize,
    committing: bool,
    /// The current commit has failed and waits for a retry.
    commit_failed: bool,
    /// The retry of a failed commit is under way.
    repeating: bool,
    /// Everything that is applied must be committed after the current commit.
    commit_wanted: bool,
    /// Entries that were accepted but not applied, because the store currently cannot be read or accepts no commits.
    backlog: Vec<Delivered>,
    halted: bool,
    /// Entries below are in the store or in the current commit.
    set_aside: LogPos,
}

/// Returns true if an operation that failed with this error is retried.
fn is_retried(error: &StoreError) -> bool {
    error.can_pass() && !mutant(mutants::DB_EVERY_STORE_ERROR_HALTS)
}

struct Answer {
    waiting: Waiting,
    outcome: EntryOutcome,
    surgery: Option<Surgery>,
    position: LogPos,
    time_ms: u64,
}

impl Applier {
    pub(crate) fn new(
        replica: Replica,
        core: Arc<Core>,
        committer: Box<dyn Committer>,
        options: &Options,
    ) -> Self {
        let at = replica.next();
        core.figures(|f| f.committed_below = at);
        Applier {
            replica,
            core,
            committer,
            commit_above_bytes: options.commit_above_bytes,
            catch_up_commit_bytes: options.catch_up_commit_bytes.max(options.commit_above_bytes),
            sync_above_bytes: options.sync_above_bytes,
            unsynced_bytes: 0,
            committing: false,
            commit_failed: false,
            repeating: false,
            commit_wanted: false,
            backlog: Vec::new(),
            halted: false,
            set_aside: at,
        }
    }

    pub(crate) fn core(&self) -> Arc<Core> {
        self.core.clone()
    }

    /// Applies consecutive entries, starting at the first one that is not applied yet. Sends their events to the doors, publishes
    /// the state, and answers their callers, in this order (X19). On a halt, publishes the state before the halt and notifies all
    /// waiters.
    ///
    /// While the store is short of a resource, the entries are queued in order, and [`Applier::retry`] continues with them.
    pub(crate) fn apply(&mut self, entries: &[Delivered]) {
        if self.halted {
            return;
        }
        if self.is_blocked() {
            self.backlog.extend_from_slice(entries);
            return;
        }
        let done = self.apply_with(entries, Reads::Anywhere);
        self.backlog.extend_from_slice(&entries[done..]);
        self.commit_if_large();
    }

    /// Returns true if entries have to wait until the store works again.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.halted && (!self.backlog.is_empty() || (self.commit_failed && self.is_overfull()))
    }

    /// Returns true if the uncommitted changes have grown so large that nothing more may be applied before the current commit ends.
    fn is_overfull(&self) -> bool {
        self.replica.active_bytes() >= self.above_bytes() + self.commit_above_bytes
    }

    /// Retries the store operations that failed.
    pub(crate) fn retry(&mut self) {
        if self.halted {
            return;
        }
        if self.commit_failed {
            (self.commit_failed, self.repeating) = (false, true);
            self.committer.again();
            self.adopt(false);
        }
        self.go_on();
    }

    /// Applies as much of the backlog as possible, and reports the store as working if nothing has to be retried.
    pub(crate) fn go_on(&mut self) {
        if self.halted {
            return;
        }
        let must_wait = self.commit_failed && self.is_overfull();
        if !must_wait && !self.backlog.is_empty() {
            let kept = std::mem::take(&mut self.backlog);
            self.apply(&kept);
        }
        if self.commit_wanted && !self.committing {
            self.commit(false);
        }
        // A retried commit may fail again. The store counts as failing until the retry succeeds, so the pause between attempts
        // keeps growing.
        if !self.commit_failed && !self.repeating && !self.is_blocked() {
            self.core.store_works();
        }
    }

    /// Like [`Applier::apply`], for a caller that must not wait for the disk: stops before an entry that would need to read or
    /// write the store. Returns how many entries were handled; [`Applier::apply`] must continue with the others.
    pub(crate) fn apply_in_memory(&mut self, entries: &[Delivered]) -> usize {
        match () {
            () if self.halted => entries.len(),
            () if self.is_blocked() => 0,
            () if self.replica.active_bytes() >= self.commit_above_bytes => 0,
            () => self.apply_with(entries, Reads::InMemory),
        }
    }

    fn apply_with(&mut self, entries: &[Delivered], reads: Reads) -> usize {
        let before = self.replica.next();
        let mut answers = Vec::new();
        let (mut commands, mut rejected) = (0, 0);
        let mut halted = None;
        let checking = self.core.check.is_under_way();
        let mut trail = Vec::new();
        for entry in entries {
            let position = self.replica.next();
            match self.replica.apply(entry, reads) {
                Ok(outcome) => {
                    if checking {
                        trail.push(self.replica.hash_now());
                    }
                    if let EntryOutcome::Applied(replies) = &outcome {
                        commands += replies.len() as u64;
                        rejected += replies.iter().filter(|r| r.is_err()).count() as u64;
                    }
                    if let Some(waiting) = self.core.take_waiting(entry.entry.op) {
                        let (time_ms, surgery) = (self.replica.time_ms(), entry.surgery);
                        answers.push(Answer { waiting, outcome, surgery, position, time_ms });
                    } else if matches!(outcome, EntryOutcome::Excised) {
                        // Its callers were answered when the replica halted at it. Nothing that follows it in its lane is applied.
                        self.core.refused(entry.entry.op);
                    }
                }
                Err(Stop::Halt(Halt::Store { error, .. })) if is_retried(&error) => {
                    hit("db.apply.store_failing");
                    self.core.store_fails(&error);
                    break;
                }
                Err(Stop::Halt(halt)) => {
                    halted = Some(halt);
                    break;
                }
                Err(Stop::NotInMemory) => {
                    hit("db.apply.not_in_memory");
                    break;
                }
            }
        }
        let applied = self.replica.next().since(before) as usize;
        if applied > 0 {
            self.core.check.passed(trail, self.replica.hash_now());
            self.show(answers);
        }
        self.core.figures(|f| {
            f.commands += commands;
            f.rejected += rejected;
            f.overlay_bytes = self.replica.overlay_bytes() as u64;
            f.foreign_entries = self.replica.foreign();
            if f.samples.last() != self.replica.samples().back() {
                f.samples = self.replica.samples().iter().copied().collect();
            }
        });
        match halted {
            Some(halt) => {
                self.halt(&halt);
                entries.len()
            }
            None => applied,
        }
    }

    /// Sends the events to the doors, publishes the view, and answers the callers, in this order (X19).
    fn show(&mut self, answers: Vec<Answer>) {
        let late = mutant(mutants::DB_VIEW_BEFORE_EVENTS);
        let withheld = self.core.is_withheld();
        if !late && !withheld {
            self.replica.send_events();
        }
        self.core.publish(self.replica.publish());
        if late {
            self.replica.send_events();
        }
        for answer in answers {
            answer.give(&self.core, withheld);
        }
    }

    /// Starts a commit once the applied changes are large enough, and adopts finished commits. Waits for the current commit only if
    /// the changes applied meanwhile exceed a second limit.
    fn commit_if_large(&mut self) {
        if self.halted {
            return;
        }
        self.adopt(false);
        if self.replica.active_bytes() < self.above_bytes() {
            return;
        }
        // This bounds the memory: the applied changes, the current commit and the last commit each take about this much.
        if self.committing && self.is_overfull() {
            self.adopt(true);
        }
        if !self.committing && !self.halted {
            let unsynced = self.unsynced_bytes + self.replica.active_bytes();
            self.set_aside(unsynced >= self.sync_above_bytes);
            self.adopt(false);
        }
    }

    /// Returns the size in bytes at which the applied changes are committed.
    fn above_bytes(&self) -> usize {
        match self.core.known_tail().0.saturating_sub(self.replica.next().0) {
            0..BEHIND_ENTRIES => self.commit_above_bytes,
            BEHIND_ENTRIES.. => self.catch_up_commit_bytes,
        }
    }

    fn set_aside(&mut self, durable: bool) {
        self.set_aside = self.replica.next();
        self.committing = true;
        self.unsynced_bytes = if durable { 0 } else { self.unsynced_bytes + self.replica.active_bytes() };
        let job = self.replica.freeze();
        self.committer.start(job, durable);
    }

    /// Handles the outcome of the current commit if it has ended. With `wait`, waits for it.
    pub(crate) fn adopt(&mut self, wait: bool) {
        let Some(outcome) = self.committer.outcome(wait) else { return };
        self.repeating = false;
        match outcome {
            Ok(done) => {
                self.committing = false;
                self.replica.committed(done.base);
                self.core.publish(self.replica.publish());
                self.core.figures(|f| {
                    f.committed_below = done.below;
                    if done.durable {
                        f.durable_below = done.below;
                    }
                    f.store_bytes = done.store_bytes;
                    f.overlay_bytes = self.replica.overlay_bytes() as u64;
                });
            }
            Err(Failed { error, base }) if is_retried(&error) => {
                self.commit_failed = true;
                if let Some(base) = base {
                    self.replica.rebase(base);
                    self.core.publish(self.replica.publish());
                }
                self.core.store_fails(&error);
            }
            Err(Failed { error, .. }) => {
                let at = self.replica.next();
                self.halt(&Halt::Store { at, error });
            }
        }
    }

    fn halt(&mut self, halt: &Halt) {
        self.halted = true;
        self.core.halt(halt);
    }

    /// Performs a step of a refill. The last step replaces the state. It notifies the observers before it publishes the state, and
    /// afterwards the callers whose commands the state includes but whose replies are lost.
    pub(crate) fn refill(&mut self, step: Refill) -> Result<LogPos, StoreError> {
        self.adopt(self.committing);
        let last = matches!(step, Refill::Finish);
        let base = self.committer.refill(step)?;
        if !last {
            return Ok(self.replica.next());
        }
        hit("db.refilled");
        // The new state includes these entries, or they are read again.
        self.backlog.clear();
        (self.committing, self.commit_failed, self.repeating) = (false, false, false);
        let published = self.replica.reopen(base)?;
        self.replica.tell_restored(&published);
        let below = published.below;
        // The refill is counted before the state is published, so that a waiter for the state sees the count.
        self.core.figures(|f| f.refills += 1);
        self.core.publish(published);
        self.set_aside = below;
        self.core.figures(|f| {
            (f.committed_below, f.durable_below) = (below, below);
            f.samples.clear();
            (f.divergence, f.scrubbed) = (None, None);
        });
        self.core.store_works();
        self.core.check.passed(Vec::new(), self.replica.hash_now());
        self.core.forget_wrong();
        self.core.skip(below, |op| self.replica.is_behind(op));
        Ok(below)
    }

    /// Drops the entries that were accepted but not applied, and returns the position of the next one. With `resumes`, a replica that has
    /// halted at an entry continues: no part of that entry took effect. One whose store has failed for good since does not.
    pub(crate) fn rewind(&mut self, resumes: bool) -> LogPos {
        self.backlog.clear();
        let next = self.replica.next();
        if resumes && self.core.halted().is_some_and(|halt| halt.at_entry() == Some(next)) {
            hit("db.resumed");
            self.halted = false;
            self.core.resume();
        }
        next
    }

    /// Durably commits everything that is applied, after the current commit. Does nothing while that commit has to be retried. With
    /// `wait`, waits for both commits, which may take long if the disk hangs.
    pub(crate) fn commit(&mut self, wait: bool) {
        self.adopt(wait && self.committing);
        self.commit_wanted = self.committing;
        let durable_below = self.core.durable_below();
        if self.halted
            || self.committing
            || (durable_below == self.replica.next() && self.set_aside == durable_below)
        {
            return;
        }
        self.set_aside(true);
        self.adopt(wait);
    }
}

impl Answer {
    /// Answers the callers. `withheld`: the replies of this replica cannot be relied on.
    fn give(self, core: &Core, withheld: bool) {
        let (position, time_ms) = (self.position, self.time_ms);
        let op = self.waiting.op;
        let callers = self.waiting.callers;
        match self.outcome {
            // The replies are those of other commands.
            EntryOutcome::Applied(_) if self.surgery.is_some() => {
                for caller in callers {
                    caller.complete(Err(ProposeError::Replaced(position)));
                }
            }
            EntryOutcome::Applied(_) if withheld => {
                for caller in callers {
                    caller.complete(Err(ProposeError::Doubtful));
                }
            }
            EntryOutcome::Applied(replies) => {
                for ((index, caller), reply) in (0..).zip(callers).zip(replies) {
                    caller.complete(Ok(Applied { position, index, time_ms, reply }));
                }
            }
            // The first copy would have answered them, but this replica did not apply it: its state came from a peer.
            EntryOutcome::Copy => {
                for caller in callers {
                    caller.complete(Err(ProposeError::Skipped(position)));
                }
            }
            EntryOutcome::Excised => {
                core.refused(op);
                for caller in callers {
                    caller.complete(Err(ProposeError::Excised(position)));
                }
            }
            EntryOutcome::Refused | EntryOutcome::Foreign => {
                core.refused(op);
                for caller in callers {
                    caller.complete(Err(ProposeError::Refused));
                }
            }
        }
    }
}

//! checkTail, and waiting for the tail to move (virtuallog §3; vlog-V1, vlog-V4, vlog-V14).

use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Completer, Ticket, ticket};

use super::{LogError, Shared};
use crate::chain::Segment;
use crate::mutants;
use crate::rounds::{First, race};
use atoll_contract::loglet::{Loglet, LogletError, Tail, Unavailability};
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

/// Attempts at an unavailable active segment before the caller gets an error.
const ATTEMPTS: u32 = 3;
/// Pause between these attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The result of a tail check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) tail: LogPos,
    /// Whether the log was ended, so that the tail is final.
    pub(super) ended: bool,
}

/// Callers that wait for the tail to pass a position. Bounded by their tickets: dropped ones are removed at the next change.
#[derive(Debug, Default)]
pub(super) struct TailWaiters {
    waiters: Vec<(LogPos, Completer<Result<LogPos, LogError>>)>,
    following: bool,
}

impl TailWaiters {
    /// Removes and returns the waiters whose position is below `tail`.
    pub(super) fn take_passed(&mut self, tail: LogPos) -> Vec<Completer<Result<LogPos, LogError>>> {
        if self.waiters.iter().all(|(above, _)| *above >= tail) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.waiters);
        let (passed, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|(above, _)| *above < tail);
        self.waiters = rest;
        passed.into_iter().map(|(_, done)| done).collect()
    }
}

impl Shared {
    /// Joins the next tail check, and starts it if none is running.
    pub(super) fn check(self: &Arc<Self>) -> Ticket<Result<Checked, LogError>> {
        let (wait, start) = self.checks.join();
        if start {
            let me = self.clone();
            self.env.spawn(
                "vlog.check_tail",
                Box::pin(async move {
                    while me.checks.begin() {
                        let got = me.check_once().await;
                        me.checks.finish(&got);
                    }
                }),
            );
        }
        wait
    }

    /// Returns the answer to a call of [`Shared::check`].
    pub(super) async fn checked(
        &self,
        round: Ticket<Result<Checked, LogError>>,
    ) -> Result<Checked, LogError> {
        round.await.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping)))
    }

    async fn check_once(self: &Arc<Self>) -> Result<Checked, LogError> {
        let mut failures = 0;
        loop {
            let chain = self.some_chain().await?;
            let active = chain.chain.active();
            if active.is_end() {
                return Ok(Checked { tail: active.start, ended: true });
            }
            let loglet = self.handle(active)?;
            let Some(tail) = self.while_active(active, self.tail_of(&*loglet)).await else {
                hit("vlog.check_tail.superseded");
                continue;
            };
            match tail {
                Ok(Tail { at, sealed: None }) => {
                    let tail = active.position_of(at);
                    self.raise_known(active.loglet, tail);
                    return Ok(Checked { tail, ended: false });
                }
                Ok(Tail { sealed: Some(_), .. }) => {
                    hit("vlog.check_tail.sealed");
                    self.successor_in_time(active).await?;
                }
                Err(LogletError::Gone) => {
                    hit("vlog.check_tail.gone");
                    self.newer_than(chain.version).await?;
                }
                Err(LogletError::Unavailable(why)) => {
                    failures += 1;
                    if self.refreshed().await?.version == chain.version {
                        if failures >= ATTEMPTS {
                            return Err(LogError::Unavailable(why));
                        }
                        self.env.sleep(self.env.jitter(PAUSE)).await;
                    }
                }
            }
        }
    }

    /// Asks the Loglet for its tail and seal bit in one answer, as of one moment (vlog-V1).
    async fn tail_of(&self, loglet: &dyn Loglet) -> Result<Tail, LogletError> {
        let first = loglet.check_tail().await?;
        if mutant(mutants::VLOG_V1) && first.sealed.is_none() {
            self.env.sleep(Duration::from_millis(30)).await;
            let second = loglet.check_tail().await?;
            return Ok(Tail { at: second.at, sealed: first.sealed });
        }
        Ok(first)
    }

    async fn successor_in_time(self: &Arc<Self>, sealed: &Segment) -> Result<(), LogError> {
        match self.env.within(self.options.reconfigure_within, self.successor(sealed.loglet)).await {
            Ok(found) => found.map(|_| ()),
            Err(_) => Err(LogError::Unavailable(Unavailability::NoQuorum)),
        }
    }

    /// Reads the chain after a `Gone` answer. A newer chain must exist, because a Loglet is deleted only after it has left the chain;
    /// fails as unavailable if it cannot be read yet.
    pub(super) async fn newer_than(
        self: &Arc<Self>,
        version: atoll_contract::register::Version,
    ) -> Result<(), LogError> {
        if self.refreshed().await?.version == version {
            return Err(LogError::Unavailable(Unavailability::NoQuorum));
        }
        Ok(())
    }

    /// Registers a waiter for the first known tail above `above`.
    pub(super) fn wait_tail(self: &Arc<Self>, above: LogPos) -> Ticket<Result<LogPos, LogError>> {
        let start = {
            let mut state = lock(&self.state);
            let (tail, active) = (state.known.tail, state.chain.as_ref().map(|c| c.chain.active().is_end()));
            if tail > above {
                return Ticket::ready(Ok(tail));
            }
            if active == Some(true) {
                return Ticket::ready(Err(LogError::Ended(tail)));
            }
            let (done, wait) = ticket();
            state.tail_waiters.waiters.push((above, done));
            if state.tail_waiters.following {
                return wait;
            }
            state.tail_waiters.following = true;
            wait
        };
        let me = self.clone();
        self.env.spawn("vlog.follow", Box::pin(async move { me.follow().await }));
        start
    }

    /// Follows the tail while anyone waits for it, with a single wait at the Loglet for all of them.
    async fn follow(self: Arc<Self>) {
        loop {
            let seen = self.changed.count();
            if !self.serve_tail_waiters(None) {
                return;
            }
            let followed = match self.some_chain().await {
                Ok(chain) => {
                    let active = chain.chain.active();
                    if active.is_end() {
                        Err(LogError::Ended(active.start))
                    } else {
                        self.follow_segment(active, seen).await
                    }
                }
                Err(e) => Err(e),
            };
            match followed {
                Ok(()) => {}
                Err(LogError::Unavailable(_)) => self.env.sleep(self.env.jitter(PAUSE)).await,
                Err(e) => {
                    self.serve_tail_waiters(Some(e));
                    return;
                }
            }
        }
    }

    /// Waits once at the active segment for a higher tail. Returns early when the local state changes (vlog-V4, vlog-V5).
    async fn follow_segment(self: &Arc<Self>, active: &Segment, seen: u64) -> Result<(), LogError> {
        let loglet = self.handle(active)?;
        let known = self.known();
        let above = active.offset_of(known.tail);
        let got = match race(loglet.wait_tail(above), self.changed.after(seen)).await {
            First::A(got) => got,
            First::B(_) => return Ok(()),
        };
        match got {
            Ok(Tail { at, sealed }) if sealed.is_none() || mutant(mutants::VLOG_V4) => {
                self.raise_known(active.loglet, active.position_of(at));
                if at <= above {
                    // The wait came back early. A Loglet that always does so must not make this loop spin.
                    self.env.sleep(Duration::from_millis(1)).await;
                }
                Ok(())
            }
            // The tail of a sealed Loglet is not a tail of the log: only the installed stop is (vlog-V4).
            Ok(_) => {
                hit("vlog.follow.sealed");
                self.successor(active.loglet).await.map(|_| ())
            }
            Err(LogletError::Gone) => self.refreshed().await.map(|_| ()),
            Err(LogletError::Unavailable(why)) => Err(LogError::Unavailable(why)),
        }
    }

    /// Answers the waiters whose position was passed, or all of them after an error. Returns false if no waiter is left.
    fn serve_tail_waiters(&self, error: Option<LogError>) -> bool {
        let (passed, failed, tail, left) = {
            let mut state = lock(&self.state);
            let tail = state.known.tail;
            let passed = state.tail_waiters.take_passed(tail);
            let waiters = &mut state.tail_waiters;
            waiters.waiters.retain(|(_, done)| !done.is_abandoned());
            let failed = if error.is_some() { std::mem::take(&mut waiters.waiters) } else { Vec::new() };
            waiters.following = !waiters.waiters.is_empty();
            (passed, failed, tail, waiters.following)
        };
        for done in passed {
            done.complete(Ok(tail));
        }
        for (_, done) in failed {
            done.complete(Err(error.clone().unwrap_or(LogError::Unavailable(Unavailability::Stopping))));
        }
        left
    }
}

//! prefixTrim (virtuallog §6): raises the trim position in the chain, removes trimmed segments in the same write, and then
//! trims the Loglet that holds the position. Calls that arrive while a trim is in progress share the next one.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Completer, Tick, Ticket, ticket};

use super::install::Installed;
use super::truncate::Trimmed;
use super::{LogError, ReconfigError, Shared, TrimError};
use crate::chain::VersionedChain;
use atoll_contract::loglet::LogletError;
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;

/// Attempts to trim the Loglet itself. The trim is valid without it, and the next trim repeats it after a failure.
const ATTEMPTS: u32 = 3;
/// Pause between these attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Trims that wait for the next round. Bounded by the callers' tickets.
#[derive(Debug, Default)]
pub(super) struct Trims {
    waiting: Vec<(LogPos, Completer<Result<LogPos, TrimError>>)>,
    running: bool,
}

impl Shared {
    pub(super) fn trim(self: &Arc<Self>, to: LogPos) -> Ticket<Result<LogPos, TrimError>> {
        let (done, wait) = ticket();
        {
            let mut state = lock(&self.state);
            state.trims.waiting.push((to, done));
            if state.trims.running {
                return wait;
            }
            state.trims.running = true;
        }
        let me = self.clone();
        self.env.spawn("vlog.trim", Box::pin(async move { me.run_trims().await }));
        wait
    }

    async fn run_trims(self: Arc<Self>) {
        loop {
            let waiting = {
                let mut state = lock(&self.state);
                state.trims.running = !state.trims.waiting.is_empty();
                std::mem::take(&mut state.trims.waiting)
            };
            let Some(highest) = waiting.iter().map(|(to, _)| *to).max() else { return };
            match self.tail_for_trim(highest).await {
                Ok(tail) => {
                    let (good, bad): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(to, _)| *to <= tail);
                    for (_, done) in bad {
                        done.complete(Err(LogError::BeyondTail(tail).into()));
                    }
                    let Some(to) = good.iter().map(|(to, _)| *to).max() else { continue };
                    let got = self.trim_once(to).await;
                    for (_, done) in good {
                        done.complete(got.clone());
                    }
                }
                Err(e) => {
                    for (_, done) in waiting {
                        done.complete(Err(e.clone().into()));
                    }
                }
            }
        }
    }

    /// Returns a tail that may be trimmed up to: the known one if it is high enough, otherwise a checked one.
    async fn tail_for_trim(self: &Arc<Self>, to: LogPos) -> Result<LogPos, LogError> {
        let known = self.known().tail;
        if to <= known {
            return Ok(known);
        }
        let round = self.check();
        Ok(self.checked(round).await?.tail)
    }

    async fn trim_once(self: &Arc<Self>, to: LogPos) -> Result<LogPos, TrimError> {
        let chain = self.raise_trim(to).await?;
        self.forward_trim(&chain);
        Ok(chain.chain.trim())
    }

    async fn raise_trim(self: &Arc<Self>, to: LogPos) -> Result<Arc<VersionedChain>, ReconfigError> {
        let until = self.reconfigure_until();
        loop {
            let chain = self.some_chain().await?;
            let old = &chain.chain;
            if old.trim() >= to {
                return Ok(chain);
            }
            if self.gave_way(until).await {
                continue;
            }
            let gone = Trimmed::of(old, to);
            let new = old.next_with_pages(self.draw_nonce(), |parts| {
                *parts.trim = to;
                gone.leave(parts);
            })?;
            match self.install(chain.version, new, until).await? {
                Installed::Mine(new) => {
                    if !gone.is_nothing() {
                        hit("vlog.trim.truncated");
                    }
                    self.delete_trimmed(old, old.trim(), to, gone);
                    return Ok(new);
                }
                // The newer chain is cached by now.
                Installed::Lost(_) => {}
            }
        }
    }

    /// Waits until this node is not changing the active segment, at most until `until`. Returns false if there was nothing to wait for.
    /// Appends wait for such a change, which takes several steps after it has read the chain, while a trim is a single write: trims
    /// without a pause would win every time.
    async fn gave_way(&self, until: Tick) -> bool {
        let mut waited = false;
        loop {
            let seen = self.changed.count();
            let is_changing = {
                let state = lock(&self.state);
                state.reconfiguring > 0 || state.watched.is_some()
            };
            let now = self.env.now();
            if !is_changing || now >= until {
                return waited;
            }
            hit("vlog.trim.gave_way");
            waited = true;
            let _ = self.env.within(until.since(now), self.changed.after(seen)).await;
        }
    }

    /// Forwards the trim to the Loglet that holds the trim position, in the background.
    fn forward_trim(self: &Arc<Self>, chain: &Arc<VersionedChain>) {
        let (me, chain) = (self.clone(), chain.clone());
        let work = async move {
            let trim = chain.chain.trim();
            let Ok(Some(segment)) = me.segment_at(&chain, trim).await else { return };
            if segment.is_end() || segment.start >= trim {
                return;
            }
            let Ok(loglet) = me.handle(&segment) else { return };
            for _ in 0..ATTEMPTS {
                match loglet.prefix_trim(segment.offset_of(trim)).await {
                    Ok(()) | Err(LogletError::Gone) => return,
                    Err(LogletError::Unavailable(_)) => me.env.sleep(me.env.jitter(PAUSE)).await,
                }
            }
        };
        self.env.spawn("vlog.trim.forward", Box::pin(work));
    }
}

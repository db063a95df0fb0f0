//! checkTail (native §4; states native-S1 to native-S5, as in the paper's figure).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use atoll_contract::{LogletError, Offset, SealedConfig, Tail, Unavailability};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Call, Class, NodeId, Tick};
use bytes::Bytes;

use crate::mutants;
use crate::roles::LOG_SERVER;

use super::loglet::{ServerSet, failure};
use super::message::{Answer, Info, Repair, ServerState, Verdict, Wait};

/// States of at least a majority, all from one attempt.
pub(crate) type Majority = BTreeMap<NodeId, ServerState>;

/// The outcome of a wait for an open tail.
enum Settled {
    /// A majority has stored everything below it.
    Open,
    /// Some server is sealed; native-S4 follows.
    Sealed,
    /// There was no progress: native-S1 follows again, or the failure policy acts (native-T14).
    TimedOut,
}

impl ServerSet {
    /// Returns the tail, open or sealed, in one round trip when nothing is in flight. Set `sealed` if a majority is known to be sealed, so
    /// that it is worth waiting for those servers.
    pub(crate) async fn check_tail(&self, mut sealed: bool) -> Result<Tail, LogletError> {
        let until = self.op_deadline();
        let mut unsettled_since: Option<Tick> = None;
        loop {
            // native-S1 COLLECT
            let majority = match self.collect(std::mem::take(&mut sealed)).await {
                Ok(majority) => majority,
                Err(LogletError::Gone) => return Err(LogletError::Gone),
                Err(error) => {
                    if !self.pause(until).await {
                        return Err(error);
                    }
                    continue;
                }
            };
            let sealed_count = majority.values().filter(|s| s.sealed).count();
            let tail = majority.values().map(|s| s.local_tail).max().unwrap_or_default();
            if sealed_count == majority.len() {
                // native-S2 ALL-SEALED, native-S3 REPAIR
                match self.sealed_tail(&majority, tail).await {
                    Ok(at) => return Ok(Tail { at, sealed: Some(SealedConfig::new()) }),
                    Err(error) => {
                        hit("native.check_tail.repair_again");
                        if !self.pause(until).await {
                            return Err(error);
                        }
                    }
                }
            } else if sealed_count > 0 {
                // native-S4 SOME-SEALED
                hit("native.check_tail.some_sealed");
                self.seal().await?;
                sealed = true;
            } else {
                // native-S5 NONE-SEALED
                match self.settle(&majority, tail).await {
                    Settled::Open => return Ok(Tail { at: tail, sealed: None }),
                    Settled::Sealed => {
                        hit("native.check_tail.sealed_while_waiting");
                        self.seal().await?;
                        sealed = true;
                    }
                    Settled::TimedOut => {
                        hit("native.check_tail.unsettled");
                        let now = self.env.now();
                        let since = *unsettled_since.get_or_insert(now);
                        if now.since(since) >= self.options.settle_timeout || now >= until {
                            return Err(LogletError::Unavailable(Unavailability::NoSequencer));
                        }
                    }
                }
            }
        }
    }

    /// Collects the replies of one attempt, from at least a majority (native-S1). If a majority of the servers is sealed, only their
    /// replies count (native-T16), because the others are about to be sealed as well.
    pub(crate) async fn collect(&self, sealed: bool) -> Result<Majority, LogletError> {
        let quorum = self.config.quorum();
        let request = Info { loglet: self.id, config: self.config_bytes.clone() };
        let counts = |a: &Answer| a.verdict == (Verdict::Done {}) && (!sealed || a.state.sealed);
        let replies = self
            .env
            .gather_role(&self.nodes, LOG_SERVER, request, self.round_end(), |r| {
                r.ok().filter(|(_, a)| counts(a)).count() >= quorum
            })
            .await;
        let error = failure(replies.ok().map(|(_, a)| &a.verdict));
        let mut majority: Majority = replies
            .into_ok()
            .filter(|(_, a)| a.verdict == Verdict::Done {})
            .map(|(node, a)| (node, a.state))
            .collect();
        if majority.values().filter(|s| s.sealed).count() >= quorum {
            majority.retain(|_, s| s.sealed);
        }
        // A deletion is permanent, whichever other servers still answer (vlog-L7).
        if error == LogletError::Gone || majority.len() < quorum { Err(error) } else { Ok(majority) }
    }

    /// Returns the sealed tail, once every offset below it is on a majority (native-S2, native-S3).
    async fn sealed_tail(&self, majority: &Majority, tail: Offset) -> Result<Offset, LogletError> {
        // Trimmed offsets were below a tail that some client obtained, so they are committed.
        let known = majority.values().map(|s| s.known_tail.max(s.trim)).max().unwrap_or_default();
        if known > tail {
            // A repair by another check was faster: the tail of another majority is higher.
            hit("native.check_tail.overtaken");
            return Err(LogletError::Unavailable(Unavailability::NoQuorum));
        }
        if known == tail {
            return Ok(tail);
        }
        if majority.values().any(|s| s.local_tail < tail) {
            hit("native.check_tail.repair");
            self.repair(majority, known, tail).await?;
        }
        // A majority now holds everything. Send this tail by rule K (b): only to sealed servers, and only inside a Repair. The next check
        // then takes one round, and a server that lacks entries learns of it.
        for node in majority.keys() {
            let message = Repair {
                loglet: self.id,
                config: Bytes::new(),
                first: tail,
                count: 0,
                known_tail: tail,
                batch: Bytes::new(),
            };
            self.env.post(*node, Class::Data, LOG_SERVER, message);
        }
        Ok(tail)
    }

    /// Waits until a majority of all servers holds everything below `tail` while unsealed (native-S5).
    async fn settle(&self, majority: &Majority, tail: Offset) -> Settled {
        let mut seen: Majority = majority.clone();
        if self.is_open_tail(&seen, tail) {
            return Settled::Open;
        }
        hit("native.check_tail.wait");
        let patience = self.options.settle_timeout / 2;
        let request = Wait {
            loglet: self.id,
            config: self.config_bytes.clone(),
            target: tail,
            known_only: false,
            patience_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
        };
        let mut calls: Vec<(NodeId, Option<Call<Wait>>)> = self
            .nodes
            .iter()
            .map(|n| (*n, Some(self.env.call_role(*n, LOG_SERVER, request.clone()))))
            .collect();
        let settled = std::future::poll_fn(|cx| {
            for (node, slot) in &mut calls {
                let Some(call) = slot else { continue };
                let Poll::Ready(reply) = Pin::new(call).poll(cx) else { continue };
                *slot = None;
                match reply {
                    Ok(answer) if answer.verdict == (Verdict::Done {}) => {
                        // The seal bit comes with the tail, because the known tail of a sealed server is not an open tail (native-T3).
                        if answer.state.sealed && !mutant(mutants::NATIVE_T3) {
                            return Poll::Ready(Settled::Sealed);
                        }
                        seen.insert(*node, answer.state);
                    }
                    _ => {}
                }
                if self.is_open_tail(&seen, tail) {
                    return Poll::Ready(Settled::Open);
                }
            }
            if calls.iter().all(|(_, call)| call.is_none()) {
                return Poll::Ready(Settled::TimedOut);
            }
            Poll::Pending
        });
        let settled = self.env.within(patience + Duration::from_millis(50), settled).await;
        match settled {
            Ok(Settled::TimedOut) => {
                // Failed calls return at once, so pause here instead of spinning.
                self.env.sleep(self.env.jitter(self.options.retry)).await;
                Settled::TimedOut
            }
            Ok(settled) => settled,
            Err(_) => Settled::TimedOut,
        }
    }

    /// Returns true if a majority of all servers has reached `tail` while unsealed, or an unsealed one knows it as committed. The known
    /// tail of an unsealed server comes from the sequencer (rule K).
    fn is_open_tail(&self, seen: &Majority, tail: Offset) -> bool {
        let open = |s: &&ServerState| !s.sealed || mutant(mutants::NATIVE_T3);
        seen.values().filter(open).filter(|s| s.local_tail >= tail).count() >= self.config.quorum()
            || seen.values().filter(open).any(|s| s.known_tail >= tail)
    }
}

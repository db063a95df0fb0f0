//! The start check: compares the state that the store had at startup with that of peers, before this replica shows the state to
//! anyone.
//!
//! Peers report the hash of their current state. This replica compares it with its own hash once it has reached the same position,
//! which a reader of the newest state has to wait for anyway. A peer that is itself in its start check also reports its hash;
//! otherwise, after a start of the whole cluster, the replicas would wait for each other. Meanwhile the store is scrubbed for a
//! short time, and a later scrub reads the rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Env, NodeId};

use super::message::{AskHash, HashNow};
use super::scrub::{Pace, scrub};
use crate::engine::{Checked, Cluster, Core, Divergence, Mine};

/// The longest wait for the answers to one round of questions. A peer that hangs must not hold up the answers of the others.
const ROUND_WITHIN: Duration = Duration::from_millis(100);
/// The pause before peers that have not answered are asked again, and before this replica's position is checked again.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest wait for this replica to reach the position of a peer that has answered.
const THERE_WITHIN: Duration = Duration::from_secs(15);

/// See the module documentation.
pub(crate) struct Inquiry {
    pub(crate) env: Env,
    pub(crate) core: Arc<Core>,
    pub(crate) cluster: Cluster,
    pub(crate) threads: bool,
    /// See [`crate::Options::answers_within`].
    pub(crate) answers_within: Duration,
    /// See [`crate::Options::read_within`].
    pub(crate) read_within: Duration,
}

/// The answers so far, compared with this replica.
#[derive(Debug, Default)]
struct Votes {
    same: Vec<HashNow>,
    /// The first peer with the same state.
    with: Option<NodeId>,
    differ: Vec<(NodeId, HashNow, u128)>,
    /// The number of peers whose position this replica has not reached.
    ahead: usize,
}

impl Votes {
    fn agreed(&self) -> Option<Checked> {
        let (peer, theirs) = (self.with?, self.same.first()?);
        (1 + self.same.len() > self.differ.len()).then_some(Checked::Agrees { peer, below: theirs.below })
    }

    /// Returns true if more peers have a different hash than replicas, including this one, have the same.
    fn is_outvoted(&self) -> bool {
        self.differ.len() > 1 + self.same.len()
    }

    /// Returns true if no peer confirms this replica's state, and a peer whose own check has succeeded has a different state.
    fn is_doubted(&self) -> bool {
        self.same.is_empty() && self.differ.iter().any(|(_, theirs, _)| theirs.vouched)
    }

    fn divergence(&self) -> Option<Divergence> {
        let (peer, theirs, mine) = self.differ.first()?;
        Some(Divergence { below: theirs.below, mine: *mine, peer: *peer, theirs: theirs.hash })
    }
}

impl Inquiry {
    /// Runs until the check has ended.
    pub(crate) async fn run(self) {
        let (env, base) = (self.env.clone(), self.core.published().layers.base.clone());
        let (pace, threads) = (Pace::Until(env.now().after(self.read_within)), self.threads);
        let read = async move { scrub(&env, base, threads, pace).await };
        let read = self.env.launch("db.check.read", read);
        let checked = self.compare().await;
        if checked != Checked::Refilled {
            match read.await {
                Ok(Some(found)) => self.core.scrubbed(found, !self.is_alone()),
                _ => {
                    hit("db.check.read_later");
                    self.core.ask_for_scrub();
                }
            }
        }
        self.core.check.end(if self.core.is_withheld() { Checked::Refilled } else { checked });
    }

    /// Returns true if there is no other replica. As long as the members are not known, there may be one.
    fn is_alone(&self) -> bool {
        self.env.levels().is_settled() && self.cluster.peers(self.env.node()).is_empty()
    }

    async fn compare(&self) -> Checked {
        let began = self.env.now();
        let mut answers = BTreeMap::new();
        loop {
            if !self.core.check.is_under_way() {
                hit("db.check.refilled");
                return Checked::Refilled;
            }
            if self.is_alone() {
                return Checked::Nothing;
            }
            self.ask(&mut answers).await;
            let votes = self.count(&mut answers);
            if let Some(agreed) = votes.agreed() {
                hit("db.check.agrees");
                return agreed;
            }
            let most =
                if votes.ahead > 0 { THERE_WITHIN.max(self.answers_within) } else { self.answers_within };
            let late = self.env.now().since(began) >= most;
            if let Some(found) = votes.divergence().filter(|_| late || votes.is_outvoted()) {
                hit("db.check.differs");
                let wrong = votes.is_outvoted() || votes.is_doubted();
                self.core.diverged(found, wrong);
                return if wrong { Checked::Refilled } else { Checked::Undecided };
            }
            if late {
                hit("db.check.unanswered");
                return Checked::Unanswered;
            }
            self.env.sleep(PAUSE).await;
        }
    }

    /// Asks every peer that has not answered. Peers that count as down are asked, too, because after a start all of them do.
    async fn ask(&self, answers: &mut BTreeMap<NodeId, HashNow>) {
        let peers = self.cluster.peers(self.env.node()).into_iter().map(|c| c.node);
        let peers: Vec<NodeId> = peers.filter(|peer| !answers.contains_key(peer)).collect();
        let until = self.env.now().after(ROUND_WITHIN);
        let replies = self.env.gather(&peers, AskHash {}, until, |so_far| so_far.ok().next().is_some()).await;
        answers.extend(replies.into_ok());
    }

    /// Compares the answers. Drops those for positions that this replica has already passed without keeping its hash; these peers
    /// are asked again.
    fn count(&self, answers: &mut BTreeMap<NodeId, HashNow>) -> Votes {
        let mut votes = Votes::default();
        answers.retain(|peer, theirs| {
            match self.core.check.at(theirs.below) {
                Mine::Hash(mine) if mine == theirs.hash => {
                    votes.with.get_or_insert(*peer);
                    votes.same.push(theirs.clone());
                }
                Mine::Hash(mine) => votes.differ.push((*peer, theirs.clone(), mine)),
                Mine::NotYet => votes.ahead += 1,
                Mine::Past => return false,
            }
            true
        });
        votes
    }
}

//! Surgery on the log of a database (virtuallog §7): an operator excises or replaces one entry, usually one at which every replica has
//! halted.
//!
//! The entry must change for all replicas or for none, so the surgeon fences it. First the chain holds the position: whoever reads that
//! chain stops before it. Then every replica is asked. Each reads the chain, drops what it has read from the log and not applied, and
//! answers how far it is. If one has passed the position, or does not answer, the hold is released and nothing was changed. Otherwise
//! the change takes effect.
//!
//! Why no replica takes the old entry: one that has answered reads the position only with a chain that holds or changes it. One that
//! starts afterwards reads the chain first. The surgeon reads the table of members after the hold was written, and a node becomes a
//! member before its replica reads the log, so a member that it does not know reads the hold, too. A node that was removed from the
//! members is not asked. If it comes back with its data, the start check compares its state with that of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_contract::LogPos;
use atoll_core::testing::{hit, mutant};
use atoll_core::{NodeId, Ticket};
use atoll_log::surgery::Record;
use atoll_log::virtual_log::SurgeryError;
use atoll_log::{Held, Incision};
use bytes::Bytes;

use super::database::Database;
use crate::entry;
use crate::mutants;
use crate::transfer::{AskFence, Fenced};

/// The pause before replicas that have not answered are asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the replicas are not known to have stopped before the entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFenced {
    /// A replica has applied the entry. Surgery would make it differ from the others.
    #[error(
        "the replica of node {node} has applied it: it is at {below}; empty its store and let a peer refill it, or update the program of the others"
    )]
    Passed {
        /// The node.
        node: NodeId,
        /// The first position that its replica has not applied.
        below: LogPos,
    },
    /// Replicas did not answer. Each may have applied the entry, or may still apply it.
    #[error("no answer from the replicas of nodes {0:?}; start them, or remove the nodes from the cluster")]
    Silent(Vec<u32>),
    /// The members are not known.
    #[error("the table of members cannot be read: {0}")]
    Members(String),
}

/// Why surgery was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperateError {
    /// The replacement is not an entry that replicas could apply.
    #[error("the replacement is not an entry of the database that this program can read")]
    NotAnEntry,
    /// The log refused, or could not be changed.
    #[error(transparent)]
    Log(#[from] SurgeryError),
    /// Nothing was changed, because the entry could not be fenced.
    #[error("the entry at position {at} was not changed: {why}{}", if *held { "; the position is still held" } else { "" })]
    NotFenced {
        /// The position.
        at: LogPos,
        /// Why.
        why: NotFenced,
        /// Whether the hold could not be released either: replicas do not continue behind the position until a surgery on it ends.
        held: bool,
    },
    /// This node is stopping. The surgery may have been done, or may be under way.
    #[error("unknown outcome: this node is stopping")]
    Stopping,
}

impl Database {
    /// Excises or replaces one entry of the log, once no replica can pass it before. Returns the record of it. Replicas that have halted at
    /// the entry then continue, within about a second.
    ///
    /// # Errors
    /// Nothing was changed, unless the error says that the outcome is unknown or that the position is held. Then repeat it with
    /// [`Incision::take_over`].
    pub fn operate(&self, incision: Incision) -> Ticket<Result<Record, OperateError>> {
        let db = self.clone();
        self.to.env.launch("db.surgery", async move { db.run_surgery(incision).await })
    }

    async fn run_surgery(self, incision: Incision) -> Result<Record, OperateError> {
        let is_entry = |payload: &Bytes| entry::parse(payload.clone(), self.to.env.levels().reads()).is_ok();
        if !incision.with.as_ref().is_none_or(is_entry) {
            return Err(OperateError::NotAnEntry);
        }
        let at = incision.at;
        let stopping = |_| OperateError::Stopping;
        let held = self.to.log.hold(incision, self.to.clock.wall_ms()).await.map_err(stopping)??;
        if !mutant(mutants::DB_SURGERY_UNFENCED)
            && let Err(why) = self.fence(&held).await
        {
            hit("db.surgery.refused");
            let released = self.to.log.release_hold(held.id).await;
            return Err(OperateError::NotFenced { at, why, held: !matches!(released, Ok(Ok(()))) });
        }
        let chain = self.to.log.finish_surgery(&held).await.map_err(stopping)??;
        hit("db.surgery.done");
        let record = chain.chain.surgery().records().iter().rev().find(|record| record.at == at);
        record.cloned().ok_or(OperateError::Log(SurgeryError::Overtaken(at)))
    }

    /// Asks every replica until all have answered that they have not passed the position, and reads the chain first.
    async fn fence(&self, held: &Held) -> Result<(), NotFenced> {
        let env = &self.to.env;
        let until = env.now().after(self.options.fenced_within);
        let mut fenced = BTreeSet::new();
        loop {
            match self.replicas().await {
                Ok(all) => {
                    let left: Vec<NodeId> = all.into_iter().filter(|node| !fenced.contains(node)).collect();
                    if left.is_empty() {
                        return Ok(());
                    }
                    let ask = AskFence { version: held.version.0 };
                    let round = env.now().after(self.options.answers_within).min(until);
                    let answers = env.gather(&left, ask, round, |_| false).await.into_ok();
                    let answers: BTreeMap<NodeId, Fenced> = answers.collect();
                    if let Some((node, Fenced { below })) = answers.iter().find(|(_, f)| f.below > held.at) {
                        return Err(NotFenced::Passed { node: *node, below: *below });
                    }
                    fenced.extend(answers.into_keys());
                    if left.iter().all(|node| fenced.contains(node)) {
                        return Ok(());
                    }
                    if env.now() >= until {
                        let silent = left.iter().filter(|node| !fenced.contains(node));
                        return Err(NotFenced::Silent(silent.map(|node| node.0).collect()));
                    }
                }
                Err(why) if env.now() >= until => return Err(NotFenced::Members(why)),
                Err(_) => {}
            }
            env.sleep(env.jitter(PAUSE)).await;
        }
    }

    /// Returns the nodes that may have a replica, this one included.
    async fn replicas(&self) -> Result<BTreeSet<NodeId>, String> {
        let mut all = BTreeSet::from([self.to.env.node()]);
        if let Some(cluster) = &self.cluster {
            all.extend((cluster.replicas)().await?);
        }
        Ok(all)
    }
}

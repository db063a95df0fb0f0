//! What this node knows of the policies, and what the parts of this module share.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use atoll_contract::{Register, Registers};
use atoll_core::sync::lock;
use atoll_core::{Env, Notify, Tick};
use atoll_log::virtual_log::Remake;
use bytes::Bytes;

use super::declared::{Book, Outcome};
use crate::kept::{Kept, KeptError, change};
use crate::logs::Logs;
use crate::members::Members;
use crate::named::Named;
use crate::settings::Timings;

/// The prefix of the registers of policies. The name of the log follows it. Registers whose names begin like this belong to one cluster.
pub(super) const PREFIX: &str = "cluster/policy/";

/// The policies of the logs, as this node sees them. Clones share them.
#[derive(Clone)]
pub struct LogPolicies(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) env: Env,
    /// The registers of the cluster.
    pub(super) registers: Arc<dyn Registers>,
    pub(super) logs: Logs,
    pub(super) members: Members,
    pub(super) named: Named,
    pub(super) timings: Timings,
    /// By log. Bounded by the number of policies.
    followed: Mutex<BTreeMap<String, Followed>>,
    /// By log and kind of action. Bounded by the number of policies.
    pub(super) paces: Mutex<BTreeMap<(String, &'static str), Pace>>,
    /// By log: the copy of a segment that an attempt of this node began and did not complete. The next attempt continues it.
    pub(super) copies: Mutex<BTreeMap<String, Remake>>,
    /// Whether this node moves a segment to a store now. One at a time, so that clients keep their share of disks and network.
    pub(super) cooling: AtomicBool,
    counts: Mutex<Counts>,
    /// A policy was changed through this node, or an action ended.
    pub(super) changed: Notify,
}

/// What the register of a policy held.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    /// The mark of the register when it was read.
    pub(super) mark: Option<u128>,
    /// None: it was cleared, or cannot be read.
    pub(super) book: Option<Arc<Book>>,
    /// Why it cannot be read.
    pub(super) trouble: Option<String>,
}

/// How often a kind of action is tried for a log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// One is under way here.
    pub(super) busy: bool,
    /// How many attempts have failed since the last success.
    pub(super) failed: u32,
    /// The next attempt must wait until then.
    pub(super) not_before: Tick,
}

/// What this node did because of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Actions that are done.
    pub done: u64,
    /// Attempts that failed. They are repeated.
    pub failed: u64,
}

impl Kept for Book {
    fn read_from(value: Bytes) -> Result<Option<Self>, String> {
        Book::parse(value)
    }

    fn value(&self) -> Bytes {
        atoll_core::Encode::to_bytes(self)
    }
}

impl LogPolicies {
    /// Creates it for a node. `registers` are those of the cluster.
    pub(crate) fn new(
        env: Env,
        registers: Arc<dyn Registers>,
        logs: Logs,
        members: Members,
        named: Named,
        timings: Timings,
    ) -> Self {
        LogPolicies(Arc::new(Shared {
            env,
            registers,
            logs,
            members,
            named,
            timings,
            followed: Mutex::default(),
            paces: Mutex::default(),
            copies: Mutex::default(),
            cooling: AtomicBool::new(false),
            counts: Mutex::default(),
            changed: Notify::default(),
        }))
    }

    /// Returns what this node did.
    pub fn counts(&self) -> Counts {
        *lock(&self.0.counts)
    }

    pub(super) fn count(&self, note: impl FnOnce(&mut Counts)) {
        note(&mut lock(&self.0.counts));
    }

    /// Returns how many logs have a policy, as this node knows.
    pub fn declared(&self) -> usize {
        lock(&self.0.followed).values().filter(|followed| followed.book.is_some()).count()
    }

    /// Returns what nodes last did to a log because of its policy, or could not do, in words. Empty: nothing.
    pub fn last_action(&self, log: &str) -> String {
        let Some(followed) = self.followed(log) else { return String::new() };
        if let Some(trouble) = followed.trouble {
            return format!("its policy cannot be read: {trouble}");
        }
        let Some(action) = followed.book.as_ref().and_then(|book| book.actions.last()) else {
            return String::new();
        };
        let (node, what, reason) = (action.node, &action.what, &action.reason);
        match &action.outcome {
            Outcome::Begun {} => format!("policy, node {node} begins to {what}: {reason}"),
            Outcome::Done {} => format!("policy, node {node} did {what}: {reason}"),
            Outcome::Failed { why } | Outcome::Unknown { why } => {
                let attempts = action.attempts;
                format!(
                    "policy, node {node} could not {what} in {attempts} attempts: {why}; wanted because {reason}"
                )
            }
        }
    }

    pub(super) fn followed(&self, log: &str) -> Option<Followed> {
        lock(&self.0.followed).get(log).cloned()
    }

    /// Returns all policies that this node knows.
    pub(super) fn books(&self) -> Vec<(String, Arc<Book>)> {
        let followed = lock(&self.0.followed);
        followed.iter().filter_map(|(log, at)| Some((log.clone(), at.book.clone()?))).collect()
    }

    /// Replaces what this node knows by this.
    pub(super) fn know(&self, all: BTreeMap<String, Followed>) {
        *lock(&self.0.followed) = all;
    }

    /// Makes sure that the register of a policy is read again.
    pub(super) fn suspect(&self, log: &str) {
        if let Some(followed) = lock(&self.0.followed).get_mut(log) {
            followed.mark = None;
        }
    }

    pub(super) fn register(&self, log: &str) -> Arc<dyn Register> {
        self.0.registers.register(&format!("{PREFIX}{log}"))
    }

    /// Changes the record of a log's policy, see [`change`].
    pub(super) async fn change(
        &self,
        log: &str,
        with: impl FnMut(Option<Book>) -> Option<Book>,
    ) -> Result<Option<Book>, KeptError> {
        let changed = change(&self.0.env, &*self.register(log), with).await;
        self.suspect(log);
        if changed.is_ok() {
            self.0.changed.notify();
        }
        changed
    }

    /// Ends the policy of a log, because the log is about to be deleted, or was. A log that is created anew begins without one.
    pub(crate) async fn forget(&self, log: &str) -> Result<(), KeptError> {
        self.change(log, |_| None).await.map(drop)
    }
}

//! Changes the table of feature levels: announces what a node can read, and raises the active level once all members can read a higher one.
//!
//! A node announces its range before it writes its row in the table of members. A raise is a conditional write of the table that holds the
//! announcements. So if a node joins while the level is being raised, the later of the two changes sees the earlier one.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, Register, RegisterError, Version, Written};
use atoll_core::testing::hit;
use atoll_core::{Env, Level, LevelError, LevelRange, Levels, NodeId};

use super::Members;
use super::change::{ChangeError, Changes};
use super::levels::{AskLevels, KeepLevel, LevelTable};
use super::table::MemberTable;

/// The maximum number of attempts at one change.
const ATTEMPTS: u32 = 16;
/// How long to wait for the members that are up to report what they can read.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Why the levels were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// This program cannot read or write at the level of the cluster, so this node cannot be a member.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// Not all members can read the level.
    #[error("level {to} is not read by all members: {}; start them with a program that reads it, or remove them", in_words(.lacking))]
    NotRead {
        /// The level.
        to: Level,
        /// The members that cannot read it, and what they can read.
        lacking: Vec<(NodeId, LevelRange)>,
    },
    /// The level is below the active one. The active level never falls.
    #[error("the cluster is at level {active}, which cannot be lowered to {to}")]
    Lower {
        /// The requested level.
        to: Level,
        /// The active level of the cluster.
        active: Level,
    },
    /// The table of members or the table of levels could not be read or written.
    #[error(transparent)]
    Table(#[from] ChangeError),
}

impl UpgradeError {
    /// See [`ChangeError::after`].
    fn after(self, doubt: Option<Unavailability>) -> Self {
        match (self, doubt) {
            (UpgradeError::Table(error), _) => error.after(doubt).into(),
            (_, Some(why)) => RegisterError::Unknown(why).into(),
            (error, None) => error,
        }
    }
}

impl From<RegisterError> for UpgradeError {
    fn from(error: RegisterError) -> Self {
        UpgradeError::Table(error.into())
    }
}

fn in_words(nodes: &[(NodeId, LevelRange)]) -> String {
    let words: Vec<String> = nodes.iter().map(|(node, reads)| format!("node {node} reads {reads}")).collect();
    words.join(", ")
}

/// The levels, as they are shown to an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelReport {
    /// The table of levels.
    pub table: LevelTable,
    /// The table of members.
    pub members: MemberTable,
    /// The highest level that all members can read.
    pub possible: Level,
    /// Whether this call raised the active level.
    pub raised: bool,
}

/// Announces, follows and raises levels.
#[derive(Clone, Debug)]
pub struct Upgrades {
    env: Env,
    levels: Levels,
    register: Arc<dyn Register>,
    members: Members,
    changes: Changes,
    refused: Arc<OnceLock<LevelError>>,
}

impl Upgrades {
    /// Creates it over the register of the levels.
    pub fn new(env: Env, register: Arc<dyn Register>, members: Members, changes: Changes) -> Self {
        let levels = env.levels().clone();
        Upgrades { env, levels, register, members, changes, refused: Arc::default() }
    }

    /// Returns why this program cannot be a member, once that is known. The program should then stop.
    pub fn refused(&self) -> Option<LevelError> {
        self.refused.get().copied()
    }

    async fn read(&self) -> Result<LevelTable, UpgradeError> {
        let got = self.register.read().await?;
        if got.version == Version(0) {
            return Ok(LevelTable::none());
        }
        Ok(LevelTable::decode(got.version.0, got.value).map_err(ChangeError::from)?)
    }

    /// Stores the active level on disk, and then uses it for everything that this node writes.
    async fn learn(&self, active: Level) -> Result<(), UpgradeError> {
        if let Err(error) = self.levels.reads().check(active) {
            // Only the first error is kept and shown.
            let _ = self.refused.set(error);
            self.members.changed.notify();
            return Err(error.into());
        }
        if active <= self.levels.active() {
            return Ok(());
        }
        // A level that cannot be stored is not used. The next call retries.
        if self.env.call(self.env.node(), KeepLevel { active }).await.is_ok() && self.levels.learn(active)? {
            hit("levels.learned");
        }
        Ok(())
    }

    /// Rereads the active level and adopts it. In a new cluster, raises it once all of the first members have joined.
    pub async fn refresh(&self) -> Result<(), UpgradeError> {
        let table = self.read().await?;
        self.learn(table.active).await?;
        if table.founding {
            self.end_founding().await?;
        }
        Ok(())
    }

    /// Applies `edit` to the newest table until the write succeeds. `edit` returns whether it changed anything. Returns the resulting
    /// tables, and whether this call changed the levels. If an earlier attempt has an unknown outcome and a later one finds nothing to
    /// change, that counts as changed. If a later one fails or is refused, the outcome of the whole call is unknown.
    async fn edit(
        &self,
        mut edit: impl FnMut(&mut LevelTable, &MemberTable) -> Result<bool, UpgradeError>,
    ) -> Result<(LevelTable, MemberTable, bool), UpgradeError> {
        let mut doubt = None;
        for attempt in 0..ATTEMPTS {
            let mut table = self.read().await.map_err(|e| e.after(doubt))?;
            // Read the members after the levels: a node announces its range before it becomes a member.
            let members = self.changes.refresh().await.map_err(|e| e.after(doubt))?;
            if !edit(&mut table, &members).map_err(|e| e.after(doubt))? {
                return Ok((table, members, doubt.is_some()));
            }
            let me = self.env.node();
            table.announced.retain(|n, _| *n == me || members.version == 0 || members.nodes.contains_key(n));
            let nonce = Nonce((u128::from(self.env.random()) << 64) | u128::from(self.env.random()));
            match self.register.write_if(Version(table.version), table.encode(), nonce).await {
                Ok(Written::Yes(version)) => {
                    table.version = version.0;
                    return Ok((table, members, true));
                }
                Ok(Written::Conflict(_)) => {}
                // The next attempt reads the table and finds out whether the change was made.
                Err(RegisterError::Unknown(why)) => doubt = Some(why),
                Err(e) => return Err(ChangeError::from(e).after(doubt).into()),
            }
            self.env.sleep(self.env.jitter(Duration::from_millis(10 << attempt.min(5)))).await;
        }
        Err(ChangeError::Contended.after(doubt).into())
    }

    /// Announces to the cluster what this program can read. Must be called before this node joins. After that, this node may read and write
    /// replicated data.
    ///
    /// # Errors
    /// [`UpgradeError::Level`]: this program cannot be a member. Nothing was announced.
    /// [`UpgradeError::Table`]: a table could not be read or written. The announcement may have been made, and the call can be repeated.
    pub async fn announce(&self) -> Result<(), UpgradeError> {
        let (me, reads) = (self.env.node(), self.levels.reads());
        let announced = self.edit(|table, members| {
            if let Err(error) = reads.check(table.active) {
                let _ = self.refused.set(error);
                self.members.changed.notify();
                return Err(error.into());
            }
            if table.version == 0 {
                // The first node of a cluster without members founds it. If there are members although this table was never written, their
                // programs do not know levels yet.
                table.founding = members.version == 0;
            }
            Ok(table.announced.insert(me, reads) != Some(reads))
        });
        let (table, ..) = announced.await?;
        self.learn(table.active).await?;
        self.levels.settle();
        Ok(())
    }

    /// Ends the founding of a new cluster once all of its first members have joined. The cluster starts at the highest level that all of
    /// them can read.
    async fn end_founding(&self) -> Result<(), UpgradeError> {
        let all_came = |table: &LevelTable, members: &MemberTable| {
            let came =
                |(n, m): (&NodeId, &super::table::Member)| m.has_joined() && table.announced.contains_key(n);
            members.version > 0 && members.nodes.iter().all(came)
        };
        let ended = self.edit(|table, members| {
            if !table.founding || !all_came(table, members) {
                return Ok(false);
            }
            table.active = table.highest_of_all(members);
            table.founding = false;
            Ok(true)
        });
        let (table, _, changed) = ended.await?;
        self.learn(table.active).await?;
        if changed && !table.founding {
            hit("levels.founded");
            self.spread().await;
        }
        Ok(())
    }

    /// Writes a new version of the table of members without changes. Heartbeats announce the version, so every node also rereads the
    /// levels.
    async fn spread(&self) {
        // If this fails, the nodes reread the levels at their next patrol.
        let _ = self.changes.edit(|_| Ok(true)).await;
    }

    /// Reads the table of levels and determines the highest possible level. Changes nothing.
    pub async fn report(&self) -> Result<LevelReport, UpgradeError> {
        let table = self.read().await?;
        let members = self.changes.refresh().await?;
        let possible = table.highest_of_all(&members);
        Ok(LevelReport { table, members, possible, raised: false })
    }

    /// Raises the active level to `to`, or to the highest level that all members can read. Members that are up are asked what they can read
    /// now; for those that are down, the last announcement counts. Afterwards no program that cannot read this level can be a member.
    /// Idempotent.
    pub async fn raise(&self, to: Option<Level>) -> Result<LevelReport, UpgradeError> {
        let told = self.ask().await;
        let mut raised = false;
        let edited = self.edit(|table, members| {
            for (node, reads) in &told {
                let highest = table.range_of(*node).highest.min(reads.highest);
                let lowest = table.range_of(*node).lowest.max(reads.lowest);
                table.announced.insert(*node, LevelRange { lowest, highest });
            }
            let to = to.unwrap_or_else(|| table.highest_of_all(members));
            if to < table.active {
                return Err(UpgradeError::Lower { to, active: table.active });
            }
            let counts =
                |node: &NodeId| members.nodes[node].has_joined() || table.announced.contains_key(node);
            let all = members.nodes.keys().filter(|n| counts(n)).map(|n| (*n, table.range_of(*n)));
            let lacking: Vec<_> = all.filter(|(_, reads)| reads.check(to).is_err()).collect();
            if !lacking.is_empty() {
                return Err(UpgradeError::NotRead { to, lacking });
            }
            let raises = to > table.active;
            raised |= raises;
            let changed = raises || table.founding;
            (table.active, table.founding) = (to, false);
            Ok(changed)
        });
        let (table, members, changed) = edited.await?;
        // An earlier attempt that is in doubt may have raised it, and the last one then found nothing to change. If none is in doubt,
        // another call raised it.
        raised &= changed;
        self.learn(table.active).await?;
        if raised {
            hit("levels.raised");
        }
        if changed {
            self.spread().await;
        }
        Ok(LevelReport { possible: table.highest_of_all(&members), table, members, raised })
    }

    /// Asks the members that are up what their programs can read now. A member that was rolled back to a program without levels has not
    /// announced that, and refuses the question.
    async fn ask(&self) -> BTreeMap<NodeId, LevelRange> {
        let peers: Vec<NodeId> =
            self.members.peers().into_iter().filter(|n| self.members.is_alive(*n)).collect();
        let until = self.env.now().after(ANSWERS_WITHIN);
        let replies = self.env.gather(&peers, AskLevels {}, until, |_| false).await;
        let mut told: BTreeMap<NodeId, LevelRange> = replies
            .errors()
            .filter(|(_, e)| matches!(e, atoll_core::CallError::Refused { .. }))
            .map(|(node, _)| (node, LevelRange::UNANNOUNCED))
            .collect();
        told.extend(replies.into_ok().map(|(node, told)| (node, told.reads)));
        told
    }
}

//! A way back when a majority of the nodes is lost for good: makes a new data directory, of a new cluster, from what the surviving data
//! directories hold. No node runs meanwhile.
//!
//! | file | what it is |
//! | --- | --- |
//! | `error.rs` | why a cluster was not rescued |
//! | `folder.rs` | the folder in which the new directory grows, and the copies of the old ones |
//! | `survivor.rs` | what one old directory holds: its registers, its entries, its replica |
//! | `scan.rs` | which positions of a log are left in all of them together |
//! | `elsewhere.rs` | chains that were in registers outside of the cluster |
//! | `missed.rs` | entries that are left and have no known position |
//! | `plan.rs` | from which position to which a log can be kept |
//! | `rebuild.rs` | writes what is kept into the new directory |
//! | `restore.rs` | the same from a backup in an object store, up to a chosen moment |
//! | `piece.rs` | some entries in memory, as the source of a copy |
//!
//! The old directories are locked and copied, and never written. The new one grows beside its final place and gets its name last. So a
//! crash at any point leaves the old state, and the rescue can be repeated.
//!
//! The new directory belongs to a cluster of another name. That is what keeps the lost nodes out for good: their directories name the old
//! cluster, whoever starts them and with whatever configuration ([`atoll_storage::IdentityError::Foreign`]), and nodes of different
//! clusters refuse each other. The new node remembers the name of the old cluster ([`atoll_storage::RescueNote`]), and a lost node that
//! dials it is told to stop.

mod elsewhere;
mod error;
mod folder;
mod missed;
mod piece;
mod plan;
mod rebuild;
mod restore;
mod scan;
mod survivor;

use std::collections::BTreeMap;
use std::path::PathBuf;

use atoll_contract::{LogPos, Versioned};
use atoll_door::Door;
use atoll_log::Chain;
use atoll_log::page::PageId;
use atoll_log::virtual_log::{CHAIN_PREFIX, PAGE_PREFIX};

use crate::config::{NodeConfig, Roles};
use crate::database;
use crate::replica::DatabaseState;
use folder::Work;
use survivor::Survivor;

pub use error::RescueError;
pub use plan::{Fate, LogPlan, Plan};
pub use restore::{Chosen, Progress, RestoreError, Restored, from_backup, state_from_backup};
pub use survivor::SurvivorPlan;

/// The first names of registers that a rescue replaces by those of a new cluster.
const OF_CLUSTER: &str = "cluster/";

/// The copies of the old data directories, read and understood. Nothing was decided yet.
pub struct Rescue {
    work: Work,
    config: NodeConfig,
    survivors: Vec<Survivor>,
    plan: Plan,
}

impl Rescue {
    /// Locks and copies the old data directories, and finds out what can be kept. `config` is that of the new node; its `data` must not be
    /// there yet. With `cut_at_holes`, a log ends before its first hole. Runs on the current runtime, which must be of one thread.
    ///
    /// # Errors
    /// It cannot be rescued like this.
    pub async fn prepare(
        config: NodeConfig,
        from: &[PathBuf],
        cut_at_holes: bool,
    ) -> Result<Self, RescueError> {
        if config.roles != Roles::ALL {
            return Err(RescueError::Roles);
        }
        let locked = folder::lock_all(from, &config.cluster)?;
        let work = Work::begin(&config.data, &locked)?;
        let mut survivors = Vec::new();
        for (i, old) in locked.into_iter().enumerate() {
            let copy = work.copy_of(i);
            folder::copy(&old.path, &copy)?;
            survivors.push(Survivor::open(old, copy).await?);
        }
        let keeps_state = config.database != DatabaseState::InMemory;
        let plan = make_plan(&survivors, &config.places, keeps_state, cut_at_holes).await?;
        Ok(Rescue { work, config, survivors, plan })
    }

    /// What will be kept, and what may be lost.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes the new data directory. `doors` are those of the new node. On return it can be started.
    ///
    /// # Errors
    /// The new directory is not there.
    pub async fn rebuild(
        self,
        doors: Vec<Box<dyn Door>>,
        operator: &str,
        reason: &str,
    ) -> Result<(), RescueError> {
        let Rescue { work, config, survivors, plan } = self;
        let done = rebuild::rebuild(&work, &config, &survivors, &plan, doors).await;
        for survivor in survivors {
            survivor.close().await;
        }
        done?;
        rebuild::note(&work, &plan, operator, reason)?;
        work.finish()
    }

    /// Gives up: removes the copies.
    ///
    /// # Errors
    /// They cannot be removed. The next rescue tries again.
    pub async fn discard(self) -> Result<(), RescueError> {
        for survivor in self.survivors {
            survivor.close().await;
        }
        self.work.discard()
    }
}

/// Returns the newest state of each register that any of them knows.
fn newest_registers(survivors: &[Survivor]) -> BTreeMap<String, Versioned> {
    let mut newest: BTreeMap<String, Versioned> = BTreeMap::new();
    for (name, found) in survivors.iter().flat_map(|s| &s.registers) {
        if newest.get(name).is_none_or(|known| known.version < found.version) {
            newest.insert(name.clone(), found.clone());
        }
    }
    newest
}

/// Returns the index pages of a log.
fn pages_of(registers: &BTreeMap<String, Versioned>, log: &str) -> BTreeMap<PageId, bytes::Bytes> {
    let prefix = format!("{PAGE_PREFIX}{log}/");
    let named = registers.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
    named.filter_map(|(name, v)| Some((PageId::parse(&name[prefix.len()..])?, v.value.clone()))).collect()
}

/// `places`: the URLs of registers outside of the cluster, by name. `keeps_state`: the new node keeps the state of the database on its
/// disk, so that its log need not have all entries.
async fn make_plan(
    survivors: &[Survivor],
    places: &BTreeMap<String, String>,
    keeps_state: bool,
    cut_at_holes: bool,
) -> Result<Plan, RescueError> {
    let registers = newest_registers(survivors);
    let standing = survivors.iter().filter_map(|s| s.standing.filter(|_| keeps_state)).max_by_key(|s| s.next);
    let mut plan = Plan {
        from: survivors.first().map(|s| s.cluster().to_owned()).unwrap_or_default(),
        survivors: survivors.iter().map(Survivor::describe).collect(),
        logs: Vec::new(),
        not_rescued: Vec::new(),
    };
    let held = missed::Held::of(survivors).await?;
    for (name, found) in &registers {
        let Some(log) = name.strip_prefix(CHAIN_PREFIX) else {
            if !name.starts_with(OF_CLUSTER) && !name.starts_with(PAGE_PREFIX) && !found.value.is_empty() {
                plan.not_rescued.push(name.clone());
            }
            continue;
        };
        let (found, note) = elsewhere::newest(survivors, places, log, found).await?;
        let broken = |error| RescueError::Chain { log: log.to_owned(), error };
        let chain = Chain::parse(found.value.clone()).map_err(broken)?;
        let segments = atoll_log::rescue::segments_of(&chain, &pages_of(&registers, log)).map_err(broken)?;
        let state = (log == database::LOG).then(|| standing.map_or(LogPos::ZERO, |s| s.next));
        let scanned = scan::scan(survivors, &held, log, &segments, chain.trim()).await?;
        let mut one = plan::plan_log(log, found.version, chain, segments, scanned, state, cut_at_holes)?;
        one.notes.extend(note);
        one.notes.extend(held.behind(survivors, log, &one.chain).await?);
        one.time_ms = standing.filter(|_| log == database::LOG).map(|s| s.time_ms).filter(|ms| *ms > 0);
        plan.logs.push(one);
    }
    if plan.logs.is_empty() { Err(RescueError::NoLogs) } else { Ok(plan) }
}

//! Writes what is kept into the new data directory: a node of the new cluster runs there, alone and with no door open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Entry, LogPos, LogletProvider, LogletSpec, Nonce, Offset, ReadFrom, Register, Written};
use atoll_contract::{LogletId, SealedConfig, Version};
use atoll_core::Env;
use atoll_db::{Database, FjallStore, Owner};
use atoll_door::Door;
use atoll_log::origin::{self, Origin};
use atoll_log::rescue::{Rescued, rescued};
use atoll_log::virtual_log::CHAIN_PREFIX;
use atoll_log::{Chain, ChainError, Segment};
use atoll_storage::{KeptLog, RealDisk, RescueNote, Syncs};
use bytes::Bytes;

use super::error::RescueError;
use super::folder::{self, Work};
use super::piece::Piece;
use super::plan::{Fate, LogPlan, Plan};
use super::scan::{self, Found};
use super::survivor::{Survivor, on};
use crate::assembly::NodeParts;
use crate::config::NodeConfig;
use crate::database;
use crate::replica::DatabaseState;
use crate::start::{self, LOOPBACK};

/// About as many bytes of entries make one segment. They are in memory while they are copied.
const PIECE_BYTES: u64 = 32 << 20;
/// Larger logs have larger segments, so that no chain has more than about this many.
const MOST_PIECES: u64 = 256;
/// The new node does nothing by itself meanwhile.
const NEVER: Duration = Duration::from_hours(24);
/// How long the new node may take to become the only member of its cluster.
const JOIN_WITHIN: Duration = Duration::from_secs(60);
/// How long the replica may make no progress.
const APPLY_WITHIN: Duration = Duration::from_secs(60);
/// How often its progress is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The cache of a store that is only handed over.
const CACHE_BYTES: u64 = 8 << 20;
/// In a cluster of this many nodes, new logs would be of the kind that rescued logs get, so that they can grow with it.
const LATER_NODES: usize = 3;

/// Makes the new data directory.
pub(super) async fn rebuild(
    work: &Work,
    config: &NodeConfig,
    survivors: &[Survivor],
    plan: &Plan,
    mut doors: Vec<Box<dyn Door>>,
) -> Result<(), RescueError> {
    let state = newest_state(survivors);
    let filled = Filled { plan, state: state.as_deref(), restored_age: None };
    run(work, config, survivors, &filled, &mut doors).await
}

/// What goes into the new data directory.
pub(super) struct Filled<'a> {
    /// The logs.
    pub(super) plan: &'a Plan,
    /// The folder of the database's state, which moves there.
    pub(super) state: Option<&'a Path>,
    /// For how long clients may have gone on behind the state, if it comes from a backup.
    pub(super) restored_age: Option<Duration>,
}

/// Starts the new node in its new directory, with no door open, fills it, and stops it.
pub(super) async fn run(
    work: &Work,
    config: &NodeConfig,
    survivors: &[Survivor],
    filled: &Filled<'_>,
    doors: &mut [Box<dyn Door>],
) -> Result<(), RescueError> {
    let mut config = NodeConfig {
        data: work.new_folder(),
        grpc: LOOPBACK.to_owned(),
        peer: LOOPBACK.to_owned(),
        metrics: None,
        tls: None,
        founders: std::collections::BTreeMap::new(),
        door_threads: 0,
        ..config.clone()
    };
    config.timings.patrol_every = NEVER;
    let up = start::bring_up(config.clone(), Vec::new()).await.map_err(Box::new)?;
    let done = fill(&config, &up.parts, survivors, filled, doors).await;
    up.stop().await;
    done
}

async fn fill(
    config: &NodeConfig,
    parts: &NodeParts,
    survivors: &[Survivor],
    filled: &Filled<'_>,
    doors: &mut [Box<dyn Door>],
) -> Result<(), RescueError> {
    let plan = filled.plan;
    joined(parts).await?;
    for log in &plan.logs {
        Rebuilt { parts, log }.run(survivors).await?;
    }
    let Some(db) = plan.logs.iter().find(|log| log.name == database::LOG && log.fate == Fate::Kept) else {
        return Ok(());
    };
    if !config.replica {
        return Ok(());
    }
    take_state(config, parts, filled.state)?;
    let opened = database::open(config, parts, doors).map_err(|e| RescueError::Database(e.to_string()))?;
    let Some(opened) = opened else { return Ok(()) };
    applied(&opened, db.end).await?;
    for door in doors.iter() {
        let told = match filled.restored_age {
            Some(age) => door.after_restore(&opened, age),
            None => door.after_rescue(&opened),
        };
        told.await.map_err(RescueError::Database)?;
    }
    Ok(())
}

/// Waits until the new node is the only member of its cluster.
async fn joined(parts: &NodeParts) -> Result<(), RescueError> {
    let wait = async {
        loop {
            let seen = parts.members.changed.count();
            if parts.registers.holders().is_some() && parts.has_joined() {
                return;
            }
            parts.members.changed.after(seen).await;
        }
    };
    tokio::time::timeout(JOIN_WITHIN, wait).await.map_err(|_| RescueError::Late("founding the new cluster"))
}

/// One log on its way into the new cluster.
struct Rebuilt<'a> {
    parts: &'a NodeParts,
    log: &'a LogPlan,
}

impl Rebuilt<'_> {
    async fn run(&self, survivors: &[Survivor]) -> Result<(), RescueError> {
        let LogPlan { chain, trim, end, fate, .. } = self.log;
        if *fate == Fate::Deleted {
            return self.install(chain).await;
        }
        let provider = self.provider()?;
        let most = PIECE_BYTES.max(self.log.bytes / MOST_PIECES);
        let mut segments = Vec::new();
        let mut at = *trim;
        while at < *end {
            let piece = self.collect(survivors, at, most).await?;
            let count = piece.0.len() as u64;
            segments.push(self.store(&provider, at, piece).await?);
            at = at.plus(count);
        }
        segments.push(match fate {
            Fate::Ended => Segment { start: *end, ..chain.active().clone() },
            _ => self.begin(&provider, *end).await?,
        });
        let nonce = Nonce(u128::from(self.env().random()) << 64 | u128::from(self.env().random()));
        let next = rescued(chain, nonce, Rescued { trim: *trim, segments }).map_err(|e| self.broken(e))?;
        self.install(&next).await
    }

    fn env(&self) -> &Env {
        &self.parts.env
    }

    fn broken(&self, error: ChainError) -> RescueError {
        RescueError::Chain { log: self.log.name.clone(), error }
    }

    fn failed(&self, what: impl ToString) -> RescueError {
        RescueError::Copy { log: self.log.name.clone(), what: what.to_string() }
    }

    fn provider(&self) -> Result<Arc<dyn LogletProvider>, RescueError> {
        let kind = self.parts.protocols().first_choice(LATER_NODES).unwrap_or_default();
        self.parts.logs.registry().provider(kind).cloned().map_err(|e| self.failed(e))
    }

    /// Reads the entries of the next segment. There is at least one, and no hole.
    async fn collect(&self, survivors: &[Survivor], from: LogPos, most: u64) -> Result<Piece, RescueError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut at = from;
        while at < self.log.end && bytes < most {
            let after = self.log.segments.partition_point(|s| s.start <= at);
            let Some(segment) = after.checked_sub(1).map(|i| &self.log.segments[i]) else { break };
            let to = segment.stop.unwrap_or(self.log.end).min(self.log.end);
            let Found::Entries(found) = scan::read(survivors, segment, at..to).await? else {
                return Err(RescueError::Unreadable { log: self.log.name.clone(), at });
            };
            bytes += found.iter().map(|e| e.payload.len() as u64).sum::<u64>();
            at = at.plus(found.len() as u64);
            entries.extend(found);
        }
        if entries.is_empty() { Err(self.failed(format!("no entry at {from}"))) } else { Ok(Piece(entries)) }
    }

    /// Plans a Loglet, and draws its id.
    async fn draw(&self, provider: &Arc<dyn LogletProvider>) -> Result<(LogletId, Bytes), RescueError> {
        let id = origin::new_id(self.env().random(), &self.log.name, Origin::Create);
        let planner = provider.clone();
        let planned = on(self.env(), async move { planner.plan(&LogletSpec::default(), None).await }).await?;
        Ok((id, planned.map_err(|e| self.failed(e))?))
    }

    /// Stores entries in a sealed Loglet of the new cluster, and compares the copy.
    async fn store(
        &self,
        provider: &Arc<dyn LogletProvider>,
        start: LogPos,
        piece: Piece,
    ) -> Result<Segment, RescueError> {
        let (id, config) = self.draw(provider).await?;
        let (builder, setup, count) = (provider.clone(), config.clone(), piece.0.len() as u64);
        let piece = Arc::new(piece);
        let source = piece.clone();
        let built = on(self.env(), async move {
            builder.build_sealed(id, &setup, &*source, Offset::ZERO..Offset(count)).await
        });
        built.await?.map_err(|e| self.failed(e))?;
        let copy = provider.open(id, &config).map_err(|e| self.failed(e))?;
        let wrong = on(self.env(), async move {
            let tail = copy.check_tail().await.map_err(|e| e.to_string())?;
            let sealed =
                tail.sealed.filter(|_| tail.at == Offset(count)).ok_or("the copy has another length")?;
            let mut at = Offset::ZERO;
            while at < Offset(count) {
                let read = copy.read(at..Offset(count), 1 << 20, ReadFrom::Anywhere).await;
                let got = read.map_err(|e| e.to_string())?.entries;
                let from = usize::try_from(at.0).unwrap_or(usize::MAX);
                if got.is_empty() || piece.0.get(from..from + got.len()) != Some(&got[..]) {
                    return Err(format!("the copy differs from offset {at} on"));
                }
                at = at.plus(got.len() as u64);
            }
            Ok::<SealedConfig, String>(sealed)
        });
        let sealed_config = wrong.await?.map_err(|e| self.failed(e))?;
        let open = Segment::open(start, id, provider.kind(), config);
        Ok(Segment { stop: Some(start.plus(count)), sealed_config, ..open })
    }

    /// Begins the segment that takes appends.
    async fn begin(&self, provider: &Arc<dyn LogletProvider>, start: LogPos) -> Result<Segment, RescueError> {
        let (id, config) = self.draw(provider).await?;
        let (announcer, setup) = (provider.clone(), config.clone());
        let announced = on(self.env(), async move { announcer.provision(id, &setup).await });
        announced.await?.map_err(|e| self.failed(e))?;
        Ok(Segment::open(start, id, provider.kind(), config))
    }

    async fn install(&self, chain: &Chain) -> Result<(), RescueError> {
        let value = chain.to_value().map_err(|e| self.broken(e))?;
        let nonce = chain.nonce();
        let name = format!("{CHAIN_PREFIX}{}", self.log.name);
        let register: Arc<dyn Register> = self.parts.registers.register(&name);
        let write = on(self.env(), async move { register.write_if(Version(0), value, nonce).await });
        match write.await?.map_err(|e| self.failed(e))? {
            Written::Yes(_) => Ok(()),
            Written::Conflict(_) => Err(self.failed("the new cluster has a log of this name already")),
        }
    }
}

/// Returns the folder with the newest state of the database.
fn newest_state(survivors: &[Survivor]) -> Option<PathBuf> {
    let newest = survivors.iter().filter(|s| s.standing.is_some()).max_by_key(|s| s.standing.map(|s| s.next));
    newest.map(Survivor::database)
}

/// Gives the state of the database to the new node.
fn take_state(config: &NodeConfig, parts: &NodeParts, state: Option<&Path>) -> Result<(), RescueError> {
    let Some(state) = state.filter(|_| config.database != DatabaseState::InMemory) else { return Ok(()) };
    let to = config.data.join(database::FOLDER);
    folder::move_folder(state, &to)?;
    let owner = Owner {
        cluster: config.cluster.clone(),
        node: config.node,
        storage: parts.identity().storage,
        log: database::LOG.to_owned(),
    };
    Ok(FjallStore::open(&to, CACHE_BYTES)?.hand_over(&owner)?)
}

/// Waits until the replica has applied everything below a position.
async fn applied(database: &Database, below: LogPos) -> Result<(), RescueError> {
    let mut last = (LogPos::ZERO, tokio::time::Instant::now());
    loop {
        let done = tokio::time::timeout(LOOK_EVERY, database.wait_applied(below)).await;
        if matches!(done, Ok(Ok(Ok(_)))) {
            return Ok(());
        }
        let health = database.health();
        if let Some(halt) = health.halted {
            return Err(RescueError::Database(halt.to_string()));
        }
        if health.applied_below > last.0 {
            last = (health.applied_below, tokio::time::Instant::now());
        }
        if last.1.elapsed() >= APPLY_WITHIN || done.is_ok() {
            let why = health.trouble.unwrap_or_else(|| "it makes no progress".to_owned());
            return Err(RescueError::Database(format!("it stays below {}: {why}", health.applied_below)));
        }
    }
}

/// Notes in the new data directory what was done. It is the last thing that is written there.
pub(super) fn note(work: &Work, plan: &Plan, operator: &str, reason: &str) -> Result<(), RescueError> {
    let kept = |log: &LogPlan| KeptLog { name: log.name.clone(), trim: log.trim.0, end: log.end.0 };
    let note = RescueNote {
        from: plan.from.clone(),
        time_ms: database::wall_clock_ms(),
        operator: operator.to_owned(),
        reason: reason.to_owned(),
        logs: plan.logs.iter().map(kept).collect(),
    };
    let disk = RealDisk::open(&work.new_folder(), Syncs::Real)?;
    Ok(note.write(&disk)?)
}

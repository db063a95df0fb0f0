//! Assembles a node from its server roles, which run in a core, and its procedures. Production and the simulator use the same assembly;
//! only the host that drives the core differs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::plugin::{Clash, Host, Procedure, Protocols};
use atoll_contract::{ClusterRegisters, Kinds, Registry};
use atoll_core::sync::lock;
use atoll_core::{Env, Identity, LevelError, LevelRange, Levels, NodeCore, NodeId, roles};
use atoll_db::ReplicaRole;
use atoll_log::virtual_log::Options as LogOptions;

use crate::backup::{self, Backups};
use crate::keyspaces::Keyspaces;
use crate::log_policy::LogPolicies;
use crate::logs::Logs;
use crate::members::change::{ChangeError, Changes};
use crate::members::cluster::NodeCluster;
use crate::members::detector::Detector;
use crate::members::gossip::GossipRole;
use crate::members::levels::{self, LevelRole};
use crate::members::role::MemberRole;
use crate::members::table::{Member, MemberTable, REGISTER};
use crate::members::upgrade::{UpgradeError, Upgrades};
use crate::members::{Members, table};
use crate::named::Named;
use crate::places::role::PlaceRole;
use crate::places::{ConfiguredPlaceError, Places};
use crate::policy::{BackFiller, Collector, Guardian, ShardAdder};
use crate::replica::DatabaseCell;
use crate::settings::Timings;

/// The settings of every layer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings of failure detection and policy.
    pub timings: Timings,
    /// Settings of the virtual logs.
    pub log: LogOptions,
    /// How many records a shard may get before it counts as full, and a log whose shards are all full gets another one. 0: no shard is
    /// ever added.
    pub full_shard_records: u64,
    /// The places outside of the cluster where chains of logs can be, as URLs by name.
    pub places: BTreeMap<String, String>,
    /// The protocols that provide Loglets and registers, with their settings.
    pub protocols: Protocols,
}

impl Default for Options {
    fn default() -> Self {
        let (timings, log) = (Timings::default(), LogOptions::default());
        let places = BTreeMap::new();
        Options { timings, log, full_shard_records: 0, places, protocols: atoll_protocols::all() }
    }
}

/// Why a node cannot be assembled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    /// Two protocols claim the same thing.
    #[error(transparent)]
    Clash(#[from] Clash),
    /// No protocol provides registers, or more than one does.
    #[error("{0} protocols provide registers; a node needs one that does")]
    Registers(usize),
    /// A place for registers is none.
    #[error(transparent)]
    Place(#[from] ConfiguredPlaceError),
}

/// Everything that distinguishes this node from others.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Its identity.
    pub identity: Identity,
    /// The feature levels that its program can read.
    pub levels: LevelRange,
    /// The seed of all random numbers of the core.
    pub seed: u64,
    /// A clock reading at the start, in milliseconds. It must rise from one life of the node to the next, because gossip uses it to
    /// distinguish a later life from an earlier one.
    pub started_ms: u64,
    /// The members according to the configuration file.
    pub first_table: MemberTable,
    /// This node's own row in the table of members.
    pub row: Member,
    /// The founders with the role `meta`, in ascending order.
    pub meta_founders: Vec<NodeId>,
    /// The settings of every layer.
    pub options: Options,
}

/// An assembled node. Before [`NodeParts::start`], `core` must recover the records of the journal.
pub struct Assembly {
    /// The core, which a host drives.
    pub core: NodeCore,
    /// The parts that procedures and doors use.
    pub node: NodeParts,
}

/// Handles to the parts of a node. Clones are cheap.
#[derive(Clone)]
pub struct NodeParts {
    /// The executor, the clock and the transport.
    pub env: Env,
    /// Which nodes are members, and which of them are up.
    pub members: Members,
    /// The registers.
    pub registers: Arc<dyn ClusterRegisters>,
    /// Where the chains of logs are.
    pub places: Places,
    /// The virtual logs.
    pub logs: Logs,
    /// The keyspaces.
    pub keyspaces: Keyspaces,
    /// The database, once it is open.
    pub database: DatabaseCell,
    /// The backup of the database.
    pub backups: Backups,
    /// The guardian, which carries out the policy.
    pub guardian: Guardian,
    /// Adds shards to logs, if an operator wants that.
    pub shard_adder: ShardAdder,
    /// The policies of logs.
    pub log_policies: LogPolicies,
    /// Changes the table of members.
    pub changes: Changes,
    /// Changes the feature level.
    pub upgrades: Upgrades,
    /// The procedures of the protocols that have not been started yet.
    procedures: Arc<Mutex<Vec<Procedure>>>,
    parts: Parts,
}

/// Assembles a node.
///
/// # Errors
/// The protocols do not fit together.
pub fn assemble(parts: Parts) -> Result<Assembly, AssemblyError> {
    let me = &parts.identity;
    let options = &parts.options;
    options.protocols.check()?;
    let levels = Levels::new(parts.levels, false);
    let mut core = NodeCore::with_levels(me.node, me.incarnation, parts.seed, levels.clone());
    let env = core.env();
    let members = Members::new(me.clone(), parts.first_table.clone());

    let cluster = NodeCluster::new(env.clone(), members.clone(), parts.meta_founders.clone());
    let host = Host {
        env: env.clone(),
        storage: me.storage,
        directory: Arc::new(members.clone()),
        cluster: Arc::new(cluster.clone()),
        kinds: Kinds::default(),
        look_every: options.timings.patrol_every,
    };
    let mut registry = Registry::new();
    let (mut all_registers, mut procedures, mut engines) = (Vec::new(), Vec::new(), Vec::new());
    for protocol in options.protocols.iter() {
        let installed = protocol.install(&mut core, &host);
        registry = installed.loglets.into_iter().fold(registry, Registry::with);
        all_registers.extend(installed.registers);
        procedures.extend(installed.procedures);
        engines.extend(installed.keyspaces);
    }
    host.kinds.fill(&registry);
    let registers = match <[_; 1]>::try_from(all_registers) {
        Ok([registers]) => registers,
        Err(others) => return Err(AssemblyError::Registers(others.len())),
    };
    core.add_role(roles::MEMBER, Box::new(MemberRole::new(members.clone())));
    core.add_role(crate::members::roles::LEVELS, Box::new(LevelRole::new(levels)));
    let detector = Detector::new(env.clone(), members.clone(), options.timings.clone());
    core.add_role(crate::members::roles::DETECTOR, Box::new(detector));
    let gossip = GossipRole::new(me.node, parts.started_ms, env.random(), members.clone());
    core.add_role(crate::members::roles::GOSSIP, Box::new(gossip));

    let database = DatabaseCell::default();
    core.add_role(atoll_db::roles::REPLICA, Box::new(ReplicaRole::new(env.clone(), database.shelf.clone())));

    let founders = 1 + parts.first_table.nodes.keys().filter(|node| **node != me.node).count();
    let first_kind = options.protocols.first_choice(founders).map(str::to_owned);
    let log_options = LogOptions { first_kind, ..options.log.clone() };
    let home = registers.clone();
    let places = Places::new(env.clone(), members.clone(), home, &options.protocols, &options.places)?;
    core.add_role(crate::members::roles::PLACES, Box::new(PlaceRole::new(env.clone(), places.clone())));
    let changed = members.changed.clone();
    let logs = Logs::new(env.clone(), places.registers(), registry, log_options, changed);
    let keyspaces = Keyspaces::new(env.clone(), registers.clone(), engines);
    let backup_plan = registers.register(backup::REGISTER);
    let backups = Backups::new(env.clone(), backup_plan, members.clone());
    let guardian = Guardian::new(env.clone(), logs.clone(), members.clone(), options.timings.clone());
    let shard_adder = ShardAdder::new(
        env.clone(),
        logs.clone(),
        members.clone(),
        options.timings.clone(),
        options.full_shard_records,
    );
    let changes = Changes::new(env.clone(), registers.register(REGISTER), members.clone());
    cluster.settle(changes.clone());
    let log_policies = LogPolicies::new(
        env.clone(),
        registers.clone(),
        logs.clone(),
        members.clone(),
        Named::new(env.clone(), changes.clone(), logs.registry().clone()),
        options.timings.clone(),
    );
    let level_register = registers.register(levels::REGISTER);
    let upgrades = Upgrades::new(env.clone(), level_register, members.clone(), changes.clone());
    let node = NodeParts {
        env,
        members,
        registers,
        places,
        logs,
        keyspaces,
        database,
        backups,
        guardian,
        shard_adder,
        log_policies,
        changes,
        upgrades,
        procedures: Arc::new(Mutex::new(procedures)),
        parts,
    };
    Ok(Assembly { core, node })
}

impl NodeParts {
    /// Returns the identity of this node.
    pub fn identity(&self) -> &Identity {
        &self.parts.identity
    }

    /// Returns the protocols of this node.
    pub fn protocols(&self) -> &Protocols {
        &self.parts.options.protocols
    }

    /// Starts the procedures, which find the registers, join the cluster and guard the logs.
    pub fn start(&self) {
        for (name, procedure) in std::mem::take(&mut *lock(&self.procedures)) {
            self.env.spawn(name, procedure);
        }
        let me = self.clone();
        self.env.spawn("node.start", Box::pin(async move { me.run().await }));
    }

    async fn run(self) {
        self.find_registers().await;
        let every = self.parts.options.timings.patrol_every;
        self.guardian.start();
        let filler = BackFiller {
            env: self.env.clone(),
            logs: self.logs.clone(),
            members: self.members.clone(),
            every,
        };
        self.env.spawn("back_fill", Box::pin(filler.run()));
        let collector = Collector { env: self.env.clone(), logs: self.logs.clone(), every };
        self.env.spawn("collect", Box::pin(collector.run()));
        self.env.spawn("shards.add", Box::pin(self.shard_adder.clone().run()));
        self.env.spawn("policies", Box::pin(self.log_policies.clone().run()));
        self.env.spawn("keyspaces.tend", Box::pin(self.keyspaces.clone().tend(every)));
        self.keep_joined().await;
    }

    /// Waits until the registers are found. Without them, the node can do nothing.
    async fn find_registers(&self) {
        let changed = &self.members.changed;
        loop {
            let seen = changed.count();
            if self.registers.holders().is_some() {
                return;
            }
            changed.after(seen).await;
        }
    }

    /// Joins the cluster, and then follows the table of members forever.
    async fn keep_joined(&self) {
        let every = self.parts.options.timings.patrol_every;
        let mut joined = false;
        let mut refused = None;
        loop {
            let result = if joined { self.follow().await } else { self.join().await };
            joined = joined || result.is_ok();
            let wait = match result {
                Ok(()) => every * 5,
                // An operator has to resolve this. Log it once, and again only if the error changes.
                Err(
                    e @ (UpgradeError::Level(_)
                    | UpgradeError::Table(
                        ChangeError::NotAMember(_)
                        | ChangeError::UnexpectedRoles { .. }
                        | ChangeError::Unreadable(_),
                    )),
                ) => {
                    if !joined && refused.as_ref() != Some(&e) {
                        tracing::warn!("this node cannot join: {e}");
                        refused = Some(e);
                    }
                    every
                }
                Err(_) => every / 8,
            };
            // The wait ends early when a peer reports a newer table.
            let known = self.members.table().version;
            let until = self.env.now().after(self.env.jitter(wait));
            let mut seen = self.members.changed.count();
            while self.env.now() < until && (!joined || self.members.newest_table() <= known) {
                let left = until.since(self.env.now());
                match self.env.within(left, self.members.changed.after(seen)).await {
                    Ok(rings) => seen = rings,
                    Err(_) => break,
                }
            }
        }
    }

    /// Announces what this program can read, and then writes this node's row.
    async fn join(&self) -> Result<(), UpgradeError> {
        self.upgrades.announce().await?;
        self.changes.join(self.parts.row.clone()).await?;
        self.upgrades.refresh().await
    }

    /// Rereads the table of members and the feature level, which other nodes may have changed.
    async fn follow(&self) -> Result<(), UpgradeError> {
        self.changes.refresh().await?;
        self.upgrades.refresh().await
    }

    /// Waits until it is known that this program cannot be a member of the cluster. Returns the reason.
    pub async fn refused(&self) -> LevelError {
        let mut seen = 0;
        loop {
            if let Some(error) = self.upgrades.refused() {
                return error;
            }
            seen = self.members.changed.after(seen).await;
        }
    }

    /// Whether the table of members has this node's row with its current storage identity.
    pub fn has_joined(&self) -> bool {
        let table = self.members.table();
        table.version > 0
            && table.nodes.get(&self.parts.identity.node).is_some_and(|r| r.storage == self.parts.row.storage)
    }
}

/// Returns the row of a node in the table of members.
pub fn row(identity: &Identity, peer: String, grpc: String, metrics: String) -> Member {
    table::Member::of(identity, peer, grpc, metrics)
}

//! Assembles a node from its server roles, which run in a core, and its procedures. Production and the simulator use the same assembly;
//! only the host that drives the core differs.

use std::sync::{Arc, Mutex, OnceLock};

use atoll_contract::Registry;
use atoll_contract::plugin::{Host, Procedure};
use atoll_core::sync::lock;
use atoll_core::{Env, Identity, LevelError, LevelRange, Levels, NodeCore, NodeId, roles};
use atoll_db::ReplicaRole;
use atoll_log::virtual_log::Options as LogOptions;
use atoll_rmwpaxos::KnownGroup;
use atoll_rmwpaxos::{Acceptor, Options as RegisterOptions, RmwRegisters};

use crate::database::DatabaseCell;
use crate::doors::tables::TablesCell;
use crate::logs::Logs;
use crate::members::bootstrap::Bootstrap;
use crate::members::change::{ChangeError, Changes};
use crate::members::detector::Detector;
use crate::members::gossip::GossipRole;
use crate::members::late::LateRegisters;
use crate::members::levels::{self, LevelRole};
use crate::members::meta_group::MetaGroup;
use crate::members::role::MemberRole;
use crate::members::table::{Member, MemberTable, REGISTER};
use crate::members::upgrade::{UpgradeError, Upgrades};
use crate::members::{Members, table};
use crate::policy::{BackFiller, Collector, Guardian};
use crate::protocols::Protocols;
use crate::settings::Timings;

/// The settings of every layer.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Settings of failure detection and policy.
    pub timings: Timings,
    /// Settings of the virtual logs.
    pub log: LogOptions,
    /// The protocols that provide Loglets.
    pub protocols: Protocols,
    /// Settings of the registers.
    pub registers: RegisterOptions,
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
    pub registers: LateRegisters,
    /// The virtual logs.
    pub logs: Logs,
    /// The database, once it is open.
    pub database: DatabaseCell,
    /// The tables, once the database is open.
    pub tables: TablesCell,
    /// The ZooKeeper door, once it is open.
    pub zookeeper: Arc<OnceLock<atoll_zookeeper::Door>>,
    /// The guardian, which carries out the policy.
    pub guardian: Guardian,
    /// Changes the table of members.
    pub changes: Changes,
    /// Changes the feature level.
    pub upgrades: Upgrades,
    known: KnownGroup,
    /// The procedures of the protocols that have not been started yet.
    procedures: Arc<Mutex<Vec<Procedure>>>,
    parts: Parts,
}

/// Assembles a node.
pub fn assemble(parts: Parts) -> Assembly {
    let me = &parts.identity;
    let options = &parts.options;
    let levels = Levels::new(parts.levels, false);
    let mut core = NodeCore::with_levels(me.node, me.incarnation, parts.seed, levels.clone());
    let env = core.env();
    let members = Members::new(me.clone(), parts.first_table.clone());

    let acceptor = Acceptor::new(me.node, me.storage, None);
    let known = acceptor.known_group();
    core.add_role(atoll_rmwpaxos::roles::ACCEPTOR, Box::new(acceptor));
    let directory: Arc<Members> = Arc::new(members.clone());
    let host = Host { env: env.clone(), storage: me.storage, directory };
    let mut registry = Registry::new();
    let mut procedures = Vec::new();
    for protocol in options.protocols.all() {
        let installed = protocol.install(&mut core, &host);
        registry = installed.loglets.into_iter().fold(registry, Registry::with);
        procedures.extend(installed.procedures);
    }
    core.add_role(roles::MEMBER, Box::new(MemberRole::new(members.clone())));
    core.add_role(crate::members::roles::LEVELS, Box::new(LevelRole::new(levels)));
    let detector = Detector::new(env.clone(), members.clone(), options.timings.clone());
    core.add_role(crate::members::roles::DETECTOR, Box::new(detector));
    let gossip = GossipRole::new(me.node, parts.started_ms, env.random(), members.clone());
    core.add_role(crate::members::roles::GOSSIP, Box::new(gossip));

    let database = DatabaseCell::default();
    core.add_role(atoll_db::roles::REPLICA, Box::new(ReplicaRole::new(env.clone(), database.shelf.clone())));

    let founders = 1 + parts.first_table.nodes.keys().filter(|node| **node != me.node).count();
    let first = options.protocols.all().into_iter().find(|p| p.is_first_choice(founders));
    let first_kind = first.map(|protocol| protocol.name().to_owned());
    let log_options = LogOptions { first_kind, ..options.log.clone() };
    let registers = LateRegisters::default();
    let shared = Arc::new(registers.clone());
    let logs = Logs::new(env.clone(), shared.clone(), registry, log_options, members.changed.clone());
    let guardian = Guardian::new(env.clone(), logs.clone(), members.clone(), options.timings.clone());
    let table_register = atoll_contract::Registers::register(&*shared, REGISTER);
    let changes = Changes::new(env.clone(), table_register, members.clone());
    let level_register = atoll_contract::Registers::register(&*shared, levels::REGISTER);
    let upgrades = Upgrades::new(env.clone(), level_register, members.clone(), changes.clone());
    let tables = TablesCell::default();
    let zookeeper = Arc::default();
    let node = NodeParts {
        env,
        members,
        registers,
        logs,
        database,
        tables,
        zookeeper,
        guardian,
        changes,
        upgrades,
        known,
        procedures: Arc::new(Mutex::new(procedures)),
        parts,
    };
    Assembly { core, node }
}

impl NodeParts {
    /// Returns the identity of this node.
    pub fn identity(&self) -> &Identity {
        &self.parts.identity
    }

    /// Starts the procedures, which find the group of acceptors, join the cluster and guard the logs.
    pub fn start(&self) {
        for (name, procedure) in std::mem::take(&mut *lock(&self.procedures)) {
            self.env.spawn(name, procedure);
        }
        let me = self.clone();
        self.env.spawn("node.start", Box::pin(async move { me.run().await }));
    }

    async fn run(self) {
        let bootstrap = Bootstrap {
            env: self.env.clone(),
            storage: self.parts.identity.storage,
            known: self.known.clone(),
            founders: self.parts.meta_founders.clone(),
            members: self.members.clone(),
        };
        let group = bootstrap.find_group().await;
        self.registers.settle(RmwRegisters::new(self.env.clone(), group, self.parts.options.registers));
        self.members.changed.notify();
        let every = self.parts.options.timings.patrol_every;
        let meta = MetaGroup {
            env: self.env.clone(),
            members: self.members.clone(),
            registers: self.registers.clone(),
            known: self.known.clone(),
            storage: self.parts.identity.storage,
            changes: self.changes.clone(),
            every,
        };
        self.env.spawn("meta_group", Box::pin(meta.run()));
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
        self.keep_joined().await;
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

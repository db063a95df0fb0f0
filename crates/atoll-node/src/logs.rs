//! The virtual logs that this node has open, by name. Each name has a register; the chain in it says where the log is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::{Env, Ticket};
use atoll_log::page::PageId;
use atoll_log::virtual_log::{
    Options, PAGE_PREFIX, ReconfigError, Trouble, VersionedChain, VirtualLog, Watch,
};
use atoll_log::{Budget, LogletSpec, RegisterError, Registers, Registry};

use crate::bell::Bell;

/// Registers of logs start with this, their name follows.
pub const PREFIX: &str = atoll_log::virtual_log::CHAIN_PREFIX;
/// Longest name of a log, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// Most logs that one node has open.
pub const MAX_OPEN: usize = 10_000;

/// A name that no log can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Bad length or character.
    #[error("log name {0:?} is not allowed: 1 to {MAX_NAME_BYTES} of the characters A-Z a-z 0-9 . _ / -")]
    Name(String),
    /// The node holds as many as it may.
    #[error("this node has {MAX_OPEN} logs open, which is the most; connect to another node")]
    TooMany,
}

/// Notes what appenders ran into, and wakes the guardian.
#[derive(Debug, Default)]
struct Troubles {
    by_log: Mutex<BTreeMap<String, Trouble>>,
    bell: Bell,
}

impl Watch for Troubles {
    fn on_trouble(&self, log: &str, trouble: Trouble) {
        lock(&self.by_log).insert(log.to_owned(), trouble);
        self.bell.ring();
    }
}

#[derive(Debug)]
struct Inner {
    env: Env,
    registers: Arc<dyn Registers>,
    registry: Registry,
    options: Options,
    /// What the lanes of all of them hold.
    budget: Arc<Budget>,
    open: Mutex<BTreeMap<String, Arc<VirtualLog>>>,
    troubles: Arc<Troubles>,
}

/// See the module's words. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Logs(Arc<Inner>);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Logs {
    /// No log open yet. `bell` rings when an appender is in trouble.
    pub fn new(
        env: Env,
        registers: Arc<dyn Registers>,
        registry: Registry,
        options: Options,
        bell: Bell,
    ) -> Self {
        let troubles = Arc::new(Troubles { by_log: Mutex::default(), bell });
        let budget = Arc::new(Budget::new(options.node_window_bytes));
        Logs(Arc::new(Inner { env, registers, registry, options, budget, open: Mutex::default(), troubles }))
    }

    /// Whether a log may have this name.
    pub fn check_name(name: &str) -> Result<(), OpenError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
            return Err(OpenError::Name(name.chars().take(MAX_NAME_BYTES).collect()));
        }
        Ok(())
    }

    /// The handle of a log, whether it exists yet or not; the same one at every call.
    pub fn open(&self, name: &str) -> Result<Arc<VirtualLog>, OpenError> {
        Self::check_name(name)?;
        let mut open = lock(&self.0.open);
        if let Some(log) = open.get(name) {
            return Ok(log.clone());
        }
        if open.len() >= MAX_OPEN {
            return Err(OpenError::TooMany);
        }
        let log = VirtualLog::open_within(
            self.0.env.clone(),
            name,
            self.0.registers.clone(),
            self.0.registry.clone(),
            self.0.options.clone(),
            self.0.budget.clone(),
        );
        log.watch(self.0.troubles.clone());
        open.insert(name.to_owned(), log.clone());
        Ok(log)
    }

    /// Makes a log if there is none of this name; its chain either way.
    pub fn create(
        &self,
        name: &str,
        spec: LogletSpec,
    ) -> Result<Ticket<Result<Arc<VersionedChain>, ReconfigError>>, OpenError> {
        Ok(self.open(name)?.create(spec))
    }

    /// Names of the logs of the cluster, in order.
    pub fn list(&self) -> Ticket<Result<Vec<String>, RegisterError>> {
        let registers = self.0.registers.clone();
        self.0.env.launch("logs.list", async move {
            let names = registers.list(PREFIX).await?;
            Ok(names.into_iter().filter_map(|n| n.strip_prefix(PREFIX).map(str::to_owned)).collect())
        })
    }

    /// The index pages that were written and are not forgotten yet, with the names of their logs, in order; emptied ones are among
    /// them.
    pub fn list_pages(&self) -> Ticket<Result<Vec<(String, PageId)>, RegisterError>> {
        let registers = self.0.registers.clone();
        self.0.env.launch("logs.list_pages", async move {
            let names = registers.list(PAGE_PREFIX).await?;
            let page = |name: String| {
                let (log, id) = name.strip_prefix(PAGE_PREFIX)?.rsplit_once('/')?;
                Some((log.to_owned(), PageId::parse(id)?))
            };
            Ok(names.into_iter().filter_map(page).collect())
        })
    }

    /// The logs that are open on this node.
    pub fn opened(&self) -> Vec<Arc<VirtualLog>> {
        lock(&self.0.open).values().cloned().collect()
    }

    /// Bytes that wait to be appended to all of them through this node.
    pub fn waiting_bytes(&self) -> usize {
        self.0.budget.used_bytes()
    }

    /// What an appender of this log ran into since the last call.
    pub fn take_trouble(&self, name: &str) -> Option<Trouble> {
        lock(&self.0.troubles.by_log).remove(name)
    }

    /// The kinds of Loglets that this node opens.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }
}

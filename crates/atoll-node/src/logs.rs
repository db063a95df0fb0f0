//! The virtual logs of the cluster, as this node knows them, by name. Each name has a register, whose chain says where the log's entries
//! are.
//!
//! This module keeps two things. The first is a *handle* for each log that is used here. Unused handles are closed, the least recently used
//! first. A handle whose name belongs to no log is closed at the next patrol. The second is the *chain* of every log, used here or not,
//! because the policy must also notice problems of unused logs. The list of registers shows which chains have changed and must be read
//! again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::register::Version;
use atoll_contract::{Listed, LogPos, LogletSpec, RegisterError, Registers, Registry, Unavailability};
use atoll_core::Budget;
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{Env, Notify, Pool, Ticket};
use atoll_log::page::PageId;
use atoll_log::virtual_log::{
    LogError, Options, PAGE_PREFIX, ReconfigError, Trouble, TroubleObserver, VersionedChain, VirtualLog,
    read_chain,
};

/// The prefix of the registers of logs. The name of the log follows it.
pub const PREFIX: &str = atoll_log::virtual_log::CHAIN_PREFIX;
/// The longest name of a log, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// The maximum number of logs that are used through one node at the same time.
pub const MAX_OPEN: usize = 10_000;
/// How many chains are read at the same time.
const READ_AT_ONCE: usize = 64;

/// Why a log could not be opened. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The name has a length or a character that is not allowed.
    #[error("log name {0:?} is not allowed: 1 to {MAX_NAME_BYTES} of the characters A-Z a-z 0-9 . _ / -")]
    Name(String),
    /// The node has reached the maximum number of logs in use.
    #[error("this node already has {MAX_OPEN} logs open, the maximum; connect to another node")]
    TooMany,
}

/// Clients cannot create more logs. Nothing was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are already {most} logs, the maximum that clients may create")]
pub struct TooManyLogs {
    /// The maximum number of logs.
    pub most: usize,
}

/// Records problems of appenders, and notifies the guardian.
#[derive(Debug, Default)]
struct Troubles {
    by_log: Mutex<BTreeMap<String, Trouble>>,
    changed: Notify,
}

impl TroubleObserver for Troubles {
    fn on_trouble(&self, log: &str, trouble: Trouble) {
        lock(&self.by_log).insert(log.to_owned(), trouble);
        self.changed.notify();
    }
}

/// What this node knows about a log without asking other nodes. It may be out of date.
#[derive(Clone, Debug)]
pub struct Known {
    /// The name of the log.
    pub name: String,
    /// The chain of the log.
    pub chain: Arc<VersionedChain>,
    /// A known tail of the log: the tail is at this position or above.
    pub tail: LogPos,
}

impl Known {
    /// Returns what a handle knows, or None if it has not read its chain yet.
    pub fn of(log: &VirtualLog) -> Option<Known> {
        let chain = log.chain()?;
        Some(Known { name: log.name().to_owned(), chain, tail: log.known_tail() })
    }
}

/// The chain of a log, and the mark of the register when the chain was read.
#[derive(Debug)]
struct Noted {
    mark: Option<u128>,
    chain: Arc<VersionedChain>,
    tail: LogPos,
}

#[derive(Debug)]
struct Inner {
    env: Env,
    registers: Arc<dyn Registers>,
    registry: Registry,
    options: Options,
    /// Limits what the lanes of all logs hold in memory.
    budget: Arc<Budget>,
    open: Mutex<Pool<Arc<VirtualLog>>>,
    /// By name. Bounded by the number of registers in the cluster.
    noted: Mutex<BTreeMap<String, Noted>>,
    troubles: Arc<Troubles>,
}

/// Whether no caller holds this handle and no operation is in progress through it.
fn is_idle(log: &Arc<VirtualLog>) -> bool {
    Arc::strong_count(log) == 1 && log.is_idle()
}

/// See the module documentation. Clones are cheap and share the same state.
#[derive(Clone, Debug)]
pub struct Logs(Arc<Inner>);

impl Logs {
    /// Creates it without any open log. `changed` is notified when an appender reports a problem.
    pub fn new(
        env: Env,
        registers: Arc<dyn Registers>,
        registry: Registry,
        options: Options,
        changed: Notify,
    ) -> Self {
        let troubles = Arc::new(Troubles { by_log: Mutex::default(), changed });
        let budget = Arc::new(Budget::new(options.node_window_bytes));
        let open = Mutex::new(Pool::new(options.idle_logs));
        let noted = Mutex::default();
        Logs(Arc::new(Inner { env, registers, registry, options, budget, open, noted, troubles }))
    }

    /// Checks that a log may have this name.
    pub fn check_name(name: &str) -> Result<(), OpenError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
            return Err(OpenError::Name(name.chars().take(MAX_NAME_BYTES).collect()));
        }
        Ok(())
    }

    /// Returns the handle of a log, which need not exist yet. All callers get the same handle while any of them uses it, and it stays open
    /// for some time after that.
    ///
    /// # Errors
    /// No log can have this name, or too many logs are in use. Nothing was opened.
    pub fn open(&self, name: &str) -> Result<Arc<VirtualLog>, OpenError> {
        Self::check_name(name)?;
        let mut open = lock(&self.0.open);
        if let Some(log) = open.get(name) {
            return Ok(log.clone());
        }
        if open.len() >= MAX_OPEN {
            let given_up = open.shrink(is_idle);
            self.note_closed(given_up);
            if open.len() >= MAX_OPEN {
                return Err(OpenError::TooMany);
            }
        }
        let log = VirtualLog::open_within(
            self.0.env.clone(),
            name,
            self.0.registers.clone(),
            self.0.registry.clone(),
            self.0.options.clone(),
            self.0.budget.clone(),
        );
        log.observe(self.0.troubles.clone());
        let given_up = open.insert(name, log.clone(), is_idle);
        self.note_closed(given_up);
        Ok(log)
    }

    /// Keeps what the closed handles knew.
    fn note_closed(&self, given_up: Vec<(String, Arc<VirtualLog>)>) {
        if !given_up.is_empty() {
            atoll_core::testing::hit("logs.given_up");
        }
        let mut noted = lock(&self.0.noted);
        for (name, log) in given_up {
            if let Some(Known { chain, tail, .. }) = Known::of(&log) {
                note(&mut noted, name, None, chain, tail);
            }
        }
    }

    /// Closes unused handles and registers whose names belong to no log, or no longer do. Drops the reported problems of logs that this
    /// node no longer knows.
    pub fn sweep(&self) {
        let leads_nowhere = |log: &Arc<VirtualLog>| log.chain().is_none_or(|c| c.chain.is_deleted());
        let nowhere = lock(&self.0.open).take_if(|log| leads_nowhere(log) && is_idle(log));
        self.note_closed(nowhere);
        self.0.registers.sweep();
        let names = self.names();
        lock(&self.0.troubles.by_log).retain(|name, _| names.binary_search(name).is_ok());
    }

    /// Checks whether clients may create another log, according to what this node knows.
    ///
    /// # Errors
    /// The maximum number of logs exists.
    pub fn check_number(&self) -> Result<(), TooManyLogs> {
        let most = self.0.options.most_logs;
        if self.known().len() < most { Ok(()) } else { Err(TooManyLogs { most }) }
    }

    /// Returns how many handles are open, in use or not.
    pub fn open_handles(&self) -> usize {
        lock(&self.0.open).len()
    }

    /// Reads the chain of a log again if this node uses the log and knows only an older version. Appends that wait for the old segment
    /// then go to the new one.
    pub fn catch_up(&self, name: &str, version: Version) {
        let log = lock(&self.0.open).get(name).cloned();
        if let Some(log) = log
            && log.chain().is_some_and(|chain| chain.version < version)
        {
            hit("logs.catch_up");
            // If this fails, whoever waits for the new segment looks for it.
            let read = async move { drop(log.refresh().await) };
            self.0.env.spawn("logs.catch_up", Box::pin(read));
        }
    }

    /// Creates a log if there is none with this name. Returns its chain in either case.
    pub fn create(
        &self,
        name: &str,
        spec: LogletSpec,
    ) -> Result<Ticket<Result<Arc<VersionedChain>, ReconfigError>>, OpenError> {
        Ok(self.open(name)?.create(spec))
    }

    /// Returns the names of all logs of the cluster, in ascending order. Reads the chains that have changed since the last call, so that
    /// [`Logs::known`] is as new as this call, except for chains that could not be read.
    pub fn list(&self) -> Ticket<Result<Vec<String>, RegisterError>> {
        let me = self.clone();
        self.0.env.launch("logs.list", async move { me.survey(|| {}).await })
    }

    /// Like [`Logs::list`], for use within a procedure. Calls `learned` whenever some chains were read.
    pub async fn survey(&self, learned: impl Fn()) -> Result<Vec<String>, RegisterError> {
        let mut listed = self.0.registers.list(PREFIX).await?;
        listed.iter_mut().for_each(|l| drop(l.name.drain(..PREFIX.len().min(l.name.len()))));
        let is_stale = {
            let noted = lock(&self.0.noted);
            let is_new =
                |l: &&Listed| l.mark.is_some() && noted.get(&l.name).is_some_and(|n| n.mark == l.mark);
            listed.iter().filter(|l| !is_new(l)).cloned().collect::<Vec<_>>()
        };
        for part in is_stale.chunks(READ_AT_ONCE) {
            let begin = |l: &Listed| (l.clone(), self.read(&l.name));
            let reads: Vec<_> = part.iter().map(begin).collect();
            for (listed, read) in reads {
                // A chain that cannot be read now is read at the next call.
                if let Ok(Ok(known)) = read.await {
                    let mut noted = lock(&self.0.noted);
                    note(&mut noted, known.name, listed.mark, known.chain, known.tail);
                }
            }
            learned();
        }
        let noted = lock(&self.0.noted);
        let is_deleted = |name: &String| noted.get(name).is_some_and(|n| n.chain.chain.is_deleted());
        Ok(listed.into_iter().map(|l| l.name).filter(|name| !is_deleted(name)).collect())
    }

    /// Reads the chain of a log without opening it. The result is at least as new as this call. For a deleted log, it is the chain that
    /// records the deletion.
    pub fn read(&self, name: &str) -> Ticket<Result<Known, LogError>> {
        let open = lock(&self.0.open).peek(name).cloned();
        let (registers, name) = (self.0.registers.clone(), name.to_owned());
        self.0.env.launch("logs.read", async move {
            if let Some(log) = open {
                let fresh = log.refresh().await;
                let chain = match fresh.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping))) {
                    Err(LogError::Deleted) => log.chain().ok_or(LogError::Deleted)?,
                    chain => chain?,
                };
                return Ok(Known { name, chain, tail: log.known_tail() });
            }
            let chain = Arc::new(read_chain(&*registers, &name).await?);
            let tail = chain.chain.active().start;
            Ok(Known { name, chain, tail })
        })
    }

    /// Returns every log whose chain this node knows, in the order of their names, except for deleted ones.
    pub fn known(&self) -> Vec<Known> {
        let open = lock(&self.0.open);
        let noted = lock(&self.0.noted);
        let closed =
            noted.iter().map(|(name, n)| Known { name: name.clone(), chain: n.chain.clone(), tail: n.tail });
        let mut all: BTreeMap<&str, Known> = noted.keys().map(String::as_str).zip(closed).collect();
        for (name, log) in open.iter() {
            let Some(here) = Known::of(log) else { continue };
            let is_older = all.get(name).is_some_and(|there| there.chain.version > here.chain.version);
            if !is_older {
                all.insert(name, here);
            }
        }
        all.into_values().filter(|known| !known.chain.chain.is_deleted()).collect()
    }

    /// Returns the names of all logs that this node knows, in ascending order, including deleted ones.
    pub fn names(&self) -> Vec<String> {
        let open = lock(&self.0.open);
        let noted = lock(&self.0.noted);
        let open = open.iter().filter(|(_, log)| log.chain().is_some()).map(|(name, _)| name.to_owned());
        let names: std::collections::BTreeSet<String> = open.chain(noted.keys().cloned()).collect();
        names.into_iter().collect()
    }

    /// Returns the index pages whose registers still exist, with the names of their logs, in the order of the register list. Includes
    /// emptied pages.
    pub fn list_pages(&self) -> Ticket<Result<Vec<(String, PageId)>, RegisterError>> {
        let registers = self.0.registers.clone();
        self.0.env.launch("logs.list_pages", async move {
            let listed = registers.list(PAGE_PREFIX).await?;
            let page = |listed: Listed| {
                let (log, id) = listed.name.strip_prefix(PAGE_PREFIX)?.rsplit_once('/')?;
                Some((log.to_owned(), PageId::parse(id)?))
            };
            Ok(listed.into_iter().filter_map(page).collect())
        })
    }

    /// Returns how many bytes wait to be appended to all logs through this node.
    pub fn waiting_bytes(&self) -> usize {
        self.0.budget.used_bytes()
    }

    /// Returns the last problem that an appender of this log has reported since the last call.
    pub fn take_trouble(&self, name: &str) -> Option<Trouble> {
        lock(&self.0.troubles.by_log).remove(name)
    }

    /// Returns the kinds of Loglets that this node supports.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Returns the kind of the first Loglet of a new log, or an empty string if there is no kind.
    pub fn first_kind(&self) -> &str {
        let first = self.0.options.first_kind.as_deref();
        first.or_else(|| self.0.registry.kinds().next()).unwrap_or_default()
    }

    /// Returns the maximum number of segments in the chain of a log.
    pub fn max_segments(&self) -> usize {
        self.0.options.max_segments
    }
}

/// Records a chain, unless a newer one is known. A mark belongs to the chain that was read after it, and stays valid with a newer chain.
fn note(
    noted: &mut BTreeMap<String, Noted>,
    name: String,
    mark: Option<u128>,
    chain: Arc<VersionedChain>,
    tail: LogPos,
) {
    match noted.get_mut(&name) {
        Some(old) => {
            old.mark = mark.or(old.mark);
            old.tail = old.tail.max(tail);
            if chain.version >= old.chain.version {
                old.chain = chain;
            }
        }
        None => {
            noted.insert(name, Noted { mark, chain, tail });
        }
    }
}

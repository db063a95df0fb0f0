//! The virtual logs of the cluster as this node knows them, by name. Each name has a register; the chain in it says where the log is.
//!
//! This module keeps two things. The first is a *handle* of each log that is used here. Handles that are no longer in use are given up, the
//! least recently used first; handles of names that no log has are given up at the next patrol. The second is the *chain* of every log,
//! used here or not, because the policy must notice problems of unused logs, too. The list of registers says which chains have to be read
//! again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::{Listed, LogPos, LogletSpec, RegisterError, Registers, Registry, Unavailability};
use atoll_core::Budget;
use atoll_core::sync::lock;
use atoll_core::{Env, Notify, Pool, Ticket};
use atoll_log::page::PageId;
use atoll_log::virtual_log::{
    LogError, Options, PAGE_PREFIX, ReconfigError, Trouble, VersionedChain, VirtualLog, Watch, read_chain,
};

/// Registers of logs start with this, their name follows.
pub const PREFIX: &str = atoll_log::virtual_log::CHAIN_PREFIX;
/// Longest name of a log, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// Most logs that are used through one node at the same time.
pub const MAX_OPEN: usize = 10_000;
/// Chains that are read at the same time.
const READ_AT_ONCE: usize = 64;

/// A name that no log can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Bad length or character.
    #[error("log name {0:?} is not allowed: 1 to {MAX_NAME_BYTES} of the characters A-Z a-z 0-9 . _ / -")]
    Name(String),
    /// The node holds as many as it may.
    #[error("{MAX_OPEN} logs are used through this node, which is the most; connect to another node")]
    TooMany,
}

/// Clients may create no more logs. Nothing was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {most} logs, which is the most that clients may create")]
pub struct TooManyLogs {
    /// How many there may be.
    pub most: usize,
}

/// Notes what appenders ran into, and wakes the guardian.
#[derive(Debug, Default)]
struct Troubles {
    by_log: Mutex<BTreeMap<String, Trouble>>,
    changed: Notify,
}

impl Watch for Troubles {
    fn on_trouble(&self, log: &str, trouble: Trouble) {
        lock(&self.by_log).insert(log.to_owned(), trouble);
        self.changed.notify();
    }
}

/// What this node knows about a log without asking another one. It may be out of date.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its chain.
    pub chain: Arc<VersionedChain>,
    /// Its tail is at this position or above.
    pub tail: LogPos,
}

impl Known {
    /// What a handle knows; None if it has read nothing yet.
    pub fn of(log: &VirtualLog) -> Option<Known> {
        let chain = log.chain()?;
        Some(Known { name: log.name().to_owned(), chain, tail: log.known_tail() })
    }
}

/// The chain of a log, and the value of its register that it was read for.
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
    /// What the lanes of all of them hold.
    budget: Arc<Budget>,
    open: Mutex<Pool<Arc<VirtualLog>>>,
    /// By name: bounded by the registers of the cluster.
    noted: Mutex<BTreeMap<String, Noted>>,
    troubles: Arc<Troubles>,
}

/// True if no caller holds this handle and nothing is under way through it.
fn is_idle(log: &Arc<VirtualLog>) -> bool {
    Arc::strong_count(log) == 1 && log.is_idle()
}

/// See the module documentation. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Logs(Arc<Inner>);

impl Logs {
    /// No log open yet. `changed` is notified when an appender is in trouble.
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

    /// Whether a log may have this name.
    pub fn check_name(name: &str) -> Result<(), OpenError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
            return Err(OpenError::Name(name.chars().take(MAX_NAME_BYTES).collect()));
        }
        Ok(())
    }

    /// The handle of a log, which need not exist yet. All callers get the same handle as long as one of them uses it; it stays open for a
    /// while after that.
    ///
    /// # Errors
    /// No log can have this name, or too many are in use; nothing was opened.
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
        log.watch(self.0.troubles.clone());
        let given_up = open.insert(name, log.clone(), is_idle);
        self.note_closed(given_up);
        Ok(log)
    }

    /// Keeps what the given-up handles knew.
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

    /// Gives up the handles and registers of names that no log has, or no longer has. Troubles that appenders reported are dropped together
    /// with their log.
    pub fn sweep(&self) {
        let leads_nowhere = |log: &Arc<VirtualLog>| log.chain().is_none_or(|c| c.chain.is_deleted());
        let nowhere = lock(&self.0.open).take_if(|log| leads_nowhere(log) && is_idle(log));
        self.note_closed(nowhere);
        self.0.registers.sweep();
        let names = self.names();
        lock(&self.0.troubles.by_log).retain(|name, _| names.binary_search(name).is_ok());
    }

    /// Whether clients may create another log, by what this node knows.
    ///
    /// # Errors
    /// There are as many as there may be.
    pub fn check_number(&self) -> Result<(), TooManyLogs> {
        let most = self.0.options.most_logs;
        if self.known().len() < most { Ok(()) } else { Err(TooManyLogs { most }) }
    }

    /// How many handles are open, in use or not.
    pub fn open_handles(&self) -> usize {
        lock(&self.0.open).len()
    }

    /// Makes a log if there is none of this name; its chain either way.
    pub fn create(
        &self,
        name: &str,
        spec: LogletSpec,
    ) -> Result<Ticket<Result<Arc<VersionedChain>, ReconfigError>>, OpenError> {
        Ok(self.open(name)?.create(spec))
    }

    /// Names of the logs of the cluster, in order. Reads the chains that have changed since the last call, so that [`Logs::known`] is as
    /// new as this call, except for chains that could not be read.
    pub fn list(&self) -> Ticket<Result<Vec<String>, RegisterError>> {
        let me = self.clone();
        self.0.env.launch("logs.list", async move { me.survey(|| {}).await })
    }

    /// The same, within a procedure; `learned` is called whenever some chains were read.
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
                // One that cannot be read now is read again at the next call.
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

    /// Every log whose chain this node knows, in the order of their names, except for deleted ones.
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

    /// The names of all logs that this node knows of, in order, including deleted ones.
    pub fn names(&self) -> Vec<String> {
        let open = lock(&self.0.open);
        let noted = lock(&self.0.noted);
        let open = open.iter().filter(|(_, log)| log.chain().is_some()).map(|(name, _)| name.to_owned());
        let names: std::collections::BTreeSet<String> = open.chain(noted.keys().cloned()).collect();
        names.into_iter().collect()
    }

    /// The index pages that were written and are not forgotten yet, with the names of their logs, in order; emptied ones are among
    /// them.
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

    /// Most segments that the chain of a log may have.
    pub fn max_segments(&self) -> usize {
        self.0.options.max_segments
    }
}

/// Notes a chain, unless a newer one is there. A mark counts with the chain that was read after it, or with a newer one.
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

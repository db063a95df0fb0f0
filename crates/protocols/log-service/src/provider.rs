//! Creates loglets in a log service: plans configurations, and opens, copies and deletes loglets.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Duties, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Offset, PlanError,
    Progress, Reason, RoleOfKind, Unavailability,
};
use atoll_core::level::Level;
use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Encode, Env, NodeId};
use atoll_loglet_store::cache::Cache;
use atoll_loglet_store::tails::Tails;

use crate::append::Appends;
use crate::config::{self, LogServiceConfig, MAX_REPLICAS, MEMORY};
use crate::layout::{Body, Entries, Message, Stamp};
use crate::loglet::{LogServiceLoglet, LogServiceOptions, Shared, failed};
use crate::service::{Answer, Fault, Request, Service, Stream, Subject};

/// The name of this kind in chains.
pub const KIND: &str = "log-service";
/// The options of this kind: servers of the service, what names begin with, and how many servers keep the stream.
pub const OPTIONS: [&str; 3] = ["servers", "prefix", "replicas"];
/// What names begin with unless a specification says otherwise.
pub const USUAL_PREFIX: &str = "atoll";
/// The level from which chains name loglets of this kind (contracts X28).
const SINCE: Level = Level(2);
/// How long a plan tries the service.
const TRY_FOR: Duration = Duration::from_secs(5);
/// How long a plan waits for a stream to be created: the servers place it, and elect its leader.
const CREATE_TIMEOUT: Duration = Duration::from_secs(8);
/// For how long a stream that no chain will name is deleted, and how often: the request to create it may arrive late, and servers that are
/// parted from each other delete nothing.
const ABANDON_FOR: Duration = Duration::from_secs(60);
const ABANDON_EVERY: Duration = Duration::from_secs(1);
/// Handles that nobody uses are looked for when there are this many.
const MANY_HANDLES: usize = 64;

/// Returns the service with these servers.
type Connect = Arc<dyn Fn(&str) -> Arc<dyn Service> + Send + Sync>;

/// The provider of this kind.
#[derive(Clone)]
pub struct LogServiceProvider {
    env: Env,
    options: Arc<LogServiceOptions>,
    connect: Connect,
    cache: Arc<Cache<Message>>,
    /// The handles in use. All callers of this node share one for each loglet.
    handles: Arc<Mutex<BTreeMap<LogletId, Weak<Shared>>>>,
}

impl fmt::Debug for LogServiceProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogServiceProvider({:?})", self.env)
    }
}

impl LogServiceProvider {
    /// Creates the provider for the node of `env`, over servers of NATS. It connects to none before the first loglet is used.
    pub fn new(env: Env, options: LogServiceOptions) -> Self {
        let (services, timeout) = (crate::nats::Services::default(), options.request_timeout);
        Self::over(env, options, move |servers| services.service(servers, timeout))
    }

    /// Creates the provider for the node of `env`, over what `connect` returns.
    pub fn over(
        env: Env,
        options: LogServiceOptions,
        connect: impl Fn(&str) -> Arc<dyn Service> + Send + Sync + 'static,
    ) -> Self {
        let cache = Arc::new(Cache::new(options.cache_bytes));
        let (options, connect) = (Arc::new(options), Arc::new(connect));
        LogServiceProvider { env, options, connect, cache, handles: Arc::default() }
    }

    fn handle(&self, id: LogletId, config: &Bytes) -> Result<LogServiceLoglet, PlanError> {
        let mut handles = lock(&self.handles);
        if let Some(shared) = handles.get(&id).and_then(Weak::upgrade) {
            return Ok(LogServiceLoglet(shared));
        }
        let config = config::parse(config)?;
        let writer = self.env.random();
        let shared = Arc::new(Shared {
            env: self.env.clone(),
            id,
            stream: config.stream(),
            service: (self.connect)(&config.servers),
            config,
            options: self.options.clone(),
            tails: Tails::default(),
            known: Mutex::default(),
            appends: Mutex::new(Appends::new(writer)),
            writer,
            cache: self.cache.clone(),
            purging: AtomicBool::new(false),
        });
        if handles.len() >= MANY_HANDLES {
            handles.retain(|_, handle| handle.strong_count() > 0);
        }
        handles.insert(id, Arc::downgrade(&shared));
        Ok(LogServiceLoglet(shared))
    }

    /// Opens a handle for an operation on the service.
    fn reached(&self, id: LogletId, config: &Bytes) -> Result<LogServiceLoglet, LogletError> {
        self.handle(id, config).map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))
    }

    /// Takes what the specification says, and the rest from the previous loglet; then creates the stream. So it is known before anything is
    /// sealed that the service can be used, and a stream that a chain names was there (service-S6).
    async fn plan(
        &self,
        spec: &LogletSpec,
        previous: Option<LogServiceConfig>,
    ) -> Result<LogServiceConfig, PlanError> {
        if !self.env.allows_soon(SINCE).await {
            let allowed =
                "only once all members can read it: finish the upgrade with `atoll cluster upgrade`";
            return Err(PlanError::Invalid { what: "a loglet in a log service", allowed });
        }
        spec.check(self, &OPTIONS)?;
        let [servers, prefix, replicas] = OPTIONS.map(|option| spec.options.get(option).map(String::as_str));
        let before = previous.as_ref();
        let usual = if cfg!(feature = "testing") { MEMORY } else { "" };
        let servers = servers.or(before.map(|p| p.servers.as_str())).unwrap_or(usual);
        let prefix = prefix.or(before.map(|p| p.prefix.as_str())).unwrap_or(USUAL_PREFIX);
        config::check(servers, prefix)?;
        let bad = PlanError::Invalid { what: "option \"replicas\"", allowed: "1 to 5" };
        let replicas = match replicas {
            Some(text) => Some(text.parse().ok().filter(|n| (1..=MAX_REPLICAS).contains(n)).ok_or(bad)?),
            None => before.filter(|p| p.servers == servers).map(|p| p.replicas),
        };
        let until = self.env.now().after(TRY_FOR);
        loop {
            // After a lost answer, the name is used up: the request may arrive later.
            let token = u128::from(self.env.random()) << 64 | u128::from(self.env.random());
            let (servers, prefix) = (servers.to_owned(), prefix.to_owned());
            let config = LogServiceConfig { servers, prefix, token, replicas: replicas.unwrap_or(1) };
            let fault = match self.create(&config, replicas).await {
                Ok(replicas) => return Ok(LogServiceConfig { replicas, ..config }),
                Err(fault) => fault,
            };
            if !fault.passes() || self.env.now() >= until {
                return Err(unusable(&fault));
            }
            self.env.sleep(self.env.jitter(self.options.retry)).await;
        }
    }

    /// Creates a stream with the first message, which makes it a log. Returns how many replicas it has.
    async fn create(&self, config: &LogServiceConfig, replicas: Option<u8>) -> Result<u8, Fault> {
        let (service, stream) = ((self.connect)(&config.servers), config.stream());
        let ask = async |request| {
            let asked = service.ask(stream.clone(), request);
            self.env.within(CREATE_TIMEOUT, asked).await.unwrap_or(Err(Fault::NoAnswer))
        };
        let created = match ask(Request::Create { replicas }).await {
            Ok(Answer::Created(replicas)) => replicas,
            Ok(_) => return Err(Fault::NoAnswer),
            Err(fault) => {
                if fault == Fault::NoAnswer {
                    self.abandon(service, stream);
                }
                return Err(fault);
            }
        };
        let first = Entries { previous: 0, first: Offset::ZERO, trim: Offset::ZERO, batch: None };
        let stamp = Stamp { writer: self.env.random(), nonce: 0 };
        let data = Message { stamp, body: Body::Entries(first) }.encode(config.token);
        let until = self.env.now().after(TRY_FOR);
        loop {
            let publish = Request::Publish { on: Subject::Log, expected: Some(0), data: data.clone() };
            let fault = match ask(publish).await {
                Ok(_) => return Ok(created),
                Err(fault) => fault,
            };
            if fault == Fault::Refused
                && matches!(ask(Request::Last).await, Ok(Answer::Messages(m)) if !m.is_empty())
            {
                // Nobody else knows the stream, so an earlier attempt is there.
                return Ok(created);
            }
            if !fault.passes() || self.env.now() >= until {
                self.abandon(service, stream);
                return Err(fault);
            }
            self.env.sleep(self.env.jitter(self.options.retry)).await;
        }
    }

    /// Deletes a stream that no chain will name and that may be there, in the background.
    fn abandon(&self, service: Arc<dyn Service>, stream: Stream) {
        let env = self.env.clone();
        let work = async move {
            let until = env.now().after(ABANDON_FOR);
            while env.now() < until {
                let delete = service.ask(stream.clone(), Request::Delete);
                if let Ok(Ok(_)) = env.within(CREATE_TIMEOUT, delete).await {
                    return;
                }
                env.sleep(env.jitter(ABANDON_EVERY)).await;
            }
        };
        self.env.spawn("service.abandon", Box::pin(work));
    }
}

fn unusable(fault: &Fault) -> PlanError {
    let allowed = match fault {
        Fault::Credentials => "one that accepts the credentials in the environment of every node",
        Fault::NoJetStream => "one with JetStream, switched on for the account of this cluster",
        Fault::Denied(why) => {
            tracing::warn!(why, "the log service refuses a stream");
            "one that creates such a stream: enough servers for the replicas, messages of 1 MiB, and room; this node's log has the reason"
        }
        _ => "one that answers as NATS does; this one does not, or only with errors",
    };
    PlanError::Invalid { what: "log service", allowed }
}

impl LogletProvider for LogServiceProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    /// Returns none: no node of the cluster holds entries or orders appends.
    fn roles(&self) -> &'static [RoleOfKind] {
        &[]
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            let previous = previous.map(config::parse).transpose()?;
            Ok(self.plan(spec, previous).await?.to_bytes())
        })
    }

    fn provision(&self, _id: LogletId, _config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        // The plan has created the stream.
        Box::pin(std::future::ready(Ok(())))
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.handle(id, config)?))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move { self.reached(id, config)?.0.copy(source, range).await.map_err(failed) })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.reached(id, config);
        Box::pin(async move { loglet?.0.delete().await.map_err(failed) })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Ok(config) => {
                let stream = config.stream().name;
                let [servers, prefix, replicas] = OPTIONS;
                let count = config.replicas.to_string();
                vec![
                    (servers, config.servers),
                    (prefix, config.prefix),
                    (replicas, count),
                    ("stream", stream),
                ]
            }
            Err(error) => vec![("unreadable", error.to_string())],
        }
    }

    fn duties(&self, _config: &Bytes) -> Duties {
        Duties::default()
    }

    /// Returns true: a seal needs the service and no member of the cluster.
    fn can_seal(&self, _config: &Bytes, _reached: &dyn Fn(NodeId) -> bool) -> bool {
        true
    }

    /// Returns none. While the service does not answer, the loglet cannot be sealed either, so another one would not help.
    fn reason_to_reconfigure(&self, _config: &Bytes, _evidence: &Evidence<'_>) -> Option<Reason> {
        None
    }

    fn progress<'a>(&'a self, _node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        // The service has everything.
        let whole = extents.iter().map(|e| Progress { has_up_to: e.range.end, lacks: 0 }).collect();
        Box::pin(std::future::ready(Some(whole)))
    }

    /// Returns none: nothing is on this node's disk.
    fn held_here(&self, _above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(std::future::ready(Some((Vec::new(), false))))
    }

    fn delete_here(&self, _id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

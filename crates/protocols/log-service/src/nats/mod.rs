//! The real service: servers of NATS, reached by the crate `async-nats` on threads of their own, so that no network ever keeps the node's
//! thread waiting. Nothing here is part of a simulation, so the rules for protocol code do not hold: it uses tokio, and time is the
//! machine's.
//!
//! Of the client, only requests, publishes and subscriptions are used: JetStream is an API of JSON documents over them (`requests.rs`).

mod answers;
mod connection;
mod requests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Ticket, ticket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::service::{Answer, Fault, Request, Service, Stream};
use connection::Connection;

/// Maximum number of requests to one service under way. Each may hold a message in memory.
const MAX_REQUESTS: usize = 64;
/// Maximum number of waits for news from one service.
const MAX_WAITS: usize = 1024;

/// The threads of all log services of the process. None if the system gives no thread. They start with the first request.
static THREADS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("log-service").enable_all().build().ok()
});

/// The services of a node, by their servers. A service that nobody uses any more is closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Services(Arc<Mutex<BTreeMap<String, Weak<Remote>>>>);

impl Services {
    /// Returns the service with these servers. It connects with the first request.
    pub(crate) fn service(&self, servers: &str, timeout: Duration) -> Arc<dyn Service> {
        let mut all = lock(&self.0);
        if let Some(open) = all.get(servers).and_then(Weak::upgrade) {
            return open;
        }
        all.retain(|_, remote| remote.strong_count() > 0);
        let remote = Arc::new(Remote {
            timeout,
            connection: Arc::new(Connection::new(servers)),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            waits: Arc::new(Semaphore::new(MAX_WAITS)),
        });
        all.insert(servers.to_owned(), Arc::downgrade(&remote));
        remote
    }
}

/// A service that threads of this process talk to.
struct Remote {
    /// How long a request may take.
    timeout: Duration,
    connection: Arc<Connection>,
    requests: Arc<Semaphore>,
    waits: Arc<Semaphore>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({:?})", self.connection)
    }
}

/// Runs a request on the threads, unless too many are under way. It ends with its timeout, so the bound also holds for those that nobody
/// awaits.
fn start<T: Send + 'static>(
    limit: &Arc<Semaphore>,
    request: impl Future<Output = T> + Send + 'static,
) -> Option<Ticket<T>> {
    let (Some(threads), Ok(permit)) = (&*THREADS, limit.clone().try_acquire_owned()) else { return None };
    let (done, wait) = ticket();
    threads.spawn(async move {
        done.complete(request.await);
        drop(permit);
    });
    Some(wait)
}

impl Service for Remote {
    fn ask(&self, stream: Stream, request: Request) -> BoxFuture<'static, Result<Answer, Fault>> {
        let (connection, timeout) = (self.connection.clone(), self.timeout);
        let work = async move { connection.ask(&stream, request, timeout).await };
        match start(&self.requests, work) {
            Some(wait) => Box::pin(async move { wait.await.unwrap_or(Err(Fault::NoAnswer)) }),
            None => Box::pin(std::future::ready(Err(Fault::Busy))),
        }
    }

    fn news(&self, stream: Stream, above: u64, patience: Duration) -> BoxFuture<'static, ()> {
        let connection = self.connection.clone();
        // Without the limit, a wait that could not be made would end at once, again and again.
        let work = async move {
            let waited = connection.news(&stream, above);
            if tokio::time::timeout(patience, waited).await != Ok(Ok(())) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match start(&self.waits, work) {
            Some(wait) => Box::pin(async move {
                let _ = wait.await;
            }),
            None => Box::pin(std::future::pending()),
        }
    }
}

//! The client of a real etcd. Its requests run on a thread of their own, so no network ever keeps the node's thread waiting.
//!
//! All requests go to one server until it fails; then to the next one. Nothing is sent twice here: callers try again, after they have
//! looked.
#![allow(clippy::disallowed_methods)] // Threads and real time: this is about a real network. The simulator never comes here.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use atoll_contract::register::Unavailability;
use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Ticket, ticket};
use atoll_register_store::Fault;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::etcd::Etcd;
use crate::proto::kv_client::KvClient;
use crate::proto::{RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse};

/// Maximum number of requests of a client under way. Each may hold a value in memory.
const MAX_REQUESTS: usize = 64;
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Errors of etcd itself begin like this; those of connections do not.
const FROM_ETCD: &str = "etcdserver: ";
/// The most characters of an error that are passed on.
const MAX_WHY_CHARS: usize = 200;

/// The thread of all clients of etcd of the process. None if the system gives no thread. It starts with the first request.
static THREAD: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build().ok()
});

/// A client of one cluster.
#[derive(Clone)]
pub(crate) struct Client(Arc<Shared>);

struct Shared {
    servers: Vec<Endpoint>,
    timeout: Duration,
    line: Mutex<Line>,
    /// The cluster that answered first; 0 before that.
    cluster: AtomicU64,
    requests: Arc<Semaphore>,
}

/// Where requests go.
#[derive(Default)]
struct Line {
    server: usize,
    open: Option<KvClient<Channel>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.servers.iter().map(Endpoint::uri)).finish()
    }
}

/// What both kinds of answers have.
trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;
}

impl Answer for RangeResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl Answer for TxnResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header.as_ref()
    }
}

impl Client {
    /// Returns a client of the cluster with these servers, `HOST:PORT,HOST:PORT`; None if they are not written so. A request takes
    /// `timeout` at most, and as long again if it has to connect. Nothing is contacted yet.
    pub(crate) fn new(servers: &str, timeout: Duration) -> Option<Self> {
        let endpoint = |server: &str| {
            let endpoint = Endpoint::from_shared(format!("http://{server}")).ok()?;
            Some(endpoint.connect_timeout(timeout.min(CONNECT_TIMEOUT)).tcp_nodelay(true))
        };
        let servers: Vec<Endpoint> = servers.split(',').map(endpoint).collect::<Option<_>>()?;
        let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
        let (line, cluster) = (Mutex::default(), AtomicU64::new(0));
        Some(Client(Arc::new(Shared { servers, timeout, line, cluster, requests })))
    }

    /// Starts a request on the thread. It ends with its timeout, so the bound on requests also holds for those that nobody awaits.
    fn start<T, F>(
        &self,
        request: impl FnOnce(KvClient<Channel>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Fault>>
    where
        T: Answer + Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
    {
        let (Some(thread), Ok(permit)) = (&*THREAD, self.0.requests.clone().try_acquire_owned()) else {
            return Box::pin(std::future::ready(Err(Fault::Passing(Unavailability::Busy))));
        };
        let shared = self.0.clone();
        let (done, wait): (_, Ticket<Result<T, Fault>>) = ticket();
        thread.spawn(async move {
            let answer = shared.ask(request).await;
            drop(permit);
            done.complete(answer);
        });
        Box::pin(async move { wait.await.unwrap_or(Err(Fault::NoAnswer)) })
    }
}

impl Shared {
    async fn ask<T: Answer, F>(&self, request: impl FnOnce(KvClient<Channel>) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (server, client) = self.client().await?;
        let fault = match tokio::time::timeout(self.timeout, request(client)).await {
            Ok(Ok(answer)) => return self.of_this_cluster(answer.into_inner()),
            Ok(Err(status)) => to_fault(&status),
            Err(_) => Fault::NoAnswer,
        };
        if fault == Fault::NoAnswer {
            self.leave(server);
        }
        Err(fault)
    }

    /// Returns the server in use, and a connection to it. Without one, nothing was sent.
    async fn client(&self) -> Result<(usize, KvClient<Channel>), Fault> {
        let (server, open) = {
            let line = lock(&self.line);
            (line.server, line.open.clone())
        };
        if let Some(client) = open {
            return Ok((server, client));
        }
        let Ok(Ok(channel)) = tokio::time::timeout(self.timeout, self.servers[server].connect()).await else {
            self.leave(server);
            return Err(Fault::Passing(Unavailability::NoQuorum));
        };
        let client = KvClient::new(channel);
        let mut line = lock(&self.line);
        if line.server == server {
            line.open = Some(client.clone());
        }
        Ok((server, client))
    }

    /// Goes on to the next server, unless another request has already.
    fn leave(&self, server: usize) {
        let mut line = lock(&self.line);
        if line.server == server {
            *line = Line { server: (server + 1) % self.servers.len(), open: None };
        }
    }

    /// Refuses the answer of another cluster than the first one: it knows nothing of these registers.
    fn of_this_cluster<T: Answer>(&self, answer: T) -> Result<T, Fault> {
        let from = answer.header().map_or(0, |header| header.cluster_id);
        match self.cluster.compare_exchange(0, from, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != from => {
                Err(Fault::Refused("the servers belong to different clusters of etcd".to_owned()))
            }
            _ => Ok(answer),
        }
    }
}

/// Returns what an error says about a request. Whatever does not say for certain that nothing happened is unknown.
fn to_fault(status: &Status) -> Fault {
    if status.code() == Code::Unimplemented {
        return Fault::Refused("what answers is no etcd of version 3".to_owned());
    }
    let Some(why) = status.message().strip_prefix(FROM_ETCD) else { return Fault::NoAnswer };
    match status.code() {
        // The database has reached its quota, or a server lags behind with what is decided. Both are checked before anything is done.
        Code::ResourceExhausted if why.contains("space exceeded") => Fault::Passing(Unavailability::DiskFull),
        Code::ResourceExhausted => Fault::Passing(Unavailability::Busy),
        Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated => {
            Fault::Refused(why.chars().take(MAX_WHY_CHARS).collect())
        }
        _ => Fault::NoAnswer,
    }
}

impl Etcd for Client {
    fn range(&self, request: RangeRequest) -> BoxFuture<'static, Result<RangeResponse, Fault>> {
        self.start(move |mut client| async move { client.range(request).await })
    }

    fn txn(&self, request: TxnRequest) -> BoxFuture<'static, Result<TxnResponse, Fault>> {
        self.start(move |mut client| async move { client.txn(request).await })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_etcd_itself_says_is_certain() {
        let of = |code, message: &str| to_fault(&Status::new(code, message));
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(of(Code::ResourceExhausted, full), Fault::Passing(Unavailability::DiskFull));
        let many = "etcdserver: too many requests";
        assert_eq!(of(Code::ResourceExhausted, many), Fault::Passing(Unavailability::Busy));
        let no_user = of(Code::InvalidArgument, "etcdserver: user name is empty");
        assert_eq!(no_user, Fault::Refused("user name is empty".to_owned()));
        assert!(matches!(of(Code::Unimplemented, ""), Fault::Refused(_)));
        // The connection has the same codes for its own errors.
        assert_eq!(of(Code::ResourceExhausted, "h2 protocol error"), Fault::NoAnswer);
        assert_eq!(of(Code::PermissionDenied, "h2 protocol error"), Fault::NoAnswer);
        // It may happen later.
        assert_eq!(of(Code::Unavailable, "etcdserver: request timed out"), Fault::NoAnswer);
        let long = of(Code::InvalidArgument, &format!("etcdserver: {}", "é".repeat(4096)));
        assert!(matches!(long, Fault::Refused(why) if why.chars().count() == MAX_WHY_CHARS));
    }

    #[test]
    fn answers_of_another_cluster_are_refused() {
        let client = Client::new("127.0.0.1:1,127.0.0.1:2", Duration::from_secs(1)).unwrap();
        let from = |cluster_id| TxnResponse { header: Some(ResponseHeader { cluster_id }), succeeded: true };
        for cluster in [7, 7] {
            assert!(client.0.of_this_cluster(from(cluster)).is_ok());
        }
        assert!(matches!(client.0.of_this_cluster(from(8)), Err(Fault::Refused(_))));
        assert!(client.0.of_this_cluster(from(7)).is_ok());
    }

    #[test]
    fn requests_have_a_bound() {
        let client = Client::new("127.0.0.1:1", Duration::from_secs(20)).unwrap();
        let taken = client.0.requests.clone().try_acquire_many_owned(MAX_REQUESTS as u32).unwrap();
        let asked = client.range(RangeRequest::default());
        let answer = Builder::new_current_thread().build().unwrap().block_on(asked);
        assert_eq!(answer, Err(Fault::Passing(Unavailability::Busy)));
        drop(taken);
    }
}

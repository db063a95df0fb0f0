//! A store whose requests run on threads of their own, so that no disk and no network ever keeps the node's thread waiting.
#![allow(clippy::disallowed_methods)] // Threads and real time: this is about real disks and networks. The simulator never comes here.

use std::future::Future;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use atoll_core::{BoxFuture, Ticket, ticket};
use bytes::Bytes;
use object_store::ObjectStore;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::{Put, Store, StoreError, Tag, requests};
use crate::Location;
use crate::opened::Opened;

/// Maximum number of requests of a store under way. Each may hold an object in memory.
const MAX_REQUESTS: usize = 32;
/// Threads that wait for files.
const FILE_THREADS: usize = 8;

/// The threads of all object stores of the process. None if the system gives no thread. It starts with the first request to a real store.
static THREADS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).max_blocking_threads(FILE_THREADS).thread_name("object-store");
    builder.enable_all().build().ok()
});

/// The store at a URL.
#[derive(Clone, Debug)]
pub struct Threaded(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    location: Location,
    /// How long a request may take.
    timeout: Duration,
    /// Opened by the first request, on its thread: the environment and certificates are read from the disk.
    opened: OnceLock<Result<Opened, StoreError>>,
    requests: Arc<Semaphore>,
}

impl Threaded {
    /// Returns the store at a location. Cheap: nothing is opened yet.
    pub fn new(location: Location, timeout: Duration) -> Self {
        let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
        Threaded(Arc::new(Shared { location, timeout, opened: OnceLock::new(), requests }))
    }

    /// Starts a request on the threads. It ends with its timeout, so the bound on requests also holds for those that nobody awaits.
    fn start<T, F>(
        &self,
        request: impl FnOnce(Arc<dyn ObjectStore>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (Some(threads), Ok(permit)) = (&*THREADS, self.0.requests.clone().try_acquire_owned()) else {
            return Box::pin(std::future::ready(Err(StoreError::Busy)));
        };
        let shared = self.0.clone();
        let (done, wait): (_, Ticket<Result<T, StoreError>>) = ticket();
        threads.spawn(async move {
            let opened = shared.opened.get_or_init(|| Opened::at(&shared.location, shared.timeout));
            let work = async {
                let store = opened.as_ref().map_err(|error| *error)?.for_request().await?;
                request(store).await
            };
            let answer = tokio::time::timeout(shared.timeout, work).await;
            drop(permit);
            done.complete(answer.unwrap_or(Err(StoreError::NoAnswer)));
        });
        Box::pin(async move { wait.await.unwrap_or(Err(StoreError::NoAnswer)) })
    }
}

impl Store for Threaded {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.start(move |store| requests::put(store, name, bytes, how))
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        self.start(move |store| requests::get(store, name, most))
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        self.start(move |store| requests::get_tagged(store, name))
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.start(move |store| requests::delete(store, names))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        match &*THREADS {
            Some(threads) => drop(threads.spawn_blocking(work)),
            None => work(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Scheme;

    fn wait<T>(f: impl Future<Output = T>) -> T {
        Builder::new_current_thread().build().unwrap().block_on(f)
    }

    #[test]
    fn files_are_put_once_and_read_back_and_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let location = Location::parse(&format!("file://{}", directory.path().display())).unwrap();
        let store = Threaded::new(location.clone(), Duration::from_secs(20));
        let name = |name: &str| format!("{}/{name}", location.prefix);
        let put = |n: &str, text: &'static str, how| {
            wait(store.put(name(n), Bytes::from_static(text.as_bytes()), how))
        };
        assert_eq!(put("log/a", "first", Put::Create), Ok(true));
        assert_eq!(put("log/a", "second", Put::Create), Ok(false));
        assert_eq!(wait(store.get(name("log/a"), None)), Ok(Some("first".into())));
        assert_eq!(wait(store.get(name("log/a"), Some(3))), Ok(Some("fir".into())));
        assert_eq!(wait(store.get(name("log/a"), Some(300))), Ok(Some("first".into())));
        assert_eq!(put("log/a", "third", Put::Replace), Ok(true));
        assert_eq!(wait(store.get(name("log/a"), None)), Ok(Some("third".into())));
        assert_eq!(wait(store.delete(vec![name("log/b"), name("log/a")])), Ok(()));
        assert_eq!(wait(store.get(name("log/a"), None)), Ok(None));
        let again = Threaded::new(location.clone(), Duration::from_secs(20));
        assert_eq!(wait(again.get(name("log/a"), None)), Ok(None));
    }

    #[test]
    fn work_and_requests_run_on_other_threads() {
        let location = Location { scheme: Scheme::Memory, prefix: String::new() };
        let store = Threaded::new(location, Duration::from_secs(20));
        assert_eq!(
            wait(store.get("a".to_owned(), None)),
            Err(StoreError::Elsewhere),
            "tests alone have memory"
        );
        let (done, there) = ticket();
        store.compute(Box::new(move || done.complete(std::thread::current().id())));
        assert_ne!(wait(there).unwrap(), std::thread::current().id());
    }

    #[test]
    fn requests_have_a_bound() {
        let location = Location { scheme: Scheme::Memory, prefix: String::new() };
        let store = Threaded::new(location, Duration::from_secs(20));
        let taken = store.0.requests.clone().try_acquire_many_owned(MAX_REQUESTS as u32).unwrap();
        assert_eq!(wait(store.get("a".to_owned(), None)), Err(StoreError::Busy));
        drop(taken);
        assert_eq!(wait(store.get("a".to_owned(), None)), Err(StoreError::Elsewhere));
    }
}

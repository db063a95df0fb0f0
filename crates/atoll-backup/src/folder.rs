//! The names of the objects of a backup, and requests that are repeated until they have an answer.
//!
//! | name, below `URL/backup/CLUSTER/LOG/` | what it is | written | deleted |
//! | --- | --- | --- | --- |
//! | `about` | whose backup it is | once, with a condition | never |
//! | `entries/NUMBER` | a run of entries | once, with a condition | behind the first kept snapshot |
//! | `snapshots/NUMBER/attempt-N` | an attempt to ship a snapshot | once, with a condition | with it |
//! | `snapshots/NUMBER/N-PIECE` | a piece of an attempt | by its writer | with it |
//! | `snapshots/NUMBER/head` | the snapshot | once, with a condition, after its pieces | with it, last |
//! | `snapshots/NUMBER/gone` | the snapshot is given up | before its objects are deleted | never |

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::BoxFuture;
use atoll_core::testing::hit;
use atoll_object_store::{Location, Put, Scheme, Store, StoreError, Threaded, join};
use bytes::Bytes;

use crate::error::{BackupError, Damaged};
use crate::format::{self, Head, Kind, MOST_HEAD_BYTES, Place};

/// How often a request is made before its error is reported.
const ATTEMPTS: u32 = 5;
/// The pause before the second attempt. It doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits. Nodes wait on their executor, and programs without a node on their runtime.
pub type Nap = Arc<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// The place of one backup.
#[derive(Clone)]
pub struct Folder {
    store: Arc<dyn Store>,
    below: String,
    pub(crate) cluster: String,
    pub(crate) log: String,
    nap: Nap,
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.below, self.store)
    }
}

/// What came of a conditional put.
pub(crate) enum Created {
    /// The object is ours.
    Ours,
    /// Somebody else has put another one.
    Theirs,
}

impl Folder {
    /// Returns the place of the backup of a log at a URL. Nothing is contacted yet.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn at(url: &str, cluster: &str, log: &str, nap: Nap) -> Result<Self, BackupError> {
        let location = Location::parse(url)?;
        if location.scheme == Scheme::Memory {
            return Err(BackupError::Url(atoll_object_store::BadUrl));
        }
        let prefix = location.prefix.clone();
        let store = Arc::new(Threaded::new(location, REQUEST_TIMEOUT));
        Ok(Self::with_store(store, &prefix, cluster, log, nap))
    }

    /// The same, in this store.
    pub fn with_store(store: Arc<dyn Store>, prefix: &str, cluster: &str, log: &str, nap: Nap) -> Self {
        let below = join(prefix, &format!("backup/{cluster}/{log}"));
        Folder { store, below, cluster: cluster.to_owned(), log: log.to_owned(), nap }
    }

    pub(crate) fn about(&self) -> String {
        format!("{}/about", self.below)
    }

    pub(crate) fn run(&self, number: u64) -> String {
        format!("{}/entries/{number:016x}", self.below)
    }

    pub(crate) fn head(&self, snapshot: u64) -> String {
        format!("{}/snapshots/{snapshot:016x}/head", self.below)
    }

    pub(crate) fn gone(&self, snapshot: u64) -> String {
        format!("{}/snapshots/{snapshot:016x}/gone", self.below)
    }

    pub(crate) fn attempt(&self, snapshot: u64, attempt: u64) -> String {
        format!("{}/snapshots/{snapshot:016x}/attempt-{attempt:x}", self.below)
    }

    pub(crate) fn piece(&self, snapshot: u64, attempt: u64, piece: u64) -> String {
        format!("{}/snapshots/{snapshot:016x}/{attempt:x}-{piece:08x}", self.below)
    }

    /// Runs a computation where it keeps nobody waiting.
    pub(crate) fn spawn(&self, work: Box<dyn FnOnce() + Send>) {
        self.store.compute(work);
    }

    /// Waits before the next attempt.
    async fn pause(&self, attempt: u32) {
        (self.nap)(FIRST_PAUSE * 2u32.pow(attempt)).await;
    }

    /// Reads an object, or its beginning.
    pub(crate) async fn get(&self, name: &str, most: Option<u64>) -> Result<Option<Bytes>, StoreError> {
        for attempt in 0.. {
            match self.store.get(name.to_owned(), most).await {
                Err(error) if error.passes() && attempt + 1 < ATTEMPTS => self.pause(attempt).await,
                result => return result,
            }
        }
        Err(StoreError::NoAnswer)
    }

    /// Reads an object, or its beginning, and decodes it. What is altered on its way is not what the store has, so an object that seems
    /// damaged is read once more.
    pub(crate) async fn read<T>(
        &self,
        name: &str,
        most: Option<u64>,
        decode: impl Fn(&Bytes) -> Result<T, Damaged>,
    ) -> Result<Option<T>, BackupError> {
        let Some(bytes) = self.get(name, most).await? else { return Ok(None) };
        if let Ok(object) = decode(&bytes) {
            return Ok(Some(object));
        }
        hit("backup.read_again");
        let Some(bytes) = self.get(name, most).await? else { return Ok(None) };
        let damaged = |error| BackupError::Damaged { name: name.to_owned(), error };
        decode(&bytes).map(Some).map_err(damaged)
    }

    /// Reads the head of an object.
    pub(crate) async fn get_head<M: Kind>(
        &self,
        name: &str,
        place: Place,
    ) -> Result<Option<Head<M>>, BackupError> {
        self.read(name, Some(MOST_HEAD_BYTES), |bytes| format::head::<M>(bytes, place)).await
    }

    /// Returns whether there is an object.
    pub(crate) async fn has(&self, name: &str) -> Result<bool, BackupError> {
        Ok(self.get(name, Some(1)).await?.is_some())
    }

    /// Returns whether there is an object, or was a moment ago ([`Store::look`]).
    pub(crate) async fn look(&self, name: &str) -> Result<bool, BackupError> {
        for attempt in 0.. {
            match self.store.look(name.to_owned()).await {
                Err(error) if error.passes() && attempt + 1 < ATTEMPTS => self.pause(attempt).await,
                result => return Ok(result?),
            }
        }
        Err(StoreError::NoAnswer.into())
    }

    /// Puts an object unless there is another one with its name. No answer of the store leaves it open what happened.
    pub(crate) async fn create(&self, name: &str, bytes: &Bytes) -> Result<Created, StoreError> {
        let mut last = StoreError::NoAnswer;
        for attempt in 0..ATTEMPTS {
            match self.store.put(name.to_owned(), bytes.clone(), Put::Create).await {
                Ok(true) => return Ok(Created::Ours),
                // An earlier attempt may have succeeded, and S3 also says so while two puts meet.
                Ok(false) => match self.get(name, None).await? {
                    Some(found) if found == *bytes => return Ok(Created::Ours),
                    Some(_) => return Ok(Created::Theirs),
                    None => {}
                },
                Err(error) if error.passes() => last = error,
                Err(error) => return Err(error),
            }
            self.pause(attempt).await;
        }
        Err(last)
    }

    /// Puts an object in place of what has its name.
    pub(crate) async fn replace(&self, name: &str, bytes: &Bytes) -> Result<(), StoreError> {
        let mut last = StoreError::NoAnswer;
        for attempt in 0..ATTEMPTS {
            match self.store.put(name.to_owned(), bytes.clone(), Put::Replace).await {
                Ok(_) => return Ok(()),
                Err(error) if error.passes() => last = error,
                Err(error) => return Err(error),
            }
            self.pause(attempt).await;
        }
        Err(last)
    }

    /// Deletes objects. Those that do not exist are deleted already.
    pub(crate) async fn delete(&self, names: Vec<String>) -> Result<(), StoreError> {
        for attempt in 0.. {
            match self.store.delete(names.clone()).await {
                Err(error) if error.passes() && attempt + 1 < ATTEMPTS => self.pause(attempt).await,
                result => return result,
            }
        }
        Err(StoreError::NoAnswer)
    }
}

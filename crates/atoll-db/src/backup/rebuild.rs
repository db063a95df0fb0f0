//! Makes a state again from a snapshot and entries. No log and no node are involved: the caller delivers the entries in order.

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_contract::application::{Application, View};
use atoll_core::LevelRange;

use super::LoggedEntry;
use crate::engine::{Committer, Here, Options};
use crate::hosted::Applications;
use crate::replica::{FIRST, Halt, HashAt, Reads, Replica, StateRecord, Stop, hash_of};
use crate::store::{Store, StoreError};
use crate::transfer::{Chunk, ChunkError};

/// Why a state cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// The local store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A piece of the snapshot is damaged.
    #[error("a piece of the snapshot: {0}")]
    Chunk(#[from] ChunkError),
    /// The pieces do not follow each other.
    #[error("the keys of the snapshot are out of order")]
    Order,
    /// The snapshot is not the state that it claims to be.
    #[error(
        "the snapshot has the state below {found}, hash {hash:032x}; expected is {below}, hash {expected:032x}"
    )]
    Snapshot {
        /// The position in the snapshot.
        found: LogPos,
        /// The hash of what is in it.
        hash: u128,
        /// The expected position.
        below: LogPos,
        /// The expected hash.
        expected: u128,
    },
    /// An entry cannot be applied.
    #[error("{0}")]
    Halted(#[from] Halt),
}

impl RebuildError {
    /// Returns whether the snapshot is not what it should be, so that another one may do.
    pub fn is_of_the_snapshot(&self) -> bool {
        matches!(self, RebuildError::Chunk(_) | RebuildError::Order | RebuildError::Snapshot { .. })
    }
}

/// A store that is being filled with a snapshot.
pub struct Filling {
    store: Box<dyn Store>,
    reads: LevelRange,
    after: Bytes,
    hash: u128,
}

impl Filling {
    /// Begins. The store must be empty.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn begin(mut store: Box<dyn Store>, reads: LevelRange) -> Result<Self, RebuildError> {
        store.begin_refill()?;
        Ok(Filling { store, reads, after: Bytes::new(), hash: 0 })
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// The piece is damaged, does not follow the last one, or cannot be stored.
    pub fn add(&mut self, chunk: Bytes) -> Result<(), RebuildError> {
        let items = Chunk::decode_from_peer(chunk, self.reads)?.0;
        for (key, value) in &items {
            if *key <= self.after {
                return Err(RebuildError::Order);
            }
            self.after = key.clone();
            if key[..] >= *FIRST {
                self.hash = self.hash.wrapping_add(hash_of(key, value));
            }
        }
        Ok(self.store.refill(items)?)
    }

    /// Gives up what was added, for another snapshot.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn begin_again(&mut self) -> Result<(), RebuildError> {
        self.store.begin_refill()?;
        (self.after, self.hash) = (Bytes::new(), 0);
        Ok(())
    }

    /// Ends: the store has the snapshot. Checks that it is the state below `below` with the hash `expected`.
    ///
    /// # Errors
    /// It is not, or the store failed.
    pub fn finish(&mut self, below: LogPos, expected: u128) -> Result<(), RebuildError> {
        self.store.finish_refill()?;
        let record = StateRecord::read(&*self.store.snapshot())?;
        let hash = self.hash;
        if record.next != below || hash != expected || record.hash != expected {
            return Err(RebuildError::Snapshot { found: record.next, hash, below, expected });
        }
        Ok(())
    }

    /// Returns the state of the snapshot, once it is finished.
    ///
    /// # Errors
    /// An application cannot read it, or the store failed.
    pub fn open(self, apps: Applications, options: &Options) -> Result<Replaying, RebuildError> {
        let Filling { store, reads, .. } = self;
        let (replica, _) = Replica::open(apps, reads, store.snapshot())?;
        let here = Here::new(store, options)?;
        Ok(Replaying { replica, here, commit_above: options.catch_up_commit_bytes })
    }
}

/// A state to which entries are applied.
pub struct Replaying {
    replica: Replica,
    here: Here,
    commit_above: usize,
}

impl Replaying {
    /// Returns the position of the next entry.
    pub fn next(&self) -> LogPos {
        self.replica.next()
    }

    /// Returns the time of the last entry, in milliseconds since the Unix epoch.
    pub fn time_ms(&self) -> u64 {
        self.replica.time_ms()
    }

    /// Returns the hash of the state, without the engine's own record.
    pub fn hash(&self) -> HashAt {
        self.replica.hash_now()
    }

    /// Returns the hash of the state as replicas show it to each other and to operators, with the engine's own record.
    pub fn shown_hash(&self) -> u128 {
        self.replica.shown_hash()
    }

    /// Applies the next entry.
    ///
    /// # Errors
    /// It cannot be applied, or the store failed.
    pub fn apply(&mut self, entry: LoggedEntry) -> Result<(), RebuildError> {
        apply(&mut self.replica, entry)?;
        if self.replica.active_bytes() >= self.commit_above {
            self.commit(false)?;
        }
        Ok(())
    }

    fn commit(&mut self, durable: bool) -> Result<(), RebuildError> {
        self.here.start(self.replica.freeze(), durable);
        match self.here.outcome(true) {
            Some(Ok(done)) => {
                self.replica.committed(done.base);
                drop(self.replica.publish());
                Ok(())
            }
            Some(Err(failed)) => Err(failed.error.into()),
            None => Ok(()),
        }
    }

    /// Makes the state durable. What is applied afterwards is never stored.
    ///
    /// # Errors
    /// The store failed.
    pub fn finish(mut self) -> Result<Beyond, RebuildError> {
        self.commit(true)?;
        let Replaying { replica, here, .. } = self;
        Ok(Beyond { replica, _here: here })
    }
}

/// A state in memory on top of one that is stored. It serves to find out whether the stored one becomes what it should.
pub struct Beyond {
    replica: Replica,
    _here: Here,
}

impl Beyond {
    /// Applies the next entry, in memory only.
    ///
    /// # Errors
    /// It cannot be applied.
    pub fn apply(&mut self, entry: LoggedEntry) -> Result<(), RebuildError> {
        apply(&mut self.replica, entry)
    }

    /// Returns the hash of the state, without the engine's own record.
    pub fn hash(&self) -> HashAt {
        self.replica.hash_now()
    }

    /// Returns the approximate memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.replica.active_bytes()
    }
}

/// Returns what a store has committed, as an application sees it.
///
/// # Errors
/// The store cannot be read, or was written by a later program.
pub fn committed_view<A: Application>(
    app: A,
    reads: LevelRange,
    store: &dyn Store,
) -> Result<View, StoreError> {
    let mut apps = Applications::new();
    apps.add(app);
    let (_, published) = Replica::open(apps, reads, store.snapshot())?;
    Ok(View::new(published, A::ID))
}

fn apply(replica: &mut Replica, entry: LoggedEntry) -> Result<(), RebuildError> {
    let applied = replica.apply(&entry.into(), Reads::Anywhere);
    replica.send_events();
    match applied {
        Ok(_) => Ok(()),
        Err(Stop::Halt(halt)) => Err(halt.into()),
        // Reads may go anywhere.
        Err(Stop::NotInMemory) => Err(StoreError::passing("read", "its reader is gone").into()),
    }
}

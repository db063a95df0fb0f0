//! The objects of one Loglet. What is said about an index counts only if the mark of its block says afterwards that the block is not
//! deleted (object-O3), so every read of an index goes through here.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, ticket};
use atoll_loglet_store::cache::Cache;
use bytes::Bytes;
use futures_util::future::join_all;

use crate::mutants;
use crate::names::{self, Names};
use crate::object::{Damaged, Entries, HEAD_BYTES, Head, Kind, LogObject, Note};
use crate::store::{Put, Store, StoreError};

/// Objects of at most this many bytes are compressed and decompressed on the node's thread: that costs less than to hand them over.
const SMALL_BYTES: usize = 16 * 1024;
/// The most objects in one request to delete.
const DELETE_AT_ONCE: u64 = 256;

/// Why something about a Loglet's objects could not be found out or done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The block of the index is deleted: what the caller knows is out of date.
    #[error("the block is deleted")]
    Deleted,
    /// The Loglet is deleted.
    #[error("the loglet is deleted")]
    Gone,
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

impl Fault {
    /// Returns whether the same may succeed soon.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Fault::Store(error) => error.passes(),
            Fault::Deleted => true,
            Fault::Gone | Fault::Damaged(_) => false,
        }
    }
}

/// What is at an index.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    Entries(Arc<Entries>),
    Seal { tail: Offset },
    Absent,
}

/// A family of objects with consecutive numbers, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// The objects of entries. The value of each is the end of its entries.
    Log,
    /// The marks of deleted blocks. The value of each is the end of its block.
    Deleted,
    /// The trims. The value of each is the offset.
    Trims,
}

/// The objects of one Loglet.
#[derive(Debug)]
pub(crate) struct Shelf {
    env: Env,
    id: LogletId,
    store: Arc<dyn Store>,
    names: Names,
    token: String,
    block_objects: u64,
    /// How long a request may take. The store has a limit of its own; this one is for a store that does not keep it.
    patience: Duration,
    cache: Arc<Cache<Entries>>,
}

/// Where the objects of a Loglet are, as its configuration says.
pub(crate) struct Place<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) token: u64,
    pub(crate) block_objects: u32,
}

impl Shelf {
    pub(crate) fn new(
        env: Env,
        id: LogletId,
        store: Arc<dyn Store>,
        place: &Place<'_>,
        patience: Duration,
        cache: Arc<Cache<Entries>>,
    ) -> Self {
        let names = Names::new(place.prefix, id);
        let token = names::token(place.prefix, place.token);
        let block_objects = u64::from(place.block_objects.max(1));
        Shelf { env, id, store, names, token, block_objects, patience, cache }
    }

    /// Returns the block of an index.
    pub(crate) fn block(&self, index: u64) -> u64 {
        index / self.block_objects
    }

    /// Returns whether this object is in the memory of the node.
    pub(crate) fn has(&self, index: u64) -> bool {
        self.cache.get(self.id, index).is_some()
    }

    /// Returns how many objects of this size fit into half of the memory for objects: others must not push them out before they are read.
    pub(crate) fn fit(&self, object_bytes: u32) -> u64 {
        (self.cache.limit_bytes() / 2 / object_bytes.max(1) as usize) as u64
    }

    /// Returns the first index of a block.
    pub(crate) fn block_start(&self, block: u64) -> u64 {
        block.saturating_mul(self.block_objects)
    }

    async fn in_time<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.env.within(self.patience, request).await.unwrap_or(Err(StoreError::NoAnswer))
    }

    async fn get(&self, name: String, most: Option<u64>) -> Result<Option<Bytes>, StoreError> {
        self.in_time(self.store.get(name, most)).await
    }

    /// Reads an object, or its beginning, and decodes it. What is altered on its way is not what the store has, so an object that seems
    /// damaged is read once more.
    async fn read<T: Send + 'static>(
        &self,
        name: String,
        most: Option<u64>,
        decode: impl Fn(&Bytes) -> Result<T, Damaged> + Copy + Send + 'static,
    ) -> Result<Option<T>, Fault> {
        let mut is_second = false;
        while let Some(bytes) = self.get(name.clone(), most).await? {
            match self.compute(bytes.len(), move || decode(&bytes)).await? {
                Err(_) if !is_second => hit("object.read_again"),
                decoded => return Ok(Some(decoded?)),
            }
            is_second = true;
        }
        Ok(None)
    }

    async fn put(&self, name: String, bytes: Bytes, how: Put) -> Result<bool, StoreError> {
        self.in_time(self.store.put(name, bytes, how)).await
    }

    /// Runs a computation over this many bytes where it keeps nobody waiting.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        if bytes <= SMALL_BYTES {
            return Ok(work());
        }
        let (done, wait) = ticket();
        self.store.compute(Box::new(move || done.complete(work())));
        wait.await.map_err(|_| StoreError::NoAnswer)
    }

    /// Returns an error if this node does not see the store that the Loglet was made in.
    pub(crate) async fn check_store(&self) -> Result<(), StoreError> {
        let found = self.get(self.token.clone(), Some(1)).await?;
        found.map(|_| ()).ok_or(StoreError::Elsewhere)
    }

    /// Takes an index for an object. False proves nothing ([`Store::put`]); [`Shelf::look`] then tells what is there.
    pub(crate) async fn take(&self, index: u64, bytes: Bytes) -> Result<bool, StoreError> {
        let how = if mutant(mutants::OBJECT_OVERWRITES) { Put::Replace } else { Put::Create };
        self.put(self.names.log(index), bytes, how).await
    }

    /// Returns what is at an index, now or at some time since the call.
    pub(crate) async fn look(&self, index: u64) -> Result<Look, Fault> {
        if let Some(kept) = self.cache.get(self.id, index) {
            return Ok(Look::Entries(kept));
        }
        let id = self.id;
        let decode = move |bytes: &Bytes| LogObject::decode(bytes, id, index);
        let read = self.read(self.names.log(index), None, decode).await;
        if !matches!(read, Err(Fault::Store(_))) {
            self.check_kept(index).await?;
        }
        let Some(object) = read? else { return Ok(Look::Absent) };
        Ok(match object {
            LogObject::Entries(entries) => {
                let entries = Arc::new(entries);
                self.keep(entries.clone());
                Look::Entries(entries)
            }
            LogObject::Seal { tail } => Look::Seal { tail },
        })
    }

    /// Brings objects that are known to be in the log into memory, at the same time: one after the other, each would wait for the store.
    /// They are of one block, so its mark is read once, after all of them (object-O3). Those that do not come are left to [`Shelf::look`].
    pub(crate) async fn fetch(&self, indexes: Range<u64>) -> Result<(), Fault> {
        let missing = indexes.filter(|index| self.cache.get(self.id, *index).is_none());
        let fetches = missing.map(async |index| (index, self.get(self.names.log(index), None).await));
        let got = join_all(fetches).await;
        let Some((first, _)) = got.first() else { return Ok(()) };
        self.check_kept(*first).await?;
        let id = self.id;
        for (index, bytes) in got {
            let Ok(Some(bytes)) = bytes else { continue };
            let object = self.compute(bytes.len(), move || LogObject::decode(&bytes, id, index)).await?;
            if let Ok(LogObject::Entries(entries)) = object {
                self.keep(Arc::new(entries));
            }
        }
        Ok(())
    }

    /// Remembers an object that is in the log for sure.
    pub(crate) fn keep(&self, entries: Arc<Entries>) {
        let bytes = entries.bytes();
        self.cache.put(self.id, entries.index, entries, bytes);
    }

    /// Returns whether there is an object at an index. It may be one that does not count: this is a hint.
    pub(crate) async fn seems_taken(&self, index: u64) -> Result<bool, StoreError> {
        Ok(self.get(self.names.log(index), Some(HEAD_BYTES as u64)).await?.is_some())
    }

    /// Returns an error if the block of an index is deleted.
    async fn check_kept(&self, index: u64) -> Result<(), Fault> {
        match self.mark(self.block(index)).await? {
            Some(Note::Deleted(_)) => Err(Fault::Deleted),
            _ => Ok(()),
        }
    }

    /// Returns the mark of a block.
    pub(crate) async fn mark(&self, block: u64) -> Result<Option<Note>, Fault> {
        self.note(self.names.mark(block), block).await
    }

    async fn note(&self, name: String, number: u64) -> Result<Option<Note>, Fault> {
        let id = self.id;
        self.read(name, None, move |bytes| Note::decode(bytes, id, number)).await
    }

    /// Tells appenders that somebody wants to seal, in the mark of a block.
    pub(crate) async fn ask_for_seal(&self, block: u64) -> Result<(), StoreError> {
        let bytes = Note::Sealing.encode(self.id, block);
        self.put(self.names.mark(block), bytes, Put::Create).await.map(|_| ())
    }

    /// Adds a trim with this number. False if there is one already.
    pub(crate) async fn add_trim(&self, number: u64, to: Offset) -> Result<bool, StoreError> {
        self.put(self.names.trim(number), Note::Trim(to).encode(self.id, number), Put::Create).await
    }

    /// Deletes a block, which ended at this offset: first says so, then deletes the objects.
    pub(crate) async fn delete_block(&self, block: u64, end: Offset) -> Result<(), StoreError> {
        let mark = Note::Deleted(end).encode(self.id, block);
        self.put(self.names.mark(block), mark, Put::Replace).await?;
        let start = self.block_start(block);
        self.delete_rows(start, start.saturating_add(self.block_objects), |index| self.names.log(index)).await
    }

    /// Deletes the trims below this number.
    pub(crate) async fn delete_trims(&self, below: u64) -> Result<(), StoreError> {
        self.delete_rows(0, below, |number| self.names.trim(number)).await
    }

    async fn delete_rows(&self, from: u64, to: u64, name: impl Fn(u64) -> String) -> Result<(), StoreError> {
        let mut at = from;
        while at < to {
            let upto = to.min(at + DELETE_AT_ONCE);
            let names = (at..upto).map(&name).collect();
            self.in_time(self.store.delete(names)).await?;
            at = upto;
        }
        Ok(())
    }

    /// Says that the Loglet, with the seal at this index, is deleted. Whoever says so first decides which index.
    pub(crate) async fn set_gone(&self, seal: u64) -> Result<(), StoreError> {
        self.put(self.names.gone(), Note::Gone(seal).encode(self.id, 0), Put::Create).await.map(|_| ())
    }

    /// Returns where the seal of this Loglet was, if it is deleted.
    pub(crate) async fn gone(&self) -> Result<Option<u64>, Fault> {
        match self.note(self.names.gone(), 0).await? {
            Some(Note::Gone(seal)) => Ok(Some(seal)),
            Some(_) => Err(Damaged("it is not what its name says").into()),
            None => Ok(None),
        }
    }

    /// Returns the value of a row at an index; None at and behind its end.
    pub(crate) async fn value(&self, row: Row, at: u64) -> Result<Option<Offset>, Fault> {
        match row {
            Row::Log => {
                let id = self.id;
                let decode = move |bytes: &Bytes| Head::decode(bytes, id, at);
                let read = self.read(self.names.log(at), Some(HEAD_BYTES as u64), decode).await;
                if !matches!(read, Err(Fault::Store(_))) {
                    self.check_kept(at).await?;
                }
                let Some(head) = read? else { return Ok(None) };
                Ok((head.kind == Kind::Entries).then(|| head.end()))
            }
            Row::Deleted => match self.mark(at).await? {
                Some(Note::Deleted(end)) => Ok(Some(end)),
                _ => Ok(None),
            },
            Row::Trims => match self.note(self.names.trim(at), at).await? {
                Some(Note::Trim(to)) => Ok(Some(to)),
                Some(_) => Err(Damaged("it is not what its name says").into()),
                None => Ok(None),
            },
        }
    }

    /// Returns the last index of a row from this one on, and its value; None if the row ends before. It takes two requests for each
    /// doubling of the distance, and never a list: a row has no gaps, so an object proves that there were all below it.
    pub(crate) async fn last(&self, row: Row, from: u64) -> Result<Option<(u64, Offset)>, Fault> {
        let Some(value) = self.value(row, from).await? else { return Ok(None) };
        let (mut last, mut step) = ((from, value), 1);
        // The lowest index that was seen to be behind the end.
        let mut behind = None;
        loop {
            let at = match behind {
                None => last.0.saturating_add(step),
                Some(behind) if behind - last.0 <= 1 => return Ok(Some(last)),
                Some(behind) => last.0 + (behind - last.0) / 2,
            };
            match self.value(row, at).await? {
                Some(value) => (last, step) = ((at, value), step.saturating_mul(2)),
                None => behind = Some(at),
            }
        }
    }
}

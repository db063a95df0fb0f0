//! Registers in an object store: the MetaStore of Delos on conditional puts (virtuallog §8). Each is an object (`atoll-register-store`).
//!
//! | name, below `PREFIX/registers/` | what it is |
//! | --- | --- |
//! | `at/NAME` | a register; replaced on the condition that it still has the tag that was read |
//! | `names/SHARD` | names of registers, so that nobody has to list objects: a listing may lag behind |
//!
//! A name is added before its register is created, and never removed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::register::Unavailability;
use atoll_contract::{Listed, Register, RegisterError, Registers};
use atoll_core::{BoxFuture, Decode, Encode, Env};
use atoll_register_store::{Cell, CellRegisters, Cells, Fault, Listing, Options};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;

use crate::config::{Location, Scheme};
use crate::names::join;
use crate::store::{Put, Store, StoreError, Tag, Threaded};

/// The number of objects with names. Each is replaced when a name is added.
const SHARDS: u32 = 16;
/// The most names in one of them.
const MAX_NAMES: usize = 4096;
/// The version of their format.
const FORMAT: u8 = 1;
/// Bytes before the names: the version, and a checksum.
const HEAD_BYTES: usize = 1 + 4;
/// How many registers a listing reads at once.
const LIST_AT_ONCE: usize = 16;

/// Registers below one prefix of an object store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectRegisters(CellRegisters<Objects>);

impl ObjectRegisters {
    /// Opens the registers below a prefix of a store, for the node of `env`. A request takes `patience` at most. Nothing is contacted yet.
    pub fn new(env: Env, store: Arc<dyn Store>, prefix: &str, patience: Duration, options: Options) -> Self {
        let objects = Objects { env: env.clone(), store, below: join(prefix, "registers"), patience };
        ObjectRegisters(CellRegisters::new(env, objects, options))
    }

    /// Opens the registers at a location. Fails if its kind of store cannot replace an object on a condition: a directory of files cannot.
    pub fn connect(
        env: Env,
        location: &Location,
        patience: Duration,
        options: Options,
    ) -> Result<Self, StoreError> {
        if location.scheme == Scheme::File {
            return Err(StoreError::Unsupported);
        }
        let store = Arc::new(Threaded::new(location.clone(), patience));
        Ok(Self::new(env, store, &location.prefix, patience, options))
    }
}

impl Registers for ObjectRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        self.0.register(name)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        self.0.list(prefix)
    }
}

/// The objects of registers, as cells.
struct Objects {
    env: Env,
    store: Arc<dyn Store>,
    below: String,
    patience: Duration,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.below, self.store)
    }
}

fn to_fault(error: StoreError) -> Fault {
    match error {
        StoreError::Busy => Fault::Passing(Unavailability::Busy),
        StoreError::Full | StoreError::NoAnswer => Fault::NoAnswer,
        StoreError::Credentials
        | StoreError::Elsewhere
        | StoreError::Unsupported
        | StoreError::NotAllowed => Fault::Refused(error.to_string()),
    }
}

/// Returns a number that another value of an object does not have, if its tag is one: S3 calls objects by a checksum of 128 bits.
fn to_mark(tag: &Tag) -> Option<u128> {
    let e_tag = tag.e_tag.as_deref()?.trim_matches('"');
    u128::from_str_radix(e_tag, 16).ok()
}

/// The names of one shard.
#[derive(Debug, Default, PartialEq)]
struct Names(BTreeSet<String>);

impl Names {
    fn to_bytes(&self) -> Bytes {
        let names = self.0.iter().cloned().collect::<Vec<String>>().to_bytes();
        let mut out = BytesMut::with_capacity(HEAD_BYTES + names.len());
        out.put_u8(FORMAT);
        out.put_u32_le(crc32c::crc32c(&names));
        out.put_slice(&names);
        out.freeze()
    }

    fn read(bytes: Bytes) -> Result<Self, Fault> {
        let damaged = |why: &str| Fault::Refused(format!("the names of registers {why}"));
        let Some((head, _)) = bytes.split_at_checked(HEAD_BYTES) else { return Err(damaged("are cut off")) };
        let rest = bytes.slice(HEAD_BYTES..);
        if head[0] != FORMAT {
            return Err(damaged("have a format that this version does not read"));
        }
        if head[1..] != crc32c::crc32c(&rest).to_le_bytes() {
            return Err(damaged("do not fit their checksum"));
        }
        let names = Vec::<String>::from_bytes(rest).map_err(|error| damaged(&error.to_string()))?;
        Ok(Names(names.into_iter().collect()))
    }
}

impl Objects {
    fn register(&self, name: &str) -> String {
        format!("{}/at/{name}", self.below)
    }

    fn shard(&self, shard: u32) -> String {
        format!("{}/names/{shard:02x}", self.below)
    }

    async fn get(&self, object: String) -> Result<Option<(Bytes, Tag)>, Fault> {
        let got = self.env.within(self.patience, self.store.get_tagged(object)).await;
        got.unwrap_or(Err(StoreError::NoAnswer)).map_err(to_fault)
    }

    async fn put(&self, object: String, bytes: Bytes, expected: Option<Tag>) -> Result<bool, Fault> {
        let how = expected.map_or(Put::Create, Put::Update);
        let put = self.env.within(self.patience, self.store.put(object, bytes, how)).await;
        put.unwrap_or(Err(StoreError::NoAnswer)).map_err(to_fault)
    }

    /// Adds a name, unless it is there already. An error says nothing about the register: nothing was done to that.
    async fn add_name(&self, name: &str) -> Result<(), Fault> {
        let object = self.shard(crc32c::crc32c(name.as_bytes()) % SHARDS);
        let (mut names, tag) = match self.get(object.clone()).await.map_err(not_done)? {
            Some((bytes, tag)) => (Names::read(bytes)?, Some(tag)),
            None => (Names::default(), None),
        };
        if names.0.contains(name) {
            return Ok(());
        }
        if names.0.len() >= MAX_NAMES {
            return Err(Fault::Refused(format!(
                "there are {MAX_NAMES} registers in this part of the store already"
            )));
        }
        names.0.insert(name.to_owned());
        match self.put(object, names.to_bytes(), tag).await.map_err(not_done)? {
            true => Ok(()),
            // Somebody else was first. The caller tries again.
            false => Err(Fault::Passing(Unavailability::Busy)),
        }
    }

    async fn list_all(&self) -> Result<Listing, Fault> {
        let shards = join_all((0..SHARDS).map(|shard| self.get(self.shard(shard)))).await;
        let mut names = Vec::new();
        for shard in shards {
            if let Some((bytes, _)) = shard? {
                names.extend(Names::read(bytes)?.0);
            }
        }
        let looks = names.into_iter().map(async |name: String| {
            let got = self.get(self.register(&name)).await;
            got.map(|got| got.map(|(_, tag)| (name, to_mark(&tag))))
        });
        let mut looks = stream::iter(looks).buffer_unordered(LIST_AT_ONCE);
        let mut listed = Vec::new();
        while let Some(look) = looks.next().await {
            // A name without a register: its first write did not happen.
            listed.extend(look?);
        }
        Ok(listed)
    }
}

/// Nothing was done to a register, whatever became of its name.
fn not_done(fault: Fault) -> Fault {
    match fault {
        Fault::NoAnswer => Fault::Passing(Unavailability::NoQuorum),
        other => other,
    }
}

impl Cells for Objects {
    type Tag = Tag;

    fn read(&self, name: &str) -> BoxFuture<'_, Result<Option<Cell<Tag>>, Fault>> {
        let object = self.register(name);
        Box::pin(async move { Ok(self.get(object).await?.map(|(bytes, tag)| Cell { bytes, tag })) })
    }

    fn replace(&self, name: &str, expected: Option<Tag>, bytes: Bytes) -> BoxFuture<'_, Result<bool, Fault>> {
        let name = name.to_owned();
        Box::pin(async move {
            if expected.is_none() {
                self.add_name(&name).await?;
            }
            self.put(self.register(&name), bytes, expected).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, Fault>> {
        Box::pin(self.list_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_they_were_and_altered_ones_are_refused() {
        let names = Names(["log.2fa".to_owned(), "b".to_owned()].into());
        let bytes = names.to_bytes();
        assert_eq!(Names::read(bytes.clone()), Ok(names));
        for at in 0..bytes.len() {
            let mut altered = bytes.to_vec();
            altered[at] ^= 0x20;
            assert!(Names::read(altered.into()).is_err(), "byte {at}");
            assert!(Names::read(bytes.slice(..at)).is_err(), "the first {at} bytes");
        }
    }

    #[test]
    fn a_tag_of_128_bits_is_a_mark() {
        let tag = |e_tag: &str| Tag { e_tag: Some(e_tag.to_owned()), version: None };
        assert_eq!(to_mark(&tag("\"00000000000000000000000000000010\"")), Some(16));
        assert_eq!(to_mark(&tag("d41d8cd98f00b204e9800998ecf8427e-2")), None);
        assert_eq!(to_mark(&Tag::default()), None);
    }
}

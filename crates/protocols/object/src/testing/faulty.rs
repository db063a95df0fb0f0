//! A store that is slow, loses requests, and loses the answers to requests that were carried out. Looks may lag behind, as lists do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env, Tick};
use atoll_loglet_store::testing::{Faults, Marks, Way};
use bytes::Bytes;

use crate::store::{Put, Store, StoreError, Tag};

const MARKS: Marks = Marks {
    lost: "object.store.lost",
    unanswered: "object.store.unanswered",
    cut_off: "object.store.cut_off",
    away: "object.store.away",
    wrong: "object.store.wrong",
};

/// For so long a look may show what held before.
const LOOKS_LAG: Duration = Duration::from_secs(3);

/// When objects came and went lately, and whether they were there before. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Changes(Arc<Mutex<BTreeMap<String, (Tick, bool)>>>);

impl Changes {
    fn note(&self, name: String, now: Tick, before: bool) {
        let mut changes = lock(&self.0);
        changes.retain(|_, (at, _)| now.since(*at) < LOOKS_LAG);
        changes.insert(name, (now, before));
    }

    /// Returns whether the object was there before its last change, if that was lately.
    fn before(&self, name: &str, now: Tick) -> Option<bool> {
        lock(&self.0).get(name).filter(|(at, _)| now.since(*at) < LOOKS_LAG).map(|(_, before)| *before)
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Faulty {
    way: Way,
    inner: Arc<dyn Store>,
    changes: Changes,
}

impl Faulty {
    /// Returns a store that fails like this on its way to `inner`.
    pub fn new(env: Env, inner: Arc<dyn Store>, faults: Faults) -> Self {
        Faulty { way: Way::new(env, faults, MARKS), inner, changes: Changes::default() }
    }

    /// Returns a store whose looks know what others have changed.
    #[must_use]
    pub fn sharing(self, changes: Changes) -> Self {
        Faulty { changes, ..self }
    }

    fn carry<T: Send + 'static>(
        &self,
        request: impl FnOnce() -> BoxFuture<'static, Result<T, StoreError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        self.way.carry("object.store", StoreError::NoAnswer, request)
    }
}

impl Store for Faulty {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        let inner = self.inner.clone();
        if how != Put::Replace && self.way.conflicts() {
            hit("object.store.conflict");
            return Box::pin(std::future::ready(Ok(false)));
        }
        let (changes, env) = (self.changes.clone(), self.way.env().clone());
        self.carry(move || {
            Box::pin(async move {
                let before = inner.look(name.clone()).await?;
                let done = inner.put(name.clone(), bytes, how).await?;
                if done && !before {
                    changes.note(name, env.now(), before);
                }
                Ok(done)
            })
        })
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        let (inner, way) = (self.inner.clone(), self.way.clone());
        let got = self.carry(move || inner.get(name, most));
        Box::pin(async move { Ok(got.await?.map(|bytes| way.mangle(bytes))) })
    }

    fn look(&self, name: String) -> BoxFuture<'static, Result<bool, StoreError>> {
        let (inner, way, changes) = (self.inner.clone(), self.way.clone(), self.changes.clone());
        let looked = name.clone();
        let got = self.carry(move || inner.look(looked));
        Box::pin(async move {
            let there = got.await?;
            let before = if way.lags() { changes.before(&name, way.env().now()) } else { None };
            if before.is_some_and(|before| before != there) {
                hit("object.store.lag");
            }
            Ok(before.unwrap_or(there))
        })
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        let (inner, way) = (self.inner.clone(), self.way.clone());
        let got = self.carry(move || inner.get_tagged(name));
        Box::pin(async move { Ok(got.await?.map(|(bytes, tag)| (way.mangle(bytes), tag))) })
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.inner.clone();
        let (changes, env) = (self.changes.clone(), self.way.env().clone());
        self.carry(move || {
            Box::pin(async move {
                for name in &names {
                    if inner.look(name.clone()).await? {
                        changes.note(name.clone(), env.now(), true);
                    }
                }
                inner.delete(names).await
            })
        })
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        self.inner.compute(work);
    }
}

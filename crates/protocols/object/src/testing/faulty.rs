//! A store that is slow, loses requests, and loses the answers to requests that were carried out.

use std::sync::Arc;

use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env};
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

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Faulty {
    way: Way,
    inner: Arc<dyn Store>,
}

impl Faulty {
    /// Returns a store that fails like this on its way to `inner`.
    pub fn new(env: Env, inner: Arc<dyn Store>, faults: Faults) -> Self {
        Faulty { way: Way::new(env, faults, MARKS), inner }
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
        self.carry(move || inner.put(name, bytes, how))
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        let (inner, way) = (self.inner.clone(), self.way.clone());
        let got = self.carry(move || inner.get(name, most));
        Box::pin(async move { Ok(got.await?.map(|bytes| way.mangle(bytes))) })
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        let (inner, way) = (self.inner.clone(), self.way.clone());
        let got = self.carry(move || inner.get_tagged(name));
        Box::pin(async move { Ok(got.await?.map(|(bytes, tag)| (way.mangle(bytes), tag))) })
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.inner.clone();
        self.carry(move || inner.delete(names))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        self.inner.compute(work);
    }
}

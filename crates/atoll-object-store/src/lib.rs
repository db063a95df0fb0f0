//! What the product needs of an object store: puts with and without a condition, reads, and deletions. It never lists objects, because a
//! listing may lag behind (decision 0024).
//!
//! | file | what it is |
//! | --- | --- |
//! | `location.rs` | the URL of a place in a store |
//! | `requests.rs` | the requests, and what their errors mean |
//! | `opened.rs` | opens a store; whether this node has credentials for it |
//! | `threads.rs` | a store whose requests run on threads of their own |

mod location;
mod opened;
mod requests;
mod threads;

use std::fmt;
use std::sync::Arc;

use atoll_core::BoxFuture;
use bytes::Bytes;
use object_store::ObjectStore;

pub use location::{BadUrl, Location, Scheme};
pub use threads::Threaded;

/// Returns the name of an object below a prefix, which may be empty.
pub fn join(prefix: &str, rest: &str) -> String {
    if prefix.is_empty() { rest.to_owned() } else { format!("{prefix}/{rest}") }
}

/// What a store calls an object, until it is replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The tag of its contents.
    pub e_tag: Option<String>,
    /// Its version, if the store keeps several.
    pub version: Option<String>,
}

/// The condition of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// There must be no object with this name.
    Create,
    /// An object with this name is replaced.
    Replace,
    /// The object with this name must still have this tag. It is replaced.
    Update(Tag),
}

/// Why a store gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store refused the credentials of this node, or the node has none. Nothing happened.
    #[error("the object store refuses the credentials in the environment of this node")]
    Credentials,
    /// The bucket does not exist, or this node sees another store than it should. Nothing happened.
    #[error("this node does not see the bucket or directory")]
    Elsewhere,
    /// The store has no conditional put. Nothing happened.
    #[error("the object store has no conditional put")]
    Unsupported,
    /// The directory of the store is read-only, or the process may not use it. Whether it happened is unknown.
    #[error("the directory of the object store is read-only, or the process of this node may not use it")]
    NotAllowed,
    /// Too many requests of this process are under way. Nothing happened.
    #[error("too many requests to the object store are in progress")]
    Busy,
    /// The store has no room. Whether it happened is unknown.
    #[error("the object store has no room: its disk or its quota is full")]
    Full,
    /// No answer came in time, or the store failed. Whether it happened is unknown.
    #[error("the object store does not answer; whether it happened is unknown")]
    NoAnswer,
}

impl StoreError {
    /// Returns whether the same request may succeed soon.
    pub fn passes(self) -> bool {
        matches!(self, StoreError::Busy | StoreError::Full | StoreError::NoAnswer)
    }

    /// Returns whether the request may have happened.
    pub fn is_unknown(self) -> bool {
        matches!(self, StoreError::NotAllowed | StoreError::Full | StoreError::NoAnswer)
    }
}

/// An object store. A future may be dropped; whether its request then happens is unknown.
pub trait Store: Send + Sync + fmt::Debug {
    /// Puts an object. Returns false if the store says that the condition does not hold. That is no proof: S3 also says so while two puts
    /// meet. The object is durable on return.
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>>;

    /// Returns the first `most` bytes of an object; None if there is no such object.
    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>>;

    /// Returns whether an object with this name was there, now or a little earlier. Like a list, this may lag: of an object that was put or
    /// deleted a moment ago, it may say what held before. Whoever needs to be sure reads the object.
    fn look(&self, name: String) -> BoxFuture<'static, Result<bool, StoreError>> {
        let got = self.get(name, Some(1));
        Box::pin(async move { Ok(got.await?.is_some()) })
    }

    /// Returns an object and its tag; None if there is no such object.
    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>>;

    /// Deletes objects. Objects that do not exist are deleted already.
    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Runs a computation, such as a compression, where it keeps nobody waiting.
    fn compute(&self, work: Box<dyn FnOnce() + Send>);
}

/// A store whose requests run where they are awaited, on virtual time. For stores that do not wait, such as the memory of the process.
#[derive(Clone, Debug)]
pub struct Inline(Arc<dyn ObjectStore>);

impl Inline {
    /// Returns a store that runs the requests of this one.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Inline(store)
    }
}

impl Store for Inline {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        Box::pin(requests::put(self.0.clone(), name, bytes, how))
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        Box::pin(requests::get(self.0.clone(), name, most))
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        Box::pin(requests::get_tagged(self.0.clone(), name))
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(requests::delete(self.0.clone(), names))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

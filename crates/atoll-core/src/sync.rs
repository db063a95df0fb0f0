//! What pieces that threads share are made of: std's types, and nothing else.
//!
//! They come through this one module so that `atoll-threads` can compile the same files over the types of a checker, which then
//! explores in what order threads may meet (decision 0012).

pub use std::sync::atomic;
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

//! What pieces that threads share are made of: std's types, and nothing else.
//!
//! They come through this one module so that `atoll-threads` can compile the same files over the types of a checker, which then
//! explores in what order threads may meet (decision 0012).

pub use std::sync::atomic;
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Locks, and goes on with what is there if a thread panicked while it held the lock. Only for values that are whole at every point where
/// that could happen.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

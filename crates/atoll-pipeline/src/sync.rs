//! The synchronization primitives for state that threads share. These are std's types and nothing else.
//!
//! All code imports them through this module so that `atoll-threads` can compile the same files with the types of a model checker, which
//! then explores the possible interleavings of threads (decision 0012).

pub use std::sync::atomic;
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Locks the mutex, and ignores poisoning by a thread that panicked while it held the lock. Only for values that are consistent at every
/// point where a panic could happen.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

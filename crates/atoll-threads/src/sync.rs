//! Stands for `atoll_core::sync`: the checker decides at each use of these which thread goes on.

pub(crate) use shuttle::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};

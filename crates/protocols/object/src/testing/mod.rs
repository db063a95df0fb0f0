//! What tests need of this protocol: the memory of the process as the store of all nodes, and a store that fails. Only available with the
//! feature `testing`.

mod faulty;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Env;
use object_store::memory::InMemory;

use crate::config::Location;
use crate::store::{Inline, Store, Threaded};

pub use atoll_loglet_store::testing::Faults;
pub use faulty::{Changes, Faulty};

/// A store in memory, which all clones share, and its faults.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    store: Arc<InMemory>,
    /// The faults of every node's way to the store.
    pub faults: Faults,
    changes: Changes,
}

impl Memory {
    /// Returns the store as the node of `env` sees it.
    pub fn of(&self, env: &Env) -> Arc<dyn Store> {
        let inner: Arc<dyn Store> = Arc::new(Inline::new(self.store.clone()));
        Arc::new(Faulty::new(env.clone(), inner, self.faults.clone()).sharing(self.changes.clone()))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory of the process")
    }
}

/// Returns a real store. A request takes `timeout` at most.
pub fn real(location: &Location, timeout: Duration) -> Arc<dyn Store> {
    Arc::new(Threaded::new(location.clone(), timeout))
}

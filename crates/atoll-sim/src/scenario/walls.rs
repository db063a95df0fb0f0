//! The wall clocks of the nodes. Each is slightly wrong, by a different amount in each life, plus an error that a scenario may set.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_core::{Env, NodeId};

/// The true time at the start of a run, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_800_000_000_000;
/// The largest error of a clock that no scenario has set, in either direction.
pub const USUALLY_WRONG_MS: u64 = 4_000;

#[derive(Default)]
struct WallsState {
    lives: u64,
    /// The error of each node's clock in its current life.
    wrong_ms: BTreeMap<NodeId, i64>,
    /// The error that a scenario has set, which outlives the node's process.
    set_ms: BTreeMap<NodeId, i64>,
}

/// See the module documentation. Clones share their state.
#[derive(Clone, Default)]
pub struct Walls {
    state: Arc<Mutex<WallsState>>,
    /// The executor whose clock shows the virtual time.
    truth: Arc<OnceLock<Env>>,
}

impl Walls {
    fn lock(&self) -> MutexGuard<'_, WallsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the true time from the clients' executor. Must be called before the nodes start.
    pub fn follow(&self, clients: Env) {
        // A world has only one time, so a second call changes nothing.
        let _ = self.truth.set(clients);
    }

    /// Returns the true time as of the clients' last turn, in milliseconds since the Unix epoch.
    pub fn truth_ms(&self) -> u64 {
        START_MS + self.truth.get().map_or(0, |env| env.now().0 / 1_000_000)
    }

    /// Returns the clock of a node that starts a new life.
    pub fn of(&self, node: NodeId) -> Arc<dyn Fn() -> u64 + Send + Sync> {
        {
            let mut state = self.lock();
            state.lives += 1;
            let bits = state.lives.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let wrong_ms = (bits % (2 * USUALLY_WRONG_MS)) as i64 - USUALLY_WRONG_MS as i64;
            state.wrong_ms.insert(node, wrong_ms);
        }
        let walls = self.clone();
        Arc::new(move || {
            let truth_ms = walls.truth_ms();
            let state = walls.lock();
            let wrong = |of: &BTreeMap<NodeId, i64>| of.get(&node).copied().unwrap_or(0);
            truth_ms.saturating_add_signed(wrong(&state.wrong_ms)).saturating_add_signed(wrong(&state.set_ms))
        })
    }

    /// Sets the error of a node's clock; 0 ends it.
    pub fn set(&self, node: NodeId, wrong_ms: i64) {
        self.lock().set_ms.insert(node, wrong_ms);
    }
}

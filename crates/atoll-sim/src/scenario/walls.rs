//! The wall clocks of the nodes: slightly wrong, by a different amount in each life, and wrong by whatever a scenario sets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_core::{Env, NodeId};

/// What the right time is at the start of a run, milliseconds since the Unix epoch.
const START_MS: u64 = 1_800_000_000_000;
/// A clock that nobody set is wrong by less than this, in either direction.
pub const USUALLY_WRONG_MS: u64 = 4_000;

#[derive(Default)]
struct State {
    lives: u64,
    /// By how much each is wrong in its node's life.
    wrong_ms: BTreeMap<NodeId, i64>,
    /// By how much each was set wrong. It outlives the node's process.
    set_ms: BTreeMap<NodeId, i64>,
}

/// See the module documentation. Clones are one.
#[derive(Clone, Default)]
pub struct Walls {
    state: Arc<Mutex<State>>,
    /// Whose clock shows the virtual time.
    truth: Arc<OnceLock<Env>>,
}

impl Walls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right time is that of the clients. To be called before the nodes start.
    pub fn follow(&self, clients: Env) {
        // There is one world, and it has one time.
        let _ = self.truth.set(clients);
    }

    /// The right time: what it was at the clients' last turn, milliseconds since the Unix epoch.
    pub fn truth_ms(&self) -> u64 {
        START_MS + self.truth.get().map_or(0, |env| env.now().0 / 1_000_000)
    }

    /// The clock of a node that begins a life.
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

    /// Sets a node's clock wrong by so much; 0: right.
    pub fn set(&self, node: NodeId, wrong_ms: i64) {
        self.lock().set_ms.insert(node, wrong_ms);
    }
}

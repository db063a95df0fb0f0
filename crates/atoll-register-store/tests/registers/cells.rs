//! A store in memory, on virtual time, with the faults of a real one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Env};
use atoll_register_store::{Cell, CellRegisters, Cells, Fault, Listing, Options};
use bytes::Bytes;

use atoll_contract::register::Unavailability;

/// The longest that a request is on its way, in microseconds.
const WAY_US: u64 = 300;
/// The longest that a lost request may still be under way, in milliseconds.
const LATE_MS: u64 = 200;

#[derive(Default)]
struct State {
    cells: BTreeMap<String, Cell<u64>>,
    writes: u64,
    /// Of a hundred requests, how many are done late, and how many are done; both without an answer.
    late: u64,
    unanswered: u64,
    down: bool,
}

/// A store, which clones share.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<State>>);

impl Memory {
    pub fn set_faults(&self, late: u64, unanswered: u64) {
        let mut state = lock(&self.0);
        (state.late, state.unanswered) = (late, unanswered);
    }

    pub fn set_down(&self, down: bool) {
        lock(&self.0).down = down;
    }

    pub fn lose_everything(&self) {
        lock(&self.0).cells.clear();
    }

    /// The registers in this store, as a node sees them.
    pub fn of(&self, env: &Env) -> CellRegisters<Way> {
        let options = Options { op_timeout: Duration::from_millis(500), retry: Duration::from_millis(1) };
        CellRegisters::new(env.clone(), Way { env: env.clone(), memory: self.clone() }, options)
    }
}

/// The way of a node to the store.
#[derive(Clone)]
pub struct Way {
    env: Env,
    memory: Memory,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

impl Way {
    fn carry<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Fault>> {
        let way = self.clone();
        let work = async move {
            let wait = || way.env.sleep(Duration::from_micros(way.env.random() % WAY_US));
            wait().await;
            let (dice, late, unanswered) = {
                let state = lock(&way.memory.0);
                if state.down {
                    return Err(Fault::Passing(Unavailability::NoQuorum));
                }
                (way.env.random() % 100, state.late, state.unanswered)
            };
            if dice < late {
                let (env, memory) = (way.env.clone(), way.memory.clone());
                let late = async move {
                    env.sleep(Duration::from_millis(env.random() % LATE_MS)).await;
                    request(&mut lock(&memory.0));
                };
                way.env.spawn("cells.late", Box::pin(late));
                return Err(Fault::NoAnswer);
            }
            let answer = request(&mut lock(&way.memory.0));
            wait().await;
            if dice < late + unanswered { Err(Fault::NoAnswer) } else { Ok(answer) }
        };
        let wait = self.env.launch("cells", work);
        Box::pin(async move { wait.await.unwrap_or(Err(Fault::NoAnswer)) })
    }
}

impl Cells for Way {
    type Tag = u64;

    fn read(&self, name: &str) -> BoxFuture<'_, Result<Option<Cell<u64>>, Fault>> {
        let name = name.to_owned();
        self.carry(move |state| state.cells.get(&name).cloned())
    }

    fn replace(&self, name: &str, expected: Option<u64>, bytes: Bytes) -> BoxFuture<'_, Result<bool, Fault>> {
        let name = name.to_owned();
        self.carry(move |state| {
            let unchanged = state.cells.get(&name).map(|cell| cell.tag) == expected;
            if unchanged {
                state.writes += 1;
                state.cells.insert(name, Cell { bytes, tag: state.writes });
            }
            unchanged
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, Fault>> {
        self.carry(|state| {
            state.cells.iter().map(|(name, cell)| (name.clone(), Some(u128::from(cell.tag)))).collect()
        })
    }
}

//! Clients, operators and the source of faults: procedures outside of all nodes, on their own executor.
//!
//! They see a node as a process on another machine would: a node that is down has no handles, and a request to a node that dies ends with
//! an unknown outcome.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use atoll_core::{Env, NodeId, StorageId, Tick};

use crate::world::fault::Fault;

/// One life of a node, as a connected client sees it.
#[derive(Debug)]
pub struct Life<H> {
    /// The node.
    pub node: NodeId,
    /// Number of this life of the node, from 1.
    pub life: u64,
    /// Runs procedures on the node.
    pub env: Env,
    /// What clients use on the node.
    pub handles: H,
}

impl<H: Clone> Clone for Life<H> {
    fn clone(&self) -> Self {
        Life { node: self.node, life: self.life, env: self.env.clone(), handles: self.handles.clone() }
    }
}

#[derive(Debug)]
pub(crate) struct ClusterState<H> {
    pub(crate) lives: Vec<Option<Life<H>>>,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) faults_done: u64,
    /// When a disk was last lost or damaged.
    pub(crate) lost_at: Option<Tick>,
    pub(crate) failures: Vec<String>,
    pub(crate) health: Vec<Health>,
    /// Wakers of the requests that wait for an answer, by host. Woken when the host dies.
    pub(crate) mourners: Vec<Vec<Waker>>,
}

/// What an operator sees of a node from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether the process runs.
    pub up: bool,
    /// Whether the process is paused.
    pub paused: bool,
    /// Why it refuses to start, if it does.
    pub refused: Option<String>,
    /// Whether its journal is closed after a failure.
    pub closed: bool,
    /// How often its disk was replaced by an empty one.
    pub wipes: u64,
    /// Whether a bit of its journal has flipped since it started, so that the disk will soon be lost.
    pub rotten: bool,
    /// Whether its data directory was put back, even if no peer has detected it.
    pub put_back: bool,
    /// The identity of its data directory, while it is up.
    pub storage: Option<StorageId>,
}

/// The cluster as seen from outside. Cheap to clone.
#[derive(Debug)]
pub struct Cluster<H>(Arc<Mutex<ClusterState<H>>>);

impl<H> Clone for Cluster<H> {
    fn clone(&self) -> Self {
        Cluster(self.0.clone())
    }
}

impl<H: Clone> Cluster<H> {
    pub(crate) fn new(hosts: usize) -> Self {
        Cluster(Arc::new(Mutex::new(ClusterState {
            lives: (0..hosts).map(|_| None).collect(),
            faults: VecDeque::new(),
            faults_done: 0,
            lost_at: None,
            failures: Vec::new(),
            health: vec![Health::default(); hosts],
            mourners: vec![Vec::new(); hosts],
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ClusterState<H>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.state().lives.len()
    }

    /// Returns the node on a host, if it runs. Hosts are counted from 0.
    pub fn host(&self, host: usize) -> Option<Life<H>> {
        self.state().lives.get(host)?.clone()
    }

    /// Returns the first running node at or after host `from`, wrapping around.
    pub fn any_from(&self, from: usize) -> Option<Life<H>> {
        let state = self.state();
        let n = state.lives.len();
        (0..n).find_map(|i| state.lives[(from + i) % n].clone())
    }

    /// Returns whether this life still runs.
    pub fn is_alive(&self, life: &Life<H>) -> bool {
        let host = (life.node.0 as usize).wrapping_sub(1);
        self.state().lives.get(host).is_some_and(|l| l.as_ref().is_some_and(|l| l.life == life.life))
    }

    /// Returns the result of `f`, or None if this life ends first, as if the connection to it broke.
    pub async fn ask<F: Future>(&self, life: &Life<H>, f: F) -> Option<F::Output> {
        let host = (life.node.0 as usize).saturating_sub(1);
        let mut f = std::pin::pin!(f);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(out) = f.as_mut().poll(cx) {
                return Poll::Ready(Some(out));
            }
            if !self.is_alive(life) {
                return Poll::Ready(None);
            }
            if let Some(mourners) = self.state().mourners.get_mut(host)
                && !mourners.iter().any(|w| w.will_wake(cx.waker()))
            {
                mourners.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Marks a host as down and wakes the requests that wait for its answers.
    pub(crate) fn mourn(&self, host: usize) {
        let mourners = {
            let mut state = self.state();
            state.lives[host] = None;
            std::mem::take(&mut state.mourners[host])
        };
        mourners.into_iter().for_each(Waker::wake);
    }

    /// Returns what an operator sees of a host.
    pub fn health(&self, host: usize) -> Health {
        self.state().health.get(host).cloned().unwrap_or_default()
    }

    /// Returns the identity of the data directory of a host that is up.
    pub fn storage(&self, host: usize) -> Option<StorageId> {
        self.health(host).storage
    }

    /// Requests a fault. It is injected at the end of the clients' turn.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// Returns the number of faults injected so far.
    pub fn faults(&self) -> u64 {
        self.state().faults_done
    }

    /// Returns whether a disk was lost or damaged less than `within` before `now`.
    pub fn lost_within(&self, now: Tick, within: Duration) -> bool {
        self.state().lost_at.is_some_and(|at| now.since(at) < within)
    }

    /// Reports a violation. The run fails.
    pub fn fail(&self, what: String) {
        self.state().failures.push(what);
    }

    /// Waits for a running node and returns the first one at or after host `from`.
    pub async fn wait_any(&self, env: &Env, from: usize) -> Life<H> {
        loop {
            if let Some(life) = self.any_from(from) {
                return life;
            }
            env.sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns a random number in `[0, n)` from a client's own randomness, or 0 if `n` is 0.
pub fn below(env: &Env, n: u64) -> u64 {
    if n == 0 { 0 } else { env.random() % n }
}

//! Clients, operators and the source of faults: procedures outside of every node, on an executor of their own.
//!
//! They see nodes as a process on another machine does: a node that is down has no handles, and requests to a node that dies are
//! abandoned, outcome unknown.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use atoll_core::{Env, NodeId, StorageId, Tick};

use crate::world::fault::Fault;

/// One life of a node, as a client that is connected to it sees it.
#[derive(Debug)]
pub struct Life<H> {
    /// Which node.
    pub node: NodeId,
    /// Counts the lives of this node.
    pub life: u64,
    /// To run procedures there.
    pub env: Env,
    /// What the node offers.
    pub handles: H,
}

impl<H: Clone> Clone for Life<H> {
    fn clone(&self) -> Self {
        Life { node: self.node, life: self.life, env: self.env.clone(), handles: self.handles.clone() }
    }
}

#[derive(Debug)]
pub(crate) struct State<H> {
    pub(crate) lives: Vec<Option<Life<H>>>,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) faults_done: u64,
    /// When a disk was lost last, virtual time.
    pub(crate) lost_at: Option<Tick>,
    pub(crate) failures: Vec<String>,
    pub(crate) health: Vec<Health>,
    /// The wakers to be woken when a host dies.
    pub(crate) mourners: Vec<Vec<Waker>>,
}

/// What an operator sees of a node from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The process runs.
    pub up: bool,
    /// It is stopped.
    pub paused: bool,
    /// Why it refuses to start.
    pub refused: Option<String>,
    /// Its journal is closed after a failure.
    pub closed: bool,
    /// How often its disk was replaced.
    pub wipes: u64,
    /// A bit of its journal has flipped since it started: a disk that is about to be lost.
    pub rotten: bool,
    /// Its data directory is an older copy, whether or not any peer has told the node so.
    pub put_back: bool,
    /// Its data directory, while it is up.
    pub storage: Option<StorageId>,
}

/// The cluster from outside. Cheap to clone.
#[derive(Debug)]
pub struct Cluster<H>(Arc<Mutex<State<H>>>);

impl<H> Clone for Cluster<H> {
    fn clone(&self) -> Self {
        Cluster(self.0.clone())
    }
}

impl<H: Clone> Cluster<H> {
    pub(crate) fn new(hosts: usize) -> Self {
        Cluster(Arc::new(Mutex::new(State {
            lives: (0..hosts).map(|_| None).collect(),
            faults: VecDeque::new(),
            faults_done: 0,
            lost_at: None,
            failures: Vec::new(),
            health: vec![Health::default(); hosts],
            mourners: vec![Vec::new(); hosts],
        })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<H>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.state().lives.len()
    }

    /// A node that runs; hosts are counted from 0.
    pub fn host(&self, host: usize) -> Option<Life<H>> {
        self.state().lives.get(host)?.clone()
    }

    /// A running node, searched from `from` on.
    pub fn any_from(&self, from: usize) -> Option<Life<H>> {
        let state = self.state();
        let n = state.lives.len();
        (0..n).find_map(|i| state.lives[(from + i) % n].clone())
    }

    /// Whether this life still runs.
    pub fn is_alive(&self, life: &Life<H>) -> bool {
        let host = (life.node.0 as usize).wrapping_sub(1);
        self.state().lives.get(host).is_some_and(|l| l.as_ref().is_some_and(|l| l.life == life.life))
    }

    /// What `f` gives, or None once this life has ended: the connection to it breaks.
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

    /// A host has died.
    pub(crate) fn mourn(&self, host: usize) {
        let mourners = {
            let mut state = self.state();
            state.lives[host] = None;
            std::mem::take(&mut state.mourners[host])
        };
        mourners.into_iter().for_each(Waker::wake);
    }

    /// How a host looks from outside.
    pub fn health(&self, host: usize) -> Health {
        self.state().health.get(host).cloned().unwrap_or_default()
    }

    /// The data directory of a host that is up.
    pub fn storage(&self, host: usize) -> Option<StorageId> {
        self.health(host).storage
    }

    /// Wants a fault; it happens at the end of the clients' turn.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// Faults that have happened so far.
    pub fn faults(&self) -> u64 {
        self.state().faults_done
    }

    /// Whether any disk was lost in the last `within` before `now`, or rotted.
    pub fn lost_within(&self, now: Tick, within: Duration) -> bool {
        self.state().lost_at.is_some_and(|at| now.since(at) < within)
    }

    /// Reports a violation: the run has failed.
    pub fn fail(&self, what: String) {
        self.state().failures.push(what);
    }

    /// Waits for a running node, trying those from `from` on.
    pub async fn wait_any(&self, env: &Env, from: usize) -> Life<H> {
        loop {
            if let Some(life) = self.any_from(from) {
                return life;
            }
            env.sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A random number in `[0, n)` from a client's own randomness.
pub fn below(env: &Env, n: u64) -> u64 {
    if n == 0 { 0 } else { env.random() % n }
}

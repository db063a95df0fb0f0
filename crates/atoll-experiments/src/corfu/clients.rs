//! Clients of one CORFU Loglet that append, or read what they appended before, with a number of operations under way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::{ClientId, Loglet};
use atoll_core::Env;
use bytes::Bytes;

use crate::load::{Clock, Tally, Worker, append, keep_trimming, read};

/// Clients start within this time, so that not all of their messages come at once.
const START_WITHIN_NS: u64 = 1_000_000;
/// How often a client looks whether the others have come as far.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Append entries.
    Append,
    /// Read entries, one at a time, at random.
    Read,
}

impl What {
    /// Both.
    pub const ALL: [What; 2] = [What::Append, What::Read];

    /// Returns the word for it in lines.
    pub fn name(self) -> &'static str {
        match self {
            What::Append => "append",
            What::Read => "read",
        }
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What the clients do.
    pub what: What,
    /// Operations that each client has under way.
    pub depth: u32,
    /// Bytes of an entry.
    pub payload: usize,
    /// Entries that each client appends before it reads.
    pub entries: u64,
}

/// How many clients have not come so far yet.
#[derive(Debug)]
struct Gate(AtomicUsize);

impl Gate {
    fn new(clients: usize) -> Self {
        Gate(AtomicUsize::new(clients))
    }

    fn arrive(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Waits until all clients are here. It looks again and again, because modelled nodes can only be woken by messages and timers.
    async fn opened(&self, env: &Env) {
        while !self.is_open() {
            env.sleep(LOOK_EVERY).await;
        }
    }
}

/// Clients that have started.
pub struct Running {
    /// What they did.
    pub tally: Arc<Mutex<Tally>>,
    appended: Gate,
    ready: Gate,
    load: Load,
    clock: Clock,
}

impl Load {
    /// Starts clients, each with a handle of the Loglet on its node.
    pub fn start(self, handles: Vec<(Env, Arc<dyn Loglet>)>, clock: Clock) -> Arc<Running> {
        let count = handles.len();
        let first = handles.first().cloned();
        let running = Arc::new(Running {
            tally: Tally::new(atoll_core::Tick(0)),
            appended: Gate::new(count),
            ready: Gate::new(count),
            load: self,
            clock,
        });
        if let Some((env, loglet)) = first.filter(|_| self.what == What::Append) {
            env.spawn("trim", Box::pin(keep_trimming(env.clone(), loglet, running.tally.clone())));
        }
        for (env, loglet) in handles {
            let client = running.clone().client(env.clone(), loglet);
            env.spawn("client", Box::pin(client));
        }
        running
    }
}

impl Running {
    /// Returns whether all clients do what is to be measured.
    pub fn is_ready(&self) -> bool {
        self.ready.is_open()
    }

    async fn client(self: Arc<Self>, env: Env, loglet: Arc<dyn Loglet>) {
        let Load { what, depth, payload, entries } = self.load;
        let payload = Bytes::from(vec![7; payload]);
        let share = if what == What::Append { u64::MAX } else { entries.div_ceil(u64::from(depth.max(1))) };
        let appends: Vec<_> = (0..depth)
            .map(|_| {
                let starts_after = Duration::from_nanos(env.random() % START_WITHIN_NS);
                // Each has a name of its own: the numbers of one client must rise, and a slow append would keep its place behind.
                let client = ClientId(env.random().max(1));
                let (payload, clock) = (payload.clone(), self.clock);
                let worker = Worker { client, first: 1, step: 1, payload, starts_after, clock };
                let work = append(env.clone(), loglet.clone(), worker, self.tally.clone(), share);
                env.launch("append", work)
            })
            .collect();
        if what == What::Append {
            self.ready.arrive();
            return;
        }
        for append in appends {
            // One that was dropped has ended with its node.
            let _ = append.await;
        }
        self.appended.arrive();
        self.appended.opened(&env).await;
        // From then on, the handle knows that what it reads is complete, so it reads from any unit. A client without a tail is never ready,
        // and that fails the run.
        let Ok(tail) = loglet.check_tail().await else { return };
        for _ in 0..depth {
            let reads = read(env.clone(), loglet.clone(), tail.at, self.clock, self.tally.clone());
            env.spawn("read", Box::pin(reads));
        }
        self.ready.arrive();
    }
}

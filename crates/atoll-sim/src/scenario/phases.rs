//! The course of a run: load under faults, then everything is healed and progress is demanded, then all is compared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::testing::take_marks;
use atoll_core::{Env, Tick};

use crate::oracle::log::LogOracle;
use crate::oracle::register::RegisterOracle;
use crate::oracle::wire::WireOracle;
use crate::rng::Rng;
use crate::scenario::Outcome;
use crate::scenario::nemesis::{self, MayLose, Menu};
use crate::world::clients::Cluster;
use crate::world::{Assembly, World};

/// Virtual length of the phase under faults, of a seed of full size.
pub const SAFETY: Duration = Duration::from_secs(60);
/// How long each step of the demand for progress may take in a healed cluster.
pub const PROGRESS_WITHIN: Duration = Duration::from_secs(30);

/// What is checked while a run goes on.
#[derive(Clone, Debug, Default)]
pub struct Oracles {
    /// Logs as clients see them.
    pub log: LogOracle,
    /// Registers as clients see them.
    pub register: RegisterOracle,
    /// Frames and disks.
    pub wire: WireOracle,
}

/// A flag that clients look at: the faults are over.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is raised.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What clients need.
#[derive(Debug)]
pub struct Stage<H> {
    /// Their executor.
    pub env: Env,
    /// The nodes.
    pub cluster: Cluster<H>,
    /// Where they report.
    pub oracles: Oracles,
    /// The load is to end.
    pub over: Flag,
    /// What the demand for progress waits for.
    pub waiting_for: Arc<Mutex<String>>,
}

impl<H> Clone for Stage<H> {
    fn clone(&self) -> Self {
        Stage {
            env: self.env.clone(),
            cluster: self.cluster.clone(),
            oracles: self.oracles.clone(),
            over: self.over.clone(),
            waiting_for: self.waiting_for.clone(),
        }
    }
}

impl<H: Clone + Send + 'static> Stage<H> {
    /// Starts a client.
    pub fn spawn(&self, name: &'static str, client: impl Future<Output = ()> + Send + 'static) {
        self.env.spawn(name, Box::pin(client));
    }

    /// Hands the violations that clients found to the world.
    pub fn report(&self) {
        for failure in
            self.oracles.log.take_failures().into_iter().chain(self.oracles.register.take_failures())
        {
            self.cluster.fail(failure);
        }
    }

    /// Says what the demand for progress waits for.
    pub fn waits_for(&self, what: String) {
        *self.waiting_for.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Reports a tail of a NativeLoglet that a client was told.
    pub fn told(&self, loglet: atoll_log::LogletId, at: atoll_log::Offset, sealed: bool) {
        let mut verdict = crate::world::observer::Verdict::default();
        self.oracles.wire.lock().native.told_tail(loglet, at, sealed, &mut verdict);
        verdict.failures.into_iter().for_each(|f| self.cluster.fail(f));
    }

    /// A random number in `[0, n)`.
    pub fn below(&self, n: u64) -> u64 {
        crate::world::clients::below(&self.env, n)
    }

    /// Sleeps about so long.
    pub async fn pause(&self, mean: Duration) {
        self.env.sleep(self.env.jitter(mean)).await;
    }
}

/// Faults of a run.
pub struct Faults {
    /// Which.
    pub menu: Menu,
    /// How often.
    pub every: Duration,
    /// For how long.
    pub during: Duration,
    /// Which hosts may lose their disks, when.
    pub may_lose: MayLose,
    /// How many directions of the network are held up for moments all the time.
    pub nervous: usize,
}

impl Faults {
    /// Faults for the length of a full seed; no disk is lost.
    pub fn usual(menu: Menu, every: Duration) -> Self {
        Faults { menu, every, during: SAFETY, may_lose: Box::new(|_| false), nervous: 0 }
    }
}

/// Sets the stage of a world: oracles are watching, nodes start.
pub fn stage<A: Assembly>(world: &mut World<A>) -> Stage<A::Handles> {
    let oracles = Oracles::default();
    world.observe(Box::new(oracles.wire.clone()));
    let stage = Stage {
        env: world.clients(),
        cluster: world.cluster(),
        oracles,
        over: Flag::default(),
        waiting_for: Arc::default(),
    };
    world.boot_all();
    stage
}

/// Lets the load run under faults, heals, and runs `demand`, which is done when everybody has made progress.
pub fn play<A, D>(
    world: &mut World<A>,
    stage: &Stage<A::Handles>,
    rng: &mut Rng,
    faults: Faults,
    demand: D,
) -> Outcome
where
    A: Assembly,
    D: Future<Output = ()> + Send + 'static,
{
    let until = Tick(world.now()).after(faults.during);
    let trouble = nemesis::run(
        stage.env.clone(),
        stage.cluster.clone(),
        rng.fork(),
        faults.menu,
        faults.every,
        until,
        faults.may_lose,
    );
    for _ in 0..faults.nervous {
        let nervous = nemesis::nervous(stage.env.clone(), stage.cluster.clone(), rng.fork(), until);
        stage.env.spawn("nervous", Box::pin(nervous));
    }
    let healed = Flag::default();
    let satisfied = Flag::default();
    {
        let (healed, satisfied, over) = (healed.clone(), satisfied.clone(), stage.over.clone());
        let medic = nemesis::medic(stage.env.clone(), stage.cluster.clone(), rng.fork());
        let env = stage.env.clone();
        stage.spawn("phases", async move {
            trouble.await;
            over.raise();
            healed.raise();
            env.spawn("medic", Box::pin(medic));
            demand.await;
            satisfied.raise();
        });
    }
    let most = until.0 + faults.during.as_nanos() as u64;
    let done = healed.clone();
    world.run(most, &mut || done.is_up());
    demand_progress(world, stage, &satisfied);
    world.finish();
    stage.report();
    let mut failures = std::mem::take(&mut world.verdict.failures);
    failures.extend(std::mem::take(&mut stage.cluster.state().failures));
    let reconfigurations = stage.oracles.wire.lock().reconfigurations();
    Outcome {
        failures,
        trace: world.trace_hash(),
        totals: world.totals(),
        operations: stage.oracles.log.operations() + stage.oracles.register.operations(),
        reconfigurations,
        virtual_ns: world.now(),
        marks: take_marks(),
    }
}

/// Lets time pass until everybody is satisfied; a step of the demand that takes longer than [`PROGRESS_WITHIN`] fails.
fn demand_progress<A: Assembly>(world: &mut World<A>, stage: &Stage<A::Handles>, satisfied: &Flag) {
    let waiting_for = || stage.waiting_for.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut step = None;
    while world.verdict.failures.is_empty() {
        let now = waiting_for();
        if step.as_ref() == Some(&now) {
            let stuck = world.stuck();
            world.verdict.fail(format!(
                "LIVENESS: no progress within {PROGRESS_WITHIN:?} of virtual time after everything was healed; waits for {now}; {stuck}"
            ));
            return;
        }
        step = Some(now);
        let patience = world.now() + PROGRESS_WITHIN.as_nanos() as u64;
        if world.run(patience, &mut || satisfied.is_up()) {
            return;
        }
    }
}

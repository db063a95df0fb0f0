//! The phases of a run: a load under faults; then everything is healed and progress is demanded; finally, all state is compared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::{LogPos, LogletId, Offset, OpId};
use atoll_core::testing::take_marks;
use atoll_core::{Env, Tick};

use crate::oracle::Answered;
use crate::oracle::log::LogOracle;
use crate::oracle::register::RegisterOracle;
use crate::oracle::wire::WireOracle;
use crate::rng::Rng;
use crate::scenario::Outcome;
use crate::scenario::nemesis::{self, MayLose, Menu, Pace};
use crate::world::clients::Cluster;
use crate::world::{Assembly, World};

/// Virtual length of the phase under faults, for a full seed.
pub const SAFETY: Duration = Duration::from_secs(60);
/// A seed that is not full by then continues for up to this many times that length.
const MOST_LENGTHS: u64 = 4;
/// How long a step of the demand for progress may take in a healed cluster.
pub const PROGRESS_WITHIN: Duration = Duration::from_secs(30);

/// The oracles of a run, and counts of other oracles.
#[derive(Clone, Debug, Default)]
pub struct Oracles {
    /// Checks logs as clients see them.
    pub log: LogOracle,
    /// Checks registers as clients see them.
    pub register: RegisterOracle,
    /// Checks frames and disks.
    pub wire: WireOracle,
    /// Answers to clients of other oracles than the two above.
    pub others: Arc<Mutex<Answered>>,
}

/// A flag that clients poll, for example the one that ends the load.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Raises the flag.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lowers the flag.
    pub fn lower(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns whether the flag is raised.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The size of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Answers to clients.
    pub answered: Answered,
    /// Faults, without those of single frames.
    pub faults: u64,
    /// Changes of chains and of register groups.
    pub reconfigurations: u64,
    /// Virtual time.
    pub virtual_ns: u64,
}

impl Size {
    /// The minimum for every seed of a full scenario.
    pub const FULL: Size = Size {
        answered: Answered { writes: 1_000, reads: 0 },
        faults: 20,
        reconfigurations: 5,
        virtual_ns: SAFETY.as_nanos() as u64,
    };

    /// Adds the size of another run.
    pub fn add(&mut self, other: &Size) {
        self.answered += other.answered;
        self.faults += other.faults;
        self.reconfigurations += other.reconfigurations;
        self.virtual_ns += other.virtual_ns;
    }

    /// Returns the minimum of each part.
    #[must_use]
    pub fn least(&self, other: &Size) -> Size {
        Size {
            answered: Answered {
                writes: self.answered.writes.min(other.answered.writes),
                reads: self.answered.reads.min(other.answered.reads),
            },
            faults: self.faults.min(other.faults),
            reconfigurations: self.reconfigurations.min(other.reconfigurations),
            virtual_ns: self.virtual_ns.min(other.virtual_ns),
        }
    }

    /// Returns whether every part is at least that of `least`.
    pub fn reaches(&self, least: &Size) -> bool {
        self.answered.writes >= least.answered.writes
            && self.answered.reads >= least.answered.reads
            && self.faults >= least.faults
            && self.reconfigurations >= least.reconfigurations
            && self.virtual_ns >= least.virtual_ns
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.1} virtual seconds, {} acknowledged writes, {} reads, {} faults, {} reconfigurations",
            self.virtual_ns as f64 / 1e9,
            self.answered.writes,
            self.answered.reads,
            self.faults,
            self.reconfigurations
        )
    }
}

/// What clients need, and where they report.
#[derive(Debug)]
pub struct Stage<H> {
    /// Their executor.
    pub env: Env,
    /// The cluster from outside.
    pub cluster: Cluster<H>,
    /// Where they report their requests and answers.
    pub oracles: Oracles,
    /// Raised when the load must end.
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

    /// Returns the size of the run so far.
    pub fn size(&self) -> Size {
        let mut answered = *self.others();
        answered += self.oracles.log.answered();
        answered += self.oracles.register.answered();
        Size {
            answered,
            faults: self.cluster.faults(),
            reconfigurations: self.oracles.wire.lock().reconfigurations(),
            virtual_ns: self.env.now().0,
        }
    }

    fn others(&self) -> MutexGuard<'_, Answered> {
        self.oracles.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts answers to a client of another oracle than those of the stage.
    pub fn count(&self, answered: Answered) {
        *self.others() += answered;
    }

    /// Reports the violations that the oracles of clients have found.
    pub fn report(&self) {
        for failure in
            self.oracles.log.take_failures().into_iter().chain(self.oracles.register.take_failures())
        {
            self.cluster.fail(failure);
        }
    }

    /// Sets the text that says what the demand for progress waits for.
    pub fn waits_for(&self, what: String) {
        *self.waiting_for.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Reports a tail that a client got of a Loglet of this kind, and checks it.
    pub fn tail_reported(&self, kind: &str, loglet: LogletId, at: Offset, sealed: bool) {
        let mut verdict = crate::world::observer::Violations::default();
        self.oracles.wire.lock().plugins.tail_reported(kind, loglet, at, sealed, &mut verdict);
        verdict.failures.into_iter().for_each(|f| self.cluster.fail(f));
    }

    /// Reports that an append to a log was acknowledged at a position, and checks that with the oracle of its Loglet.
    pub fn acknowledged(&self, log: &str, at: LogPos, op: OpId) {
        let mut verdict = crate::world::observer::Violations::default();
        self.oracles.wire.lock().acknowledged(log, at, op, &mut verdict);
        verdict.failures.into_iter().for_each(|f| self.cluster.fail(f));
    }

    /// Returns a random number in `[0, n)`.
    pub fn below(&self, n: u64) -> u64 {
        crate::world::clients::below(&self.env, n)
    }

    /// Sleeps for a random time with this mean.
    pub async fn pause(&self, mean: Duration) {
        self.env.sleep(self.env.jitter(mean)).await;
    }
}

/// The faults of a run.
pub struct Faults {
    /// The kinds of faults.
    pub menu: Menu,
    /// The mean time between two faults.
    pub every: Duration,
    /// How long the phase under faults lasts.
    pub during: Duration,
    /// Decides whether a host may lose its disk now.
    pub may_lose: MayLose,
    /// How many procedures hold up random directions of the network for short moments, throughout the phase under faults.
    pub nervous: usize,
}

impl Faults {
    /// Returns faults for the length of a full seed. No disk is lost.
    pub fn usual(menu: Menu, every: Duration) -> Self {
        Faults { menu, every, during: SAFETY, may_lose: Box::new(|_| false), nervous: 0 }
    }
}

/// Prepares a world: adds the oracles and starts the nodes.
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

/// Runs the load under faults, heals everything, and runs `demand` until it ends.
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
    let is_full = faults.during >= SAFETY;
    let most = until.0 + MOST_LENGTHS * faults.during.as_nanos() as u64;
    let sized = stage.clone();
    let pace = move |now: Tick| match now < until {
        true => Pace::Usual,
        false if is_full && now.0 < most && !sized.size().reaches(&Size::FULL) => Pace::Rare,
        false => Pace::Over,
    };
    let trouble = nemesis::run(
        stage.env.clone(),
        stage.cluster.clone(),
        rng.fork(),
        faults.menu,
        faults.every,
        (pace, Tick(most)),
        faults.may_lose,
    );
    for _ in 0..faults.nervous {
        let nervous = nemesis::nervous(stage.env.clone(), stage.cluster.clone(), rng.fork(), until);
        stage.env.spawn("nervous", Box::pin(nervous));
    }
    let healed = Flag::default();
    let satisfied = Flag::default();
    stage.waits_for("the last fault".to_owned());
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
    let done = healed.clone();
    world.run(most + faults.during.as_nanos() as u64, &mut || done.is_up());
    demand_progress(world, stage, &satisfied);
    outcome(world, stage)
}

/// Runs a script that injects its own faults. The script must raise `over` within `most`. From then on, each step of its demand must end
/// within [`PROGRESS_WITHIN`].
pub fn play_script<A, S>(
    world: &mut World<A>,
    stage: &Stage<A::Handles>,
    script: S,
    most: Duration,
) -> Outcome
where
    A: Assembly,
    S: Future<Output = ()> + Send + 'static,
{
    let satisfied = Flag::default();
    let done = satisfied.clone();
    stage.spawn("script", async move {
        script.await;
        done.raise();
    });
    let until = world.now() + most.as_nanos() as u64;
    let over = stage.over.clone();
    world.run(until, &mut || over.is_up());
    demand_progress(world, stage, &satisfied);
    outcome(world, stage)
}

/// Ends a run and returns its result.
fn outcome<A: Assembly>(world: &mut World<A>, stage: &Stage<A::Handles>) -> Outcome {
    world.finish();
    stage.report();
    let mut failures = std::mem::take(&mut world.verdict.failures);
    failures.extend(std::mem::take(&mut stage.cluster.state().failures));
    let size = Size { virtual_ns: world.now(), ..stage.size() };
    Outcome { failures, trace: world.trace_hash(), totals: world.totals(), size, marks: take_marks() }
}

/// Runs until all demands are satisfied. Fails if a step of the demand takes longer than [`PROGRESS_WITHIN`].
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

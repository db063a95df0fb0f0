//! Contenders for leases on few keys, through any node. They renew, release and abandon leases, and come back late. The clocks of nodes
//! jump by hours.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::keyspace::{Happened, Keyspace, Layout, Lease, LeaseError, LeaseJudge, Leases};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::hit;
use bytes::Bytes;

use crate::oracle::Answered;
use crate::scenario::phases::Stage;
use crate::workload::keyspace::{Handles, Reef, provide};
use crate::world::clients::Life;
use crate::world::fault::Fault;

const HOUR: u64 = 3_600_000_000_000;

#[derive(Debug, Default)]
struct State {
    judge: LeaseJudge,
    /// The leases as each life of a node sees them: host and number of the life.
    leases: BTreeMap<(u32, u64), Leases>,
}

/// What all contenders share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Harbour {
    reef: Reef,
    state: Arc<Mutex<State>>,
}

impl Harbour {
    /// Returns the state before the keyspace is created.
    pub fn new(reef: Reef) -> Self {
        Harbour { reef, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leases(&self, life: &Life<Handles>, layout: &Layout) -> Leases {
        let open = || {
            let keyspace: Arc<dyn Keyspace> = life.handles.keyspace(layout);
            Leases::new(life.env.clone(), keyspace)
        };
        self.state().leases.entry((life.node.0, life.life)).or_insert_with(open).clone()
    }

    /// Changes the judge, and reports what it finds.
    fn judge<T>(&self, stage: &Stage<Handles>, f: impl FnOnce(&mut LeaseJudge) -> T) -> T {
        let mut state = self.state();
        let before = state.judge.answered();
        let result = f(&mut state.judge);
        let (failures, after) = (state.judge.take_failures(), state.judge.answered());
        drop(state);
        stage.count(Answered { writes: after - before, reads: 0 });
        failures.into_iter().for_each(|failure| stage.cluster.fail(format!("LEASE {failure}")));
        result
    }
}

/// Sends a request through a node until there is an answer that says what has happened, a few times at most. Each attempt may go to another
/// node.
async fn settle<T: Send + 'static, F>(
    stage: &Stage<Handles>,
    harbour: &Harbour,
    times: usize,
    f: impl Fn(Leases) -> F,
) -> Option<Result<T, LeaseError>>
where
    F: Future<Output = Result<T, LeaseError>> + Send + 'static,
{
    for _ in 0..times {
        let layout = harbour.reef.layout()?;
        let life = stage.cluster.any_from(stage.below(64) as usize % stage.cluster.hosts())?;
        match life.env.launch("client.lease", f(harbour.leases(&life, &layout))).await {
            Ok(Err(LeaseError::Keys(_))) => {}
            Ok(answer) => return Some(answer),
            Err(_) => hit("sim.leases.node_died"),
        }
        stage.pause(Duration::from_millis(20)).await;
    }
    None
}

/// Contends for leases until the load is over.
pub async fn contender(stage: Stage<Handles>, harbour: Harbour, number: u64, keys: u64) {
    let mut seq = 0;
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(100)).await;
        let key = Bytes::from(format!("l{}", stage.below(keys)));
        let for_ms = [200, 500, 1_500][stage.below(3) as usize];
        seq += 1;
        let op = OpId { client: ClientId(number), seq };
        let wait = Duration::from_millis([0, 300, 4_000][stage.below(3) as usize]);
        if let Some(lease) = acquire(&stage, &harbour, op, (&key, for_ms), (wait, 3)).await {
            hold(&stage, &harbour, (number, &mut seq), &key, lease).await;
        }
    }
}

async fn acquire(
    stage: &Stage<Handles>,
    harbour: &Harbour,
    op: OpId,
    (key, for_ms): (&Bytes, u64),
    (wait, times): (Duration, usize),
) -> Option<Lease> {
    let asked = harbour.judge(stage, |judge| judge.asks(key, stage.env.now().0));
    let got = settle(stage, harbour, times, |leases| {
        let (key, owner) = (key.clone(), Bytes::from(format!("c{}", op.client.0)));
        async move { leases.acquire(op, key, (owner, for_ms), wait).await }
    });
    match got.await? {
        Ok(lease) => {
            let (for_ns, now) = (lease.for_ms * 1_000_000, stage.env.now().0);
            harbour.judge(stage, |judge| judge.granted(key, asked, op, lease.fencing, for_ns, now));
            Some(lease)
        }
        Err(LeaseError::Taken(_)) => {
            hit("sim.leases.taken");
            None
        }
        Err(error) => {
            stage.cluster.fail(format!("LEASE acquire: {error}"));
            None
        }
    }
}

/// Renews a lease for a while, and then gives it up, or does not.
async fn hold(
    stage: &Stage<Handles>,
    harbour: &Harbour,
    (client, seq): (u64, &mut u64),
    key: &Bytes,
    lease: Lease,
) {
    let granted = Duration::from_millis(lease.for_ms);
    while !stage.over.is_up() {
        match stage.below(8) {
            0 => return hit("sim.leases.abandoned"),
            1 => return release(stage, harbour, key, lease).await,
            2 | 3 => {
                // The lease may have expired for somebody.
                stage.env.sleep(granted + Duration::from_millis(stage.below(500))).await;
            }
            _ => stage.env.sleep(granted / 3).await,
        }
        *seq += 1;
        let op = OpId { client: ClientId(client), seq: *seq };
        let asked = harbour.judge(stage, |judge| judge.asks(key, stage.env.now().0));
        let renewed = settle(stage, harbour, 3, |leases| {
            let key = key.clone();
            async move { leases.renew(op, key, lease.fencing, lease.for_ms).await }
        });
        match renewed.await {
            Some(Ok(_)) => {
                hit("sim.leases.renewed");
                let for_ns = lease.for_ms * 1_000_000;
                harbour.judge(stage, |judge| judge.renewed(key, asked, lease.fencing, for_ns));
            }
            Some(Err(LeaseError::NobodyHolds | LeaseError::NotHolder { .. })) => {
                hit("sim.leases.lost");
                let now = stage.env.now().0;
                return harbour.judge(stage, |judge| judge.lost(key, lease.fencing, now));
            }
            Some(Err(error)) => stage.cluster.fail(format!("LEASE renew: {error}")),
            // It is not known whether it was renewed, so it may end now.
            None => return hit("sim.leases.unknown"),
        }
    }
}

async fn release(stage: &Stage<Handles>, harbour: &Harbour, key: &Bytes, lease: Lease) {
    harbour.judge(stage, |judge| judge.releases(key, lease.fencing));
    let mut repeat = false;
    for _ in 0..3 {
        let released = settle(stage, harbour, 1, |leases| {
            let key = key.clone();
            async move { leases.release(key, lease.fencing, repeat).await }
        });
        match released.await {
            Some(Ok(())) => return hit("sim.leases.released"),
            Some(Err(LeaseError::Keys(error))) if error.happened() == Happened::No => {}
            Some(Err(_)) => return,
            None => repeat = true,
        }
    }
}

/// Lets the clocks of nodes jump ahead from time to time.
pub async fn jumper(stage: Stage<Handles>) {
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(700)).await;
        let host = stage.below(stage.cluster.hosts() as u64) as usize;
        let nanos = [1_000_000_000, 60_000_000_000, HOUR, 5 * HOUR][stage.below(4) as usize];
        stage.cluster.inject(Fault::JumpClock { host, nanos });
    }
}

/// Creates the keyspace.
pub async fn operator(stage: Stage<Handles>, harbour: Harbour) {
    provide(&stage, &harbour.reef).await;
}

/// Demands progress after everything was healed: each lease can be had, whatever its last holder does.
pub async fn demand(stage: Stage<Handles>, harbour: Harbour, keys: u64) {
    stage.waits_for("a keyspace".to_owned());
    provide(&stage, &harbour.reef).await;
    for seq in 0..keys {
        let key = Bytes::from(format!("l{seq}"));
        stage.waits_for(format!("the lease on {key:?}"));
        let op = OpId { client: ClientId(1), seq };
        let lease = loop {
            let wait = Duration::from_secs(2);
            if let Some(lease) = acquire(&stage, &harbour, op, (&key, 500), (wait, 20)).await {
                break lease;
            }
        };
        stage.waits_for(format!("the release of {key:?}"));
        release(&stage, &harbour, &key, lease).await;
    }
}

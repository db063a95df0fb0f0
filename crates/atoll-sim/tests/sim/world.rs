//! Tests of the world itself with a toy role: a counter that journals each increment.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{
    Caller, Decode, Effects, Encode, Env, Frame, Loc, Lsn, Message, NodeCore, NodeId, RecordKind, Role,
    Stored, Tick, roles,
};
use atoll_sim::world::clients::{Cluster, below};
use atoll_sim::world::fault::{Death, Fault};
use atoll_sim::world::network::Mood;
use atoll_sim::world::observer::Who;
use atoll_sim::world::{Assembly, Weather, World};
use bytes::Bytes;

atoll_core::message! {
    /// Increments the counter.
    pub struct Add = 90 {}
}
atoll_core::message! {
    /// Reports the count after an increment.
    pub struct Added = 91 {
        /// The count.
        pub count: u64,
    }
}
atoll_core::rpc!(Add => Added, roles::MEMBER, Data);

#[derive(Default)]
struct Counter {
    count: u64,
}

impl Role for Counter {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if Add::from_frame(frame).is_ok() {
            self.count += 1;
            let lsn = out.journal(RecordKind::Fact, self.count.to_bytes(), Bytes::new());
            out.reply(from, Added { count: self.count }, lsn);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        Some(self.count.to_bytes())
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), atoll_core::DecodeError> {
        self.count = u64::from_bytes(checkpoint)?;
        Ok(())
    }

    fn recover(&mut self, stored: Stored) -> Result<(), atoll_core::DecodeError> {
        self.count = self.count.max(u64::from_bytes(stored.record.head)?);
        Ok(())
    }
}

struct Toy;

impl Assembly for Toy {
    type Handles = ();

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, ()) {
        let mut core = NodeCore::new(who.node, who.incarnation, seed);
        core.add_role(roles::MEMBER, Box::new(Counter::default()));
        (core, ())
    }
}

type Floors = Arc<Mutex<Vec<u64>>>;

/// Increments counters of random nodes, through random nodes. An answer must be above all answers of the same node that came before the
/// request.
async fn add_for_ever(env: Env, cluster: Cluster<()>, floors: Floors) {
    loop {
        env.sleep(Duration::from_micros(200 + below(&env, 2_000))).await;
        let n = cluster.hosts() as u64;
        let (via, at) = (below(&env, n) as usize, below(&env, n) as usize);
        let Some(life) = cluster.host(via) else { continue };
        let floor = floors.lock().unwrap()[at];
        let node = life.env.clone();
        let call = life.env.launch("add", async move {
            let target = NodeId(at as u32 + 1);
            node.within(Duration::from_millis(50), node.call(target, Add {})).await
        });
        if let Ok(Ok(Ok(added))) = call.await {
            if added.count <= floor {
                cluster.fail(format!("COUNT: node {at} answers {}, and had answered {floor}", added.count));
            }
            let mut floors = floors.lock().unwrap();
            floors[at] = floors[at].max(added.count);
        }
    }
}

async fn trouble(env: Env, cluster: Cluster<()>) {
    cluster.inject(Fault::Mood(Mood {
        lost_permille: 5,
        doubled_permille: 5,
        swapped_permille: 5,
        slower: 1,
    }));
    loop {
        env.sleep(Duration::from_millis(5 + below(&env, 100))).await;
        let host = below(&env, 3) as usize;
        let death = if below(&env, 2) == 0 { Death::Kill } else { Death::PowerCut };
        let nanos = below(&env, 60_000_000);
        match below(&env, 6) {
            0 => cluster.inject(Fault::Pause { host, nanos }),
            1 => cluster.inject(Fault::Split { side: vec![host] }),
            2 => cluster.inject(Fault::HealNetwork),
            3 => cluster.inject(Fault::Reset { a: host, b: (host + 1) % 3 }),
            _ => cluster.inject(Fault::Crash { host, death, back_after: Some(nanos) }),
        }
    }
}

fn run(seed: u64) -> (Vec<String>, (u64, u64), u64) {
    let mut world = World::new(seed, 3, Weather::default(), Toy, None);
    let (env, cluster) = (world.clients(), world.cluster());
    let floors: Floors = Arc::new(Mutex::new(vec![0; 3]));
    for _ in 0..4 {
        let client = add_for_ever(env.clone(), cluster.clone(), floors.clone());
        env.spawn("client", Box::pin(client));
    }
    env.spawn("trouble", Box::pin(trouble(env.clone(), cluster)));
    world.boot_all();
    world.run(5_000_000_000, &mut || false);
    world.finish();
    let counted = floors.lock().unwrap().iter().sum();
    (std::mem::take(&mut world.verdict.failures), world.trace_hash(), counted)
}

#[test]
fn a_seed_replays_to_the_same_trace_and_another_does_not() {
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.1, run(2).1);
    assert_eq!(first.0, Vec::<String>::new());
    assert!(first.2 > 500, "{} increments", first.2);
}

#[test]
fn counters_survive_power_cuts_and_x1_is_caught() {
    let clean: Vec<_> = (10..20).flat_map(|seed| run(seed).0).collect();
    assert_eq!(clean, Vec::<String>::new());
    set_mutant(atoll_core::mutants::X1);
    let caught = (10..20).filter(|seed| !run(*seed).0.is_empty()).count();
    set_mutant(Mutant::NONE);
    assert!(caught >= 5, "an answer before its sync was caught in {caught} of 10 seeds");
}

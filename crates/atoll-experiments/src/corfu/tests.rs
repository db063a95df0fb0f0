//! The model keeps to its parameters, and timelines are read right.

use std::path::PathBuf;
use std::time::Duration;

use super::clients::What;
use super::modelled::{Modelled, Outcome, Point, ShapeArgs};
use super::recovery::Timeline;
use super::seals::seal_modelled;
use crate::model::Parameters;

const MICRO: u64 = 1_000;
const IDLE: Parameters = Parameters::WAYS_AND_SYNCS;

fn shape(depth: u32) -> ShapeArgs {
    let mut shape = ShapeArgs::with_parameters(None, PathBuf::new());
    (shape.depth, shape.payload) = (depth, 1_000);
    shape
}

fn run(parameters: &Parameters, what: What, chains: u32, clients: u32, depth: u32) -> Outcome {
    let point = Point { what, chains, replicas: 1, clients, one_machine: None };
    let outcome = point.run(parameters, &shape(depth)).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.is_fine(), "{what:?} with {chains} chains");
    outcome
}

fn close(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= expected * 0.005
}

#[test]
fn a_lone_append_takes_two_round_trips_and_a_sync_and_a_read_one_round_trip() {
    let append = run(&IDLE, What::Append, 1, 1, 1).latencies.quantile_us(0.5);
    assert!(close(append, 4.0 * 100.0 + 300.0), "{append} µs");
    let read = run(&IDLE, What::Read, 1, 1, 1).latencies.quantile_us(0.5);
    assert!(close(read, 2.0 * 100.0), "{read} µs");
}

#[test]
fn units_of_their_own_machines_serve_in_proportion_and_one_machine_does_not() {
    // The units are what is busy: they have more steps than the clients, of whom there are many.
    let busy = Parameters { step_ns: 10 * MICRO, latency_ns: 20 * MICRO, sync_ns: 0, ..IDLE };
    let one = run(&busy, What::Read, 1, 8, 64).rate();
    let four = run(&busy, What::Read, 4, 32, 64).rate();
    assert!((3.4..=4.2).contains(&(four / one)), "{four} and {one} reads per second");
    let together = Point { what: What::Read, chains: 4, replicas: 1, clients: 1, one_machine: Some(1) };
    let together = together.run(&busy, &shape(64)).map(|outcome| outcome.rate()).unwrap_or(f64::MAX);
    assert!(together < one, "{together} reads per second of one processor, and {one} of one unit alone");
}

#[test]
fn a_seal_asks_all_units_at_the_same_time() {
    for units in [1, 8] {
        let mut cluster = Modelled::new(&IDLE, (units, 1, 1), 3, None);
        let env = cluster.clients().remove(0);
        let mut seals = env.launch("seals", seal_modelled(env.clone(), cluster.projection.clone(), 20));
        cluster.model.run_until(Duration::from_secs(1).as_nanos() as u64);
        let Some(Ok(seals)) = seals.try_take() else { panic!("the seals have not ended") };
        assert_eq!((seals.count(), seals.errors), (20, 0));
        let took = seals.quantile_us(0.5);
        assert!(close(took, 2.0 * 100.0 + 300.0), "{took} µs with {units} units");
    }
}

#[test]
fn a_gap_that_a_kill_falls_into_counts_and_an_earlier_one_does_not() {
    const MS: i64 = 1_000_000;
    let timeline = Timeline { ends: [0, 50, 51, 90, 91, 92].map(|at| at * MS).to_vec(), errors: 0 };
    assert_eq!(timeline.longest_gap(0), (0, 50 * MS));
    assert_eq!(timeline.longest_gap(52 * MS), (51 * MS, 90 * MS));
    assert_eq!((timeline.first_from(52 * MS), timeline.first_from(93 * MS)), (Some(90 * MS), None));
    assert_eq!(timeline.bins(0), [1, 0, 0, 0, 0, 2, 0, 0, 0, 3]);
}

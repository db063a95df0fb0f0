//! Both logs run on modelled machines, and take what the parameters say.

use super::*;

const MICRO: u64 = 1_000;
const WAYS_AND_SYNCS: Parameters = Parameters::WAYS_AND_SYNCS;

fn lone(system: System, shards: u32) -> Writes {
    let interval = Duration::from_micros(1);
    let (clients, depth, payload, records, rate) = (1, 1, 100, 1, None);
    Writes {
        system,
        shards,
        clients,
        depth,
        payload,
        records,
        rate,
        interval,
        warm_up_ms: 20,
        measured_ms: 100,
        seed: 3,
    }
}

#[test]
fn a_lone_append_takes_its_ways_and_syncs() {
    // CORFU: to the sequencer and back, then to each unit of the chain and back, with a sync each.
    let corfu = lone(System::Corfu, 1).run(&WAYS_AND_SYNCS).expect("it runs");
    let took = corfu.latencies.quantile_us(0.5);
    assert!((took - 1200.0).abs() < 12.0, "CORFU: {took} µs: six ways and two syncs");
    // Scalog: the client's way, the primary's sync, the way to the backup and its sync, the report, the orderer's way to the ordering log,
    // its majority (two ways and a sync), the news of it, a read of the entry (two ways) and the answer.
    let scalog = lone(System::Scalog, 1).run(&WAYS_AND_SYNCS).expect("it runs");
    assert_eq!((corfu.latencies.errors, scalog.latencies.errors), (0, 0));
    let took = scalog.latencies.quantile_us(0.5);
    assert!((1700.0..2300.0).contains(&took), "Scalog: {took} µs: three syncs and eight to fourteen ways");
}

#[test]
fn clients_are_spread_over_shards() {
    let parameters = Parameters { step_ns: 10 * MICRO, ..WAYS_AND_SYNCS };
    let run = |shards| {
        let load = Writes { clients: 8, depth: 8 * shards, measured_ms: 40, ..lone(System::Scalog, shards) };
        let outcome = load.run(&parameters).expect("it runs");
        assert_eq!(outcome.latencies.errors, 0);
        outcome.records_s
    };
    let (one, three) = (run(1), run(3));
    assert!(three > 1.8 * one, "{one} records per second with one shard, {three} with three");
}

#[test]
fn a_rate_is_kept() {
    let load = Writes { clients: 4, depth: 8, rate: Some(2000.0), ..lone(System::Scalog, 2) };
    let outcome = load.run(&WAYS_AND_SYNCS).expect("it runs");
    assert!((outcome.records_s - 2000.0).abs() < 150.0, "{} records per second", outcome.records_s);
}

#[test]
fn several_records_of_an_entry_count() {
    let load = Writes { records: 4, ..lone(System::Corfu, 1) };
    let (one, four) = (lone(System::Corfu, 1).run(&WAYS_AND_SYNCS), load.run(&WAYS_AND_SYNCS));
    let (one, four) = (one.expect("it runs").records_s, four.expect("it runs").records_s);
    assert!((four / one - 4.0).abs() < 0.1, "{one} and {four} records per second");
}

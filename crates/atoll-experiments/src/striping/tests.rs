//! The model keeps to its parameters: a lone append takes what they say, and a saturated resource gives its rate.

use super::*;

const FREE: Parameters = Parameters::FREE;
const MICRO: u64 = 1_000;

fn one_server() -> Shape {
    Shape { servers: 1, stripes: vec![Stripe { sequencer: 0, servers: vec![0] }] }
}

fn load(clients: u32, depth: u32) -> Load {
    Load { clients, depth, payload: 1000, warm_up_ms: 20, measured_ms: 100, seed: 3, one_machine: None }
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.latencies.count() as f64 * 10.0
}

fn part(outcome: &Outcome, what: &str) -> f64 {
    outcome.busiest.iter().find(|(name, _)| *name == what).map_or(0.0, |(_, part)| *part)
}

#[test]
fn a_lone_append_takes_what_the_parameters_say() {
    // The turn that sends it, the one that orders and stores it, the one that learns that it is durable; and two ways and a sync.
    let parameters =
        Parameters { turn_ns: 10 * MICRO, latency_ns: 100 * MICRO, sync_ns: 300 * MICRO, ..FREE };
    let outcome = load(1, 1).run(&parameters, &one_server());
    assert_eq!(outcome.latencies.errors, 0);
    let expected = 3.0 * 10.0 + 2.0 * 100.0 + 300.0;
    for q in [0.01, 0.5, 0.99] {
        let took = outcome.latencies.quantile_us(q);
        assert!((took - expected).abs() <= expected * 0.002, "{took} µs at {q}, not {expected}");
    }
    // The turn that gets the answer is that of the next append.
    let turns = rate(&outcome) * expected / 1e6;
    assert!((turns - 1.0).abs() < 0.01, "{turns} appends at once");
}

#[test]
fn a_lone_append_on_three_servers_takes_one_way_more_each() {
    // A majority is the sequencer's own server and one other, which gets the entry one way later.
    let parameters = Parameters { latency_ns: 100 * MICRO, sync_ns: 300 * MICRO, ..FREE };
    let took = load(1, 1).run(&parameters, &Shape::sharded(1)).latencies.quantile_us(0.5);
    assert!((took - 700.0).abs() <= 2.0, "{took} µs: four ways and a sync");
}

#[test]
fn waking_a_node_and_writing_a_batch_cost_what_the_parameters_say() {
    let parameters = Parameters { latency_ns: 100 * MICRO, sync_ns: 300 * MICRO, ..FREE };
    // The client, the server, and the server once the entry is durable.
    let woken = load(1, 1).run(&Parameters { wake_ns: 20 * MICRO, ..parameters }, &one_server());
    let took = woken.latencies.quantile_us(0.5);
    assert!((took - 560.0).abs() <= 2.0, "{took} µs: two ways, a sync, and three times awake");
    // The disk gets the batch when the processor has written it.
    let written = load(1, 1).run(&Parameters { batch_ns: 1_000 * MICRO, ..parameters }, &one_server());
    let took = written.latencies.quantile_us(0.5);
    assert!((took - 1_500.0).abs() <= 3.0, "{took} µs: two ways, a batch and a sync");
}

#[test]
fn steps_cost_more_the_more_is_under_way() {
    let parameters = Parameters { step_crowd_ps: 1_000_000, latency_ns: 100 * MICRO, ..FREE };
    let took = |depth| load(1, depth).run(&parameters, &one_server()).latencies.quantile_us(0.5);
    let (alone, many) = (took(1), took(16));
    assert!(alone < 210.0, "{alone} µs: two ways, and a few steps with one append under way");
    assert!(many > 2.0 * alone, "{many} µs with 16 under way, and {alone} µs alone");
}

#[test]
fn a_saturated_link_gives_its_rate() {
    let parameters = Parameters { latency_ns: 100 * MICRO, link_bytes_s: 10_000_000, ..FREE };
    let outcome = load(8, 16).run(&parameters, &one_server());
    let bytes = rate(&outcome) * 1000.0;
    assert!(bytes < 10e6 && bytes > 8.5e6, "{bytes} payload bytes per second of 10 MB, with heads");
    assert!(part(&outcome, "link of a sequencer") > 0.99, "{:?}", outcome.busiest);
}

#[test]
fn a_saturated_disk_gives_its_rate() {
    let parameters = Parameters { latency_ns: 100 * MICRO, disk_bytes_s: 10_000_000, ..FREE };
    // A batch has many blocks, and the measured time many batches.
    let outcome = load(8, 16).run(&parameters, &one_server());
    let bytes = rate(&outcome) * 1000.0;
    assert!(bytes < 10e6 && bytes > 8e6, "{bytes} payload bytes per second of 10 MB, with heads and blocks");
    assert!(part(&outcome, "disk of a LogServer") > 0.99, "{:?}", outcome.busiest);
}

#[test]
fn a_saturated_processor_gives_its_rate_and_two_stripes_give_twice_that() {
    let parameters = Parameters { step_ns: 10 * MICRO, latency_ns: 20 * MICRO, ..FREE };
    let one = load(16, 8).run(&parameters, &Shape::sharded(1));
    let two = load(16, 16).run(&parameters, &Shape::sharded(2));
    assert_eq!(one.latencies.errors + two.latencies.errors, 0);
    // It waits for the other servers now and then; and with two stripes, each for the other.
    assert!(part(&one, "processor of a sequencer") > 0.9, "{:?}", one.busiest);
    let gain = rate(&two) / rate(&one);
    assert!((1.65..=2.05).contains(&gain), "{gain} times: {} and {}", rate(&one), rate(&two));
    assert!(two.pads * 20 <= two.latencies.count(), "{} pads", two.pads);
}

#[test]
fn clients_that_share_stripes_append_more_records_than_pads() {
    // The times are those of a real machine: they decide how many answers come at once.
    let parameters = Parameters {
        step_ns: 300,
        read_ns: 3 * MICRO,
        write_ns: 3 * MICRO,
        latency_ns: 17 * MICRO,
        sync_ns: 75 * MICRO,
        ..FREE
    };
    let run = |stripes, depth, clients| {
        let load = Load { warm_up_ms: 5, measured_ms: 20, ..load(clients, depth) };
        let outcome = load.run(&parameters, &Shape::sharded(stripes));
        assert_eq!(outcome.latencies.errors, 0);
        outcome
    };
    let one = run(1, 4, 20).latencies.count();
    for stripes in [4, 8] {
        // As many appends under way for each stripe as there are for the single one.
        let all = run(stripes, 4 * stripes, 20);
        let (pads, gain) = (all.pads_per_record(), all.latencies.count() as f64 / one as f64);
        assert!(pads < 0.1, "{pads} pads for each record at {stripes} stripes");
        assert!(gain > 0.8 * f64::from(stripes), "{gain} times one stripe at {stripes}");
        // One append at a time leaves most stripes idle. They are filled as far as the one that is ahead, and no further.
        let alone = run(stripes, 1, 20).pads_per_record();
        assert!(
            alone < f64::from(stripes),
            "{alone} pads for each record of lone appends at {stripes} stripes"
        );
    }
}

#[test]
fn one_machine_has_no_more_than_its_processors() {
    let parameters = Parameters { step_ns: 10 * MICRO, latency_ns: 20 * MICRO, ..FREE };
    let apart = load(4, 16).run(&parameters, &Shape::sharded(2));
    let mut together = load(4, 16);
    together.one_machine = Some(1);
    let together = together.run(&parameters, &Shape::sharded(2));
    assert!(rate(&together) * 1.5 < rate(&apart), "{} and {}", rate(&together), rate(&apart));
    // Only one turn at a time: every step of every node is counted.
    let busy = together.work.steps as f64 * 10_000.0 / 100e6;
    assert!((busy - 1.0).abs() < 0.02, "the processor was busy for {busy} of the time");
}

#[test]
fn the_same_seed_and_parameters_give_the_same_run() {
    let parameters =
        Parameters { turn_ns: 700, step_ns: 900, latency_ns: 20 * MICRO, sync_ns: 50 * MICRO, ..FREE };
    let figures = |seed| {
        let short = Load { seed, warm_up_ms: 2, measured_ms: 5, ..load(3, 4) };
        let outcome = short.run(&parameters, &Shape::sharded(3));
        let latencies = &outcome.latencies;
        (latencies.count(), latencies.quantile_us(0.5).to_bits(), outcome.pads, outcome.work.steps)
    };
    assert_eq!(figures(5), figures(5));
    assert_ne!(figures(5), figures(6), "the seed decides when clients start");
}

#[test]
fn steps_and_batches_are_dearer_where_threads_share_a_processor() {
    let parameters = Parameters { latency_ns: 100 * MICRO, ..FREE };
    let took = |parameters: &Parameters, one_machine| {
        let load = Load { one_machine, ..load(1, 1) };
        load.run(parameters, &one_server()).latencies.quantile_us(0.5)
    };
    // A client, a server and its journal: two more than there are processors.
    let alone = Parameters { step_ns: 10 * MICRO, batch_byte_ps: 8_000, ..parameters };
    let shared = Parameters { step_neighbour_ps: 5_000_000, batch_byte_neighbour_ps: 4_000, ..parameters };
    assert!(took(&alone, Some(1)) > took(&parameters, Some(1)) + 20.0);
    assert_eq!(took(&shared, Some(1)), took(&alone, Some(1)));
    assert_eq!(took(&shared, Some(3)), took(&parameters, Some(3)));
}

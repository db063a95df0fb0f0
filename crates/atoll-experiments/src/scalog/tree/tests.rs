//! A modelled ordering layer orders what its servers report, through trees of any depth.

use super::*;

const MICRO: u64 = 1_000;
const PARAMETERS: Parameters = Parameters {
    turn_ns: 200,
    step_ns: 200,
    wake_ns: 0,
    batch_ns: 0,
    batch_byte_ps: 0,
    read_ns: 500,
    write_ns: 500,
    byte_ps: 10,
    step_crowd_ps: 0,
    byte_crowd_fs: 0,
    step_neighbour_ps: 0,
    batch_byte_neighbour_ps: 0,
    latency_ns: 10 * MICRO,
    link_bytes_s: 1_000_000_000,
    sync_ns: 50 * MICRO,
    disk_bytes_s: 1_000_000_000,
};
const FREE: Costs = Costs { aggregator_byte_ps: 0, orderer_byte_ps: 0 };

fn tree(shards: u32, fan_in: usize) -> Tree {
    let ms = Duration::from_millis;
    let (interval, warm_up, measured) = (Duration::from_micros(200), ms(4), ms(4));
    let (replicas, shard_rate, followers, seed) = (2, 1e6, 0, 5);
    Tree { shards, replicas, fan_in, interval, shard_rate, followers, warm_up, measured, seed }
}

fn ordered(of: &Tree, costs: Costs) -> (f64, f64, usize) {
    let nodes = of.play(&PARAMETERS, Some(costs)).expect("it runs");
    let seen = locked(&nodes.seen);
    (seen.ordered() as f64 / of.seconds(&nodes), seen.latencies.quantile_us(0.5), depth_of(&nodes.config))
}

#[test]
fn all_that_servers_report_is_ordered_through_trees_of_any_depth() {
    for (fan_in, depth) in [(64, 0), (8, 1), (3, 3)] {
        let (writes_s, took_us, levels) = ordered(&tree(40, fan_in), FREE);
        assert_eq!(levels, depth, "levels of a tree with a fan-in of {fan_in}");
        assert!(
            (writes_s / 40e6 - 1.0).abs() < 0.1,
            "{writes_s} of 40 million records per second, fan-in {fan_in}"
        );
        assert!(took_us < 2000.0, "{took_us} µs from a report to its cut, fan-in {fan_in}");
    }
}

#[test]
fn shards_that_no_configuration_has_are_added() {
    let more = Tree { shards: 1100, shard_rate: 1e5, ..tree(1100, 128) };
    let (writes_s, ..) = ordered(&more, FREE);
    assert!((writes_s / 110e6 - 1.0).abs() < 0.1, "{writes_s} of 110 million records per second");
}

#[test]
fn what_bytes_cost_the_orderer_delays_cuts() {
    let (_, free_us, _) = ordered(&tree(40, 8), FREE);
    let (_, dear_us, _) = ordered(&tree(40, 8), Costs { orderer_byte_ps: 200_000, ..FREE });
    assert!(dear_us > free_us + 200.0, "{free_us} µs and {dear_us} µs from a report to its cut");
}

#[test]
fn an_orderer_that_is_too_slow_does_not_carry_the_load() {
    let tells = |costs| tree(40, 8).tell(&PARAMETERS, costs, "test").expect("it runs");
    assert!(tells(FREE));
    assert!(!tells(Costs { orderer_byte_ps: 40_000_000, ..FREE }));
}

#[test]
fn an_orderer_under_load_makes_rarer_and_larger_cuts() {
    let of = tree(40, 8);
    let figures = |orderer_byte_ps| {
        let nodes = of.play(&PARAMETERS, Some(Costs { orderer_byte_ps, ..FREE })).expect("it runs");
        let (seen, seconds) = (locked(&nodes.seen), of.seconds(&nodes));
        let shards_per_cut = seen.shards_in_cuts as f64 / seen.cuts.max(1) as f64;
        (seen.cuts as f64 / seconds, shards_per_cut, seen.ordered() as f64 / seconds)
    };
    let (idle, ..) = figures(0);
    // The reports of one interval take it many intervals.
    let (cuts_s, shards_per_cut, writes_s) = figures(500_000);
    assert!(cuts_s > 50.0, "{cuts_s} cuts per second");
    assert!(cuts_s < idle / 5.0, "{cuts_s} cuts per second under load, {idle} without");
    assert!(shards_per_cut > 20.0, "{shards_per_cut} of 40 shards in a cut");
    assert!((writes_s / 40e6 - 1.0).abs() < 0.1, "{writes_s} of 40 million records per second");
}

#[test]
fn what_bytes_cost_is_found() {
    let costs = tree(40, 8).calibrate(&Parameters { step_ns: 0, ..PARAMETERS }).expect("it runs");
    for (of, byte_ps) in [("an aggregator", costs.aggregator_byte_ps), ("the orderer", costs.orderer_byte_ps)]
    {
        assert!((1..1_000_000).contains(&byte_ps), "a byte costs {of} {byte_ps} ps");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let figures = || {
        let nodes = tree(20, 8).play(&PARAMETERS, Some(FREE)).expect("it runs");
        let seen = locked(&nodes.seen);
        (seen.ordered(), seen.cuts, seen.bytes, seen.latencies.quantile_us(0.99).to_bits())
    };
    assert_eq!(figures(), figures());
}

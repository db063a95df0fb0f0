//! A small layer on real sockets and a real disk orders what its emulated servers report.

use super::*;

#[test]
fn a_small_layer_orders_what_its_servers_report() {
    let folder = std::env::temp_dir().join(format!("atoll-ordering-test-{}", std::process::id()));
    let args = Args {
        shards: Vec::new(),
        replicas: 2,
        interval_us: 2000,
        shard_rate: 10_000.0,
        fan_in: 2,
        aggregators: 2,
        followed: Vec::new(),
        followed_shards: 0,
        within_ms: 1e6,
        warm_up: 0.1,
        seconds: 0.5,
        folder: folder.clone(),
    };
    let point = Point { shards: 5, interval: Duration::from_millis(2), followed: true };
    let (line, _) = args.measure(point).expect("it runs");
    let _ = std::fs::remove_dir_all(folder);
    let of = |name: &str| line[name].as_f64().unwrap_or(0.0);
    // 5 shards have 3 aggregators above them, and these have 2 parents.
    assert_eq!(
        (line["settings"]["levels"].as_u64(), line["settings"]["aggregators"].as_u64()),
        (Some(2), Some(5))
    );
    assert!(of("cuts_s") > 0.0 && of("writes_s") > 0.0, "{line}");
    assert!(of("reports_s") <= of("reports_due_s"), "{line}");
    assert!(of("report_to_cut_p50_us") > 0.0, "{line}");
}

//! The metrics of a door under ZooKeeper's names, for `mntr`, Prometheus and the admin commands. Metrics that have no meaning here
//! are absent; `docs/zookeeper.md` lists them.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::Shared;
use super::figures::Refusal;
use super::latency::{QUANTILES_PERMILLE, Summary, ms};
use crate::tree::read;
use crate::tree::state::Counters;
use crate::watch::table::Kind;

/// The kind and value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number that may rise and fall.
    Gauge(f64),
    /// A number that only rises.
    Counter(f64),
    /// A summary of latencies.
    Summary(Summary),
}

/// A metric, under ZooKeeper's name without `zk_`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
}

/// Returns the number of files that this process has open, and its limit. Each is None if the system does not report it.
fn open_files() -> (Option<f64>, Option<f64>) {
    // Newer systems tell the number as the length of the folder; a list of it takes long if there are many.
    let length =
        std::fs::metadata("/proc/self/fd").ok().map(|folder| folder.len()).filter(|files| *files > 0);
    let listed = || std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    let open = length.map(|files| files as f64).or_else(listed);
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"));
    (open, line.and_then(|l| l.split_whitespace().next()?.parse().ok()))
}

/// Converts a time to milliseconds since the Unix epoch.
pub(crate) fn epoch_ms(since: Instant) -> u64 {
    let at = SystemTime::now().checked_sub(since.elapsed()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    u64::try_from(at.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the counters in the state, or initial ones if they cannot be read.
pub(crate) fn counters(shared: &Shared) -> Counters {
    read::counters(&shared.engine.view()).unwrap_or(Counters::FIRST)
}

/// Returns ZooKeeper's name for the node's role: `read-only`, `standalone`, `leader` for the node that sequences the log, or else
/// `follower`.
pub(crate) fn state(shared: &Shared) -> &'static str {
    match shared.cluster.living().len() {
        _ if shared.is_read_only() => "read-only",
        _ if shared.cluster.leads() && shared.cluster.members() > 1 => "leader",
        0 | 1 if shared.cluster.members() <= 1 => "standalone",
        _ => "follower",
    }
}

/// Returns the latencies of all requests.
pub(crate) fn latency(shared: &Shared) -> Summary {
    shared.figures.write_us.summary().and(shared.figures.read_us.summary())
}

/// Returns all metrics.
pub(crate) fn metrics(shared: &Shared) -> Vec<Metric> {
    let mut out = Vec::new();
    gauges(shared, &mut out);
    counts(shared, &mut out);
    let f = &shared.figures;
    for (name, latency) in [("readlatency", &f.read_us), ("updatelatency", &f.write_us)] {
        out.push(Metric { name, value: Value::Summary(latency.summary()) });
    }
    out
}

fn gauges(shared: &Shared, out: &mut Vec<Metric>) {
    let (f, counters, all) = (&shared.figures, counters(shared), latency(shared));
    let watches = shared.watches.look(|t| Kind::ALL.into_iter().map(|k| t.count(k)).sum::<usize>());
    let (open, most_open) = open_files();
    let mut add = |name, value: f64| out.push(Metric { name, value: Value::Gauge(value) });
    add("uptime", f.started.elapsed().as_millis() as f64);
    add("avg_latency", all.average_ms());
    add("max_latency", ms(all.most_us));
    add("min_latency", ms(all.least_us));
    add("num_alive_connections", shared.connections().len() as f64);
    add("outstanding_requests", f.outstanding.load(Ordering::Relaxed) as f64);
    add("znode_count", counters.nodes as f64);
    add("watch_count", watches as f64);
    add("ephemerals_count", counters.ephemerals as f64);
    add("approximate_data_size", counters.bytes as f64);
    add("last_processed_zxid", counters.zxid as f64);
    add("global_sessions", shared.sessions.count() as f64);
    add("local_sessions", 0.0);
    open.into_iter().for_each(|n| add("open_file_descriptor_count", n));
    most_open.into_iter().for_each(|n| add("max_file_descriptor_count", n));
    let living = shared.cluster.living().len();
    add("quorum_size", shared.cluster.members() as f64);
    if state(shared) == "leader" {
        let others = living.saturating_sub(1) as f64;
        add("learners", others);
        add("synced_followers", others);
    }
    let health = shared.engine.health();
    add("applied_below", health.applied_below.0 as f64);
    add("known_tail", health.known_tail.0 as f64);
    add("replica_out_of_service", f64::from(u8::from(health.out_of_service.is_some())));
}

fn counts(shared: &Shared, out: &mut Vec<Metric>) {
    let f = &shared.figures;
    let mut add = |name, value: u64| out.push(Metric { name, value: Value::Counter(value as f64) });
    add("packets_received", f.received.get());
    add("packets_sent", f.sent.get());
    add("bytes_received_count", f.received_bytes.get());
    add("connection_request_count", f.connects.get());
    add("connection_revalidate_count", f.revalidated.get());
    add("connection_drop_count", f.dropped.get());
    add("connection_rejected", f.refused_connections());
    add("connection_token_deficit", f.refused(Refusal::ConnectionRate));
    add("sessionless_connections_expired", f.refused(Refusal::Silent));
    add("stale_sessions_expired", f.expired.get());
    add("auth_failed_count", f.refused(Refusal::Authentication));
    add("tls_handshake_failures", f.refused(Refusal::Tls));
    add("large_requests_rejected", f.refused(Refusal::Frame));
    add("request_throttle_wait_count", f.throttled.get() + f.held_back.get());
    add("requests_refused", f.refused(Refusal::Request));
    add("clients_ahead_refused", f.refused(Refusal::Ahead));
    add("commands_refused", f.refused(Refusal::Word));
    add("slow_clients_cut_off", f.refused(Refusal::Slow));
    add("writes_above_quota", f.over_quota.get());
    add("watches_refused", f.refused(Refusal::Watch));
    add("writes_refused_by_quota", f.refused(Refusal::Quota));
    add("writes_refused_by_disk", f.refused(Refusal::Disk));
    add("replies_too_long", f.refused(Refusal::Reply));
    add("commit_count", f.write_us.summary().count);
}

/// Formats a number as ZooKeeper does.
pub(crate) fn printed(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.4}") }
}

/// Returns the metrics as `mntr` lists them: names and values.
pub(crate) fn rows(metrics: &[Metric]) -> Vec<(String, f64)> {
    let mut out = Vec::new();
    for Metric { name, value } in metrics {
        match value {
            Value::Gauge(value) | Value::Counter(value) => out.push(((*name).to_owned(), *value)),
            Value::Summary(s) => {
                out.push((format!("avg_{name}"), s.average_ms()));
                out.push((format!("min_{name}"), ms(s.least_us)));
                out.push((format!("max_{name}"), ms(s.most_us)));
                out.push((format!("cnt_{name}"), s.count as f64));
                out.push((format!("sum_{name}"), ms(s.sum_us)));
                for (word, us) in ["p50", "p95", "p99", "p999"].into_iter().zip(s.quantiles_us) {
                    out.push((format!("{word}_{name}"), ms(us)));
                }
            }
        }
    }
    out
}

/// Formats the metrics in the text format of Prometheus, with the names of ZooKeeper's own provider: counters lack `_total`. The
/// end-of-file line is not included.
pub fn exposition(metrics: &[Metric]) -> String {
    let mut out = String::new();
    for Metric { name, value } in metrics {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Gauge(value) => writeln!(out, "# TYPE {name} gauge\n{name} {value}"),
            // In this format, a counter's name would have to end in `_total`.
            Value::Counter(value) => writeln!(out, "# TYPE {name} unknown\n{name} {value}"),
            Value::Summary(s) => {
                let _ = writeln!(out, "# TYPE {name} summary");
                for (permille, us) in QUANTILES_PERMILLE.into_iter().zip(s.quantiles_us) {
                    let _ = writeln!(out, "{name}{{quantile=\"{}\"}} {}", permille as f64 / 1000.0, ms(us));
                }
                writeln!(out, "{name}_count {}\n{name}_sum {}", s.count, ms(s.sum_us))
            }
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_text_that_prometheus_reads() {
        let summary = Summary {
            count: 2,
            sum_us: 3_000,
            quantiles_us: [500, 1_000, 1_000, 2_000],
            ..Summary::default()
        };
        let text = exposition(&[
            Metric { name: "znode_count", value: Value::Gauge(5.0) },
            Metric { name: "packets_sent", value: Value::Counter(7.0) },
            Metric { name: "readlatency", value: Value::Summary(summary) },
        ]);
        let expected = "# TYPE znode_count gauge\nznode_count 5\n# TYPE packets_sent unknown\npackets_sent 7\n\
                        # TYPE readlatency summary\nreadlatency{quantile=\"0.5\"} 0.5\nreadlatency{quantile=\"0.95\"} 1\n\
                        readlatency{quantile=\"0.99\"} 1\nreadlatency{quantile=\"0.999\"} 2\nreadlatency_count 2\n\
                        readlatency_sum 3\n";
        assert_eq!(text, expected);
    }
}

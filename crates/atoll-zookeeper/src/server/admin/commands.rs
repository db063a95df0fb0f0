//! The commands of ZooKeeper's AdminServer, which return the figures of the four-letter words as JSON, for programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};

use super::super::latency::ms;
use super::super::{Shared, described, monitor, words};
use crate::tree::read;
use crate::watch::table::Kind;

/// Each command with its short names.
const COMMANDS: &[(&str, &[&str])] = &[
    ("configuration", &["conf", "config"]),
    ("connection_stat_reset", &["crst"]),
    ("connections", &["cons"]),
    ("dirs", &[]),
    ("dump", &[]),
    ("environment", &["env", "envi"]),
    ("get_trace_mask", &["gtmk"]),
    ("hash", &[]),
    ("initial_configuration", &["icfg"]),
    ("is_read_only", &["isro"]),
    ("last_snapshot", &["lsnp"]),
    ("leader", &["lead"]),
    ("monitor", &["mntr"]),
    ("observer_connection_stat_reset", &["orst"]),
    ("observers", &["obsr"]),
    ("restore", &["rest"]),
    ("ruok", &[]),
    ("server_stats", &["srvr"]),
    ("set_trace_mask", &["stmk"]),
    ("snapshot", &["snap"]),
    ("stat_reset", &["srst"]),
    ("stats", &["stat"]),
    ("system_properties", &["sysp"]),
    ("voting_view", &[]),
    ("watch_summary", &["wchs"]),
    ("watches", &["wchc"]),
    ("watches_by_path", &["wchp"]),
    ("zabstate", &[]),
];

/// Returns the names of the commands, in order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, _)| *name)
}

/// Returns the name of the command with this name or short name.
pub(super) fn named(asked: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(name, short)| *name == asked || short.contains(&asked)).map(|(name, _)| *name)
}

/// Returns the value of an argument in a query string.
pub(super) fn argument<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Commands that list client data, which may be large, or read the disk.
const LONG: [&str; 8] = [
    "connections",
    "dump",
    "environment",
    "initial_configuration",
    "stats",
    "system_properties",
    "watches",
    "watches_by_path",
];

/// Runs a command like [`run`]. A command that may take long runs on another thread than the node's (contracts X20).
pub(super) async fn run_in_turn(shared: &Arc<Shared>, name: &'static str, query: &str) -> Map<String, Value> {
    if !LONG.contains(&name) {
        return run(shared, name, query);
    }
    let Some(turn) = shared.walks.turn().await else { return Map::new() };
    let (its, query) = (shared.clone(), query.to_owned());
    let done = shared.beside(move || {
        let _turn = turn;
        run(&its, name, &query)
    });
    done.await.unwrap_or_default()
}

/// Runs a command and returns its answer, which may be an `error`. Most commands only report; a few reset counters of this node.
fn run(shared: &Shared, name: &str, query: &str) -> Map<String, Value> {
    match answer(shared, name, query) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn answer(shared: &Shared, name: &str, query: &str) -> Value {
    match name {
        "configuration" => configuration(shared),
        "connection_stat_reset" | "stat_reset" => {
            words::set_back(shared, name == "stat_reset");
            json!({})
        }
        "connections" => {
            json!({ "connections": connections(shared, false), "secure_connections": connections(shared, true) })
        }
        "dirs" => json!({ "datadir_size": shared.engine.health().store_bytes, "logdir_size": 0 }),
        "dump" => dump(shared),
        "environment" => described::environment()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect::<Map<_, _>>()
            .into(),
        "get_trace_mask" => json!({ "tracemask": words::trace_mask(shared) }),
        // Accepted as in ZooKeeper, without effect: nothing is traced with this mask here.
        "set_trace_mask" => match argument(query, "traceMask").map(str::parse::<i64>) {
            Some(Ok(mask)) => json!({ "tracemask": words::set_trace_mask(shared, mask) }),
            _ => json!({ "error": "setTraceMask requires long traceMask argument" }),
        },
        "hash" => hashes(shared),
        "initial_configuration" => json!({ "initial_configuration": described::configuration(shared) }),
        "is_read_only" => json!({ "read_only": shared.is_read_only() }),
        "leader" => {
            let leads = shared.cluster.leads();
            json!({ "is_leader": leads, "leader_id": leads.then(|| id(shared)), "leader_ip": "" })
        }
        "monitor" => figures(shared),
        "observers" => json!({ "synced_observers": 0, "observers": [] }),
        "server_stats" => stats(shared),
        "stats" => {
            let mut all = stats(shared);
            all["connections"] = connections(shared, false);
            all["secure_connections"] = connections(shared, true);
            all
        }
        "system_properties" => properties(shared),
        "voting_view" => {
            let living = shared.cluster.living();
            json!({ "current_config": living.iter().map(|n| (n.0.to_string(), json!({ "server_id": n.0 }))).collect::<Map<_, _>>() })
        }
        "watch_summary" => shared.watches.look(|table| {
            let total: usize = Kind::ALL.into_iter().map(|kind| table.count(kind)).sum();
            let (connections, paths) = (table.watching(), table.watched());
            json!({ "num_connections": connections, "num_paths": paths, "num_total_watches": total })
        }),
        "watches" => {
            let (found, left_out) = words::watches_of_connections(shared);
            let row = |(session, paths): (i64, Vec<String>)| (session.to_string(), json!(paths));
            let found: Map<_, _> = found.into_iter().map(row).collect();
            with_left_out(json!({ "session_id_to_watched_paths": found }), left_out)
        }
        "watches_by_path" => {
            let (found, left_out) = words::watches_of_paths(shared);
            let row = |(path, sessions): (String, Vec<i64>)| (path, json!(sessions));
            let found: Map<_, _> = found.into_iter().map(row).collect();
            with_left_out(json!({ "path_to_session_ids": found }), left_out)
        }
        "zabstate" => zab_state(shared),
        "ruok" => match shared.engine.out_of_service() {
            Some(_) => json!({ "error": words::NOT_SERVING.trim_end() }),
            None => json!({}),
        },
        // There are no observers whose counters could be reset.
        _ => json!({}),
    }
}

fn id(shared: &Shared) -> u32 {
    shared.engine.proposer().node.0
}

fn configuration(shared: &Shared) -> Value {
    let o = &shared.options;
    json!({
        "tick_time": o.tick_ms,
        "max_client_cnxns": o.max_connections_of_address,
        "max_cnxns": o.max_connections,
        "min_session_timeout": o.min_session_timeout_ms,
        "max_session_timeout": o.max_session_timeout_ms,
        "jute_max_buffer": o.max_buffer_bytes,
        "global_outstanding_limit": o.max_outstanding_of_all,
        "server_id": id(shared),
    })
}

fn properties(shared: &Shared) -> Value {
    let text = described::configuration(shared);
    let rows = text.lines().filter_map(|l| l.split_once('='));
    rows.map(|(name, value)| (name.to_owned(), Value::from(value))).collect::<Map<_, _>>().into()
}

fn connections(shared: &Shared, secure: bool) -> Value {
    let connections = shared.all_connections();
    let of = connections.iter().filter(|c| c.is_secure.load(Ordering::Relaxed) == secure);
    of.map(|c| {
        let taken = c.latency.summary();
        json!({
            "remote_socket_address": c.peer.to_string(),
            "outstanding_requests": c.outstanding.load(Ordering::Relaxed),
            "packets_received": c.received.get(),
            "packets_sent": c.sent.get(),
            "session_id": c.session.load(Ordering::Relaxed),
            "session_timeout": c.timeout_ms.load(Ordering::Relaxed),
            "established": monitor::epoch_ms(c.since),
            "last_operation": c.last.operation(),
            "last_cxid": c.last.cxid().unwrap_or(-1),
            "last_zxid": c.last.zxid(),
            "last_response_time": c.last.at_ms(),
            "last_latency": c.latency.last_us() / 1_000,
            "min_latency": taken.least_us / 1_000,
            "avg_latency": taken.sum_us / taken.count.max(1) / 1_000,
            "max_latency": taken.most_us / 1_000,
            "subject": c.subject.get(),
        })
    })
    .collect()
}

fn zab_state(shared: &Shared) -> Value {
    let zxid = shared.zxid();
    json!({
        "myid": id(shared),
        "is_leader": shared.cluster.leads(),
        "voting": true,
        "last_zxid": format!("{zxid:#x}"),
        "zab_epoch": zxid >> 32,
        "zab_counter": zxid & 0xffff_ffff,
        "zabstate": "broadcast",
    })
}

fn dump(shared: &Shared) -> Value {
    let view = shared.engine.view();
    let mut paths = Map::new();
    let mut timeouts: BTreeMap<u128, Vec<i64>> = BTreeMap::new();
    let (mut budget, mut left_out) = (words::RowBudget::default(), 0);
    for (session, timeout) in shared.sessions.ids() {
        timeouts.entry(timeout.as_millis()).or_default().push(session);
        if budget.is_full() {
            left_out += 1;
            continue;
        }
        let mut ephemerals = Vec::new();
        let listed = read::ephemerals(&view, session, "/", |path| {
            if budget.take(path.len()) {
                ephemerals.push(path.to_owned());
            }
        });
        if budget.is_full() {
            left_out += 1;
        } else if listed.is_ok() && !ephemerals.is_empty() {
            paths.insert(session.to_string(), json!(ephemerals));
        }
    }
    let timeouts: Map<_, _> = timeouts.into_iter().map(|(ms, ids)| (ms.to_string(), json!(ids))).collect();
    with_left_out(
        json!({ "timeout_ms_to_session_ids": timeouts, "session_id_to_ephemeral_paths": paths }),
        left_out,
    )
}

/// Adds the number of omitted rows (connections, paths, or sessions that may have ephemerals) to an answer, if there are any.
/// ZooKeeper's own answers are not limited.
fn with_left_out(mut answer: Value, left_out: usize) -> Value {
    if left_out > 0 {
        answer["left_out"] = left_out.into();
    }
    answer
}

fn hashes(shared: &Shared) -> Value {
    let row = |h: &atoll_db::HashAt| json!({ "position": h.below.0, "digest": format!("{:032x}", h.hash) });
    json!({ "digests": shared.engine.hashes().iter().map(row).collect::<Value>() })
}

fn figures(shared: &Shared) -> Value {
    let mut out = Map::new();
    out.insert("version".to_owned(), words::VERSION.into());
    out.insert("server_state".to_owned(), monitor::state(shared).into());
    for (name, value) in monitor::rows(&monitor::metrics(shared)) {
        let whole = value.fract() == 0.0 && value.abs() < 9e15;
        out.insert(name, if whole { json!(value as i64) } else { json!(value) });
    }
    Value::Object(out)
}

fn stats(shared: &Shared) -> Value {
    let (f, counters, latency) = (&shared.figures, monitor::counters(shared), monitor::latency(shared));
    json!({
        "version": words::VERSION,
        "read_only": shared.is_read_only(),
        "node_count": counters.nodes,
        "server_stats": {
            "packets_sent": f.sent.get(),
            "packets_received": f.received.get(),
            "min_latency": ms(latency.least_us),
            "avg_latency": latency.average_ms(),
            "max_latency": ms(latency.most_us),
            "last_processed_zxid": counters.zxid,
            "num_alive_client_connections": shared.connections().len(),
            "outstanding_requests": f.outstanding.load(Ordering::Relaxed),
            "server_state": monitor::state(shared),
            "uptime": u64::try_from(f.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        },
    })
}

//! `atoll status`.

use atoll_client::proto::{LogInfo, NodeInfo, ServerProgress, StatusReply};
use serde_json::{Value, json};

use super::{CliError, Common, Table, chain, grouped, node};

/// Arguments of `atoll status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub common: Common,
}

/// Runs `atoll status`.
pub async fn run(args: &StatusArgs) -> Result<(), CliError> {
    let status = args.common.client().await?.status().await?;
    args.common.print(&to_json(&status), || to_text(&status))
}

fn to_json(status: &StatusReply) -> Value {
    let server = |s: &ServerProgress| json!({"node": s.node, "has_up_to": s.has_up_to, "lacks": s.lacks});
    let log = |l: &LogInfo| {
        json!({
            "name": l.name, "tail": l.tail, "trim": l.trim, "chain_version": l.chain_version,
            "segments": l.segments, "chain_bytes": l.chain_bytes, "chain_bytes_max": l.chain_bytes_max, "registers": chain::place(&l.registers), "kind": l.loglet_kind, "sequencer": l.sequencer,
            "servers": l.servers.iter().map(server).collect::<Vec<_>>(),
            "healthy": l.healthy, "reason": l.reason, "last_action": l.last_action, "duties": l.duties.iter().map(chain::duty).collect::<Vec<_>>(),
        })
    };
    json!({
        "healthy": status.healthy, "answered_by": status.node, "version": status.version,
        "nodes": status.nodes.iter().map(node::to_json).collect::<Vec<_>>(),
        "logs": status.logs.iter().map(log).collect::<Vec<_>>(),
    })
}

fn to_text(status: &StatusReply) -> String {
    let health = if status.healthy { "healthy" } else { "NOT HEALTHY" };
    let mut text = format!("{health}, as node {} sees it (version {})\n\n", status.node, status.version);
    text.push_str(&node::table(&status.nodes).to_string());
    let mut logs =
        Table::new(["LOG", "TAIL", "TRIM", "SEGMENTS", "CHAIN", "KIND", "SEQUENCER", "SERVERS", "HEALTH"]);
    for l in &status.logs {
        logs.row([
            l.name.clone(),
            grouped(l.tail),
            grouped(l.trim),
            l.segments.to_string(),
            chain_of(l),
            l.loglet_kind.clone(),
            l.sequencer.map_or("-".to_owned(), |n| n.to_string()),
            servers(l, &status.nodes),
            if l.healthy { "ok".to_owned() } else { l.reason.clone() },
        ]);
    }
    if logs.is_empty() {
        text.push_str("\nno logs yet; `atoll log append TEXT` makes one\n");
    } else {
        text.push_str(&format!("\n{logs}"));
    }
    for l in status.logs.iter().filter(|l| !l.last_action.is_empty()) {
        text.push_str(&format!("\n{}: {}\n", l.name, l.last_action));
    }
    text
}

/// Returns how full the chain is, and where it is unless it is at home.
fn chain_of(log: &LogInfo) -> String {
    let full = (log.chain_bytes * 100).div_ceil(log.chain_bytes_max.max(1));
    let elsewhere = if log.registers.is_empty() { String::new() } else { format!(" in {}", log.registers) };
    format!("{full}%{elsewhere}")
}

/// Returns each server, with the number of entries that it lacks below the tail.
fn servers(log: &LogInfo, nodes: &[NodeInfo]) -> String {
    let is_down = |id| nodes.iter().any(|n| n.id == id && n.state == "down");
    let one = |s: &ServerProgress| match (s.has_up_to, s.lacks) {
        (None, _) if is_down(s.node) => format!("{} down", s.node),
        (None, _) => format!("{} silent", s.node),
        (Some(_), 0) => format!("{} ok", s.node),
        (Some(_), n) => format!("{} lacks {}", s.node, grouped(n)),
    };
    log.servers.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_server_lacks_is_shown() {
        let server = |node, has_up_to, lacks| ServerProgress { node, has_up_to, lacks };
        let log = LogInfo {
            name: "main".into(),
            tail: 5000,
            servers: vec![server(1, Some(5000), 0), server(2, Some(3800), 1200), server(3, None, 0)],
            last_action: "added shard 2: full".into(),
            ..LogInfo::default()
        };
        let down = NodeInfo { id: 3, state: "down".into(), ..NodeInfo::default() };
        assert_eq!(servers(&log, &[down]), "1 ok, 2 lacks 1,200, 3 down");
        let elsewhere =
            LogInfo { chain_bytes: 7, chain_bytes_max: 700, registers: "etcd".into(), ..log.clone() };
        assert_eq!([chain_of(&log), chain_of(&elsewhere)], ["0%", "1% in etcd"]);
        assert_eq!(servers(&log, &[]), "1 ok, 2 lacks 1,200, 3 silent");
        let status = StatusReply { logs: vec![log], ..StatusReply::default() };
        assert!(to_text(&status).starts_with("NOT HEALTHY"));
        assert!(to_text(&status).ends_with("\nmain: added shard 2: full\n"));
        assert_eq!(to_json(&status)["logs"][0]["servers"][1]["lacks"], 1200);
    }
}

//! The output for the operator: a table of nodes, the next commands to try, and events of the nodes.

use std::time::Duration;

use super::child::Event;
use super::plan::{BASE_PORT, Plan};
use super::state::DevState;
use crate::serve::config::Roles;

/// Prints a line before the children are started.
pub fn starting(plan: &Plan) {
    let what = if plan.found { "starting again" } else { "making a cluster of" };
    let (count, data) = (plan.nodes.len(), plan.data.display());
    let nodes = if count == 1 { "node" } else { "nodes" };
    println!("{what} {count} {nodes} in {data} (kept when this ends; delete the folder to start afresh)");
}

/// Reports that the cluster does not answer yet.
pub fn still_waiting(plan: &Plan, why_not: &str) {
    println!(
        "the cluster does not answer yet ({why_not}); the nodes' logs are {}/node-*/log",
        plan.data.display()
    );
}

/// Prints the nodes, and commands to try with them.
pub fn table(plan: &Plan, state: &DevState) {
    let apart = plan.nodes.iter().any(|n| n.config.roles != Roles::ALL);
    let mut rows = vec![["node", "pid", "roles", "grpc", "metrics", "zookeeper", "data"].map(str::to_owned)];
    for n in &plan.nodes {
        let pid = state.pid(n.id).map_or_else(|| "-".to_owned(), |p| p.to_string());
        let metrics = n.config.metrics.clone().unwrap_or_else(|| "-".into());
        let roles = n.config.roles.names().join(",");
        rows.push([
            n.id.to_string(),
            pid,
            roles,
            n.config.grpc.clone(),
            metrics,
            n.config.zookeeper.clone().unwrap_or_else(|| "-".into()),
            n.config.data.display().to_string(),
        ]);
    }
    println!();
    for row in aligned(&rows, if apart { &[] } else { &[2] }) {
        println!("{row}");
    }
    println!("\n{}", hint(plan, state));
}

/// Returns the rows with columns as wide as their widest cell. The last column is not padded.
fn aligned<const N: usize>(rows: &[[String; N]], without: &[usize]) -> Vec<String> {
    let columns: Vec<usize> = (0..N).filter(|c| !without.contains(c)).collect();
    let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; N]| {
        let cells = columns.iter().map(|c| format!("{:<width$}", row[*c], width = width(*c)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn hint(plan: &Plan, state: &DevState) -> String {
    let doors: Vec<&str> = plan.nodes.iter().map(|n| n.config.grpc.as_str()).collect();
    let default_doors = doors
        .iter()
        .zip(1u32..)
        .all(|(d, i)| *d == format!("127.0.0.1:{}", u32::from(BASE_PORT) + 10 * i + 1));
    let mut lines = vec!["Ready. In another terminal:".to_owned()];
    if !default_doors || doors.len() > 3 {
        lines.push(format!("  export ATOLL_CONNECT={}", doors.join(",")));
    }
    let mut rows = vec![
        ["atoll log append hello".to_owned(), "a record, on a majority of disks".to_owned()],
        ["atoll log read".into(), "and back".into()],
        ["atoll status".into(), "health, tails, who lacks what".into()],
    ];
    if doors.len() >= 3 {
        let pid = plan.nodes.first().and_then(|n| state.pid(n.id)).unwrap_or(0);
        rows.push([format!("kill -9 {pid}"), "node 1, or any other; the log continues".into()]);
        rows.push(["atoll chain extend --sequencer 2".into(), "swap the Loglet under the log".into()]);
    }
    lines.extend(aligned(&rows, &[]).into_iter().map(|l| format!("  {l}")));
    lines.push("Ctrl-C ends all nodes.".into());
    lines.join("\n")
}

/// Prints an event of a child.
pub fn event(event: &Event) {
    match event {
        Event::Started { again: false, .. } => {}
        Event::Started { id, pid, again: true } => println!("node {id} is back, pid {pid}"),
        Event::Ended { id, how, after, again_in, last_words } => {
            let next = match again_in {
                None => "left dead".to_owned(),
                Some(Duration::ZERO) => "starting it again".into(),
                Some(wait) => {
                    format!("starting it again in {:.1} s, because it dies so quickly", wait.as_secs_f64())
                }
            };
            println!("node {id} {how} after {:.1} s; {next}", after.as_secs_f64());
            if let Some(words) = last_words.as_ref().filter(|w| !w.is_empty()) {
                println!("  the last line of its log: {words}");
            }
        }
    }
}

/// Prints a line before the children end.
pub fn ending() {
    println!("ending all nodes");
}

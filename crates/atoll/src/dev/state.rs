//! `DIR/dev.json`: the nodes, for programs. The file is replaced by rename, so that a reader always sees a complete state (X24).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::child::Event;
use super::plan::Plan;

/// The file, and its next content.
#[derive(Debug)]
pub struct DevState {
    file: PathBuf,
    nodes: Vec<(u32, Value)>,
    pids: BTreeMap<u32, u32>,
}

impl DevState {
    /// Creates the state before any child runs. Writes nothing.
    pub fn new(plan: &Plan) -> Self {
        let nodes = plan.nodes.iter().map(|n| {
            let row = json!({
                "id": n.id,
                "pid": null,
                "data": n.config.data,
                "grpc": n.config.grpc,
                "peer": n.config.peer,
                "metrics": n.config.metrics,
                "zookeeper": n.config.zookeeper,
                "zookeeper_admin": n.config.zookeeper_admin,
                "roles": n.config.roles.names(),
                "config": n.config_file(),
                "log": n.log(),
            });
            (n.id, row)
        });
        DevState { file: plan.data.join("dev.json"), nodes: nodes.collect(), pids: BTreeMap::new() }
    }

    /// Notes that a child was started or has ended.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Started { id, pid, .. } => self.pids.insert(*id, *pid),
            Event::Ended { id, .. } => self.pids.remove(id),
        };
    }

    /// Returns the process id of a node, if it runs.
    pub fn pid(&self, id: u32) -> Option<u32> {
        self.pids.get(&id).copied()
    }

    /// Writes a temporary file and renames it over the old one.
    pub fn write(&self) -> io::Result<()> {
        let rows = self.nodes.iter().map(|(id, row)| {
            let mut row = row.clone();
            row["pid"] = json!(self.pid(*id));
            row
        });
        let all = json!({ "pid": std::process::id(), "nodes": rows.collect::<Vec<_>>() });
        let aside = self.file.with_extension("json.new");
        fs::write(&aside, format!("{all:#}\n"))?;
        fs::rename(aside, &self.file)
    }

    /// Removes the file, once there is no cluster any more.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

//! The report about an import.

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::super::{CliError, Common, grouped};

/// Maximum number of lines of one kind in the text report; `--json` prints all.
const NAMED: usize = 20;

/// The counts of an import, and the nodes that it left out.
#[derive(Debug)]
pub struct Report {
    pub bar: ProgressBar,
    began: Instant,
    pub nodes: u64,
    pub bytes: u64,
    pub made: u64,
    pub replaced: u64,
    pub same: u64,
    pub quotas: u64,
    pub ephemerals: Vec<(String, i64)>,
    pub left_out: Vec<(String, String)>,
    pub imported_s: Option<f64>,
    pub compared: u64,
    pub differences: Vec<(String, String)>,
    pub compared_s: Option<f64>,
}

impl Report {
    pub fn new() -> Report {
        Report {
            bar: ProgressBar::hidden(),
            began: Instant::now(),
            nodes: 0,
            bytes: 0,
            made: 0,
            replaced: 0,
            same: 0,
            quotas: 0,
            ephemerals: Vec::new(),
            left_out: Vec::new(),
            imported_s: None,
            compared: 0,
            differences: Vec::new(),
            compared_s: None,
        }
    }

    /// Shows a progress bar, up to `total` if it is known. Only on a terminal.
    pub fn begin(&mut self, what: &'static str, total: Option<u64>) {
        self.bar.finish_and_clear();
        self.began = Instant::now();
        if !io::stderr().is_terminal() {
            return;
        }
        let (bar, template) = match total {
            Some(n) => (ProgressBar::new(n), "{msg} {wide_bar} {human_pos}/{human_len} nodes  {eta} left"),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {human_pos} nodes"),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        self.bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        self.bar.set_message(what);
    }

    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    pub fn differs(&mut self, path: String, how: &str) {
        self.differences.push((path, how.to_owned()));
    }

    fn to_json(&self, from: &str, to: &str) -> Value {
        let list = |rows: &[(String, String)], key: &str| -> Vec<Value> {
            rows.iter().map(|(path, word)| json!({"path": path, key: word})).collect()
        };
        let ephemeral = |(path, owner): &(String, i64)| json!({"path": path, "owner": format!("{owner:#x}")});
        json!({
            "from": from,
            "to": to,
            "nodes": self.nodes,
            "bytes": self.bytes,
            "made": self.made,
            "replaced": self.replaced,
            "same": self.same,
            "quotas": self.quotas,
            "ephemerals": self.ephemerals.iter().map(ephemeral).collect::<Vec<_>>(),
            "left_out": list(&self.left_out, "why"),
            "seconds": self.imported_s,
            "compared": self.compared_s.map(|_| self.compared),
            "differences": list(&self.differences, "how"),
            "compare_seconds": self.compared_s,
        })
    }

    fn to_text(&self) -> String {
        let mut lines = Vec::new();
        let mut named = |rows: &mut dyn Iterator<Item = String>, count: usize| {
            lines.extend(rows.take(NAMED));
            if count > NAMED {
                lines.push(format!("  and {} more; --json names all", count - NAMED));
            }
        };
        let ephemeral =
            |(path, owner): &(String, i64)| format!("ephemeral of session {owner:#x}, not imported: {path}");
        named(&mut self.ephemerals.iter().map(ephemeral), self.ephemerals.len());
        let left_out = |(path, why): &(String, String)| format!("left out, with all below it: {path}: {why}");
        named(&mut self.left_out.iter().map(left_out), self.left_out.len());
        let differs = |(path, how): &(String, String)| format!("{path} {how}");
        named(&mut self.differences.iter().map(differs), self.differences.len());
        if let Some(seconds) = self.imported_s {
            let rate = self.nodes as f64 / seconds.max(1e-9);
            lines.push(format!(
                "{} nodes, {} bytes, in {seconds:.2} s ({} nodes/s): {} made, {} replaced, {} there already; {} quotas",
                grouped(self.nodes),
                grouped(self.bytes),
                grouped(rate as u64),
                grouped(self.made),
                grouped(self.replaced),
                grouped(self.same),
                grouped(self.quotas)
            ));
        }
        if let Some(seconds) = self.compared_s {
            let verdict = match self.differences.len() {
                0 => "the same on both sides".to_owned(),
                n => format!("{} differences", grouped(n as u64)),
            };
            lines.push(format!("{} nodes compared in {seconds:.2} s: {verdict}", grouped(self.compared)));
        }
        lines.join("\n")
    }

    /// Prints the whole report. Fails if the two sides differ.
    pub fn print(&self, common: &Common, from: &str, to: &str) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        match self.imported_s {
            Some(_) => common.print_done(&self.to_json(from, to), || self.to_text())?,
            None => common.print(&self.to_json(from, to), || self.to_text())?,
        }
        let (left_out, differing) = (self.left_out.len(), self.differences.len());
        match (left_out, differing) {
            (0, 0) => Ok(()),
            (0, n) => Err(CliError::Check(format!(
                "{n} differences: if there were writes in the meantime, stop them and run this again with --overwrite"
            ))),
            (n, _) => Err(CliError::Check(format!(
                "{n} nodes were left out, with what lies below them: mend what is named, and run this again with --overwrite"
            ))),
        }
    }
}

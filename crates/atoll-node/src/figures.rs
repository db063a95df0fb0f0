//! The metrics of a node: those of its server roles, the host, the journal, the policy, the database, and the doors.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::Measure;
use atoll_db::OutOfService;
use atoll_door::metrics::{Figures, process_measures};

use crate::assembly::NodeParts;
use crate::host::HostHandle;
use crate::members::Health;

/// The maximum age of the core's metrics.
const EVERY: Duration = Duration::from_secs(1);

/// Collects the metrics of a node. See the module documentation.
pub struct NodeFigures {
    handle: HostHandle,
    parts: NodeParts,
    doors: Vec<Arc<dyn Figures>>,
    core: Mutex<Vec<Measure>>,
}

impl NodeFigures {
    /// Starts to collect the core's metrics on the current runtime, until the node stops. `doors` are the sources of the doors' own
    /// metrics.
    pub fn start(handle: HostHandle, parts: NodeParts, doors: Vec<Arc<dyn Figures>>) -> Arc<NodeFigures> {
        let figures = Arc::new(NodeFigures { handle, parts, doors, core: Mutex::default() });
        let me = figures.clone();
        tokio::spawn(async move {
            while let Ok(core) = me.handle.with_core(|core| core.measures()).await {
                *me.core.lock().unwrap_or_else(PoisonError::into_inner) = core;
                tokio::time::sleep(EVERY).await;
            }
        });
        figures
    }
}

impl Figures for NodeFigures {
    fn measures(&self) -> Vec<Measure> {
        let mut all = self.core.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut add = |name, label: Option<(&'static str, String)>, value: f64| {
            all.push(Measure { name, label, value });
        };
        let host = self.handle.stats();
        add("turns_total", None, host.turns as f64);
        add("journal_syncs_total", None, host.syncs as f64);
        add("journal_direct_total", None, host.flights as f64);
        add("journal_records_total", None, host.records as f64);
        add("journal_written_bytes_total", None, host.bytes as f64);
        let cells = self.handle.cell_stats();
        add("cells", None, cells.cells as f64);
        add("cell_file_bytes", None, cells.file_bytes as f64);
        add("cell_writes_total", None, cells.writes as f64);
        add("cell_written_bytes_total", None, cells.written_bytes as f64);
        add("cell_syncs_total", None, cells.syncs as f64);
        for (name, permille) in [("p50", 500), ("p99", 990), ("p999", 999)] {
            let at_most = host.sync_us.at_permille(permille) as f64;
            add("journal_sync_at_most_microseconds", Some(("quantile", name.into())), at_most);
        }
        add("journal_failed", None, f64::from(u8::from(self.handle.journal_failure().is_some())));
        for (queue, length) in self.handle.queues() {
            add("queue_length", Some(("queue", queue.into())), length as f64);
        }
        for node in self.parts.members.table().nodes.keys() {
            let failing = self.parts.members.health_of(*node).0 != Health::Fine;
            add("node_disk_failing", Some(("node", node.to_string())), f64::from(u8::from(failing)));
        }
        add("log_handles", None, self.parts.logs.open_handles() as f64);
        add("register_handles", None, self.parts.registers.open_registers() as f64);
        add("append_waiting_bytes", None, self.parts.logs.waiting_bytes() as f64);
        let deeds = self.parts.guardian.deeds();
        add("reconfigurations_total", Some(("reason", "failure".into())), deeds.extended as f64);
        add("reconfigurations_total", Some(("reason", "rebuild".into())), deeds.rebuilt as f64);
        add("reconfigurations_failed_total", None, deeds.failed as f64);
        add("shards_added_total", None, self.parts.shard_adder.added().shards as f64);
        add("policies", None, self.parts.log_policies.declared() as f64);
        let policies = self.parts.log_policies.counts();
        add("policy_actions_total", None, policies.done as f64);
        add("policy_actions_failed_total", None, policies.failed as f64);
        if let Some(database) = self.parts.database.get() {
            let h = database.health();
            add("db_applied_position", None, h.applied_below.0 as f64);
            add("db_committed_position", None, h.committed_below.0 as f64);
            add("db_known_tail", None, h.known_tail.0 as f64);
            add("db_commands_total", None, h.commands as f64);
            add("db_rejected_commands_total", None, h.rejected as f64);
            add("db_waiting_commands", None, h.waiting_commands as f64);
            add("db_overlay_bytes", None, h.overlay_bytes as f64);
            add("db_store_bytes", None, h.store_bytes as f64);
            add("db_refills_total", None, h.refills as f64);
            add("db_diverged", None, f64::from(u8::from(h.divergence.is_some())));
            let rotten = h.scrubbed.is_some_and(|s| s.wrong.is_some());
            add("db_scrub_found_rot", None, f64::from(u8::from(rotten)));
            add("db_found_wrong_total", None, h.found_total as f64);
            add("db_withheld", None, f64::from(u8::from(h.withheld.is_some())));
            add("db_halted", None, f64::from(u8::from(h.halted.is_some())));
            add("db_store_failing", None, f64::from(u8::from(h.store_trouble.is_some())));
            let refused = matches!(h.out_of_service, Some(OutOfService::ClockAhead(_)));
            add("db_clock_refused", None, f64::from(u8::from(refused)));
            add("db_out_of_service", None, f64::from(u8::from(h.out_of_service.is_some())));
        }
        if let Some(backup) = self.parts.backups.figures() {
            let mut known = |name, value: Option<f64>| {
                if let Some(value) = value {
                    add(name, None, value);
                }
            };
            known("backup_shipped_position", backup.shipped_below.map(|at| at as f64));
            known("backup_behind_seconds", backup.behind_ms.map(|ms| ms as f64 / 1000.0));
            known("backup_failing", Some(f64::from(u8::from(backup.failing))));
        }
        all.extend(process_measures());
        let mut add = |name, label: Option<(&'static str, String)>, value: f64| {
            all.push(Measure { name, label, value });
        };
        for log in self.parts.logs.known() {
            let label = || Some(("log", log.name.clone()));
            add("log_known_tail", label(), log.tail.0 as f64);
            add("log_chain_version", label(), log.chain.version.0 as f64);
        }
        all.extend(self.doors.iter().flat_map(|door| door.measures()));
        all
    }

    fn under_other_names(&self) -> String {
        self.doors.iter().map(|door| door.under_other_names()).collect()
    }
}

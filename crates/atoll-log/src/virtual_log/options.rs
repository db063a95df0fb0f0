//! Settings of a virtual log on one node, and the receiver of its trouble reports.

use std::fmt;
use std::time::Duration;

use crate::chain::MAX_SEGMENTS;
use atoll_contract::Trouble;

/// Settings of one node's handle of a log. They all affect only speed and memory, never safety.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Kind of a new log's first Loglet if none is requested. None: the first known kind, by name.
    pub first_kind: Option<String>,
    /// How long to wait for the client that sealed a segment to install the next one, before any other node does (T_roll,
    /// virtuallog §4). Too small: clients race each other at every planned change, which is safe but noisy. Too large: appends
    /// stop for that long when a reconfigurer dies half way.
    pub roll_forward_after: Duration,
    /// Maximum number of batches that a lane has in flight. Too small: the lane waits for round trips. Too large: batches stay small, and
    /// a search after a seal has more to cover.
    pub max_inflight_batches: usize,
    /// Maximum number of payload bytes in one batch, unless a single record is longer. Too small: more messages. Too large: a batch takes
    /// longer on the wire than a sync takes on disk.
    pub max_batch_bytes: usize,
    /// Maximum number of bytes that wait in the lane, including those in flight. Submissions beyond it are refused as busy. Too small:
    /// refusals under load. Too large: memory, and long waits.
    pub lane_window_bytes: usize,
    /// The same limit for the lanes of all logs of a node together. Too small: a log with a dead sequencer holds up others. Too large:
    /// memory.
    pub node_window_bytes: usize,
    /// How long an append may go without an answer before the lane reports trouble and looks for a newer chain. Too small: reports during
    /// a slow sync. Too large: a sequencer that hangs is noticed late.
    pub stall_after: Duration,
    /// How long a reconfiguration keeps trying a step before it reports that it failed. Too small: planned changes fail
    /// during short outages. Too large: operators wait.
    pub reconfigure_within: Duration,
    /// How long the old Loglet of a rebuilt segment stays for readers of the older chain (vlog-M4).
    pub delete_after: Duration,
    /// Number of logs from which on a node refuses to create more for its clients. Too small: refusals. Too large: each log takes room in
    /// the registers, and every node must check it when a node dies.
    pub most_logs: usize,
    /// Number of idle logs that a node keeps open. Too small: the next use of a log reads its chain again. Too large: memory.
    pub idle_logs: usize,
    /// Maximum number of segments in the chain itself, up to [`crate::chain::MAX_SEGMENTS`]. Simulations set it low, to reach the limit.
    pub max_segments: usize,
    /// Segments per index page, and pages per page of pages, 2 to 512. Too small: a read of an old position goes through
    /// more pages. Too large: longer chains and pages, so a change takes longer.
    pub page_items: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            first_kind: None,
            roll_forward_after: Duration::from_millis(150),
            max_inflight_batches: 8,
            max_batch_bytes: 256 * 1024,
            lane_window_bytes: 16 * 1024 * 1024,
            node_window_bytes: 128 * 1024 * 1024,
            stall_after: Duration::from_millis(200),
            reconfigure_within: Duration::from_secs(10),
            delete_after: Duration::from_secs(10),
            most_logs: 10_000,
            idle_logs: 512,
            max_segments: MAX_SEGMENTS,
            page_items: 32,
        }
    }
}

/// Receives trouble reports. Called from within a turn, so it must not block.
pub trait TroubleObserver: Send + Sync + fmt::Debug {
    /// Reports that an appender of this log met a problem. Called again while the problem lasts.
    fn on_trouble(&self, log: &str, trouble: Trouble);
}

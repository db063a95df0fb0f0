//! Settings of an engine on one node.

use std::time::Duration;

use atoll_core::Bounds;

use crate::entry::MAX_COMMAND_BYTES;

/// Settings of an engine. None of them affects how an entry is applied, so they may differ between nodes. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The maximum size of the commands in one log entry, unless a single command is longer. Too small: more entries. Too large: an
    /// entry takes longer on the wire than a sync takes on the disk.
    pub max_entry_bytes: usize,
    /// The maximum number of commands in one log entry.
    pub max_entry_commands: usize,
    /// A longer command is cut into parts, one in each entry. At most [`crate::MAX_COMMAND_BYTES`]: that fits into an entry.
    pub cut_above_bytes: usize,
    /// The approximate size of these parts. Too small: more entries. Too large: other nodes' entries wait longer between two parts.
    pub part_bytes: usize,
    /// The maximum number of this node's entries in flight to the log. Too small: the log waits for round trips. Too large: entries
    /// stay small.
    pub max_inflight_entries: usize,
    /// The maximum number of this node's commands that wait for an answer. Beyond it, proposals are refused as busy.
    pub max_waiting_commands: usize,
    /// The maximum total size of these commands.
    pub max_waiting_bytes: usize,
    /// Applied changes are committed once they exceed this size. Too small: a key that changes often is written to the store often.
    /// Too large: more memory, and a longer replay after a crash.
    pub commit_above_bytes: usize,
    /// The same limit while this replica is far behind the log, as after a crash. Nobody waits for these changes to be durable, and
    /// fewer batches are less work for the store. Too large: more memory.
    pub catch_up_commit_bytes: usize,
    /// The store is synced after this many bytes of commits, and at every upkeep. Too small: its syncs compete with those of the
    /// log. Too large: a sync writes so much at once that the log's own writes wait.
    pub sync_above_bytes: usize,
    /// A node proposes nothing while its clock is further ahead than this of more than half of the other members' clocks. Too
    /// small: a slightly wrong clock stops a node from writing. Too large: one wrong clock causes data with a time to live to be
    /// deleted early by up to this time, and timestamps not to advance for as long.
    pub clock_ahead_at_most: Duration,
    /// The maximum size of the entries that one read of the log returns.
    pub read_bytes: usize,
    /// The maximum size of the entries that were read but are not applied. Beyond it, nothing more is read.
    pub max_unapplied_bytes: usize,
    /// A replica that has had nothing to apply for this long durably commits everything that it has applied.
    pub idle_after: Duration,
    /// A replica that has entries to apply but makes no progress for this long is out of service: other nodes take over its
    /// sessions. Too small: a short wait for the disk moves sessions. Too large: the locks of dead clients are held longer.
    pub stalled_after: Duration,
    /// If the store of a replica accepts no commit for this long beyond two upkeeps, the trim of the log does not wait for the
    /// replica, which may then need a refill. Too small: refills are frequent. Too large: the log grows on the disks of the other
    /// nodes.
    pub waited_for: Duration,
    /// A replica that starts with an existing state serves nobody until a peer has reported the hash of its own state. If no peer
    /// has answered after this time, it serves anyway. Too small: it serves without having been compared. Too large: a node whose
    /// peers are all down serves nobody for this long.
    pub answers_within: Duration,
    /// The maximum time for which the store is read before the replica serves. A scrub reads the rest afterwards. Too small: damage
    /// to the store is found late. Too large: a node with a large state serves nobody for this long after its start.
    pub read_within: Duration,
    /// How long surgery on the log waits for the answers of all replicas. The position is held meanwhile. Too small: it is refused while a
    /// node restarts. Too large: an operator waits long for the refusal.
    pub fenced_within: Duration,
    /// After this time, any replica gives a surgery up whose node has died, and the position is no longer held. Too small: a surgery is
    /// given up while its node is still at it. Too large: readers of that position wait long, unless an operator takes it over.
    pub held_at_most: Duration,
    /// The interval at which replicas commit durably, compare their hashes, and trim the log. Too small: many syncs and messages.
    /// Too large: a difference is found late, and the log is longer.
    pub upkeep_every: Duration,
    /// The interval between scrubs of the store. Too small: the disk is busy with scrubs. Too large: rot is found late.
    pub scrub_every: Duration,
    /// A scrub reports damage in ranges of about this many keys; in a store with very many keys the ranges are larger. Too small:
    /// every commit writes many hashes of ranges. Too large: a report says little about the place of the damage.
    pub range_keys: u64,
    /// The number of log entries that are kept although all replicas have them. Too small: a node that was away for a short time
    /// needs a refill. Too large: more disk space.
    pub keep_entries: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_entry_bytes: 256 * 1024,
            max_entry_commands: 4096,
            cut_above_bytes: MAX_COMMAND_BYTES,
            part_bytes: 512 * 1024,
            max_inflight_entries: 8,
            max_waiting_commands: 32 * 1024,
            max_waiting_bytes: 32 * 1024 * 1024,
            commit_above_bytes: 16 * 1024 * 1024,
            catch_up_commit_bytes: 64 * 1024 * 1024,
            sync_above_bytes: 16 * 1024 * 1024,
            clock_ahead_at_most: Duration::from_secs(600),
            read_bytes: 1024 * 1024,
            max_unapplied_bytes: 8 * 1024 * 1024,
            idle_after: Duration::from_secs(1),
            stalled_after: Duration::from_secs(3),
            waited_for: Duration::from_secs(10),
            answers_within: Duration::from_secs(2),
            read_within: Duration::from_secs(1),
            fenced_within: Duration::from_secs(15),
            held_at_most: Duration::from_secs(60),
            upkeep_every: Duration::from_secs(10),
            scrub_every: Duration::from_secs(3600),
            range_keys: 4096,
            keep_entries: 20_000,
        }
    }
}

impl Options {
    /// Returns the limits on the commands that wait for an answer.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { items: self.max_waiting_commands, bytes: self.max_waiting_bytes }
    }
}

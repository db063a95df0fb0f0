//! Settings of an engine on one node.

use std::time::Duration;

use super::crowd::Bounds;

/// None affects how an entry is applied, so they may differ between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most bytes of commands in one log entry, unless a single command is longer. Too small: more entries. Too large: an entry
    /// takes longer on the wire than a sync takes on disk.
    pub max_entry_bytes: usize,
    /// Most commands in one log entry.
    pub max_entry_commands: usize,
    /// Most entries of this node on their way into the log. Too small: the log waits for round trips. Too large: entries stay small.
    pub max_inflight_entries: usize,
    /// Most commands of this node that are not answered; beyond it proposals are refused as busy.
    pub max_waiting_commands: usize,
    /// Most bytes of such commands.
    pub max_waiting_bytes: usize,
    /// Applied changes are set aside for a commit once they take more than this. Too small: a key that is written often is written
    /// to the store often. Too large: memory, and a longer replay after a crash.
    pub commit_above_bytes: usize,
    /// The same limit while this replica is far behind the log, as after a crash: nobody waits for the changes to be durable, and
    /// fewer batches are less work for the store. Too large: memory.
    pub catch_up_commit_bytes: usize,
    /// The store is synced after this many bytes of commits, in addition to at every patrol. Too small: syncs compete with those of
    /// the log. Too large: many bytes at once, for which the log's own writes wait.
    pub sync_above_bytes: usize,
    /// A node whose clock is further ahead than this of more than half of the other members' clocks proposes nothing. Too small:
    /// clocks that are only slightly wrong cost a node its writes. Too large: one wrong clock makes nodes with a time to live be
    /// deleted early by as much, and holds timestamps still for as long.
    pub clock_ahead_at_most: Duration,
    /// Bytes of entries that are read at once.
    pub read_bytes: usize,
    /// Bytes of entries that were read and are not applied; beyond it nothing is read.
    pub max_unapplied_bytes: usize,
    /// A replica that has had nothing to apply for this long durably commits what it has.
    pub idle_after: Duration,
    /// A replica that has something to apply but makes no progress for this long is out of service: other nodes take over what it
    /// holds. Too small: a short wait for the disk moves sessions. Too large: the locks of dead clients stay for longer.
    pub stalled_after: Duration,
    /// A replica whose store accepts nothing for this long is not waited for when the log is trimmed; it may have to fetch the
    /// state from a peer. Too small: it often has to. Too large: the log grows on the disks of the others.
    pub waited_for: Duration,
    /// A replica that is started with an older state serves nobody until a peer has reported the hash of its own state, but for no
    /// longer than this. Too small: it serves without having been compared. Too large: a node whose peers are all away serves
    /// nobody for so long.
    pub answers_within: Duration,
    /// The longest time for which the store is read before the replica serves; a scrub reads the rest afterwards. Too small:
    /// alterations in the store are found late. Too large: a node with a large state serves nobody for so long after its start.
    pub read_within: Duration,
    /// How often replicas commit durably, compare their hashes, and trim the log. Too small: syncs and messages. Too large: a
    /// difference is found late, and the log is longer.
    pub patrol_every: Duration,
    /// How often the store is read again as a whole. Too small: the disk is busy with it. Too large: rot is found late.
    pub scrub_every: Duration,
    /// A scrub names what is wrong by ranges of about this many keys, if there are few keys in total; with many keys the ranges are
    /// larger. Too small: every commit writes many hashes of ranges. Too large: a range says little.
    pub range_keys: u64,
    /// Entries of the log that are kept although all replicas have them. Too small: a node that was away for a short time fetches
    /// the whole state. Too large: disk.
    pub keep_entries: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_entry_bytes: 256 * 1024,
            max_entry_commands: 4096,
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
            patrol_every: Duration::from_secs(10),
            scrub_every: Duration::from_secs(3600),
            range_keys: 4096,
            keep_entries: 20_000,
        }
    }
}

impl Options {
    /// How much may wait for an answer.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { commands: self.max_waiting_commands, bytes: self.max_waiting_bytes }
    }
}

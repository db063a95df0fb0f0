//! The settings of a host.

use std::time::Duration;

/// Settings of [`super::NodeHost::start`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// The maximum number of network events in one turn. Too small: little batching. Too large: replies wait for each other.
    pub events_per_turn: usize,
    /// The maximum size of the network events in one turn, in bytes. The last event may exceed it.
    pub bytes_per_turn: usize,
    /// The maximum number of steps in one turn, apart from network events: polls of procedures, and messages between the roles and
    /// procedures of this node. What the turn has for others then leaves. Too small: little batching. Too large: the disk, the other nodes
    /// and the clients wait while this node works on all that came together, and this node then waits for them.
    pub steps_per_turn: usize,
    /// The number of threads that read records.
    pub reader_threads: usize,
    /// The maximum number of reads that wait for a reader thread. Further ones are refused.
    pub queued_reads: usize,
    /// The pause after each 256 KiB of a prepared journal segment or a checkpoint. Too small: syncs of the journal wait behind these
    /// writes. Too large: the writer catches up and has to make segments itself.
    pub prepare_pause: Duration,
    /// The minimum time between two pieces of 1 MiB of files that are given back to the file system. Each piece may delay the syncs of all
    /// journals on the device. While the journal syncs, giving back therefore also takes at most 1/200 of the time: after a piece that took
    /// 5 ms, which is typical if the file system discards freed blocks, the next one waits a second. Too small: syncs wait. Too large: the
    /// space that a trim frees becomes available late.
    pub remove_pause: Duration,
    /// A checkpoint starts after a random delay of at most this long. A trim makes checkpoints due on all nodes at the same time, and each
    /// slows down its node and its disk. The delay spreads them, so that a quorum of journals keeps its speed.
    pub checkpoint_spread: Duration,
    /// A disk is quick if writing and syncing a batch takes less than this on a smoothed average. If there is no other work and recent
    /// batches were small on average, the node thread writes a small batch itself and waits for it. If the disk can write without a thread
    /// that waits, it waits for twice the usual time at most, and never longer than this. If not, or if the batch has cells, it waits until
    /// the batch is synced. Too large: sockets wait for the disk. Too small: to wait for the disk beside the sockets costs a few
    /// microseconds, and to wake two threads costs more. A disk that stalls holds up the node thread only once. Zero: the node thread never
    /// waits for the disk.
    pub quick_disk: Duration,
    /// How long a clean stop waits for the journal, and again for the network.
    pub stop_patience: Duration,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            events_per_turn: 256,
            bytes_per_turn: 1 << 20,
            steps_per_turn: 64,
            reader_threads: 2,
            queued_reads: 1024,
            prepare_pause: Duration::from_millis(1),
            remove_pause: Duration::from_millis(100),
            checkpoint_spread: Duration::from_secs(1),
            quick_disk: Duration::from_millis(1),
            stop_patience: Duration::from_secs(5),
        }
    }
}

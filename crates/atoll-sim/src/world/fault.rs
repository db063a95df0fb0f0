//! Faults that clients can request from the world.

use crate::world::network::{Mood, Slow};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `kill -9`: the operating system keeps what was written (X6).
    Kill,
    /// A power cut: an arbitrary subset of the unsynced data is lost.
    PowerCut,
}

/// A fault, or its end. Hosts are counted from 0; durations are virtual nanoseconds.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The process ends and restarts after a while. With `None`, only [`Fault::Boot`] restarts it.
    Crash {
        /// The host.
        host: usize,
        /// How it ends.
        death: Death,
        /// How long after the end it restarts.
        back_after: Option<u64>,
    },
    /// All processes end at the same moment.
    CrashAll {
        /// How they end.
        death: Death,
        /// Each restarts at a random time within this.
        back_within: u64,
    },
    /// The process ends once it has sent this many more frames, possibly in the middle of a turn.
    CrashAfterFrames {
        /// The host.
        host: usize,
        /// How many frames it still sends.
        frames: u64,
        /// How long after the end it restarts.
        back_after: u64,
    },
    /// The process no longer ends after some frames.
    Defuse {
        /// The host.
        host: usize,
    },
    /// Starts a process that is not running.
    Boot {
        /// The host.
        host: usize,
    },
    /// SIGSTOP, and SIGCONT after a while.
    Pause {
        /// The host.
        host: usize,
        /// For how long.
        nanos: u64,
    },
    /// The clock of the process jumps ahead, until the process ends.
    JumpClock {
        /// The host.
        host: usize,
        /// By how much, in nanoseconds of its clock.
        nanos: u64,
    },
    /// Frames from one host to another are held up, or released.
    Block {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Whether to hold them up.
        blocked: bool,
    },
    /// The same for data connections only: heartbeats still arrive.
    BlockData {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Whether to hold them up.
        blocked: bool,
    },
    /// Frames from one host to another take longer from now on.
    SlowLink {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// By how much; [`Slow::default`] ends it.
        slow: Slow,
    },
    /// The hosts are split into two sides that cannot communicate.
    Split {
        /// The hosts of one side.
        side: Vec<usize>,
    },
    /// Ends all partitions, slow links, and faults of single frames.
    HealNetwork,
    /// The connections between two hosts break.
    Reset {
        /// One of them.
        a: usize,
        /// The other.
        b: usize,
    },
    /// Sets the faults of single frames.
    Mood(Mood),
    /// Operations of the disk take this many times as long.
    SlowDisk {
        /// The host.
        host: usize,
        /// The factor; 1 ends the fault.
        factor: u64,
    },
    /// The disk accepts writes, but no sync ends. When the hang ends, a waiting sync ends, too.
    HangDisk {
        /// The host.
        host: usize,
        /// Whether it hangs.
        hung: bool,
    },
    /// The disk is full, or has space again.
    FullDisk {
        /// The host.
        host: usize,
        /// Whether it is full.
        full: bool,
    },
    /// The next write fails.
    FailWrite {
        /// The host.
        host: usize,
    },
    /// The next sync fails.
    FailSync {
        /// The host.
        host: usize,
    },
    /// Reads of the journal fail, or succeed again.
    FailReads {
        /// The host.
        host: usize,
        /// Whether they fail.
        failing: bool,
    },
    /// Writes, syncs and reads succeed again.
    HealDisk {
        /// The host.
        host: usize,
    },
    /// A power cut; a bit of synced data flips while the node is down.
    Rot {
        /// The host.
        host: usize,
        /// How long after the power cut the node restarts.
        back_after: u64,
    },
    /// A bit of synced data flips while the node runs. The node ends, and restarts, after it has sent some more frames.
    RotLive {
        /// The host.
        host: usize,
        /// How many frames it still sends.
        frames: u64,
        /// How long after its end it restarts.
        back_after: u64,
    },
    /// Somebody copies the data directory of the node.
    CopyDisk {
        /// The host.
        host: usize,
    },
    /// A power cut; while the node is down, its data directory, or files of it, are put back from the last copy.
    PutBack {
        /// The host.
        host: usize,
        /// Whether the whole directory is put back.
        whole: bool,
        /// How long after the power cut the node restarts.
        back_after: u64,
    },
    /// A power cut; the node restarts without the volume of its data directory, that is, with an empty one. The last copy of the directory
    /// stays: [`Fault::PutBack`] puts it back later.
    Unmount {
        /// The host.
        host: usize,
        /// How long after the power cut the node restarts.
        back_after: u64,
    },
    /// A power cut; while the node is down, files of its data directory are deleted, truncated, or put back from an older copy.
    LoseFiles {
        /// The host.
        host: usize,
        /// How long after the power cut the node restarts.
        back_after: u64,
    },
    /// A power cut; the disk is replaced by an empty one while the node is down.
    Wipe {
        /// The host.
        host: usize,
        /// How long after the power cut the node restarts.
        back_after: u64,
    },
}

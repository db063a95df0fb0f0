//! What can go wrong, as requests to the world.

use crate::world::network::{Mood, Slow};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `kill -9`: the operating system keeps what was written (X6).
    Kill,
    /// A power cut: any subset of what was not synced is lost.
    PowerCut,
}

/// A fault, or its end. Hosts are counted from 0; durations are virtual nanoseconds.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The process ends, and is started again after a while (`None`: by [`Fault::Boot`] only).
    Crash {
        /// Where.
        host: usize,
        /// How.
        death: Death,
        /// When it comes back.
        back_after: Option<u64>,
    },
    /// Every process ends at one instant.
    CrashAll {
        /// How.
        death: Death,
        /// Each comes back within this.
        back_within: u64,
    },
    /// The process ends once it has sent this many more frames, between two of them.
    CrashAfterFrames {
        /// Where.
        host: usize,
        /// How many it still sends.
        frames: u64,
        /// When it comes back.
        back_after: u64,
    },
    /// A dead process is started.
    Boot {
        /// Where.
        host: usize,
    },
    /// SIGSTOP, and SIGCONT after a while.
    Pause {
        /// Where.
        host: usize,
        /// For how long.
        nanos: u64,
    },
    /// Frames from one host to another are held up (or let go on).
    Block {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Whether they are.
        blocked: bool,
    },
    /// The same, but only for connections that carry data: heartbeats arrive.
    BlockData {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Whether they are.
        blocked: bool,
    },
    /// What one host sends to another takes longer from now on.
    SlowLink {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// How much longer; [`Slow::default`] ends it.
        slow: Slow,
    },
    /// The hosts are split into two sides that do not hear each other.
    Split {
        /// One side; the others are the other.
        side: Vec<usize>,
    },
    /// Ends all partitions, slow links and faults of frames.
    HealNetwork,
    /// The connections between two hosts break.
    Reset {
        /// One end.
        a: usize,
        /// The other.
        b: usize,
    },
    /// What happens to single frames from now on.
    Mood(Mood),
    /// The disk takes this many times as long.
    SlowDisk {
        /// Where.
        host: usize,
        /// Factor; 1 ends it.
        factor: u64,
    },
    /// The disk accepts writes, but no sync ends. When the hang ends, a waiting sync ends, too.
    HangDisk {
        /// Where.
        host: usize,
        /// Whether it does.
        hung: bool,
    },
    /// The disk is full (or has room again).
    FullDisk {
        /// Where.
        host: usize,
        /// Whether it is.
        full: bool,
    },
    /// The next write fails.
    FailWrite {
        /// Where.
        host: usize,
    },
    /// The next sync fails.
    FailSync {
        /// Where.
        host: usize,
    },
    /// Reads of the journal fail (or work again).
    FailReads {
        /// Where.
        host: usize,
        /// Whether they do.
        failing: bool,
    },
    /// Writes, syncs and reads work again.
    HealDisk {
        /// Where.
        host: usize,
    },
    /// Power cut, and a bit of what was synced flips while the node is down.
    Rot {
        /// Where.
        host: usize,
        /// When the node starts again.
        back_after: u64,
    },
    /// A bit of what was synced flips while the node runs. It ends, and starts again, once it has sent some more frames.
    RotLive {
        /// Where.
        host: usize,
        /// How many it still sends.
        frames: u64,
        /// When it starts again.
        back_after: u64,
    },
    /// Somebody copies the data directory of a running node.
    CopyDisk {
        /// Where.
        host: usize,
    },
    /// Power cut; while the node is down, files of its data directory, or all of it, are put back from the last copy.
    PutBack {
        /// Where.
        host: usize,
        /// All of it.
        whole: bool,
        /// When the node starts again.
        back_after: u64,
    },
    /// Power cut; while the node is down, files of its data directory are deleted, cut, or put back from an older copy.
    LoseFiles {
        /// Where.
        host: usize,
        /// When the node starts again.
        back_after: u64,
    },
    /// The disk is replaced by an empty one while the node is down.
    Wipe {
        /// Where.
        host: usize,
        /// When the node starts again.
        back_after: u64,
    },
}

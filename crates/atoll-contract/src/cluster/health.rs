//! The health of a node's disk, as the node itself reports it.

/// The health of a node's disk, from best to worst. The process responds in each of these states, but code that places segments, takes over
/// sessions or trims must not rely on a disk that is not [`Health::Fine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// It accepts and syncs data.
    #[default]
    Fine,
    /// It refuses entries for lack of space, but still accepts facts.
    Full,
    /// It has not synced some data within `disk_hangs_after`. It may recover by itself.
    Hanging,
    /// The journal is closed after a failed write or sync, until the process is restarted.
    Closed,
}

impl Health {
    /// Returns its number in heartbeats.
    pub fn code(self) -> u8 {
        match self {
            Health::Fine => 0,
            Health::Full => 1,
            Health::Hanging => 2,
            Health::Closed => 3,
        }
    }

    /// Returns the state with this number. A number that a later version introduced counts as [`Health::Hanging`], so that this node does
    /// not rely on the disk.
    pub fn of_code(code: u8) -> Self {
        match code {
            0 => Health::Fine,
            1 => Health::Full,
            3 => Health::Closed,
            _ => Health::Hanging,
        }
    }

    /// Returns the name of the state in `atoll status`, and the reason; None for [`Health::Fine`].
    pub fn words(self) -> Option<(&'static str, &'static str)> {
        match self {
            Health::Fine => None,
            Health::Full => Some(("full", "its disk accepts no entries; trim logs or free disk space")),
            Health::Hanging => Some(("hanging", "its disk has not finished a sync for a long time")),
            Health::Closed => Some(("failed", "its journal is closed after a failed write or sync")),
        }
    }
}

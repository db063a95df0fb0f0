//! What an operator wants of the backup. It is in a register, so every node finds it, and it survives restarts.

use std::time::Duration;

use atoll_core::{Decode, Encode, record};
use bytes::Bytes;

use crate::kept::Kept;

/// The format of the record.
const FORMAT: u8 = 1;

record! {
    /// See the module documentation.
    pub struct BackupPlan {
        /// The format of this record.
        pub format: u8,
        /// Tells this backup from those of other clusters of the same name. It stays when the backup stops.
        pub id: u128,
        /// Where the objects are.
        pub url: String,
        /// Whether the backup runs.
        pub on: bool,
        /// The interval at which entries are shipped, in milliseconds. It bounds the recovery point.
        pub every_ms: u64,
        /// The interval between snapshots, in milliseconds.
        pub snapshot_every_ms: u64,
        /// Every moment of so many last milliseconds can be restored. What is older is deleted. The highest number: nothing is.
        pub keep_ms: u64,
        /// The log keeps at most so many entries for the backup.
        pub hold_entries: u64,
    }
}

impl BackupPlan {
    /// The least interval between two shipments.
    pub const LEAST_EVERY: Duration = Duration::from_millis(100);
    /// The default of [`BackupPlan::every_ms`].
    pub const EVERY: Duration = Duration::from_secs(5);
    /// The default of [`BackupPlan::snapshot_every_ms`].
    pub const SNAPSHOT_EVERY: Duration = Duration::from_hours(6);
    /// The default of [`BackupPlan::keep_ms`].
    pub const KEEP: Duration = Duration::from_hours(7 * 24);
    /// The default of [`BackupPlan::hold_entries`].
    pub const HOLD_ENTRIES: u64 = 10_000_000;

    /// Returns the interval of shipments.
    pub(super) fn every(&self) -> Duration {
        Duration::from_millis(self.every_ms).max(Self::LEAST_EVERY)
    }

    /// Reads the plan from its register's value.
    fn parse(value: Bytes) -> Result<Option<BackupPlan>, String> {
        match value.first() {
            None => Ok(None),
            Some(&FORMAT) => BackupPlan::from_bytes(value).map(Some).map_err(|e| e.to_string()),
            Some(other) => {
                Err(format!("the plan of the backup has format {other}; this program reads {FORMAT}"))
            }
        }
    }
}

impl Kept for BackupPlan {
    fn read_from(value: Bytes) -> Result<Option<Self>, String> {
        BackupPlan::parse(value)
    }

    fn value(&self) -> Bytes {
        BackupPlan { format: FORMAT, ..self.clone() }.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_what_it_was_and_a_later_format_is_refused() {
        let plan = BackupPlan {
            format: FORMAT,
            id: 7,
            url: "file:///backups".to_owned(),
            on: true,
            every_ms: 5,
            snapshot_every_ms: 6,
            keep_ms: u64::MAX,
            hold_entries: 8,
        };
        assert_eq!(BackupPlan::parse(plan.to_bytes()), Ok(Some(plan.clone())));
        assert_eq!(BackupPlan::parse(Bytes::new()), Ok(None));
        let later = BackupPlan { format: FORMAT + 1, ..plan };
        assert!(BackupPlan::parse(later.to_bytes()).is_err_and(|why| why.contains("format 2")));
    }
}

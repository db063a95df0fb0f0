//! Checks whether this node's disk has room for more data in the database. The journal has its own reserve and refuses appends (contracts
//! X5). But every replica applies whatever is in the log, and a replica whose store cannot be written stops. So the doors refuse requests
//! that make the data grow while there is still room for operations in progress, and for deletes, which need some space before they free
//! any.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the free space is checked.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// A warning is logged below this many times the minimum free space.
const WARNED_AT: u64 = 4;

/// Reports to the doors whether space is short. Clones are cheap and share the same state.
#[derive(Clone, Debug, Default)]
pub struct SpaceAlarm(Arc<AtomicBool>);

impl SpaceAlarm {
    /// Whether the disk is nearly full. The doors then refuse requests that make the data grow, before anything is replicated.
    pub fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks the free space periodically, forever. If a check fails, the last result stays; the journal notices on its own if the disk is
    /// full.
    pub(crate) async fn watch(self, data: PathBuf, least_bytes: u64) {
        let mut warned = false;
        loop {
            if let Ok(free_bytes) = free_bytes(&data) {
                let short = free_bytes < least_bytes;
                let low = free_bytes < least_bytes.saturating_mul(WARNED_AT);
                if short != self.0.swap(short, Ordering::Relaxed) {
                    if short {
                        tracing::error!(
                            free_bytes,
                            least_bytes,
                            "the disk is nearly full: writes are refused, deletes are not"
                        );
                    } else {
                        tracing::info!(free_bytes, "the disk has room again; writes are accepted");
                    }
                } else if low && !warned {
                    tracing::warn!(
                        free_bytes,
                        least_bytes,
                        "the disk is running out of space; below the minimum, writes will be refused"
                    );
                }
                warned = low;
            }
            tokio::time::sleep(ASKED_EVERY).await;
        }
    }
}

fn free_bytes(data: &std::path::Path) -> rustix::io::Result<u64> {
    let stat = rustix::fs::statvfs(data)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn what_is_free_is_held_against_the_least() {
        let folder = tempfile::tempdir().unwrap();
        for (least_bytes, short) in [(0, false), (u64::MAX, true)] {
            let alarm = SpaceAlarm::default();
            let watching = tokio::spawn(alarm.clone().watch(folder.path().to_owned(), least_bytes));
            // The first check comes before the first pause.
            tokio::task::yield_now().await;
            assert_eq!(alarm.is_short(), short, "{least_bytes}");
            watching.abort();
        }
    }
}

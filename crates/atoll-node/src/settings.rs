//! Settings of one node that may differ between nodes and change at a restart. Each says what too small and too large do.

use std::time::Duration;

/// When a peer counts as gone, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// How often a node tells every peer that it lives. Too small: wake-ups for nothing. Too large: failures are noticed
    /// late; keep it at a fifth of `silent_after` or less.
    pub heartbeat_every: Duration,
    /// A peer that was silent for this long is suspected. If it sends again before three times this, it is suspected only after three times
    /// this during the next 30 s. Too small: a busy machine is mistaken for a dead one, and logs are extended unnecessarily (each extend
    /// costs a seal and a register write). Too large: a stopped sequencer delays appends for longer.
    pub silent_after: Duration,
    /// A peer whose connection broke and was not restored within this is suspected. Too small: a broken connection is taken
    /// for a dead process. Too large: appends wait that much longer after a `kill -9` of the sequencer.
    pub link_down_for: Duration,
    /// A suspected LogServer is replaced by a spare one after this. Too small: a restart moves data about. Too large: the log
    /// runs with one copy fewer for longer.
    pub replace_server_after: Duration,
    /// A disk that was given something to keep and has not synced it within this counts as one that hangs. Too small: a busy
    /// disk is taken for a broken one, and sequencers move. Too large: a broken one goes unnoticed for longer.
    pub disk_hangs_after: Duration,
    /// Nodes that could repair a log wait their rank times this before they start. Too small: several do the same work at
    /// once (harmless). Too large: if the first in line is dead too, the next comes late.
    pub rank_delay: Duration,
    /// How often a node looks at its logs without being told to. Too small: work for nothing. Too large: what no event
    /// announces (a rebuild that failed, a log made elsewhere) waits.
    pub patrol_every: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Timings {
            heartbeat_every: Duration::from_millis(50),
            silent_after: Duration::from_millis(450),
            link_down_for: Duration::from_millis(40),
            replace_server_after: Duration::from_secs(5),
            disk_hangs_after: Duration::from_secs(1),
            rank_delay: Duration::from_millis(20),
            patrol_every: Duration::from_secs(1),
        }
    }
}

/// A setting outside its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timings.{name} is {got_ms} ms; allowed are {least_ms} to {most_ms} ms")]
pub struct OutOfBounds {
    /// Which.
    pub name: &'static str,
    /// What was given.
    pub got_ms: u64,
    /// The least allowed.
    pub least_ms: u64,
    /// The most allowed.
    pub most_ms: u64,
}

impl Timings {
    /// Every setting within its bounds, or the first that is not.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let rows = [
            ("heartbeat_every_ms", self.heartbeat_every, 5, 5_000),
            ("silent_after_ms", self.silent_after, 50, 60_000),
            ("link_down_for_ms", self.link_down_for, 1, 60_000),
            ("replace_server_after_ms", self.replace_server_after, 100, 86_400_000),
            ("disk_hangs_after_ms", self.disk_hangs_after, 100, 600_000),
            ("rank_delay_ms", self.rank_delay, 1, 5_000),
            ("patrol_every_ms", self.patrol_every, 50, 600_000),
        ];
        for (name, got, least_ms, most_ms) in rows {
            let got_ms = u64::try_from(got.as_millis()).unwrap_or(u64::MAX);
            if got_ms < least_ms || got_ms > most_ms {
                return Err(OutOfBounds { name, got_ms, least_ms, most_ms });
            }
        }
        let silent_ms = u64::try_from(self.silent_after.as_millis()).unwrap_or(u64::MAX);
        let beat_ms = u64::try_from(self.heartbeat_every.as_millis()).unwrap_or(u64::MAX);
        if beat_ms.saturating_mul(3) > silent_ms {
            return Err(OutOfBounds {
                name: "heartbeat_every_ms",
                got_ms: beat_ms,
                least_ms: 5,
                most_ms: silent_ms / 3,
            });
        }
        Ok(())
    }
}

//! Timings of one node. They may differ between nodes and may be changed at a restart. The description of each says what happens if it is
//! too small or too large.

use std::time::Duration;

/// When a peer counts as gone, and when this node reacts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// How often a node sends heartbeats to every peer. Too small: unnecessary wake-ups. Too large: failures are noticed late. Keep it at a
    /// fifth of `silent_after` or less.
    pub heartbeat_every: Duration,
    /// A peer that was silent for this long is suspected. If it sends again before three times this, it is suspected only after three times
    /// this during the next 30 s. Too small: a busy machine is mistaken for a dead one, and logs are extended unnecessarily (each extend
    /// costs a seal and a register write). Too large: a stopped sequencer delays appends for longer.
    pub silent_after: Duration,
    /// A peer whose connection broke and was not re-established within this time is suspected. Too small: a broken connection is mistaken
    /// for a dead process. Too large: appends wait longer after a `kill -9` of the sequencer.
    pub link_down_for: Duration,
    /// A LogServer that has been suspected for this long is replaced by a spare one. Too small: a restart of a node moves data. Too large:
    /// the log runs with one copy fewer for longer.
    pub replace_server_after: Duration,
    /// A disk that has not synced some data within this time counts as hanging. Too small: a busy disk is mistaken for a broken one, and
    /// sequencers move. Too large: a broken disk is noticed later.
    pub disk_hangs_after: Duration,
    /// Before a node extends a log, it waits its rank times this. Too small: several nodes do the same work at once (harmless). Too large:
    /// if the first nodes are dead, too, the next one acts late.
    pub rank_delay: Duration,
    /// How often a node checks its logs without an event. Too small: unnecessary work. Too large: whatever no event announces (a rebuild
    /// that failed, a log that was created elsewhere) waits longer.
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

/// A timing is outside its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timings.{name} is {got_ms} ms; allowed: {least_ms} to {most_ms} ms")]
pub struct OutOfBounds {
    /// The name of the setting.
    pub name: &'static str,
    /// The given value in milliseconds.
    pub got_ms: u64,
    /// The smallest allowed value in milliseconds.
    pub least_ms: u64,
    /// The largest allowed value in milliseconds.
    pub most_ms: u64,
}

impl Timings {
    /// Checks that every timing is within its bounds. Returns the first one that is not.
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

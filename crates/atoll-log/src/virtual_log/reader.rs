//! A tailing reader: delivers entries in order across segments, and then as they arrive (vlog-V3–vlog-V5, native-T18).

use std::sync::Arc;

use atoll_core::Abandoned;

use super::{LogError, LogRead, LogReadError, Shared, VirtualLog};
use atoll_contract::loglet::{ReadFrom, Unavailability};
use atoll_contract::position::LogPos;

/// Reads a log from a position on. It can also be used outside of the node's executor. Dropping it stops it.
#[derive(Debug)]
pub struct Reader {
    log: VirtualLog,
    at: LogPos,
    scope: ReadFrom,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, at: LogPos, scope: ReadFrom) -> Self {
        Reader { log: VirtualLog(shared), at, scope }
    }

    /// Returns the position that the next read starts at.
    pub fn position(&self) -> LogPos {
        self.at
    }

    /// Continues from another position, for example after [`LogReadError::Trimmed`].
    pub fn seek(&mut self, to: LogPos) {
        self.at = to;
    }

    /// Returns the next entries, pads included, about `max_bytes`. Waits until there is at least one. After an error, the
    /// position is unchanged, and the call can be repeated. Dropping the future loses nothing.
    pub async fn next(&mut self, max_bytes: usize) -> Result<LogRead, LogReadError> {
        loop {
            let stopping = |_: Abandoned| Err(LogError::Unavailable(Unavailability::Stopping));
            let tail = self.log.wait_tail(self.at).await.unwrap_or_else(stopping)?;
            let range = self.at..tail;
            let read = self.log.read(range, max_bytes, self.scope).await;
            match read.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping).into())) {
                Ok(read) => {
                    self.at = read.next();
                    return Ok(read);
                }
                Err(LogReadError::Log(LogError::BeyondTail(_))) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

//! CORFU's own interface as a [`SharedLog`].

use bytes::Bytes;

use atoll_contract::Unavailability;
use atoll_core::BoxFuture;
use atoll_corfu::CorfuLog;
use atoll_corfu::log as corfu;

use crate::shared_log::{LogError, SharedLog, Slot};

/// How often a prefix trim that meets a reconfiguration is repeated at once. The caller may repeat it later.
const TRIM_ATTEMPTS: usize = 8;

impl From<corfu::LogError> for LogError {
    fn from(error: corfu::LogError) -> Self {
        match error {
            corfu::LogError::Unavailable(why) => LogError::Unavailable(why),
            corfu::LogError::Unknown(position) => LogError::Unknown(Some(position)),
            corfu::LogError::Overtaken => LogError::Unavailable(Unavailability::Busy),
            corfu::LogError::NotSealed => LogError::Unavailable(Unavailability::NoQuorum),
            other => LogError::Gone(other.to_string()),
        }
    }
}

impl SharedLog for CorfuLog {
    fn append(&self, data: Bytes) -> BoxFuture<'_, Result<u64, LogError>> {
        Box::pin(async move { Ok(CorfuLog::append(self, data).await?) })
    }

    fn read(&self, position: u64) -> BoxFuture<'_, Result<Slot, LogError>> {
        Box::pin(async move {
            Ok(match CorfuLog::read(self, position).await? {
                corfu::Entry::Data(data) => Slot::Data(data),
                corfu::Entry::Junk => Slot::Junk,
                corfu::Entry::Trimmed => Slot::Trimmed,
                corfu::Entry::Unwritten => Slot::Unwritten,
            })
        })
    }

    fn fill(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move { Ok(CorfuLog::fill(self, position).await?) })
    }

    fn trim(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move { Ok(CorfuLog::trim(self, position).await?) })
    }

    fn trim_prefix(&self, to: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            for _ in 0..TRIM_ATTEMPTS {
                match CorfuLog::trim_prefix(self, to).await {
                    // A newer projection was read meanwhile; what was trimmed stays trimmed.
                    Err(corfu::LogError::Overtaken) => {}
                    done => return Ok(done?),
                }
            }
            Err(LogError::Unavailable(Unavailability::Busy))
        })
    }

    fn tail(&self) -> BoxFuture<'_, Result<u64, LogError>> {
        Box::pin(async move { Ok(CorfuLog::tail(self).await?) })
    }
}

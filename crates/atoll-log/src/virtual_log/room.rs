//! Room in the chain (vlog-V17). Every limit is checked before anything is provisioned or sealed. If the next chain turned out to be too
//! long after the seal, the log would accept no more appends. Planned changes are refused early enough that changes which appends wait
//! for, and the end of the log, still fit.

use super::Shared;
use crate::chain::{Chain, ChainError, MAX_CHAIN_BYTES, MAX_CONFIG_BYTES, Segment};

/// Number of segments that planned changes leave free.
const KEPT_SEGMENTS: usize = 64;
/// Bytes that the end of a log may add: the sealed configuration of the segment before it, which is not known before the seal,
/// and the segment of the end itself.
const END_BYTES: usize = MAX_CONFIG_BYTES + 256;

/// The purpose of adding a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A change of configuration that the log does not need in order to work.
    Planned,
    /// The active segment accepts no more appends, because it is sealed or its servers are gone.
    Needed,
    /// The end of the log.
    End,
}

impl Purpose {
    /// Returns the number of segments, and of bytes, that the chain must have left after this change.
    fn keeps_free(self) -> (usize, usize) {
        match self {
            Purpose::Planned => (KEPT_SEGMENTS, 4 * END_BYTES),
            Purpose::Needed => (1, END_BYTES),
            Purpose::End => (0, 0),
        }
    }
}

impl Shared {
    /// Checks that a successor still fits, whatever the seal of the active segment adds. The nonces of earlier installs have their own
    /// limit.
    pub(super) fn check_room(
        &self,
        chain: &Chain,
        next: Segment,
        purpose: Purpose,
    ) -> Result<(), ChainError> {
        let (segments_free, bytes_free) = purpose.keeps_free();
        // Assume that the active segment has one entry and the longest sealed configuration.
        let trial = chain.next(chain.nonce(), |segments, _| {
            segments.retain(|s| s.stop != Some(s.start));
            let Some(last) = segments.last_mut() else { return };
            let stop = last.start.plus(1);
            last.stop = Some(stop);
            last.sealed_config = vec![0; MAX_CONFIG_BYTES].into();
            segments.push(Segment { start: stop, ..next });
        })?;
        let most = self.options.max_segments.saturating_sub(segments_free);
        if trial.segments().len() > most {
            return Err(ChainError::Full { segments: chain.segments().len(), most });
        }
        let bytes = trial.to_value()?.len() + bytes_free;
        if bytes > MAX_CHAIN_BYTES {
            return Err(ChainError::TooLong(bytes));
        }
        Ok(())
    }
    /// Checks that a chain with surgery leaves room for the changes that the log needs.
    pub(super) fn check_surgery_room(&self, next: &Chain) -> Result<(), ChainError> {
        let bytes = next.to_value()?.len() + 5 * END_BYTES;
        if bytes > MAX_CHAIN_BYTES { Err(ChainError::TooLong(bytes)) } else { Ok(()) }
    }
}

//! One loglet on one LogServer: what the protocol adds to the stored entries (native §2), and which Stores it accepts.

use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Offset;
use atoll_core::testing::mutant;
use atoll_core::{DecodeError, Lsn};

use crate::config::{self, NativeConfig};
use crate::message::Verdict;
use crate::mutants;
use atoll_loglet_store::store::{LogletState, Protocol};

/// The verdict of the order rule on entries (native §4 Store 2–4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admit {
    /// Accept the entries at and above this offset.
    From(Offset),
    /// All of them are here. Contains their newest staged record.
    Present(Lsn),
    /// The entries leave a gap that is not globally committed, or they are committed elsewhere and missing here.
    OutOfOrder,
}

/// The protocol's part of the state of a loglet. None of it is journaled.
#[derive(Debug)]
pub(super) struct Native {
    pub config: Arc<NativeConfig>,
    /// The verdict to post to the sequencer at the end of the turn.
    pub to_report: Option<Verdict>,
    /// The round of the newest Store.
    pub round: u32,
    /// The local tail that was last reported to the sequencer, while open.
    pub reported_tail: Offset,
    /// Where the loglet ends, as reported by a peer. The report may arrive while the seal is still on its way to the disk, or later.
    pub ends_at: Option<Offset>,
    /// Whether a back-fill is running.
    pub filling: bool,
}

impl Native {
    /// Remembers a verdict for the end of the turn. A later success must not hide an out-of-order verdict. An out-of-order verdict must
    /// not hide a full disk, because it is only a consequence: the Stores after the refused one are out of order.
    pub fn report(&mut self, verdict: Verdict) {
        let covered = match self.to_report {
            Some(Verdict::OutOfOrder {}) => verdict == (Verdict::Done {}),
            Some(Verdict::DiskFull {}) => verdict == (Verdict::OutOfOrder {}),
            _ => false,
        };
        if !covered {
            self.to_report = Some(verdict);
        }
    }
}

impl Protocol for Native {
    type Config = Arc<NativeConfig>;

    fn read_config(bytes: &Bytes) -> Result<Arc<NativeConfig>, DecodeError> {
        Ok(Arc::new(config::parse(bytes)?))
    }

    fn new(config: Arc<NativeConfig>) -> Self {
        Native {
            config,
            to_report: None,
            round: 0,
            reported_tail: Offset::ZERO,
            ends_at: None,
            filling: false,
        }
    }
}

/// What this server holds of one loglet.
pub(super) type LogletCopy = LogletState<Native>;

/// Applies the order rule to entries at `[first, first + count)`.
///
/// Entries below the known tail are committed elsewhere and not accepted here. Above it, only the next offset is
/// accepted, or an offset that skips only committed entries. So a missing offset below the local tail is always below a
/// known tail (native-N7).
pub(super) fn admit(copy: &LogletCopy, first: Offset, count: u32) -> Admit {
    let end = first.plus(count.into());
    let from = first.max(copy.staged_tail).max(copy.known_tail);
    if from >= end {
        return match copy.newest_staged(first.max(copy.trim), end) {
            Some(lsn) => Admit::Present(lsn),
            None => Admit::OutOfOrder,
        };
    }
    if from == copy.staged_tail || from == copy.known_tail || mutant(mutants::NATIVE_N7) {
        return Admit::From(from);
    }
    Admit::OutOfOrder
}

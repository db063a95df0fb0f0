//! The state that the threads of a host share.

use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::{Fetch, NodeId};
use atoll_net::Refusal;
use tokio::sync::watch;

use super::incoming::Incoming;
use super::queue::Queue;
use super::stats::Counters;
use super::wake::Inbound;
use super::work::JournalPort;

/// Why a host ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// [`super::NodeHost::shutdown`] was called.
    Stopped,
    /// The node thread panicked because of a broken invariant. The process must not continue as this node.
    Panicked,
}

/// A bounded queue of reads. It does not own the reader, because handles of the host outlive the threads and must not keep the disk open.
pub(crate) type Readers = Queue<Fetch>;

/// The state that the driver, the threads and the handles share.
pub(crate) struct Shared {
    pub(crate) inbound: Inbound<Incoming>,
    pub(crate) stats: Counters,
    /// Why the journal is closed, if it is.
    pub(crate) failure: Mutex<Option<String>>,
    pub(crate) journal_stats: Mutex<atoll_storage::Stats>,
    pub(crate) cell_stats: Mutex<atoll_storage::CellStats>,
    pub(crate) turned_away: watch::Sender<Option<(NodeId, Refusal)>>,
    pub(crate) ended: watch::Sender<Option<Ended>>,
    pub(crate) journal: Arc<JournalPort>,
    pub(crate) readers: Arc<Readers>,
}

impl Shared {
    /// Records why the journal is closed, and tells the node thread.
    pub(super) fn close(&self, reason: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| reason.clone());
        drop(failure);
        self.inbound.put(Incoming::Durable(Err(reason)));
    }

    /// Makes the threads of the host end.
    pub(super) fn stop_threads(&self) {
        self.journal.stop();
        self.readers.stop();
    }
}

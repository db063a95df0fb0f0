//! The published states of a replica, which any thread may read.

use atoll_contract::LogPos;
use atoll_contract::application::{Direction, InMemory, KeyRange, Page, ShowState, StoreError};
use bytes::Bytes;

use crate::layers::Layers;
use crate::store::Hold;

/// One published state. The data that it shows is kept until it is dropped.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) layers: Layers,
    pub(crate) hold: Hold,
    /// The first position that the state does not include.
    pub(crate) below: LogPos,
    pub(crate) time_ms: u64,
}

impl ShowState for Published {
    fn below(&self) -> LogPos {
        self.below
    }

    fn time_ms(&self) -> u64 {
        self.time_ms
    }

    fn is_in_memory(&self) -> bool {
        self.layers.base.is_in_memory()
    }

    fn get_in_memory(&self, key: &[u8]) -> InMemory {
        self.layers.get_in_memory(key, self.hold.version)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.layers.get(key, self.hold.version)
    }

    fn page(&self, range: &KeyRange, direction: Direction, limit: usize) -> Result<Page, StoreError> {
        self.layers.page(range, direction, self.hold.version, limit).map(|part| part.page)
    }
}

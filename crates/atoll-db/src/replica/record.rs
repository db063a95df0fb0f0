//! The record that the engine itself keeps in the store. It is written with every commit.

use atoll_contract::LogPos;
use atoll_core::{Decode, Encode, record};

use super::proposers::ProposersRecord;
use crate::store::{Change, Store, StoreError, StoreSnapshot};
use atoll_contract::application::AppId;
use atoll_contract::application::full_key;

/// The format of a store that this program writes and reads.
pub(super) const FORMAT: u8 = 1;
const ENGINE: AppId = AppId(0);
const KEY: &[u8] = b"state";

record! {
    /// See the module documentation.
    pub struct StateRecord {
        /// The format of the whole store.
        pub format: u8,
        /// The first entry that is not in the state.
        pub next: LogPos,
        /// The time of the last entry, in milliseconds since the Unix epoch.
        pub time_ms: u64,
        /// The number of entries that were skipped because they do not belong to the database.
        pub foreign: u64,
        /// The hash of all keys and values of the applications; see `state_hash.rs`.
        pub hash: u128,
        /// The last applied entry of each proposer, so that entries are applied exactly once.
        pub proposers: ProposersRecord,
    }
}

/// Where the state in a store stands, while no replica runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// All entries below are in it.
    pub next: LogPos,
    /// The time of the last of them, in milliseconds since the Unix epoch; 0 if there was none.
    pub time_ms: u64,
}

impl Standing {
    /// Reads it from the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn of(store: &dyn Store) -> Result<Standing, StoreError> {
        let StateRecord { next, time_ms, .. } = StateRecord::read(&*store.snapshot())?;
        Ok(Standing { next, time_ms })
    }
}

impl StateRecord {
    /// Reads the record of a store. Returns the record of an empty store if there is none.
    pub(crate) fn read(from: &dyn StoreSnapshot) -> Result<StateRecord, StoreError> {
        let failed = |reason: String| StoreError::lasting("read its state record", reason);
        let Some(bytes) = from.get(&full_key(ENGINE, KEY))? else {
            return Ok(StateRecord {
                format: FORMAT,
                next: LogPos::ZERO,
                time_ms: 0,
                foreign: 0,
                hash: 0,
                proposers: ProposersRecord { rows: Vec::new(), forgotten_below: LogPos::ZERO },
            });
        };
        match bytes.first() {
            Some(&FORMAT) => StateRecord::from_bytes(bytes).map_err(|e| failed(e.to_string())),
            Some(other) => Err(failed(format!("it has format {other}; this program reads {FORMAT}"))),
            None => Err(failed("it is empty".to_owned())),
        }
    }

    pub(super) fn change(&self) -> Change {
        (full_key(ENGINE, KEY), Some(self.to_bytes()))
    }
}

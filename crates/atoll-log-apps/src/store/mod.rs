//! CORFU-Store (TOCS'13 §3, §4.4): a key-value store whose values lie in a log.
//!
//! A multi-put appends its values, all at once, and then one commit that names their positions. Every replica of the map service plays the
//! log and applies commits in its order, never as they come (apps-A1). A multi-get asks one map replica for all positions at one index
//! (apps-A4) and reads them from the log.

mod client;
mod compaction;
mod map;
mod record;

pub use client::{MapReplica, Store, StoreError, StoreOptions};
pub(crate) use client::{check_keys, value_in};
pub(crate) use compaction::checkpoint_surely;
pub use compaction::{CompactError, CompactOptions, Compacted, Compactor, Readers};
pub use map::{MapLimits, Outcome, StoreMap};
pub use record::{MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, StoreRecord};

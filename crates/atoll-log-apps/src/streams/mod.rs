//! Objects in the manner of vCorfu (NSDI'17) over any shared log: each object is a stream, and a reader of it plays only its stream.
//!
//! An entry lists the streams that it belongs to, so an atomic change to several objects is one entry. Index servers know which positions
//! list which stream. A reader asks them for the entries of its stream, and reads only these from the log. An answer says up to where it is
//! complete, and that is never above what its server has applied: a server that is behind must not be taken for the end of the stream.
//!
//! | notes (apps §5) | here |
//! | --- | --- |
//! | entries, checkpoint entries of a stream | `record.rs` |
//! | what a server knows of each stream, the trim points | `index.rs` |
//! | the client: updates, checkpoints, the trim of a prefix | `client.rs` |
//! | the reader of an object | `reader.rs` |
//! | an object with fields | `fields.rs` |
//!
//! # Departures, and why
//!
//! - *Index servers stand in for storage servers.* The log may have any Loglets, whose servers know nothing of streams. So each index
//!   server plays the log, and indexes its share of the positions: those that a storage server would keep. A reader asks all shares.
//! - *An update is appended once.* Its client does not repeat it while the outcome is unknown: two copies would take effect twice, and
//!   tables of names per stream could disagree about an entry that lists several.

mod client;
mod fields;
mod index;
mod reader;
mod record;

pub use client::{Objects, StreamError};
pub use fields::{FieldWrites, Fields};
pub use index::{Answer, Ask, IndexServer, Saved, Share, StreamIndex, StreamServer};
pub use reader::{ObjectReader, Played, read_together};
pub use record::{MAX_STATE_BYTES, MAX_STREAM_BYTES, MAX_STREAMS, MAX_UPDATE_BYTES, StreamRecord};

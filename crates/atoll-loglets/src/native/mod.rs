//! NativeLoglet (Delos, OSDI'20 §4.2.1): a fixed sequencer and 2f + 1 LogServers.
pub mod config;
pub mod log_server;
mod loglet;
pub mod message;
pub mod sequencer;

mod append;
mod back_fill;
mod check_tail;
mod delete;
mod provider;
mod read;
mod repair;
mod seal;
mod trim;

pub use config::NativeConfig;
pub use log_server::{LogServer, LogServerOptions};
pub use loglet::{NativeLoglet, NativeOptions};
pub use provider::NativeProvider;

pub(crate) use append::unanswered;
pub(crate) use provider::batches;
pub(crate) use read::decode as decode_entries;
pub use sequencer::{Sequencer, SequencerOptions};

//! The fuzz targets: every decoder that bytes from a socket or a disk reach. A target takes any bytes. It panics if the code under test
//! panics, or if what it decoded violates a promise of the decoder.
//!
//! The same targets run in two ways: `cargo test -p atoll-fuzz` runs them on a corpus and seeded mutations of it, with any toolchain;
//! `cargo +nightly fuzz run TARGET` runs them guided by coverage (see `fuzz/`).
//!
//! | file | target |
//! | --- | --- |
//! | `frame_decoder.rs` | frames from a socket, whole and in pieces |
//! | `journal_recovery.rs` | a data directory of arbitrary bytes, and valid ones with damage |
//! | `cell_recovery.rs` | the files of cells: arbitrary bytes, and valid ones with damage |
//! | `chain_decoder.rs` | the value of a log's register |
//! | `batch_decoder.rs` | entries in the form in which they are sent and stored |
//! | `message_decoder.rs` | every message kind of the protocols and of the core, and the values that they store |
//! | `snapshot_decoder.rs` | chunks of the database's state snapshots, and messages between replicas |
//! | `jute_decoder.rs` | requests of ZooKeeper's clients, and the commands made from them |
//! | `jute_connection.rs` | whole connections of ZooKeeper's clients, including four-letter words |
//! | `table_decoder.rs` | commands, rows, schemas and keys of tables; application of commands |
//! | `backup_decoder.rs` | the objects of a backup |
//! | `tree_snapshot.rs` | snapshots of ZooKeeper's tree, and their restore |
//! | `input.rs` | what the targets for data directories share |
//! | `corpus.rs` | a corpus in one text file |
//! | `mutate.rs` | seeded random inputs, for toolchains without coverage-guided fuzzing |

pub mod backup_decoder;
pub mod batch_decoder;
pub mod cell_recovery;
pub mod chain_decoder;
pub mod corpus;
pub mod frame_decoder;
mod input;
pub mod journal_recovery;
pub mod jute_connection;
pub mod jute_decoder;
pub mod message_decoder;
pub mod mutate;
pub mod snapshot_decoder;
pub mod table_decoder;
pub mod tree_snapshot;

/// A fuzz target: its name for `cargo fuzz run`, its code, and valid inputs to begin with.
pub struct Target {
    /// Its name in `fuzz/fuzz_targets` and `fuzz/corpus`.
    pub name: &'static str,
    /// Runs one input; panics on a finding.
    pub run: fn(&[u8]),
    /// Returns inputs that get past the first checks.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 12] = [
    Target { name: "frame_decoder", run: frame_decoder::run, seeds: frame_decoder::seeds },
    Target { name: "journal_recovery", run: journal_recovery::run, seeds: journal_recovery::seeds },
    Target { name: "cell_recovery", run: cell_recovery::run, seeds: cell_recovery::seeds },
    Target { name: "chain_decoder", run: chain_decoder::run, seeds: chain_decoder::seeds },
    Target { name: "batch_decoder", run: batch_decoder::run, seeds: batch_decoder::seeds },
    Target { name: "jute_decoder", run: jute_decoder::run, seeds: jute_decoder::seeds },
    Target { name: "message_decoder", run: message_decoder::run, seeds: message_decoder::seeds },
    Target { name: "snapshot_decoder", run: snapshot_decoder::run, seeds: snapshot_decoder::seeds },
    Target { name: "jute_connection", run: jute_connection::run, seeds: jute_connection::seeds },
    Target { name: "table_decoder", run: table_decoder::run, seeds: table_decoder::seeds },
    Target { name: "backup_decoder", run: backup_decoder::run, seeds: backup_decoder::seeds },
    Target { name: "tree_snapshot", run: tree_snapshot::run, seeds: tree_snapshot::seeds },
];

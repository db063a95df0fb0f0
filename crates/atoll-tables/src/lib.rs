//! The Table API on the database (Delos, "Virtual Consensus in Delos", §4.2): typed rows, secondary indices, transactions.
//!
//! [`Tables`] is an [`atoll_db::Application`]: its whole state, including the schema, is in the ordered store. Writes are commands
//! that are checked where they are applied, against the schema at that place of the log, so a schema change needs no pause. Reads
//! need no command: they use a view.
//!
//! | file | what it is |
//! | --- | --- |
//! | `value.rs`, `key.rs` | typed values; the encoding that keeps their order |
//! | `schema.rs`, `row.rs` | tables, columns, indices; the bytes of a row |
//! | `command.rs` | what is in the log, and the answers |
//! | `layout.rs` | which key of the store holds what |
//! | `application.rs`, `transaction.rs` | commands applied |
//! | `clients.rs` | exactly once by the client's (id, sequence) |
//! | `upkeep.rs` | indices built and tables emptied in bounded steps |
//! | `read.rs` | reading a view: rows, ranges by key and by index |
//! | `mutants.rs` | known bugs, for tests |

pub mod application;
mod clients;
pub mod command;
pub mod key;
mod layout;
pub mod mutants;
pub mod read;
pub mod row;
pub mod schema;
mod transaction;
mod upkeep;
pub mod value;

pub use application::Tables;
pub use command::{Action, Body, Command, Done, Expect, Op, RejectKind, Rejection};
pub use read::{Bound, Page, Query, ReadError, Scan};
pub use row::{Row, Values};
pub use schema::{
    Change, Column, ColumnDefinition, ColumnType, Index, IndexDefinition, IndexState, Schema, SchemaError,
    TableDefinition,
};
pub use upkeep::{Pending, pending};
pub use value::Value;

/// Most tables of a database; dropped tables that are not empty yet do not count.
pub const MAX_TABLES: usize = 1_000;
/// Most columns of a table.
pub const MAX_COLUMNS: usize = 256;
/// Most columns of a primary key or an index.
pub const MAX_KEY_COLUMNS: usize = 8;
/// Most indices of a table.
pub const MAX_INDICES: usize = 16;
/// Longest name of a table, column or index, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest encoded primary key, and longest encoded columns of an index entry, in bytes.
pub const MAX_KEY_BYTES: usize = 1_024;
/// Longest encoded row, without its key, in bytes.
pub const MAX_ROW_BYTES: usize = 256 * 1024;
/// Most operations of a transaction.
pub const MAX_OPERATIONS: usize = 1_000;
/// Most bytes of rows that a transaction reads.
pub const MAX_READ_BYTES: usize = 2 * 1024 * 1024;
/// Writes of one client that may be under way at once: an outcome is remembered until the client has made this many more.
pub const CLIENT_WINDOW: u64 = 32;
/// Clients that are remembered; a new client displaces the one that has written nothing for the longest time.
pub const MAX_CLIENTS: u32 = 10_000;

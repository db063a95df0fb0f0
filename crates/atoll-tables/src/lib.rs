//! The Table API on the database (Delos, "Virtual Consensus in Delos", §4.2): typed rows, secondary indices, transactions.
//!
//! [`Tables`] is an [`atoll_contract::Application`]. Its whole state, including the schema, is in the ordered store. Writes are commands.
//! They are checked when they are applied, against the schema at that position of the log, so a schema change needs no pause. Reads
//! need no command: they use a view.
//!
//! | file | what it is |
//! | --- | --- |
//! | `value.rs`, `key.rs` | typed values, and an encoding that preserves their order |
//! | `schema.rs`, `row.rs` | tables, columns and indices; the encoding of a row |
//! | `command.rs` | the commands in the log, and the replies |
//! | `layout.rs` | the keys of the store |
//! | `application.rs`, `transaction.rs` | apply commands |
//! | `clients.rs` | applies each write of a client exactly once |
//! | `upkeep.rs` | builds indices and empties tables in bounded steps |
//! | `read.rs` | reads from a view: rows, and ranges by key or by index |
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
pub use command::{Action, Body, Command, Done, Expect, Op, RejectKind, Rejection, Reply};
pub use read::{Bound, Page, Query, ReadError, Scan};
pub use row::{Row, Values};
pub use schema::{
    Change, Column, ColumnDefinition, ColumnType, Index, IndexDefinition, IndexState, Schema, SchemaError,
    TableDefinition,
};
pub use upkeep::{Pending, pending};
pub use value::Value;

/// The maximum number of tables of a database. Dropped tables that are not empty yet do not count.
pub const MAX_TABLES: usize = 1_000;
/// The maximum number of columns of a table.
pub const MAX_COLUMNS: usize = 256;
/// The maximum number of columns of a primary key or an index.
pub const MAX_KEY_COLUMNS: usize = 8;
/// The maximum number of indices of a table.
pub const MAX_INDICES: usize = 16;
/// The maximum length of the name of a table, column or index, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The maximum length of an encoded primary key, and of the encoded columns of an index entry, in bytes.
pub const MAX_KEY_BYTES: usize = 1_024;
/// The maximum length of an encoded row, without its key, in bytes.
pub const MAX_ROW_BYTES: usize = 256 * 1024;
/// The maximum number of operations of a transaction.
pub const MAX_OPERATIONS: usize = 1_000;
/// The maximum total size of the rows that a transaction reads, in bytes.
pub const MAX_READ_BYTES: usize = 2 * 1024 * 1024;
/// The maximum number of writes that one client may have in flight. The outcome of a write is remembered until the client has made
/// this many more writes.
pub const CLIENT_WINDOW: u64 = 32;
/// The maximum number of clients that are remembered. A new client replaces the one that has written nothing for the longest time.
pub const MAX_CLIENTS: u32 = 10_000;

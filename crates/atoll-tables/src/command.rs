//! Commands in the log, and the replies of replicas, in the format of version 1 of [`crate::Tables`].

use std::collections::BTreeMap;

use atoll_core::codec::{Decode, DecodeError, Encode, Reader};
use atoll_core::{choice, record};
use bytes::{Bytes, BytesMut};

use crate::row::Values;
use crate::schema::{Change, TableDefinition};
use crate::value::Value;

choice! {
    /// The condition that a row must meet.
    pub enum Expect {
        /// There is no condition.
        0 = Any {},
        /// There must be no row with this key.
        1 = Absent {},
        /// There must be a row with this key.
        2 = Present {},
        /// There must be a row with this key and this version.
        3 = Version { version: u64 },
    }
}

choice! {
    /// What an operation does to a row.
    pub enum Action {
        /// Reads the row, including the effects of earlier operations.
        0 = Read {},
        /// Only checks that the row meets the condition.
        1 = Check { expect: Expect },
        /// Writes the row. `values` holds columns that are not in the key. With `merge`, columns that are not named keep their
        /// values; without it, they become null.
        2 = Put { expect: Expect, values: Values, merge: bool },
        /// Deletes the row, if there is one.
        3 = Delete { expect: Expect },
    }
}

record! {
    /// One operation of a transaction.
    pub struct Op {
        /// The number of the table.
        pub table: u32,
        /// The primary key, with one value for each of its columns.
        pub key: Vec<Value>,
        /// What the operation does.
        pub action: Action,
    }
}

choice! {
    /// What a command does.
    pub enum Body {
        /// Creates a table.
        0 = CreateTable { table: TableDefinition },
        /// Drops a table. Its rows are deleted in the background.
        1 = DropTable { name: String },
        /// Changes a table.
        2 = ChangeTable { name: String, change: Change },
        /// Performs operations in order, all or none.
        3 = Transaction { ops: Vec<Op> },
        /// Performs a bounded step of background work. `index` is 0 for a dropped table. A step of an index build is performed only
        /// if the build has reached `from`. For a deletion, `from` is the position in the reply to the previous step, or empty.
        4 = Step { table: u32, index: u16, from: Bytes, rows: u32 },
    }
}

record! {
    /// A command.
    pub struct Command {
        /// The id of the client, drawn at random once per life of the client. 0 means no client: a repetition is then applied as a
        /// second command.
        pub client: u64,
        /// The number of the client's write, from 1. A repetition has the same number and is not applied again.
        pub seq: u64,
        /// What it does.
        pub body: Body,
    }
}

record! {
    /// The outcome of a command that was applied.
    pub struct Done {
        /// The version of the rows that it wrote. If it wrote none, the version of the last write before it.
        pub version: u64,
        /// For each operation of a transaction, the bytes of the row that it read, if there is one. None if this is a repetition,
        /// and the rows that the first attempt read were too long to be kept. For a step of a deletion, how far it got.
        pub read: Option<Vec<Option<Bytes>>>,
        /// For a step, whether there may be more work.
        pub more: bool,
    }
}

record! {
    /// What a replica returns to the proposer of a command that was applied. It stays on its node, so a later version may change it. Only
    /// [`Done`] is kept for repetitions. It is part of the state, which must be the same on all replicas, whatever their version.
    pub struct Reply {
        /// What the command did.
        pub done: Done,
        /// For each table from which a transaction has read a row: the version of the schema at that position of the log. Empty for a
        /// repetition.
        pub schemas: BTreeMap<u32, u32>,
    }
}

/// Why a command was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectKind {
    /// The command does not fit the schema: its names, types or nulls, or the limits of a definition.
    Invalid,
    /// The table does not exist.
    NoSuchTable,
    /// A table with this name exists.
    TableExists,
    /// A row does not meet the condition of an operation.
    Conflict,
    /// Another row has the same values in a unique index.
    Duplicate,
    /// A limit on bytes, operations, or numbers of tables is exceeded.
    TooLarge,
    /// The write is so old that its outcome is no longer known. This attempt did nothing, but an earlier one may have been applied.
    Forgotten,
}

const KINDS: [RejectKind; 7] = [
    RejectKind::Invalid,
    RejectKind::NoSuchTable,
    RejectKind::TableExists,
    RejectKind::Conflict,
    RejectKind::Duplicate,
    RejectKind::TooLarge,
    RejectKind::Forgotten,
];

impl Encode for RejectKind {
    fn encode(&self, out: &mut BytesMut) {
        let at = KINDS.iter().position(|k| k == self).expect("all kinds are in the list");
        u8::try_from(at).expect("the list is short").encode(out);
    }
}

impl Decode for RejectKind {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let n = u8::decode(from)?;
        let found = KINDS.get(usize::from(n)).copied();
        found.ok_or(DecodeError::Invalid { what: "rejection", value: n.into(), allowed: "0 to 6" })
    }
}

record! {
    /// The reply to a command that was rejected and changed nothing. See [`RejectKind::Forgotten`] for earlier attempts.
    pub struct Rejection {
        /// The reason.
        pub kind: RejectKind,
        /// The index of the operation in the transaction, from 0, if one caused the rejection.
        pub op: Option<u32>,
        /// For a conflict: the version of the existing row.
        pub found: Option<u64>,
        /// A description for people.
        pub message: String,
    }
}

impl Rejection {
    pub(crate) fn new(kind: RejectKind, message: impl Into<String>) -> Self {
        Rejection { kind, op: None, found: None, message: message.into() }
    }
}

//! What is in the log, and what a replica answers. Format of [`crate::Tables`]'s version 1.

use atoll_core::codec::{Decode, DecodeError, Encode, Reader};
use atoll_core::{choice, record};
use bytes::{Bytes, BytesMut};

use crate::row::Values;
use crate::schema::{Change, TableDefinition};
use crate::value::Value;

choice! {
    /// What must hold for a row.
    pub enum Expect {
        /// Nothing is required.
        0 = Any {},
        /// There is none with this key.
        1 = Absent {},
        /// There is one.
        2 = Present {},
        /// There is one, of this version.
        3 = Version { version: u64 },
    }
}

choice! {
    /// What is done to a row.
    pub enum Action {
        /// It is read, as the operations before it have left it.
        0 = Read {},
        /// Nothing is done, but the expectation must hold.
        1 = Check { expect: Expect },
        /// The row is written. `values` holds columns that are not in the key. With `merge`, columns that are not named keep their
        /// values; without it, they become null.
        2 = Put { expect: Expect, values: Values, merge: bool },
        /// It is deleted; nothing if there is none.
        3 = Delete { expect: Expect },
    }
}

record! {
    /// One operation of a transaction.
    pub struct Op {
        /// Number of the table.
        pub table: u32,
        /// One value per column of the primary key.
        pub key: Vec<Value>,
        /// What is done.
        pub action: Action,
    }
}

choice! {
    /// What a command does.
    pub enum Body {
        /// A new table.
        0 = CreateTable { table: TableDefinition },
        /// The table goes; its rows are deleted in the background.
        1 = DropTable { name: String },
        /// The table is changed.
        2 = ChangeTable { name: String, change: Change },
        /// Operations in order, all or none.
        3 = Transaction { ops: Vec<Op> },
        /// A bounded step of background work, performed only if the work has got to `from`. Index 0: a dropped table. For a
        /// deletion, `from` is where the answer to the previous step says that it got to, or empty.
        4 = Step { table: u32, index: u16, from: Bytes, rows: u32 },
    }
}

record! {
    /// A command.
    pub struct Command {
        /// The client: drawn at random once per life of a client. 0: no client, and a repetition is a second command.
        pub client: u64,
        /// Which of the client's writes, from 1 on; a repetition has the same number and is not done again.
        pub seq: u64,
        /// What it does.
        pub body: Body,
    }
}

record! {
    /// The answer to a command.
    pub struct Done {
        /// The version of the rows that it wrote. If it wrote none, that of the last write before it.
        pub version: u64,
        /// For each operation of a transaction: the bytes of the row that it read, if there is one. None: this is a repetition, and
        /// what the first attempt read was too long to be kept. For a step of a deletion: how far it got.
        pub read: Option<Vec<Option<Bytes>>>,
        /// For a step: whether it was the one to be done and there may be more.
        pub more: bool,
    }
}

/// Why a command was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectKind {
    /// The command does not fit the schema: names, types, nulls, or limits of a definition.
    Invalid,
    /// No such table.
    NoSuchTable,
    /// A table of this name is there.
    TableExists,
    /// An expectation does not hold.
    Conflict,
    /// A unique index has an entry of another row for these values.
    Duplicate,
    /// A limit in bytes or operations.
    TooLarge,
    /// The write is too old for its outcome to be remembered: this attempt did nothing, but an earlier one may have done it.
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
    /// The answer to a command that was rejected: nothing of it happened; see also [`RejectKind::Forgotten`].
    pub struct Rejection {
        /// Why.
        pub kind: RejectKind,
        /// Which operation of a transaction, from 0.
        pub op: Option<u32>,
        /// For a conflict: the version of the existing row.
        pub found: Option<u64>,
        /// For people.
        pub message: String,
    }
}

impl Rejection {
    pub(crate) fn new(kind: RejectKind, message: impl Into<String>) -> Self {
        Rejection { kind, op: None, found: None, message: message.into() }
    }
}

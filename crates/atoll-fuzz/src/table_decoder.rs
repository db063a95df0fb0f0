//! Fuzzes tables. Values in the log, in rows and in keys stay the same when they are decoded, encoded and decoded again. And no command
//! makes a replica panic, which would stop all replicas.

use std::fmt::Debug;

use atoll_core::codec::{Decode, Encode};
use atoll_db::{Applications, Engine, MemoryStore, Solo};
use atoll_tables::{
    Action, Body, Change, ColumnDefinition, ColumnType, Command, Done, Expect, IndexDefinition, Op,
    Rejection, Reply, Schema, TableDefinition, Tables, Value, Values, key, row::StoredRow,
};
use bytes::Bytes;

/// The most values of a key that are tried.
const MOST_VALUES: usize = 8;
/// The most commands of one input that are applied.
const MOST_COMMANDS: usize = 16;

/// The first byte selects how the rest is read: as a command, an answer, a rejection, a row, a schema, a key, or commands to apply, each
/// after its length in two bytes.
pub fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 8 {
        0 => same::<Command>(rest),
        1 => {
            same::<Done>(rest);
            same::<Reply>(rest);
        }
        2 => same::<Rejection>(rest),
        3 => same::<StoredRow>(rest),
        4 => same::<Schema>(rest),
        5 => keys(rest),
        _ => apply(rest),
    }
}

fn same<T: Encode + Decode + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(first) = T::from_bytes(Bytes::copy_from_slice(bytes)) else { return };
    let again = first.to_bytes();
    let second =
        T::from_bytes(again.clone()).unwrap_or_else(|e| panic!("{first:?} cannot be read again: {e}"));
    // Compare the bytes, because NaN does not equal itself.
    assert_eq!(second.to_bytes(), again, "{first:?} changed");
}

/// Encoded keys must compare like their values, so every key has only one encoding.
fn keys(bytes: &[u8]) {
    for count in 0..=MOST_VALUES {
        if let Ok(values) = key::decode_all(bytes, count) {
            assert_eq!(key::encoded(&values), bytes, "{values:?} has another encoding, too");
        }
    }
}

fn open() -> (Solo, Engine<Tables>) {
    let mut applications = Applications::new();
    let slot = applications.add(Tables::default());
    let solo = Solo::open(applications, Box::new(MemoryStore::new())).expect("a store in memory opens");
    let engine = solo.engine(&slot);
    (solo, engine)
}

fn apply(rest: &[u8]) {
    let (solo, engine) = open();
    apply_at(&engine, rest);
    solo.close();
}

fn apply_at(engine: &Engine<Tables>, mut rest: &[u8]) {
    let put = |command: Bytes| {
        drop(engine.propose(command));
        assert_eq!(engine.halted(), None, "a command stops all replicas");
    };
    put(definition().to_bytes());
    for _ in 0..MOST_COMMANDS {
        let Some((length, more)) = rest.split_first_chunk::<2>() else { return };
        let (command, more) = more.split_at(usize::from(u16::from_le_bytes(*length)).min(more.len()));
        put(Bytes::copy_from_slice(command));
        rest = more;
    }
}

fn definition() -> Command {
    let column = |name: &str, kind, nullable| ColumnDefinition { name: name.to_owned(), kind, nullable };
    let index = |name: &str, column: &str, unique| IndexDefinition {
        name: name.to_owned(),
        columns: vec![column.to_owned()],
        unique,
    };
    let columns = vec![
        column("id", ColumnType::Int64, false),
        column("name", ColumnType::Text, true),
        column("raw", ColumnType::Bytes, true),
    ];
    let indices = vec![index("by_name", "name", false), index("by_raw", "raw", true)];
    let table = TableDefinition { name: "t".to_owned(), columns, key: vec!["id".to_owned()], indices };
    Command { client: 7, seq: 1, body: Body::CreateTable { table } }
}

fn commands() -> Vec<Command> {
    let write = |seq, body| Command { client: 7, seq, body };
    let values = Values::from([(2, Value::Text("one".into())), (3, Value::Bytes(Bytes::from_static(b"r")))]);
    let op = |id, action| Op { table: 1, key: vec![Value::Int64(id)], action };
    let ops = vec![
        op(1, Action::Put { expect: Expect::Absent {}, values: values.clone(), merge: false }),
        op(1, Action::Put { expect: Expect::Any {}, values, merge: true }),
        op(1, Action::Read {}),
        op(2, Action::Check { expect: Expect::Absent {} }),
        op(3, Action::Delete { expect: Expect::Any {} }),
    ];
    let new = ColumnDefinition { name: "more".to_owned(), kind: ColumnType::Float64, nullable: true };
    vec![
        write(2, Body::Transaction { ops }),
        write(3, Body::ChangeTable { name: "t".to_owned(), change: Change::AddColumn { column: new } }),
        write(4, Body::Step { table: 1, index: 1, from: Bytes::new(), rows: 10 }),
        write(5, Body::DropTable { name: "t".to_owned() }),
    ]
}

/// Returns valid inputs.
pub fn seeds() -> Vec<Vec<u8>> {
    let with = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    let mut seeds: Vec<Vec<u8>> = commands().iter().map(|command| with(0, &command.to_bytes())).collect();
    seeds.push(with(0, &definition().to_bytes()));
    let done = Done { version: 3, read: Some(vec![None, Some(Bytes::from_static(b"row"))]), more: false };
    seeds.push(with(1, &done.to_bytes()));
    seeds.push(with(1, &Reply { done, schemas: [(1, 2)].into() }.to_bytes()));
    let row = StoredRow {
        version: 9,
        values: Values::from([(2, Value::Text("x".into())), (4, Value::Float64(1.5))]),
    };
    seeds.push(with(3, &row.to_bytes()));
    if let Body::CreateTable { table } = definition().body
        && let Ok(schema) = Schema::new(1, &table)
    {
        seeds.push(with(4, &schema.to_bytes()));
    }
    let values =
        [Value::Int64(-3), Value::Text("a\0b".into()), Value::Null, Value::Bool(true), Value::Float64(-0.5)];
    seeds.push(with(5, &key::encoded(&values)));
    let lengths = |command: &Command| {
        let bytes = command.to_bytes();
        [&u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes()[..], &bytes].concat()
    };
    seeds.push(with(6, &commands().iter().flat_map(lengths).collect::<Vec<u8>>()));
    seeds
}

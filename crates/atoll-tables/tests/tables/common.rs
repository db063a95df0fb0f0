//! Tables on an engine without a log, for tests.

use std::cell::RefCell;

use atoll_core::codec::{Decode, Encode};
use atoll_db::{Applications, Direction, Engine, KeyRange, MemoryStore, Solo, View};
use atoll_tables::{
    Action, Body, Change, ColumnDefinition, ColumnType, Command, Done, Expect, IndexDefinition, Op, Query,
    Rejection, Reply, Row, Scan, Schema, TableDefinition, Tables, Value, Values, pending, read,
};
use bytes::Bytes;

pub struct Db {
    pub solo: Solo,
    pub engine: Engine<Tables>,
    /// All commands so far, in order, and whether each was accepted.
    pub commands: RefCell<Vec<(Bytes, bool)>>,
}

pub fn column(name: &str, kind: ColumnType, nullable: bool) -> ColumnDefinition {
    ColumnDefinition { name: name.into(), kind, nullable }
}

pub fn index(name: &str, columns: &[&str], unique: bool) -> IndexDefinition {
    IndexDefinition { name: name.into(), columns: columns.iter().map(|c| (*c).to_owned()).collect(), unique }
}

/// Returns a table with the key (kind text, n int64) and the nullable columns colour text, size int64, and tag text, which is
/// unique.
pub fn fish() -> TableDefinition {
    TableDefinition {
        name: "fish".into(),
        columns: vec![
            column("kind", ColumnType::Text, false),
            column("n", ColumnType::Int64, false),
            column("colour", ColumnType::Text, true),
            column("size", ColumnType::Int64, true),
            column("tag", ColumnType::Text, true),
        ],
        key: vec!["kind".into(), "n".into()],
        indices: vec![index("by_colour", &["colour", "size"], false), index("by_tag", &["tag"], true)],
    }
}

pub fn text(s: &str) -> Value {
    Value::Text(s.into())
}

pub fn key(kind: &str, n: i64) -> Vec<Value> {
    vec![text(kind), Value::Int64(n)]
}

impl Db {
    pub fn new() -> Db {
        Db::over(MemoryStore::new())
    }

    pub fn over(store: MemoryStore) -> Db {
        let mut apps = Applications::new();
        let slot = apps.add(Tables::default());
        let solo = Solo::open(apps, Box::new(store)).unwrap();
        Db { engine: solo.engine(&slot), solo, commands: RefCell::default() }
    }

    pub fn raw(&self, command: Bytes) -> Result<Done, Rejection> {
        self.reply(command).map(|reply| reply.done)
    }

    pub fn reply(&self, command: Bytes) -> Result<Reply, Rejection> {
        let mut ticket = self.engine.propose(command.clone()).unwrap();
        let applied = ticket.try_take().unwrap().unwrap().unwrap();
        self.commands.borrow_mut().push((command, applied.reply.is_ok()));
        match applied.reply {
            Ok(reply) => Ok(Reply::from_bytes(reply).unwrap()),
            Err(rejected) => Err(Rejection::from_bytes(rejected.0).unwrap()),
        }
    }

    pub fn named(&self, client: u64, seq: u64, body: Body) -> Result<Done, Rejection> {
        self.raw(Command { client, seq, body }.to_bytes())
    }

    pub fn run(&self, body: Body) -> Result<Done, Rejection> {
        self.named(0, 0, body)
    }

    pub fn create(&self, table: TableDefinition) -> Schema {
        let name = table.name.clone();
        self.run(Body::CreateTable { table }).unwrap();
        self.schema(&name)
    }

    pub fn change(&self, name: &str, change: Change) -> Result<Done, Rejection> {
        self.run(Body::ChangeTable { name: name.into(), change })
    }

    pub fn schema(&self, name: &str) -> Schema {
        read::schema(&self.engine.view(), name).unwrap()
    }

    pub fn transact(&self, ops: Vec<Op>) -> Result<Done, Rejection> {
        self.run(Body::Transaction { ops })
    }

    pub fn get(&self, table: &str, key: &[Value]) -> Option<Row> {
        let view = self.engine.view();
        read::get(&view, &read::schema(&view, table).unwrap(), key).unwrap()
    }

    pub fn rows(&self, table: &str, query: &Query) -> Vec<Row> {
        let view = self.engine.view();
        let mut scan = Scan::new(&view, read::schema(&view, table).unwrap(), query).unwrap();
        let mut rows = Vec::new();
        loop {
            let page = scan.page(7, 1 << 20).unwrap();
            rows.extend(page.rows);
            if page.ended {
                return rows;
            }
        }
    }

    /// Performs one step of each pending piece of work. Returns the number of pieces.
    pub fn steps(&self, rows: u32) -> usize {
        let work = pending(&self.engine.view()).unwrap();
        for one in &work {
            let (table, index, from) = (one.table, one.index, one.from.clone());
            self.run(Body::Step { table, index, from, rows }).unwrap();
        }
        work.len()
    }

    pub fn everything(&self) -> Vec<(Bytes, Bytes)> {
        everything(&self.engine.view())
    }
}

pub fn everything(view: &View) -> Vec<(Bytes, Bytes)> {
    view.scan(&KeyRange::all(), Direction::Forward).map(Result::unwrap).collect()
}

/// Returns an operation that writes a whole row of [`fish`].
pub fn put(schema: &Schema, kind: &str, n: i64, colour: Value, size: Value, tag: Value) -> Op {
    put_if(schema, Expect::Any {}, kind, n, [colour, size, tag])
}

pub fn put_if(schema: &Schema, expect: Expect, kind: &str, n: i64, rest: [Value; 3]) -> Op {
    let ids = ["colour", "size", "tag"].map(|name| schema.column(name).unwrap().id);
    let values: Values = ids.into_iter().zip(rest).collect();
    Op { table: schema.table, key: key(kind, n), action: Action::Put { expect, values, merge: false } }
}

pub fn op(schema: &Schema, kind: &str, n: i64, action: Action) -> Op {
    Op { table: schema.table, key: key(kind, n), action }
}

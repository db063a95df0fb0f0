//! Clients of tables: transactions, conditional writes, and queries by key and by index, through any node. A command with an unknown
//! outcome is resent under the same name, through any node (contracts X24).

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::codec::{Decode, Encode};
use atoll_core::testing::hit;
use atoll_db::{Direction, Engine, View};
use atoll_tables::{
    Action, Body, Change, ColumnDefinition, ColumnType, Command, Expect, IndexDefinition, IndexState, Op,
    Query, RejectKind, Rejection, Scan, Schema, TableDefinition, Tables, Value, Values, pending, read,
};

use crate::oracle::Answered;
use crate::oracle::tables::{Columns, Row, TablesOracle};
use crate::scenario::database::Engines;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;

/// The table.
const TABLE: &str = "fish";
/// How many different keys clients use.
const KEYS: u64 = 16;
/// How often a write is sent at most.
const ATTEMPTS: usize = 4;

/// What the clients share.
#[derive(Clone)]
pub struct Sea {
    /// The world.
    pub stage: Stage<NodeHandles>,
    /// The engines of the nodes.
    pub engines: Engines<Tables>,
    /// Where clients report their results.
    pub oracle: TablesOracle,
}

fn index(name: &str, columns: &[&str], unique: bool) -> IndexDefinition {
    IndexDefinition { name: name.into(), columns: columns.iter().map(|c| (*c).to_owned()).collect(), unique }
}

fn definition() -> TableDefinition {
    let column = |name: &str, kind, nullable| ColumnDefinition { name: name.into(), kind, nullable };
    TableDefinition {
        name: TABLE.into(),
        columns: vec![
            column("id", ColumnType::Int64, false),
            column("colour", ColumnType::Text, true),
            column("size", ColumnType::Int64, true),
            column("tag", ColumnType::Text, true),
        ],
        key: vec!["id".into()],
        indices: vec![index("by_colour", &["colour", "size"], false), index("by_tag", &["tag"], true)],
    }
}

fn columns(schema: &Schema) -> Option<Columns> {
    let id = |name: &str| schema.column(name).ok().map(|c| c.id);
    Some(Columns { colour: id("colour")?, size: id("size")?, tag: id("tag")? })
}

/// Returns whether an operation of a transaction does not change its row.
fn is_read(op: &Op) -> bool {
    matches!(op.action, Action::Read {} | Action::Check { .. })
}

/// The names of one client's commands.
struct Names {
    client: u64,
    seq: u64,
}

impl Sea {
    fn report(&self) {
        self.oracle.take_failures().into_iter().for_each(|f| self.stage.cluster.fail(f));
        self.stage.report();
    }

    fn below(&self, n: u64) -> u64 {
        self.stage.below(n)
    }

    fn engine(&self, life: &Life<NodeHandles>) -> Option<Engine<Tables>> {
        self.engines.get(life.node, life.env.incarnation())
    }

    fn somewhere(&self) -> Option<Life<NodeHandles>> {
        self.stage.cluster.any_from(self.below(64) as usize % self.stage.cluster.hosts())
    }

    /// Sends a command until its outcome is known, but at most `ATTEMPTS` times. Returns whether it was answered.
    async fn run(&self, names: &mut Names, body: Body) -> bool {
        names.seq += 1;
        let name = (names.client, names.seq);
        let reads_only = matches!(&body, Body::Transaction { ops } if ops.iter().all(is_read));
        let command = Command { client: name.0, seq: name.1, body }.to_bytes();
        let since = self.oracle.now();
        for attempt in 0..ATTEMPTS {
            let Some(life) = self.somewhere() else { return false };
            let proposed = self.engine(&life).and_then(|engine| engine.propose(command.clone()).ok());
            let Some(proposed) = proposed else { continue };
            let patient =
                self.stage.env.within(Duration::from_secs(3), self.stage.cluster.ask(&life, proposed));
            if let Ok(Some(Ok(Ok(applied)))) = patient.await {
                self.oracle.follow();
                let reply = applied.reply.map_err(|rejected| rejected.0);
                let place = (applied.position.0, applied.index);
                self.oracle.answered(name, place, &reply, since, attempt > 0);
                self.stage.count(Answered::one(reply.is_ok() && !reads_only));
                let refused = reply.err().and_then(|bytes| Rejection::from_bytes(bytes).ok());
                if refused.is_some_and(|refused| refused.kind == RejectKind::Forgotten) {
                    *names = Names { client: self.stage.env.random() | 1, seq: 0 };
                }
                self.report();
                return true;
            }
            hit("sim.tables.sent_again");
        }
        false
    }

    /// Returns the schema of the table in the newest view of some node.
    fn schema(&self) -> Option<Schema> {
        let life = self.somewhere()?;
        let schema = read::schema(&self.engine(&life)?.view(), TABLE).ok()?;
        self.oracle.is_made(columns(&schema)?);
        Some(schema)
    }

    fn value(&self, nulls: u64, value: impl FnOnce() -> Value) -> Value {
        if self.below(nulls) == 0 { Value::Null } else { value() }
    }

    fn values(&self, columns: Columns) -> Values {
        let text = |prefix: &str, n: u64| Value::Text(format!("{prefix}{}", self.below(n)));
        let all = [
            (columns.colour, self.value(8, || text("colour", 3))),
            (columns.size, self.value(8, || Value::Int64(self.below(4) as i64))),
            (columns.tag, self.value(3, || text("tag", 12))),
        ];
        // Some puts set only a part of the columns.
        all.into_iter().filter(|_| self.below(4) > 0).collect()
    }

    fn op(&self, schema: &Schema, columns: Columns, seen: &BTreeMap<i64, u64>) -> Op {
        let key = self.below(KEYS) as i64;
        let version = seen.get(&key).copied().unwrap_or(1);
        let expect = match self.below(6) {
            0 => Expect::Absent {},
            1 => Expect::Present {},
            2 | 3 => Expect::Version { version: version + self.below(8) / 7 },
            _ => Expect::Any {},
        };
        let action = match self.below(8) {
            0 | 1 => Action::Read {},
            2 => Action::Check { expect },
            3 => Action::Delete { expect },
            _ => Action::Put { expect, values: self.values(columns), merge: self.below(3) == 0 },
        };
        Op { table: schema.table, key: vec![Value::Int64(key)], action }
    }

    /// Reads all rows after a barrier, by each ready index and by key. Returns the versions of the rows.
    async fn read(&self, life: &Life<NodeHandles>) -> Option<BTreeMap<i64, u64>> {
        let engine = self.engine(life)?;
        let since = self.oracle.now();
        let Some(Ok(Ok(_))) = self.stage.cluster.ask(life, engine.barrier()).await else { return None };
        self.oracle.follow();
        let view = engine.view();
        let schema = read::schema(&view, TABLE).ok()?;
        let columns = columns(&schema)?;
        self.oracle.is_made(columns);
        let ready = schema.indices.iter().filter(|i| i.state == (IndexState::Ready {}));
        let mut by: Vec<Option<String>> = ready.map(|i| Some(i.name.clone())).collect();
        by.push(None);
        let mut seen = BTreeMap::new();
        for index in by {
            let Some(rows) = self.scan(&view, &schema, columns, index.clone()) else {
                self.stage.cluster.fail(format!("TABLES: {index:?} of a view cannot be read"));
                return None;
            };
            self.oracle.read(view.below(), since, index.as_deref(), &rows);
            self.stage.count(Answered::one(false));
            seen = rows.iter().map(|(key, (version, _))| (*key, *version)).collect();
        }
        self.report();
        Some(seen)
    }

    fn scan(
        &self,
        view: &View,
        schema: &Schema,
        columns: Columns,
        index: Option<String>,
    ) -> Option<Vec<(i64, Row)>> {
        let backward = self.below(2) == 0;
        let direction = if backward { Direction::Backward } else { Direction::Forward };
        let query = Query { index, direction, ..Query::default() };
        let mut scan = Scan::new(view, schema.clone(), &query).ok()?;
        let mut rows = Vec::new();
        loop {
            let page = scan.page(5, 1 << 20).ok()?;
            for row in page.rows {
                let Some(Value::Int64(key)) = row.values.first().cloned() else { return None };
                let ids = [columns.colour, columns.size, columns.tag];
                let values = ids.into_iter().zip(row.values.into_iter().skip(1));
                rows.push((key, (row.version, values.filter(|(_, v)| !v.is_null()).collect())));
            }
            if page.ended {
                break;
            }
        }
        if backward {
            rows.reverse();
        }
        Some(rows)
    }
}

/// Creates the table if it does not exist. Then writes and reads until the load is over.
pub async fn client(sea: Sea, think: Duration) {
    let mut names = Names { client: sea.stage.env.random() | 1, seq: 0 };
    let mut seen = BTreeMap::new();
    while !sea.stage.over.is_up() {
        sea.stage.pause(think).await;
        let Some((schema, columns)) = sea.schema().and_then(|s| columns(&s).map(|c| (s, c))) else {
            sea.run(&mut names, Body::CreateTable { table: definition() }).await;
            continue;
        };
        if sea.below(4) == 0 {
            if let Some(life) = sea.somewhere()
                && let Some(now) = sea.read(&life).await
            {
                seen = now;
            }
        } else {
            let n = 1 + sea.below(2) * sea.below(4);
            let ops = (0..n).map(|_| sea.op(&schema, columns, &seen)).collect();
            sea.run(&mut names, Body::Transaction { ops }).await;
        }
    }
}

/// Adds and drops an index repeatedly, and performs the pending background work.
pub async fn changes(sea: Sea) {
    let mut names = Names { client: sea.stage.env.random() | 1, seq: 0 };
    while !sea.stage.over.is_up() {
        sea.stage.pause(Duration::from_millis(400)).await;
        let Some(life) = sea.somewhere() else { continue };
        let Some(view) = sea.engine(&life).map(|engine| engine.view()) else { continue };
        let Ok(schema) = read::schema(&view, TABLE) else { continue };
        let work = pending(&view).unwrap_or_default();
        for one in &work {
            let step = Body::Step { table: one.table, index: one.index, from: one.from.clone(), rows: 3 };
            sea.run(&mut names, step).await;
        }
        if work.is_empty() && sea.below(4) == 0 {
            let name = "by_size".to_owned();
            let change = match schema.index(&name) {
                Ok(_) => Change::DropIndex { name },
                Err(_) => Change::AddIndex { index: index(&name, &["size"], false) },
            };
            hit("sim.tables.schema_changed");
            sea.run(&mut names, Body::ChangeTable { name: TABLE.into(), change }).await;
        }
    }
}

/// Demands that every node makes progress, shows the right rows, and is not halted.
pub async fn demand(sea: Sea) {
    let mut names = Names { client: sea.stage.env.random() | 1, seq: 0 };
    sea.stage.waits_for("a write".to_owned());
    while !sea.run(&mut names, Body::CreateTable { table: definition() }).await {
        sea.stage.pause(Duration::from_millis(50)).await;
    }
    for host in 0..sea.stage.cluster.hosts() {
        sea.stage.waits_for(format!("a read through host {host}"));
        while let Some(life) = sea.stage.cluster.host(host)
            && sea.read(&life).await.is_none()
        {
            sea.stage.pause(Duration::from_millis(50)).await;
        }
        let life = sea.stage.cluster.host(host);
        if let Some(engine) = life.and_then(|life| sea.engine(&life)) {
            let health = engine.health();
            if health.halted.is_some() || health.divergence.is_some() {
                sea.stage.cluster.fail(format!("DATABASE: host {host} ended as {health:?}"));
            }
        }
    }
    sea.report();
}

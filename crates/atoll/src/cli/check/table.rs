//! A client of tables: gets of several rows, conditional puts and deletes, and transactions over two rows.

use std::collections::BTreeMap;

use atoll_client::proto::{
    Cell, ColumnKind, Expect, GetRequest, NamedCell, Operation, RowKey, Table, TableColumn, TableRow, cell,
    expect, operation,
};
use atoll_client::{Error, Failure, Reason, Tables};
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::super::{CliError, Common, DEV_ADDRESSES};
use super::recorder::{Ended, row, step};
use super::run::{AFTER_ERROR, PATIENCE, Random, Shared, key_name, rotated};

struct TableClient {
    tables: Tables,
    table: String,
    client: u64,
    random: Random,
    shared: Shared,
    /// The versions of rows that this client has seen last.
    known: BTreeMap<u64, u64>,
}

/// Creates the table if it does not exist, and starts the clients.
pub(super) async fn start(
    local: &LocalSet,
    common: &Common,
    table: &str,
    clients: u64,
    shared: &Shared,
) -> Result<(), CliError> {
    make_table(&common.client().await?.tables(), table).await?;
    let connect = common.connect.as_deref().unwrap_or(DEV_ADDRESSES);
    let addresses: Vec<String> = connect.split(',').map(str::to_owned).collect();
    for client in 0..clients {
        let connect = Some(rotated(&addresses, client).join(","));
        let common = Common { connect, timeout: common.timeout.min(PATIENCE), ..common.clone() };
        let one = TableClient {
            tables: common.client().await?.tables(),
            table: table.to_owned(),
            client,
            random: shared.random(client),
            shared: shared.clone(),
            known: BTreeMap::new(),
        };
        local.spawn_local(one.run());
    }
    Ok(())
}

async fn make_table(tables: &Tables, name: &str) -> Result<(), CliError> {
    let column =
        |name: &str, kind| TableColumn { name: name.to_owned(), kind: i32::from(kind), nullable: false };
    let wanted = vec![column("k", ColumnKind::Text), column("v", ColumnKind::Int64)];
    let found = match tables.describe(name).await {
        Err(Error::DidNotHappen(Failure { reason: Reason::NoSuchTable, .. })) => {
            let (columns, key) = (wanted.clone(), vec!["k".to_owned()]);
            tables.create(Table { name: name.to_owned(), columns, key, ..Table::default() }).await?
        }
        described => described?,
    };
    if found.columns != wanted {
        let words = format!("table {name} has other columns than k:text and v:int64; choose another --table");
        return Err(CliError::Usage(words));
    }
    Ok(())
}

fn text(text: String) -> Cell {
    Cell { value: Some(cell::Value::TextValue(text)) }
}

fn int(value: i64) -> Cell {
    Cell { value: Some(cell::Value::Int64Value(value)) }
}

/// Returns a row as a history has it.
fn shown(found: Option<&TableRow>) -> Value {
    let Some(found) = found else { return Value::Null };
    match found.cells.get(1).and_then(|cell| cell.value.as_ref()) {
        Some(cell::Value::Int64Value(value)) => row(*value, found.version.cast_signed()),
        _ => row(-1, found.version.cast_signed()),
    }
}

/// A condition, for the request and for the history.
type Condition = (Option<Expect>, Value);

impl TableClient {
    async fn run(mut self) {
        while !self.shared.is_over() {
            let answered = match self.random.below(100) {
                0..35 => self.get().await,
                35..60 => self.put().await,
                60..72 => self.delete().await,
                _ => self.transaction().await,
            };
            if !answered {
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }

    fn key(&self, key: u64) -> RowKey {
        RowKey { cells: vec![text(format!("{}/{}", self.shared.prefix, key_name(key)))] }
    }

    fn learn(&mut self, key: u64, found: Option<&TableRow>) {
        match found {
            Some(found) => self.known.insert(key, found.version),
            None => self.known.remove(&key),
        };
    }

    /// Notes how an operation ended. Returns whether it was answered.
    fn ended(&self, call: i64, steps: &[Value], ended: Ended, error: Option<&Error>) -> bool {
        let mut recorder = self.shared.recorder.borrow_mut();
        if let Some(error) = error {
            recorder.last_error = Some(error.to_string());
        }
        let answered = matches!(ended, Ended::Yes(_));
        recorder.ended(self.client, call, steps, ended);
        answered
    }

    async fn get(&mut self) -> bool {
        let count = 1 + self.random.below(3);
        let keys = self.random.some(count, self.shared.keys);
        let steps: Vec<Value> = keys.iter().map(|key| step("get", &key_name(*key), None, None)).collect();
        let request = GetRequest {
            table: self.table.clone(),
            keys: keys.iter().map(|key| self.key(*key)).collect(),
            stale: false,
        };
        let call = self.shared.now();
        match self.tables.get(request).await {
            Ok(reply) => {
                let read: Vec<Value> = reply.found.iter().map(|found| shown(found.row.as_ref())).collect();
                keys.iter().zip(&reply.found).for_each(|(key, found)| self.learn(*key, found.row.as_ref()));
                self.ended(call, &steps, Ended::Yes(json!({"done": {"read": read}})), None)
            }
            Err(error) => self.ended(call, &steps, Ended::Unknown, Some(&error)),
        }
    }

    /// Draws a condition: mostly what this client would expect.
    fn condition(&mut self, key: u64) -> Condition {
        let expect = |what| Some(Expect { what: Some(what) });
        match (self.random.below(20), self.known.get(&key)) {
            (0..4, _) => (None, "any".into()),
            (4, _) => (expect(expect::What::Present(true)), "present".into()),
            (_, None) => (expect(expect::What::Absent(true)), "absent".into()),
            (_, Some(version)) => (expect(expect::What::Version(*version)), json!({"version": version})),
        }
    }

    fn operation(&self, action: operation::Action) -> Operation {
        Operation { table: self.table.clone(), action: Some(action) }
    }

    fn put_of(&mut self, key: u64) -> (Value, Operation) {
        let (expect, shown) = self.condition(key);
        let value = self.shared.recorder.borrow_mut().value();
        let name = self.key(key).cells.pop();
        let cells = vec![
            NamedCell { column: "k".to_owned(), value: name },
            NamedCell { column: "v".to_owned(), value: Some(int(value)) },
        ];
        let put = operation::Action::Put(operation::Put { cells, merge: false, expect });
        (step("put", &key_name(key), Some(value), Some(shown)), self.operation(put))
    }

    async fn put(&mut self) -> bool {
        let key = self.random.below(self.shared.keys);
        let put = self.put_of(key);
        self.transact(vec![put], &[]).await
    }

    async fn delete(&mut self) -> bool {
        let key = self.random.below(self.shared.keys);
        let (expect, shown) = self.condition(key);
        let delete = operation::Action::Delete(operation::Delete { key: Some(self.key(key)), expect });
        let step = step("delete", &key_name(key), None, Some(shown));
        let delete = self.operation(delete);
        self.transact(vec![(step, delete)], &[]).await
    }

    /// Reads two rows, checks one of them or writes it, and writes the other.
    async fn transaction(&mut self) -> bool {
        let keys = self.random.some(2, self.shared.keys);
        let mut all = Vec::new();
        for key in &keys {
            let read = operation::Action::Read(operation::Read { key: Some(self.key(*key)) });
            all.push((step("get", &key_name(*key), None, None), self.operation(read)));
        }
        if self.random.below(3) == 0 {
            let (expect, shown) = self.condition(keys[0]);
            let check = operation::Action::Check(operation::Check { key: Some(self.key(keys[0])), expect });
            all.push((step("check", &key_name(keys[0]), None, Some(shown)), self.operation(check)));
        } else {
            all.push(self.put_of(keys[0]));
        }
        all.push(self.put_of(keys[1]));
        self.transact(all, &keys).await
    }

    /// Performs operations that begin with gets of these keys.
    async fn transact(&mut self, all: Vec<(Value, Operation)>, gets: &[u64]) -> bool {
        let (steps, operations): (Vec<Value>, Vec<Operation>) = all.into_iter().unzip();
        let call = self.shared.now();
        match self.tables.transact(operations).await {
            Ok(reply) => {
                let found = || reply.read.iter().take(gets.len()).map(|found| found.row.as_ref());
                let read: Vec<Value> = found().map(shown).collect();
                let version = reply.version.cast_signed();
                // What was read before the writes is old now.
                for key in gets {
                    self.known.remove(key);
                }
                let result = json!({"done": {"read": read, "version": version}});
                self.ended(call, &steps, Ended::Yes(result), None)
            }
            Err(error) => {
                let ended = match &error {
                    Error::DidNotHappen(Failure { reason: Reason::Conflict, .. }) => {
                        Ended::Yes("conflict".into())
                    }
                    Error::DidNotHappen(_) => Ended::No,
                    Error::Unknown(_) => Ended::Unknown,
                    Error::Happened(_) => Ended::Yes(json!({"done": {}})),
                };
                self.ended(call, &steps, ended, Some(&error))
            }
        }
    }
}

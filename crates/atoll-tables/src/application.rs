//! The replicated application: applies commands to the tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::application::{AppId, Application, ApplyAt, Rejected, StoreError, Tx, View};
use atoll_core::codec::{Decode, Encode};
use atoll_core::record;
use bytes::Bytes;

use crate::command::{Body, Command, Done, RejectKind, Rejection, Reply};
use crate::schema::{Change, Schema, SchemaError, TableDefinition};
use crate::{MAX_OPERATIONS, MAX_TABLES, clients, layout, transaction, upkeep};

record! {
    /// The global counters of the state.
    pub struct Counters {
        /// The version of the last write.
        pub version: u64,
        /// The number of the table that was created last.
        pub table: u32,
        /// The number of tables.
        pub tables: u32,
        /// The number of clients that are remembered.
        pub clients: u32,
    }
}

/// Why a command was refused. It has no effect.
pub(crate) type Refused = Rejection;

impl From<SchemaError> for Rejection {
    fn from(error: SchemaError) -> Self {
        let kind = match error {
            SchemaError::KeyTooLong { .. } => RejectKind::TooLarge,
            _ => RejectKind::Invalid,
        };
        Rejection::new(kind, error.to_string())
    }
}

/// The application. Its state is in the store; only the schemas in use are cached.
#[derive(Debug, Default)]
pub struct Tables {
    schemas: BTreeMap<u32, Arc<Schema>>,
    /// The last write of every remembered client has at least this version. This stays true because versions only rise, even when a
    /// command is rolled back.
    quiet_from: u64,
}

/// The state while a command is applied.
pub(crate) struct TableState<'a, 'b> {
    pub(crate) tx: &'a mut Tx<'b, ()>,
    pub(crate) counters: Counters,
    /// See [`Tables::quiet_from`].
    pub(crate) quiet_from: &'a mut u64,
    /// See [`Reply::schemas`].
    pub(crate) read_under: BTreeMap<u32, u32>,
    schemas: &'a mut BTreeMap<u32, Arc<Schema>>,
}

impl Application for Tables {
    type Event = ();
    const ID: AppId = AppId(3);
    const NAME: &'static str = "tables";

    fn apply(&mut self, _at: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
        let refused = |rejection: Refused| Rejected(rejection.to_bytes());
        // Doors propose only encoded `Command`s. Every replica refuses anything else in the log.
        let command = Command::from_bytes(Bytes::copy_from_slice(command))
            .map_err(|e| refused(Rejection::new(RejectKind::Invalid, format!("unreadable command: {e}"))))?;
        let counters = tx
            .get(&layout::COUNTERS_KEY)
            .map_or(Counters { version: 0, table: 0, tables: 0, clients: 0 }, |bytes| {
                Counters::from_bytes(bytes).expect("damaged state: the counters of tables")
            });
        let mut state = TableState {
            tx,
            counters,
            quiet_from: &mut self.quiet_from,
            read_under: BTreeMap::new(),
            schemas: &mut self.schemas,
        };
        let done = state.run(&command).map_err(refused)?;
        Ok(Reply { done, schemas: state.read_under }.to_bytes())
    }

    fn opened(&mut self, _view: &View) -> Result<(), StoreError> {
        self.quiet_from = 0;
        self.schemas.clear();
        Ok(())
    }

    fn undone(&mut self) {
        self.schemas.clear();
    }
}

impl TableState<'_, '_> {
    fn run(&mut self, command: &Command) -> Result<Done, Refused> {
        let named = command.client != 0 && !matches!(command.body, Body::Step { .. });
        if named && let Some(done) = clients::outcome(self, command.client, command.seq)? {
            return Ok(done);
        }
        let before = self.counters.clone();
        let done = match &command.body {
            Body::CreateTable { table } => self.create(table)?,
            Body::DropTable { name } => self.drop_table(name)?,
            Body::ChangeTable { name, change } => self.change(name, change)?,
            Body::Transaction { ops } => {
                if ops.len() > MAX_OPERATIONS {
                    let words = format!("{} operations; at most {MAX_OPERATIONS} are allowed", ops.len());
                    return Err(Rejection::new(RejectKind::TooLarge, words));
                }
                transaction::run(self, ops)?
            }
            Body::Step { table, index, from, rows } => upkeep::step(self, *table, *index, from, *rows)?,
        };
        // A command that wrote nothing is not remembered, because repeating it does no harm.
        if named && self.counters.version != before.version {
            clients::note(self, command.client, command.seq, &done);
        }
        if self.counters != before {
            self.tx.put(&layout::COUNTERS_KEY, self.counters.to_bytes());
        }
        Ok(done)
    }

    /// Returns the version for a new write.
    pub(crate) fn next_version(&mut self) -> u64 {
        self.counters.version += 1;
        self.counters.version
    }

    /// Returns a table's schema by its number.
    pub(crate) fn schema(&mut self, table: u32) -> Option<Arc<Schema>> {
        if let Some(schema) = self.schemas.get(&table) {
            return Some(schema.clone());
        }
        let bytes = self.tx.get(&layout::schema(table))?;
        let schema = Arc::new(Schema::from_bytes(bytes).expect("damaged state: a schema"));
        self.schemas.insert(table, schema.clone());
        Some(schema)
    }

    pub(crate) fn set_schema(&mut self, schema: Schema) {
        self.tx.put(&layout::schema(schema.table), schema.to_bytes());
        self.schemas.insert(schema.table, Arc::new(schema));
    }

    fn named(&mut self, name: &str) -> Result<Arc<Schema>, Refused> {
        let table = self.tx.get(&layout::name(name));
        let table = table.map(|bytes| u32::from_bytes(bytes).expect("damaged state: a table's number"));
        table.and_then(|table| self.schema(table)).ok_or_else(|| no_such_table(name))
    }

    fn wrote(&mut self) -> Done {
        Done { version: self.next_version(), read: Some(Vec::new()), more: false }
    }

    fn create(&mut self, definition: &TableDefinition) -> Result<Done, Refused> {
        if self.tx.get(&layout::name(&definition.name)).is_some() {
            let words = format!("there is a table {:?}", definition.name);
            return Err(Rejection::new(RejectKind::TableExists, words));
        }
        if self.counters.tables as usize >= MAX_TABLES {
            let words = format!("there are already {MAX_TABLES} tables, the maximum");
            return Err(Rejection::new(RejectKind::TooLarge, words));
        }
        let ids_ran_out = || Rejection::new(RejectKind::TooLarge, "the numbers of tables have run out");
        let table = self.counters.table.checked_add(1).ok_or_else(ids_ran_out)?;
        let schema = Schema::new(table, definition)?;
        self.counters.table = table;
        self.counters.tables += 1;
        self.tx.put(&layout::name(&schema.name), table.to_bytes());
        self.set_schema(schema);
        Ok(self.wrote())
    }

    fn drop_table(&mut self, name: &str) -> Result<Done, Refused> {
        let schema = self.named(name)?;
        self.tx.delete(&layout::name(name));
        self.tx.delete(&layout::schema(schema.table));
        self.schemas.remove(&schema.table);
        for index in &schema.indices {
            self.tx.delete(&layout::pending(schema.table, index.id));
        }
        self.tx.put(&layout::pending(schema.table, 0), Bytes::new());
        self.counters.tables -= 1;
        Ok(self.wrote())
    }

    fn change(&mut self, name: &str, change: &Change) -> Result<Done, Refused> {
        let schema = self.named(name)?;
        let new = schema.changed(change)?;
        let touched = match change {
            Change::AddIndex { .. } => new.indices.last().map(|i| i.id),
            Change::DropIndex { name } => schema.index(name).ok().map(|i| i.id),
            Change::AddColumn { .. } | Change::DropColumn { .. } => None,
        };
        if let Some(index) = touched {
            self.tx.put(&layout::pending(schema.table, index), Bytes::new());
        }
        self.set_schema(new);
        Ok(self.wrote())
    }
}

pub(crate) fn no_such_table(name: &str) -> Rejection {
    Rejection::new(RejectKind::NoSuchTable, format!("there is no table {name:?}"))
}

//! `atoll table`.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the verbs; definitions and changes of tables |
//! | `cell.rs` | values as text and as JSON |
//! | `rows.rs` | put, get, scan, query, export |
//! | `transaction.rs` | txn |
//! | `import.rs`, `source.rs` | import: writes rows to the cluster, reads rows from a file |

mod cell;
mod import;
mod rows;
mod source;
mod transaction;

use atoll_client::proto::{self, change_table_request::Change};
use serde_json::{Value, json};

use super::{CliError, Common, Table};

/// Arguments of `atoll table`.
#[derive(Debug, clap::Args)]
pub struct TableArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: TableVerb,
}

#[derive(Debug, clap::Subcommand)]
enum TableVerb {
    /// Create a table
    Create(CreateArgs),
    /// List the tables
    List,
    /// Show a table: its columns, key and indices
    Show {
        /// Its name
        table: String,
    },
    /// Drop a table and all its rows
    Drop {
        /// Its name
        table: String,
    },
    /// Add a nullable column; existing rows have null in it
    AddColumn {
        /// The table
        table: String,
        /// NAME:TYPE
        #[arg(value_name = "COLUMN:TYPE")]
        column: String,
    },
    /// Drop a column that is not in the key or an index
    DropColumn {
        /// The table
        table: String,
        /// Its name
        column: String,
    },
    /// Add an index, which is built in the background
    AddIndex {
        /// The table
        table: String,
        /// Its name and columns
        #[arg(value_name = "INDEX=COLUMN,...")]
        index: String,
        /// No two rows may have the same values in these columns, unless one is null
        #[arg(long)]
        unique: bool,
    },
    /// Drop an index
    DropIndex {
        /// The table
        table: String,
        /// Its name
        index: String,
    },
    /// Write the rows of a file, CSV or JSON lines, and replace rows with the same keys
    Import(import::ImportArgs),
    /// Put a row
    Put(rows::PutArgs),
    /// Get a row by its primary key
    Get(rows::GetArgs),
    /// Print a range of rows in the order of the primary key
    Scan(rows::ScanArgs),
    /// Print a range of rows in the order of an index
    Query(rows::QueryArgs),
    /// Run a transaction: operations in order, all or none of them
    Txn(transaction::TxnArgs),
    /// Print all rows, from one state of the table, in a form that `import` reads
    Export(rows::ExportArgs),
}

/// Arguments of `atoll table create`.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name
    table: String,
    /// A column: bool, int64, float64, text, bytes or timestamp; a ? after the type allows null. Repeatable
    #[arg(long = "column", value_name = "NAME:TYPE[?]", required = true)]
    columns: Vec<String>,
    /// The columns of the primary key, in order
    #[arg(long, value_name = "COLUMN,...", required = true, value_delimiter = ',')]
    key: Vec<String>,
    /// A secondary index. Repeatable
    #[arg(long = "index", value_name = "INDEX=COLUMN,...")]
    indices: Vec<String>,
    /// A secondary index in which no two rows have the same values, unless one is null. Repeatable
    #[arg(long = "unique", value_name = "INDEX=COLUMN,...")]
    unique: Vec<String>,
}

/// Runs `atoll table`.
pub async fn run(args: &TableArgs) -> Result<(), CliError> {
    let common = &args.common;
    // Check the command line before calling the cluster, so that a wrong one fails in the same way with and without a cluster.
    let wanted = definition_or_change(&args.verb)?;
    let tables = common.client().await?.tables();
    let changed = |table: proto::Table| common.print_done(&table_json(&table), || table_text(&table));
    match (&args.verb, wanted) {
        (_, Wanted::Create(table)) => changed(tables.create(table).await?),
        (_, Wanted::Change(table, change)) => changed(tables.change(&table, change).await?),
        (TableVerb::List, _) => {
            let all = tables.list().await?;
            common.print(&json!({"tables": all.iter().map(table_json).collect::<Vec<_>>()}), || {
                match all.is_empty() {
                    true => "no tables yet; `atoll table create` makes one".to_owned(),
                    false => all.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join("\n"),
                }
            })
        }
        (TableVerb::Show { table }, _) => {
            let table = tables.describe(table).await?;
            common.print(&table_json(&table), || table_text(&table))
        }
        (TableVerb::Drop { table }, _) => {
            tables.drop_table(table).await?;
            common.print_done(&json!({"table": table, "dropped": true}), || format!("dropped table {table}"))
        }
        (TableVerb::Import(args), _) => import::run(common, &tables, args).await,
        (TableVerb::Put(args), _) => rows::put(common, &tables, args).await,
        (TableVerb::Get(args), _) => rows::get(common, &tables, args).await,
        (TableVerb::Scan(args), _) => rows::scan(common, &tables, &args.table, None, &args.range).await,
        (TableVerb::Query(args), _) => {
            rows::scan(common, &tables, &args.table, Some(&args.index), &args.range).await
        }
        (TableVerb::Txn(args), _) => transaction::run(common, &tables, args).await,
        (TableVerb::Export(args), _) => rows::export(common, &tables, args).await,
        // These are definitions and changes, which are handled above.
        (
            TableVerb::Create(_)
            | TableVerb::AddColumn { .. }
            | TableVerb::DropColumn { .. }
            | TableVerb::AddIndex { .. }
            | TableVerb::DropIndex { .. },
            Wanted::Other,
        ) => Ok(()),
    }
}

enum Wanted {
    Create(proto::Table),
    Change(String, Change),
    Other,
}

fn definition_or_change(verb: &TableVerb) -> Result<Wanted, CliError> {
    Ok(match verb {
        TableVerb::Create(args) => Wanted::Create(definition(args)?),
        TableVerb::AddColumn { table, column } => {
            let column = proto::TableColumn { nullable: true, ..column_of(column)? };
            Wanted::Change(table.clone(), Change::AddColumn(column))
        }
        TableVerb::DropColumn { table, column } => {
            Wanted::Change(table.clone(), Change::DropColumn(column.clone()))
        }
        TableVerb::AddIndex { table, index, unique } => {
            Wanted::Change(table.clone(), Change::AddIndex(index_of(index, *unique)?))
        }
        TableVerb::DropIndex { table, index } => {
            Wanted::Change(table.clone(), Change::DropIndex(index.clone()))
        }
        _ => Wanted::Other,
    })
}

fn definition(args: &CreateArgs) -> Result<proto::Table, CliError> {
    let indices = args.indices.iter().map(|i| index_of(i, false));
    let unique = args.unique.iter().map(|i| index_of(i, true));
    Ok(proto::Table {
        name: args.table.clone(),
        version: 0,
        columns: args.columns.iter().map(|c| column_of(c)).collect::<Result<_, _>>()?,
        key: args.key.clone(),
        indices: indices.chain(unique).collect::<Result<_, _>>()?,
    })
}

fn column_of(text: &str) -> Result<proto::TableColumn, CliError> {
    let wrong = |what: &str| {
        CliError::Usage(format!(
            "column {text:?}: {what}; a column is NAME:TYPE, or NAME:TYPE? if it may be null"
        ))
    };
    let (name, kind) = text.split_once(':').ok_or_else(|| wrong("it has no type"))?;
    let (kind, nullable) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
    let known = cell::KINDS.iter().find(|(_, word)| *word == kind);
    let (kind, _) = known.ok_or_else(|| wrong("types are bool, int64, float64, text, bytes, timestamp"))?;
    Ok(proto::TableColumn { name: name.to_owned(), kind: (*kind).into(), nullable })
}

fn index_of(text: &str, unique: bool) -> Result<proto::TableIndex, CliError> {
    let wrong = || CliError::Usage(format!("index {text:?}: an index is NAME=COLUMN,COLUMN"));
    let (name, columns) = text.split_once('=').ok_or_else(wrong)?;
    let columns = columns.split(',').map(|c| c.trim().to_owned()).collect();
    Ok(proto::TableIndex { name: name.to_owned(), columns, unique, state: String::new() })
}

fn table_json(table: &proto::Table) -> Value {
    let column =
        |c: &proto::TableColumn| json!({"name": c.name, "type": cell::kind_word(c), "nullable": c.nullable});
    let index = |i: &proto::TableIndex| json!({"name": i.name, "columns": i.columns, "unique": i.unique, "state": i.state});
    json!({
        "table": table.name,
        "version": table.version,
        "columns": table.columns.iter().map(column).collect::<Vec<_>>(),
        "key": table.key,
        "indices": table.indices.iter().map(index).collect::<Vec<_>>(),
    })
}

fn table_text(table: &proto::Table) -> String {
    let mut columns = Table::new(["COLUMN", "TYPE", "NULL", "KEY"]);
    for column in &table.columns {
        let place = table.key.iter().position(|k| *k == column.name);
        columns.row([
            column.name.clone(),
            cell::kind_word(column).to_owned(),
            if column.nullable { "yes" } else { "no" }.to_owned(),
            place.map_or(String::new(), |at| (at + 1).to_string()),
        ]);
    }
    let mut text = format!("table {}, version {}\n{columns}", table.name, table.version);
    if !table.indices.is_empty() {
        let mut indices = Table::new(["INDEX", "COLUMNS", "UNIQUE", "STATE"]);
        for index in &table.indices {
            let unique = if index.unique { "yes" } else { "no" }.to_owned();
            indices.row([index.name.clone(), index.columns.join(", "), unique, index.state.clone()]);
        }
        text.push_str(&indices.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn definitions_are_read_and_what_is_wrong_is_named() {
        let column = column_of("size:int64?").unwrap();
        assert_eq!(
            (column.name.as_str(), column.kind(), column.nullable),
            ("size", proto::ColumnKind::Int64, true)
        );
        assert!(!column_of("size:int64").unwrap().nullable);
        let index = index_of("by_size=size, name", true).unwrap();
        assert_eq!(
            (index.name.as_str(), index.columns, index.unique),
            ("by_size", vec!["size".into(), "name".into()], true)
        );
        for bad in ["size", "size:int", "size:"] {
            assert!(column_of(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
        assert!(index_of("by_size", false).is_err());
    }
}

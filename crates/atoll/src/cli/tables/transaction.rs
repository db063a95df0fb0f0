//! `atoll table txn`.

use std::io::Read;

use atoll_client::Tables;
use atoll_client::proto::{Expect, Operation, RowKey, Table, expect, operation};
use serde_json::{Map, Value, json};

use super::super::{CliError, Common};
use super::{cell, rows};

/// Maximum length of a transaction as text, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Arguments of `atoll table txn`.
#[derive(Debug, clap::Args)]
pub(super) struct TxnArgs {
    /// A JSON array of operations, or - for standard input. An operation is {"read": T, "key": [..]},
    /// {"check": T, "key": [..], "expect": E}, {"put": T, "row": {..}, "merge": true, "expect": E}
    /// or {"delete": T, "key": [..], "expect": E}; T names a table, E is "absent", "present" or a version
    #[arg(value_name = "JSON|-")]
    operations: String,
}

/// Runs `atoll table txn`.
pub(super) async fn run(common: &Common, tables: &Tables, args: &TxnArgs) -> Result<(), CliError> {
    let text = match args.operations.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin()
                .take(MAX_BYTES)
                .read_to_string(&mut text)
                .map_err(|error| CliError::File { what: "standard input".to_owned(), error })?;
            text
        }
        text => text.to_owned(),
    };
    let parsed: Vec<Map<String, Value>> = serde_json::from_str(&text)
        .map_err(|e| CliError::Usage(format!("the transaction is no JSON array of objects: {e}")))?;
    let mut known: Vec<Table> = Vec::new();
    let (mut operations, mut of) = (Vec::new(), Vec::new());
    for (n, object) in parsed.iter().enumerate() {
        let wrong = |words: String| CliError::Usage(format!("operation {}: {words}", n + 1));
        let (kind, name) = kind(object).map_err(wrong)?;
        let at = match known.iter().position(|t| t.name == name) {
            Some(at) => at,
            None => {
                known.push(tables.describe(name).await?);
                known.len() - 1
            }
        };
        operations.push(operation_of(&known[at], kind, object).map_err(wrong)?);
        of.push(at);
    }
    let writes = operations
        .iter()
        .any(|o| matches!(o.action, Some(operation::Action::Put(_) | operation::Action::Delete(_))));
    let reply = tables.transact(operations).await?;
    let read = |(found, at): (&atoll_client::proto::get_reply::Found, &usize)| match &found.row {
        None => Value::Null,
        Some(row) => {
            let columns: Vec<String> = known[*at].columns.iter().map(|c| c.name.clone()).collect();
            json!({"row": rows::row_json(&columns, row), "version": row.version})
        }
    };
    let read: Vec<Value> = reply.read.iter().zip(&of).map(read).collect();
    let value = json!({"version": reply.version, "read": read});
    let text = || {
        let found = read.iter().filter(|r| !r.is_null()).map(|r| format!("{r}\n")).collect::<String>();
        format!("{found}version {}", reply.version)
    };
    if writes { common.print_done(&value, text) } else { common.print(&value, text) }
}

const KINDS: [&str; 4] = ["read", "check", "put", "delete"];

fn kind(object: &Map<String, Value>) -> Result<(&'static str, &str), String> {
    let mut found = KINDS.iter().filter_map(|k| object.get(*k).map(|table| (*k, table)));
    match (found.next(), found.next()) {
        (Some((kind, Value::String(table))), None) => Ok((kind, table)),
        _ => {
            Err("it needs one of \"read\", \"check\", \"put\" and \"delete\" with the name of a table"
                .to_owned())
        }
    }
}

fn operation_of(table: &Table, kind: &str, object: &Map<String, Value>) -> Result<Operation, String> {
    let allowed: &[&str] = match kind {
        "read" => &["key"],
        "put" => &["row", "merge", "expect"],
        _ => &["key", "expect"],
    };
    if let Some(other) = object.keys().find(|k| *k != kind && !allowed.contains(&k.as_str())) {
        return Err(format!(
            "{other:?} means nothing here; allowed beside {kind:?} are {}",
            allowed.join(", ")
        ));
    }
    let expect = expectation(object.get("expect"))?;
    let action = match kind {
        "read" => operation::Action::Read(operation::Read { key: Some(key(table, object)?) }),
        "check" => operation::Action::Check(operation::Check { key: Some(key(table, object)?), expect }),
        "delete" => operation::Action::Delete(operation::Delete { key: Some(key(table, object)?), expect }),
        _ => {
            let Some(Value::Object(row)) = object.get("row") else {
                return Err("a put needs a \"row\", an object from columns to values".to_owned());
            };
            let merge = object.get("merge").is_some_and(|m| *m == Value::Bool(true));
            operation::Action::Put(operation::Put { cells: rows::cells(table, row)?, merge, expect })
        }
    };
    Ok(Operation { table: table.name.clone(), action: Some(action) })
}

fn key(table: &Table, object: &Map<String, Value>) -> Result<RowKey, String> {
    let wrong = || format!("it needs a \"key\": an array of the values of {}", table.key.join(", "));
    let Some(Value::Array(values)) = object.get("key") else { return Err(wrong()) };
    if values.len() != table.key.len() {
        return Err(wrong());
    }
    let one = |(name, value): (&String, &Value)| cell::of_json(rows::column(table, name)?, value);
    Ok(RowKey { cells: table.key.iter().zip(values).map(one).collect::<Result<_, _>>()? })
}

fn expectation(expect: Option<&Value>) -> Result<Option<Expect>, String> {
    let what = match expect {
        None => return Ok(None),
        Some(Value::String(word)) if word == "absent" => expect::What::Absent(true),
        Some(Value::String(word)) if word == "present" => expect::What::Present(true),
        Some(Value::Number(n)) if n.is_u64() => expect::What::Version(n.as_u64().unwrap_or(0)),
        Some(other) => {
            return Err(format!("\"expect\" is \"absent\", \"present\" or a version, not {other}"));
        }
    };
    Ok(Some(Expect { what: Some(what) }))
}

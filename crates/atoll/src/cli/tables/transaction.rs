//! `atoll table txn`.

use std::io::Read;

use atoll_client::proto::get_reply::Found;
use atoll_client::proto::{Expect, Operation, RowKey, Table, TransactReply, expect, operation};
use atoll_client::{Error, Failure, Reason, Tables};
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
                .take(MAX_BYTES + 1)
                .read_to_string(&mut text)
                .map_err(|error| CliError::File { what: "standard input".to_owned(), error })?;
            if text.len() as u64 > MAX_BYTES {
                let words = format!("the transaction has more than {MAX_BYTES} bytes, the maximum");
                return Err(CliError::Usage(words));
            }
            text
        }
        text => text.to_owned(),
    };
    let parsed: Vec<Map<String, Value>> = serde_json::from_str(&text)
        .map_err(|e| CliError::Usage(format!("the transaction is not a JSON array of objects: {e}")))?;
    let mut known: Vec<Table> = Vec::new();
    let (mut operations, mut names) = (Vec::new(), Vec::new());
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
        names.push(name);
    }
    let writes = operations
        .iter()
        .any(|o| matches!(o.action, Some(operation::Action::Put(_) | operation::Action::Delete(_))));
    let reply = tables.transact(operations).await?;
    let read = rows_read(&reply, &names)?;
    let value = json!({"version": reply.version, "read": read});
    let text = || {
        let found = read.iter().filter(|r| !r.is_null()).map(|r| format!("{r}\n")).collect::<String>();
        format!("{found}version {}", reply.version)
    };
    if writes { common.print_done(&value, text) } else { common.print(&value, text) }
}

/// Returns what the operations have read, as JSON. `names` has the table of each.
fn rows_read(reply: &TransactReply, names: &[&str]) -> Result<Vec<Value>, CliError> {
    let one = |(found, name): (&Found, &&str)| {
        let Some(row) = &found.row else { return Ok(Value::Null) };
        // The columns come with the rows, because the table may have changed since it was described.
        let table = reply.tables.iter().find(|t| t.table == **name);
        let table = table.filter(|t| t.columns.len() == row.cells.len()).ok_or_else(|| {
            let words = format!(
                "the transaction was done, as version {}; the node does not say which columns the rows have that it read",
                reply.version
            );
            let next = "read the rows again; do client and node have the same version?";
            CliError::Client(Error::Happened(Failure::new(Reason::Refused, words, next)))
        })?;
        Ok(json!({"row": rows::row_json(&table.columns, row), "version": row.version}))
    };
    reply.read.iter().zip(names).map(one).collect()
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
            let merge = match object.get("merge") {
                None => false,
                Some(Value::Bool(merge)) => *merge,
                // Without a merge, the columns that are not given become null. So do not guess.
                Some(other) => return Err(format!("\"merge\" is true or false, not {other}")),
            };
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use atoll_client::proto::{Cell, ColumnKind, TableColumn, TableColumns, TableRow, cell};

    fn table() -> Table {
        let column = |name: &str, nullable| TableColumn {
            name: name.to_owned(),
            kind: ColumnKind::Text.into(),
            nullable,
        };
        let columns = vec![column("k", false), column("colour", true), column("size", true)];
        Table { name: "t".to_owned(), columns, key: vec!["k".to_owned()], ..Table::default() }
    }

    fn parsed(text: &str) -> Result<Operation, String> {
        let object: Map<String, Value> = serde_json::from_str(text).unwrap();
        let (kind, _) = kind(&object)?;
        operation_of(&table(), kind, &object)
    }

    #[test]
    fn what_a_field_cannot_be_is_refused_and_named() {
        let put = |merge: &str| parsed(&format!(r#"{{"put":"t","row":{{"k":"a"}},"merge":{merge}}}"#));
        for (merge, means) in [("true", true), ("false", false)] {
            let Some(operation::Action::Put(put)) = put(merge).unwrap().action else { panic!("no put") };
            assert_eq!(put.merge, means);
        }
        for merge in ["1", "0", "\"true\"", "null", "[]"] {
            assert_eq!(put(merge), Err(format!("\"merge\" is true or false, not {merge}")));
        }
        for expect in ["true", "null", "-1", "1.5", "\"any\"", "{}"] {
            let check = parsed(&format!(r#"{{"check":"t","key":["a"],"expect":{expect}}}"#));
            assert!(check.unwrap_err().contains(expect), "{expect}");
        }
        for wrong in [
            r#"{"put":"t","row":[["k","a"]]}"#,
            r#"{"put":"t"}"#,
            r#"{"put":"t","row":{"k":"a"},"marge":true}"#,
            r#"{"read":"t","key":"a"}"#,
            r#"{"read":"t","key":["a"],"expect":"absent"}"#,
            r#"{"read":7,"key":["a"]}"#,
            r#"{"put":"t","row":{"k":1}}"#,
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_have_the_columns_that_come_with_them() {
        let text = |text: &str| Cell { value: Some(cell::Value::TextValue(text.to_owned())) };
        let row = |cells| Found { row: Some(TableRow { version: 3, cells }) };
        let read = vec![Found { row: None }, row(vec![text("a"), text("big")])];
        let columns = vec!["k".to_owned(), "size".to_owned()];
        let tables = vec![TableColumns { table: "t".to_owned(), columns }];
        let reply = TransactReply { version: 4, read, tables };
        let shown = rows_read(&reply, &["t", "t"]).unwrap();
        assert_eq!(shown, [Value::Null, json!({"row": {"k": "a", "size": "big"}, "version": 3})]);
        // A node from before there were columns in the answer, and one that names others.
        for tables in
            [Vec::new(), vec![TableColumns { table: "t".to_owned(), columns: vec!["k".to_owned()] }]]
        {
            let error = rows_read(&TransactReply { tables, ..reply.clone() }, &["t", "t"]).unwrap_err();
            assert!(matches!(error, CliError::Client(Error::Happened(_))), "{error}");
        }
    }
}

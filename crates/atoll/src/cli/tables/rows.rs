//! Put, get, scan, query, export.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use atoll_client::proto::{
    self, Expect, Operation, RangeBound, RowKey, Table, TableColumn, TableRow, expect, operation,
};
use atoll_client::{Rows, Tables};
use serde_json::{Map, Value, json};

use super::super::{CliError, Common, Table as Columns, grouped};
use super::cell;

/// What must hold of the row.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct ExpectArgs {
    /// Only if no row has this key
    #[arg(long)]
    if_absent: bool,
    /// Only if a row has this key
    #[arg(long)]
    if_present: bool,
    /// Only if the row has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

impl ExpectArgs {
    fn expect(self) -> Option<Expect> {
        let what = match (self.if_absent, self.if_present, self.if_version) {
            (true, ..) => expect::What::Absent(true),
            (_, true, _) => expect::What::Present(true),
            (.., Some(version)) => expect::What::Version(version),
            _ => return None,
        };
        Some(Expect { what: Some(what) })
    }
}

/// Arguments of `atoll table put`.
#[derive(Debug, clap::Args)]
pub(super) struct PutArgs {
    /// The table
    table: String,
    /// The row: a JSON object that maps columns to values
    #[arg(value_name = "JSON")]
    row: String,
    /// Keep the values of columns that are not given
    #[arg(long)]
    merge: bool,
    #[command(flatten)]
    expect: ExpectArgs,
}

/// Arguments of `atoll table get`.
#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    /// The table
    table: String,
    /// The values of the primary key
    #[arg(required = true, allow_hyphen_values = true)]
    key: Vec<String>,
}

/// Arguments of `atoll table scan`.
#[derive(Debug, clap::Args)]
pub(super) struct ScanArgs {
    /// The table
    pub(super) table: String,
    #[command(flatten)]
    pub(super) range: RangeArgs,
}

/// Arguments of `atoll table query`.
#[derive(Debug, clap::Args)]
pub(super) struct QueryArgs {
    /// The table
    pub(super) table: String,
    /// The index
    pub(super) index: String,
    #[command(flatten)]
    pub(super) range: RangeArgs,
}

/// Which rows. Bounds have values of the first columns of the key or index; give a flag again for the next column.
#[derive(Debug, clap::Args)]
pub(super) struct RangeArgs {
    /// Rows whose first column has this value; repeat for the next column
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    equal: Vec<String>,
    /// Rows from this value on, inclusive
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    from: Vec<String>,
    /// Rows up to this value, exclusive
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    to: Vec<String>,
    /// In descending order
    #[arg(long)]
    backward: bool,
    /// At most N rows
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Read the state of the node that answers, which may be stale
    #[arg(long)]
    stale: bool,
}

/// Arguments of `atoll table export`.
#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The table
    table: String,
    /// Format of the rows
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    format: Format,
    /// Output file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How rows are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Comma-separated values, with the names of the columns first; null is an empty field
    Csv,
    /// A JSON object per line
    Jsonl,
}

/// Converts a JSON object to the cells of a row.
pub(super) fn cells(table: &Table, object: &Map<String, Value>) -> Result<Vec<proto::NamedCell>, String> {
    let named = |(name, value): (&String, &Value)| {
        let column = column(table, name)?;
        let value = Some(cell::of_json(column, value)?);
        Ok(proto::NamedCell { column: name.clone(), value })
    };
    object.iter().map(named).collect()
}

/// Returns a column of a table by its name. The error lists the columns.
pub(super) fn column<'a>(table: &'a Table, name: &str) -> Result<&'a TableColumn, String> {
    let known = || table.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = table.columns.iter().find(|c| c.name == name);
    found.ok_or_else(|| format!("table {:?} has no column {name:?}; it has {}", table.name, known()))
}

/// Parses values of the first of these columns.
pub(super) fn leading(
    table: &Table,
    columns: &[String],
    values: &[String],
) -> Result<Vec<proto::Cell>, CliError> {
    if values.len() > columns.len() {
        let words = format!("{} values for the columns {}", values.len(), columns.join(", "));
        return Err(CliError::Usage(words));
    }
    let one = |(name, text): (&String, &String)| cell::of_text(column(table, name)?, text);
    columns.iter().zip(values).map(one).collect::<Result<_, _>>().map_err(CliError::Usage)
}

/// Returns a row as a JSON object with the names of the columns.
pub(super) fn row_json(columns: &[String], row: &TableRow) -> Value {
    let pairs = columns.iter().zip(&row.cells).map(|(name, value)| (name.clone(), cell::to_json(value)));
    Value::Object(pairs.collect())
}

/// Runs `atoll table put`.
pub(super) async fn put(common: &Common, tables: &Tables, args: &PutArgs) -> Result<(), CliError> {
    let object: Map<String, Value> = serde_json::from_str(&args.row)
        .map_err(|e| CliError::Usage(format!("the row is not a JSON object: {e}")))?;
    let table = tables.describe(&args.table).await?;
    let cells = cells(&table, &object).map_err(CliError::Usage)?;
    let put = operation::Put { cells, merge: args.merge, expect: args.expect.expect() };
    let operation = Operation { table: args.table.clone(), action: Some(operation::Action::Put(put)) };
    let version = tables.transact(vec![operation]).await?.version;
    common.print_done(&json!({"table": args.table, "version": version}), || version.to_string())
}

/// Runs `atoll table get`.
pub(super) async fn get(common: &Common, tables: &Tables, args: &GetArgs) -> Result<(), CliError> {
    let table = tables.describe(&args.table).await?;
    let key = RowKey { cells: leading(&table, &table.key, &args.key)? };
    let request = proto::GetRequest { table: args.table.clone(), keys: vec![key], stale: false };
    let reply = tables.get(request).await?;
    match reply.found.into_iter().next().and_then(|found| found.row) {
        Some(row) => {
            let values = row_json(&reply.columns, &row);
            common.print(&json!({"row": values, "version": row.version}), || {
                let mut text = Columns::new(["COLUMN", "VALUE"]);
                for (name, value) in reply.columns.iter().zip(&row.cells) {
                    text.row([name.clone(), cell::to_text(value)]);
                }
                format!("{text}version {}", row.version)
            })
        }
        None => Err(CliError::Check(format!("table {:?} has no row with this key", args.table))),
    }
}

/// Runs `atoll table scan` and `query`.
pub(super) async fn scan(
    common: &Common,
    tables: &Tables,
    name: &str,
    index: Option<&str>,
    range: &RangeArgs,
) -> Result<(), CliError> {
    let table = tables.describe(name).await?;
    let columns = match index {
        None => table.key.clone(),
        Some(index) => {
            let found = table.indices.iter().find(|i| i.name == index);
            let known = || table.indices.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
            let words =
                || CliError::Usage(format!("table {name:?} has no index {index:?}; it has {}", known()));
            found.ok_or_else(words)?.columns.clone()
        }
    };
    let bound = |values: &Vec<String>, exclusive| {
        Ok::<_, CliError>(Some(RangeBound { cells: leading(&table, &columns, values)?, exclusive }))
    };
    let (lower, upper) = match range.equal.is_empty() {
        false => (bound(&range.equal, false)?, bound(&range.equal, false)?),
        true => (bound(&range.from, false)?, bound(&range.to, true)?),
    };
    if range.limit == Some(0) {
        return Ok(());
    }
    let request = proto::ScanRequest {
        table: name.to_owned(),
        index: index.map(str::to_owned),
        lower,
        upper,
        backward: range.backward,
        limit_rows: range.limit.unwrap_or(0),
        limit_bytes: 0,
        stale: range.stale,
    };
    let format = if common.json { Format::Jsonl } else { Format::Csv };
    print_rows(tables.scan(request).await?, format, Box::new(io::stdout().lock())).await.map(drop)
}

/// Runs `atoll table export`.
pub(super) async fn export(common: &Common, tables: &Tables, args: &ExportArgs) -> Result<(), CliError> {
    let request = proto::ScanRequest { table: args.table.clone(), ..proto::ScanRequest::default() };
    let rows = tables.scan(request).await?;
    let Some(path) = &args.output else {
        return print_rows(rows, args.format, Box::new(io::stdout().lock())).await.map(drop);
    };
    let file = |error| CliError::File { what: path.display().to_string(), error };
    let (count, version) = print_rows(rows, args.format, Box::new(File::create(path).map_err(file)?)).await?;
    common.print(&json!({"table": args.table, "rows": count, "version": version}), || {
        format!("{} rows of version {version}", grouped(count))
    })
}

/// Prints rows as they arrive. Returns their number, and the version of the state.
async fn print_rows(
    mut rows: Rows,
    format: Format,
    out: Box<dyn Write + '_>,
) -> Result<(u64, u64), CliError> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let (mut columns, mut count, mut version) = (Vec::new(), 0, 0);
    while let Some(reply) = rows.next().await? {
        version = reply.version;
        if let Some(table) = reply.table {
            columns = table.columns.into_iter().map(|c| c.name).collect::<Vec<_>>();
            write_head(&mut out, format, &columns)?;
        }
        for row in &reply.rows {
            count += 1;
            write_row(&mut out, format, &columns, row)?;
        }
    }
    out.flush()?;
    Ok((count, version))
}

/// Writes what stands before the rows.
pub(super) fn write_head(out: &mut impl Write, format: Format, columns: &[String]) -> io::Result<()> {
    match format {
        Format::Jsonl => Ok(()),
        Format::Csv => csv_line(out, columns.iter().map(String::as_str)),
    }
}

/// Writes a row.
pub(super) fn write_row(
    out: &mut impl Write,
    format: Format,
    columns: &[String],
    row: &TableRow,
) -> io::Result<()> {
    match format {
        Format::Jsonl => writeln!(out, "{}", row_json(columns, row)),
        Format::Csv => {
            let cells: Vec<String> = row.cells.iter().map(cell::to_text).collect();
            csv_line(out, cells.iter().map(String::as_str))
        }
    }
}

/// Writes a line of CSV, with quotes where they are needed (RFC 4180).
fn csv_line<'a>(out: &mut impl Write, fields: impl Iterator<Item = &'a str>) -> io::Result<()> {
    for (n, field) in fields.enumerate() {
        if n > 0 {
            out.write_all(b",")?;
        }
        // A single empty field would be an empty line.
        if field.is_empty() && n == 0 || field.contains(['"', ',', '\n', '\r']) {
            write!(out, "\"{}\"", field.replace('"', "\"\""))?;
        } else {
            out.write_all(field.as_bytes())?;
        }
    }
    out.write_all(b"\n")
}

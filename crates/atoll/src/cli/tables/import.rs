//! `atoll table import`: puts the rows of a file, many in a transaction, one transaction after the other. So the later one of two rows
//! with the same key stays. By default the whole file is checked before anything is written.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_client::proto::{NamedCell, Operation, Table, operation};
use atoll_client::{Error, Failure, Reason, Tables};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::super::{CliError, Common, grouped};
use super::rows::Format;
use super::source::{Line, Source, SourceError};

/// Maximum number of rows and bytes in one transaction.
const BATCH_ROWS: usize = 500;
const BATCH_BYTES: u64 = 256 * 1024;
/// Number of skipped lines that are named in the report.
const NAMED_LINES: u64 = 20;

/// Arguments of `atoll table import`.
#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The table
    table: String,
    /// The file; - is standard input, whose rows are written while it is read
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Format of the rows [default: from the file name, .csv or .jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Report malformed lines and import the others; without this flag, a file with a malformed line is refused as a whole
    #[arg(long)]
    skip_bad_lines: bool,
}

type Batch = Vec<(u64, Vec<NamedCell>)>;

/// An import in progress.
struct Import<'a> {
    tables: &'a Tables,
    table: String,
    skip: bool,
    bar: ProgressBar,
    rows: u64,
    skipped: u64,
}

/// Runs `atoll table import`.
pub(super) async fn run(common: &Common, tables: &Tables, args: &ImportArgs) -> Result<(), CliError> {
    let stdin = args.file.as_os_str() == "-";
    let format = match (args.format, args.file.extension().and_then(|e| e.to_str())) {
        (Some(format), _) => format,
        (None, Some("csv")) => Format::Csv,
        (None, Some("jsonl" | "ndjson")) => Format::Jsonl,
        _ => return Err(CliError::Usage("is it CSV or JSON lines? pass --format".to_owned())),
    };
    let what = if stdin { "standard input".to_owned() } else { args.file.display().to_string() };
    let open = || File::open(&args.file).map_err(|error| CliError::File { what: what.clone(), error });
    if !stdin {
        // Open the file before calling the cluster, because a missing file does not concern the cluster.
        open()?;
    }
    let table = tables.describe(&args.table).await?;
    if !stdin && !args.skip_bad_lines {
        check(Source::new(BufReader::with_capacity(1 << 18, open()?), &table, format), &what)?;
    }
    let total = if stdin { None } else { open()?.metadata().ok().map(|m| m.len()) };
    let started = Instant::now();
    let mut import = Import {
        tables,
        table: args.table.clone(),
        skip: args.skip_bad_lines,
        bar: bar(total),
        rows: 0,
        skipped: 0,
    };
    let done = if stdin {
        import.feed(BufReader::new(io::stdin()), &table, format, &what).await
    } else {
        import.feed(BufReader::with_capacity(1 << 18, open()?), &table, format, &what).await
    };
    import.bar.finish_and_clear();
    let (value, text) = import.report(started.elapsed());
    match done {
        Ok(()) => common.print_done(&value, || text),
        Err(CliError::Client(error)) => Err(import.with_count(error).into()),
        Err(error) if import.rows == 0 => Err(error),
        Err(error) => Err(error.after(&value, &text)),
    }
}

fn source_error(error: SourceError, what: &str) -> CliError {
    match error {
        SourceError::Io(error) => CliError::File { what: what.to_owned(), error },
        broken => refused(what, &broken.to_string()),
    }
}

fn refused(what: &str, words: &str) -> CliError {
    CliError::Client(Error::DidNotHappen(Failure::new(Reason::Invalid, format!("{what}: {words}"), "")))
}

/// Reads the whole file. Fails at the first broken line, and names it.
fn check<R: BufRead>(mut source: Source<'_, R>, what: &str) -> Result<(), CliError> {
    while let Some(Line { number, cells, .. }) = source.next().map_err(|e| source_error(e, what))? {
        if let Err(words) = cells {
            let failure = Failure::new(
                Reason::Invalid,
                format!("{what}: line {number}: {words}"),
                "nothing was imported; mend the line, or leave such lines out with --skip-bad-lines",
            );
            return Err(CliError::Client(Error::DidNotHappen(failure)));
        }
    }
    Ok(())
}

fn puts(table: &str, rows: &[(u64, Vec<NamedCell>)]) -> Vec<Operation> {
    let put = |cells: &Vec<NamedCell>| operation::Put { cells: cells.clone(), merge: false, expect: None };
    let one = |(_, cells): &(u64, Vec<NamedCell>)| Operation {
        table: table.to_owned(),
        action: Some(operation::Action::Put(put(cells))),
    };
    rows.iter().map(one).collect()
}

/// Returns whether the rows are at fault, and not the cluster.
fn is_of_the_rows(error: &Error) -> bool {
    matches!(error, Error::DidNotHappen(f) if matches!(f.reason, Reason::Invalid | Reason::TooLarge | Reason::Conflict))
}

impl Import<'_> {
    async fn feed<R: BufRead>(
        &mut self,
        from: R,
        table: &Table,
        format: Format,
        what: &str,
    ) -> Result<(), CliError> {
        let mut source = Source::new(from, table, format);
        let (mut batch, mut bytes) = (Batch::new(), 0);
        while let Some(line) = source.next().map_err(|e| source_error(e, what))? {
            match line.cells {
                Ok(cells) => batch.push((line.number, cells)),
                Err(words) if self.skip => self.skipped(line.number, &words),
                Err(words) => return Err(refused(what, &format!("line {}: {words}", line.number))),
            }
            bytes += line.bytes;
            if batch.len() >= BATCH_ROWS || bytes >= BATCH_BYTES {
                self.send(std::mem::take(&mut batch), std::mem::take(&mut bytes)).await?;
            }
        }
        self.send(batch, bytes).await
    }

    fn skipped(&mut self, line: u64, words: &str) {
        self.skipped += 1;
        let told = match self.skipped {
            n if n <= NAMED_LINES => format!("atoll: line {line} is skipped: {words}"),
            n if n == NAMED_LINES + 1 => "atoll: further skipped lines are not named".to_owned(),
            _ => return,
        };
        // The report has the number of these lines, too, so an import does not end because standard error cannot be written.
        self.bar.suspend(|| drop(writeln!(io::stderr(), "{told}")));
    }

    async fn send(&mut self, batch: Batch, bytes: u64) -> Result<(), CliError> {
        if batch.is_empty() {
            return Ok(());
        }
        match self.tables.transact(puts(&self.table, &batch)).await {
            Ok(_) => self.rows += batch.len() as u64,
            Err(error) if is_of_the_rows(&error) => self.one_by_one(batch).await?,
            Err(error) => return Err(error.into()),
        }
        self.bar.inc(bytes);
        self.bar.set_message(grouped(self.rows));
        Ok(())
    }

    /// Puts the rows one by one, to find the line that is at fault.
    async fn one_by_one(&mut self, batch: Batch) -> Result<(), CliError> {
        for row in batch {
            let line = row.0;
            match self.tables.transact(puts(&self.table, &[row])).await {
                Ok(_) => self.rows += 1,
                Err(error) if is_of_the_rows(&error) && self.skip => {
                    self.skipped(line, &error.failure().message)
                }
                Err(Error::DidNotHappen(failure)) => {
                    let message = format!("line {line}: {}", failure.message);
                    return Err(Error::DidNotHappen(Failure { message, ..failure }).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Adds to an error how many rows were imported before it.
    fn with_count(&self, error: Error) -> Error {
        error.map(|failure| {
            let and = if failure.next.is_empty() { "" } else { "; " };
            let next = format!("{} rows are imported{and}{}", grouped(self.rows), failure.next);
            Failure { next, ..failure }
        })
    }

    /// Returns what was imported, as JSON and as text.
    fn report(&self, took: Duration) -> (Value, String) {
        let (rows, skipped, seconds) = (self.rows, self.skipped, took.as_secs_f64());
        let per_second = rows as f64 / seconds.max(1e-9);
        let value = json!({"table": self.table, "rows": rows, "skipped": skipped, "seconds": seconds, "rows_s": per_second});
        let left_out =
            if skipped == 0 { String::new() } else { format!(", {} lines skipped", grouped(skipped)) };
        let per_second = grouped(per_second as u64);
        (value, format!("{} rows in {seconds:.2} s: {per_second} rows/s{left_out}", grouped(rows)))
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(n) => (ProgressBar::new(n), "{wide_bar} {bytes}/{total_bytes}  {msg} rows  {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {msg} rows"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

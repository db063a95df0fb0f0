//! The history that the clients of `atoll check run` write.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::super::CliError;

/// How an operation ended.
#[derive(Debug)]
pub enum Ended {
    /// It happened, with this result.
    Yes(Value),
    /// It did not happen.
    No,
    /// It is unknown whether it happened.
    Unknown,
}

/// A history that is being written. Lines are written in the order in which operations end.
pub struct Recorder {
    out: BufWriter<File>,
    began: Instant,
    last_value: i64,
    failed: Option<io::Error>,
    /// The number of operations with each outcome.
    pub yes: u64,
    /// See `yes`.
    pub no: u64,
    /// See `yes`.
    pub unknown: u64,
    /// An error that an operation ended with.
    pub last_error: Option<String>,
}

impl Recorder {
    /// Creates a file, or empties it, and writes the first line.
    pub fn create(file: &Path) -> Result<Recorder, CliError> {
        let failed = |error| CliError::File { what: file.display().to_string(), error };
        let mut out = BufWriter::new(File::create(file).map_err(failed)?);
        writeln!(out, "{}", json!({"type": "table", "initial": "empty"})).map_err(failed)?;
        Ok(Recorder {
            out,
            began: Instant::now(),
            last_value: 0,
            failed: None,
            yes: 0,
            no: 0,
            unknown: 0,
            last_error: None,
        })
    }

    /// Returns the present time, in ns.
    pub fn now(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Returns a value that nobody writes but the caller.
    pub fn value(&mut self) -> i64 {
        self.last_value += 1;
        self.last_value
    }

    /// Writes an operation that ends now.
    pub fn ended(&mut self, client: u64, call: i64, steps: &[Value], ended: Ended) {
        let (outcome, result) = match ended {
            Ended::Yes(result) => {
                self.yes += 1;
                ("yes", result)
            }
            Ended::No => {
                self.no += 1;
                ("no", Value::Null)
            }
            Ended::Unknown => {
                self.unknown += 1;
                ("unknown", Value::Null)
            }
        };
        let line = json!({
            "client": client, "call": call, "return": self.now(), "outcome": outcome, "do": steps, "result": result,
        });
        if let Err(error) = writeln!(self.out, "{line}") {
            self.failed.get_or_insert(error);
        }
    }

    /// Writes what is buffered.
    pub fn finish(&mut self, file: &Path) -> Result<(), CliError> {
        let flushed = self.out.flush();
        match self.failed.take().map_or(flushed, Err) {
            Ok(()) => Ok(()),
            Err(error) => Err(CliError::File { what: file.display().to_string(), error }),
        }
    }
}

/// Returns a step of an operation.
pub fn step(name: &str, key: &str, value: Option<i64>, expect: Option<Value>) -> Value {
    let mut fields = json!({"key": key});
    if let Some(value) = value {
        fields["value"] = value.into();
    }
    if let Some(expect) = expect {
        fields["expect"] = expect;
    }
    json!({name: fields})
}

/// Returns a row as a history has it.
pub fn row(value: i64, version: i64) -> Value {
    json!({"value": value, "version": version})
}

//! The history of a run, for `atoll check linearizable`: tables, because an operation has several keys.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};

use super::Error;
use super::target::now_ns;

/// What an operation does, step by step.
#[derive(Debug, Default)]
pub struct Steps(Vec<Value>);

impl Steps {
    /// Adds a read.
    pub fn get(&mut self, key: &[u8]) {
        self.0.push(json!({"get": {"key": text(key)}}));
    }

    /// Adds a write, or a deletion.
    pub fn put(&mut self, key: &[u8], value: Option<&Bytes>) {
        self.0.push(match value {
            Some(value) => json!({"put": {"key": text(key), "value": value_of(value)}}),
            None => json!({"delete": {"key": text(key)}}),
        });
    }
}

/// How an operation ended.
#[derive(Debug)]
pub enum Ended {
    /// It happened: what its reads found, and the index at which it wrote.
    Yes(Vec<Option<Bytes>>, Option<u64>),
    /// It did not happen and never will.
    No,
    /// It may have happened or may still happen.
    Unknown,
}

/// A history that is being written, and how often operations ended how.
#[derive(Debug)]
pub struct History(Mutex<Open>);

#[derive(Debug)]
struct Open {
    out: Option<BufWriter<File>>,
    failed: Option<io::Error>,
    counts: BTreeMap<&'static str, u64>,
}

impl History {
    /// Creates a file, or empties it, and writes the head. Without a file, only counts.
    pub fn create(file: Option<&Path>) -> Result<Self, Error> {
        let mut out = file.map(File::create).transpose()?.map(BufWriter::new);
        if let Some(out) = &mut out {
            writeln!(out, "{}", json!({"type": "table", "initial": "empty"}))?;
        }
        Ok(History(Mutex::new(Open { out, failed: None, counts: BTreeMap::new() })))
    }

    /// Writes an operation that ends now. Counts it as one of a kind.
    pub fn ended(&self, kind: &'static str, client: u64, call: i64, steps: Steps, ended: Ended) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, result) = match ended {
            Ended::Yes(read, version) => {
                *open.counts.entry(kind).or_default() += 1;
                let rows = read.iter().map(|value| value.as_ref().map(|v| json!({"value": value_of(v)})));
                ("yes", json!({"done": {"read": rows.collect::<Vec<_>>(), "version": version}}))
            }
            Ended::No => {
                *open.counts.entry("not_done").or_default() += 1;
                return;
            }
            Ended::Unknown => {
                *open.counts.entry("unknown").or_default() += 1;
                ("unknown", Value::Null)
            }
        };
        let line = json!({
            "client": client, "call": call, "return": now_ns(), "outcome": outcome, "do": steps.0, "result": result,
        });
        // A reader counts the lines during the run.
        let written =
            open.out.as_mut().map_or(Ok(()), |out| writeln!(out, "{line}").and_then(|()| out.flush()));
        if let Err(error) = written {
            open.failed.get_or_insert(error);
        }
    }

    /// Counts something that is no operation.
    pub fn count(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).counts.entry(what).or_default() += 1;
    }

    /// Returns how often operations of each kind ended, and how often others did not happen or are unknown. Fails if a line could not be
    /// written.
    pub fn finish(&self) -> Result<BTreeMap<&'static str, u64>, Error> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match open.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(open.counts.clone()),
        }
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// Returns the part of a value that tells it from others: what follows the first dot fills it up.
fn value_of(value: &Bytes) -> String {
    text(value.split(|byte| *byte == b'.').next().unwrap_or_default())
}

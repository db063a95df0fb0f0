//! `atoll chain excise`, `replace` and `audit`: surgery on the log of the database.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use atoll_client::Client;
use atoll_client::proto::{Chain, OperateRequest, SurgeryRecord};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{CliError, Common, Table};

/// The only log that allows surgery.
pub const DATABASE_LOG: &str = "db";
/// More bytes of a file are not read. The nodes allow fewer, and say how many.
const MOST_BYTES: u64 = 1 << 20;

/// Which entry, who wants it, and why.
#[derive(Debug, clap::Args)]
pub struct ByArgs {
    /// The position of the entry; `atoll database status` shows where a replica has stopped
    #[arg(long, value_name = "POSITION")]
    position: u64,
    /// Why; it is kept in the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who; it is kept in the audit [default: the user that runs this]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
    /// Continue a surgery on this position that is under way, because the node that did it has died
    #[arg(long)]
    take_over: bool,
    /// Confirm it: the entry, even if it was acknowledged, is gone for good
    #[arg(long)]
    yes: bool,
}

/// Arguments of `atoll chain excise`.
#[derive(Debug, clap::Args)]
pub struct ExciseArgs {
    #[command(flatten)]
    pub by: ByArgs,
}

/// Arguments of `atoll chain replace`.
#[derive(Debug, clap::Args)]
pub struct ReplaceArgs {
    #[command(flatten)]
    pub by: ByArgs,
    /// The file with the bytes of the new entry, 16 KiB at most; docs/operate.md describes them
    #[arg(long, value_name = "FILE")]
    pub with: PathBuf,
}

/// Reads the replacement from a file.
pub fn replacement(path: &Path) -> Result<Bytes, CliError> {
    let failed = |error| CliError::File { what: path.display().to_string(), error };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes.into())
}

/// Performs the surgery, and prints its record.
pub async fn operate(
    common: &Common,
    client: &Client,
    log: &str,
    by: &ByArgs,
    with: Option<Bytes>,
) -> Result<(), CliError> {
    if !by.yes {
        let position = by.position;
        return Err(CliError::Usage(format!(
            "nothing was changed: the entry at {position} would be gone for good, even if it was acknowledged; confirm it with --yes"
        )));
    }
    let user = || ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let request = OperateRequest {
        log: log.to_owned(),
        position: by.position,
        with,
        operator: by.operator.clone().or_else(user).unwrap_or_else(|| "unknown".to_owned()),
        reason: by.reason.clone(),
        take_over: by.take_over,
        confirmed: by.yes,
    };
    let record = client.operate(request).await?;
    common.print_done(&record_json(&record), || {
        let what = if record.new_hash.is_some() { "replaced" } else { "excised" };
        format!("the entry at {} was {what}; replicas that have stopped at it continue now", record.position)
    })
}

fn record_json(r: &SurgeryRecord) -> Value {
    json!({
        "position": r.position, "done": what(r), "time_ms": r.time_ms, "node": r.node, "operator": r.operator,
        "reason": r.reason, "old_hash": r.old_hash, "old_bytes": r.old_bytes, "new_hash": r.new_hash,
    })
}

fn what(record: &SurgeryRecord) -> &'static str {
    if record.new_hash.is_some() { "replace" } else { "excise" }
}

/// Returns the surgery of a log as JSON.
pub fn to_json(chain: &Chain) -> Value {
    json!({
        "records": chain.surgeries.iter().map(record_json).collect::<Vec<_>>(),
        "held": chain.held.as_ref().map(record_json),
        "changed": chain.changed,
    })
}

/// Returns the surgery of a log as text.
pub fn audit(chain: &Chain) -> String {
    let mut table = Table::new([
        "POSITION",
        "DONE",
        "TIME MS",
        "NODE",
        "OPERATOR",
        "OLD HASH",
        "OLD BYTES",
        "NEW HASH",
        "REASON",
    ]);
    for r in &chain.surgeries {
        table.row([
            r.position.to_string(),
            what(r).to_owned(),
            r.time_ms.to_string(),
            r.node.to_string(),
            r.operator.clone(),
            r.old_hash.clone(),
            r.old_bytes.to_string(),
            r.new_hash.clone().unwrap_or_else(|| "-".to_owned()),
            r.reason.clone(),
        ]);
    }
    let done = chain.surgeries.len();
    format!("log {}, {done} surgeries{}\n{table}", chain.log, under_way(chain))
}

fn under_way(chain: &Chain) -> String {
    let Some(held) = &chain.held else { return String::new() };
    let (at, done, operator, reason) = (held.position, what(held), &held.operator, &held.reason);
    format!("; under way: {done} at {at}, by {operator}: {reason}")
}

/// Returns what `atoll chain show` says of surgery.
pub fn note(chain: &Chain) -> String {
    if chain.surgeries.is_empty() && chain.held.is_none() {
        return String::new();
    }
    let done = chain.surgeries.len();
    format!("{done} surgeries; `atoll chain audit` shows them{}\n", under_way(chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_names_what_was_done_and_what_is_under_way() {
        let record = |position, new: Option<&str>| SurgeryRecord {
            position,
            operator: "ann".into(),
            reason: "it stops every replica".into(),
            old_hash: "aa".into(),
            new_hash: new.map(str::to_owned),
            ..SurgeryRecord::default()
        };
        let surgeries = vec![record(4, None), record(7, Some("bb"))];
        let chain = Chain { log: "db".into(), surgeries, held: Some(record(9, None)), ..Chain::default() };
        let text = audit(&chain);
        for part in ["excise", "replace", "under way: excise at 9, by ann", "it stops every replica", "bb"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(note(&chain).contains("2 surgeries") && note(&Chain::default()).is_empty());
        assert_eq!(to_json(&chain)["held"]["position"], 9);
    }
}

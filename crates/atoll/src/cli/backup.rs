//! `atoll backup`: begins, ends and shows the backup of the database. Restores are in `restore.rs`, because they need no cluster.

use std::sync::Arc;
use std::time::Duration;

use atoll_backup::{Backup, BackupError, Folder};
use atoll_client::proto::{BackupStatusReply, ListBackupReply, StartBackupRequest};
use atoll_client::{Failure, Reason};
use serde_json::{Value, json};

use super::spans::{date, of_ms, span, to_ms};
use super::{CliError, Common, Table, grouped};

/// The log of the database.
const LOG: &str = atoll_door::DATABASE_LOG;
/// A recovery point counts as late beyond so many intervals.
const LATE_AFTER: u64 = 3;

/// Arguments of `atoll backup`.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: BackupVerb,
}

#[derive(Debug, clap::Subcommand)]
enum BackupVerb {
    /// Begin a backup, or change where to and how often it goes
    Start(StartArgs),
    /// End the backup; what is in the store stays
    Stop,
    /// Show how far the backup is, and how many seconds it is behind
    Status,
    /// List the snapshots, and what can be restored
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
struct StartArgs {
    /// Where to: file:///DIRECTORY, which every node sees, or s3://BUCKET/PREFIX [default: unchanged]
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Ship entries this often; so much may be lost with the cluster, such as 5s [default: unchanged; first 5s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    every: Option<Duration>,
    /// Ship a snapshot of the state this often, such as 6h [default: unchanged; first 6h]
    #[arg(long, value_name = "TIME", value_parser = span)]
    snapshot_every: Option<Duration>,
    /// Keep every moment of this last time restorable, such as 7d or forever [default: unchanged; first 7d]
    #[arg(long, value_name = "TIME", value_parser = span)]
    keep: Option<Duration>,
    /// While the store is away, the log keeps at most so many entries for the backup [default: unchanged; first 10000000]
    #[arg(long, value_name = "COUNT")]
    hold_entries: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Read the store from here, without a cluster; credentials come from the environment
    #[arg(long, value_name = "URL", requires = "backup_of")]
    from: Option<String>,
    /// The name of the cluster that was backed up
    #[arg(long, value_name = "NAME", requires = "from")]
    backup_of: Option<String>,
}

/// Opens the backup of a cluster at a URL, from here.
pub async fn open(url: &str, cluster: &str) -> Result<Backup, BackupError> {
    let nap: atoll_backup::Nap = Arc::new(|pause| Box::pin(tokio::time::sleep(pause)));
    Backup::open(Folder::at(url, cluster, LOG, nap)?).await
}

/// Runs `atoll backup`.
pub async fn run(args: &BackupArgs) -> Result<(), CliError> {
    let common = &args.common;
    match &args.verb {
        BackupVerb::Start(start) => {
            let request = StartBackupRequest {
                url: start.to.clone().unwrap_or_default(),
                every_ms: start.every.map(to_ms),
                snapshot_every_ms: start.snapshot_every.map(to_ms),
                keep_ms: start.keep.map(to_ms),
                hold_entries: start.hold_entries,
            };
            let status = common.client().await?.start_backup(request).await?;
            let text = format!(
                "the backup goes to {}; `atoll backup status` shows how far it is, `atoll backup list` what can be restored",
                status.url
            );
            common.print_done(&to_json(&status), || text)
        }
        BackupVerb::Stop => {
            let status = common.client().await?.stop_backup().await?;
            common.print_done(&to_json(&status), || {
                format!("the backup has stopped; what is in {} stays", status.url)
            })
        }
        BackupVerb::Status => {
            let status = common.client().await?.backup_status().await?;
            common.print(&to_json(&status), || to_text(&status))?;
            match late(&status) {
                Some(why) => Err(CliError::Check(why)),
                None => Ok(()),
            }
        }
        BackupVerb::List(list) => {
            let listed = match (&list.from, &list.backup_of) {
                (Some(url), Some(cluster)) => {
                    atoll_node::backup::list_reply(&open(url, cluster).await.map_err(refused)?)
                }
                _ => common.client().await?.list_backup().await?,
            };
            common.print(&list_json(&listed), || list_text(&listed))
        }
    }
}

fn refused(error: BackupError) -> CliError {
    let reason = match &error {
        BackupError::Url(_) => Reason::Invalid,
        error if error.passes() => Reason::Unavailable,
        _ => Reason::Refused,
    };
    CliError::Client(atoll_client::Error::DidNotHappen(Failure::new(reason, error.to_string(), "")))
}

/// Why a backup that should go on is not as far as it should be.
fn late(s: &BackupStatusReply) -> Option<String> {
    let bound = s.every_ms.saturating_mul(LATE_AFTER).max(1000);
    match s.behind_ms {
        _ if !s.on => None,
        Some(behind) if behind > bound => Some(format!(
            "the backup is {} behind, and should be at most {}",
            of_ms(behind / 1000 * 1000),
            of_ms(bound)
        )),
        _ if !s.trouble.is_empty() => Some(format!("the backup does not go on: {}", s.trouble)),
        _ => None,
    }
}

fn to_json(s: &BackupStatusReply) -> Value {
    json!({
        "node": s.node, "on": s.on, "url": s.url, "id": s.id, "cluster": s.cluster, "every_ms": s.every_ms,
        "snapshot_every_ms": s.snapshot_every_ms, "keep_ms": s.keep_ms, "hold_entries": s.hold_entries,
        "known_tail": s.known_tail, "shipped_below": s.shipped_below, "shipped_time_ms": s.shipped_time_ms,
        "behind_ms": s.behind_ms, "snapshot_below": s.snapshot_below, "snapshot_made_ms": s.snapshot_made_ms,
        "taking_snapshot": s.taking_snapshot, "ships": s.ships, "trouble": s.trouble,
    })
}

fn to_text(s: &BackupStatusReply) -> String {
    if s.id.is_empty() {
        return "there is no backup; `atoll backup start --to URL` begins one".to_owned();
    }
    let mut lines = vec![match s.on {
        true => {
            format!("the backup of cluster `{}` goes to {}, every {}", s.cluster, s.url, of_ms(s.every_ms))
        }
        false => format!("the backup to {} has stopped; `atoll backup start` continues it", s.url),
    }];
    lines.push(format!(
        "a snapshot every {}; every moment of the last {} can be restored",
        of_ms(s.snapshot_every_ms),
        of_ms(s.keep_ms)
    ));
    if let Some(below) = s.shipped_below {
        lines.push(format!(
            "shipped below {} ({}); the log ends at {}",
            grouped(below),
            date(s.shipped_time_ms.unwrap_or(0)),
            grouped(s.known_tail)
        ));
    } else if s.on {
        lines.push("nothing is shipped yet: the first snapshot comes first".to_owned());
    }
    match s.behind_ms {
        Some(0) => lines.push("recovery point: now, everything is shipped".to_owned()),
        Some(ms) => lines.push(format!("recovery point: {:.1} seconds behind", ms as f64 / 1000.0)),
        None if s.on => lines.push("recovery point: not known".to_owned()),
        None => {}
    }
    if let (Some(below), Some(made)) = (s.snapshot_below, s.snapshot_made_ms) {
        lines.push(format!("newest snapshot: the state below {}, shipped {}", grouped(below), date(made)));
    }
    if s.taking_snapshot {
        lines.push(format!("node {} ships a snapshot now", s.node));
    }
    if !s.trouble.is_empty() {
        lines.push(format!("tried again until it works: {}", s.trouble));
    }
    lines.join("\n")
}

fn list_json(list: &ListBackupReply) -> Value {
    json!({
        "id": list.id, "cluster": list.cluster, "shipped_below": list.shipped_below,
        "shipped_time_ms": list.shipped_time_ms, "shipped_made_ms": list.shipped_made_ms,
        "snapshots": list.snapshots.iter().map(|s| json!({
            "number": s.number, "below": s.below, "time_ms": s.time_ms, "made_ms": s.made_ms, "keys": s.keys,
            "bytes": s.bytes, "hash": s.hash, "joined": s.joined,
        })).collect::<Vec<_>>(),
    })
}

fn list_text(list: &ListBackupReply) -> String {
    let mut table =
        Table::new(["SNAPSHOT", "BELOW", "TIME OF THE LOG", "SHIPPED", "KEYS", "BYTES", "JOINED"]);
    for s in &list.snapshots {
        table.row([
            s.number.to_string(),
            grouped(s.below),
            date(s.time_ms),
            date(s.made_ms),
            grouped(s.keys),
            grouped(s.bytes),
            if s.joined { "yes" } else { "no" }.to_owned(),
        ]);
    }
    let mut text = table.to_string();
    if let (Some(first), Some(below)) = (list.snapshots.first(), list.shipped_below) {
        text += &format!(
            "\nrestorable: positions {} to {}, {} to {}",
            grouped(first.below),
            grouped(below),
            date(first.time_ms),
            date(list.shipped_time_ms.unwrap_or(0))
        );
        let gaps = list.snapshots.iter().skip(1).filter(|s| !s.joined);
        text +=
            &gaps.map(|s| format!("\nentries are missing before snapshot {}", s.number)).collect::<String>();
    } else {
        text += "\nnothing can be restored yet";
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_is_behind_is_a_failed_check() {
        let well = BackupStatusReply {
            on: true,
            id: "1".into(),
            every_ms: 1000,
            behind_ms: Some(2900),
            ..BackupStatusReply::default()
        };
        assert_eq!(late(&well), None);
        assert!(
            late(&BackupStatusReply { behind_ms: Some(61_000), ..well.clone() }).unwrap().contains("61 s")
        );
        assert!(late(&BackupStatusReply { trouble: "no store".into(), ..well.clone() }).is_some());
        assert_eq!(late(&BackupStatusReply { on: false, behind_ms: Some(61_000), ..well }), None);
        assert!(to_text(&BackupStatusReply::default()).contains("no backup"));
    }
}

//! `atoll database`.

use atoll_client::proto::DatabaseStatusReply;
use serde_json::{Value, json};

use super::{CliError, Common, grouped};

/// Arguments of `atoll database`.
#[derive(Debug, clap::Args)]
pub struct DatabaseArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: DatabaseVerb,
}

#[derive(Debug, clap::Subcommand)]
enum DatabaseVerb {
    /// Show how far a node's replica has applied the log, and whether something is wrong with it
    Status,
    /// Make a node check its whole store soon; `status` shows the result
    Scrub,
}

/// Runs `atoll database`.
pub async fn run(args: &DatabaseArgs) -> Result<(), CliError> {
    let client = args.common.client().await?;
    match args.verb {
        DatabaseVerb::Status => {
            let status = client.database_status().await?;
            args.common.print(&to_json(&status), || to_text(&status))?;
            match status.out_of_service.is_empty() {
                true => Ok(()),
                false => {
                    let node = status.node;
                    Err(CliError::Check(format!(
                        "the replica of node {node} is out of service: {}",
                        status.out_of_service
                    )))
                }
            }
        }
        DatabaseVerb::Scrub => {
            client.scrub_database().await?;
            args.common.print_done(&json!({"asked": true}), || "the store is read again soon".to_owned())
        }
    }
}

fn to_json(s: &DatabaseStatusReply) -> Value {
    json!({
        "node": s.node, "applied_below": s.applied_below, "committed_below": s.committed_below,
        "durable_below": s.durable_below, "known_tail": s.known_tail, "store_bytes": s.store_bytes,
        "hashes": s.hashes.iter().map(|h| json!({"below": h.below, "hash": h.hash})).collect::<Vec<_>>(),
        "refills": s.refills, "refilling_from": s.refilling_from, "refilled_keys": s.refilled_keys,
        "refilled_bytes": s.refilled_bytes, "scrubbed_below": s.scrubbed_below, "scrubbed_keys": s.scrubbed_keys,
        "withheld": s.withheld, "found": s.found, "found_total": s.found_total, "halted": s.halted,
        "store_trouble": s.store_trouble, "out_of_service": s.out_of_service, "checked": s.checked,
    })
}

fn to_text(s: &DatabaseStatusReply) -> String {
    let mut lines = vec![
        format!("replica of node {}", s.node),
        format!("applied below {}, the log ends at {}", grouped(s.applied_below), grouped(s.known_tail)),
        format!(
            "in the store below {}, durable below {}",
            grouped(s.committed_below),
            grouped(s.durable_below)
        ),
    ];
    if let Some(last) = s.hashes.last() {
        lines.push(format!("hash below {}: {}", grouped(last.below), last.hash));
    }
    if !s.checked.is_empty() {
        lines.push(format!("compared after the start: {}", s.checked));
    }
    lines.push(match s.scrubbed_below {
        Some(below) => {
            let keys = grouped(s.scrubbed_keys);
            format!("the store was read again: {keys} keys, entries below {}", grouped(below))
        }
        None => "the store was not read again yet".to_owned(),
    });
    if let Some(from) = s.refilling_from {
        let (keys, bytes) = (grouped(s.refilled_keys), grouped(s.refilled_bytes));
        lines.push(format!("the state is fetched from node {from}: {keys} keys, {bytes} bytes so far"));
    }
    if !s.withheld.is_empty() {
        lines.push(format!("SERVES NOBODY until a peer has refilled it: {}", s.withheld));
    }
    if !s.store_trouble.is_empty() {
        lines.push(format!("tried again until it works: {}", s.store_trouble));
    }
    if !s.out_of_service.is_empty() {
        lines.push(format!("OUT OF SERVICE: {}", s.out_of_service));
    }
    if !s.halted.is_empty() {
        lines.push(format!("APPLIES NO MORE: {}", s.halted));
    }
    if s.found_total > 0 {
        lines.push(format!("found wrong since the start, {} times, the last ones:", s.found_total));
        lines.extend(s.found.iter().map(|found| format!("  {found}")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_shown() {
        let well = DatabaseStatusReply { node: 2, ..DatabaseStatusReply::default() };
        assert!(!to_text(&well).contains("NOBODY") && !to_text(&well).contains("wrong"));
        let found = vec!["the store does not have what was written to it: keys from \"a\" on".to_owned()];
        let wrong = DatabaseStatusReply { withheld: found[0].clone(), found, found_total: 3, ..well };
        assert!(to_text(&wrong).contains("SERVES NOBODY"));
        assert!(to_text(&wrong).contains("3 times"));
        assert_eq!(to_json(&wrong)["found_total"], 3);
    }
}

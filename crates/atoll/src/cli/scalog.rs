//! `atoll scalog`.

use std::io::{self, Write};

use atoll_client::scalog_proto::ShardsReply;
use atoll_client::{Scalog, Shard, ShardPolicy, ShardRecord};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{CliError, Common, DEFAULT_LOG, Table, hex};

/// Arguments of `atoll scalog`.
#[derive(Debug, clap::Args)]
pub struct ScalogArgs {
    #[command(flatten)]
    pub common: Common,
    /// Which log
    #[arg(long, global = true, value_name = "NAME", default_value = DEFAULT_LOG)]
    pub log: String,
    #[command(subcommand)]
    verb: ScalogVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ScalogVerb {
    /// List, add and end shards while the log is written
    Shard {
        #[command(subcommand)]
        verb: ShardVerb,
    },
    /// Append a record to a shard, and print its position and its shard
    Append(AppendArgs),
    /// Print the record at a position; with several positions, one line for each
    Read {
        /// The positions
        #[arg(required = true)]
        positions: Vec<u64>,
        /// Only from this shard [default: whatever shard has it]
        #[arg(long, value_name = "NUMBER")]
        shard: Option<u32>,
    },
    /// Print records as they are appended
    Subscribe {
        /// The first position
        #[arg(long, value_name = "POSITION", default_value_t = 0)]
        from: u64,
        /// End after so many records [default: never]
        #[arg(long, value_name = "COUNT")]
        count: Option<u64>,
    },
    /// Give up all records below a position
    Trim {
        /// The position
        below: u64,
    },
}

#[derive(Debug, clap::Subcommand)]
enum ShardVerb {
    /// List the shards of the active segment
    List,
    /// Add a shard
    Add {
        /// The nodes that keep it, 1 to 9 that keep no other shard that takes records [default: such nodes]
        #[arg(long, value_name = "ID,...", value_delimiter = ',')]
        nodes: Vec<u32>,
        /// Its number, which was never used in this segment [default: the lowest number above all others]
        #[arg(long, value_name = "NUMBER")]
        number: Option<u32>,
    },
    /// End a shard; its records stay readable
    Finalize {
        /// The shard
        number: u32,
        /// After how many further cuts it ends, so that clients can leave before
        #[arg(long, value_name = "CUTS", default_value_t = 0)]
        after: u32,
    },
}

#[derive(Debug, clap::Args)]
struct AppendArgs {
    /// The record
    record: String,
    /// This shard [default: as the policy chooses]
    #[arg(long, value_name = "NUMBER", conflicts_with = "policy")]
    shard: Option<u32>,
    /// Which shard gets it
    #[arg(long, value_name = "POLICY", default_value = "hash", value_parser = ["hash", "nearest", "round-robin"])]
    policy: String,
}

/// Runs `atoll scalog`.
pub async fn run(args: &ScalogArgs) -> Result<(), CliError> {
    let (common, name) = (&args.common, args.log.as_str());
    let log = common.client().await?.scalog(name)?;
    match &args.verb {
        ScalogVerb::Shard { verb } => change(common, &log, verb).await,
        ScalogVerb::Append(args) => {
            log.set_shard_policy(ShardPolicy::named(&args.policy).unwrap_or_default());
            let record = Bytes::from(args.record.clone());
            let (position, shard) = match args.shard {
                Some(shard) => (log.append_to_shard(shard, record).await?, Some(shard)),
                None => log.append(record).await?,
            };
            let shown = shard.map_or_else(String::new, |shard| format!(" in shard {shard}"));
            let value = json!({"log": name, "position": position, "shard": shard});
            common.print_done(&value, || format!("{position}{shown}"))
        }
        ScalogVerb::Read { positions, shard } => read(common, &log, positions, *shard).await,
        ScalogVerb::Subscribe { from, count } => subscribe(common, &log, *from, *count).await,
        ScalogVerb::Trim { below } => {
            log.trim(*below).await?;
            let value = json!({"log": name, "below": below, "what": "trimmed"});
            common.print_done(&value, || format!("trimmed below {below}"))
        }
    }
}

async fn change(common: &Common, log: &Scalog, verb: &ShardVerb) -> Result<(), CliError> {
    let (shard, shown) = match verb {
        ShardVerb::List => {
            let shown = log.shards().await?;
            return common.print(&to_json(&shown), || to_text(&shown));
        }
        ShardVerb::Add { nodes, number } => log.add_shard(*number, nodes).await?,
        ShardVerb::Finalize { number, after } => (*number, log.finalize_shard(*number, *after).await?),
    };
    let mut value = to_json(&shown);
    value["shard"] = shard.into();
    common.print_done(&value, || to_text(&shown))
}

async fn read(common: &Common, log: &Scalog, positions: &[u64], shard: Option<u32>) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    for position in positions {
        let found = log.read_record(*position, shard).await?;
        match &found {
            _ if common.json => writeln!(out, "{}", record_json(*position, &found))?,
            ShardRecord::Data(data) => {
                out.write_all(data)?;
                writeln!(out)?;
            }
            other => writeln!(out, "- {}", what(other))?,
        }
    }
    out.flush()?;
    Ok(())
}

async fn subscribe(common: &Common, log: &Scalog, from: u64, count: Option<u64>) -> Result<(), CliError> {
    let (mut subscription, mut left) = (log.subscribe(from), count.unwrap_or(u64::MAX));
    while left > 0 {
        let (position, data) = subscription.next().await?;
        let mut out = io::stdout().lock();
        if common.json {
            writeln!(out, "{}", record_json(position, &ShardRecord::Data(data)))?;
        } else {
            out.write_all(&data)?;
            writeln!(out)?;
        }
        out.flush()?;
        left -= 1;
    }
    Ok(())
}

fn what(found: &ShardRecord) -> &'static str {
    match found {
        ShardRecord::Data(_) => "data",
        ShardRecord::Elsewhere(_) => "elsewhere",
        ShardRecord::Trimmed(_) => "trimmed",
        ShardRecord::Pad(_) => "pad",
    }
}

fn record_json(position: u64, found: &ShardRecord) -> Value {
    let mut value = json!({"position": position, "what": what(found)});
    if let ShardRecord::Data(data) = found {
        match std::str::from_utf8(data) {
            Ok(text) => value["data"] = text.into(),
            Err(_) => value["data_hex"] = hex(data).into(),
        }
    }
    value
}

/// Returns what a shard does now, in a word.
fn state(shard: &Shard) -> String {
    match (shard.ended, shard.leaving) {
        (Some(end), _) => format!("ended at {end}"),
        (None, Some(cuts)) => format!("ends after {cuts} cuts"),
        (None, None) => "takes records".to_owned(),
    }
}

fn to_json(shown: &ShardsReply) -> Value {
    let shard = |shard: &Shard| {
        json!({
            "number": shard.number, "nodes": shard.nodes, "records": shard.records, "live": shard.ended.is_none(),
            "leaving": shard.leaving, "ended": shard.ended,
        })
    };
    let shards: Vec<Value> = shown.shards.iter().map(shard).collect();
    json!({
        "log": shown.log, "kind": shown.kind, "loglet": shown.loglet, "start": shown.start, "trim": shown.trim,
        "tail": shown.tail, "view": shown.view, "shards": shards,
    })
}

fn to_text(shown: &ShardsReply) -> String {
    let mut table = Table::new(["SHARD", "NODES", "RECORDS", "STATE"]);
    for shard in &shown.shards {
        let nodes: Vec<String> = shard.nodes.iter().map(ToString::to_string).collect();
        table.row([shard.number.to_string(), nodes.join(" "), shard.records.to_string(), state(shard)]);
    }
    let ShardsReply { log, kind, start, trim, tail, view, .. } = shown;
    format!(
        "log {log}, {kind} segment from {start} on, trimmed below {trim}\n\
         records below {tail}, view {view}\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_shown_for_people_and_programs() {
        let shard = |number, ended, leaving| Shard { number, nodes: vec![1, 2], records: 7, leaving, ended };
        let shown = ShardsReply {
            log: "main".into(),
            kind: "k".into(),
            tail: 21,
            view: 3,
            shards: vec![shard(0, Some(9), None), shard(1, None, Some(2)), shard(2, None, None)],
            ..ShardsReply::default()
        };
        let text = to_text(&shown);
        assert!(text.contains("records below 21, view 3"), "{text}");
        for words in ["ended at 9", "ends after 2 cuts", "takes records"] {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(to_json(&shown)["shards"][0]["live"], false);
        assert_eq!(to_json(&shown)["shards"][1]["leaving"], 2);
        assert_eq!(record_json(3, &ShardRecord::Data("a".into()))["data"], "a");
        assert_eq!(record_json(3, &ShardRecord::Data(vec![0xff].into()))["data_hex"], "ff");
        assert_eq!(record_json(3, &ShardRecord::Elsewhere(true))["what"], "elsewhere");
    }
}

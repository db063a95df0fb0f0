//! `atoll corfu`.

use std::io::{self, Write};

use atoll_client::corfu_proto::Projection;
use atoll_client::{Cell, Corfu, Replacement};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{CliError, Common, DEFAULT_LOG, Table, hex};

/// Arguments of `atoll corfu`.
#[derive(Debug, clap::Args)]
pub struct CorfuArgs {
    #[command(flatten)]
    pub common: Common,
    /// Which log
    #[arg(long, global = true, value_name = "NAME", default_value = DEFAULT_LOG)]
    pub log: String,
    #[command(subcommand)]
    verb: CorfuVerb,
}

#[derive(Debug, clap::Subcommand)]
enum CorfuVerb {
    /// Show the projection: which nodes keep the active segment, and how far it goes
    Show,
    /// Append an entry and print its position
    Append {
        /// The entry
        entry: String,
    },
    /// Print what is at a position; with several positions, one line for each
    Read {
        /// The positions
        #[arg(required = true)]
        positions: Vec<u64>,
    },
    /// Turn a hole, which an append has taken and not written, into junk
    Fill {
        /// The position
        position: u64,
    },
    /// Trim one position, or all below one
    Trim(TrimArgs),
    /// Give the place of a unit, or the work of the sequencer, to another node
    Replace(ReplaceArgs),
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct TrimArgs {
    /// This position alone
    position: Option<u64>,
    /// All positions below this one
    #[arg(long, value_name = "POSITION")]
    below: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct ReplaceArgs {
    /// The node of the unit to replace, which may be down
    #[arg(long, value_name = "ID", requires = "by", required_unless_present = "sequencer")]
    unit: Option<u32>,
    /// The node that takes its place
    #[arg(long, value_name = "ID", requires = "unit")]
    by: Option<u32>,
    /// The node that is the sequencer from then on
    #[arg(long, value_name = "ID", conflicts_with = "unit")]
    sequencer: Option<u32>,
}

/// Runs `atoll corfu`.
pub async fn run(args: &CorfuArgs) -> Result<(), CliError> {
    let (common, name) = (&args.common, args.log.as_str());
    let log = common.client().await?.corfu(name)?;
    match &args.verb {
        CorfuVerb::Show => {
            let shown = log.show().await?;
            common.print(&to_json(&shown), || to_text(&shown))
        }
        CorfuVerb::Append { entry } => {
            let position = log.append(Bytes::from(entry.clone())).await?;
            common.print_done(&json!({"log": name, "position": position}), || position.to_string())
        }
        CorfuVerb::Read { positions } => read(common, &log, positions).await,
        CorfuVerb::Fill { position } => {
            let what = if log.fill(*position).await? { "junk" } else { "trimmed" };
            let value = json!({"log": name, "position": position, "what": what});
            common.print_done(&value, || what.to_owned())
        }
        CorfuVerb::Trim(TrimArgs { position: Some(position), .. }) => {
            let what = if log.trim(*position).await? { "trimmed" } else { "junk" };
            let value = json!({"log": name, "position": position, "what": what});
            common.print_done(&value, || what.to_owned())
        }
        CorfuVerb::Trim(TrimArgs { below, .. }) => {
            let below = below.unwrap_or_default();
            log.trim_prefix(below).await?;
            let value = json!({"log": name, "below": below, "what": "trimmed"});
            common.print_done(&value, || format!("trimmed below {below}"))
        }
        CorfuVerb::Replace(args) => {
            let what = match (args.unit, args.by, args.sequencer) {
                (Some(old), Some(new), _) => Replacement::Unit { old, new },
                (_, _, sequencer) => Replacement::Sequencer(sequencer.unwrap_or_default()),
            };
            let shown = log.replace(what).await?;
            common.print_done(&to_json(&shown), || to_text(&shown))
        }
    }
}

async fn read(common: &Common, log: &Corfu, positions: &[u64]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    for position in positions {
        let cell = log.read(*position).await?;
        match &cell {
            _ if common.json => writeln!(out, "{}", cell_json(*position, &cell))?,
            Cell::Data(data) => {
                out.write_all(data)?;
                writeln!(out)?;
            }
            Cell::Junk(_) => writeln!(out, "- junk")?,
            Cell::Trimmed(_) => writeln!(out, "- trimmed")?,
        }
    }
    out.flush()?;
    Ok(())
}

fn cell_json(position: u64, cell: &Cell) -> Value {
    match cell {
        Cell::Junk(_) => json!({"position": position, "what": "junk"}),
        Cell::Trimmed(_) => json!({"position": position, "what": "trimmed"}),
        Cell::Data(data) => {
            let mut value = json!({"position": position, "what": "data"});
            match std::str::from_utf8(data) {
                Ok(text) => value["data"] = text.into(),
                Err(_) => value["data_hex"] = hex(data).into(),
            }
            value
        }
    }
}

fn to_json(shown: &Projection) -> Value {
    let chains: Vec<&[u32]> = shown.chains.iter().map(|chain| chain.units.as_slice()).collect();
    json!({
        "log": shown.log, "kind": shown.kind, "loglet": shown.loglet, "epoch": shown.epoch,
        "start": shown.start, "trim": shown.trim, "complete": shown.complete, "written": shown.written,
        "next": shown.next, "sequencer": shown.sequencer, "stripe": shown.stripe, "chains": chains,
    })
}

fn to_text(shown: &Projection) -> String {
    let mut table = Table::new(["CHAIN", "UNITS, HEAD FIRST"]);
    for (number, chain) in (1..).zip(&shown.chains) {
        let units: Vec<String> = chain.units.iter().map(ToString::to_string).collect();
        table.row([number.to_string(), units.join(" ")]);
    }
    let next =
        shown.next.map_or("not known: the sequencer does not answer".to_owned(), |next| next.to_string());
    let Projection { log, kind, start, trim, complete, written, sequencer, stripe, .. } = shown;
    format!(
        "log {log}, {kind} segment from {start} on, trimmed below {trim}\n\
         complete below {complete}, written below {written}, next position {next}\n\
         sequencer on node {sequencer}, stripes of {stripe} positions\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::corfu_proto::Chain;

    #[test]
    fn a_projection_is_shown_for_people_and_programs() {
        let shown = Projection {
            log: "main".into(),
            kind: "k".into(),
            start: 4,
            complete: 9,
            written: 12,
            sequencer: 3,
            stripe: 64,
            chains: vec![Chain { units: vec![1, 2] }, Chain { units: vec![4, 5] }],
            ..Projection::default()
        };
        let text = to_text(&shown);
        assert!(text.contains("next position not known"), "{text}");
        assert!(text.ends_with("    1  1 2\n    2  4 5\n"), "{text}");
        assert_eq!(to_json(&shown)["chains"], json!([[1, 2], [4, 5]]));
        assert_eq!(to_json(&shown)["next"], Value::Null);
        assert_eq!(cell_json(3, &Cell::Data("a".into()))["data"], "a");
        assert_eq!(cell_json(3, &Cell::Data(vec![0xff].into()))["data_hex"], "ff");
    }
}

//! `atoll chain`.

use atoll_client::proto::{Chain, Duty, LogletSpec, Segment};
use serde_json::{Value, json};

use super::chain_surgery::{self as surgery, ExciseArgs, ReplaceArgs};
use super::{CliError, Common, DEFAULT_LOG, SpecArgs, Table};

/// Arguments of `atoll chain`.
#[derive(Debug, clap::Args)]
pub struct ChainArgs {
    #[command(flatten)]
    pub common: Common,
    /// Which log [default: main; for excise, replace and audit: db, the log of the database]
    #[arg(long, global = true, value_name = "NAME")]
    pub log: Option<String>,
    #[command(subcommand)]
    verb: ChainVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ChainVerb {
    /// Show the segments of the log: the newest ones, or those from a position on
    Show(ShowArgs),
    /// Seal the active segment and start a new one, on other servers, with another sequencer, or with another kind of Loglet
    Extend(SpecArgs),
    /// Remove segments that lie entirely below the trim point from the chain, and delete their data
    Truncate,
    /// Rebuild a sealed segment on other servers; its contents and positions stay the same
    Modify(ModifyArgs),
    /// Move the chain itself to registers outside of the cluster, or back, while the log is used
    Move(MoveArgs),
    /// Take one entry out of the database's log, at which its replicas have stopped; they then continue behind it
    Excise(ExciseArgs),
    /// Put other bytes in place of one entry of the database's log, at which its replicas have stopped; they then continue with it
    Replace(ReplaceArgs),
    /// Show which entries were excised or replaced, by whom and why, and the surgery that is under way
    Audit,
}

impl ChainVerb {
    /// Returns the log that the verb means if none is named.
    fn default_log(&self) -> &'static str {
        match self {
            ChainVerb::Excise(_) | ChainVerb::Replace(_) | ChainVerb::Audit => surgery::DATABASE_LOG,
            ChainVerb::Show(_)
            | ChainVerb::Extend(_)
            | ChainVerb::Truncate
            | ChainVerb::Modify(_)
            | ChainVerb::Move(_) => DEFAULT_LOG,
        }
    }
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Show the segments that end above this position; a long chain is shown one index page at a time
    #[arg(long, value_name = "POSITION")]
    from: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct ModifyArgs {
    /// The number of the segment, as `atoll chain show` prints it
    #[arg(long, value_name = "N", required_unless_present = "id", conflicts_with = "id")]
    segment: Option<usize>,
    /// Instead of the number, the id of its Loglet
    #[arg(long, value_name = "HEX")]
    id: Option<String>,
    #[command(flatten)]
    spec: SpecArgs,
}

#[derive(Debug, clap::Args)]
struct MoveArgs {
    /// A name of `[[registers]]` in the configuration of all nodes, or home: the registers of the cluster itself
    #[arg(long, value_name = "NAME")]
    to: String,
}

/// Runs `atoll chain`.
pub async fn run(args: &ChainArgs) -> Result<(), CliError> {
    let client = args.common.client().await?;
    let name = args.log.as_deref().unwrap_or(args.verb.default_log());
    client.log(name)?;
    let chain = match &args.verb {
        ChainVerb::Excise(excise) => {
            return surgery::operate(&args.common, &client, name, &excise.by, None).await;
        }
        ChainVerb::Replace(replace) => {
            let with = surgery::replacement(&replace.with)?;
            return surgery::operate(&args.common, &client, name, &replace.by, Some(with)).await;
        }
        ChainVerb::Audit => {
            let chain = client.chain(name).await?;
            return args.common.print(&surgery::to_json(&chain), || surgery::audit(&chain));
        }
        ChainVerb::Show(show) => client.chain_from(name, show.from).await?,
        ChainVerb::Extend(spec) => client.extend(name, spec.into()).await?,
        ChainVerb::Truncate => client.truncate(name).await?,
        ChainVerb::Modify(modify) => {
            let id = match (&modify.id, modify.segment) {
                (Some(id), _) => id.clone(),
                (None, segment) => loglet_of(&client.chain(name).await?, segment)?,
            };
            client.modify(name, &id, LogletSpec::from(&modify.spec)).await?
        }
        ChainVerb::Move(to) => client.move_chain(name, &to.to).await?,
    };
    match args.verb {
        ChainVerb::Show(_) => args.common.print(&to_json(&chain), || to_text(&chain)),
        _ => args.common.print_done(&to_json(&chain), || to_text(&chain)),
    }
}

fn loglet_of(chain: &Chain, segment: Option<usize>) -> Result<String, CliError> {
    let count = chain.segments.len();
    match segment.and_then(|i| chain.segments.get(i)) {
        Some(segment) => Ok(segment.loglet.clone()),
        None => Err(CliError::Usage(format!(
            "log {} has segments 0 to {}; see `atoll chain show`",
            chain.log,
            count.saturating_sub(1)
        ))),
    }
}

/// Returns what one node does for a Loglet as JSON.
pub fn duty(duty: &Duty) -> Value {
    json!({"part": duty.part, "role": duty.role, "node": duty.node, "binding": duty.binding, "identity": duty.identity})
}

/// Returns what the registers are called that hold a chain.
pub fn place(registers: &str) -> &str {
    if registers.is_empty() { "home" } else { registers }
}

fn to_json(chain: &Chain) -> Value {
    let segment = |s: &Segment| {
        let config: serde_json::Map<String, Value> =
            s.config.iter().map(|f| (f.name.clone(), f.value.clone().into())).collect();
        json!({"start": s.start, "stop": s.stop, "kind": s.kind, "loglet": s.loglet, "base": s.base, "config": config, "duties": s.duties.iter().map(duty).collect::<Vec<_>>()})
    };
    json!({
        "log": chain.log, "version": chain.version, "trim": chain.trim,
        "segment_count": chain.segment_count, "next": chain.next, "registers": place(&chain.registers),
        "segments": chain.segments.iter().map(segment).collect::<Vec<_>>(),
        "surgery": surgery::to_json(chain),
    })
}

fn to_text(chain: &Chain) -> String {
    let mut table = Table::new(["SEGMENT", "START", "STOP", "KIND", "LOGLET", "CONFIGURATION"]);
    for (i, s) in chain.segments.iter().enumerate() {
        let config: Vec<String> = s.config.iter().map(|f| format!("{}={}", f.name, f.value)).collect();
        let stop = s.stop.map_or("active".to_owned(), |stop| stop.to_string());
        table.row([
            i.to_string(),
            s.start.to_string(),
            stop,
            s.kind.clone(),
            s.loglet.clone(),
            config.join(" "),
        ]);
    }
    let shown = chain.segments.len() as u64;
    let mut head =
        format!("log {}, chain version {}, trimmed below {}", chain.log, chain.version, chain.trim);
    if !chain.registers.is_empty() {
        head.push_str(&format!(", in the registers {}", chain.registers));
    }
    if chain.segment_count > shown {
        let hint = match chain.next {
            Some(next) => format!("--from {next} shows those that follow"),
            None => format!("--from {} shows the oldest", chain.trim),
        };
        head.push_str(&format!(", {shown} of {} segments ({hint})", chain.segment_count));
    }
    format!("{head}\n{table}{}", surgery::note(chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_number() {
        let segment = |loglet: &str| Segment { loglet: loglet.to_owned(), ..Segment::default() };
        let chain =
            Chain { log: "main".into(), segments: vec![segment("aa"), segment("bb")], ..Chain::default() };
        assert!(matches!(loglet_of(&chain, Some(1)).as_deref(), Ok("bb")));
        let error = loglet_of(&chain, Some(2)).map_err(|e| e.to_string());
        assert_eq!(error, Err("log main has segments 0 to 1; see `atoll chain show`".to_owned()));
        assert!(to_text(&chain).contains("SEGMENT") && !to_text(&chain).contains("registers"));
        let elsewhere = Chain { registers: "etcd".into(), ..chain.clone() };
        assert!(to_text(&elsewhere).contains(", in the registers etcd"));
        assert_eq!([&to_json(&chain)["registers"], &to_json(&elsewhere)["registers"]], ["home", "etcd"]);
    }
}

//! `atoll log`.

use serde_json::json;

use super::append::AppendArgs;
use super::read::{ReadArgs, TailArgs};
use super::{CliError, Common, DEFAULT_LOG, SpecArgs, append, read};

/// Arguments of `atoll log`.
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    #[command(flatten)]
    pub common: Common,
    /// Which log
    #[arg(long, global = true, value_name = "NAME", default_value = DEFAULT_LOG)]
    pub log: String,
    #[command(subcommand)]
    verb: LogVerb,
}

#[derive(Debug, clap::Subcommand)]
enum LogVerb {
    /// Create a log; says so if it is there already
    Create(SpecArgs),
    /// List the names of all logs
    List,
    /// Append records, and print their positions
    Append(AppendArgs),
    /// Read records up to the tail
    Read(ReadArgs),
    /// Read records as they are appended, without end
    Tail(TailArgs),
    /// Print the tail: the first position that is not written yet
    CheckTail,
    /// Give up all positions below TO, for ever
    Trim {
        /// The first position to be kept
        to: u64,
    },
}

/// Runs `atoll log`.
pub async fn run(args: &LogArgs) -> Result<(), CliError> {
    let (common, name) = (&args.common, args.log.as_str());
    let client = common.client().await?;
    match &args.verb {
        LogVerb::Create(spec) => {
            // Checked here, too, so that a wrong name fails alike with and without a cluster.
            client.log(name)?;
            let created = client.create_log(name, spec.into()).await?;
            common.print(&json!({"log": name, "created": created}), || match created {
                true => format!("created log {name}"),
                false => format!("log {name} is there already"),
            })
        }
        LogVerb::List => {
            let logs = client.list_logs().await?;
            common.print(&json!({"logs": logs}), || match logs.is_empty() {
                true => "no logs yet; `atoll log append TEXT` makes one".to_owned(),
                false => logs.join("\n"),
            })
        }
        LogVerb::Append(append) => append::run(common, &client.log(name)?, append).await,
        LogVerb::Read(read) => read::run(common, &client.log(name)?, read).await,
        LogVerb::Tail(tail) => read::run_tail(common, &client.log(name)?, tail).await,
        LogVerb::CheckTail => {
            let bounds = client.log(name)?.bounds().await?;
            let value = json!({"log": name, "tail": bounds.tail, "trim": bounds.trim});
            common.print(&value, || bounds.tail.to_string())
        }
        LogVerb::Trim { to } => {
            client.log(name)?.trim(*to).await?;
            common.print(&json!({"log": name, "trim": to}), || format!("log {name} is trimmed below {to}"))
        }
    }
}

//! `atoll log`.

use std::io::IsTerminal;

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
    /// Create a log; reports if it exists already
    Create(SpecArgs),
    /// List the names of all logs
    List,
    /// Append records, and print their positions
    Append(AppendArgs),
    /// Read records up to the tail
    Read(ReadArgs),
    /// Read records as they are appended, and do not stop at the tail
    Tail(TailArgs),
    /// Print the tail: the first position that is not written yet
    CheckTail,
    /// Delete a log and its records permanently
    Delete {
        /// Which log
        name: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Move the trim point to TO; the records below it are lost permanently
    Trim {
        /// The first position to keep
        to: u64,
    },
}

/// Runs `atoll log`.
pub async fn run(args: &LogArgs) -> Result<(), CliError> {
    let (common, name) = (&args.common, args.log.as_str());
    let client = common.client().await?;
    match &args.verb {
        LogVerb::Create(spec) => {
            // Also check the name here, so that a wrong one fails in the same way with and without a cluster.
            client.log(name)?;
            let created = client.create_log(name, spec.into()).await?;
            common.print_done(&json!({"log": name, "created": created}), || match created {
                true => format!("created log {name}"),
                false => format!("log {name} already exists"),
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
        LogVerb::Delete { name, yes } => {
            client.log(name)?;
            if !yes {
                confirm("log", name, "its records")?;
            }
            let deleted = client.delete_log(name).await?;
            common.print_done(&json!({"log": name, "deleted": deleted}), || match deleted {
                true => format!("deleted log {name}"),
                false => format!("log {name} was deleted before"),
            })
        }
        LogVerb::Trim { to } => {
            client.log(name)?.trim(*to).await?;
            common
                .print_done(&json!({"log": name, "trim": to}), || format!("log {name} is trimmed below {to}"))
        }
    }
}

/// Asks the user to confirm the deletion of something. Without a terminal there is no user to ask.
pub fn confirm(what: &str, name: &str, lost: &str) -> Result<(), CliError> {
    let refused = |why: &str| Err(CliError::Usage(format!("{what} {name} was not deleted: {why}")));
    if !std::io::stdin().is_terminal() {
        return refused(&format!("pass --yes to delete it and {lost} permanently"));
    }
    eprint!("Delete {what} {name} and {lost} permanently? Type its name: ");
    let mut typed = String::new();
    match std::io::stdin().read_line(&mut typed) {
        Ok(_) if typed.trim() == name => Ok(()),
        _ => refused("its name was not typed"),
    }
}

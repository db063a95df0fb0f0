//! `atoll cluster`.

use atoll_client::proto::LevelsReply;
use serde_json::{Value, json};

use super::{CliError, Common, Table};

/// Arguments of `atoll cluster`.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: ClusterVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ClusterVerb {
    /// Show the feature level of the cluster, and which levels each member's program can read
    Level,
    /// Finish an upgrade: raise the feature level. From then on, a program that cannot read that level cannot be a member
    Upgrade {
        /// Raise it to this level [default: the highest that all members can read]
        #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(1..=65535))]
        to: Option<u32>,
    },
}

/// Runs `atoll cluster`.
pub async fn run(args: &ClusterArgs) -> Result<(), CliError> {
    let client = args.common.client().await?;
    match &args.verb {
        ClusterVerb::Level => {
            let levels = client.levels().await?;
            args.common.print(&to_json(&levels), || format!("{}{}", head(&levels), table(&levels)))
        }
        ClusterVerb::Upgrade { to } => {
            let levels = client.upgrade(*to).await?;
            args.common.print_done(&to_json(&levels), || match levels.changed {
                true => format!("the cluster is at feature level {}", levels.active),
                false => format!("the cluster is at feature level {}; it was before", levels.active),
            })
        }
    }
}

fn to_json(levels: &LevelsReply) -> Value {
    let member = |m: &atoll_client::proto::MemberLevels| json!({"node": m.node, "lowest": m.lowest, "highest": m.highest, "announced": m.announced});
    json!({
        "active": levels.active, "possible": levels.possible, "changed": levels.changed, "founding": levels.founding,
        "members": levels.members.iter().map(member).collect::<Vec<_>>(),
    })
}

fn head(levels: &LevelsReply) -> String {
    let rest = match () {
        () if levels.founding => "; it rises by itself once all first members have come".to_owned(),
        () if levels.possible > levels.active => {
            format!("; all members read {}: `atoll cluster upgrade` raises it", levels.possible)
        }
        () => String::new(),
    };
    format!("feature level {}{rest}\n", levels.active)
}

fn table(levels: &LevelsReply) -> Table {
    let mut table = Table::new(["NODE", "LOWEST", "HIGHEST", "ANNOUNCED"]);
    for m in &levels.members {
        let announced = if m.announced { "yes" } else { "no" };
        table.row([m.node.to_string(), m.lowest.to_string(), m.highest.to_string(), announced.to_owned()]);
    }
    table
}

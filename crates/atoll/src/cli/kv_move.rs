//! `atoll kv move`.

use std::io::{self, IsTerminal};
use std::time::Duration;

use atoll_client::Keyspaces;
use atoll_client::keyspace_proto as proto;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::kv::{keyspace_json, option};
use super::{CliError, Common};

/// How often to look how far the move is.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Arguments of `atoll kv move`.
#[derive(Debug, clap::Args)]
pub struct MoveArgs {
    /// The keyspace
    keyspace: String,
    /// Only these nodes hold replicas afterwards [default: all]
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    nodes: Vec<u32>,
    /// How many replicas each shard has afterwards, 1 to 9 [default: as many as now]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=9))]
    replicas: Option<u32>,
    /// An option of the engine, such as zones=1:a,2:a,3:b; may be repeated
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = option)]
    options: Vec<(String, String)>,
    /// Do not wait for the end of the move
    #[arg(long)]
    no_wait: bool,
}

/// Runs `atoll kv move`.
pub(super) async fn run(common: &Common, keyspaces: &Keyspaces, args: &MoveArgs) -> Result<(), CliError> {
    let request = proto::MoveKeyspaceRequest {
        name: args.keyspace.clone(),
        replicas: args.replicas,
        nodes: args.nodes.clone(),
        options: args.options.iter().cloned().collect(),
    };
    let mut shown = keyspaces.relocate(request).await?;
    let all = shown.left_to_move;
    if args.no_wait {
        let words = || format!("{all} shards of keyspace {} are to move", shown.name);
        return common.print_done(&keyspace_json(&shown), words);
    }
    let bar = bar(u64::from(all));
    while shown.left_to_move > 0 {
        tokio::time::sleep(LOOK_EVERY).await;
        shown = keyspaces.describe(&args.keyspace).await?;
        bar.set_position(u64::from(all.saturating_sub(shown.left_to_move)));
    }
    bar.finish_and_clear();
    common.print_done(&keyspace_json(&shown), || match all {
        0 => format!("keyspace {} is there already", shown.name),
        all => format!("moved {all} shards of keyspace {}", shown.name),
    })
}

fn bar(total: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} shards  {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

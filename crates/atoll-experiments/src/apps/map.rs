//! A replica of the map service as a process of its own. A lost one is replaced by a new one, which plays the log again.

use std::time::Duration;

use atoll_log_apps::mirror::Mirror;
use atoll_log_apps::player::{Machine, PlayError, Player};
use atoll_log_apps::store::MapLimits;
use serde_json::json;

use super::scalog;
use super::store::{play_options, replica};
use super::target::{Ending, Target, seconds};
use super::{Error, hex, print};

/// How long a replica that has played to the tail waits before it looks again.
const PAUSE: Duration = Duration::from_millis(50);

/// Options of a map replica.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// The store whose map it is
    #[arg(long, value_parser = ["corfu-store", "scalog-store"], default_value = "corfu-store", conflicts_with = "mirrored")]
    of: String,
    /// Tell the hash at each multiple of so many positions
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Play to this index, tell the hash there, and end
    #[arg(long)]
    until: Option<u64>,
    /// The log is a mirror's: tell the primary's index and hash at its tail, and end
    #[arg(long, conflicts_with = "until")]
    mirrored: bool,
    /// How long to run at most
    #[arg(long, default_value_t = 86_400.0, value_parser = seconds)]
    seconds: f64,
}

/// Plays a log.
pub async fn run(args: &Args) -> Result<(), Error> {
    let log = args.target.open().await?;
    if args.mirrored {
        let replica = Mirror::replica(log, MapLimits::default(), play_options());
        let applied = replica.play().await?;
        let (index, hash) = replica.primary_hash();
        return print(
            &json!({"app": "map", "mirrored": true, "played": applied, "applied": index, "hash": hex(hash)}),
        );
    }
    match args.of.as_str() {
        "scalog-store" => tell(&scalog::store::replica(log), args).await,
        _ => tell(&replica(log), args).await,
    }
}

/// Plays, and tells the hash now and then.
async fn tell<M: Machine>(map: &Player<M>, args: &Args) -> Result<(), Error> {
    let ending = Ending::after(args.seconds)?;
    while !ending.is_over() {
        let next = args.until.unwrap_or((map.applied() / args.every + 1) * args.every);
        match step(map, next).await {
            Ok(true) => {
                let (applied, hash) = map.hash();
                print(&json!({"app": "map", "applied": applied, "hash": hex(hash)}))?;
                if args.until.is_some() {
                    return Ok(());
                }
            }
            Ok(false) => tokio::time::sleep(PAUSE).await,
            // The log may answer again. Everything else is final.
            Err(PlayError::Log(error)) => {
                eprintln!("{error}");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Plays to an index if the log is that long. Returns whether it is there. A checkpoint may take it beyond.
async fn step<M: Machine>(map: &Player<M>, to: u64) -> Result<bool, PlayError> {
    if map.applied() < to {
        if map.log().tail().await? < to {
            return Ok(false);
        }
        map.play_to(to).await?;
    }
    Ok(true)
}

//! Programs for the applications of CORFU (TOCS 31(4), §4.4) and of Scalog (NSDI'20, §5): clients of real clusters, over logs of any kind.
//! Each prints JSON lines; the last one is the result of the run. `drills/log_apps.py` and `drills/scalog_apps.py` run them while processes
//! are killed.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store.rs` | CORFU-Store under load; single reads, roll-backs and compactions |
//! | `map.rs` | a replica of the map service, of the primary or of its mirror |
//! | `mirror.rs` | the process that copies the store to a second cluster; what lets writers wait for it |
//! | `transactions.rs` | optimistic transactions under load |
//! | `smr.rs` | a replicated service under load |
//! | `scalog/` | Scalog's applications |
//! | `history.rs` | histories for `atoll check linearizable` |
//! | `target.rs` | the log to use, random choices, the end of a run |

mod history;
mod map;
mod mirror;
mod scalog;
mod smr;
mod store;
pub mod target;
mod transactions;

use std::io::{self, Write};

use atoll_log_apps::mirror::MirrorError;
use atoll_log_apps::player::PlayError;
use atoll_log_apps::store::{CompactError, StoreError};
use atoll_log_apps::streams::StreamError;
use serde_json::Value;

pub use target::now_ns;

/// Options of `apps`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    app: App,
}

#[derive(Debug, clap::Subcommand)]
enum App {
    /// Multi-puts and multi-gets of several clients
    Store(store::LoadArgs),
    /// Read keys of the store at one index
    Get(store::GetArgs),
    /// Give every key of the store the value that it had at an index
    RollBack(store::RollBackArgs),
    /// Move live values of the store forward and trim its log
    Compact(store::CompactArgs),
    /// A replica of the map service, which tells its hash at many indices
    Map(map::Args),
    /// Copy the log of a store to a second cluster
    Mirror(mirror::Args),
    /// Optimistic transactions of several clients
    Transactions(transactions::Args),
    /// A service with several replicas
    Smr(smr::Args),
    /// Puts and gets of several clients of Scalog-Store
    ScalogStore(scalog::store::LoadArgs),
    /// Read keys of Scalog-Store
    ScalogGet(scalog::store::GetArgs),
    /// Move live values of Scalog-Store forward and trim its log
    ScalogThin(scalog::store::ThinArgs),
    /// Updates and reads of several clients of objects that have streams of their own
    Objects(scalog::objects::LoadArgs),
    /// Read objects, and tell how many entries of the log that needed
    ObjectRead(scalog::objects::ReadArgs),
    /// Write a checkpoint of every object and trim their log
    ObjectTrim(scalog::objects::TrimArgs),
    /// A server that knows which entries belong to which stream
    StreamIndex(scalog::index::Args),
    /// Append what the users of an online market do
    MarketProduce(scalog::market::ProduceArgs),
    /// Count what the users of an online market do, and serve a page with the counts
    MarketServe(scalog::market::ServeArgs),
}

/// Why a run could not continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client could not be made, or the log could not be created.
    #[error(transparent)]
    Client(#[from] atoll_client::Error),
    #[error(transparent)]
    Play(#[from] PlayError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Compact(#[from] CompactError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An option cannot be used.
    #[error("{0}")]
    Refused(String),
    /// Something holds that must not.
    #[error("violated: {0}")]
    Violated(String),
}

impl From<atoll_log_apps::shared_log::LogError> for Error {
    fn from(error: atoll_log_apps::shared_log::LogError) -> Self {
        Error::Play(error.into())
    }
}

/// Runs an application. Returns whether everything held.
pub fn run(args: &Args) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Error::from).and_then(|runtime| {
        runtime.block_on(async {
            match &args.app {
                App::Store(args) => store::load(args).await,
                App::Get(args) => store::get(args).await,
                App::RollBack(args) => store::roll_back(args).await,
                App::Compact(args) => store::compact(args).await,
                App::Map(args) => map::run(args).await,
                App::Mirror(args) => mirror::run(args).await,
                App::Transactions(args) => transactions::run(args).await,
                App::Smr(args) => smr::run(args).await,
                App::ScalogStore(args) => scalog::store::load(args).await,
                App::ScalogGet(args) => scalog::store::get(args).await,
                App::ScalogThin(args) => scalog::store::compact(args).await,
                App::Objects(args) => scalog::objects::load(args).await,
                App::ObjectRead(args) => scalog::objects::read(args).await,
                App::ObjectTrim(args) => scalog::objects::trim(args).await,
                App::StreamIndex(args) => scalog::index::run(args).await,
                App::MarketProduce(args) => scalog::market::produce(args).await,
                App::MarketServe(args) => scalog::market::serve(args).await,
            }
        })
    });
    if let Err(error) = &done {
        eprintln!("{error}");
    }
    done.is_ok()
}

/// Prints a line at once: whoever reads it may kill this process next.
fn print(line: &Value) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Returns a hash as lines have it: JSON readers lose digits of large numbers.
fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

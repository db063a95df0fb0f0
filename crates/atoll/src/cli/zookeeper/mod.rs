//! `atoll zookeeper`.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the verbs, their errors |
//! | `walk.rs` | znodes of an ensemble, parents first |
//! | `import.rs` | import: from the ensemble to Atoll |
//! | `compare.rs` | whether they are the same on both sides |
//! | `quotas.rs` | the limits on subtrees |
//! | `report.rs` | the report about an import |

mod compare;
mod import;
mod quotas;
mod report;
mod walk;

use atoll_client::{Error, Failure, Reason};
use atoll_zookeeper::client::ClientError;
use atoll_zookeeper::jute::codes::ErrorCode;

use super::{CliError, Common};

/// Arguments of `atoll zookeeper`.
#[derive(Debug, clap::Args)]
pub struct ZooKeeperArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: ZooKeeperVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ZooKeeperVerb {
    /// Copy the znodes of a live ZooKeeper ensemble, with ACLs and Stat, and compare both sides
    Import(import::ImportArgs),
}

/// Runs `atoll zookeeper`.
pub async fn run(args: &ZooKeeperArgs) -> Result<(), CliError> {
    match &args.verb {
        ZooKeeperVerb::Import(import) => import::run(&args.common, import).await,
    }
}

pub(super) fn did_not_happen(reason: Reason, message: impl Into<String>, next: &str) -> CliError {
    CliError::Client(Error::DidNotHappen(Failure::new(reason, message, next)))
}

/// Converts a client's error. `next` is the advice if no server answers.
pub(super) fn client_error(error: ClientError, next: &str) -> CliError {
    let message = error.to_string();
    match error {
        ClientError::NoAnswer { .. } => {
            CliError::Client(Error::Unknown(Failure::new(Reason::Unavailable, message, next)))
        }
        ClientError::Auth { .. } => did_not_happen(Reason::Refused, message, "check --auth SCHEME:SECRET"),
        ClientError::Foreign { .. } => did_not_happen(Reason::Refused, message, "check --from and --to"),
    }
}

/// Returns the description of an error code of the protocol.
pub(super) fn code_words(err: i32) -> String {
    match ErrorCode::of(err) {
        Some(code) => format!("{code:?} ({err})"),
        None => format!("error {err}"),
    }
}

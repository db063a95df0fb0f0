//! The verbs that are clients of a cluster.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | what all verbs share: addresses, output, errors and exit status |
//! | `log.rs`, `append.rs`, `read.rs` | `atoll log` |
//! | `chain.rs`, `status.rs`, `node.rs`, `database.rs` | operating |
//! | `chain_surgery.rs` | `atoll chain excise`, `replace` and `audit` |
//! | `auth.rs` | `atoll auth` |
//! | `backup.rs` | `atoll backup` |
//! | `policy.rs` | `atoll policy` |
//! | `cluster.rs` | upgrading |
//! | `check/` | `atoll check` |
//! | `bench.rs` | measuring |
//! | `completions.rs` | shell completions |
//! | `tables/` | `atoll table` |
//! | `kv.rs` | `atoll kv` |
//! | `corfu.rs` | `atoll corfu` |
//! | `scalog.rs` | `atoll scalog` |
//! | `zookeeper/` | `atoll zookeeper` |
//! | `table.rs` | aligned columns |
//! | `calendar.rs`, `spans.rs` | dates and times; spans of time, and sizes |
//! | `timeline.rs` | a file with the time of each acknowledgement |

pub mod append;
pub mod auth;
pub mod backup;
pub mod bench;
pub mod calendar;
pub mod chain;
mod chain_surgery;
pub mod check;
pub mod cluster;
pub mod completions;
pub mod corfu;
pub mod database;
pub mod kv;
mod kv_lease;
mod kv_move;
mod kv_txn;
pub mod log;
pub mod node;
pub mod policy;
pub mod read;
pub mod scalog;
pub mod spans;
pub mod status;
mod table;
pub mod tables;
mod timeline;
pub mod zookeeper;

use std::future::Future;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use atoll_client::proto::{LogletSpec, Place};
use atoll_client::{Client, Error, Failure, Options, Reason, Tls, Token};
use serde_json::{Value, json};

pub use table::Table;

/// The addresses of the first nodes of `atoll dev`.
const DEV_ADDRESSES: &str = "127.0.0.1:7411,127.0.0.1:7421,127.0.0.1:7431,127.0.0.1:7441,127.0.0.1:7451";
/// The log that is used if none is named.
pub const DEFAULT_LOG: &str = "main";

/// Options of every verb that talks to a cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// gRPC addresses of nodes; if one fails, the next is tried [default: those of `atoll dev`]
    #[arg(
        long,
        global = true,
        env = "ATOLL_CONNECT",
        value_name = "HOST:PORT,...",
        help_heading = "Connection"
    )]
    pub connect: Option<String>,
    /// Ask only this node
    #[arg(long, global = true, value_name = "ID", help_heading = "Connection")]
    pub node: Option<u32>,
    /// Give up on an operation after this many seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value = "30", value_parser = seconds, help_heading = "Connection")]
    pub timeout: Duration,
    /// Certificates (PEM) of the authority that signed the nodes' certificates; turns TLS on
    #[arg(long, global = true, env = "ATOLL_TLS_CA", value_name = "FILE", help_heading = "Connection")]
    pub tls_ca: Option<PathBuf>,
    /// This client's certificate (PEM)
    #[arg(long, global = true, env = "ATOLL_TLS_CERT", value_name = "FILE", requires_all = ["tls_ca", "tls_key"], help_heading = "Connection")]
    pub tls_cert: Option<PathBuf>,
    /// This client's key (PEM)
    #[arg(
        long,
        global = true,
        env = "ATOLL_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Connection"
    )]
    pub tls_key: Option<PathBuf>,
    /// The name in the nodes' certificates, if it is not the host of the address
    #[arg(long, global = true, value_name = "NAME", requires = "tls_ca", help_heading = "Connection")]
    pub tls_name: Option<String>,
    /// A file that contains a token; ATOLL_TOKEN may contain the token itself
    #[arg(long, global = true, env = "ATOLL_TOKEN_FILE", value_name = "FILE", help_heading = "Connection")]
    pub token_file: Option<PathBuf>,
    /// Print JSON, one value per line
    #[arg(long, global = true)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("0.001 to 86400 are allowed".to_owned()),
    }
}

/// What the next loglet should be like.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SpecArgs {
    /// Kind of Loglet [default: unchanged]
    #[arg(long, value_name = "KIND")]
    pub loglet: Option<String>,
    /// Use exactly these servers; short for --place server=ID,... [default: unchanged, as far as they are up]
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub servers: Vec<u32>,
    /// Use exactly this sequencer; short for --place sequencer=ID
    #[arg(long, value_name = "ID")]
    pub sequencer: Option<u32>,
    /// Avoid these nodes if possible
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub avoid: Vec<u32>,
    /// Use exactly these nodes for a role of the kind, or of one of its parts: PART/ROLE=ID,...; repeatable
    #[arg(long, value_name = "ROLE=ID,...", value_parser = place)]
    pub place: Vec<(String, Vec<u32>)>,
    /// An option of the kind; repeatable
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = option)]
    pub options: Vec<(String, String)>,
}

/// Parses `ROLE=ID,...`.
pub(crate) fn place(text: &str) -> Result<(String, Vec<u32>), String> {
    let (role, ids) = text.split_once('=').ok_or("write ROLE=ID,...")?;
    let id = |id: &str| id.parse::<u32>().map_err(|e| format!("node {id:?}: {e}"));
    Ok((role.to_owned(), ids.split(',').map(id).collect::<Result<_, _>>()?))
}

/// Parses `NAME=VALUE`.
pub(crate) fn option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl From<&SpecArgs> for LogletSpec {
    fn from(args: &SpecArgs) -> Self {
        LogletSpec {
            kind: args.loglet.clone(),
            servers: args.servers.clone(),
            sequencer: args.sequencer,
            avoid: args.avoid.clone(),
            places: args
                .place
                .iter()
                .map(|(role, nodes)| Place { role: role.clone(), nodes: nodes.clone() })
                .collect(),
            options: args.options.iter().cloned().collect(),
        }
    }
}

/// Why a verb ended early.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The error that the client reports.
    #[error(transparent)]
    Client(#[from] Error),
    /// A local file could not be read or written.
    #[error("{what}: {error}")]
    File {
        /// The file, and what was done.
        what: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Standard output could not be written. A closed pipe is no error.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A check that was requested from the verb failed.
    #[error("{0}")]
    Check(String),
    /// A check that was requested from the verb ended without an answer.
    #[error("{0}")]
    NotDecided(String),
    /// It happened, or part of it, but then a local file or standard output failed.
    #[error("{error}")]
    Done {
        /// What would have been printed: as JSON, and as text.
        result: (Value, String),
        /// What failed.
        error: Box<CliError>,
    },
}

/// The exit status of a verb that has done its work but could not report it. A script must not repeat the verb.
const DONE_BUT: u8 = 4;
const NOT_AGAIN: &str = "do not repeat what is done; the result says what that is";

impl CliError {
    /// Returns the same error for a verb that has done its work, or part of it.
    fn after(self, value: &Value, text: &str) -> Self {
        CliError::Done { result: (value.clone(), text.trim_end().to_owned()), error: Box::new(self) }
    }

    fn exit_status(&self) -> u8 {
        match self {
            CliError::Client(Error::DidNotHappen(f))
                if matches!(f.reason, Reason::Invalid | Reason::TooLarge) =>
            {
                2
            }
            CliError::Client(Error::DidNotHappen(_)) => 1,
            CliError::Client(Error::Unknown(_)) => 3,
            CliError::Client(Error::Happened(_)) => DONE_BUT,
            // Nobody reads the result.
            CliError::Done { error, .. } if error.exit_status() == 0 => 0,
            CliError::Done { .. } => DONE_BUT,
            CliError::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => 0,
            CliError::File { .. } | CliError::Output(_) | CliError::Check(_) => 1,
            CliError::Usage(_) | CliError::NotDecided(_) => 2,
        }
    }

    fn happened(&self) -> &'static str {
        match self {
            CliError::Client(Error::Unknown(_)) => "unknown",
            CliError::Client(Error::Happened(_)) | CliError::Done { .. } => "yes",
            _ => "no",
        }
    }

    /// Returns the error as JSON.
    fn to_json(&self) -> Value {
        if let CliError::Done { result: (result, _), error } = self {
            let mut json = error.to_json();
            json["error"]["happened"] = self.happened().into();
            json["error"]["next"] = NOT_AGAIN.into();
            json["error"]["result"] = result.clone();
            return json;
        }
        let (reason, message, next) = match self {
            CliError::Client(e) => {
                let Failure { reason, message, next } = e.failure();
                (reason.word(), message.clone(), next.clone())
            }
            CliError::Usage(_) => ("invalid", self.to_string(), String::new()),
            other => ("local", other.to_string(), String::new()),
        };
        json!({"error": {"happened": self.happened(), "reason": reason, "message": message, "next": next}})
    }

    /// Returns the error as text.
    fn to_text(&self) -> String {
        if let CliError::Done { result: (_, result), error } = self {
            return format!("atoll: happened, but: {error}\n  result: {result}\n  next: {NOT_AGAIN}");
        }
        let CliError::Client(error) = self else { return format!("atoll: {self}") };
        let head = match error {
            Error::DidNotHappen(_) => "did not happen",
            Error::Unknown(_) => "unknown whether it happened",
            Error::Happened(_) => "happened, but",
        };
        let Failure { message, next, .. } = error.failure();
        match next.is_empty() {
            true => format!("atoll: {head}: {message}"),
            false => format!("atoll: {head}: {message}\n  next: {next}"),
        }
    }
}

/// Runs a verb and returns its exit status.
pub fn run(common: &Common, verb: impl Future<Output = Result<(), CliError>>) -> ExitCode {
    // The client and the verb share one thread, so that no wake-up crosses threads.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("atoll: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    }
    match runtime.block_on(verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let status = error.exit_status();
            if status != 0 {
                let words = if common.json { error.to_json().to_string() } else { error.to_text() };
                // If standard error fails, too, the exit status still says what happened. `eprintln!` would panic.
                let _ = writeln!(io::stderr(), "{words}");
            }
            ExitCode::from(status)
        }
    }
}

impl Common {
    /// Returns a client of the cluster, or of the one node that was requested.
    pub async fn client(&self) -> Result<Client, CliError> {
        self.client_with(self.options()?).await
    }

    /// Returns the same with other settings.
    async fn client_with(&self, options: Options) -> Result<Client, CliError> {
        let client = Client::with_options(self.connect.as_deref().unwrap_or(DEV_ADDRESSES), options)?;
        Ok(match self.node {
            Some(id) => client.at_node(id).await?,
            None => client,
        })
    }

    /// Returns the settings of a client.
    fn options(&self) -> Result<Options, CliError> {
        let mut options = Options { operation_timeout: self.timeout, ..Options::default() };
        options.attempt_timeout = options.attempt_timeout.min(self.timeout);
        options.tls = self.tls()?;
        options.token = self.token()?;
        Ok(options)
    }

    /// Returns the token of the file, or of the environment. It is no option, because others on the machine can read those.
    fn token(&self) -> Result<Option<Token>, CliError> {
        if let Some(path) = &self.token_file {
            let read = std::fs::read_to_string(path);
            let read = read.map_err(|error| CliError::File { what: path.display().to_string(), error })?;
            return Ok(Some(Token::new(&read)));
        }
        Ok(std::env::var("ATOLL_TOKEN").ok().map(|text| Token::new(&text)).filter(|t| !t.text().is_empty()))
    }

    fn tls(&self) -> Result<Option<Tls>, CliError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| CliError::File { what: path.display().to_string(), error })
        };
        let Some(ca) = &self.tls_ca else { return Ok(None) };
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            _ => None,
        };
        Ok(Some(Tls { ca: read(ca)?, identity, domain: self.tls_name.clone() }))
    }

    /// Prints the result of a verb that has changed something. If that fails, the error says that the change happened, and has the result.
    pub fn print_done(&self, value: &Value, text: impl FnOnce() -> String) -> Result<(), CliError> {
        let text = text();
        self.print(value, || text.clone()).map_err(|error| error.after(value, &text))
    }

    /// Prints a value as JSON, or the result of `text`. For verbs that change something, see [`Common::print_done`].
    pub fn print(&self, value: &Value, text: impl FnOnce() -> String) -> Result<(), CliError> {
        let line = if self.json { value.to_string() } else { text() };
        let mut out = io::stdout().lock();
        writeln!(out, "{}", line.trim_end_matches('\n'))?;
        out.flush()?;
        Ok(())
    }
}

/// Returns bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns a number with its thousands separated, for people.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_outcome_and_what_to_do() {
        let failure = Failure::new(Reason::DiskFull, "a disk is full", "trim the log");
        let no = CliError::Client(Error::DidNotHappen(failure.clone()));
        assert_eq!(no.to_text(), "atoll: did not happen: a disk is full\n  next: trim the log");
        assert_eq!(no.exit_status(), 1);
        for (reason, status) in [(Reason::Invalid, 2), (Reason::TooLarge, 2), (Reason::Refused, 1)] {
            assert_eq!(
                CliError::Client(Error::DidNotHappen(Failure::new(reason, "", ""))).exit_status(),
                status
            );
        }
        let unknown = CliError::Client(Error::Unknown(failure.clone()));
        assert_eq!(unknown.exit_status(), 3);
        assert_eq!(unknown.to_json()["error"]["happened"], "unknown");
        assert_eq!(unknown.to_json()["error"]["reason"], "disk-full");
        let happened = CliError::Client(Error::Happened(failure));
        assert_eq!((happened.exit_status(), happened.happened()), (4, "yes"));
        assert_eq!(happened.to_text(), "atoll: happened, but: a disk is full\n  next: trim the log");
        assert_eq!(CliError::Usage("x".into()).exit_status(), 2);
        assert_eq!(CliError::Output(io::ErrorKind::BrokenPipe.into()).exit_status(), 0);
    }

    #[test]
    fn what_is_done_is_not_denied_because_it_cannot_be_printed() {
        let full = || CliError::Output(io::ErrorKind::StorageFull.into());
        assert_eq!((full().exit_status(), full().happened()), (1, "no"));
        let done = full().after(&json!({"position": 7}), "7");
        assert_eq!((done.exit_status(), done.happened()), (4, "yes"));
        let error = &done.to_json()["error"];
        assert_eq!((&error["happened"], &error["reason"]), (&json!("yes"), &json!("local")));
        assert_eq!(error["result"], json!({"position": 7}));
        assert!(done.to_text().contains("\n  result: 7\n"), "{}", done.to_text());
        let closed = CliError::Output(io::ErrorKind::BrokenPipe.into()).after(&json!(7), "7");
        assert_eq!(closed.exit_status(), 0);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}

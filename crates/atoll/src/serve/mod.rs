//! `atoll serve`: one node, from a configuration file or from a data folder alone.
//!
//! | file | what it is |
//! | --- | --- |
//! | `settings.rs` | the table of all settings; `--print-config` |
//! | `reader.rs` | reads a file by that table; faults with file and line |
//! | `config.rs` | the configuration as the program uses it |
//! | `zookeeper.rs` | the options of the door for ZooKeeper's clients |
//! | `jaas.rs` | the users in a JAAS file |
//! | `zoo_cfg.rs`, `zoo_cfg_names.rs`, `properties.rs` | translates a configuration of ZooKeeper; the names of its settings; its format |
//! | `resolve.rs` | looks up the host names, for `--check` |
//! | `run.rs` | starts the node, waits for signals, drains, stops |

pub mod config;
#[cfg(test)]
mod config_test;
mod jaas;
mod places;
mod properties;
pub mod reader;
mod resolve;
mod run;
pub mod settings;
mod zoo_cfg;
mod zoo_cfg_names;
#[cfg(test)]
mod zoo_cfg_test;
mod zookeeper;

use std::path::PathBuf;
use std::process::ExitCode;

use config::{Config, Overrules};

pub(crate) use run::{doors, log_to_stderr, node_config};

/// Exit status for a configuration that cannot be used, as for a wrong command line.
pub(crate) const BAD_CONFIG: u8 = 2;

/// `database.state`, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StatePlace {
    /// In the data folder.
    Disk,
    /// In memory; every start replays the log.
    Memory,
}

/// Arguments of `atoll serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Configuration file; see --print-config
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Configuration file of a ZooKeeper server. Lines that Atoll ignores are listed on stderr
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub zoo_cfg: Option<PathBuf>,
    /// Data folder. Without any other flag, this runs one node with its own log at the default ports on loopback
    #[arg(long, value_name = "DIR", required_unless_present_any = ["config", "zoo_cfg", "print_config"])]
    pub data: Option<PathBuf>,
    /// Listen for gRPC here; overrides the file [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT")]
    pub grpc: Option<String>,
    /// Listen for other nodes here; overrides the file [default: 127.0.0.1:7412]
    #[arg(long, value_name = "HOST:PORT")]
    pub peer: Option<String>,
    /// Serve metrics here; overrides the file; "" turns it off [default: 127.0.0.1:7413]
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<String>,
    /// Serve ZooKeeper clients here; overrides the file; "" turns it off [default: 127.0.0.1:2181]
    #[arg(long, value_name = "HOST:PORT")]
    pub zookeeper: Option<String>,
    /// Where the database keeps its state; overrides the file [default: disk]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub state: Option<StatePlace>,
    /// Print a complete configuration file with every setting explained, and exit
    #[arg(long)]
    pub print_config: bool,
    /// Check the configuration and whether its host names can be found, and exit
    #[arg(long)]
    pub check: bool,
    /// Stop when the standard input closes: for a supervisor whose children end with it
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or a filter; RUST_LOG takes precedence
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

/// Runs a node until it must stop, or prints or checks a configuration.
pub fn run(args: &ServeArgs) -> ExitCode {
    if args.print_config {
        print!("{}", settings::print());
        return ExitCode::SUCCESS;
    }
    let over = Overrules {
        data: args.data.clone(),
        grpc: args.grpc.clone(),
        peer: args.peer.clone(),
        metrics: args.metrics.clone(),
        zookeeper: args.zookeeper.clone(),
        state_in_memory: args.state.map(|state| state == StatePlace::Memory),
    };
    let config = match (&args.config, &args.zoo_cfg) {
        (Some(file), _) => Config::load(file, &over),
        (None, Some(file)) => zoo_cfg::load(file, &over).map(|translated| {
            translated.notes.iter().for_each(|note| eprintln!("{note}"));
            translated.config
        }),
        (None, None) => Config::without_file(&over),
    };
    let config = match config {
        Ok(config) => config,
        Err(faults) => {
            eprintln!("{faults}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    // Check the content of the files, after the settings that name them.
    if let Some(tls) = &config.tls
        && let Err(error) = atoll_net::Tls::load(&run::tls_files(tls), atoll_core::NodeId(config.id))
    {
        eprintln!("[tls] {error}");
        return ExitCode::from(BAD_CONFIG);
    }
    if let Some((_, files)) = &config.zookeeper_tls
        && let Err(error) = atoll_doors::zookeeper::check_tls(files)
    {
        eprintln!("[zookeeper] {error}");
        return ExitCode::from(BAD_CONFIG);
    }
    if args.check {
        let faults = resolve::faults(&config);
        if !faults.is_empty() {
            faults.iter().for_each(|fault| eprintln!("{fault}"));
            return ExitCode::from(BAD_CONFIG);
        }
        println!(
            "{}: in order",
            args.config
                .as_ref()
                .or(args.zoo_cfg.as_ref())
                .map_or("command line".into(), |f| f.display().to_string())
        );
        return ExitCode::SUCCESS;
    }
    run::run(config, args)
}

//! `atoll completions`.

use std::process::ExitCode;

/// Arguments of `atoll completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints the completions of a command.
pub fn run(args: &CompletionsArgs, command: &mut clap::Command) -> ExitCode {
    clap_complete::generate(args.shell, command, "atoll", &mut std::io::stdout());
    ExitCode::SUCCESS
}

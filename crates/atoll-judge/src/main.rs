//! `atoll-judge FILE...` prints one JSON line per history. Exit status: 0 if all checks hold, 1 if not, 2 if a file is not a history.

use std::path::PathBuf;
use std::process::ExitCode;

use atoll_judge::history::History;
use atoll_judge::verdict::{Verdict, judge};
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
#[command(about = "Judges histories of concurrent clients; see the module `history` for the files.")]
struct Args {
    /// Histories.
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let (mut wrong, mut unread) = (false, false);
    for file in Args::parse().files {
        let read = std::fs::read_to_string(&file).map_err(|e| e.to_string());
        let line = match read.and_then(|text| History::parse(&text).map_err(|e| e.to_string())) {
            Ok(history) => {
                let j = judge(&history);
                wrong |= (j.linearizable, j.session) != (Verdict::Ok, Verdict::Ok);
                let (linearizable, session) = (j.linearizable.to_string(), j.session.to_string());
                json!({"file": file, "linearizable": linearizable, "session": session, "why": j.why, "tried": j.tried})
            }
            Err(error) => {
                unread = true;
                json!({"file": file, "error": error})
            }
        };
        println!("{line}");
    }
    ExitCode::from(if unread { 2 } else { u8::from(wrong) })
}

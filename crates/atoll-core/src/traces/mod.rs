//! Traces of roles as data, for tests: the input of a role and its output. Only available with the feature `testing`.
//!
//! A trace is a file of paragraphs. A paragraph consists of commands, one per line, then `----`, then their output up to an empty line.
//! Lines that begin with `#` are comments.
//!
//! ```text
//! # A server that is sealed stores nothing (native-T1).
//! store 1 b
//! ----
//! send to 1: Stored Sealed, round 1, next 1, sealed lt=1 kt=0
//! ```
//!
//! With `ATOLL_REWRITE_TRACES=1`, a test replaces the expected output with the actual one. Read it before you commit it: a trace must state
//! what the protocol demands, not what the code happens to do.
//!
//! | file | what it is |
//! | --- | --- |
//! | `command.rs` | parses a command |
//! | `lone_role.rs` | a role without a node: its journal, its clock, its requests |

mod command;
mod lone_role;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use command::Command;
pub use lone_role::{LoneRole, Wording};

/// The line between the commands and their output.
const SEPARATOR: &str = "----";
const REWRITE: &str = "ATOLL_REWRITE_TRACES";

/// Plays all traces of a folder. For each, `begin` returns a function that carries out the commands of a paragraph and returns the lines of
/// their output. Panics with the first difference in each file, or rewrites the files.
pub fn check<P: FnMut(&[&str]) -> Vec<String>>(folder: &Path, begin: impl Fn() -> P) {
    check_or_rewrite(folder, std::env::var(REWRITE).is_ok_and(|value| value == "1"), begin);
}

fn check_or_rewrite<P: FnMut(&[&str]) -> Vec<String>>(folder: &Path, rewrite: bool, begin: impl Fn() -> P) {
    let mut found = Vec::new();
    for (file, text) in traces(folder) {
        match play(&file, &text, rewrite, begin()) {
            Ok(played) if played != text => write(&file, &played),
            Ok(_) => {}
            Err(difference) => found.push(difference),
        }
    }
    assert!(
        found.is_empty(),
        "{}\n\nThe same test with {REWRITE}=1 writes what comes out now. Is it what the protocol says?\n",
        found.join("\n")
    );
}

/// Returns whether the output of some trace in a folder differs from what it expects, as it must with a known bug.
pub fn differ<P: FnMut(&[&str]) -> Vec<String>>(folder: &Path, begin: impl Fn() -> P) -> bool {
    traces(folder).iter().any(|(file, text)| play(file, text, false, begin()).is_err())
}

fn traces(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    assert!(!files.is_empty(), "{}: no traces", folder.display());
    files.sort();
    let read = |file: PathBuf| match fs::read_to_string(&file) {
        Ok(text) => (file, text),
        Err(e) => panic!("{}: {e}", file.display()),
    };
    files.into_iter().map(read).collect()
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    println!("{} is rewritten", file.display());
}

/// A paragraph of a trace.
#[derive(Debug, PartialEq, Eq)]
struct Paragraph<'a> {
    commands: Vec<&'a str>,
    /// The number of the line with the first command, counted from 1.
    line: usize,
    /// The lines of the output, counted from 0.
    output: Range<usize>,
}

/// Returns the paragraphs, or the number of the first wrong line and the reason.
fn paragraphs<'a>(lines: &[&'a str]) -> Result<Vec<Paragraph<'a>>, (usize, &'static str)> {
    let (mut all, mut commands, mut first, mut at) = (Vec::new(), Vec::new(), 0, 0);
    while let Some(line) = lines.get(at) {
        at += 1;
        match *line {
            SEPARATOR if commands.is_empty() => return Err((at, "no command above the dashes")),
            SEPARATOR => {
                let length = lines[at..].iter().take_while(|line| !line.is_empty()).count();
                let output = at..at + length;
                at += length;
                all.push(Paragraph { commands: std::mem::take(&mut commands), line: first, output });
            }
            comment if comment.starts_with('#') => {}
            "" if commands.is_empty() => {}
            "" => return Err((at, "no dashes below the commands")),
            command => {
                if commands.is_empty() {
                    first = at;
                }
                commands.push(command);
            }
        }
    }
    if commands.is_empty() { Ok(all) } else { Err((at, "no dashes below the last commands")) }
}

/// Prints the position in the trace if a test panics.
struct Place<'a>(&'a Path, usize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was in the trace at {}:{}", self.0.display(), self.1);
        }
    }
}

/// Plays a trace and returns its text with the actual output. A difference from the expected output is an error unless `rewrite` is set.
fn play(
    file: &Path,
    text: &str,
    rewrite: bool,
    mut step: impl FnMut(&[&str]) -> Vec<String>,
) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut played, mut copied) = (Vec::new(), 0);
    let place = |line: usize| format!("{}:{line}", file.display());
    let all = paragraphs(&lines).map_err(|(line, why)| format!("{}: {why}", place(line)))?;
    for paragraph in all {
        let actual = {
            let _place = Place(file, paragraph.line);
            step(&paragraph.commands)
        };
        assert!(
            actual.iter().all(|line| !line.is_empty() && !line.contains('\n')),
            "{}: an empty line would end the output: {actual:?}",
            place(paragraph.line)
        );
        let expected = &lines[paragraph.output.clone()];
        if !rewrite && actual != expected {
            let (commands, expected, actual) =
                (paragraph.commands.join("\n"), expected.join("\n"), actual.join("\n"));
            return Err(format!(
                "{}:\n{commands}\n---- expected\n{expected}\n---- actual\n{actual}",
                place(paragraph.line)
            ));
        }
        played.extend(lines[copied..paragraph.output.start].iter().map(|line| (*line).to_owned()));
        played.extend(actual);
        copied = paragraph.output.end;
    }
    played.extend(lines[copied..].iter().map(|line| (*line).to_owned()));
    Ok(played.into_iter().map(|line| line + "\n").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# Adds up.
add 1 2

# Twice in one paragraph.
add 3
add 4
----
3

# Nothing comes of it.
quiet
----

# The end.
";

    /// Returns a function that adds up the numbers in each command.
    fn adder() -> impl FnMut(&[&str]) -> Vec<String> {
        let mut sum = 0;
        move |commands| {
            for command in commands {
                sum += command.split(' ').filter_map(|word| word.parse::<u32>().ok()).sum::<u32>();
            }
            if commands == ["quiet"] { Vec::new() } else { vec![sum.to_string()] }
        }
    }

    fn trace() -> String {
        TRACE.replacen("add 1 2\n", "add 1 2\n----\n3\n", 1).replacen("----\n3\n\n# N", "----\n10\n\n# N", 1)
    }

    #[test]
    fn a_trace_that_holds_stays_as_it_is() {
        let text = trace();
        assert_eq!(play(Path::new("f"), &text, false, adder()), Ok(text.clone()));
        assert_eq!(play(Path::new("f"), &text, true, adder()), Ok(text));
    }

    #[test]
    fn a_difference_names_its_place_and_both_outputs() {
        let wrong = trace().replacen("10", "11\n12", 1);
        let report = "f:7:\nadd 3\nadd 4\n---- expected\n11\n12\n---- actual\n10";
        assert_eq!(play(Path::new("f"), &wrong, false, adder()), Err(report.to_owned()));
        assert_eq!(play(Path::new("f"), &wrong, true, adder()), Ok(trace()));
        let more = trace().replacen("quiet\n----\n", "quiet\n----\nloud\n", 1);
        assert_eq!(play(Path::new("f"), &more, true, adder()), Ok(trace()));
    }

    #[test]
    fn what_is_no_trace_is_refused_by_its_line() {
        for (text, error) in [
            (TRACE, "f:3: no dashes below the commands"),
            ("add 1\n", "f:1: no dashes below the last commands"),
            ("# x\n\n----\n3\n", "f:3: no command above the dashes"),
        ] {
            assert_eq!(play(Path::new("f"), text, true, adder()), Err(error.to_owned()));
        }
    }

    #[test]
    fn the_folder_is_checked_and_rewritten() {
        let folder = std::env::temp_dir().join(format!("atoll-traces-{}", std::process::id()));
        assert!(fs::create_dir_all(&folder).is_ok());
        let file = folder.join("adder.txt");
        write(&file, &trace());
        check_or_rewrite(&folder, false, adder);
        assert!(!differ(&folder, adder));
        write(&file, &trace().replacen("10", "11", 1));
        assert!(differ(&folder, adder));
        let report = std::panic::catch_unwind(|| check_or_rewrite(&folder, false, adder));
        let report = report.err().and_then(|panic| panic.downcast::<String>().ok()).unwrap_or_default();
        assert!(report.contains("adder.txt:7:") && report.contains("ATOLL_REWRITE_TRACES=1"), "{report}");
        check_or_rewrite(&folder, true, adder);
        assert_eq!(fs::read_to_string(&file).ok(), Some(trace()));
        let _ = fs::remove_dir_all(&folder);
    }
}

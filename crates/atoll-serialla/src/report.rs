//! What the checker found, for people and for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::history::Outcome;
use crate::search::Why;
use crate::types::Type;

/// The answer to the question whether a history is strictly serializable.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It is: there is an order that explains all results.
    Explained,
    /// It is not.
    Refuted(Refutation),
    /// A limit was reached before it was clear.
    NotDecided(Why),
}

/// Why a history is not strictly serializable.
#[derive(Clone, Debug)]
pub struct Refutation {
    /// The operations that refute it, and some as context, in the order of their calls.
    pub operations: Vec<Shown>,
    /// Whether it matters that no key was written before the history.
    pub initial: bool,
}

/// Why an operation is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is one of those that have no order together.
    Refutes,
    /// The same, and it is the one that found no place.
    CannotBeExplained,
    /// It wrote a value that another one saw.
    Context,
}

/// An operation that is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The number of its line in the history.
    pub line: usize,
    /// The client.
    pub client: u64,
    /// The time of the call.
    pub call: i64,
    /// The time of the answer.
    pub returned: Option<i64>,
    /// Whether it happened.
    pub outcome: Outcome,
    /// The object, if it has a name.
    pub object: String,
    /// The request, as in the history.
    pub request: Value,
    /// The answer, as in the history.
    pub answer: Value,
    /// The request and the answer in words.
    pub words: (String, String),
    /// Why it is shown.
    pub part: Part,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// The data type.
    pub kind: Type,
    /// The number of operations in the history.
    pub operations: usize,
    /// The number of those whose outcome is unknown.
    pub unknown: usize,
    /// The number of parts that no operation connects.
    pub parts: usize,
    /// The number of placements that were tried.
    pub steps: u64,
    /// The answer.
    pub verdict: Verdict,
}

impl Why {
    /// Returns the reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Why::Steps => "it tried as many orders as are allowed",
            Why::Memory => "it needs more memory than is allowed",
            Why::Stopped => "its time is over",
        }
    }
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Yes => "yes",
            Outcome::No => "no",
            Outcome::Unknown => "unknown",
        }
    }
}

impl Report {
    /// Returns the verdict in one word.
    pub fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Explained => "explained",
            Verdict::Refuted(_) => "refuted",
            Verdict::NotDecided(_) => "not decided",
        }
    }

    /// Returns the report as JSON.
    pub fn to_json(&self) -> Value {
        let mut json = json!({
            "verdict": self.word(), "type": self.kind.name(), "operations": self.operations,
            "unknown": self.unknown, "parts": self.parts, "steps": self.steps,
        });
        match &self.verdict {
            Verdict::Explained => {}
            Verdict::NotDecided(why) => json["why"] = why.words().into(),
            Verdict::Refuted(refutation) => {
                json["initial_matters"] = refutation.initial.into();
                json["refuting"] = refutation.operations.iter().map(Shown::to_json).collect();
            }
        }
        json
    }

    /// Returns the report as text. A refutation is a table with one operation per line.
    pub fn to_text(&self) -> String {
        let parts = if self.parts == 1 { "one part".to_owned() } else { format!("{} parts", self.parts) };
        let about = format!(
            "{} operations on a {} in {parts}, {} of unknown outcome; {} placements tried",
            self.operations,
            self.kind.name(),
            self.unknown,
            self.steps
        );
        match &self.verdict {
            Verdict::Explained => {
                format!("explained: one order agrees with all results and with real time\n{about}")
            }
            Verdict::NotDecided(why) => format!("not decided: {}\n{about}", why.words()),
            Verdict::Refuted(refutation) => format!("refuted: {}\n{about}", refutation.to_text()),
        }
    }
}

impl Shown {
    fn to_json(&self) -> Value {
        json!({
            "line": self.line, "client": self.client, "call": self.call, "return": self.returned,
            "outcome": self.outcome.word(), "object": self.object, "do": self.request, "result": self.answer,
            "part": match self.part {
                Part::Refutes => "refutes",
                Part::CannotBeExplained => "cannot be explained",
                Part::Context => "context",
            },
        })
    }

    fn row(&self, n: usize, time: &dyn Fn(i64) -> String) -> [String; 7] {
        let object = if self.object.is_empty() { String::new() } else { format!("{}: ", self.object) };
        let answer = match self.outcome {
            Outcome::Yes => self.words.1.clone(),
            Outcome::No => "did not happen".to_owned(),
            Outcome::Unknown => "no answer".to_owned(),
        };
        let note = match self.part {
            Part::Refutes => "",
            Part::CannotBeExplained => "<- cannot be explained",
            Part::Context => "(only shows where a value comes from)",
        };
        [
            n.to_string(),
            time(self.call),
            self.returned.map_or("-".to_owned(), time),
            self.client.to_string(),
            format!("{object}{}", self.words.0),
            answer,
            note.to_owned(),
        ]
    }
}

/// The headings of the table; columns of numbers are aligned to the right.
const HEADINGS: [(&str, bool); 7] = [
    ("#", true),
    ("from", true),
    ("to", true),
    ("client", true),
    ("operation", false),
    ("result", false),
    ("", false),
];
/// Times below this are shown as they are in the file, others in ms since the first.
const SMALL_TIMES: i64 = 100_000;
/// Maximum number of operations in the text; JSON has all.
const MOST_ROWS: usize = 100;

impl Refutation {
    fn to_text(&self) -> String {
        let first = self.operations.iter().map(|o| o.call).min().unwrap_or(0);
        let latest = self.operations.iter().filter_map(|o| o.returned).max().unwrap_or(first);
        let small = first.unsigned_abs() < SMALL_TIMES.unsigned_abs() && latest < SMALL_TIMES;
        let time = |at: i64| match small {
            true => at.to_string(),
            false => format!("{:.3}", at.wrapping_sub(first) as f64 / 1e6),
        };
        let mut rows = vec![HEADINGS.map(|(heading, _)| heading.to_owned())];
        let hidden = self.operations.len().saturating_sub(MOST_ROWS);
        let all = self.operations.iter().enumerate().skip(hidden);
        rows.extend(all.map(|(n, shown)| shown.row(n + 1, &time)));
        let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
        let refuting = self.operations.iter().filter(|o| o.part != Part::Context).count();
        let mut text = match refuting {
            1 => "no order explains this operation".to_owned(),
            n => format!("no order explains these {n} operations together"),
        };
        text.push_str(", whatever the others did. The shortest such history that was found:\n\n");
        for row in &rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c].saturating_sub(cell.chars().count()));
                let (before, after) = if HEADINGS[c].1 { (pad.as_str(), "") } else { ("", pad.as_str()) };
                line.push_str(&format!("  {before}{cell}{after}"));
            }
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push_str(if small {
            "\ntimes as in the history"
        } else {
            "\ntimes in ms after the first call here"
        });
        if hidden > 0 {
            text.push_str(&format!(
                "; the first {hidden} operations are left out here, and are in the output with --json"
            ));
        }
        let shown = self.operations.iter().skip(hidden);
        let lines: Vec<String> = shown.map(|o| o.line.to_string()).collect();
        text.push_str(&format!("; lines of the history: {}", lines.join(", ")));
        text.push_str(match self.initial {
            true => "\nbefore the history, no key was written",
            false => "\nthey have no order from any state before them",
        });
        text
    }
}

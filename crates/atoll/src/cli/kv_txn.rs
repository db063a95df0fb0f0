//! `atoll kv txn`.

use std::io::Read;

use atoll_client::keyspace_proto::transact_part::Change;
use atoll_client::keyspace_proto::{self as proto, condition::What};
use atoll_client::{Error, Failure, Keyspace, Reason};
use bytes::Bytes;
use serde_json::{Value, json};

use super::kv::held_json;
use super::{CliError, Common};

/// Maximum length of a transaction as text, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;
const LINES: &str = "a line is `if KEY absent`, `if KEY present`, `if KEY version N`, `if KEY value VALUE`, `get KEY`, `put KEY VALUE` or `del KEY`";

/// Arguments of `atoll kv txn`.
#[derive(Debug, clap::Args)]
pub struct TxnArgs {
    /// The keyspace; its engine must have transactions
    keyspace: String,
    /// The lines of the transaction, each as one argument [default: the lines of standard input]. A line is `if KEY absent`,
    /// `if KEY present`, `if KEY version N`, `if KEY value VALUE`, `get KEY`, `put KEY VALUE` or `del KEY`. A word with spaces is a JSON
    /// string
    #[arg(value_name = "LINE")]
    lines: Vec<String>,
}

impl TxnArgs {
    pub(super) fn keyspace(&self) -> &str {
        &self.keyspace
    }
}

/// One key of a transaction.
#[derive(Debug, Default, PartialEq)]
struct Part {
    key: String,
    condition: Option<What>,
    /// Whether what it holds is shown.
    is_shown: bool,
    change: Option<Change>,
}

/// Runs `atoll kv txn`.
pub(super) async fn run(common: &Common, keyspace: &Keyspace, args: &TxnArgs) -> Result<(), CliError> {
    let text = if args.lines.is_empty() { standard_input()? } else { args.lines.join("\n") };
    let parts = parse(&text).map_err(CliError::Usage)?;
    let asked = |part: &Part| proto::TransactPart {
        key: Bytes::from(part.key.clone()),
        condition: part.condition.clone().map(|what| proto::Condition { what: Some(what) }),
        floor: 0,
        change: part.change.clone(),
    };
    let reply = keyspace.transact(parts.iter().map(asked).collect()).await?;
    if !reply.done {
        return Err(Error::DidNotHappen(refused(&parts, &reply)).into());
    }
    let made: Vec<(&Part, &proto::transact_reply::Outcome)> = parts.iter().zip(&reply.outcomes).collect();
    let shown: Vec<_> = made.iter().filter(|(part, _)| part.is_shown || part.change.is_some()).collect();
    let keys: Vec<Value> = shown.iter().map(|(part, outcome)| key_json(part, outcome)).collect();
    let value = json!({"keyspace": keyspace.name(), "done": true, "keys": keys});
    let text = || match shown.is_empty() {
        true => "all conditions hold".to_owned(),
        false => shown.iter().map(|(part, outcome)| key_text(part, outcome)).collect::<Vec<_>>().join("\n"),
    };
    match parts.iter().any(|part| part.change.is_some()) {
        true => common.print_done(&value, text),
        false => common.print(&value, text),
    }
}

fn standard_input() -> Result<String, CliError> {
    let mut text = String::new();
    std::io::stdin()
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| CliError::File { what: "standard input".to_owned(), error })?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(CliError::Usage(format!("the transaction has more than {MAX_BYTES} bytes, the maximum"))),
        false => Ok(text),
    }
}

fn key_json(part: &Part, outcome: &proto::transact_reply::Outcome) -> Value {
    match &part.change {
        Some(Change::Put(_)) => json!({"key": part.key, "version": outcome.version}),
        Some(Change::Delete(_)) => json!({"key": part.key, "deleted": true, "version": outcome.version}),
        None => held_json(&part.key, outcome.current.as_ref()),
    }
}

fn key_text(part: &Part, outcome: &proto::transact_reply::Outcome) -> String {
    match (&part.change, &outcome.current) {
        (Some(Change::Put(_)), _) => format!("{} version {}", part.key, outcome.version),
        (Some(Change::Delete(_)), _) => format!("{} deleted", part.key),
        (None, Some(held)) => format!("{} value {}", part.key, held.value.escape_ascii()),
        (None, None) => format!("{} absent", part.key),
    }
}

/// Says which conditions did not hold.
fn refused(parts: &[Part], reply: &proto::TransactReply) -> Failure {
    let holds = |part: &Part, held: Option<&proto::Held>| match (&part.condition, held) {
        (None, held) => !matches!(part.change, Some(Change::Delete(_))) || held.is_some(),
        (Some(What::Absent(_)), held) => held.is_none(),
        (Some(_), None) => false,
        (Some(What::Present(_)), Some(_)) => true,
        (Some(What::Version(version)), Some(held)) => held.version == *version,
        (Some(What::Value(value)), Some(held)) => held.value == *value,
    };
    let shown = parts.iter().zip(&reply.outcomes).map(|(part, outcome)| (part, outcome.current.as_ref()));
    let wrong = shown.filter(|(part, held)| !holds(part, *held)).map(|(part, held)| match held {
        Some(held) => format!("{} has version {}", part.key, held.version),
        None => format!("{} does not exist", part.key),
    });
    let wrong: Vec<String> = wrong.collect();
    let words = format!("a condition does not hold, or there is nothing to delete: {}", wrong.join(", "));
    Failure::new(Reason::Conflict, words, "read the keys, and try again")
}

/// Reads a transaction. An error names the line, and what is allowed.
fn parse(text: &str) -> Result<Vec<Part>, String> {
    let mut parts: Vec<Part> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |words: String| format!("line {}: {words}", n + 1);
        let words = words(line).map_err(wrong)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let step = read(&words).map_err(wrong)?;
        match parts.iter_mut().find(|part| part.key == step.key) {
            Some(part) => part.add(step).map_err(wrong)?,
            None => parts.push(step),
        }
    }
    match parts.is_empty() {
        true => Err(format!("the transaction has no lines; {LINES}")),
        false => Ok(parts),
    }
}

/// Reads the words of one line.
fn read(words: &[&str]) -> Result<Part, String> {
    let bytes = |word: &str| Bytes::from(word.to_owned());
    let (key, condition, change) = match words {
        ["if", key, "absent"] => (key, Some(What::Absent(true)), None),
        ["if", key, "present"] => (key, Some(What::Present(true)), None),
        ["if", key, "version", n] => {
            let version = n.parse().map_err(|_| format!("{n:?} is not a version, which is a number"))?;
            (key, Some(What::Version(version)), None)
        }
        ["if", key, "value", value] => (key, Some(What::Value(bytes(value))), None),
        ["put", key, value] => (key, None, Some(Change::Put(bytes(value)))),
        ["del", key] => (key, None, Some(Change::Delete(true))),
        ["get", key] => return Ok(Part { key: (*key).to_owned(), is_shown: true, ..Part::default() }),
        ["if", _, other, ..] => {
            return Err(format!("{other:?} and what follows is no condition; {LINES}"));
        }
        ["put" | "del" | "get" | "if", ..] => {
            return Err(format!(
                "too few or too many words; {LINES}, and a word with spaces is a JSON string"
            ));
        }
        [other, ..] => return Err(format!("{other:?} begins no line; {LINES}")),
        [] => return Err(LINES.to_owned()),
    };
    Ok(Part { key: (*key).to_owned(), condition, change, ..Part::default() })
}

impl Part {
    /// Adds what another line says of the same key.
    fn add(&mut self, other: Part) -> Result<(), String> {
        let twice = |what| Err(format!("{:?} has {what} already; one for each key is allowed", self.key));
        match () {
            () if self.condition.is_some() && other.condition.is_some() => return twice("a condition"),
            () if self.change.is_some() && other.change.is_some() => return twice("a put or a del"),
            () if (self.is_shown || other.is_shown) && (self.change.is_some() || other.change.is_some()) => {
                return Err(format!("{:?} is read and changed; a key is either", self.key));
            }
            () => {}
        }
        self.condition = self.condition.take().or(other.condition);
        self.change = self.change.take().or(other.change);
        self.is_shown |= other.is_shown;
        Ok(())
    }
}

/// Splits a line into words. One that begins with a quotation mark is a JSON string.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut rest, mut words) = (line.trim_start(), Vec::new());
    while !rest.is_empty() {
        let end = if rest.starts_with('"') {
            let mut strings = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            match strings.next() {
                Some(Ok(word)) => words.push(word),
                _ => return Err(format!("{rest} is no JSON string, as \"two words\" is one")),
            }
            strings.byte_offset()
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            end
        };
        rest = &rest[end..];
        if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
            return Err(format!("a space is missing before {rest:?}"));
        }
        rest = rest.trim_start();
    }
    Ok(words)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_one_key_become_one_part() {
        let text = "# a transfer\n\nif alice version 7\nput alice 90\n if bob value \"a \\\"b\\\"\"\nget carol\ndel \"an old key\"\n";
        let parts = parse(text).unwrap();
        let part =
            |key: &str, condition, change| Part { key: key.to_owned(), condition, change, ..Part::default() };
        let wanted = [
            part("alice", Some(What::Version(7)), Some(Change::Put("90".into()))),
            part("bob", Some(What::Value("a \"b\"".into())), None),
            Part { is_shown: true, ..part("carol", None, None) },
            part("an old key", None, Some(Change::Delete(true))),
        ];
        assert_eq!(parts, wanted);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, words) in [
            ("", "no lines"),
            ("get a\npat a 1", "line 2: \"pat\" begins no line"),
            ("put a", "line 1: too few or too many words"),
            ("put a b c", "too few or too many words"),
            ("if a version x", "\"x\" is not a version"),
            ("if a newer 3", "\"newer\" and what follows is no condition"),
            ("put a 1\nput a 2", "line 2: \"a\" has a put or a del already"),
            ("if a absent\nif a absent", "\"a\" has a condition already"),
            ("get a\nput a 1", "\"a\" is read and changed"),
            ("put a \"b", "is no JSON string"),
            ("put a \"b\"c", "a space is missing before \"c\""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_refusal_names_the_conditions_that_do_not_hold() {
        let parts = parse("if a version 7\nput a 1\nif b present\nif c absent\ndel d").unwrap();
        let outcome = |version| proto::transact_reply::Outcome {
            current: Some(proto::Held { version, value: "x".into() }),
            ..Default::default()
        };
        let outcomes = vec![outcome(9), outcome(1), outcome(5), proto::transact_reply::Outcome::default()];
        let failure = refused(&parts, &proto::TransactReply { done: false, outcomes });
        assert_eq!(failure.reason, Reason::Conflict);
        assert!(
            failure.message.ends_with("a has version 9, c has version 5, d does not exist"),
            "{}",
            failure.message
        );
    }
}

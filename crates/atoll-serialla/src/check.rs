//! A whole check: reads a history, decides each of its parts, and shortens what refutes it.

use std::io::BufRead;

use serde_json::Value;

use crate::history::{self, History, Initial, InputError, Operation, Outcome};
use crate::parts::{self, Part};
use crate::report::{self, Refutation, Report, Shown, Verdict};
use crate::search::{Budget, Found, Item, Role, Why, search};
use crate::shrink::{self, Short};
use crate::types::{Counter, DataType, Lock, Map, Register, Set, Table, Type};

/// What a check may use. A check that reaches a limit is not decided.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of placements that it may try, over all parts.
    pub steps: u64,
    /// The approximate number of bytes that the search may use, beside the history itself.
    pub memory_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { steps: 2_000_000_000, memory_bytes: 1 << 30 }
    }
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of operations that have found a place.
    pub placed: usize,
    /// The number of operations that need one.
    pub total: usize,
    /// Whether the history is already refuted, and is being shortened.
    pub refuted: bool,
}

/// Reads and checks a history. `asked` is its type; None if the file says it. `watch` is called several times a second, and stops the check
/// if it returns false: a history that is already refuted is then reported as short as it is, any other one as not decided.
///
/// # Errors
/// The input is not a history. The error names the line.
pub fn check(
    from: impl BufRead,
    asked: Option<Type>,
    limits: Limits,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Report, InputError> {
    let opened = history::open(from, asked)?;
    Ok(match opened.kind {
        Type::Register => decide::<Register>(Type::Register, &opened.history()?, limits, watch),
        Type::Set => decide::<Set>(Type::Set, &opened.history()?, limits, watch),
        Type::Counter => decide::<Counter>(Type::Counter, &opened.history()?, limits, watch),
        Type::Map => decide::<Map>(Type::Map, &opened.history()?, limits, watch),
        Type::Lock => decide::<Lock>(Type::Lock, &opened.history()?, limits, watch),
        Type::Table => decide::<Table>(Type::Table, &opened.history()?, limits, watch),
    })
}

/// Returns the operations of a part as the search wants them.
fn items<'a, T: DataType>(operations: &'a [Operation<T>], part: &'a Part) -> Vec<Item<'a, T>> {
    let one = |(n, keys): (&usize, &'a Vec<u32>)| {
        let operation = &operations[*n];
        let role = match operation.outcome {
            Outcome::Yes => Role::Happened,
            Outcome::No | Outcome::Unknown => Role::MayHappen,
        };
        Item { operation, keys, role }
    };
    part.operations.iter().zip(&part.keys).map(one).collect()
}

/// Checks a history.
fn decide<T: DataType>(
    kind: Type,
    history: &History<T>,
    limits: Limits,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Report {
    let operations = &history.operations;
    let initial = match history.initial {
        Initial::Empty => Some(T::empty()),
        Initial::Unknown => None,
    };
    let parts = parts::split(operations);
    let total = parts.iter().map(|part| part.operations.len()).sum();
    let (mut steps, mut before, mut undecided) = (0, 0, None);
    let mut verdict = None;
    for part in &parts {
        let items = items(operations, part);
        let mut watch_part =
            |placed: usize| watch(Progress { placed: before + placed, total, refuted: false });
        let mut budget = Budget {
            steps: limits.steps.saturating_sub(steps),
            memory_bytes: limits.memory_bytes,
            watch: &mut watch_part,
        };
        let start = initial.clone().unwrap_or_else(T::unknown);
        let (found, tried) = search(&items, part.cells, start, &mut budget);
        steps += tried;
        match found {
            Found::Explained => {}
            Found::NotDecided(why) => undecided = Some(why),
            Found::Refuted { until, .. } => {
                let mut watch_short = |_| watch(Progress { placed: before, total, refuted: true });
                let short = shrink::shorten(
                    operations,
                    part,
                    initial.clone(),
                    until,
                    limits.memory_bytes,
                    &mut watch_short,
                );
                verdict = Some(Verdict::Refuted(refutation(operations, &short)));
                break;
            }
        }
        before += part.operations.len();
        if undecided == Some(Why::Stopped) {
            break;
        }
    }
    let verdict = verdict.or(undecided.map(Verdict::NotDecided)).unwrap_or(Verdict::Explained);
    let unknown = operations.iter().filter(|o| o.outcome == Outcome::Unknown).count();
    Report { kind, operations: operations.len(), unknown, parts: parts.len(), steps, verdict }
}

/// Returns a short history as it is shown.
fn refutation<T: DataType>(operations: &[Operation<T>], short: &Short) -> Refutation {
    let json = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Null);
    let shown = |n: &usize| {
        let operation = &operations[*n];
        let part = match () {
            () if *n == short.stuck => report::Part::CannotBeExplained,
            () if short.kept.contains(n) => report::Part::Refutes,
            () => report::Part::Context,
        };
        Shown {
            line: operation.line,
            client: operation.client,
            call: operation.call,
            returned: operation.returned,
            outcome: operation.outcome,
            object: operation.object.clone(),
            request: json(serde_json::to_value(&operation.request)),
            answer: json(serde_json::to_value(&operation.answer)),
            words: (
                T::request_words(&operation.request),
                operation.answer.as_ref().map(T::answer_words).unwrap_or_default(),
            ),
            part,
        }
    };
    let mut all: Vec<Shown> = short.kept.iter().chain(&short.context).map(shown).collect();
    all.sort_by_key(|shown| shown.call);
    Refutation { operations: all, initial: short.initial }
}

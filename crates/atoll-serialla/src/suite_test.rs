//! The suite of the checker: histories as files, generated histories, a search that tries every order, and limits. It must fail for each
//! planted bug.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::cells::Store;
use crate::generate_test::{self as generate, Made, Plan, Random};
use crate::history::{self, Operation, Outcome};
use crate::planted::{ALL, plant};
use crate::report::Part;
use crate::search::Why;
use crate::types::{Counter, DataType, Lock, Map, Register, Set, Table};
use crate::{Limits, Report, Type, Verdict, check};

fn judge(text: &str) -> Result<Report, String> {
    check(text.as_bytes(), None, Limits::default(), &mut |_| true).map_err(|e| e.to_string())
}

fn word(text: &str) -> String {
    judge(text).map_or_else(|error| error, |report| report.word().to_owned())
}

fn need(holds: bool, words: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(words()) }
}

/// Every file in `histories/` has the verdict of its folder, and a refutation is itself refuted.
fn files() -> Result<(), String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    let mut count = 0;
    for (folder, expected) in [("good", "explained"), ("bad", "refuted")] {
        for entry in std::fs::read_dir(home.join(folder)).map_err(|e| e.to_string())? {
            let path = entry.map_err(|e| e.to_string())?.path();
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
            let report = judge(&text)?;
            need(report.word() == expected, || format!("{}: {}", path.display(), report.word()))?;
            shortened(&text, &report)?;
            count += 1;
        }
    }
    need(count > 25, || format!("only {count} files"))
}

/// The lines of a refutation, alone, are refuted, and one of them cannot be explained.
fn shortened(text: &str, report: &Report) -> Result<(), String> {
    let Verdict::Refuted(refutation) = &report.verdict else { return Ok(()) };
    let lines: Vec<&str> = text.lines().collect();
    let head: Value = serde_json::from_str(lines[0]).map_err(|e| e.to_string())?;
    let initial = if refutation.initial { "empty" } else { "unknown" };
    let head = json!({"type": head["type"], "initial": initial}).to_string();
    let shown = refutation.operations.iter().map(|shown| lines[shown.line - 1]);
    let short = std::iter::once(head.as_str()).chain(shown).collect::<Vec<_>>().join("\n");
    need(word(&short) == "refuted", || {
        format!("the short history is {}:\n{short}\nof\n{text}", word(&short))
    })?;
    let stuck = refutation.operations.iter().filter(|shown| shown.part == Part::CannotBeExplained).count();
    need(stuck == 1, || format!("{stuck} operations are marked:\n{}", report.to_text()))
}

fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        operations: 150,
        keys: 1 + seed % 4,
        clients: 2 + seed % 5,
        unknown: [0, 60, 200][(seed % 3) as usize],
        transactions: [0, 20][(seed / 3 % 2) as usize],
    }
}

fn generated_is_explained(seed: u64) -> Result<(), String> {
    let text = generate::text("table", &generate::explained(plan(seed)));
    let report = judge(&text)?;
    need(report.word() == "explained", || format!("seed {seed}: {}", report.to_text()))
}

/// What turns an explained history into one that is not. Returns false if the history has no place for it.
type Mutation = fn(&mut Vec<Made>, &mut Random) -> bool;
const MUTATIONS: [(&str, Mutation); 3] = [
    ("stale read", generate::stale_read),
    ("lost update", generate::lost_update),
    ("invented value", generate::invented),
];

fn mutated_is_refuted(seed: u64) -> Result<(), String> {
    for (name, mutation) in MUTATIONS {
        let mut made = generate::explained(plan(seed));
        let mut random = Random(seed);
        if !mutation(&mut made, &mut random) {
            continue;
        }
        let text = generate::text("table", &made);
        let report = judge(&text)?;
        need(report.word() == "refuted", || format!("seed {seed}, {name}: {}", report.to_text()))?;
        shortened(&text, &report).map_err(|words| format!("seed {seed}, {name}: {words}"))?;
        let Verdict::Refuted(refutation) = &report.verdict else { continue };
        // The rest of the history is explained, so the operation that was added is part of every refutation.
        let added = made.len() + 1;
        need(
            refutation.operations.iter().any(|shown| shown.line == added && shown.part != Part::Context),
            || format!("seed {seed}, {name}: line {added} is not among\n{}", report.to_text()),
        )?;
    }
    Ok(())
}

/// A small history of any type with random answers, most of which have no order.
fn small(kind: Type, random: &mut Random) -> Vec<Made> {
    let count = 2 + random.below(4) as usize;
    (0..count)
        .map(|n| {
            let value = 1 + random.below(2) as i64;
            let other = 1 + random.below(2) as i64;
            let coin = random.below(2) == 0;
            let key = ["a", "b"][random.below(2) as usize];
            let row = if coin { json!({"value": other}) } else { Value::Null };
            let (request, result) = match (kind, random.below(4)) {
                (Type::Register, 0 | 1) => {
                    (json!("read"), json!({"value": if coin { json!(value) } else { Value::Null }}))
                }
                (Type::Register, 2) => (json!({"write": {"value": value}}), json!("done")),
                (Type::Register, _) => (
                    json!({"write_if": {"expect": value, "value": other}}),
                    json!(if coin { "done" } else { "conflict" }),
                ),
                (Type::Counter, 0 | 1) => {
                    (json!({"add": {"by": value}}), json!({"value": value + other - 1}))
                }
                (Type::Counter, 2) => (json!({"add": {"by": value}}), json!("done")),
                (Type::Counter, _) => (json!("read"), json!({"value": value})),
                (Type::Set, 0) => (json!({"add": {"element": value}}), json!({"changed": coin})),
                (Type::Set, 1) => (json!({"remove": {"element": value}}), json!({"changed": coin})),
                (Type::Set, 2) => (json!({"contains": {"element": value}}), json!({"contains": coin})),
                (Type::Set, _) => {
                    (json!("list"), json!({"elements": if coin { json!([value]) } else { json!([]) }}))
                }
                (Type::Lock, 0 | 1) => {
                    (json!("acquire"), if coin { json!({"fence": value}) } else { json!("held") })
                }
                (Type::Lock, 2) => {
                    (json!({"release": {"fence": value}}), json!(if coin { "done" } else { "not_held" }))
                }
                (Type::Lock, _) => (json!({"holds": {"fence": value}}), json!({"holds": coin})),
                (Type::Map, 0 | 1) => (
                    json!({"get": {"key": key}}),
                    if coin { json!({"row": {"value": value, "version": other}}) } else { json!("absent") },
                ),
                (Type::Map, 2) => (
                    json!({"put": {"key": key, "value": value, "expect": {"version": other}}}),
                    if coin { json!({"written": value}) } else { json!("conflict") },
                ),
                (Type::Map, _) => (json!({"put": {"key": key, "value": value}}), json!({"written": other})),
                (Type::Table, 0 | 1) => (
                    json!([{"get": {"key": "a"}}, {"get": {"key": "b"}}]),
                    json!({"done": {"read": [row, Value::Null]}}),
                ),
                (Type::Table, 2) => (
                    json!([{"get": {"key": "a"}}, {"put": {"key": "b", "value": value, "expect": "absent"}}]),
                    if coin { json!({"done": {"read": [row]}}) } else { json!("conflict") },
                ),
                (Type::Table, _) => (
                    json!([{"put": {"key": key, "value": value}}, {"delete": {"key": "b"}}]),
                    json!({"done": {}}),
                ),
            };
            let call = random.below(12) as i64;
            let unknown = random.below(4) == 0;
            Made {
                client: n as u64,
                call,
                returned: call + random.below(8) as i64,
                result: (!unknown).then_some(result),
                request,
            }
        })
        .collect()
}

/// Tries every order.
fn any_order<T: DataType>(
    operations: &[Operation<T>],
    keys: &[Vec<u32>],
    store: &mut Store<T::Cell>,
    placed: u32,
) -> bool {
    let left = |n: usize| placed & (1 << n) == 0;
    let must = |n: usize| left(n) && operations[n].outcome == Outcome::Yes;
    if !(0..operations.len()).any(must) {
        return true;
    }
    (0..operations.len()).filter(|n| left(*n)).any(|n| {
        let operation = &operations[n];
        let too_early = (0..operations.len())
            .any(|m| m != n && must(m) && operations[m].returned.unwrap() < operation.call);
        let mark = store.mark();
        let fits =
            !too_early && T::step(&operation.request, operation.answer.as_ref(), &mut store.cells(&keys[n]));
        let found = fits && any_order(operations, keys, store, placed | (1 << n));
        store.back(mark);
        found
    })
}

fn by_force<T: DataType>(text: &str) -> bool {
    let history = history::open(text.as_bytes(), None).unwrap().history::<T>().unwrap();
    let names: Vec<Vec<&str>> = history.operations.iter().map(|o| o.keys()).collect();
    let mut all: Vec<&str> = names.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let number = |name: &&str| all.binary_search(name).unwrap() as u32;
    let keys: Vec<Vec<u32>> = names.iter().map(|names| names.iter().map(number).collect()).collect();
    any_order(&history.operations, &keys, &mut Store::new(all.len(), T::empty()), 0)
}

/// The checker agrees with the search that tries every order.
fn small_is_as_by_force(seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    for kind in Type::ALL {
        let text = generate::text(kind.name(), &small(kind, &mut random));
        let expected = match kind {
            Type::Register => by_force::<Register>(&text),
            Type::Set => by_force::<Set>(&text),
            Type::Counter => by_force::<Counter>(&text),
            Type::Map => by_force::<Map>(&text),
            Type::Lock => by_force::<Lock>(&text),
            Type::Table => by_force::<Table>(&text),
        };
        let report = judge(&text)?;
        let expected = if expected { "explained" } else { "refuted" };
        need(report.word() == expected, || {
            format!("seed {seed}: {} is not {expected}:\n{text}", report.word())
        })?;
        shortened(&text, &report)?;
    }
    Ok(())
}

/// A limit gives no wrong answer.
fn limits() -> Result<(), String> {
    let text = generate::text("table", &generate::explained(plan(2)));
    let limited = |limits: Limits, watch: &mut dyn FnMut(crate::Progress) -> bool| {
        check(text.as_bytes(), None, limits, watch).map(|r| r.verdict).map_err(|e| e.to_string())
    };
    let is = |verdict: Verdict, why: Why| {
        need(matches!(verdict, Verdict::NotDecided(w) if w == why), || format!("{verdict:?} is not {why:?}"))
    };
    is(limited(Limits { steps: 10, ..Limits::default() }, &mut |_| true)?, Why::Steps)?;
    is(limited(Limits { memory_bytes: 10, ..Limits::default() }, &mut |_| true)?, Why::Memory)?;
    is(limited(Limits::default(), &mut |_| false)?, Why::Stopped)
}

/// A long history with one stale read is refuted by the few operations that show it.
fn long_is_shortened() -> Result<(), String> {
    let mut made = generate::explained(Plan {
        seed: 5,
        operations: 3_000,
        keys: 3,
        clients: 6,
        unknown: 5,
        transactions: 10,
    });
    let mut random = Random(9);
    need(generate::stale_read(&mut made, &mut random), || "no place for a stale read".to_owned())?;
    let text = generate::text("table", &made);
    let report = judge(&text)?;
    let Verdict::Refuted(refutation) = &report.verdict else { return Err(report.to_text()) };
    shortened(&text, &report)?;
    need(refutation.operations.len() <= 12, || report.to_text())
}

fn suite(seeds: u64) -> Result<(), String> {
    files()?;
    limits()?;
    for seed in 0..seeds {
        small_is_as_by_force(seed)?;
    }
    for seed in 0..seeds / 4 {
        generated_is_explained(seed)?;
        mutated_is_refuted(seed)?;
    }
    long_is_shortened()
}

#[test]
fn the_suite_passes() {
    suite(100).unwrap();
}

#[test]
fn every_planted_bug_is_caught() {
    let missed: Vec<_> = ALL
        .into_iter()
        .filter(|bug| {
            plant(Some(*bug));
            let caught = suite(60);
            plant(None);
            caught.is_ok()
        })
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_sequential_run_with_random_intervals_is_explained(seed: u64) {
        prop_assert_eq!(generated_is_explained(seed), Ok(()));
    }

    #[test]
    fn a_mutation_of_it_is_refuted(seed: u64) {
        prop_assert_eq!(mutated_is_refuted(seed), Ok(()));
    }

    #[test]
    fn small_histories_have_the_verdict_of_a_search_by_force(seed: u64) {
        prop_assert_eq!(small_is_as_by_force(seed), Ok(()));
    }
}

#[test]
fn many_operations_are_checked_in_seconds() {
    let operations =
        std::env::var("ATOLL_CHECK_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for (keys, transactions) in [(10, 0), (10, 20), (100, 20)] {
        let plan = Plan { seed: 1, operations, keys, clients: 16, unknown: 2, transactions };
        let text = generate::text("table", &generate::explained(plan));
        let began = Instant::now();
        let report = judge(&text).unwrap();
        let took = began.elapsed();
        println!("{keys} keys, {transactions} % transactions: {took:.2?}: {}", report.to_text());
        assert_eq!(report.word(), "explained", "{}", report.to_text());
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

#[test]
fn what_is_no_history_is_refused_with_its_line_and_what_is_allowed() {
    let head = r#"{"type": "map"}"#;
    let line = |rest: &str| format!("{head}\n\n{{\"client\": 1, \"call\": 5, {rest}}}");
    let get = r#""outcome": "yes", "do": {"get": {"key": "a"}}"#;
    for (text, words) in [
        (String::new(), &["no operation", "like {"][..]),
        (head.to_owned(), &["no operation"]),
        ("{".to_owned(), &["line 1", "column"]),
        (r#"{"type": "mop"}"#.to_owned(), &["line 1", "\"mop\"", "register, set, counter, map, lock, table"]),
        (r#"{"type": "map", "initial": "full"}"#.to_owned(), &["line 1", "full", "empty", "unknown"]),
        (line("\"return\": 7"), &["line 3", "outcome"]),
        (line(&format!("{get}, \"return\": 7")), &["line 3", "needs a \"result\""]),
        (line(&format!("{get}, \"result\": \"absent\"")), &["line 3", "\"return\""]),
        (line(&format!("{get}, \"return\": 4, \"result\": \"absent\"")), &["line 3", "before it was called"]),
        (line(&format!("{get}, \"return\": 7, \"result\": \"done\"")), &["line 3", "allowed", "\"absent\""]),
        (line(&format!("{get}, \"return\": 7, \"result\": \"gone\"")), &["line 3", "gone", "`conflict`"]),
        (line(&format!("{get}, \"return\": 7, \"extra\": 1")), &["line 3", "extra", "`client`"]),
        (
            line(&format!("{get}, \"return\": 7, \"object\": \"x\", \"result\": \"absent\"")),
            &["line 3", "object"],
        ),
        (line(r#""outcome": "yes", "do": {"pot": {"key": "a"}}"#), &["line 3", "pot", "`put`"]),
        (line(r#""outcome": "maybe", "do": {"get": {"key": "a"}}"#), &["line 3", "maybe", "`unknown`"]),
        (
            line(r#""outcome": "unknown", "do": {"get": {"key": "a"}}, "result": "absent""#),
            &["line 3", "outcome is \"yes\""],
        ),
        (
            "{\"type\": \"table\"}\n{\"client\": 1, \"call\": 1, \"outcome\": \"no\", \"do\": []}".to_owned(),
            &["line 2", "step"],
        ),
        (format!("{head}\n{}", " ".repeat((1 << 20) + 1)), &["line 2", "bytes"]),
    ] {
        let error = judge(&text).expect_err(&text);
        for word in words {
            assert!(error.contains(word), "{error:?} does not say {word:?}");
        }
    }
    let one =
        r#"{"client": 1, "call": 1, "return": 2, "outcome": "yes", "do": "read", "result": {"value": null}}"#;
    let asked = |text: &str, kind| {
        check(text.as_bytes(), kind, Limits::default(), &mut |_| true).map_err(|e| e.to_string())
    };
    assert!(asked(one, None).unwrap_err().contains("--type"));
    assert_eq!(asked(one, Some(Type::Register)).unwrap().word(), "explained");
    assert!(asked(head, Some(Type::Register)).unwrap_err().contains("map"));
}

#[test]
fn a_refutation_is_a_table_that_a_person_can_read() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories/bad/stale_read.jsonl");
    let report = judge(&std::fs::read_to_string(home).unwrap()).unwrap();
    let text = report.to_text();
    for words in
        ["refuted", "put a = 1", "put a = 2", "get a", "cannot be explained", "lines of the history: 2, 3, 4"]
    {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    let json = report.to_json();
    assert_eq!((&json["verdict"], json["refuting"].as_array().unwrap().len()), (&json!("refuted"), 3));
    assert_eq!(json["refuting"][2]["part"], "cannot be explained");
}

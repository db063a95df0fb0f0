//! The bundled histories, good and bad, get the verdicts that their first lines name. Files that are not histories are refused with a
//! readable error.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use atoll_judge::history::{History, HistoryError};
use atoll_judge::verdict::{Verdict, judge};

#[test]
fn bundled_histories_are_judged_as_they_are() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../drills/histories");
    let mut judged = 0;
    for folder in ["good", "bad"] {
        for entry in std::fs::read_dir(home.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let head: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            let j = judge(&History::parse(&text).unwrap());
            let got = [j.linearizable.to_string(), j.session.to_string()];
            let expected = ["linearizable", "session"].map(|q| head["expected"][q].as_str().unwrap());
            assert_eq!(got, expected, "{}: {}", path.display(), j.why);
            assert_eq!(j.why.is_empty(), folder == "good", "{}", path.display());
            judged += 1;
        }
    }
    assert!(judged >= 20, "{judged} histories");
}

const HEAD: &str = r#"{"kind": "table", "keys": ["a"], "initial": [null]}"#;

#[test]
fn what_is_no_history_is_refused_in_words() {
    let refused = |text: &str| History::parse(text).unwrap_err().to_string();
    assert!(matches!(History::parse("\n"), Err(HistoryError::Empty)));
    assert!(refused(r#"{"kind": "table", "keys": ["a"], "initial": []}"#).contains("line 1"));
    let with = |call: i64, returned: &str, steps: &str, result: &str| {
        format!(
            r#"{HEAD}
{{"client": 0, "session": 0, "call": {call}, "return": {returned}, "do": {steps}, "result": {result}}}"#
        )
    };
    let done = r#"{"ok": {"outs": [null], "stamp": null}}"#;
    assert!(History::parse(&with(0, "1", r#"[{"get": 0}]"#, done)).is_ok());
    assert!(refused(&with(0, "1", r#"[{"get": 1}]"#, done)).contains("does not name"));
    assert!(refused(&with(2, "1", r#"[{"get": 0}]"#, done)).contains("before it was called"));
    assert!(refused(&with(0, "null", r#"[{"get": 0}]"#, done)).contains("never returned"));
    assert!(refused(&with(0, "1", r#"[{"get": 0}, "list"]"#, done)).contains("outs"));
    assert!(refused(&with(0, "1", r#"[{"guess": 0}]"#, done)).contains("line 2"));
}

/// Concurrent writes of one key without answers, and reads of some of their values.
#[test]
fn many_writes_of_unknown_outcome_are_judged_in_reasonable_time() {
    let mut lines = vec![HEAD.to_owned()];
    for n in 0..12 {
        lines.push(format!(
            r#"{{"client": {n}, "session": {n}, "call": {n}, "return": null, "do": [{{"put": [0, {n}, "any", null]}}], "result": null}}"#
        ));
    }
    let read = |n: i64, value: i64| {
        format!(
            r#"{{"client": 20, "session": 20, "call": {n}, "return": {n}, "do": [{{"get": 0}}], "result": {{"ok": {{"outs": [{{"row": [{value}, {value}, 0]}}], "stamp": null}}}}}}"#
        )
    };
    for (n, value) in [(100, 4), (101, 9), (102, 0)] {
        lines.push(read(n, value));
    }
    let j = judge(&History::parse(&lines.join("\n")).unwrap());
    assert_eq!(j.linearizable, Verdict::Ok);
    // No write wrote this value a second time.
    lines.push(read(103, 4));
    let j = judge(&History::parse(&lines.join("\n")).unwrap());
    assert_eq!(j.linearizable, Verdict::Illegal);
}

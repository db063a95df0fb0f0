//! Property tests: arbitrary values, commands and bytes.

use std::collections::BTreeMap;

use crate::common::{self, Db, fish, index, key, op, put_if};
use atoll_contract::conformance::application::conforms;
use atoll_core::codec::Decode;
use atoll_core::{Incarnation, NodeId};
use atoll_db::{ApplyAt, Direction, LogPos, Proposer};
use atoll_tables::{
    Action, Change, Command, Done, Expect, Op, Query, Rejection, Reply, Schema, Tables, Value,
    key as encoding, row::StoredRow,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int64),
        any::<f64>().prop_filter_map("NaN", |f| Value::Float64(f).canonical()),
        // Only a few different bytes, including those that are escaped.
        vec(prop_oneof![Just('\0'), Just('\u{1}'), Just('a'), Just('\u{10ffff}')], 0..5)
            .prop_map(|chars| Value::Text(chars.into_iter().collect())),
        vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..5)
            .prop_map(|b| Value::Bytes(b.into())),
        any::<i64>().prop_map(Value::Timestamp),
    ]
}

proptest! {
    #[test]
    fn encoded_keys_order_as_their_values(a in vec(value(), 1..4), b in vec(value(), 1..4)) {
        let n = a.len().min(b.len());
        let (x, y) = (encoding::encoded(&a[..n]), encoding::encoded(&b[..n]));
        prop_assert_eq!(x.cmp(&y), a[..n].cmp(&b[..n]));
        prop_assert_eq!(encoding::decode_all(&x, n).unwrap(), &a[..n]);
        // No value is a prefix of another, so that a bound on the leading columns is exact.
        prop_assert!(x == y || !y.starts_with(&x));
    }

    #[test]
    fn decoders_take_any_bytes(bytes in vec(any::<u8>(), 0..64), count in 0usize..4) {
        let _ = encoding::decode_all(&bytes, count);
        let bytes = Bytes::from(bytes);
        let _ = Command::from_bytes(bytes.clone());
        let _ = Schema::from_bytes(bytes.clone());
        let _ = StoredRow::from_bytes(bytes.clone());
        let _ = Done::from_bytes(bytes.clone());
        let _ = Reply::from_bytes(bytes.clone());
        let _ = Rejection::from_bytes(bytes);
    }

    #[test]
    fn any_command_of_any_bytes_is_refused_and_not_poison(bytes in vec(any::<u8>(), 0..64)) {
        let db = Db::new();
        db.create(fish());
        let before = db.everything();
        if db.raw(bytes.into()).is_err() {
            prop_assert_eq!(db.everything(), before);
        }
        prop_assert!(db.engine.halted().is_none());
    }
}

/// A step of a test. There are few rows and tags, so that steps often concern the same ones.
#[derive(Clone, Debug)]
enum Step {
    Put { n: i64, colour: Value, size: i64, tag: Option<u8>, expect: u8 },
    Delete { n: i64 },
    Upkeep,
    AddIndex,
    DropIndex,
}

fn step() -> impl Strategy<Value = Step> {
    let colour = prop_oneof![Just(Value::Null), Just(common::text("red")), Just(common::text("grey"))];
    prop_oneof![
        8 => (0i64..12, colour, 0i64..4, proptest::option::of(0u8..8), 0u8..4)
            .prop_map(|(n, colour, size, tag, expect)| Step::Put { n, colour, size, tag, expect }),
        2 => (0i64..12).prop_map(|n| Step::Delete { n }),
        2 => Just(Step::Upkeep),
        1 => Just(Step::AddIndex),
        1 => Just(Step::DropIndex),
    ]
}

type Model = BTreeMap<i64, [Value; 3]>;

fn apply(db: &Db, fish: &Schema, model: &mut Model, ops: &[Step]) {
    let mut changed = model.clone();
    let mut allowed = true;
    let mut transaction: Vec<Op> = Vec::new();
    for one in ops {
        match one {
            Step::Put { n, colour, size, tag, expect } => {
                let tag = tag.map_or(Value::Null, |t| Value::Text(t.to_string()));
                let row = [colour.clone(), Value::Int64(*size), tag.clone()];
                let there = changed.contains_key(n);
                let (expect, holds) = match expect {
                    0 => (Expect::Absent {}, !there),
                    1 => (Expect::Present {}, there),
                    _ => (Expect::Any {}, true),
                };
                let taken = !tag.is_null() && changed.iter().any(|(m, other)| m != n && other[2] == tag);
                allowed &= holds && !taken;
                changed.insert(*n, row.clone());
                transaction.push(put_if(fish, expect, "cod", *n, row));
            }
            Step::Delete { n } => {
                changed.remove(n);
                transaction.push(op(fish, "cod", *n, Action::Delete { expect: Expect::Any {} }));
            }
            Step::Upkeep => {
                db.steps(3);
            }
            Step::AddIndex => {
                let _ =
                    db.change("fish", Change::AddIndex { index: index("later", &["size", "tag"], false) });
            }
            Step::DropIndex => {
                let _ = db.change("fish", Change::DropIndex { name: "later".into() });
            }
        }
    }
    let before = db.everything();
    match db.transact(transaction) {
        Ok(_) => {
            assert!(allowed, "it should have been rejected");
            *model = changed;
        }
        Err(rejection) => {
            assert!(!allowed, "{}", rejection.message);
            assert_eq!(db.everything(), before, "a rejected transaction changes nothing");
        }
    }
}

fn compare(db: &Db, model: &Model) {
    let row =
        |(n, rest): (&i64, &[Value; 3])| key("cod", *n).into_iter().chain(rest.clone()).collect::<Vec<_>>();
    let expected: Vec<Vec<Value>> = model.iter().map(row).collect();
    let rows = |index: Option<&str>, direction| -> Vec<Vec<Value>> {
        let query = Query { index: index.map(str::to_owned), direction, ..Query::default() };
        db.rows("fish", &query).into_iter().map(|r| r.values).collect()
    };
    assert_eq!(rows(None, Direction::Forward), expected);
    let ready =
        db.schema("fish").indices.into_iter().filter(|i| i.state == atoll_tables::IndexState::Ready {});
    for index in ready {
        let columns: Vec<usize> = match index.name.as_str() {
            "by_colour" => vec![2, 3],
            "by_tag" => vec![4],
            _ => vec![3, 4],
        };
        let mut sorted = expected.clone();
        sorted.sort_by_key(|r| (columns.iter().map(|c| r[*c].clone()).collect::<Vec<_>>(), r.clone()));
        assert_eq!(rows(Some(&index.name), Direction::Forward), sorted, "index {}", index.name);
        sorted.reverse();
        assert_eq!(rows(Some(&index.name), Direction::Backward), sorted, "index {} backward", index.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn indices_give_what_a_scan_gives(transactions in vec(vec(step(), 1..5), 1..30)) {
        let db = Db::new();
        let fish = db.create(fish());
        let mut model = Model::new();
        for ops in &transactions {
            apply(&db, &fish, &mut model, ops);
            compare(&db, &model);
        }
        while db.steps(3) > 0 {}
        compare(&db, &model);
        // The store has exactly the rows and their index entries.
        let indices = db.schema("fish").indices.len();
        let kept = db.everything();
        let count = |kind: u8| kept.iter().filter(|(key, _)| key[0] == kind).count();
        prop_assert_eq!((count(3), count(4)), (model.len(), model.len() * indices));
        // Starts of replicas and commands that are rolled back do not matter.
        let proposer = Proposer { node: NodeId(1), incarnation: Incarnation(1) };
        let at = |n| ApplyAt { position: LogPos(n), index: 0, proposer, time_ms: 0, version: 1 };
        let (commands, accepted): (Vec<_>, Vec<_>) = db.commands.take().into_iter().unzip();
        let commands: Vec<_> = (0..).map(at).zip(commands).collect();
        let replies = conforms(&Tables::default, &commands);
        prop_assert_eq!(replies.iter().map(Result::is_ok).collect::<Vec<_>>(), accepted);
    }
}

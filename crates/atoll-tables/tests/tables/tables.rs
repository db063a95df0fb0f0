//! Tests of single commands and reads.

use crate::common::{self, Db, column, fish, index, key, op, put, put_if, text};
use atoll_core::codec::{Decode, Encode};
use atoll_db::{Direction, MemoryStore};
use atoll_tables::row::StoredRow;
use atoll_tables::{
    Action, Body, Bound, CLIENT_WINDOW, Change, ColumnType, Command, Expect, IndexState, MAX_CLIENTS,
    MAX_KEY_BYTES, MAX_ROW_BYTES, Query, ReadError, RejectKind, Scan, Value, Values, pending, read,
};

const NULL: Value = Value::Null;

#[test]
fn rows_are_put_read_and_deleted_and_versions_grow() {
    let db = Db::new();
    let fish = db.create(fish());
    let done = db.transact(vec![put(&fish, "cod", 1, text("grey"), Value::Int64(40), NULL)]).unwrap();
    let row = db.get("fish", &key("cod", 1)).unwrap();
    assert_eq!(row.values, [text("cod"), Value::Int64(1), text("grey"), Value::Int64(40), NULL]);
    assert_eq!(row.version, done.version);
    db.transact(vec![op(&fish, "cod", 1, Action::Delete { expect: Expect::Any {} })]).unwrap();
    assert_eq!(db.get("fish", &key("cod", 1)), None);
    db.transact(vec![put(&fish, "cod", 1, NULL, NULL, NULL)]).unwrap();
    // Versions rise even across a delete, so a version identifies one write forever.
    assert!(db.get("fish", &key("cod", 1)).unwrap().version > done.version + 1);
}

#[test]
fn a_reply_says_under_which_schema_rows_were_read() {
    let db = Db::new();
    let fish = db.create(fish());
    db.transact(vec![put(&fish, "cod", 1, text("grey"), NULL, NULL)]).unwrap();
    let read = |n| op(&fish, "cod", n, Action::Read {});
    let body = Body::Transaction { ops: vec![read(1), put(&fish, "eel", 1, NULL, NULL, NULL)] };
    let command = Command { client: 7, seq: 1, body }.to_bytes();
    let first = db.reply(command.clone()).unwrap();
    assert_eq!(first.schemas, [(fish.table, fish.version)].into());
    db.change("fish", Change::AddColumn { column: column("smell", ColumnType::Text, true) }).unwrap();
    // A repetition has the same outcome, which is all that the state keeps.
    let again = db.reply(command).unwrap();
    assert_eq!((again.done, again.schemas.len()), (first.done, 0));
    let reply =
        |ops| db.reply(Command { client: 0, seq: 0, body: Body::Transaction { ops } }.to_bytes()).unwrap();
    assert_eq!(reply(vec![read(2), read(1)]).schemas, [(fish.table, fish.version + 1)].into());
    assert!(reply(vec![read(2)]).schemas.is_empty(), "there is no row");
}

#[test]
fn expectations_hold_or_the_whole_transaction_has_no_effect() {
    let db = Db::new();
    let fish = db.create(fish());
    let version = db.transact(vec![put(&fish, "cod", 1, text("grey"), NULL, NULL)]).unwrap().version;
    let rest = || [text("red"), NULL, NULL];
    let before = db.everything();
    let cases = [
        (Expect::Absent {}, 1, Some(version)),
        (Expect::Present {}, 2, None),
        (Expect::Version { version: version + 1 }, 1, Some(version)),
        (Expect::Version { version }, 2, None),
    ];
    for (expect, n, found) in cases {
        let ops =
            vec![put(&fish, "eel", 9, NULL, NULL, NULL), put_if(&fish, expect.clone(), "cod", n, rest())];
        let rejection = db.transact(ops).unwrap_err();
        assert_eq!((rejection.kind, rejection.op, rejection.found), (RejectKind::Conflict, Some(1), found));
        let check = op(&fish, "cod", n, Action::Check { expect });
        assert_eq!(db.transact(vec![check]).unwrap_err().kind, RejectKind::Conflict);
        assert_eq!(db.everything(), before);
    }
    let good = [(Expect::Version { version }, 1), (Expect::Absent {}, 2), (Expect::Present {}, 1)];
    for (expect, n) in good {
        db.transact(vec![put_if(&fish, expect, "cod", n, rest())]).unwrap();
    }
}

#[test]
fn a_transaction_reads_what_it_wrote_and_merges() {
    let db = Db::new();
    let fish = db.create(fish());
    let colour = fish.column("colour").unwrap().id;
    let read = || op(&fish, "cod", 1, Action::Read {});
    let values = Values::from([(colour, text("red"))]);
    let merge = Action::Put { expect: Expect::Any {}, values, merge: true };
    let done = db
        .transact(vec![
            read(),
            put(&fish, "cod", 1, text("grey"), Value::Int64(3), NULL),
            op(&fish, "cod", 1, merge),
            read(),
        ])
        .unwrap();
    let read = done.read.unwrap();
    assert_eq!(read.len(), 4);
    assert_eq!(read[0], None);
    let row = StoredRow::from_bytes(read[3].clone().unwrap()).unwrap();
    assert_eq!(row.values.into_values().collect::<Vec<_>>(), [text("red"), Value::Int64(3)]);
}

#[test]
fn a_unique_index_refuses_a_second_row_but_not_a_second_null() {
    let db = Db::new();
    let fish = db.create(fish());
    db.transact(vec![put(&fish, "cod", 1, NULL, NULL, text("a")), put(&fish, "cod", 2, NULL, NULL, NULL)])
        .unwrap();
    db.transact(vec![put(&fish, "cod", 3, NULL, NULL, NULL)]).unwrap();
    let twice = db.transact(vec![put(&fish, "cod", 2, NULL, NULL, text("a"))]).unwrap_err();
    assert_eq!(twice.kind, RejectKind::Duplicate);
    assert!(twice.message.contains("by_tag") && twice.message.contains("tag"), "{}", twice.message);
    // A value becomes free again within the same transaction.
    let delete = op(&fish, "cod", 1, Action::Delete { expect: Expect::Present {} });
    db.transact(vec![delete, put(&fish, "cod", 2, NULL, NULL, text("a"))]).unwrap();
    assert_eq!(db.rows("fish", &Query { index: Some("by_tag".into()), ..Query::default() }).len(), 2);
}

#[test]
fn ranges_have_bounds_of_some_columns_in_both_directions() {
    let db = Db::new();
    let fish = db.create(fish());
    for (kind, n) in [("cod", 1), ("cod", 2), ("cod", 3), ("eel", -1), ("eel", 5), ("pike", 0)] {
        db.transact(vec![put(&fish, kind, n, text("grey"), Value::Int64(-n), NULL)]).unwrap();
    }
    let names = |query: &Query| -> Vec<String> {
        let name = |v: &[Value]| format!("{:?}{:?}", v[0], v[1]).replace(['"', '(', ')'], "");
        db.rows("fish", query)
            .iter()
            .map(|r| name(&r.values).replace("Text", "").replace("Int64", ""))
            .collect()
    };
    let bound = |values: Vec<Value>, exclusive| Bound { values, exclusive };
    let between = |lower, upper| Query { lower, upper, ..Query::default() };
    let cod = between(bound(vec![text("cod")], false), bound(vec![text("cod")], false));
    assert_eq!(names(&cod), ["cod1", "cod2", "cod3"]);
    assert_eq!(names(&Query { direction: Direction::Backward, ..cod.clone() }), ["cod3", "cod2", "cod1"]);
    assert_eq!(
        names(&between(bound(key("cod", 2), false), Bound::default())),
        ["cod2", "cod3", "eel-1", "eel5", "pike0"]
    );
    assert_eq!(
        names(&between(bound(key("cod", 2), true), bound(vec![text("pike")], true))),
        ["cod3", "eel-1", "eel5"]
    );
    assert_eq!(names(&between(bound(vec![text("cod")], true), bound(key("eel", -1), false))), ["eel-1"]);
    assert_eq!(names(&between(bound(vec![text("z")], false), bound(vec![text("a")], false))), [""; 0]);
    let by_size = Query {
        index: Some("by_colour".into()),
        lower: bound(vec![text("grey"), Value::Int64(-2)], false),
        ..Query::default()
    };
    assert_eq!(names(&by_size), ["cod2", "cod1", "pike0", "eel-1"]);
    let view = db.engine.view();
    let long = Query { upper: bound(vec![NULL, NULL, NULL], false), ..Query::default() };
    assert!(matches!(
        Scan::new(&view, fish.clone(), &long),
        Err(ReadError::Bound { got: 3, columns: 2, .. })
    ));
    let wrong = Query { lower: bound(vec![Value::Int64(1)], false), ..Query::default() };
    assert!(matches!(Scan::new(&view, fish, &wrong), Err(ReadError::Schema(_))));
}

#[test]
fn pages_show_one_version_and_keep_their_limits() {
    let db = Db::new();
    let fish = db.create(fish());
    for n in 0..20 {
        db.transact(vec![put(&fish, "cod", n, text(&"x".repeat(100)), NULL, NULL)]).unwrap();
    }
    let mut scan = Scan::new(&db.engine.view(), fish.clone(), &Query::default()).unwrap();
    let page = scan.page(3, usize::MAX).unwrap();
    assert_eq!((page.rows.len(), page.ended), (3, false));
    db.transact(vec![put(&fish, "cod", 5, text("new"), NULL, NULL)]).unwrap();
    db.run(Body::DropTable { name: "fish".into() }).unwrap();
    while db.steps(8) > 0 {}
    // The rows have about 120 bytes each, and the row that reaches the limit is included.
    assert_eq!(scan.page(100, 300).unwrap().rows.len(), 3);
    let page = scan.page(100, usize::MAX).unwrap();
    assert_eq!((page.rows.len(), page.ended), (14, true));
    assert!(page.rows.iter().all(|row| row.values[2] == text(&"x".repeat(100))));
}

#[test]
fn a_write_with_a_name_is_done_once() {
    let store = MemoryStore::new();
    let db = Db::over(store.clone());
    let fish = db.create(fish());
    let add = |n, seq| {
        let expect = Expect::Absent {};
        let ops =
            vec![put_if(&fish, expect, "cod", n, [NULL, NULL, NULL]), op(&fish, "cod", n, Action::Read {})];
        db.named(7, seq, Body::Transaction { ops })
    };
    let done = add(1, 1).unwrap();
    assert_eq!(add(1, 1), Ok(done.clone()), "the same answer, and not a conflict");
    // Writes may arrive out of order within the window.
    add(3, 3).unwrap();
    add(2, 2).unwrap();
    assert_eq!(add(3, 3).unwrap().version, done.version + 1);
    for seq in 4..=CLIENT_WINDOW + 1 {
        add(i64::try_from(seq).unwrap(), seq).unwrap();
    }
    assert_eq!(add(1, 1).unwrap_err().kind, RejectKind::Forgotten);
    assert_eq!(add(2, 2).unwrap().version, done.version + 2);
    assert_eq!(add(0, 0).unwrap_err().kind, RejectKind::Invalid);
    // A rejected write is not remembered, so it can be tried again later.
    assert_eq!(add(1, 40).unwrap_err().kind, RejectKind::Conflict);
    db.transact(vec![op(&fish, "cod", 1, Action::Delete { expect: Expect::Any {} })]).unwrap();
    add(1, 40).unwrap();
    db.solo.commit();
    let again = Db::over(store);
    let ops = vec![put_if(&fish, Expect::Absent {}, "cod", 1, [NULL, NULL, NULL])];
    assert!(
        again.named(7, 40, Body::Transaction { ops }).is_ok(),
        "remembered by the state, not by the process"
    );
}

#[test]
fn clients_are_forgotten_in_the_order_of_their_last_writes() {
    let db = Db::new();
    let fish = db.create(fish());
    let write = |client: u64, seq: u64| {
        let ops = vec![put(&fish, "cod", 1, NULL, NULL, NULL)];
        db.named(client, seq, Body::Transaction { ops })
    };
    for client in 1..=u64::from(MAX_CLIENTS) {
        write(client, 1).unwrap();
    }
    let first = write(1, 2).unwrap();
    let keys = db.everything().len();
    write(1_000_000, 1).unwrap();
    assert_eq!(write(1, 2), Ok(first), "it wrote later than client 2");
    // Client 2 was forgotten, so a repetition passes for its first write.
    let version = read::version(&db.engine.view()).unwrap();
    assert_eq!(write(2, 1).unwrap().version, version + 1);
    assert_eq!(write(3, CLIENT_WINDOW + 1).unwrap_err().kind, RejectKind::Forgotten);
    assert_eq!(db.everything().len(), keys, "one goes for each that comes");
}

#[test]
fn columns_come_and_go_while_rows_stay() {
    let db = Db::new();
    let before = db.create(fish());
    db.transact(vec![put(&before, "cod", 1, text("grey"), Value::Int64(4), NULL)]).unwrap();
    db.change("fish", Change::AddColumn { column: column("price", ColumnType::Float64, true) }).unwrap();
    assert_eq!(db.get("fish", &key("cod", 1)).unwrap().values[5], NULL);
    let needed = db.change("fish", Change::DropColumn { name: "size".into() }).unwrap_err();
    assert!(needed.message.contains("by_colour"), "{}", needed.message);
    db.change("fish", Change::DropIndex { name: "by_colour".into() }).unwrap();
    while db.steps(3) > 0 {}
    db.change("fish", Change::DropColumn { name: "size".into() }).unwrap();
    let row = db.get("fish", &key("cod", 1)).unwrap();
    assert_eq!(row.values, [text("cod"), Value::Int64(1), text("grey"), NULL, NULL]);
    // A command that was built for the earlier schema is refused, and the error names the reason.
    let late = db.transact(vec![put(&before, "cod", 2, NULL, Value::Int64(4), NULL)]).unwrap_err();
    assert_eq!(late.kind, RejectKind::Invalid);
    // A new column with the same name does not bring back the old values.
    db.change("fish", Change::AddColumn { column: column("size", ColumnType::Text, true) }).unwrap();
    assert_eq!(db.get("fish", &key("cod", 1)).unwrap().values[5], NULL);
    for (change, words) in [
        (Change::DropColumn { name: "kind".into() }, "primary key"),
        (Change::AddColumn { column: column("x", ColumnType::Text, false) }, "nullable"),
        (Change::AddColumn { column: column("tag", ColumnType::Text, true) }, "two columns"),
        (Change::AddIndex { index: index("by_tag", &["tag"], false) }, "two indices"),
        (Change::AddIndex { index: index("x", &["nothing"], false) }, "no column"),
        (Change::AddIndex { index: index("1x", &["tag"], false) }, "cannot be named"),
        (Change::DropIndex { name: "by_colour".into() }, "no index"),
    ] {
        let refused = db.change("fish", change).unwrap_err();
        assert_eq!(refused.kind, RejectKind::Invalid);
        assert!(refused.message.contains(words), "{}", refused.message);
    }
}

#[test]
fn an_index_is_built_while_rows_change_and_emptied_when_it_goes() {
    let db = Db::new();
    let fish = db.create(fish());
    for n in 0..50 {
        db.transact(vec![put(&fish, "cod", n, text("grey"), Value::Int64(n % 7), NULL)]).unwrap();
    }
    db.change("fish", Change::AddIndex { index: index("by_size", &["size"], false) }).unwrap();
    let query = Query { index: Some("by_size".into()), ..Query::default() };
    let view = db.engine.view();
    let early = Scan::new(&view, read::schema(&view, "fish").unwrap(), &query).unwrap_err();
    assert!(early.to_string().contains("being built"), "{early}");
    let mut n = 0;
    while db.steps(10) > 0 {
        // Write rows before and after the current position of the build.
        for at in [n, 49 - n] {
            db.transact(vec![put(&fish, "cod", at, text("red"), Value::Int64(100 + at), NULL)]).unwrap();
        }
        let delete = Action::Delete { expect: Expect::Any {} };
        db.transact(vec![
            op(&fish, "cod", 20 + n, delete),
            put(&fish, "dab", n, NULL, Value::Int64(1), NULL),
        ])
        .unwrap();
        n += 1;
    }
    assert!(n >= 5, "it took {n} steps");
    let mut expected = db.rows("fish", &Query::default());
    expected.sort_by(|a, b| (&a.values[3], &a.values).cmp(&(&b.values[3], &b.values)));
    assert_eq!(db.rows("fish", &query), expected);
    // A late step does nothing.
    let before = db.everything();
    let late = Body::Step { table: fish.table, index: 3, from: bytes::Bytes::new(), rows: 10 };
    assert!(!db.run(late).unwrap().more);
    assert_eq!(db.everything(), before);
    db.change("fish", Change::DropIndex { name: "by_size".into() }).unwrap();
    while db.steps(10) > 0 {}
    assert_eq!(db.schema("fish").indices.len(), 2);
}

#[test]
fn a_unique_index_over_equal_rows_fails_and_says_so() {
    let db = Db::new();
    let fish = db.create(fish());
    for n in 0..9 {
        db.transact(vec![put(&fish, "cod", n, NULL, Value::Int64(n % 8), NULL)]).unwrap();
    }
    db.change("fish", Change::AddIndex { index: index("one_size", &["size"], true) }).unwrap();
    while db.steps(4) > 0 {}
    let failed = db.schema("fish");
    assert!(
        matches!(&failed.index("one_size").unwrap().state, IndexState::Failed { reason } if reason.contains("size"))
    );
    // The failed index does not affect writes.
    db.transact(vec![put(&fish, "cod", 8, NULL, Value::Int64(1), NULL)]).unwrap();
    db.change("fish", Change::DropIndex { name: "one_size".into() }).unwrap();
    while db.steps(4) > 0 {}
    assert!(pending(&db.engine.view()).unwrap().is_empty());
}

#[test]
fn a_dropped_table_leaves_nothing_and_its_name_is_free() {
    let db = Db::new();
    let nothing = db.create(fish()).table;
    db.run(Body::DropTable { name: "fish".into() }).unwrap();
    while db.steps(10) > 0 {}
    let empty = db.everything().len();
    let fish = db.create(fish());
    assert!(fish.table > nothing);
    for n in 0..30 {
        db.transact(vec![put(&fish, "cod", n, text("grey"), NULL, NULL)]).unwrap();
    }
    db.run(Body::DropTable { name: "fish".into() }).unwrap();
    assert_eq!(
        db.transact(vec![op(&fish, "cod", 1, Action::Read {})]).unwrap_err().kind,
        RejectKind::NoSuchTable
    );
    assert_eq!(db.run(Body::DropTable { name: "fish".into() }).unwrap_err().kind, RejectKind::NoSuchTable);
    db.create(common::fish());
    let twice = db.run(Body::CreateTable { table: common::fish() }).unwrap_err();
    assert_eq!(twice.kind, RejectKind::TableExists);
    while db.steps(10) > 0 {}
    db.run(Body::DropTable { name: "fish".into() }).unwrap();
    while db.steps(10) > 0 {}
    assert_eq!(db.everything().len(), empty);
}

#[test]
fn values_and_keys_that_do_not_fit_are_named() {
    let db = Db::new();
    let fish = db.create(fish());
    let bad = |ops| db.transact(ops).unwrap_err();
    let before = db.everything();
    let long = "x".repeat(MAX_KEY_BYTES);
    for (op, kind, words) in [
        (put(&fish, &long, 1, NULL, NULL, NULL), RejectKind::TooLarge, "primary key"),
        (put(&fish, "cod", 1, text(&long), NULL, NULL), RejectKind::TooLarge, "by_colour"),
        (
            put(&fish, "cod", 1, Value::Int64(1), NULL, NULL),
            RejectKind::Invalid,
            "\"colour\" holds text, not int64",
        ),
        (put(&fish, "cod", 1, NULL, Value::Float64(1.0), NULL), RejectKind::Invalid, "\"size\""),
    ] {
        let refused = bad(vec![op]);
        assert_eq!(refused.kind, kind);
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    let mut short = put(&fish, "cod", 1, NULL, NULL, NULL);
    short.key.pop();
    assert!(bad(vec![short]).message.contains("kind, n"));
    db.change("fish", Change::AddColumn { column: column("blob", ColumnType::Bytes, true) }).unwrap();
    let blob = db.schema("fish").column("blob").unwrap().id;
    let values = Values::from([(blob, Value::Bytes(vec![0; MAX_ROW_BYTES].into()))]);
    let refused = bad(vec![op(&fish, "cod", 1, Action::Put { expect: Expect::Any {}, values, merge: true })]);
    assert_eq!(refused.kind, RejectKind::TooLarge);
    assert_eq!(db.everything().len(), before.len());
}

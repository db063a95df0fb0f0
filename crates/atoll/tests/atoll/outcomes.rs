//! What a verb says about work that it has done, when a local file or standard output fails afterwards.
#![cfg(target_os = "linux")] // For /dev/full, to which every write fails.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Output, Stdio};

use crate::support::{Process, atoll, free_port, ok, serve, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A node that runs, and where it listens.
struct Node {
    connect: String,
    dir: TempDir,
    _process: Process,
}

fn node() -> Node {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let process = serve(&dir.path().join("data"), port);
    Node { connect: format!("127.0.0.1:{port}"), dir, _process: process }
}

impl Node {
    /// Runs a verb whose standard output is full.
    fn to_full(&self, args: &[&str]) -> Output {
        let full = File::options().write(true).open("/dev/full").unwrap();
        atoll()
            .args(args)
            .env("ATOLL_CONNECT", &self.connect)
            .stdin(Stdio::null())
            .stdout(full)
            .output()
            .unwrap()
    }

    fn tail(&self) -> u64 {
        ok(&self.connect, &["log", "check-tail"]).trim().parse().unwrap()
    }
}

/// Returns the error that a verb has printed as JSON. The verb must have ended with this status.
#[track_caller]
fn error(out: &Output, status: i32) -> Value {
    let words = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{words}");
    serde_json::from_str::<Value>(&words).unwrap_or_else(|e| panic!("{e}: {words}"))["error"].take()
}

#[test]
fn what_is_done_is_not_denied_because_standard_output_is_full() {
    let node = node();
    let full = error(&node.to_full(&["log", "append", "--json", "x"]), 4);
    assert_eq!((&full["happened"], &full["reason"]), (&json!("yes"), &json!("local")));
    assert_eq!(full["result"], json!({"log": "main", "position": 0}));
    let text = node.to_full(&["log", "append", "y"]);
    let words = String::from_utf8_lossy(&text.stderr).into_owned();
    assert_eq!(text.status.code(), Some(4), "{words}");
    assert!(words.contains("happened, but: standard output") && words.contains("result: 1\n"), "{words}");
    assert_eq!(node.tail(), 2);

    let columns = ["--column", "k:int64", "--column", "v:text?", "--key", "k"];
    let create = [&["table", "create", "t", "--json"][..], &columns].concat();
    assert_eq!(error(&node.to_full(&create), 4)["result"]["table"], "t");
    let put = ["table", "put", "t", r#"{"k":1,"v":"a"}"#, "--if-absent", "--json"];
    let version = error(&node.to_full(&put), 4)["result"]["version"].clone();
    let write = r#"[{"read":"t","key":[1]},{"put":"t","row":{"k":2}}]"#;
    let written = error(&node.to_full(&["table", "txn", write, "--json"]), 4);
    assert_eq!(written["result"]["read"][0], json!({"row": {"k": 1, "v": "a"}, "version": version}));
    let extended = error(&node.to_full(&["chain", "extend", "--json"]), 4);
    assert_eq!(extended["result"]["segment_count"], 2);

    // A verb that only reads has done nothing.
    for read in [
        &["log", "--json", "check-tail"][..],
        &["table", "--json", "get", "t", "1"],
        &["table", "--json", "txn", r#"[{"read":"t","key":[1]}]"#],
    ] {
        assert_eq!(error(&node.to_full(read), 1)["happened"], "no", "{read:?}");
    }
}

#[test]
fn lines_that_were_appended_are_counted_although_a_file_fails() {
    let node = node();
    let lines = node.dir.path().join("lines");
    std::fs::write(&lines, "line\n".repeat(3000)).unwrap();
    let (lines, append) = (lines.to_str().unwrap(), ["log", "append", "--json", "--lines"]);
    let full = error(&node.to_full(&[&append[..], &[lines]].concat()), 4);
    assert_eq!((&full["happened"], &full["result"]["records"]), (&json!("yes"), &json!(3000)));
    assert_eq!(node.tail(), 3000);

    // The timeline fails after the first records, while others are in flight.
    let timed = [&append[..], &[lines, "--timeline", "/dev/full"]].concat();
    let failed = error(&atoll().args(timed).env("ATOLL_CONNECT", &node.connect).output().unwrap(), 4);
    assert_eq!(failed["happened"], "yes");
    assert!(failed["message"].as_str().unwrap().contains("/dev/full"), "{failed}");
    let appended = node.tail() - 3000;
    assert!((1..3000).contains(&appended), "{appended}");
    assert_eq!(failed["result"]["records"], appended);

    // A file that does not open, or cannot be read, before any line: nothing happened.
    for bad in ["/nowhere", "/"] {
        let none = [&append[..], &[bad]].concat();
        let none = error(&atoll().args(none).env("ATOLL_CONNECT", &node.connect).output().unwrap(), 1);
        assert_eq!(none["happened"], "no");
    }
}

#[test]
fn lines_that_were_appended_are_counted_although_the_input_fails() {
    let node = node();
    ok(&node.connect, &["log", "create"]);
    let mut ends = broken_input();
    let mut append = atoll();
    append.args(["log", "append", "--json", "--lines", "-"]).env("ATOLL_CONNECT", &node.connect);
    let mut append = append.stdin(ends.1).stderr(Stdio::piped()).spawn().unwrap();
    ends.0.write_all(b"one\ntwo\n").unwrap();
    wait_for("both lines are in the log", || (node.tail() == 2).then_some(()));
    drop(ends.0);
    let mut words = String::new();
    append.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    let status = append.wait().unwrap();
    let out = Output { status, stdout: Vec::new(), stderr: words.into_bytes() };
    let failed = error(&out, 4);
    assert_eq!((&failed["happened"], &failed["result"]["records"]), (&json!("yes"), &json!(2)), "{failed}");
}

/// Returns a connection, and its other end as an input. When the first end is dropped, the input fails, because the first end has not read
/// everything: the connection is reset.
fn broken_input() -> (TcpStream, Stdio) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut input = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (end, _) = listener.accept().unwrap();
    input.write_all(b"never read\n").unwrap();
    // Wait until they have arrived.
    assert!(end.peek(&mut [0; 1]).unwrap() > 0);
    (end, Stdio::from(OwnedFd::from(input)))
}

//! `atoll dev`: three real processes, killed and stopped.

use std::net::TcpListener;

use crate::support::{self, Dev, is_alive, ok, signal, wait_for};

#[test]
fn the_log_goes_on_when_a_node_is_killed_and_the_node_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(dir.path(), &["--nodes", "3"]);
    let connect = dev.connect();
    let lines = dir.path().join("lines");
    let text: String = (0..2_000).map(|n| format!("line {n}\n")).collect();
    std::fs::write(&lines, &text).unwrap();
    let file = lines.to_str().unwrap();
    ok(&connect, &["log", "append", "--lines", file]);

    for id in 1..=3 {
        let before = dev.pid(id).unwrap();
        signal(before, "KILL");
        ok(&connect, &["log", "append", "--lines", file]);
        wait_for("a killed node is started again, and dev.json says so", || {
            dev.pid(id).filter(|now| *now != before)
        });
    }
    let expected = text.repeat(4);
    for id in ["1", "2", "3"] {
        wait_for("every node reads all of it", || {
            let out = support::verb(&connect, &["log", "read", "--raw", "--node", id]);
            out.status.success().then(|| assert_eq!(String::from_utf8(out.stdout).unwrap(), expected))
        });
    }

    let pids: Vec<u32> = (1..=3).map(|id| dev.pid(id).unwrap()).collect();
    assert!(dev.end("TERM").success());
    assert!(!dev.has_state(), "no dev.json without a cluster");
    assert!(!pids.iter().any(|p| is_alive(*p)), "a child outlived the supervisor");
}

#[test]
fn children_end_with_a_supervisor_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(dir.path(), &["--nodes", "2", "--no-restart"]);
    let (connect, pids) = (dev.connect(), [dev.pid(1).unwrap(), dev.pid(2).unwrap()]);
    dev.end("KILL");
    wait_for("the children end by themselves", || (!pids.iter().any(|p| is_alive(*p))).then_some(()));
    for door in connect.split(',') {
        TcpListener::bind(door).unwrap();
    }
    // The remains of the first run do not prevent the second.
    let mut dev = Dev::start(dir.path(), &["--no-restart"]);
    assert_eq!(dev.connect(), connect);
    let pid = dev.pid(2).unwrap();
    signal(pid, "KILL");
    wait_for("a node that is left dead has no pid", || dev.pid(2).is_none().then_some(()));
    assert!(dev.end("INT").success());
}

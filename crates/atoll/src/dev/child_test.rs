//! The life of a child, with a shell script in place of the node.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::child::{Event, How, Life, Stop, log_tail};
use super::plan::PlannedNode;
use crate::serve::config::{Config, Overrules};

fn life(dir: &Path, script: &str, restart: bool) -> (Life, mpsc::Receiver<Event>, watch::Sender<Stop>) {
    let exe = dir.join("node.sh");
    // Let another process write the script. Otherwise a child that another test starts meanwhile would have a copy of the open file, and a
    // file that is open for writing cannot be run.
    let write = ["-c", "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod 755 \"$0\""];
    assert!(Command::new("sh").args(write).arg(&exe).arg(script).status().unwrap().success());
    let over = Overrules { data: Some(dir.join("data")), ..Overrules::default() };
    let config = Config::without_file(&over).unwrap();
    let node = PlannedNode { id: 1, folder: dir.to_owned(), config };
    let (events, happened) = mpsc::channel(16);
    let (stop, stopping) = watch::channel(Stop::No);
    (Life { node, exe, restart, events, stop: stopping }, happened, stop)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await.unwrap() })
}

#[test]
fn a_killed_child_comes_back_at_once_and_ends_with_its_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    // Kills itself the first time, after a while; then runs until its input closes.
    let script = "test -e once || { touch once; sleep 0.3; kill -9 $$; }; echo up >> lives; cat > /dev/null; echo end >> lives";
    let script = format!("cd {} && {script}", dir.path().display());
    let (life, mut happened, stop) = life(dir.path(), &script, true);
    block_on(async {
        let run = tokio::spawn(life.run());
        assert!(matches!(happened.recv().await, Some(Event::Started { id: 1, again: false, .. })));
        match happened.recv().await {
            Some(Event::Ended { how, again_in, last_words, .. }) => {
                assert_eq!((how, again_in, last_words), (How::Killed(9), Some(Duration::ZERO), None));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(happened.recv().await, Some(Event::Started { again: true, .. })));
        while !dir.path().join("lives").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send(Stop::Now).unwrap();
        run.await.unwrap();
        assert!(happened.recv().await.is_none());
    });
    assert_eq!(std::fs::read_to_string(dir.path().join("lives")).unwrap(), "up\nend\n");
}

#[test]
fn a_child_that_does_not_come_up_waits_longer_each_time_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (life, mut happened, stop) = life(dir.path(), "echo no reef here >&2; exit 3", true);
    let waits = block_on(async {
        let run = tokio::spawn(life.run());
        let mut waits = Vec::new();
        while waits.len() < 3 {
            if let Some(Event::Ended { how, again_in, last_words, .. }) = happened.recv().await {
                assert!(matches!(&how, How::ByItself(w) if w.contains('3')), "{how}");
                assert_eq!(last_words.as_deref(), Some("no reef here"));
                waits.extend(again_in);
            }
        }
        stop.send(Stop::Now).unwrap();
        run.await.unwrap();
        waits
    });
    assert_eq!(waits, [100, 200, 400].map(Duration::from_millis));
}

#[test]
fn without_restart_it_stays_dead() {
    let dir = tempfile::tempdir().unwrap();
    let (life, mut happened, _stop) = life(dir.path(), "exit 0", false);
    block_on(async {
        life.run().await;
        assert!(matches!(happened.recv().await, Some(Event::Started { .. })));
        assert!(matches!(
            happened.recv().await,
            Some(Event::Ended { how: How::Stopped, again_in: None, .. })
        ));
        assert!(happened.recv().await.is_none());
    });
}

#[test]
fn one_that_does_not_stop_is_killed_when_it_must_be() {
    let dir = tempfile::tempdir().unwrap();
    let (life, mut happened, stop) = life(dir.path(), "exec sleep 1000 < /dev/null", true);
    block_on(async {
        let run = tokio::spawn(life.run());
        assert!(matches!(happened.recv().await, Some(Event::Started { .. })));
        stop.send(Stop::Now).unwrap();
        stop.send(Stop::Kill).unwrap();
        run.await.unwrap();
    });
}

#[test]
fn the_end_of_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    assert_eq!(log_tail(&log, 3), "");
    std::fs::write(&log, "x".repeat(20_000) + "\na\nb\nc\n").unwrap();
    assert_eq!(log_tail(&log, 2), "b\nc");
}

//! File registers: semantics, and crashes at every step of a replacement.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use atoll_contract::register::MAX_VALUE_BYTES;
use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, RegisterError, Registers, Version, Written};
use atoll_file_register::{Cell, CellError, FileCell, FileRegisters, OpenError};
use bytes::Bytes;

/// Polls a future once. The futures of file registers are always ready.
fn now<T>(f: impl Future<Output = T>) -> T {
    match std::pin::pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("file I/O happens at once"),
    }
}

fn write(
    r: &FileRegisters,
    name: &str,
    expected: u64,
    value: &str,
    nonce: u128,
) -> Result<Written, RegisterError> {
    let value = Bytes::copy_from_slice(value.as_bytes());
    now(r.register(name).write_if(Version(expected), value, Nonce(nonce)))
}

#[test]
fn reads_writes_conflicts_and_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registers");
    let r = FileRegisters::open(Box::new(FileCell::new(&path))).unwrap();
    assert_eq!(now(r.register("a").read()).unwrap().version, Version(0));
    assert_eq!(write(&r, "a", 0, "one", 1), Ok(Written::Yes(Version(1))));
    assert!(
        matches!(write(&r, "a", 0, "two", 2), Ok(Written::Conflict(v)) if v.value == "one" && v.nonce == Nonce(1))
    );
    assert_eq!(write(&r, "a", 1, "two", 2), Ok(Written::Yes(Version(2))));
    // The same nonce again, after an overwrite and after a restart.
    assert_eq!(write(&r, "a", 0, "one", 1), Ok(Written::Yes(Version(1))));
    assert_eq!(write(&r, "b/1", 0, "x", 3), Ok(Written::Yes(Version(1))));
    drop(r);
    let r = FileRegisters::open(Box::new(FileCell::new(&path))).unwrap();
    assert_eq!(write(&r, "a", 0, "one", 1), Ok(Written::Yes(Version(1))));
    assert_eq!(now(r.register("a").read()).unwrap().value, "two");
    let names = |prefix| now(r.list(prefix)).unwrap().into_iter().map(|l| l.name).collect::<Vec<_>>();
    assert_eq!(names(""), ["a", "b/1"]);
    assert_eq!(names("b/"), ["b/1"]);
    let long = Bytes::from(vec![0; MAX_VALUE_BYTES + 1]);
    let refused = now(r.register("a").write_if(Version(2), long, Nonce(9)));
    assert_eq!(refused, Err(RegisterError::TooLarge(MAX_VALUE_BYTES + 1)));
    assert_eq!(write(&r, "", 0, "x", 4), Err(RegisterError::InvalidName(0)));
}

#[test]
fn a_write_that_was_forgotten_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let r = FileRegisters::open(Box::new(FileCell::new(dir.path().join("r")))).unwrap();
    for n in 0..200 {
        assert_eq!(write(&r, "a", n, "v", u128::from(n) + 1), Ok(Written::Yes(Version(n + 1))));
    }
    assert_eq!(write(&r, "a", 199, "v", 200), Ok(Written::Yes(Version(200))));
    assert!(matches!(write(&r, "a", 190, "v", 999), Ok(Written::Conflict(_))));
    assert!(matches!(write(&r, "a", 0, "v", 1), Err(RegisterError::Unknown(_))));
}

#[test]
fn damage_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registers");
    let r = FileRegisters::open(Box::new(FileCell::new(&path))).unwrap();
    write(&r, "a", 0, "one", 1).unwrap();
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        assert!(FileRegisters::open(Box::new(FileCell::new(&path))).is_err(), "flipped a bit in byte {at}");
        std::fs::write(&path, &good[..at]).unwrap();
        assert!(FileRegisters::open(Box::new(FileCell::new(&path))).is_err(), "cut at {at}");
    }
    let mut newer = good.clone();
    newer[8] = 2;
    std::fs::write(&path, &newer).unwrap();
    let opened = FileRegisters::open(Box::new(FileCell::new(&path)));
    assert!(matches!(opened, Err(OpenError::Format { found: 2, known: 1 })));
}

#[test]
fn what_a_crash_left_aside_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registers");
    let r = FileRegisters::open(Box::new(FileCell::new(&path))).unwrap();
    write(&r, "a", 0, "one", 1).unwrap();
    let full = std::fs::read(&path).unwrap();
    for n in 0..full.len() {
        std::fs::write(dir.path().join("registers.new"), &full[..n]).unwrap();
        let r = FileRegisters::open(Box::new(FileCell::new(&path))).unwrap();
        assert_eq!(now(r.register("a").read()).unwrap().value, "one");
    }
    let r = FileRegisters::open(Box::new(FileCell::new(&path))).unwrap();
    assert_eq!(write(&r, "a", 1, "two", 2), Ok(Written::Yes(Version(2))));
}

/// A cell whose replacements fail on command and leave the old or the new content. Both are allowed.
#[derive(Clone, Default)]
struct Failing {
    content: Arc<Mutex<Option<Bytes>>>,
    /// If `Some`, the next replacement fails, and the value says whether it leaves the new content.
    fail: Arc<Mutex<Option<bool>>>,
}

impl Cell for Failing {
    fn load(&self) -> Result<Option<Bytes>, CellError> {
        Ok(self.content.lock().unwrap().clone())
    }

    fn replace(&mut self, content: &[u8]) -> Result<(), CellError> {
        let fail = self.fail.lock().unwrap().take();
        if fail != Some(false) {
            *self.content.lock().unwrap() = Some(Bytes::copy_from_slice(content));
        }
        match fail {
            None => Ok(()),
            Some(_) => Err(CellError { path: "r".into(), doing: "sync", error: std::io::Error::other("no") }),
        }
    }
}

#[test]
fn after_a_failed_replacement_nothing_is_claimed() {
    for new_is_there in [false, true] {
        let cell = Failing::default();
        let r = FileRegisters::open(Box::new(cell.clone())).unwrap();
        write(&r, "a", 0, "one", 1).unwrap();
        *cell.fail.lock().unwrap() = Some(new_is_there);
        assert_eq!(write(&r, "a", 1, "two", 2), Err(RegisterError::Unknown(Unavailability::StorageFailed)));
        assert_eq!(
            now(r.register("a").read()),
            Err(RegisterError::NotWritten(Unavailability::StorageFailed))
        );
        assert_eq!(
            write(&r, "a", 1, "two", 3),
            Err(RegisterError::NotWritten(Unavailability::StorageFailed))
        );
        let r = FileRegisters::open(Box::new(cell)).unwrap();
        let there = now(r.register("a").read()).unwrap();
        assert_eq!(there.version, Version(if new_is_there { 2 } else { 1 }));
        // The writer learns the outcome by its nonce.
        assert_eq!(write(&r, "a", 1, "two", 2), Ok(Written::Yes(Version(2))));
    }
}

//! Single moves: what they refuse, and what others complete.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::register::{MAX_MOVABLE_BYTES, MAX_VALUE_BYTES, Unavailability};
use atoll_contract::{Nonce, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::NodeId;
use atoll_register_store::{HOME, MovableRegisters, MoveError, Whereabouts};
use bytes::Bytes;

use crate::cells::Memory;

const NODE: NodeId = NodeId(1);

struct Stores {
    driver: Driver,
    home: Memory,
    a: Memory,
    all: MovableRegisters,
}

impl Stores {
    fn new() -> Self {
        let mut driver = Driver::new(9);
        let env = driver.add_node(NODE, |_| {});
        let (home, a) = (Memory::default(), Memory::default());
        let at_home: Arc<dyn Registers> = Arc::new(home.of(&env));
        let elsewhere: Arc<dyn Registers> = Arc::new(a.of(&env));
        let all = MovableRegisters::new(env, at_home, [("a".to_owned(), elsewhere)].into()).unwrap();
        Stores { driver, home, a, all }
    }

    fn write(&mut self, at: u64, value: &'static [u8]) -> Result<Written, RegisterError> {
        let register = self.all.register("log");
        self.driver.block_on(NODE, async move {
            register.write_if(Version(at), Bytes::from_static(value), Nonce(u128::from(at) + 10)).await
        })
    }

    fn read(&mut self) -> Result<Versioned, RegisterError> {
        let register = self.all.register("log");
        self.driver.block_on(NODE, async move { register.read().await })
    }

    fn move_to(&mut self, to: &'static str) -> Result<(), MoveError> {
        let all = self.all.clone();
        self.driver.block_on(NODE, async move { all.move_to("log", to).await })
    }

    fn place(&mut self) -> Result<String, RegisterError> {
        let all = self.all.clone();
        self.driver.block_on(NODE, async move { all.place_of("log").await })
    }

    /// Returns the mark of the first register.
    fn mark(&mut self) -> Option<u128> {
        let all = self.all.clone();
        self.driver.block_on(NODE, async move { all.list("").await }).unwrap().remove(0).mark
    }

    /// Waits until it is known that a store answers again.
    fn settle(&mut self) {
        let env = self.driver.env(NODE);
        self.driver.block_on(NODE, async move { env.sleep(Duration::from_secs(2)).await });
    }
}

fn yes(version: u64) -> Result<Written, RegisterError> {
    Ok(Written::Yes(Version(version)))
}

#[test]
fn a_register_keeps_its_version_and_nonce_on_its_way_and_comes_back() {
    let mut stores = Stores::new();
    assert_eq!((stores.write(0, b"one"), stores.write(1, b"two")), (yes(1), yes(2)));
    let mut version = 2;
    for to in ["a", HOME, "a", "a", HOME] {
        let before = stores.read();
        assert_eq!(stores.move_to(to), Ok(()));
        assert_eq!((stores.place().as_deref(), stores.read()), (Ok(to), before));
        // The write that made this version says so when it is repeated.
        assert_eq!(stores.write(version - 1, b"again"), yes(version));
        assert_eq!(stores.write(version, b"more"), yes(version + 1));
        version += 1;
        assert_eq!(stores.write(version, b"more"), yes(version + 1));
        version += 1;
    }
    let now = Versioned { version: Version(12), value: Bytes::from_static(b"more"), nonce: Nonce(21) };
    assert_eq!(stores.read(), Ok(now.clone()));
    let register = stores.all.register("log");
    let other = async move { register.write_if(Version(11), Bytes::new(), Nonce(99)).await };
    assert_eq!(stores.driver.block_on(NODE, other), Ok(Written::Conflict(now)));
}

#[test]
fn what_happened_before_a_move_and_is_overwritten_is_unknown() {
    let mut stores = Stores::new();
    (0..3).for_each(|at| assert_eq!(stores.write(at, b"chain"), yes(at + 1)));
    assert_eq!(stores.move_to("a"), Ok(()));
    assert_eq!(stores.write(0, b"chain"), Err(RegisterError::Unknown(Unavailability::Busy)));
    assert_eq!(stores.write(2, b"chain"), yes(3));
}

#[test]
fn a_move_that_cannot_be_changes_nothing() {
    let mut stores = Stores::new();
    assert_eq!(stores.move_to("a"), Err(MoveError::NeverWritten));
    assert_eq!(stores.move_to("b"), Err(MoveError::UnknownPlace("b".to_owned())));
    assert_eq!(stores.write(0, b"chain"), yes(1));
    stores.a.set_down(true);
    assert_eq!(stores.move_to("a"), Err(MoveError::NotMoved(Unavailability::NoQuorum)));
    assert_eq!(stores.write(1, b"chain"), yes(2), "it is where it was");
    stores.a.set_down(false);
    stores.settle();
    let register = stores.all.register("log");
    let long = Bytes::from(vec![0; MAX_VALUE_BYTES]);
    let written =
        stores.driver.block_on(NODE, async move { register.write_if(Version(2), long, Nonce(1)).await });
    assert_eq!(written, yes(3));
    assert_eq!(stores.move_to("a"), Err(MoveError::TooLarge(MAX_VALUE_BYTES)));
    assert_eq!((stores.write(3, b"chain"), stores.move_to("a")), (yes(4), Ok(())));
    let register = stores.all.register("log");
    let long = Bytes::from(vec![0; MAX_MOVABLE_BYTES + 1]);
    let written =
        stores.driver.block_on(NODE, async move { register.write_if(Version(4), long, Nonce(2)).await });
    assert_eq!(written, Err(RegisterError::TooLarge(MAX_MOVABLE_BYTES + 1)));
}

#[test]
fn a_store_that_is_down_holds_only_its_own_registers_up() {
    let mut stores = Stores::new();
    assert_eq!((stores.write(0, b"chain"), stores.move_to("a")), (yes(1), Ok(())));
    let kept = stores.all.register("kept");
    stores.a.set_down(true);
    assert_eq!(stores.read(), Err(RegisterError::NotWritten(Unavailability::NoQuorum)));
    let written = stores.driver.block_on(NODE, async move {
        kept.write_if(Version(0), Bytes::from_static(b"chain"), Nonce(1)).await
    });
    assert_eq!(written, yes(1));
    let all = stores.all.clone();
    let listed = stores.driver.block_on(NODE, async move { all.list("").await }).unwrap();
    let marked: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.mark.is_some())).collect();
    assert_eq!(marked, [("kept", true), ("log", false)], "nobody knows what has changed there");
    stores.a.set_down(false);
    stores.settle();
    assert_eq!(stores.write(1, b"chain"), yes(2));
}

#[test]
fn nobody_waits_for_a_store_that_is_known_not_to_answer() {
    let mut stores = Stores::new();
    assert_eq!((stores.write(0, b"chain"), stores.move_to("a")), (yes(1), Ok(())));
    let env = stores.driver.env(NODE);
    let at = |trouble| Some(Whereabouts { place: "a".to_owned(), known: true, trouble });
    assert_eq!((stores.all.whereabouts("log"), stores.all.whereabouts("kept")), (at(None), None));
    stores.a.set_down(true);
    let silent = Err(RegisterError::NotWritten(Unavailability::NoQuorum));
    let began = env.now();
    assert_eq!(stores.read(), silent);
    let first = env.now().since(began);
    let began = env.now();
    for _ in 0..10 {
        assert_eq!(stores.read(), silent);
    }
    assert!(env.now().since(began) < first, "ten took longer than the first one: {first:?}");
    assert_eq!(stores.all.whereabouts("log"), at(Some(Unavailability::NoQuorum)));
    stores.a.set_down(false);
    stores.settle();
    assert!(stores.read().is_ok());
    assert_eq!(stores.all.whereabouts("log"), at(None));
    assert_eq!((stores.move_to(HOME), stores.all.whereabouts("log")), (Ok(()), None));
}

#[test]
fn a_register_at_an_unknown_place_is_told_by_its_name() {
    let mut stores = Stores::new();
    assert_eq!((stores.write(0, b"chain"), stores.move_to("a")), (yes(1), Ok(())));
    let env = stores.driver.env(NODE);
    let at_home: Arc<dyn Registers> = Arc::new(stores.home.of(&env));
    stores.all = MovableRegisters::new(env, at_home, [].into()).unwrap();
    assert_eq!(stores.read(), Err(RegisterError::NotWritten(Unavailability::StorageFailed)));
    let at = Whereabouts { place: "a".to_owned(), known: false, trouble: None };
    assert_eq!(stores.all.whereabouts("log"), Some(at));
}

#[test]
fn a_handle_that_knows_the_place_does_not_need_the_home() {
    let mut stores = Stores::new();
    assert_eq!((stores.write(0, b"chain"), stores.move_to("a")), (yes(1), Ok(())));
    let register = stores.all.register("log");
    let (first, second) = (register.clone(), register);
    assert!(stores.driver.block_on(NODE, async move { first.read().await }).is_ok());
    stores.home.set_down(true);
    let written = stores.driver.block_on(NODE, async move {
        second.write_if(Version(1), Bytes::from_static(b"chain"), Nonce(2)).await
    });
    assert_eq!(written, yes(2));
}

#[test]
fn a_store_that_has_lost_a_register_is_not_taken_for_one_where_it_has_not_arrived() {
    let mut stores = Stores::new();
    assert_eq!((stores.write(0, b"old"), stores.move_to("a")), (yes(1), Ok(())));
    assert_eq!(stores.write(1, b"new"), yes(2));
    stores.a.lose_everything();
    let lost = RegisterError::NotWritten(Unavailability::StorageFailed);
    assert_eq!((stores.read(), stores.write(2, b"chain")), (Err(lost.clone()), Err(lost)));
}

#[test]
fn whoever_comes_next_completes_a_move() {
    let mut stores = Stores::new();
    assert_eq!(stores.write(0, b"chain"), yes(1));
    // The move is given up after every short while; each time somebody else continues it.
    for us in (0..6000).step_by(50) {
        let all = stores.all.clone();
        let to = if us % 100 == 0 { "a" } else { HOME };
        let env = stores.driver.env(NODE);
        stores.driver.block_on(NODE, async move {
            let _ = env.within(Duration::from_micros(us), all.move_to("log", to)).await;
        });
        let read = stores.read().unwrap();
        assert_eq!(read.version.0, 1 + us / 50, "after {us} us");
        assert_eq!(stores.write(read.version.0, b"chain"), yes(read.version.0 + 1), "after {us} us");
    }
}

#[test]
fn the_mark_of_a_register_at_home_changes_with_each_write_and_move() {
    let mut stores = Stores::new();
    assert_eq!(stores.write(0, b"chain"), yes(1));
    let mut marks = vec![stores.mark()];
    for (at, to) in [(1, "a"), (2, HOME), (3, "a"), (4, HOME)] {
        assert_eq!(stores.move_to(to), Ok(()));
        let moved = stores.mark();
        assert_eq!(stores.read().map(|read| read.version), Ok(Version(at)));
        assert_eq!(stores.mark(), moved, "a read changes nothing");
        assert_eq!(stores.write(at, b"chain"), yes(at + 1));
        assert_eq!(stores.mark().is_none(), to != HOME, "elsewhere, a write would not change the mark");
        marks.extend([moved, stores.mark()].into_iter().filter(Option::is_some));
    }
    let mut different = marks.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!((different.len(), marks.len()), (5, 5), "{marks:?}");
}

//! The order of replies and events while another client writes: a read must not show a state older than an earlier event.

use std::sync::atomic::{AtomicBool, Ordering};

use super::client::Client;
use super::served::door;
use atoll_zookeeper::Options;
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::EventType;
use atoll_zookeeper::jute::reply::GetDataReply;
use atoll_zookeeper::jute::request::{AddWatchRequest, Request, SetDataRequest, WatchedRequest};

/// The time between an event and the publication of its view is short, so many rounds are needed to hit it.
const ROUNDS: usize = 20_000;

fn get(path: &str, watch: bool) -> Request<'_> {
    Request::GetData(WatchedRequest { path, watch })
}

fn set<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    Request::SetData(SetDataRequest { path, data: Some(data), version: -1 })
}

/// Runs `work` while another client writes continuously.
fn while_written(mut writer: Client, path: &str, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(writer.call(&set(path, b"x")).0, 0);
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

#[test]
fn what_is_read_after_an_event_shows_it() {
    let door = door(Options::default());
    let (mut c, other) = (Client::connect(door), Client::connect(door));
    assert_eq!(c.create("/w", b"0"), 0);
    c.call(&Request::AddWatch(AddWatchRequest { path: "/w", mode: 0 }));
    while_written(other, "/w", || {
        for _ in 0..ROUNDS {
            c.wait_event();
            c.events.clear();
            let (err, body) = c.call(&get("/w", false));
            assert_eq!(err, 0);
            let (shown, told) = (GetDataReply::parse(&body).unwrap().stat.mzxid, c.newest_event);
            assert!(shown >= told, "told of {told:#x}, then shown {shown:#x}");
        }
    });
}

#[test]
fn an_event_stands_behind_the_reply_of_the_request_that_left_its_watch() {
    let door = door(Options::default());
    let (mut c, other) = (Client::connect(door), Client::connect(door));
    assert_eq!(c.create("/w", b"0"), 0);
    while_written(other, "/w", || {
        for _ in 0..ROUNDS {
            assert_eq!(c.call(&get("/w", true)).0, 0);
            assert_eq!(c.events, [], "a client knows of no watch before it has the reply");
            c.wait_event();
            assert_eq!(
                std::mem::take(&mut c.events),
                [(EventType::NodeDataChanged.number(), "/w".to_owned())]
            );
        }
    });
}

#[test]
fn an_event_stands_behind_a_long_list_that_left_its_watch() {
    let door = door(Options::default());
    let (mut c, mut other) = (Client::connect(door), Client::connect(door));
    assert_eq!(c.create("/big", b""), 0);
    let made: Vec<i32> =
        (0..3_000).map(|n| c.ask(&super::client::create(&format!("/big/node-{n}"), b""))).collect();
    made.into_iter().for_each(|xid| assert_eq!(c.answer(xid).0, 0));
    for n in 0..50 {
        let list = c.ask(&Request::GetChildren(WatchedRequest { path: "/big", watch: true }));
        assert_eq!(other.create(&format!("/big/more-{n}"), b""), 0);
        assert_eq!(c.answer(list).0, 0);
        assert_eq!(c.events, [], "a client knows of no watch before it has the reply");
        // Unless the child existed before the watch was registered.
        assert_eq!(other.create(&format!("/big/again-{n}"), b""), 0);
        c.wait_event();
        assert_eq!(
            std::mem::take(&mut c.events),
            [(EventType::NodeChildrenChanged.number(), "/big".to_owned())]
        );
    }
}

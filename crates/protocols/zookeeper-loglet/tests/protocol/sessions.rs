//! Sessions with a server through the network: what the protocol learns when connections break.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::{loglet, register};
use atoll_zookeeper_loglet::ensemble::{Answer, Ensemble, Fault, Op, Refusal, Request};
use atoll_zookeeper_loglet::testing::remote;
use bytes::Bytes;

use crate::ensembles::{Door, Harness, Proxy, wait_for};

const SESSION: Duration = Duration::from_secs(6);

fn create(path: &str) -> Request {
    Request::Write(vec![Op::Create { path: path.to_owned(), data: Bytes::from_static(b"data") }])
}

fn set(path: &str) -> Request {
    Request::Write(vec![Op::Set { path: path.to_owned(), data: Bytes::new(), version: Some(0) }])
}

fn get(path: &str) -> Request {
    Request::Get(path.to_owned())
}

fn one(ensemble: &Arc<dyn Ensemble>, request: Request) -> Result<Answer, Fault> {
    wait_for(ensemble.send(vec![request])).pop().unwrap()
}

fn version(answer: &Result<Answer, Fault>) -> Option<i32> {
    match answer {
        Ok(Answer::Node(node)) => node.as_ref().map(|node| node.version),
        other => panic!("{other:?} is no znode"),
    }
}

#[test]
fn requests_of_a_call_are_done_in_their_order() {
    let ensemble = remote(&Door::open().address, SESSION);
    let requests = vec![get("/a"), create("/a"), get("/a"), create("/a"), set("/a"), set("/a"), get("/a")];
    let answers = wait_for(ensemble.send(requests));
    assert_eq!(version(&answers[0]), None);
    assert_eq!((&answers[1], version(&answers[2])), (&Ok(Answer::Written), Some(0)));
    assert_eq!(answers[3], Err(Fault::Refused(Refusal::Exists)));
    assert_eq!((&answers[4], &answers[5]), (&Ok(Answer::Written), &Err(Fault::Refused(Refusal::Version))));
    assert_eq!(version(&answers[6]), Some(1));
    assert_eq!(one(&ensemble, create("/no/parent")), Err(Fault::Refused(Refusal::Missing)));
    assert_eq!(one(&ensemble, Request::Children("/a".to_owned())), Ok(Answer::Children(Some(Vec::new()))));
}

#[test]
fn a_request_is_answered_although_nobody_keeps_the_ensemble() {
    let door = Door::open();
    let asked = remote(&door.address, SESSION).send(vec![create("/kept"), get("/kept")]);
    assert_eq!(version(&wait_for(asked)[1]), Some(0));
}

#[test]
fn a_wait_ends_when_somebody_changes_the_znode() {
    let door = Door::open();
    let [waiting, writing] = [remote(&door.address, SESSION), remote(&door.address, SESSION)];
    assert_eq!(one(&writing, create("/w")), Ok(Answer::Written));
    let patience = Duration::from_secs(600);
    // What is not as expected ends at once.
    assert_eq!(wait_for(waiting.wait(vec![("/w".to_owned(), 7)], patience)), Ok(()));
    assert_eq!(wait_for(waiting.wait(vec![("/none".to_owned(), 0)], patience)), Ok(()));
    let mut wait = waiting.wait(vec![("/w".to_owned(), 0)], patience);
    // The watch is there once a later request of the session is answered.
    assert_eq!(version(&one(&waiting, get("/w"))), Some(0));
    assert!(wait.try_take().is_none(), "nothing has changed");
    assert_eq!(one(&writing, set("/w")), Ok(Answer::Written));
    assert_eq!(wait_for(wait), Ok(()));
}

#[test]
fn a_write_whose_answer_is_lost_is_unknown_and_may_be_there() {
    let door = Door::open();
    let proxy = Proxy::open(&door.address);
    let (through, direct) = (remote(&proxy.address, SESSION), remote(&door.address, SESSION));
    assert_eq!(one(&through, create("/first")), Ok(Answer::Written));
    proxy.swallow();
    assert_eq!(one(&through, create("/second")), Err(Fault::Lost));
    assert_eq!(version(&one(&direct, get("/second"))), Some(0), "it happened");
    // The session continues by itself, at a new connection.
    let again = (0..100).map(|_| one(&through, get("/second"))).find(Result::is_ok).unwrap();
    assert_eq!(version(&again), Some(0));
}

#[test]
fn without_a_server_nothing_is_sent() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let ensemble = remote(&address, Duration::from_secs(1));
    assert_eq!(one(&ensemble, create("/a")), Err(Fault::NotConnected));
    assert_eq!(wait_for(ensemble.wait(vec![("/a".to_owned(), 0)], SESSION)), Err(Fault::NotConnected));
}

#[test]
fn a_loglet_whose_connections_break() {
    let proxy = Proxy::open(&Door::open().address);
    let mut harness = Harness::servers(2, &proxy.address).behind(proxy);
    (0..3).for_each(|seed| loglet::random(&mut harness, seed));
}

#[test]
fn registers_whose_connections_break() {
    let proxy = Proxy::open(&Door::open().address);
    let mut harness = Harness::servers(2, &proxy.address).behind(proxy);
    (0..3).for_each(|seed| register::random(&mut harness, seed));
}

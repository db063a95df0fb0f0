//! The client, and registers, with a real etcd: `ATOLL_TEST_ETCD` names its program. Servers are killed, stopped and filled.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::{RegisterHarness, register};
use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, Version, Written};
use atoll_core::NodeId;
use atoll_etcd_register::etcd::Etcd;
use atoll_etcd_register::proto::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse, compare, request_op,
};
use atoll_etcd_register::testing::client;
use atoll_register_store::Fault;
use bytes::Bytes;

use crate::harness::{Harness, Over, wait_for};
use crate::servers::{Servers, program};

const TIMEOUT: Duration = Duration::from_secs(2);
/// The most often that a request is repeated until it has an answer.
const TRIES: usize = 100;

fn create(key: &str, value: Bytes) -> TxnRequest {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let missing = Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(compare::TargetUnion::ModRevision(0)),
    };
    let put = request_op::Request::RequestPut(PutRequest { key, value });
    TxnRequest { compare: vec![missing], success: vec![RequestOp { request: Some(put) }] }
}

/// Reads a key until there is an answer.
fn get(etcd: &Arc<dyn Etcd>, key: &str) -> Option<Bytes> {
    let range = RangeRequest { key: Bytes::copy_from_slice(key.as_bytes()), ..RangeRequest::default() };
    let answer = (0..TRIES).find_map(|_| wait_for(etcd.range(range.clone())).ok()).unwrap();
    answer.kvs.into_iter().next().map(|kv| kv.value)
}

#[test]
fn registers_in_etcd_whose_servers_are_killed() {
    let Some(program) = program() else { return };
    register::all(&mut Harness::new(Over::Real(Servers::start(program, 3, &[]), None)), 0..6);
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there() {
    let Some(program) = program() else { return };
    let mut servers = Servers::start(program, 1, &[]);
    let etcd = client(&servers.addresses(), TIMEOUT).unwrap();
    let mut acknowledged = 0;
    for round in 0..5 {
        let key = |n: usize| format!("/round-{round}/{n}");
        assert_eq!(get(&etcd, &key(0)), None);
        // All are under way at once.
        let asked: Vec<_> = (0..48).map(|n| etcd.txn(create(&key(n), Bytes::from(format!("{n}"))))).collect();
        let mut answers: Vec<Result<TxnResponse, Fault>> = Vec::new();
        for one in asked {
            answers.push(wait_for(one));
            if answers.len() == 1 + round {
                servers.kill(0);
            }
        }
        servers.restart(0);
        for (n, answer) in answers.into_iter().enumerate() {
            let found = get(&etcd, &key(n));
            match answer {
                Ok(answer) => {
                    assert!(answer.succeeded && found == Some(Bytes::from(format!("{n}"))), "{}", key(n));
                    acknowledged += 1;
                }
                Err(Fault::NoAnswer) => {}
                Err(Fault::Passing(_)) => assert_eq!(found, None, "{} was not done", key(n)),
                Err(refused) => panic!("{refused}"),
            }
        }
    }
    assert!(acknowledged >= 5, "{acknowledged}");
}

#[test]
fn a_server_that_is_stopped_is_left() {
    let Some(program) = program() else { return };
    let mut harness = Harness::new(Over::Real(Servers::start(program, 3, &[]), None));
    let register = harness.registers(NodeId(1)).register("log");
    for at in 0..3 {
        let Over::Real(servers, _) = harness.over() else { unreachable!("it is a real one") };
        servers.signal(at as usize, "STOP");
        let register = register.clone();
        let written = harness.driver.block_on(NodeId(1), async move {
            register.write_if(Version(at), Bytes::from_static(b"chain"), Nonce(at.into())).await
        });
        assert_eq!(written, Ok(Written::Yes(Version(at + 1))));
        let Over::Real(servers, _) = harness.over() else { unreachable!("it is a real one") };
        servers.signal(at as usize, "CONT");
    }
}

#[test]
fn an_etcd_that_is_full_says_so_and_is_read() {
    let Some(program) = program() else { return };
    let servers = Servers::start(program, 1, &["--quota-backend-bytes", "4194304"]);
    let etcd = client(&servers.addresses(), Duration::from_secs(20)).unwrap();
    let value = Bytes::from(vec![b'x'; 256 * 1024]);
    let fill = |n: usize| wait_for(etcd.txn(create(&format!("/fill/{n}"), value.clone()))).err();
    let fault = (0..64).find_map(fill);
    assert_eq!(fault, Some(Fault::Passing(Unavailability::DiskFull)));
    assert_eq!(get(&etcd, "/fill/0"), Some(value.clone()));
}

#[test]
fn servers_of_two_clusters_are_not_taken_for_one() {
    let Some(program) = program() else { return };
    let mut first = Servers::start(program.clone(), 1, &[]);
    let second = Servers::start(program, 1, &[]);
    let etcd = client(&format!("{},{}", first.addresses(), second.addresses()), TIMEOUT).unwrap();
    assert_eq!(get(&etcd, "/a"), None);
    first.kill(0);
    let range = RangeRequest { key: Bytes::from_static(b"/a"), ..RangeRequest::default() };
    let refused = (0..TRIES).map(|_| wait_for(etcd.range(range.clone()))).find_map(|answer| match answer {
        Err(Fault::Refused(why)) => Some(why),
        Ok(answer) => panic!("{answer:?} is of another cluster"),
        Err(_) => None,
    });
    assert!(refused.is_some_and(|why| why.contains("different clusters")));
}

#[test]
fn without_a_server_nothing_is_sent() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let etcd = client(&address, TIMEOUT).unwrap();
    let answer = wait_for(etcd.txn(create("/a", Bytes::new())));
    assert_eq!(answer, Err(Fault::Passing(Unavailability::NoQuorum)));
}

//! Each refusal of the door, over a real socket, and its counter.

use std::io::Write;
use std::time::Duration;

use super::client::{Client, create, receive};
use super::served::{ask, door, figure};
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::request::{AuthRequest, Request, SetDataRequest};
use atoll_zookeeper::{ConnectionThrottle, Options};

#[test]
fn connections_of_everybody_are_limited_and_a_place_is_free_again() {
    let door = door(Options { max_connections: 3, ..Options::default() });
    let first = Client::connect(door);
    let (_second, _third) = (Client::connect(door), Client::connect(door));
    for _ in 0..5 {
        assert_eq!(receive(&mut Client::socket(door)), None);
    }
    drop(first);
    // The door notices the end of the first connection only after a while, and refuses others until then.
    let told = loop {
        let mut socket = Client::socket(door);
        if socket.write_all(b"mntr").is_err() {
            continue;
        }
        let mut told = String::new();
        if std::io::Read::read_to_string(&mut socket, &mut told).is_ok() && !told.is_empty() {
            break told;
        }
    };
    let refused = told.lines().find_map(|l| l.strip_prefix("zk_connection_rejected\t")).unwrap();
    assert!(refused.parse::<f64>().unwrap() >= 5.0, "{told}");
}

#[test]
fn a_flood_of_connections_gets_as_many_as_there_are_tokens() {
    let throttle = ConnectionThrottle { tokens: 4, fill_every: Duration::from_secs(3_600), fill_count: 1 };
    let door = door(Options { connection_throttle: Some(throttle), ..Options::default() });
    let _four = [(); 4].map(|()| Client::connect(door));
    for _ in 0..100 {
        assert_eq!(receive(&mut Client::socket(door)), None);
    }
}

#[test]
fn with_one_request_of_all_connections_at_a_time_all_are_answered_in_order() {
    let door = door(Options { max_outstanding_of_all: 1, ..Options::default() });
    let mut clients = [(); 3].map(|()| Client::connect(door));
    assert_eq!(clients[0].create("/a", b""), 0);
    let set = Request::SetData(SetDataRequest { path: "/a", data: Some(b"1"), version: -1 });
    let asked: Vec<Vec<i32>> = clients.iter_mut().map(|c| (0..200).map(|_| c.ask(&set)).collect()).collect();
    for (client, xids) in clients.iter_mut().zip(asked) {
        for xid in xids {
            assert_eq!(client.answer(xid).0, 0);
        }
    }
    assert_eq!(figure(door, "zk_outstanding_requests"), 0.0);
}

#[test]
fn a_word_that_is_not_allowed_is_refused_and_counted() {
    let door = door(Options { words: vec!["mntr".to_owned()], ..Options::default() });
    assert_eq!(ask(door, "ruok"), "ruok is not executed because it is not in the whitelist.\n");
    assert_eq!(ask(door, "kill"), "kill is not a known command.\n");
    assert_eq!(figure(door, "zk_commands_refused"), 2.0);
}

#[test]
fn an_authentication_by_what_is_not_known_ends_the_connection_and_is_counted() {
    let door = door(Options::default());
    let mut c = Client::connect(door);
    let asked = Request::Auth(AuthRequest { kind: 0, scheme: "guess", auth: Some(b"x") });
    c.send_as(-4, &asked);
    assert_eq!(c.answer(-4).0, ErrorCode::AuthFailed.number());
    assert!(c.is_ended());
    assert_eq!(figure(door, "zk_auth_failed_count"), 1.0);
}

/// `enforce.auth.schemes`: an anonymous client gets nothing but the end of its connection, whatever it asks for.
#[test]
fn a_client_without_an_identity_that_is_required_is_sent_away() {
    let door = door(Options {
        required_schemes: vec!["digest".to_owned(), "sasl".to_owned()],
        ..Options::default()
    });
    let demanded = ErrorCode::SessionClosedRequireSaslAuth.number();
    let prove = |client: &mut Client, scheme, auth: &'static [u8]| {
        client.send_as(-4, &Request::Auth(AuthRequest { kind: 0, scheme, auth: Some(auth) }));
        client.answer(-4).0
    };
    for request in [
        create("/a", b""),
        Request::SetData(SetDataRequest { path: "/", data: None, version: -1 }),
        Request::Ping,
    ] {
        let mut anonymous = Client::connect(door);
        assert_eq!(anonymous.call(&request).0, demanded);
        assert!(anonymous.is_ended());
    }
    // The address is an identity that everybody has.
    let mut by_address = Client::connect(door);
    assert_eq!(prove(&mut by_address, "ip", b"127.0.0.1"), 0);
    assert_eq!(by_address.call(&create("/a", b"")).0, demanded);
    assert_eq!(figure(door, "zk_auth_failed_count"), 4.0);
    let mut known = Client::connect(door);
    assert_eq!(prove(&mut known, "digest", b"bob:secret"), 0);
    assert_eq!(known.create("/a", b""), 0);
}

//! Tests of the gate, without a listener.
#![allow(clippy::unwrap_used)]

use super::*;
use atoll_auth::{Grant, Token, hash_of, method};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn policy(grants: &[(&str, Right, &str)]) -> Policy {
    let grant = |(who, right, on): &(&str, Right, &str)| Grant {
        who: who.parse().unwrap(),
        on: on.parse().unwrap(),
        right: *right,
    };
    let token = Token { name: "ci".into(), hash: hash_of("secret"), created_ms: 1 };
    Policy::new(&grants.iter().map(grant).collect::<Vec<_>>(), &[token])
}

fn with_token(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())])
}

fn gate(grants: &[(&str, Right, &str)]) -> Arc<Gate> {
    let gate = Gate::new(true, BTreeSet::from(["root".to_owned()]), Audit::default());
    gate.publish(LogPos(1), policy(grants));
    gate
}

fn ask(gate: &Arc<Gate>, path: &str, certificate: Option<&str>) -> Result<Caller, Reason> {
    gate.admit(method(path).unwrap(), &HeaderMap::new(), certificate, HERE).map_err(|r| r.failure.reason)
}

fn on(caller: &Caller, name: &str) -> Result<(), Reason> {
    caller.on(name).map_err(|refusal| refusal.failure.reason)
}

#[test]
fn an_open_gate_asks_nothing() {
    let caller = ask(&Gate::open(), "atoll.v1.LogService/Read", None).unwrap();
    assert_eq!((on(&caller, "main"), on(&caller, DATABASE_LOG)), (Ok(()), Ok(())));
    assert_eq!(caller.visible(vec!["a".into()]).unwrap(), ["a"]);
}

#[test]
fn who_shows_nothing_or_a_wrong_token_is_unauthenticated() {
    let gate = gate(&[("any", Right::Operate, "*")]);
    let read = method("atoll.v1.LogService/Read").unwrap();
    assert_eq!(ask(&gate, read.path, None).unwrap_err(), Reason::Unauthenticated);
    for bad in ["wrong", ""] {
        // Not even with a good certificate: the client would not notice that its token is of no use.
        for certificate in [None, Some("alice"), Some("root")] {
            let refusal = gate.admit(read, &with_token(bad), certificate, HERE).unwrap_err();
            assert_eq!(refusal.failure.reason, Reason::Unauthenticated);
            assert!(!refusal.failure.message.contains("wrong"), "no token in messages");
        }
    }
    assert!(gate.admit(read, &with_token("secret"), None, HERE).is_ok());
}

#[test]
fn the_records_of_the_database_need_the_right_to_operate_on_the_cluster() {
    let everything_else = [
        ("cert:alice", Right::Operate, "log:*"),
        ("cert:alice", Right::Write, "cluster"),
        ("cert:bob", Right::Operate, "cluster"),
    ];
    let gate = gate(&everything_else);
    for path in [
        "atoll.v1.LogService/Read",
        "atoll.corfu.v1.CorfuService/Read",
        "atoll.scalog.v1.ScalogService/ReadRecord",
        "atoll.scalog.v1.ScalogService/Subscribe",
    ] {
        let alice = ask(&gate, path, Some("alice")).unwrap();
        assert_eq!(
            (on(&alice, "main"), on(&alice, DATABASE_LOG)),
            (Ok(()), Err(Reason::NotAllowed)),
            "{path}"
        );
        let bob = ask(&gate, path, Some("bob")).unwrap();
        assert_eq!((on(&bob, "main"), on(&bob, DATABASE_LOG)), (Err(Reason::NotAllowed), Ok(())), "{path}");
    }
    let tail = ask(&gate, "atoll.v1.LogService/CheckTail", Some("alice")).unwrap();
    assert_eq!(on(&tail, DATABASE_LOG), Ok(()), "how long it is, whoever may read the cluster may know");
}

#[test]
fn a_node_that_does_not_know_admits_only_its_operators() {
    let gate = gate(&[("cert:alice", Right::Operate, "*")]);
    gate.forget();
    let drain = "atoll.v1.ClusterService/NodeDrain";
    assert_eq!(ask(&gate, drain, Some("alice")).unwrap_err(), Reason::Unavailable);
    assert!(ask(&gate, drain, Some("root")).is_ok());
    gate.publish(LogPos(1), policy(&[("cert:alice", Right::Operate, "*")]));
    assert!(ask(&gate, drain, Some("alice")).is_ok());
    gate.publish(LogPos(0), Policy::default());
    assert!(ask(&gate, drain, Some("alice")).is_ok(), "an older state changes nothing");
}

#[test]
fn a_stream_ends_with_the_right_that_it_was_admitted_with() {
    let grants = [("cert:alice", Right::Write, "log:a"), ("cert:alice", Right::Write, "log:b")];
    let gate = gate(&grants);
    let stream = ask(&gate, "atoll.v1.LogService/AppendStream", Some("alice")).unwrap();
    assert_eq!((on(&stream, "a"), stream.still()), (Ok(()), Ok(())));
    gate.publish(LogPos(2), policy(&grants[..1]));
    assert_eq!(stream.still(), Ok(()), "another right is gone");
    gate.publish(LogPos(3), policy(&grants[1..]));
    assert_eq!(stream.still().unwrap_err().failure.reason, Reason::NotAllowed);
}

#[test]
fn refusals_say_who_lacks_what_and_how_it_is_granted() {
    let gate = gate(&[("cert:alice", Right::Read, "log:a")]);
    let trim = method("atoll.v1.LogService/Trim").unwrap();
    let failure = gate.admit(trim, &HeaderMap::new(), Some("alice"), HERE).unwrap_err().failure;
    assert_eq!(failure.message, "cert:alice lacks the right to operate log:NAME");
    let read = ask(&gate, "atoll.v1.LogService/Read", Some("alice")).unwrap();
    let failure = read.on("b").unwrap_err().failure;
    assert_eq!(failure.message, "cert:alice lacks the right to read log:b");
    assert_eq!(failure.next, "an operator grants it: atoll auth grant cert:alice read log:b");
}

#[test]
fn lists_name_what_the_caller_may_read() {
    let gate = gate(&[("cert:alice", Right::Read, "log:a*"), ("cert:bob", Right::Read, "cluster")]);
    let names = || ["ab", "b", DATABASE_LOG].map(str::to_owned).to_vec();
    let seen = |who| ask(&gate, "atoll.v1.LogService/ListLogs", Some(who)).unwrap().visible(names()).unwrap();
    assert_eq!(seen("alice"), ["ab"]);
    assert_eq!(seen("bob"), [DATABASE_LOG]);
    assert_eq!(seen("carol"), Vec::<String>::new());
    assert_eq!(seen("root"), names());
}

//! An exhaustive check of one append against two fillers and a seal, over a model of CORFU's storage unit, and of the model against the
//! real unit.

#[path = "../../../../protocols/corfu/tests/protocol/cluster.rs"]
mod cluster;
mod model;
mod unit;

use std::time::Duration;

use atoll_contract::LogletId;
use atoll_core::{Encode, NodeId};
use atoll_corfu::message::{Fill, Look, Piece, SealTo, Token, Verdict, Write};
use bytes::Bytes;
use stateright::{Checker, HasDiscoveries, Model};

use model::{Bug, Position};
use unit::{Answer, Content, Request, Unit};

/// The properties that must always hold.
const SAFETY: [&str; 5] = [
    "K4 all readers see one content",
    "K3 an acknowledged append is read",
    "C2 what has lost is never read",
    "K2 the head decides",
    "C13 what is filled is complete",
];

#[test]
fn one_append_two_fillers_and_a_seal() {
    let checker = Position { bug: Bug::None }.checker().spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000);
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Bug::ServesOldEpoch,
        Bug::OwnWriteIsAnothers,
        Bug::FillsBlindly,
        Bug::ReadsHead,
        Bug::GivesUpInTheMiddle,
        Bug::ReadsRemoved,
        Bug::InstallsUnsealed,
    ];
    for bug in bugs {
        let checker = Position { bug }.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found: Vec<&str> = SAFETY.into_iter().filter(|name| checker.discovery(name).is_some()).collect();
        println!("{bug:?}: {found:?}");
        assert!(!found.is_empty(), "{bug:?} is not found");
    }
}

/// Asks the real unit of node 1 for the only position of a log.
async fn ask(env: atoll_core::Env, log: LogletId, config: Bytes, epoch: u8, request: Request) -> Answer {
    let (node, patience) = (NodeId(1), Duration::from_secs(5));
    let epoch = u64::from(epoch);
    let token = Token { client: 7, number: 1 };
    let (first, count) = (0, 1);
    let verdict = match request {
        Request::Write => {
            let data = Bytes::from_static(b"x");
            let call = env.call(node, Write { log, config, epoch, first, count, token, data });
            env.within(patience, call).await.unwrap().unwrap().verdict
        }
        Request::Fill => {
            let call = env.call(node, Fill { log, config, epoch, first, count });
            env.within(patience, call).await.unwrap().unwrap().verdict
        }
        Request::Seal => {
            let call = env.call(node, SealTo { log, config, epoch });
            env.within(patience, call).await.unwrap().unwrap().verdict
        }
        Request::Look => {
            let call = env.call(node, Look { log, config, epoch, from: 0, to: 1, max_bytes: 100 });
            let seen = env.within(patience, call).await.unwrap().unwrap();
            match (&seen.verdict, seen.pieces.first()) {
                (Verdict::Done {}, Some(Piece::Data { .. })) => return Answer::Saw(Some(Content::Data)),
                (Verdict::Done {}, Some(Piece::Junk { .. })) => return Answer::Saw(Some(Content::Junk)),
                (Verdict::Done {}, _) => return Answer::Saw(None),
                _ => seen.verdict,
            }
        }
    };
    match verdict {
        Verdict::Done {} => Answer::Done,
        Verdict::Sealed {} => Answer::Sealed,
        Verdict::Ahead {} => Answer::Ahead,
        Verdict::Written { by: Some(by) } if by == token => Answer::Mine,
        Verdict::Written { by: None } => Answer::Taken,
        other => panic!("{other:?}"),
    }
}

/// Every sequence of four requests: the model's unit and the real one answer alike.
#[test]
fn the_unit_of_the_model_is_the_real_one() {
    let mut cluster = cluster::new(2, 1);
    let config = cluster::projection(&cluster, 2, &[&[1]]).to_bytes();
    let of = |request| [(1, request), (2, request)];
    let requests: Vec<(u8, Request)> =
        [Request::Write, Request::Fill, Request::Look, Request::Seal].into_iter().flat_map(of).collect();
    let count = requests.len();
    let mut answers = std::collections::BTreeMap::new();
    for number in 0..count.pow(4) {
        let (log, mut model) = (LogletId(100 + number as u128), Unit::new(1));
        let sequence: Vec<(u8, Request)> = (0..4).map(|n| requests[number / count.pow(n) % count]).collect();
        let (env, config, of) = (cluster.env(2), config.clone(), sequence.clone());
        let real = cluster.on(2, async move {
            let mut answers = Vec::new();
            for (epoch, request) in of {
                answers.push(ask(env.clone(), log, config.clone(), epoch, request).await);
            }
            answers
        });
        let expected: Vec<Answer> =
            sequence.iter().map(|(epoch, request)| model.serve(*epoch, *request, false)).collect();
        assert_eq!(real, expected, "{sequence:?}");
        for answer in real {
            *answers.entry(format!("{answer:?}")).or_insert(0) += 1;
        }
    }
    assert_eq!(answers.len(), 8, "every answer was given: {answers:?}");
}

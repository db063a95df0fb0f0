//! What a cluster that was restored from a backup accepts: the tokens and grants of the restored moment.

use atoll_auth::command::Command;
use atoll_auth::{Asking, Auth, Kind, Policy, Resource, Right, hash_of, policy};
use atoll_backup::Moment;
use atoll_contract::LogPos;
use atoll_core::Encode;
use atoll_core::testing::Mutant;
use atoll_db::Engine;
use atoll_node::{embed, start_with};
use bytes::Bytes;

use crate::backup::{config, restore_with, shipped, start};

const LOG: Resource<'_> = Resource::Named(Kind::Log, "orders");

/// Returns the position behind the command.
async fn change(engine: &Engine<Auth>, command: Command) -> LogPos {
    let done = engine.propose(command.to_bytes()).unwrap().await.unwrap().unwrap();
    assert!(done.reply.is_ok(), "{command:?}: {:?}", done.reply);
    done.position.plus(1)
}

fn add(name: &str) -> Command {
    Command::AddToken { name: name.to_owned(), hash: Bytes::copy_from_slice(&hash_of(name)) }
}

fn grant(who: &str, right: &str) -> Command {
    Command::Grant { who: who.to_owned(), right: right.to_owned(), on: "log:orders".to_owned() }
}

/// What the bearer of a token, whose text is its name here, may do with the log: the highest right. None if nobody knows the token.
fn right_of(policy: &Policy, token: &str) -> Option<Option<Right>> {
    let token = policy.token(&hash_of(token))?.to_owned();
    let asking = Asking { certificate: None, token: Some(token) };
    Some(Right::ALL.into_iter().rev().find(|right| policy.may(&asking, *right, &LOG)))
}

#[tokio::test]
async fn a_restored_cluster_accepts_the_tokens_and_grants_of_the_moment() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("old"), root.path().join("store"));
    let (door, engine) = embed(Auth);
    let node = start_with(config(&data, "old"), vec![door]).unwrap();
    node.joined().await.unwrap();
    let engine = engine.await.unwrap();
    start(&node, &store).await;
    change(&engine, add("early")).await;
    let before = change(&engine, grant("token:early", "write")).await;
    change(&engine, Command::RemoveToken { name: "early".to_owned() }).await;
    change(&engine, add("late")).await;
    let after = change(&engine, grant("token:late", "read")).await;
    shipped(&node, after).await;
    node.shutdown().await;
    let cases = [(before, [Some(Some(Right::Write)), None]), (after, [None, Some(Some(Right::Read))])];
    for (number, (at, expected)) in cases.into_iter().enumerate() {
        let into = root.path().join(format!("new-{number}"));
        let moment = Moment::Position(at);
        restore_with(|| Auth, &store, moment, config(&into, "new"), Mutant::NONE, false).unwrap();
        let (door, engine) = embed(Auth);
        let node = start_with(config(&into, "new"), vec![door]).unwrap();
        node.joined().await.unwrap();
        let engine = engine.await.unwrap();
        engine.barrier().await.unwrap().unwrap();
        let now = policy(&engine.view()).unwrap().2;
        assert_eq!(["early", "late"].map(|token| right_of(&now, token)), expected, "below {at}");
        // A token that was removed after the moment is back; removing it again ends it.
        change(&engine, Command::RemoveToken { name: "early".to_owned() }).await;
        let now = policy(&engine.view()).unwrap().2;
        assert_eq!(right_of(&now, "early"), None);
        node.shutdown().await;
    }
}

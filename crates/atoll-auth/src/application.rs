//! The replicated application: applies commands to the grants and tokens. Its whole state is in the store.

use atoll_contract::application::{AppId, Application, ApplyAt, Direction, Rejected, StoreError, Tx, View};
use atoll_core::codec::{Decode, Encode};
use bytes::Bytes;

use crate::command::{Command, Done, Rejection};
use crate::layout::{self, KeptToken};
use crate::names::{Pattern, Right, Who};
use crate::{MAX_GRANTS, MAX_TOKENS};

/// The application.
#[derive(Clone, Copy, Debug, Default)]
pub struct Auth;

impl Application for Auth {
    /// Something has changed.
    type Event = ();
    const ID: AppId = AppId(4);
    const NAME: &'static str = "auth";

    fn apply(&mut self, at: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
        // Doors propose only encoded `Command`s. Every replica refuses anything else in the log.
        let command = Command::from_bytes(Bytes::copy_from_slice(command))
            .map_err(|e| Rejection::Invalid { words: format!("unreadable command: {e}") });
        let changed = command.and_then(|command| run(&command, at.time_ms, tx));
        let changed = changed.map_err(|rejection| Rejected(rejection.to_bytes()))?;
        if changed {
            tx.emit(());
        }
        Ok(Done { changed }.to_bytes())
    }

    fn opened(&mut self, _view: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

fn run(command: &Command, time_ms: u64, tx: &mut Tx<'_, ()>) -> Result<bool, Rejection> {
    match command {
        Command::Grant { who, right, on } => grant(who, right, on, tx),
        Command::Revoke { who, on } => Ok(remove(&layout::grant(who, on), tx)),
        Command::AddToken { name, hash } => add_token(name, hash, time_ms, tx),
        Command::RemoveToken { name } => {
            let grants = layout::grants_to(&Who::Token(name.clone()).to_string());
            let found = tx.range(&grants, Direction::Forward, MAX_GRANTS);
            for (key, _) in &found {
                tx.delete(key);
            }
            Ok(remove(&layout::token(name), tx) || !found.is_empty())
        }
    }
}

fn invalid(error: impl std::fmt::Display) -> Rejection {
    Rejection::Invalid { words: error.to_string() }
}

fn grant(who: &str, right: &str, on: &str, tx: &mut Tx<'_, ()>) -> Result<bool, Rejection> {
    let who: Who = who.parse().map_err(invalid)?;
    let right: Right = right.parse().map_err(invalid)?;
    let on: Pattern = on.parse().map_err(invalid)?;
    if let Who::Token(name) = &who
        && tx.get(&layout::token(name)).is_none()
    {
        return Err(invalid(format!("there is no token {name:?}")));
    }
    let key = layout::grant(&who.to_string(), &on.to_string());
    let before = tx.get(&key);
    if before.is_none() && tx.range(&layout::grants(), Direction::Forward, MAX_GRANTS).len() >= MAX_GRANTS {
        return Err(Rejection::TooMany {
            words: format!("there are already {MAX_GRANTS} grants, the maximum"),
        });
    }
    put(&key, Bytes::from_static(right.word().as_bytes()), before, tx)
}

fn add_token(name: &str, hash: &Bytes, time_ms: u64, tx: &mut Tx<'_, ()>) -> Result<bool, Rejection> {
    if hash.len() != 32 {
        return Err(invalid(format!("a hash of {} bytes; 32 are allowed", hash.len())));
    }
    // The name must be usable in a grant.
    format!("token:{name}").parse::<Who>().map_err(invalid)?;
    let key = layout::token(name);
    if let Some(before) = tx.get(&key) {
        let before = KeptToken::from_bytes(before).expect("damaged state: a token");
        // A repetition.
        return match before.hash == *hash {
            true => Ok(false),
            false => Err(Rejection::Exists { words: format!("there is a token {name:?}") }),
        };
    }
    if tx.range(&layout::tokens(), Direction::Forward, MAX_TOKENS).len() >= MAX_TOKENS {
        return Err(Rejection::TooMany {
            words: format!("there are already {MAX_TOKENS} tokens, the maximum"),
        });
    }
    tx.put(&key, KeptToken { hash: hash.clone(), created_ms: time_ms }.to_bytes());
    Ok(true)
}

fn put(key: &[u8], value: Bytes, before: Option<Bytes>, tx: &mut Tx<'_, ()>) -> Result<bool, Rejection> {
    let changed = before.as_ref() != Some(&value);
    if changed {
        tx.put(key, value);
    }
    Ok(changed)
}

fn remove(key: &[u8], tx: &mut Tx<'_, ()>) -> bool {
    let was = tx.get(key).is_some();
    if was {
        tx.delete(key);
    }
    was
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::application::{MapState, Proposer, WriteState};
    use atoll_contract::position::LogPos;

    use crate::names::{Kind, Resource};
    use crate::policy::Asking;

    #[derive(Default)]
    struct Replica {
        state: MapState,
        events: Vec<()>,
    }

    impl Replica {
        fn apply(&mut self, command: &Command) -> Result<bool, Rejection> {
            let at = ApplyAt {
                position: LogPos(1),
                index: 0,
                proposer: Proposer::default(),
                time_ms: 5,
                version: 1,
            };
            let mark = self.state.mark();
            let mut tx = Tx::new(Auth::ID, &mut self.state, &mut self.events);
            match Auth.apply(&at, &command.to_bytes(), &mut tx) {
                Ok(done) => Ok(Done::from_bytes(done).unwrap().changed),
                Err(Rejected(bytes)) => {
                    self.state.rollback(&mark);
                    Err(Rejection::from_bytes(bytes).unwrap())
                }
            }
        }

        fn policy(&self) -> crate::Policy {
            crate::policy(&self.state.view(Auth::ID, LogPos(2), 5)).unwrap().2
        }
    }

    fn grant(who: &str, right: &str, on: &str) -> Command {
        Command::Grant { who: who.into(), right: right.into(), on: on.into() }
    }

    fn token(name: &str, byte: u8) -> Command {
        Command::AddToken { name: name.into(), hash: Bytes::from(vec![byte; 32]) }
    }

    #[test]
    fn grants_and_tokens_come_and_go() {
        let mut replica = Replica::default();
        let (alice, log) =
            (Asking { certificate: Some("alice".into()), token: None }, Resource::Named(Kind::Log, "a"));
        assert_eq!(replica.apply(&grant("cert:alice", "write", "log:a")), Ok(true));
        assert_eq!(replica.apply(&grant("cert:alice", "write", "log:a")), Ok(false), "a repetition");
        assert!(replica.policy().may(&alice, Right::Write, &log));
        assert_eq!(
            replica.apply(&grant("cert:alice", "read", "log:a")),
            Ok(true),
            "instead of the other one"
        );
        assert!(!replica.policy().may(&alice, Right::Write, &log));
        let revoke = Command::Revoke { who: "cert:alice".into(), on: "log:a".into() };
        assert_eq!((replica.apply(&revoke), replica.apply(&revoke)), (Ok(true), Ok(false)));
        assert!(!replica.policy().may(&alice, Right::Read, &log));

        assert!(replica.apply(&grant("token:ci", "read", "*")).is_err(), "no such token");
        assert_eq!(replica.apply(&token("ci", 1)), Ok(true));
        assert_eq!(replica.apply(&token("ci", 1)), Ok(false), "a repetition");
        assert!(matches!(replica.apply(&token("ci", 2)), Err(Rejection::Exists { .. })));
        assert_eq!(replica.apply(&grant("token:ci", "operate", "*")), Ok(true));
        let ci = Asking { certificate: None, token: Some("ci".into()) };
        assert!(replica.policy().may(&ci, Right::Operate, &Resource::Cluster));
        let gone = Command::RemoveToken { name: "ci".into() };
        assert_eq!((replica.apply(&gone), replica.apply(&gone)), (Ok(true), Ok(false)));
        replica.apply(&token("ci", 3)).unwrap();
        assert!(!replica.policy().may(&ci, Right::Read, &log), "the grants went with the token");
        assert_eq!(replica.policy().token(&[3; 32]), Some("ci"));
        assert_eq!(replica.events.len(), 7, "one for each change");
    }

    #[test]
    fn what_makes_no_sense_and_what_is_too_much_is_refused() {
        let mut replica = Replica::default();
        for bad in [
            grant("alice", "read", "log:a"),
            grant("cert:alice", "all", "log:a"),
            grant("cert:alice", "read", "door:x"),
            token("", 1),
            Command::AddToken { name: "x".into(), hash: Bytes::new() },
        ] {
            assert!(matches!(replica.apply(&bad), Err(Rejection::Invalid { .. })), "{bad:?}");
        }
        for n in 0..MAX_GRANTS {
            assert_eq!(replica.apply(&grant(&format!("cert:c{n}"), "read", "log:a")), Ok(true));
        }
        assert!(matches!(
            replica.apply(&grant("cert:more", "read", "log:a")),
            Err(Rejection::TooMany { .. })
        ));
        assert_eq!(replica.apply(&grant("cert:c7", "write", "log:a")), Ok(true), "no more than before");
        for n in 0..MAX_TOKENS {
            assert_eq!(replica.apply(&token(&format!("t{n}"), 1)), Ok(true));
        }
        assert!(matches!(replica.apply(&token("more", 1)), Err(Rejection::TooMany { .. })));
    }
}

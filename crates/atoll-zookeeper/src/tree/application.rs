//! The application that the database replicates: it dispatches commands.

use atoll_core::level::{Level, since};
use atoll_core::testing::mutant;
use atoll_db::{AppId, Application, ApplyAt, Rejected, StoreError, Tx, View};
use bytes::Bytes;

use super::multi::{Refused, Writer};
use super::state::{Keys, TreeState};
use crate::command::{AnswerHead, Command, WriteHead};
use crate::event::Event;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::request::Request;
use crate::jute::{Jute, Reader};
use crate::mutants;

/// The version of the commands from which their weight is bounded.
const BOUNDED: u8 = 2;
/// The version of the commands from which only hashes of passwords are kept.
const HASHED: u8 = 3;

/// The application. It keeps all of its state in the store.
#[derive(Debug, Default)]
pub struct ZooKeeper;

impl Application for ZooKeeper {
    type Event = Event;
    const ID: AppId = AppId(2);
    const NAME: &'static str = "zookeeper";

    fn version_at(level: Level) -> u8 {
        // Version 2 was that of feature level 2 before any program with that level was released.
        if level < since::HASHED_PASSWORDS { 1 } else { HASHED }
    }

    fn apply(&mut self, at: &ApplyAt, command: &[u8], tx: &mut Tx<'_, Event>) -> Result<Bytes, Rejected> {
        apply(at, command, tx)
    }

    fn opened(&mut self, _view: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Applies a command to a store, and returns its answer.
///
/// # Errors
/// The command was refused. It has no effect if the caller then undoes its writes.
pub fn apply<K: Keys>(at: &ApplyAt, command: &[u8], keys: &mut K) -> Result<Bytes, Rejected> {
    let time_ms = i64::try_from(at.time_ms).unwrap_or(i64::MAX);
    let mut state = TreeState::open(keys, time_ms);
    state.is_bounded = at.version >= BOUNDED;
    state.hides_passwords = at.version >= HASHED;
    let newest = state.counters.zxid;
    match dispatch(at, command, &mut state) {
        Ok(body) => {
            state.commit();
            Ok(answer(state.zxid, None, &body))
        }
        Err(Refused::Transaction(results)) if mutant(mutants::ZK_MULTI_IN_PARTS) => {
            state.commit();
            Ok(answer(newest, None, &results))
        }
        Err(Refused::Because(code)) => Err(Rejected(answer(newest, Some(code), &[]))),
        Err(Refused::Transaction(results)) => Err(Rejected(answer(newest, None, &results))),
    }
}

fn answer(zxid: i64, err: Option<ErrorCode>, body: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(AnswerHead::LEAST_BYTES + body.len());
    AnswerHead { zxid, err: err.map_or(0, ErrorCode::number) }.write(&mut out);
    out.extend_from_slice(body);
    out.into()
}

fn dispatch<K: Keys>(at: &ApplyAt, command: &[u8], state: &mut TreeState<'_, K>) -> Result<Vec<u8>, Refused> {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX).to_vec();
    // Doors propose only what `Command` has encoded. Every replica refuses anything else that is in the log.
    match Command::read(command).map_err(|_| ErrorCode::MarshallingError)? {
        Command::Write(head, body) => write(at, &head, body, state),
        Command::Open(new) => Ok(state.open_session(new, at.proposer)?.to_vec()),
        Command::Attach(asked) => Ok(state.attach_session(asked, at.proposer)?.to_vec()),
        Command::Close(asked) => {
            state.close_session(asked, at.proposer)?;
            Ok(Vec::new())
        }
        Command::Expire(asked) => {
            state.expire_session(asked, at.proposer)?;
            Ok(Vec::new())
        }
        Command::End(asked) => {
            state.end_session_in_steps(asked, at.proposer)?;
            Ok(Vec::new())
        }
        Command::TakeOver(asked) => match state.take_over(asked, at.proposer) {
            0 => Err(ErrorCode::UnknownSession.into()),
            taken => Ok(count(taken)),
        },
        Command::Reap(asked) => match state.reap(&asked.paths) {
            0 => Err(ErrorCode::NoNode.into()),
            gone => Ok(count(gone)),
        },
        Command::Stage(asked) => state.stage(asked).map(|()| Vec::new()).map_err(Refused::from),
        Command::Restore(asked) => {
            state.restore(asked, at.proposer).map(|()| Vec::new()).map_err(Refused::from)
        }
        Command::Discard(asked) => state.discard(asked).map(|()| Vec::new()).map_err(Refused::from),
        Command::RaiseEpoch => {
            state.raise_epoch(state.counters.zxid)?;
            state.keys.emit(Event::Counted { zxid: state.zxid });
            Ok(Vec::new())
        }
        Command::Announce(asked) => {
            state.announce(asked)?;
            Ok(Vec::new())
        }
        Command::Forget(asked) => {
            state.forget(&asked)?;
            Ok(Vec::new())
        }
    }
}

fn write<K: Keys>(
    at: &ApplyAt,
    head: &WriteHead<'_>,
    body: &[u8],
    state: &mut TreeState<'_, K>,
) -> Result<Vec<u8>, Refused> {
    state.served_session(head.session, head.moves, at.proposer)?;
    state.enforce_quota = head.enforce_quota;
    let op = OpCode::of(head.op).ok_or(ErrorCode::Unimplemented)?;
    let request = Request::read(op, &mut Reader::new(body)).map_err(|_| ErrorCode::MarshallingError)?;
    let request = request.ok_or(ErrorCode::Unimplemented)?;
    state.write(&request, Writer { session: head.session, client: &head.ids })
}

//! Proposes commands to the replicated tables.

use std::time::Duration;

use atoll_client::Reason;
use atoll_core::codec::Decode;
use atoll_db::{Engine, ProposeError};
use atoll_door::backend::Refusal;
use atoll_tables::{Rejection, Reply, Tables};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::convert;

/// How long a proposal waits for room in the engine.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The longest command in bytes. It must fit into one entry of the log.
const MAX_COMMAND_BYTES: usize = 900_000;

/// Proposes a command and waits until this node has applied it. The refusal says whether the command happened.
pub(crate) async fn propose(engine: &Engine<Tables>, command: Bytes) -> Result<Reply, Refusal> {
    let words = |e: ProposeError| {
        let next = "`atoll status` shows whether enough servers are up";
        let text = e.to_string();
        match e {
            ProposeError::TooLarge { .. } => {
                Refusal::no(Reason::TooLarge, text, "do it in several transactions")
            }
            e if e.did_not_happen() => Refusal::no(Reason::Unavailable, text, next),
            _ => Refusal::unknown(Reason::Unavailable, text, next),
        }
    };
    if command.len() > MAX_COMMAND_BYTES {
        let text = format!("a command of {} bytes; at most {MAX_COMMAND_BYTES} are allowed", command.len());
        return Err(Refusal::no(Reason::TooLarge, text, "do it in several transactions"));
    }
    let until = Instant::now() + BUSY_FOR;
    let proposed = loop {
        let busy = match engine.propose(command.clone()) {
            Ok(proposed) => break proposed,
            Err(busy) => busy,
        };
        if timeout_at(until, engine.room(&busy)).await.is_err() {
            let text = "too many commands are in progress on this node";
            return Err(Refusal::no(Reason::Busy, text, "try again later"));
        }
    };
    let gone = || Refusal::unknown(Reason::Stopping, "this node is stopping", "use another node");
    match proposed.await.map_err(|_| gone())?.map_err(words)?.reply {
        Ok(reply) => Reply::from_bytes(reply).map_err(|e| unreadable(&e.to_string()).although_it_happened()),
        Err(rejected) => Err(match Rejection::from_bytes(rejected.0) {
            Ok(rejection) => convert::rejection_refusal(rejection),
            Err(error) => unreadable(&error.to_string()),
        }),
    }
}

pub(crate) fn unreadable(what: &str) -> Refusal {
    Refusal::unknown(Reason::Damaged, format!("the answer of the replica is unreadable: {what}"), "")
}

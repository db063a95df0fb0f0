//! Applies each write of a client exactly once. The state keeps the outcomes of writes by client id and sequence number, so a write
//! that is proposed again, through any node, is applied once and gets the same reply. Only applied writes are remembered. A
//! rejected command changed nothing and may be tried again.
//!
//! The memory is bounded: [`MAX_CLIENTS`] clients with [`CLIENT_WINDOW`] outcomes each, of at most [`MAX_KEPT_BYTES`] each.

use atoll_contract::application::Direction;
use atoll_core::codec::{Decode, Encode};
use atoll_core::record;
use bytes::Bytes;

use crate::application::{Refused, TableState};
use crate::command::{Done, RejectKind, Rejection};
use crate::{CLIENT_WINDOW, MAX_CLIENTS, layout};

/// The maximum length of a reply that is kept completely, in bytes. A longer reply is kept without the rows that were read.
const MAX_KEPT_BYTES: usize = 256;

record! {
    /// What is remembered of a client.
    pub struct Client {
        /// The highest sequence number that was applied.
        pub newest: u64,
        /// The version of its last write. The client with the lowest one is forgotten first.
        pub last: u64,
    }
}

fn load(state: &mut TableState<'_, '_>, id: u64) -> Option<Client> {
    let bytes = state.tx.get(&layout::client(id))?;
    Some(Client::from_bytes(bytes).expect("damaged state: a client"))
}

/// Returns the outcome of an earlier attempt of a write. None if the write must be applied now.
pub(crate) fn outcome(state: &mut TableState<'_, '_>, id: u64, seq: u64) -> Result<Option<Done>, Refused> {
    if seq == 0 {
        return Err(Rejection::new(RejectKind::Invalid, "sequences of a client start at 1"));
    }
    if let Some(bytes) = state.tx.get(&layout::outcome(id, seq)) {
        return Ok(Some(Done::from_bytes(bytes).expect("damaged state: an outcome")));
    }
    // An unknown client with a high sequence number may have been forgotten, together with its earlier writes.
    let newest = load(state, id).map(|client| client.newest);
    let forgotten = match newest {
        Some(newest) => seq.saturating_add(CLIENT_WINDOW) <= newest,
        None => seq > CLIENT_WINDOW,
    };
    if forgotten {
        let words = format!(
            "write {seq} of this client is too old, or the client was forgotten: this attempt did nothing; whether an earlier one did is not known"
        );
        return Err(Rejection::new(RejectKind::Forgotten, words));
    }
    Ok(None)
}

/// Remembers the outcome of a write.
pub(crate) fn note(state: &mut TableState<'_, '_>, id: u64, seq: u64, done: &Done) {
    let version = state.counters.version;
    let newest = match load(state, id) {
        Some(client) => {
            state.tx.delete(&layout::quiet(client.last));
            let newest = client.newest.max(seq);
            for old in client.newest.saturating_sub(CLIENT_WINDOW - 1)..=newest.saturating_sub(CLIENT_WINDOW)
            {
                if old > client.newest {
                    break;
                }
                state.tx.delete(&layout::outcome(id, old));
            }
            newest
        }
        None => {
            make_room(state);
            state.counters.clients += 1;
            seq
        }
    };
    state.tx.put(&layout::client(id), Client { newest, last: version }.to_bytes());
    state.tx.put(&layout::quiet(version), id.to_bytes());
    let mut kept = done.to_bytes();
    if kept.len() > MAX_KEPT_BYTES {
        kept = Done { read: None, ..done.clone() }.to_bytes();
    }
    state.tx.put(&layout::outcome(id, seq), kept);
}

/// Forgets the client that has written nothing for the longest time, if the limit of remembered clients is reached.
fn make_room(state: &mut TableState<'_, '_>) {
    if state.counters.clients < MAX_CLIENTS {
        return;
    }
    // The keys before `quiet_from` were deleted by later writes of their clients, and a scan from the beginning would have to skip
    // all of them.
    let mut range = layout::all_quiet();
    range.start = range.start.max(layout::quiet(*state.quiet_from));
    let oldest = state.tx.range(&range, Direction::Forward, 1);
    let Some((place, id)) = oldest.into_iter().next() else { return };
    *state.quiet_from = layout::version_of_quiet(&place).unwrap_or(*state.quiet_from);
    let id = u64::from_bytes(id).expect("damaged state: the id of a client");
    state.tx.delete(&place);
    state.tx.delete(&layout::client(id));
    let window = usize::try_from(CLIENT_WINDOW).unwrap_or(usize::MAX);
    let outcomes: Vec<Bytes> = state
        .tx
        .range(&layout::outcomes(id), Direction::Forward, window)
        .into_iter()
        .map(|(k, _)| k)
        .collect();
    outcomes.iter().for_each(|key| state.tx.delete(key));
    state.counters.clients -= 1;
}

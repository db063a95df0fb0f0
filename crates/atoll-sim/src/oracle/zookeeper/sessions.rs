//! When a session may expire: after a full timeout in which its holder heard nothing from the client. The timeout starts no earlier than
//! when the holder became the holder (contracts X22). Times are virtual time; the clocks of nodes may run slightly faster.

use std::collections::BTreeMap;

use super::ConnId;
use super::model::{Holder, Session};

/// How much faster the clocks of nodes may run, in thousandths.
pub const SKEW_PERMILLE: u64 = 50;
/// Tolerance for the delay with which the simulator itself notes events.
const SLACK_NS: u64 = 60_000_000;

/// When nodes became holders of sessions, and when they heard from clients.
#[derive(Debug, Default)]
pub struct Contacts {
    held: BTreeMap<(i64, i64), u64>,
    heard: BTreeMap<ConnId, Vec<u64>>,
    of: BTreeMap<i64, Vec<(ConnId, Holder)>>,
}

impl Contacts {
    /// Notes that a node was told that it holds the session, with this move count.
    pub fn held(&mut self, session: i64, moves: i64, now_ns: u64) {
        self.held.entry((session, moves)).or_insert(now_ns);
    }

    /// Notes that a node has read from the connection.
    pub fn heard(&mut self, conn: ConnId, now_ns: u64) {
        self.heard.entry(conn).or_default().push(now_ns);
    }

    /// Notes the session and the node of a connection.
    pub fn belongs(&mut self, conn: ConnId, session: i64, to: Holder) {
        self.of.entry(session).or_default().push((conn, to));
    }

    /// Checks that a session did not expire too early. `session` is its state before.
    ///
    /// # Errors
    /// The session expired too early.
    pub fn expired(&self, id: i64, session: &Session, now_ns: u64) -> Result<(), String> {
        let Some(held) = self.held.get(&(id, session.moves)).copied() else {
            return Err(format!(
                "session {id:#x} was expired by {:?}, which does not hold it yet",
                session.holder
            ));
        };
        let conns = self.of.get(&id).into_iter().flatten().filter(|(_, to)| *to == session.holder);
        let heard = conns.filter_map(|(conn, _)| self.heard.get(conn)).flatten().copied();
        let mut times: Vec<u64> = heard.filter(|t| (held..now_ns).contains(t)).collect();
        times.extend([held, now_ns]);
        times.sort_unstable();
        let silent = times.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        let timeout = u64::from(session.timeout_ms.unsigned_abs()) * 1_000_000;
        if silent + SLACK_NS < timeout * (1000 - SKEW_PERMILLE) / 1000 {
            return Err(format!(
                "session {id:#x} was expired: silent for {} ms at most since it was held by move {} {} ms ago; its \
                 timeout is {} ms",
                silent / 1_000_000,
                session.moves,
                (now_ns - held) / 1_000_000,
                session.timeout_ms
            ));
        }
        Ok(())
    }
}

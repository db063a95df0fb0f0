//! Makes a new Loglet that is sealed from the start, as a copy of another one (virtuallog §7). Copies are written in the sealed epoch, down
//! the chains, like the entries of an append.

use atoll_contract::{Batch, LogletError, Unavailability};
use atoll_core::Tick;

use crate::client::Wrote;
use crate::loglet::{CorfuLoglet, loglet_error};
use crate::message::Token;

/// A copy in progress.
pub(crate) struct Copying {
    loglet: CorfuLoglet,
    token: Token,
    until: Tick,
}

impl Copying {
    /// Seals the new Loglet. All of its units must take part: the copy is made to have all copies.
    pub(crate) async fn begin(loglet: CorfuLoglet) -> Result<Self, LogletError> {
        let s = &loglet.0;
        for unit in s.open.projection.units() {
            s.client.seal_unit(&s.closed, unit).await.map_err(loglet_error)?;
        }
        // The same copy may be begun twice, for the same entries. Tokens without a client are only used here.
        let (token, until) = (Token { client: 0, number: 0 }, s.client.op_end());
        Ok(Copying { loglet, token, until })
    }

    /// Writes a batch at a position, which may have been written by an earlier attempt.
    pub(crate) async fn put(&mut self, first: u64, batch: &Batch) -> Result<(), LogletError> {
        let s = &self.loglet.0;
        self.until = s.client.op_end();
        let (mut done, mut at) = (0, first);
        while done < batch.len() {
            let place = s.open.projection.place(at).ok_or(LogletError::Gone)?;
            let count = place.run.min((batch.len() - done) as u64) as u32;
            let data = batch.slice(done, done + count as usize).bytes().clone();
            let token = Token { number: at, ..self.token };
            match s.client.write_chain(&s.closed, at, count, token, &data, self.until).await {
                Wrote::Done => {}
                Wrote::Lost => return Err(LogletError::Unavailable(Unavailability::StorageFailed)),
                Wrote::Unfinished(stop) | Wrote::NotBegun(stop) => return Err(loglet_error(stop)),
            }
            done += count as usize;
            at += u64::from(count);
        }
        Ok(())
    }

    /// Checks that the Loglet is sealed, and exactly as long as it should be (vlog-M2).
    pub(crate) async fn verify(&self, count: u64) -> Result<(), LogletError> {
        let tail = self.loglet.check_sealed().await?;
        let end = self.loglet.end().unwrap_or_default();
        let is_whole = tail.at.0 == count && end.holes.is_empty();
        if is_whole { Ok(()) } else { Err(LogletError::Unavailable(Unavailability::NoQuorum)) }
    }
}

//! read, fill and trim (corfu §3).

use bytes::Bytes;

use atoll_contract::Unavailability;
use atoll_core::Tick;
use atoll_core::testing::hit;

use super::{CorfuLog, LogError, MAX_POSITION};
use crate::client::{Stop, View, refusal};
use crate::message::{Erase, Piece, TrimTo, Verdict};
use crate::projection::UnitId;

/// What is at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An entry.
    Data(Bytes),
    /// A hole that was filled.
    Junk,
    /// It was trimmed.
    Trimmed,
    /// Nothing was written there, and nothing above it, either.
    Unwritten,
}

impl CorfuLog {
    /// Reads a position from the tail of its chain. If that does not answer, and a check of the tail of the log has found that the position
    /// is complete, it reads from any unit of the chain. A hole below other positions is filled after a while, so no reader passes one that
    /// is not decided (corfu-C13, corfu-K8).
    pub async fn read(&self, position: u64) -> Result<Entry, LogError> {
        if position >= MAX_POSITION {
            return Ok(Entry::Unwritten);
        }
        let until = self.client.op_end();
        let first_seen = self.client.env.now();
        let mut view = self.view().await?;
        loop {
            let mut why = Stop::Unavailable(Unavailability::NoQuorum);
            match self.read_once(&view, position).await {
                Ok(Entry::Unwritten) => {
                    // The tail may be one that was replaced: only the register says that it was not (corfu-C9).
                    let newest = self.refresh().await?;
                    if newest.epoch() != view.epoch() {
                        view = newest;
                        continue;
                    }
                    if self.tail().await? <= position {
                        return Ok(Entry::Unwritten);
                    }
                    if self.client.env.now().since(first_seen) >= self.client.options.fill_timeout {
                        self.fill(position).await?;
                    }
                }
                Ok(entry) => return Ok(entry),
                Err(Stop::Sealed) => {
                    hit("corfu.log.read_sealed");
                    view = self.newer(view.epoch(), until).await?;
                }
                Err(stop @ Stop::Gone) => return Err(stop.into()),
                Err(Stop::Trimmed) => return Ok(Entry::Trimmed),
                // Another unit may be the tail by now, or soon. One that has died refuses nothing, so only the register says so.
                Err(stop) => {
                    why = stop;
                    view = self.refresh().await.unwrap_or(view);
                }
            }
            if !self.client.pause(until).await {
                return Err(why.into());
            }
        }
    }

    /// Asks the tail of the chain. If it does not answer, and the position is known to be complete, every other unit knows as much.
    async fn read_once(&self, view: &View, position: u64) -> Result<Entry, Stop> {
        let place = view.projection.place(position).ok_or(Stop::Trimmed)?;
        let [others @ .., tail] = place.chain.units.as_slice() else { return Err(Stop::Trimmed) };
        let may_ask_others = !others.is_empty() && self.knows_complete(position);
        let now = self.client.env.now();
        let until = if may_ask_others { now } else { self.client.look_end() };
        let answer = self.read_at(view, *tail, place.addr, until).await;
        if may_ask_others && matches!(answer, Err(Stop::Unavailable(_))) {
            hit("corfu.log.read_elsewhere");
            for unit in others.iter().rev() {
                match self.read_at(view, *unit, place.addr, now).await {
                    Err(Stop::Unavailable(_)) | Ok(Entry::Unwritten) => {}
                    answer => return answer,
                }
            }
        }
        answer
    }

    async fn read_at(&self, view: &View, unit: UnitId, addr: u64, until: Tick) -> Result<Entry, Stop> {
        let bytes = self.client.options.step_bytes;
        let found = self.client.look(view, unit, addr..addr + 1, bytes, until).await?;
        Ok(match found.into_iter().next() {
            Some((Piece::Data { .. }, Some(data))) => Entry::Data(data),
            Some((Piece::Junk { .. }, _)) => Entry::Junk,
            Some((Piece::Deleted { .. } | Piece::Erased { .. }, _)) => Entry::Trimmed,
            _ => Entry::Unwritten,
        })
    }

    /// Fills a position: it is complete on return, with what an append has written at the head of its chain, or with junk. The
    /// tail is above it afterwards, see [`CorfuLog::check_below_tail`].
    pub async fn fill(&self, position: u64) -> Result<(), LogError> {
        if position >= MAX_POSITION {
            return Err(LogError::BeyondTail { position, tail: MAX_POSITION });
        }
        self.fill_range(position, position.saturating_add(1)).await
    }

    pub(super) async fn fill_range(&self, from: u64, to: u64) -> Result<(), LogError> {
        let until = self.client.op_end();
        let mut view = self.view().await?;
        loop {
            match self.client.complete(&view, from, to, until).await {
                Ok(()) | Err(Stop::Trimmed) => return Ok(()),
                Err(Stop::Sealed) => view = self.newer(view.epoch(), until).await?,
                Err(stop) => return Err(stop.into()),
            }
            if !self.client.pause(until).await {
                return Err(LogError::Unavailable(Unavailability::NoQuorum));
            }
        }
    }

    /// Trims one position, which is complete: it is deleted on all units of its chain. Junk stays junk.
    ///
    /// The tail comes first. If it has the position, all units of the chain have it; the head alone may have what its writer has not
    /// finished.
    pub async fn trim(&self, position: u64) -> Result<(), LogError> {
        if position >= MAX_POSITION {
            return Err(LogError::BeyondTail { position, tail: MAX_POSITION });
        }
        let until = self.client.op_end();
        let mut view = self.view().await?;
        'again: loop {
            let Some(place) = view.projection.place(position) else { return Ok(()) };
            for unit in place.chain.units.iter().rev() {
                let (log, epoch, first) = (self.client.log, view.epoch(), place.addr);
                let erase = Erase { log, config: Bytes::new(), epoch, first, count: 1, unwritten_too: false };
                match self.client.ask(&view, *unit, erase, until).await?.verdict {
                    Verdict::Done {} => {}
                    Verdict::Unwritten {} => {
                        self.fill(position).await?;
                        continue 'again;
                    }
                    Verdict::Deleted {} => {}
                    Verdict::Sealed {} if self.client.pause(until).await => {
                        view = self.newer(view.epoch(), until).await?;
                        continue 'again;
                    }
                    verdict => return Err(refusal(&verdict).into()),
                }
            }
            return Ok(());
        }
    }

    /// Trims everything below a position that is complete. The watermark of every unit rises, so the units forget what is below.
    pub async fn trim_prefix(&self, to: u64) -> Result<(), LogError> {
        let until = self.client.op_end();
        let view = self.view().await?;
        for stretch in view.projection.stretches.iter().filter(|s| s.start < to) {
            for (index, chain) in stretch.chains.iter().enumerate() {
                let addr = stretch.address_from(index, to.min(stretch.end));
                for unit in &chain.units {
                    let trim =
                        TrimTo { log: self.client.log, config: Bytes::new(), epoch: view.epoch(), to: addr };
                    match self.client.ask(&view, *unit, trim, until).await?.verdict {
                        Verdict::Done {} => {}
                        Verdict::Sealed {} => {
                            self.refresh().await?;
                            return Err(LogError::Overtaken);
                        }
                        verdict => return Err(refusal(&verdict).into()),
                    }
                }
            }
        }
        Ok(())
    }
}

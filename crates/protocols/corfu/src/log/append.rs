//! append (corfu §3): a position from the sequencer, or from a probe, and a write down its chain.

use bytes::Bytes;

use atoll_contract::Unavailability;
use atoll_core::Tick;
use atoll_core::testing::hit;

use super::{CorfuLog, LogError};
use crate::client::{Stop, View, Wrote};
use crate::message::{Grant, Take, Token};

impl CorfuLog {
    /// Appends an entry and returns its position. It is on every unit of its chain on return.
    pub async fn append(&self, data: Bytes) -> Result<u64, LogError> {
        let until = self.client.env.now().after(self.client.options.append_timeout);
        let token = self.next_token();
        loop {
            let position = self.take(until).await?;
            if self.write_at(position, token, &data, until).await? {
                self.has_written(position + 1);
                return Ok(position);
            }
            // Nothing of it is at the lost position, so the token may be used again.
            if self.client.env.now() >= until {
                return Err(LogError::Unavailable(Unavailability::Busy));
            }
        }
    }

    /// Takes `count` consecutive positions from the sequencer and returns the first one. Whoever takes positions must write them, or leave
    /// holes for others to fill.
    pub async fn take_batch(&self, count: u32) -> Result<u64, LogError> {
        let view = self.view().await?;
        match self.ask_sequencer(&view, count).await {
            Some(Ok(first)) => Ok(first),
            Some(Err(Stop::Sealed)) => {
                let view = self.refresh().await?;
                let again = self.ask_sequencer(&view, count).await;
                again.and_then(Result::ok).ok_or(LogError::Unavailable(Unavailability::NoSequencer))
            }
            _ => Err(LogError::Unavailable(Unavailability::NoSequencer)),
        }
    }

    /// Asks the sequencer for positions. None if it does not answer.
    async fn ask_sequencer(&self, view: &View, count: u32) -> Option<Result<u64, Stop>> {
        let client = &self.client;
        let (node, _) = view.projection.sequencer;
        let take = Take { log: client.log, config: view.config.clone(), epoch: view.epoch(), count };
        let answer = client.env.within(client.options.round_timeout, client.env.call(node, take)).await;
        match answer.ok()?.ok()?.grant {
            Grant::Granted { runs } => runs.first().map(|run| Ok(run.first)),
            Grant::Sealed {} => Some(Err(Stop::Sealed)),
            _ => None,
        }
    }

    /// Returns a position to write: from the sequencer, or without one, the position above all that are written. The units decide.
    async fn take(&self, until: Tick) -> Result<u64, LogError> {
        let mut view = self.view().await?;
        loop {
            match self.ask_sequencer(&view, 1).await {
                Some(Ok(position)) => return Ok(position),
                Some(Err(_)) => view = self.newer(view.epoch(), until).await?,
                None => {
                    hit("corfu.log.without_sequencer");
                    return self.tail().await;
                }
            }
            if !self.client.pause(until).await {
                return Err(LogError::Unavailable(Unavailability::NoSequencer));
            }
        }
    }

    /// Writes at a position, and resumes there under each new projection with the same token (corfu-C7): another position could make it
    /// appear twice, because a filler may complete what is on the first units. Returns false if the position is another's.
    ///
    /// A unit that has died refuses nothing. Only the register says that another one has taken its place.
    async fn write_at(
        &self,
        position: u64,
        token: Token,
        data: &Bytes,
        until: Tick,
    ) -> Result<bool, LogError> {
        let mut view = self.view().await?;
        let mut begun = false;
        loop {
            let look_end = self.client.look_end().min(until);
            let wrote = self.client.write_chain(&view, position, 1, token, data, look_end).await;
            begun |= !matches!(wrote, Wrote::NotBegun(_));
            match wrote {
                Wrote::Done => return Ok(true),
                Wrote::Lost => return Ok(false),
                Wrote::Unfinished(Stop::Unavailable(Unavailability::NoQuorum | Unavailability::Busy))
                    if self.client.pause(until).await =>
                {
                    hit("corfu.log.looks_again");
                    view = self.refresh().await.unwrap_or(view);
                }
                Wrote::Unfinished(Stop::Sealed) | Wrote::NotBegun(Stop::Sealed) => {
                    hit("corfu.log.resumes");
                    let newer = self.newer(view.epoch(), until).await;
                    view = newer.map_err(|error| if begun { LogError::Unknown(position) } else { error })?;
                }
                Wrote::NotBegun(stop) if !begun => return Err(stop.into()),
                Wrote::Unfinished(_) | Wrote::NotBegun(_) => return Err(LogError::Unknown(position)),
            }
        }
    }
}

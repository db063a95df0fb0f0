//! checkTail of an open Loglet, and waits for the tail (corfu §7; corfu-C12).

use atoll_contract::{LogletError, Offset, Tail, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Elapsed, Tick};

use super::{CorfuLoglet, loglet_error, sealed_tail};
use crate::client::Stop;
use crate::message::{Await, Verdict};

impl CorfuLoglet {
    /// Returns a tail below which everything is complete. Every unit must answer: a seal is done once one unit of each chain is sealed, so
    /// only all units of a chain together show that there was none.
    pub(crate) async fn check(&self) -> Result<Tail, LogletError> {
        let s = &self.0;
        if let Some(end) = super::lock(&s.state).installed.clone() {
            return Ok(sealed_tail(&end));
        }
        let until = s.client.op_end();
        // Everything acknowledged before this call is on the tails of the chains, and so below the first answer.
        let mut bound: Option<(u64, Tick)> = None;
        loop {
            let tails = match s.client.probe(&s.open).await {
                Ok(tails) => tails,
                Err(Stop::Sealed) => return self.check_sealed().await,
                Err(Stop::Gone) => return Err(LogletError::Gone),
                Err(stop) if s.client.env.now() >= until => return Err(loglet_error(stop)),
                Err(_) => {
                    s.client.pause(until).await;
                    continue;
                }
            };
            if !tails.is_whole(&s.open) {
                if !s.client.pause(until).await {
                    return Err(LogletError::Unavailable(Unavailability::NoQuorum));
                }
                continue;
            }
            let now = s.client.env.now();
            let (above, since) = *bound.get_or_insert((tails.readable_above(&s.open), now));
            let complete = tails.complete_below(&s.open);
            if complete >= above {
                s.tails.learn(Offset(complete));
                return Ok(Tail { at: Offset(above), sealed: None });
            }
            s.tails.learn(Offset(complete));
            if now.since(since) < s.client.options.fill_timeout {
                s.client.env.sleep(s.client.env.jitter(s.client.options.retry / 2)).await;
                continue;
            }
            hit("corfu.check.fills");
            match s.client.complete(&s.open, complete, above, until).await {
                Ok(()) => {}
                Err(Stop::Sealed) => return self.check_sealed().await,
                Err(stop) => return Err(loglet_error(stop)),
            }
        }
    }

    /// Returns what is known above an offset: the sealed tail, or an open one.
    fn known_above(&self, above: Offset) -> Option<Tail> {
        match self.end() {
            Some(end) => Some(sealed_tail(&end)),
            None => self.0.tails.above(above).filter(|tail| tail.sealed.is_none()),
        }
    }

    pub(crate) async fn wait(&self, above: Offset) -> Result<Tail, LogletError> {
        let s = &self.0;
        if let Some(tail) = self.known_above(above) {
            return Ok(tail);
        }
        let Some(place) = s.open.projection.place(above.0) else {
            return Err(LogletError::Unavailable(Unavailability::StorageFailed));
        };
        let Some(unit) = place.chain.units.last().copied() else {
            return Err(LogletError::Unavailable(Unavailability::StorageFailed));
        };
        let patience = s.client.options.wait_patience;
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let (log, config, epoch) = (s.client.log, s.open.config.clone(), s.open.epoch());
        let request = Await { log, config, epoch, addr: place.addr, patience_ms };
        let call = s.client.env.call(unit.0, request);
        let longest = patience + s.client.options.round_timeout;
        match s.client.env.within(longest, s.tails.or(above, call)).await {
            Ok(Err(Ok(answer))) => match answer.verdict {
                Verdict::Done {} if answer.missing > place.addr => return self.follow(above).await,
                Verdict::Done {} => {}
                Verdict::Sealed {} => return self.check_sealed().await,
                Verdict::Gone {} => return Err(LogletError::Gone),
                _ => return Err(LogletError::Unavailable(Unavailability::StorageFailed)),
            },
            Ok(Err(Err(_))) => s.client.env.sleep(s.client.env.jitter(s.client.options.retry * 4)).await,
            Ok(Ok(_)) | Err(Elapsed) => {}
        }
        Ok(self.known_above(above).unwrap_or(Tail { at: s.tails.tail(), sealed: None }))
    }

    /// Something above the known tail was written: finds out how far the log is complete, and fills what stays a hole.
    async fn follow(&self, above: Offset) -> Result<Tail, LogletError> {
        let s = &self.0;
        match s.client.probe(&s.open).await {
            Ok(tails) => s.tails.learn(Offset(tails.complete_below(&s.open))),
            Err(Stop::Sealed) => return self.check_sealed().await,
            Err(Stop::Gone) => return Err(LogletError::Gone),
            Err(_) => {}
        }
        match self.known_above(above) {
            Some(tail) => Ok(tail),
            None => self.check().await,
        }
    }
}

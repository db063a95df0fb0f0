//! readNext (corfu §3, read; corfu-C6, corfu-C8, corfu-C9, corfu-C18): what is known to be complete comes from any unit of its chain,
//! everything else from the tail. Junk is returned as pads, which readers skip.

use std::ops::Range;
use std::task::Poll;

use atoll_contract::{Batch, Entry, Offset, OpId, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Elapsed};

use super::sealed::SealedAt;
use super::{CorfuLoglet, OPEN_EPOCH};
use crate::client::{Found, Stop, View};
use crate::message::Piece;
use crate::mutants;
use crate::projection::{Place, UnitId};

const NO_COPY: ReadError = ReadError::Unavailable(Unavailability::NoQuorum);
/// The most pads of one answer.
const MAX_PADS: u64 = 4096;

/// Where a read may look.
struct Sources {
    /// The projection, in the epoch in which the units serve.
    view: View,
    /// The units, in the order in which to ask them.
    units: Vec<UnitId>,
    /// The end of what may be read from them.
    end: u64,
}

impl CorfuLoglet {
    pub(crate) async fn read_entries(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<ReadBatch, ReadError> {
        let s = &self.0;
        if range.is_empty() {
            return Err(ReadError::BeyondTail(range.start));
        }
        let until = s.client.op_end();
        let max_bytes = u32::try_from(max_bytes).unwrap_or(u32::MAX).max(1);
        let mut sealed = self.end().is_some();
        if !sealed && range.start >= s.tails.tail() && from == ReadFrom::LocalOnly {
            // This node's unit may not be a tail, which alone knows what is complete.
            self.learn_complete().await;
        }
        loop {
            let got = self.read_once(&range, max_bytes, from, sealed).await;
            match got {
                Ok(batch) => return Ok(batch),
                // The Loglet was sealed since. What was known to be complete stays readable; for the rest, the end must be known.
                Err(Ok(Stop::Sealed)) if !sealed => {
                    hit("corfu.read.sealed");
                    sealed = true;
                    if range.start >= s.tails.tail() {
                        drop(self.check_sealed().await);
                    }
                    continue;
                }
                Err(Ok(Stop::Gone)) => return Err(ReadError::Gone),
                Err(Err(ReadError::Unavailable(_)) | Ok(_))
                    if s.client.env.now() < until && from == ReadFrom::Anywhere => {}
                Err(Ok(_)) => return Err(NO_COPY),
                Err(Err(error)) => return Err(error),
            }
            s.client.env.sleep(s.client.env.jitter(s.client.options.retry * 2)).await;
        }
    }

    async fn learn_complete(&self) {
        let s = &self.0;
        if let Ok(tails) = s.client.probe(&s.open).await
            && tails.is_whole(&s.open)
        {
            s.tails.learn(Offset(tails.complete_below(&s.open)));
        }
    }

    /// Returns where to read a position; an error if it can be told without asking a unit.
    fn sources(
        &self,
        at: u64,
        place: &Place<'_>,
        from: ReadFrom,
        sealed: bool,
    ) -> Result<Sources, ReadError> {
        let s = &self.0;
        let known = at < s.tails.tail().0;
        let (installed, found) = {
            let state = super::lock(&s.state);
            (state.installed.clone(), state.found.clone())
        };
        let all = place.chain.units.len();
        let usable = |end: &SealedAt| end.units.len() == s.open.projection.units().len();
        // An end that is not installed says nothing about holes, unless it rests on all units: then no other end can contradict it.
        let end = installed.or_else(|| found.filter(usable));
        let (view, mut units, limit) = match end {
            Some(end) => {
                if at >= end.tail {
                    return Err(ReadError::BeyondTail(Offset(at)));
                }
                // Units that were not sealed in time may have writes that are holes now, and only those: a position that is no hole has the
                // same content wherever it is (corfu-K2).
                (&s.closed, place.chain.units.clone(), end.next_hole(at))
            }
            None if sealed && !known => return Err(NO_COPY),
            None if sealed => (&s.closed, place.chain.units.clone(), s.tails.tail().0),
            None if known => (&s.open, place.chain.units.clone(), s.tails.tail().0),
            None if mutant(mutants::CORFU_C6) => (&s.open, place.chain.units.clone(), u64::MAX),
            None => (&s.open, place.chain.units[all - 1..].to_vec(), u64::MAX),
        };
        if from == ReadFrom::LocalOnly {
            units.retain(|unit| unit.0 == s.client.env.node());
        } else if !units.is_empty() {
            let turn = s.client.env.random() as usize % units.len();
            units.rotate_left(turn);
            s.client.nearest_first(&mut units);
        }
        Ok(Sources { view: view.clone(), units, end: limit })
    }

    async fn read_once(
        &self,
        range: &Range<Offset>,
        max_bytes: u32,
        from: ReadFrom,
        sealed: bool,
    ) -> Result<ReadBatch, Result<Stop, ReadError>> {
        let s = &self.0;
        let at = range.start.0;
        if let Some(pads) = self.installed_hole(at, range.end.0) {
            return Ok(pads);
        }
        let place = s.open.projection.place(at).ok_or(Err(ReadError::Trimmed(range.start)))?;
        let sources = self.sources(at, &place, from, sealed).map_err(Err)?;
        let count = place.run.min(range.end.0.min(sources.end) - at);
        let mut failure = Err(NO_COPY);
        let mut left = sources.units.iter();
        let mut asked: Vec<(UnitId, BoxFuture<'_, Result<Found, Stop>>)> = Vec::with_capacity(1);
        loop {
            if let Some(unit) = left.next() {
                let addresses = place.addr..place.addr + count;
                let until = s.client.look_end();
                let look = s.client.look(&sources.view, *unit, addresses, max_bytes, until);
                asked.push((*unit, Box::pin(look)));
            } else if asked.is_empty() {
                return Err(failure);
            }
            // A unit that does not answer may be dead. The next one has the same, so readers do not wait to find out.
            let is_last = left.len() == 0;
            let options = &s.client.options;
            let patience = if is_last { options.round_timeout } else { options.slow_read };
            let (unit, found) = match s.client.env.within(patience, any_found(&mut asked)).await {
                Ok(answer) => answer,
                Err(Elapsed) if is_last => return Err(failure),
                Err(Elapsed) => {
                    hit("corfu.read.slow");
                    continue;
                }
            };
            match found {
                Ok(found) => match self.entries(at, count, &place, found) {
                    Ok(entries) => {
                        let remote = if unit.0 == s.client.env.node() { 0 } else { entries.len() as u64 };
                        return Ok(ReadBatch { entries, remote });
                    }
                    Err(error @ ReadError::Trimmed(_)) => return Err(Err(error)),
                    // Only the tail of a chain of an open Loglet knows that it is not there.
                    Err(error @ ReadError::BeyondTail(_)) if sources.view.epoch() == OPEN_EPOCH => {
                        failure = Err(error)
                    }
                    Err(ReadError::BeyondTail(_)) => {}
                    Err(error) => failure = Err(error),
                },
                Err(stop @ (Stop::Sealed | Stop::Gone)) => return Err(Ok(stop)),
                Err(_) => {}
            }
        }
    }

    /// Returns the pads of a hole of a sealed Loglet.
    fn installed_hole(&self, at: u64, to: u64) -> Option<ReadBatch> {
        let s = &self.0;
        let state = super::lock(&s.state);
        let all = s.open.projection.units().len();
        let end = state.installed.as_ref().or(state.found.as_ref().filter(|end| end.units.len() == all))?;
        let hole = end.hole_at(at)?;
        hit("corfu.read.hole");
        let count = hole.min(to).saturating_sub(at).min(MAX_PADS);
        Some(ReadBatch { entries: (0..count).map(|_| pad()).collect(), remote: 0 })
    }

    /// Returns the entries from a position on that the pieces hold.
    fn entries(
        &self,
        at: u64,
        count: u64,
        place: &Place<'_>,
        found: Vec<(Piece, Option<bytes::Bytes>)>,
    ) -> Result<Vec<Entry>, ReadError> {
        let (mut entries, mut addr, end) = (Vec::new(), place.addr, place.addr + count);
        for (piece, content) in found {
            let (first, upto) = piece.span();
            match (piece, content) {
                (Piece::Data { count, .. }, Some(content)) => {
                    let batch = Batch::parse(content).map_err(|e| ReadError::Damaged(e.to_string()))?;
                    if batch.len() != count as usize {
                        return Err(ReadError::Damaged("a write has another number of entries".to_owned()));
                    }
                    let (skip, take) = ((addr - first) as usize, (end.min(upto) - addr) as usize);
                    entries.extend(batch.entries().skip(skip).take(take));
                }
                (Piece::Junk { .. }, _) => {
                    hit("corfu.read.junk");
                    let pads = (upto.min(end) - addr).min(MAX_PADS);
                    entries.extend((0..pads).map(|_| pad()));
                    if pads < upto.min(end) - addr {
                        break;
                    }
                }
                // What was deleted alone leaves a gap that readers pass. It may be a part of the write before it.
                (Piece::Erased { .. }, _) => {
                    hit("corfu.read.erased");
                    let last = upto.min(end).min(addr.saturating_add(MAX_PADS));
                    for at in first.max(place.addr)..last {
                        match entries.get_mut((at - place.addr) as usize) {
                            Some(entry) => *entry = pad(),
                            None => entries.push(pad()),
                        }
                    }
                    if last < upto.min(end) {
                        break;
                    }
                }
                (Piece::Deleted { .. }, _) if entries.is_empty() => {
                    let stretch = &self.0.open.projection.stretches[place.stretch];
                    let to = stretch.position_at(place.index, upto.min(end) - 1) + 1;
                    return Err(ReadError::Trimmed(Offset(to)));
                }
                _ => break,
            }
            addr = addr.max(upto);
        }
        if entries.is_empty() { Err(ReadError::BeyondTail(Offset(at))) } else { Ok(entries) }
    }
}

/// Waits for the next answer of one of these units, and removes it.
async fn any_found(
    asked: &mut Vec<(UnitId, BoxFuture<'_, Result<Found, Stop>>)>,
) -> (UnitId, Result<Found, Stop>) {
    std::future::poll_fn(|cx| {
        for i in 0..asked.len() {
            if let Poll::Ready(answer) = asked[i].1.as_mut().poll(cx) {
                return Poll::Ready((asked.swap_remove(i).0, answer));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns an entry for a position that holds no client's record.
fn pad() -> Entry {
    Entry { op: OpId::default(), payload: bytes::Bytes::new() }
}

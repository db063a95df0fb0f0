//! Fills holes and completes partial chains (corfu §3, fill; corfu-C3, corfu-C13): the head decides, and what it has is copied down the
//! chain.

use std::future::Future;
use std::task::Poll;

use bytes::Bytes;

use atoll_core::Tick;
use atoll_core::testing::hit;

use super::{Client, Stop, View, refusal};
use crate::message::{Erase, Fill, Look, Piece, Verdict, Write};
use crate::projection::{Place, UnitId};
use crate::unit::MAX_FILL;

/// What is at some addresses of a unit: the pieces, and the contents of the writes among them.
pub(crate) type Found = Vec<(Piece, Option<Bytes>)>;

impl Client {
    /// Makes positions complete: what the head of their chain has is on every unit, and what it does not have is junk on every unit. A
    /// concurrent append either wins, and is completed, or loses.
    pub async fn complete(&self, view: &View, from: u64, to: u64, until: Tick) -> Result<(), Stop> {
        let mut at = from;
        while at < to {
            let place = view.projection.place(at).ok_or(Stop::Trimmed)?;
            let count = place.run.min(to - at).min(u64::from(MAX_FILL));
            self.complete_run(view, &place, count, until).await?;
            at += count;
        }
        Ok(())
    }

    /// Like [`Client::complete`], for one position. Returns what is there now.
    pub async fn complete_one(&self, view: &View, at: u64, until: Tick) -> Result<Option<Piece>, Stop> {
        let place = view.projection.place(at).ok_or(Stop::Trimmed)?;
        self.complete_run(view, &place, 1, until).await
    }

    /// Completes addresses of one chain. Returns the last piece that its head has there.
    async fn complete_run(
        &self,
        view: &View,
        place: &Place<'_>,
        count: u64,
        until: Tick,
    ) -> Result<Option<Piece>, Stop> {
        let [head, rest @ ..] = place.chain.units.as_slice() else { return Ok(None) };
        hit("corfu.fill");
        let end = place.addr + count;
        // The look follows the junk on the same connection, so its answer usually has what the head decided.
        let (decided, seen) = both(
            self.junk(view, *head, place.addr, end, until),
            self.look(view, *head, place.addr..end, self.options.step_bytes, until),
        )
        .await;
        decided?;
        let is_unwritten = |(piece, _): &(Piece, _)| matches!(piece, Piece::Unwritten { .. });
        let mut seen = seen.ok().filter(|found| !found.iter().any(is_unwritten));
        let (mut at, mut last) = (place.addr, None);
        while at < end {
            let found = match seen.take() {
                Some(found) => found,
                None => self.look(view, *head, at..end, self.options.step_bytes, until).await?,
            };
            for (piece, content) in found {
                for unit in rest {
                    self.copy(view, *unit, &piece, content.as_ref(), until).await?;
                }
                at = at.max(piece.span().1);
                last = Some(piece);
            }
        }
        Ok(last)
    }

    /// Turns what is unwritten on one unit into junk.
    pub(crate) async fn junk(
        &self,
        view: &View,
        unit: UnitId,
        first: u64,
        end: u64,
        until: Tick,
    ) -> Result<(), Stop> {
        let count = u32::try_from(end - first).unwrap_or(MAX_FILL);
        let fill = Fill { log: self.log, config: Bytes::new(), epoch: view.epoch(), first, count };
        match self.ask(view, unit, fill, until).await?.verdict {
            Verdict::Done {} => Ok(()),
            verdict => Err(refusal(&verdict)),
        }
    }

    /// Deletes addresses on one unit as another one has them, even if this unit has not got them yet.
    pub(crate) async fn erase(
        &self,
        view: &View,
        unit: UnitId,
        first: u64,
        end: u64,
        until: Tick,
    ) -> Result<(), Stop> {
        let (log, epoch, count) = (self.log, view.epoch(), u32::try_from(end - first).unwrap_or(u32::MAX));
        let erase = Erase { log, config: Bytes::new(), epoch, first, count, unwritten_too: true };
        match self.ask(view, unit, erase, until).await?.verdict {
            Verdict::Done {} => Ok(()),
            verdict => Err(refusal(&verdict)),
        }
    }

    /// Returns what a unit has from an address on: at least one piece.
    pub(crate) async fn look(
        &self,
        view: &View,
        unit: UnitId,
        range: std::ops::Range<u64>,
        max_bytes: u32,
        until: Tick,
    ) -> Result<Found, Stop> {
        let (log, epoch, from, to) = (self.log, view.epoch(), range.start, range.end);
        let look = Look { log, config: Bytes::new(), epoch, from, to, max_bytes };
        let seen = self.ask(view, unit, look, until).await?;
        if seen.verdict != (Verdict::Done {}) {
            return Err(refusal(&seen.verdict));
        }
        let mut contents = seen.contents.into_iter();
        let with = |piece: Piece| match piece {
            Piece::Data { .. } => {
                let content = contents.next();
                (piece, content)
            }
            _ => (piece, None),
        };
        let found: Found = seen.pieces.into_iter().map(with).collect();
        if found.is_empty() { Err(super::NO_ANSWER) } else { Ok(found) }
    }

    /// Copies a piece of a unit to one that comes later in the chain. What is there already is the same.
    pub(crate) async fn copy(
        &self,
        view: &View,
        unit: UnitId,
        piece: &Piece,
        content: Option<&Bytes>,
        until: Tick,
    ) -> Result<(), Stop> {
        let (first, end) = piece.span();
        match (piece, content) {
            (Piece::Data { first, count, token }, Some(data)) => {
                let (log, epoch) = (self.log, view.epoch());
                let (first, count, token, data) = (*first, *count, *token, data.clone());
                let write = Write { log, config: Bytes::new(), epoch, first, count, token, data };
                match self.ask(view, unit, write, until).await?.verdict {
                    Verdict::Done {} | Verdict::Deleted {} | Verdict::Erased {} => Ok(()),
                    Verdict::Written { by } if by == Some(token) => Ok(()),
                    // It is a hole of the end that was installed meanwhile. Nobody reads it, whatever the units have there.
                    Verdict::Written { by: None } if view.is_ended => {
                        hit("corfu.fill.installed_hole");
                        Ok(())
                    }
                    Verdict::Written { .. } => {
                        crate::invariants::never_two_contents(first);
                        Err(super::NO_ANSWER)
                    }
                    verdict => Err(refusal(&verdict)),
                }
            }
            (Piece::Erased { .. }, _) => self.erase(view, unit, first, end, until).await,
            // Junk that the head has deleted was complete, or its trim raced this chain: later units still need it (corfu-C3).
            (Piece::Junk { .. } | Piece::Deleted { .. }, _) => self.junk(view, unit, first, end, until).await,
            _ => Ok(()),
        }
    }
}

/// Runs two futures at the same time. Whenever both can continue, `first` does before `second`.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut one, mut other) = (None, None);
    std::future::poll_fn(move |cx| {
        if one.is_none()
            && let Poll::Ready(out) = first.as_mut().poll(cx)
        {
            one = Some(out);
        }
        if other.is_none()
            && let Poll::Ready(out) = second.as_mut().poll(cx)
        {
            other = Some(out);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (left, right) => {
                (one, other) = (left, right);
                Poll::Pending
            }
        }
    })
    .await
}

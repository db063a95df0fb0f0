//! A write (corfu §3, append): down the chain, one unit after the other. The head decides who gets a position, and the tail makes it
//! readable.

use bytes::Bytes;

use atoll_contract::Unavailability;
use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};

use super::{Client, Stop, View, refusal};
use crate::message::{Token, Verdict, Write};
use crate::mutants;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// It is on every unit of the chain.
    Done,
    /// Another write, or junk, has a position of it. Nothing was written.
    Lost,
    /// It stopped in the middle: it may be on the first units of the chain, and may be completed by others. Resume it with the same token
    /// (corfu-C7).
    Unfinished(Stop),
    /// It did not begin: no unit has it, and none will.
    NotBegun(Stop),
}

impl Client {
    /// Writes consecutive positions, which must be at consecutive addresses of one chain ([`crate::projection::Place::run`]).
    /// Units that have the same write already, because it was sent before or a filler completed it, count as written (corfu-C2).
    pub async fn write_chain(
        &self,
        view: &View,
        position: u64,
        count: u32,
        token: Token,
        data: &Bytes,
        until: Tick,
    ) -> Wrote {
        let Some(place) = view.projection.place(position) else { return Wrote::NotBegun(Stop::Trimmed) };
        let mut sent = false;
        for (index, unit) in place.chain.units.iter().enumerate() {
            let (log, epoch, data) = (self.log, view.epoch(), data.clone());
            let write = Write { log, config: Bytes::new(), epoch, first: place.addr, count, token, data };
            let stop = |stop| if sent { Wrote::Unfinished(stop) } else { Wrote::NotBegun(stop) };
            let answer = match self.ask(view, *unit, write, until).await {
                Ok(answer) => answer,
                // The request may still arrive, so the write may happen.
                Err(why) => return Wrote::Unfinished(why),
            };
            match answer.verdict {
                Verdict::Done {} => {}
                Verdict::Written { by: Some(by) } if by == token => {
                    hit("corfu.append.mine");
                    if index > 0 && mutant(mutants::CORFU_C2) {
                        return Wrote::Lost;
                    }
                }
                Verdict::Erased {} if index > 0 || view.has_sole_writers => {
                    hit("corfu.append.erased");
                    return Wrote::Done;
                }
                Verdict::Written { .. } | Verdict::Deleted {} | Verdict::Erased {} if index == 0 => {
                    hit("corfu.append.lost");
                    return Wrote::Lost;
                }
                Verdict::Deleted {} => {
                    // Only what is complete is trimmed.
                    hit("corfu.append.trimmed");
                    return Wrote::Done;
                }
                Verdict::Written { .. } => {
                    crate::invariants::never_two_contents(position);
                    return Wrote::Unfinished(Stop::Unavailable(Unavailability::StorageFailed));
                }
                verdict => return stop(refusal(&verdict)),
            }
            sent = true;
        }
        Wrote::Done
    }
}

//! append: positions from the sequencer, then writes down the chains.

use bytes::Bytes;

use atoll_contract::{AppendError, Batch, Entry, Offset, Placement, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Tick, Ticket};

use super::{CorfuLoglet, Shared};
use crate::client::{Stop, Wrote};
use crate::message::{Grant, Granted, Piece, TakeNamed, Token};
use crate::mutants;

/// The most bytes of appends of one handle that are under way.
const WINDOW_BYTES: usize = 64 << 20;
/// How often one append may lose its positions to others. Each request for new ones names all that were lost.
const MOST_LOST: usize = 256;

/// Why an append stops.
enum Halt {
    /// The positions are another's: take others for the entries from this index on.
    Lost {
        from: usize,
        range: (u64, u64),
    },
    Failed(AppendError),
}

impl CorfuLoglet {
    pub(crate) fn start_append(
        &self,
        batch: Batch,
        not_below: Offset,
    ) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let s = &self.0;
        let bytes = batch.bytes().len();
        {
            let mut state = lock(&s.state);
            if state.installed.is_some() || state.found.is_some() {
                return Ticket::ready(Err(AppendError::Sealed));
            }
            if state.in_flight_bytes > 0 && state.in_flight_bytes + bytes > WINDOW_BYTES {
                return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy)));
            }
            state.in_flight_bytes += bytes;
        }
        let shared = s.clone();
        s.client.env.launch("corfu.append", async move {
            let done = Append::new(&shared, batch, not_below).run().await;
            lock(&shared.state).in_flight_bytes -= bytes;
            done
        })
    }
}

/// One append under way.
struct Append<'a> {
    shared: &'a Shared,
    batch: Batch,
    names: Batch,
    not_below: u64,
    until: Tick,
    /// The positions of the entries that are done.
    placed: Vec<(Offset, u32)>,
    done: usize,
    /// Positions that turned out to be another's.
    lost: Vec<(u64, u64)>,
    /// Whether a unit may have some of it.
    begun: bool,
}

impl<'a> Append<'a> {
    fn new(shared: &'a Shared, batch: Batch, not_below: Offset) -> Self {
        let names = Batch::of(batch.ops().map(|op| Entry { op, payload: Bytes::new() }));
        let until = shared.client.env.now().after(shared.client.options.append_timeout);
        let (placed, lost) = (Vec::new(), Vec::new());
        Append { shared, batch, names, not_below: not_below.0, until, placed, done: 0, lost, begun: false }
    }

    async fn run(mut self) -> Result<Placement, AppendError> {
        while self.done < self.batch.len() {
            let runs = match self.take().await {
                Ok(runs) => runs,
                // Some entries may be in the Loglet already.
                Err(AppendError::NotAppended(why)) if self.begun => return Err(AppendError::Unknown(why)),
                Err(error) => return Err(error),
            };
            for run in runs {
                match self.place(run).await {
                    Ok(()) => {}
                    Err(Halt::Lost { from, range }) => {
                        self.done = from;
                        self.lost.push(range);
                        break;
                    }
                    Err(Halt::Failed(error)) => return Err(error),
                }
            }
            let gives_up = self.lost.len() >= MOST_LOST || self.shared.client.env.now() >= self.until;
            if self.done < self.batch.len() && gives_up {
                return Err(AppendError::Unknown(Unavailability::Busy));
            }
        }
        Ok(Placement { runs: self.placed })
    }

    /// Takes positions for the entries that have none.
    async fn take(&self) -> Result<Vec<Granted>, AppendError> {
        let (s, client) = (self.shared, &self.shared.client);
        let names = self.names.slice(self.done, self.names.len()).bytes().clone();
        let (log, epoch, config, lost) =
            (client.log, s.open.epoch(), s.open.config.clone(), self.lost.clone());
        let take = TakeNamed { log, config, epoch, not_below: self.not_below, lost, names };
        let (node, _) = s.open.projection.sequencer;
        let call = client.env.call(node, take);
        let not = |why| Err(AppendError::NotAppended(why));
        // A position whose answer is lost stays a hole, because nobody writes there.
        let Ok(Ok(answer)) = client.env.within(client.options.round_timeout, call).await else {
            return not(Unavailability::NoSequencer);
        };
        match answer.grant {
            Grant::Granted { runs } => Ok(runs),
            Grant::Sealed {} => Err(AppendError::Sealed),
            Grant::NotSequencer {} => not(Unavailability::WrongSequencer),
            Grant::Forgotten {} => Err(AppendError::Forgotten),
            Grant::Unconfigured {} => not(Unavailability::Busy),
            Grant::Invalid {} => not(Unavailability::TooLarge),
        }
    }

    async fn place(&mut self, run: Granted) -> Result<(), Halt> {
        if run.new { self.write(run).await } else { self.confirm(run).await }
    }

    /// Writes the next entries at new positions, the parts on different chains one after the other: if one is lost, the entries behind it
    /// take later positions, too, and the batch stays in order.
    async fn write(&mut self, run: Granted) -> Result<(), Halt> {
        let s = self.shared;
        let (mut at, end) = (run.first, run.first + u64::from(run.count));
        while at < end {
            let Some(place) = s.open.projection.place(at) else { return Err(failed(Stop::Trimmed)) };
            let count = place.run.min(end - at) as u32;
            let data = self.batch.slice(self.done, self.done + count as usize).bytes().clone();
            let until = if mutant(mutants::CORFU_C7) { s.client.env.now() } else { self.until };
            let mut wrote = s.client.write_chain(&s.open, at, count, self.token(), &data, until).await;
            if mutant(mutants::CORFU_C7) && matches!(wrote, Wrote::Unfinished(_)) {
                wrote = Wrote::Lost;
            }
            self.begun |= !matches!(wrote, Wrote::NotBegun(_));
            match wrote {
                Wrote::Done => self.settle(at, count),
                Wrote::Lost => return Err(Halt::Lost { from: self.done, range: (at, end) }),
                Wrote::NotBegun(Stop::Unavailable(why)) if !self.begun => {
                    return Err(Halt::Failed(AppendError::NotAppended(why)));
                }
                Wrote::NotBegun(Stop::WrongUnit) if !self.begun => {
                    return Err(Halt::Failed(AppendError::NotAppended(Unavailability::StorageFailed)));
                }
                Wrote::Unfinished(stop) | Wrote::NotBegun(stop) => return Err(failed(stop)),
            }
            at += u64::from(count);
        }
        Ok(())
    }

    fn token(&self) -> Token {
        let mut state = lock(&self.shared.state);
        state.next_append += 1;
        Token { client: state.handle, number: state.next_append }
    }

    fn settle(&mut self, at: u64, count: u32) {
        self.done += count as usize;
        match self.placed.last_mut() {
            Some((first, n)) if first.0 + u64::from(*n) == at => *n += count,
            _ => self.placed.push((Offset(at), count)),
        }
    }

    /// An earlier attempt got positions for the next entries: settles what is there. Only if it is not these entries, and never will be,
    /// may they get other positions.
    async fn confirm(&mut self, run: Granted) -> Result<(), Halt> {
        hit("corfu.append.retry");
        let s = self.shared;
        let (mut at, end) = (run.first, run.first + u64::from(run.count));
        while at < end {
            let Some(place) = s.open.projection.place(at) else { return Err(failed(Stop::Trimmed)) };
            let count = place.run.min(end - at);
            self.begun = true;
            // The earlier attempt may still be on its way: leave it some time.
            s.client.env.sleep(s.client.options.fill_timeout).await;
            s.client.complete(&s.open, at, at + count, self.until).await.map_err(failed)?;
            let head = place.chain.units[0];
            let range = place.addr..place.addr + count;
            let found = s.client.look(&s.open, head, range, s.client.options.step_bytes, self.until).await;
            let mut upto = at;
            for (piece, content) in found.map_err(failed)? {
                let (first, end) = piece.span();
                if matches!(piece, Piece::Erased { .. }) {
                    // Only what was data is deleted alone, and nobody but these entries' writer had these positions.
                    let known = upto;
                    upto = upto.max(at + end.saturating_sub(place.addr).min(count));
                    (known..upto).for_each(|at| self.settle(at, 1));
                    continue;
                }
                let (Piece::Data { .. }, Some(content)) = (&piece, content) else { break };
                let batch = Batch::parse(content)
                    .map_err(|_| failed(Stop::Unavailable(Unavailability::StorageFailed)))?;
                let skip = (place.addr + (upto - at)).saturating_sub(first) as usize;
                for op in batch.ops().skip(skip) {
                    if upto >= at + count || self.names.ops().nth(self.done) != Some(op) {
                        break;
                    }
                    self.settle(upto, 1);
                    upto += 1;
                }
            }
            if upto < at + count {
                hit("corfu.append.retry_lost");
                return Err(Halt::Lost { from: self.done, range: (upto, upto + 1) });
            }
            at = upto;
        }
        Ok(())
    }
}

fn failed(stop: Stop) -> Halt {
    Halt::Failed(match stop {
        Stop::Sealed | Stop::Gone => AppendError::Sealed,
        Stop::Trimmed | Stop::WrongUnit => AppendError::Unknown(Unavailability::StorageFailed),
        Stop::Unavailable(why) => AppendError::Unknown(why),
    })
}

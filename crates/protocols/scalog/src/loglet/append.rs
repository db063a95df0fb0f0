//! append: to the primary that is responsible for each client, until all entries have a number.

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_contract::{AppendError, Batch, Entry, Offset, Placement, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{CallError, NodeId, Tick, Ticket};

use super::ScalogLoglet;
use crate::message::{Append, Outcome, Placed};
use crate::order::Order;

/// The primary of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Goal {
    pub shard: u32,
    pub segment: usize,
}

/// Why a part of an append was not done.
enum Halt {
    /// The view was old, or the server is busy or does not answer: try again. If its shard is ended meanwhile, the entries move.
    Again(Unavailability),
    /// Nothing of this part happened.
    Not(Unavailability),
    /// It may have happened, or may still happen.
    Unknown(Unavailability),
    Forgotten,
    Sealed,
}

/// Entries for one server.
struct Group {
    goal: Goal,
    /// Their places in the batch of the caller.
    indices: Vec<usize>,
    not_below: u64,
}

impl ScalogLoglet {
    pub(super) fn start_append(
        &self,
        batch: Batch,
        not_below: Offset,
    ) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let (s, bytes) = (&self.0, batch.bytes().len());
        if self.is_sealed() {
            return Ticket::ready(Err(AppendError::Sealed));
        }
        if let Err(busy) = self.reserve(bytes) {
            return Ticket::ready(Err(busy));
        }
        let loglet = self.clone();
        s.env.launch("scalog.append", async move {
            let done = loglet.run_append(batch, not_below.0, None).await;
            lock(&loglet.0.known).in_flight_bytes -= bytes;
            done
        })
    }

    /// Reserves room for appends of this handle. Whoever has it gives it back.
    pub(super) fn reserve(&self, bytes: usize) -> Result<(), AppendError> {
        let mut known = lock(&self.0.known);
        if known.in_flight_bytes > 0 && known.in_flight_bytes + bytes > self.0.options.window_bytes {
            return Err(AppendError::NotAppended(Unavailability::Busy));
        }
        known.in_flight_bytes += bytes;
        Ok(())
    }

    pub(super) async fn run_append(
        &self,
        batch: Batch,
        not_below: u64,
        chosen: Option<Goal>,
    ) -> Result<Placement, AppendError> {
        let s = &self.0;
        let until = s.env.now().after(s.options.append_timeout);
        let entries: Vec<Entry> = batch.entries().collect();
        let mut numbers: Vec<Option<u64>> = vec![None; entries.len()];
        // Entries that a shard that has ended does not have: they are in no earlier one either.
        let mut floors: Vec<u64> = vec![not_below; entries.len()];
        let mut begun = false;
        while numbers.iter().any(Option::is_none) {
            let groups = self.group(&entries, &numbers, &floors, chosen)?;
            let mut calls = Vec::new();
            for group in groups {
                let part = Batch::of(group.indices.iter().map(|i| entries[*i].clone()));
                let loglet = self.clone();
                let (goal, floor, is_chosen) = (group.goal, group.not_below, chosen.is_some());
                let call = async move { loglet.append_part(goal, is_chosen, part, floor, until).await };
                calls.push((group, s.env.launch("scalog.append_part", call)));
            }
            let mut worst: Option<AppendError> = None;
            let mut again = None;
            for (group, call) in calls {
                let (placed, halt) =
                    call.await.unwrap_or((Vec::new(), Some(Halt::Unknown(Unavailability::Stopping))));
                begun |= placed.iter().any(|p| p.first.is_some());
                self.note(&group, &placed, &mut numbers, &mut floors);
                match halt {
                    None => {}
                    Some(Halt::Again(why)) => again = Some(why),
                    Some(Halt::Sealed) => worst = Some(AppendError::Sealed),
                    // The caller must search. Anything milder would make it send the same again, for the same answer.
                    Some(Halt::Forgotten) if worst == Some(AppendError::Sealed) => {}
                    Some(Halt::Forgotten) => worst = Some(AppendError::Forgotten),
                    Some(Halt::Not(why)) => worst = worst.or(Some(AppendError::NotAppended(why))),
                    Some(Halt::Unknown(why)) => {
                        begun = true;
                        worst = worst.or(Some(AppendError::Unknown(why)));
                    }
                }
            }
            match worst {
                // Some entries may be in the log.
                Some(AppendError::NotAppended(why)) if begun => return Err(AppendError::Unknown(why)),
                Some(error) => return Err(error),
                None => {}
            }
            let Some(why) = again else { continue };
            if s.env.now() >= until {
                return Err(if begun { AppendError::Unknown(why) } else { AppendError::NotAppended(why) });
            }
            s.env.sleep(s.env.jitter(s.options.retry)).await;
            // An error shows up in the next round.
            let left = until.since(s.env.now());
            let _ = s.env.within(left, self.refresh()).await;
            if self.is_sealed() {
                return Err(AppendError::Sealed);
            }
        }
        Ok(Placement { runs: runs(&numbers) })
    }

    /// Groups the entries that have no number by the server that is responsible for their client.
    fn group(
        &self,
        entries: &[Entry],
        numbers: &[Option<u64>],
        floors: &[u64],
        chosen: Option<Goal>,
    ) -> Result<Vec<Group>, AppendError> {
        let known = lock(&self.0.known);
        let mut groups: BTreeMap<Goal, Group> = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate().filter(|(index, _)| numbers[*index].is_none()) {
            let home =
                known.order.home(entry.op.client.0).map(|h| Goal { shard: h.shard, segment: h.segment });
            // Without a live shard, nothing can be appended until one is added.
            let goal = chosen.or(home).ok_or(AppendError::NotAppended(Unavailability::NoQuorum))?;
            let floor = floors[index];
            let group = groups.entry(goal).or_insert(Group { goal, indices: Vec::new(), not_below: floor });
            group.indices.push(index);
            group.not_below = group.not_below.min(floor);
        }
        Ok(groups.into_values().collect())
    }

    /// Notes what a server said about the entries of a group.
    fn note(&self, group: &Group, placed: &[Placed], numbers: &mut [Option<u64>], floors: &mut [u64]) {
        let ended = self.with_order(|order| order.shards().get(&group.goal.shard).and_then(|s| s.ended));
        let all = placed.iter().flat_map(|p| (0..u64::from(p.count)).map(|i| p.first.map(|first| first + i)));
        for (index, number) in group.indices.iter().zip(all) {
            numbers[*index] = number;
            if let (None, Some(end)) = (number, ended) {
                floors[*index] = floors[*index].max(end.base);
            }
        }
    }

    /// Appends entries to one server. Returns their places, as far as they are known, and why that is not all.
    async fn append_part(
        &self,
        goal: Goal,
        is_chosen: bool,
        batch: Batch,
        not_below: u64,
        until: Tick,
    ) -> (Vec<Placed>, Option<Halt>) {
        let s = &self.0;
        let (view, node) = self.with_order(|order| (order.view(), primary(order, goal)));
        let Some(node) = node else { return (Vec::new(), Some(Halt::Not(Unavailability::NoQuorum))) };
        let chosen = is_chosen.then_some(goal.shard);
        let (loglet, config, batch) = (s.id, Bytes::new(), batch.bytes().clone());
        let mut request = Append { loglet, config, view, chosen, not_below, batch };
        loop {
            let left = until.since(s.env.now());
            let answer = match s.env.within(left, s.env.call(node, request.clone())).await {
                Ok(Ok(answer)) => answer.outcome,
                Ok(Err(CallError::NotSent(_) | CallError::Refused { .. })) => {
                    let why = Unavailability::NoSequencer;
                    return (Vec::new(), Some(if is_chosen { Halt::Not(why) } else { Halt::Again(why) }));
                }
                Ok(Err(_)) => return (Vec::new(), Some(Halt::Unknown(Unavailability::NoSequencer))),
                Err(_) => return (Vec::new(), Some(Halt::Unknown(Unavailability::NoQuorum))),
            };
            let halt = match answer {
                Outcome::Ordered { placed } => return (placed, None),
                Outcome::Unconfigured {} if request.config.is_empty() => {
                    request.config = s.config_bytes.clone();
                    continue;
                }
                Outcome::Finalized { placed, view } => {
                    hit("scalog.append.finalized");
                    // The end of the shard tells where the entries cannot be.
                    if self.with_order(Order::view) < view {
                        let _ = self.refresh().await;
                    }
                    return (placed, Some(Halt::Again(Unavailability::Busy)));
                }
                Outcome::Moved { view } if is_chosen => {
                    let _ = view;
                    Halt::Not(Unavailability::NoQuorum)
                }
                Outcome::Sealed {} => {
                    let _ = self.refresh().await;
                    Halt::Sealed
                }
                Outcome::Moved { .. } | Outcome::Behind {} | Outcome::Busy {} => {
                    Halt::Again(Unavailability::Busy)
                }
                Outcome::Forgotten {} => Halt::Forgotten,
                Outcome::Gone {} => Halt::Sealed,
                Outcome::DiskFull {} => Halt::Not(Unavailability::DiskFull),
                Outcome::StorageFailed {} => Halt::Unknown(Unavailability::StorageFailed),
                Outcome::WrongIdentity {} | Outcome::Unconfigured {} => Halt::Not(Unavailability::NoQuorum),
                Outcome::Invalid {} => Halt::Not(Unavailability::TooLarge),
            };
            return (Vec::new(), Some(halt));
        }
    }
}

fn primary(order: &Order, goal: Goal) -> Option<NodeId> {
    let shard = order.shards().get(&goal.shard)?;
    shard.servers.get(goal.segment).map(|server| server.node)
}

/// Joins consecutive numbers.
fn runs(numbers: &[Option<u64>]) -> Vec<(Offset, u32)> {
    let mut runs: Vec<(Offset, u32)> = Vec::new();
    for number in numbers.iter().flatten() {
        match runs.last_mut() {
            Some((first, n)) if first.0 + u64::from(*n) == *number => *n += 1,
            _ => runs.push((Offset(*number), 1)),
        }
    }
    runs
}

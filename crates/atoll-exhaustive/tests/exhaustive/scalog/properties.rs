//! What must hold in every state (scalog.md §12), and what some state must show.

use stateright::Property;

use super::log::{Entry, Spot};
use super::model::{Phase, Race, State};

pub fn all() -> Vec<Property<Race>> {
    let mut all = safety();
    all.extend(reached());
    all
}

fn safety() -> Vec<Property<Race>> {
    vec![
        Property::always("G1 numbers and ordered records correspond", |_, state: &State| {
            let numbered = &state.log.newest().numbered;
            let mut spots: Vec<Spot> = numbered.iter().map(|(_, spot)| *spot).collect();
            spots.sort_unstable();
            spots.dedup();
            let are_dense = numbered.iter().zip(0..).all(|((number, _), expected)| *number == expected);
            are_dense && spots.len() == numbered.len()
        }),
        Property::always("G1 all number alike", |_, state: &State| {
            let server = &state.servers[0];
            // Without a gap, it has applied what everybody applies.
            server.skipped.is_empty() || state.seen_by(0).numbered == state.log.at(server.applied).numbered
        }),
        Property::always("G2 cuts never fall", |_, state: &State| !state.log.newest().fell),
        Property::always("G3 what is ordered is on all servers of its shard", |_, state: &State| {
            state.log.newest().numbered.iter().all(|(_, spot)| state.is_everywhere(*spot))
        }),
        Property::always("G4 what is acknowledged has its number", |_, state: &State| {
            let (Phase::Done(number) | Phase::Found(number)) = state.client.phase else { return true };
            state.ours().iter().any(|(at, _)| *at == number)
        }),
        Property::always("G6 a shard that has ended does not change", |_, state: &State| {
            !state.log.newest().changed_after_end
        }),
        Property::always("G7 what never gets a number has none", |_, state: &State| {
            !state.client.told_never || state.ours().iter().all(|(_, (shard, _, _))| *shard != 0)
        }),
        Property::always("S15 a record has one number", |_, state: &State| state.ours().len() <= 1),
    ]
}

fn reached() -> Vec<Property<Race>> {
    fn done_in(state: &State, shard: u32) -> bool {
        let ours = state.ours();
        matches!(state.client.phase, Phase::Done(_) | Phase::Found(_))
            && ours.iter().all(|(_, spot)| spot.0 == shard)
    }
    vec![
        Property::sometimes("an append gets its number before its shard ends", |_, state: &State| {
            done_in(state, 0)
        }),
        Property::sometimes("an append goes to another shard when its own has ended", |_, state: &State| {
            done_in(state, 1) && state.client.told_never
        }),
        Property::sometimes("a client finds its first attempt by a search", |_, state: &State| {
            matches!(state.client.phase, Phase::Found(_)) && done_in(state, 0)
        }),
        Property::sometimes(
            "an append gets its number although another orderer took over",
            |_, state: &State| state.orderer.second && done_in(state, 0),
        ),
        Property::sometimes("a cut comes after the end of its shard", |_, state: &State| {
            let is_end = |entry: &Entry| matches!(entry, Entry::End(0) | Entry::Stuck);
            let end = state.log.entries.iter().position(is_end);
            end.is_some_and(|end| state.log.entries[end..].iter().any(|entry| entry.counts(0).is_some()))
        }),
        Property::sometimes("an orderer ends the shard because it is stuck", |_, state: &State| {
            state.log.entries.contains(&Entry::Stuck) && done_in(state, 1)
        }),
        Property::sometimes("the last cut before the end has the append", |_, state: &State| {
            let shard = &state.log.newest().order.shards()[&0];
            state.log.entries.contains(&Entry::End(1)) && shard.ended.is_some() && done_in(state, 0)
        }),
    ]
}

//! Makes the log of a Scalog-Store trimmable, and trims it (apps §4): below the first live value, once the map can be had without it.

use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::OpId;
use atoll_core::testing::mutant;

use super::client::{PlaceReplica, value_in};
use super::record::PutRecord;
use crate::entry;
use crate::history::Index;
use crate::mutants;
use crate::shared_log::{Place, Slot};
use crate::store::{CompactError, Readers, checkpoint_surely};

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thinned {
    /// How many live values were copied to the tail.
    pub moved: u64,
    /// The index of the checkpoint.
    pub checkpoint: Index,
    /// Everything below was trimmed.
    pub trimmed_below: u64,
}

/// Moves the values of at most `max_moves` keys that lie more than `patience` positions below the tail, writes a checkpoint of the map and
/// reads it back, and trims. May be stopped anywhere: what it has done so far is correct, and the next run continues. `id` names the
/// checkpoint; no other one has it.
pub async fn thin(
    map: &Arc<PlaceReplica>,
    readers: &Readers,
    id: OpId,
    patience: u64,
    max_moves: usize,
) -> Result<Thinned, CompactError> {
    let mut done = Thinned::default();
    let below = map.play().await?.saturating_sub(patience);
    let mut reached = 0;
    for (old, key) in map.view(|map, _| map.live_below(below, max_moves)) {
        if let Some(end) = move_value(map, old, key).await? {
            reached = reached.max(end);
            done.moved += 1;
        }
    }
    map.play_to(reached).await?;
    done.checkpoint = checkpoint_surely(map, id, usize::MAX).await?;
    let needed = if mutant(mutants::APPS_A7) { u64::MAX } else { readers.lowest() };
    // The map may have moved on: a value that was live is garbage by now, and a new one lies above the checkpoint.
    let first_live = if mutant(mutants::APPS_A7) { u64::MAX } else { map.view(|map, _| map.first_live()) };
    done.trimmed_below = done.checkpoint.min(first_live).min(needed);
    if done.trimmed_below > 0 {
        map.log().trim_prefix(done.trimmed_below).await?;
    }
    Ok(done)
}

/// Copies a value to the tail. Returns the position above the copy; none if the value is gone.
async fn move_value(map: &PlaceReplica, old: Place, key: Bytes) -> Result<Option<u64>, CompactError> {
    let Slot::Data(data) = map.log().read_place(old).await? else { return Ok(None) };
    let Some(value) = value_in(data, &key) else { return Ok(None) };
    let copy = PutRecord::Move { key, old: old.position, value };
    Ok(Some(map.append_surely(entry::record(&copy)).await? + 1))
}

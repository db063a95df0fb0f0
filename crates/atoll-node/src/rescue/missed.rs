//! Entries that are left and have no known position. A survivor may have missed the newest change of a log's chain and still store entries
//! of the Loglet that follows the last known one. Where that begins, only the newer chain says.
//!
//! The list of all Loglets also shows whether a role that said nothing of one has nothing of it.

use std::collections::BTreeMap;

use atoll_contract::LogletId;
use atoll_log::Chain;
use atoll_log::origin::{self, Origin};

use super::error::RescueError;
use super::survivor::{Survivor, on};

/// The bits of an id that say for which log it was made, and which Loglet it follows ([`origin`]).
const ORIGIN_BITS: u128 = (1 << 80) - 1;

/// The Loglets that the survivors store, by [`ORIGIN_BITS`].
pub(super) struct Held(BTreeMap<u128, Vec<Place>>);

/// The number of a survivor, a kind, and a Loglet of that kind that it stores.
struct Place {
    survivor: usize,
    kind: &'static str,
    id: LogletId,
}

impl Held {
    /// Lists them.
    pub(super) async fn of(survivors: &[Survivor]) -> Result<Self, RescueError> {
        let mut held: BTreeMap<u128, Vec<Place>> = BTreeMap::new();
        for (number, survivor) in survivors.iter().enumerate() {
            for provider in survivor.registry().providers() {
                let mut above = None;
                loop {
                    let lister = provider.clone();
                    let listed =
                        on(&survivor.parts.env, async move { lister.held_here(above).await }).await?;
                    let (ids, more) = listed.ok_or(RescueError::Late("listing the Loglets of a survivor"))?;
                    above = ids.last().copied();
                    for id in ids {
                        let place = Place { survivor: number, kind: provider.kind(), id };
                        held.entry(id.0 & ORIGIN_BITS).or_default().push(place);
                    }
                    if !more || above.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(Held(held))
    }

    /// Whether a survivor stores a Loglet.
    pub(super) fn has(&self, survivor: usize, id: LogletId) -> bool {
        let places = self.0.get(&(id.0 & ORIGIN_BITS));
        places.into_iter().flatten().any(|place| place.survivor == survivor && place.id == id)
    }

    /// Says what is stored of Loglets behind the last one that this chain names.
    pub(super) async fn behind(
        &self,
        survivors: &[Survivor],
        log: &str,
        chain: &Chain,
    ) -> Result<Vec<String>, RescueError> {
        let next = origin::new_id(0, log, Origin::Extend(chain.active().loglet)).0 & ORIGIN_BITS;
        let mut notes = Vec::new();
        for Place { survivor, kind, id } in self.0.get(&next).into_iter().flatten() {
            let survivor = &survivors[*survivor];
            let Some(remains) = survivor.remains(kind, *id, true).await? else { continue };
            let entries = remains.range.end.since(remains.range.start).saturating_sub(remains.missing);
            if entries > 0 {
                let path = survivor.path().display();
                notes.push(format!(
                    "{path} has {entries} entries from behind the last change of the chain that is left: their positions are \
                     unknown, and they are NOT kept"
                ));
            }
        }
        Ok(notes)
    }
}

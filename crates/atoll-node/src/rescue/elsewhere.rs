//! Chains that were in registers outside of the cluster. The registers at home say where a chain went. The place itself still has it,
//! unless it was lost, too: then the chain is kept as it was when it left.

use std::collections::BTreeMap;

use atoll_contract::{RegisterError, Versioned};
use atoll_log::virtual_log::CHAIN_PREFIX;
use atoll_register_store::{HOME, Left};

use super::error::RescueError;
use super::survivor::{Survivor, on};

/// How many places a chain is followed through.
const MOST_STEPS: usize = 16;

/// Returns the newest chain of a log, and what people should know about where it was. `found` is what the registers at home have, and
/// `places` are URLs by name.
pub(super) async fn newest(
    survivors: &[Survivor],
    places: &BTreeMap<String, String>,
    log: &str,
    found: &Versioned,
) -> Result<(Versioned, Option<String>), RescueError> {
    let damaged = |why| RescueError::Moved { log: log.to_owned(), why };
    let Some(mut here) = Left::read(found).map_err(damaged)? else { return Ok((found.clone(), None)) };
    for _ in 0..MOST_STEPS {
        let Some(to) = here.to.clone().filter(|to| to != HOME) else { return Ok((here.value, None)) };
        let why = match read(survivors, places, log, &to).await? {
            Ok(Some(there)) if there.turn >= here.turn => {
                here = there;
                continue;
            }
            // It was on its way, so nothing was written there.
            Ok(_) if !here.arrived => return Ok((here.value, None)),
            Ok(_) => "they have lost it".to_owned(),
            Err(why) => why,
        };
        let words = format!(
            "its chain was in the registers {to:?}, and could not be read there: {why}. What follows is the chain as it was when it left; \
             entries in later segments are lost"
        );
        return Ok((here.value, Some(words)));
    }
    Ok((here.value, Some("its chain was moved too often to be followed".to_owned())))
}

/// Reads the chain of a log at a place. The inner error says why it cannot be read.
async fn read(
    survivors: &[Survivor],
    places: &BTreeMap<String, String>,
    log: &str,
    place: &str,
) -> Result<Result<Option<Left>, String>, RescueError> {
    let Some(survivor) = survivors.first() else { return Ok(Err("no node is left".to_owned())) };
    let Some(url) = places.get(place) else {
        return Ok(Err("the configuration of the new node has no [[registers]] with this name".to_owned()));
    };
    let parts = &survivor.parts;
    let opened = match parts.protocols().place(url) {
        Ok(opened) => opened.open(&parts.env),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let register = opened.register(&format!("{CHAIN_PREFIX}{log}"));
    let read: Result<Versioned, RegisterError> = on(&parts.env, async move { register.read().await }).await?;
    Ok(read.map_err(|error| error.to_string()).and_then(|seen| Left::read(&seen)))
}

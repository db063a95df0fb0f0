//! checkTail, waits for the tail, and seal (the paper's §4.2.2, virtuallog §10). The tail is the first unfilled position. The Loglet is
//! sealed once all stripes are.

use std::sync::Arc;

use atoll_contract::{LogletError, Offset, Tail, Unavailability};
use atoll_core::testing::{hit, mutant};

use crate::config::sealed_config;
use crate::mutants;
use crate::stripes::{Stripes, on_each};

/// Asks all stripes, and returns the first unfilled position.
pub(crate) async fn check_tail(stripes: &Arc<Stripes>) -> Result<Tail, LogletError> {
    let until = stripes.env.now().after(stripes.options.op_timeout);
    loop {
        let checked =
            on_each(stripes, "striped.check_tail", |_, part| async move { part.check_tail().await }).await;
        let tails = all_or_error(checked)?;
        let sealed = tails.iter().filter(|tail| tail.sealed.is_some()).count();
        for (stripe, tail) in tails.iter().enumerate() {
            stripes.learn_tail(stripe, tail);
        }
        let mut at = stripes.layout.first_unfilled(tails.iter().map(|tail| tail.at));
        if sealed == 0 {
            return Ok(Tail { at, sealed: None });
        }
        if sealed == tails.len() {
            if mutant(mutants::STRIPED_LONGEST) {
                let ends = tails.iter().enumerate().map(|(i, tail)| stripes.layout.whole(i, tail.at));
                at = ends.max().unwrap_or(at);
            }
            let config = sealed_config(tails.into_iter().filter_map(|tail| tail.sealed).collect());
            return Ok(Tail { at, sealed: Some(config) });
        }
        // A sealer has died in the middle, or is at work. The open stripes could still be filled (striped-I4).
        hit("striped.check_tail.some_sealed");
        seal(stripes).await?;
        if stripes.env.now() >= until {
            return Err(LogletError::Unavailable(Unavailability::Busy));
        }
    }
}

/// Waits until the first unfilled position may be above `above`, or the Loglet is sealed.
pub(crate) async fn wait_tail(stripes: &Arc<Stripes>, above: Offset) -> Result<Tail, LogletError> {
    // Each turn ends when the stripe that lags most has moved. Then another one may lag.
    for _ in 0..=stripes.parts.len() {
        let filled = stripes.filled();
        let known = stripes.layout.first_unfilled(filled.iter().copied());
        if known > above {
            break;
        }
        let (slowest, at) = stripes.layout.place(known);
        let tail = stripes.parts[slowest].wait_tail(at).await?;
        if tail.sealed.is_some() {
            return check_tail(stripes).await;
        }
        stripes.learn(slowest, tail.at);
        if tail.at <= at {
            // It has ended early.
            break;
        }
    }
    Ok(Tail { at: stripes.known_tail(), sealed: None })
}

/// Seals all stripes. Fails if one cannot be sealed.
pub(crate) async fn seal(stripes: &Arc<Stripes>) -> Result<(), LogletError> {
    let sealed = on_each(stripes, "striped.seal", |_, part| async move { part.seal().await }).await;
    if sealed.iter().any(Result::is_ok) {
        stripes.found_sealed();
    }
    all_or_error(sealed).map(|_| ())
}

/// Returns the results of all stripes, or an error. A deletion is permanent, whatever the other stripes answer (vlog-L7).
pub(crate) fn all_or_error<T>(results: Vec<Result<T, LogletError>>) -> Result<Vec<T>, LogletError> {
    let mut all = Vec::with_capacity(results.len());
    let mut error = None;
    for result in results {
        match result {
            Ok(value) => all.push(value),
            Err(LogletError::Gone) => return Err(LogletError::Gone),
            Err(e) => error = error.or(Some(e)),
        }
    }
    error.map_or(Ok(all), Err)
}

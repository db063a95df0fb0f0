//! A new projection (corfu §4; paper Figure 3): seal, decide, install.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::testing::hit;
use atoll_core::{Class, Tick};

use super::{CorfuLog, LogError};
use crate::client::View;
use crate::message::{SealTo, Start, StopTo, Verdict};
use crate::projection::{Projection, ProjectionError, UnitId};
use crate::roles::SEQUENCER;

/// How long a client leaves a reconfiguration to the one that began it.
const ROLL_FORWARD_AFTER: Duration = Duration::from_millis(200);

/// What a change of the projection depends on.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    /// The position above every one that the sealed units have. Everything complete is below it.
    pub start: u64,
}

impl CorfuLog {
    /// Changes the projection. `next` gets the current one, and what was found out by the seal; it returns the next one, whose epoch is set
    /// here. All others learn of it from the first refused request. The new sequencer starts above everything that was sealed (corfu-K7).
    pub(super) async fn change(
        &self,
        next: impl Fn(&Projection, &Sealed) -> Result<Projection, ProjectionError>,
    ) -> Result<View, LogError> {
        let view = self.refresh().await?;
        let epoch = view.epoch() + 1;
        // Check before anything is sealed, because a seal cannot be undone.
        next(&view.projection, &Sealed { start: view.projection.active().start })?.check(None)?;
        let sealed = self.seal(&view, epoch).await?;
        let mut projection = next(&view.projection, &sealed)?;
        projection.epoch = epoch;
        projection.check(None)?;
        match self.install(view.epoch(), &projection).await {
            Err(LogError::Overtaken) => {
                hit("corfu.log.overtaken");
                self.refresh().await?;
                return Err(LogError::Overtaken);
            }
            done => done?,
        }
        let new = self.refresh().await?;
        let next = sealed.start.max(projection.active().start);
        self.start_sequencer(&new, next).await;
        Ok(new)
    }

    /// Returns a projection that is newer than one that a unit refused. If none is installed for a while, the reconfiguration that sealed
    /// the unit has died: this client completes it, with the same ranges.
    pub(super) async fn newer(&self, than: u64, until: Tick) -> Result<View, LogError> {
        let since = self.client.env.now();
        loop {
            let view = self.refresh().await?;
            if view.epoch() > than {
                return Ok(view);
            }
            if !self.client.pause(until).await {
                return Err(LogError::NotSealed);
            }
            if self.client.env.now().since(since) >= ROLL_FORWARD_AFTER {
                hit("corfu.log.roll_forward");
                match self.change(|now, _| Ok(now.clone())).await {
                    Ok(view) => return Ok(view),
                    Err(LogError::Gone) => return Err(LogError::Gone),
                    Err(_) => {}
                }
            }
        }
    }

    /// Seals the units to an epoch, and stops the sequencer. Each chain of the last range needs a sealed unit, or appends could complete in
    /// the old epoch; the others are the ones that failed (corfu-C8, corfu-C19).
    async fn seal(&self, view: &View, epoch: u64) -> Result<Sealed, LogError> {
        let client = &self.client;
        let (sequencer, _) = view.projection.sequencer;
        client.env.post(sequencer, Class::Control, SEQUENCER, StopTo { log: client.log, epoch });
        let units = view.projection.units();
        let mut calls = Vec::new();
        for unit in &units {
            let request = SealTo { log: client.log, config: Bytes::new(), epoch };
            let (client, view, unit) = (client.clone(), view.clone(), *unit);
            let asked = async move { client.ask_once(&view, unit, request).await };
            calls.push((unit, self.client.env.launch("corfu.seal", asked)));
        }
        let mut next: BTreeMap<UnitId, u64> = BTreeMap::new();
        for (unit, call) in calls {
            match call.await {
                Ok(Ok(answer)) if answer.verdict == (Verdict::Done {}) => {
                    next.insert(unit, answer.next);
                }
                Ok(Ok(answer)) if answer.verdict == (Verdict::Sealed {}) => {
                    self.refresh().await?;
                    return Err(LogError::Overtaken);
                }
                _ => hit("corfu.log.unit_not_sealed"),
            }
        }
        let chains = &view.projection.active().chains;
        if !chains.iter().all(|chain| chain.units.iter().any(|unit| next.contains_key(unit))) {
            return Err(LogError::NotSealed);
        }
        let start = view.projection.position_above(&next).max(view.projection.active().start);
        Ok(Sealed { start })
    }

    /// Starts the sequencer of a projection. If it does not answer, appends continue without it.
    async fn start_sequencer(&self, view: &View, next: u64) {
        let client = &self.client;
        let (node, _) = view.projection.sequencer;
        let start = Start { log: client.log, config: view.config.clone(), next };
        let _ = client.env.within(client.options.round_timeout, client.env.call(node, start)).await;
    }
}

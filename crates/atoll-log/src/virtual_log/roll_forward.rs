//! Completes a reconfiguration that another node left unfinished (virtuallog §4). This is an extend with a copy of the active
//! configuration in which the provider has replaced nodes that do not answer. The configuration that the dead reconfigurer wanted is lost,
//! by design.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Tick;

use super::install::Installed;
use super::room::Purpose;
use super::{ReconfigError, Shared};
use atoll_contract::loglet::{LogletId, LogletSpec};
use atoll_core::sync::lock;

/// Roll-forwards closer together than this count as a storm.
const CALM_AFTER: Duration = Duration::from_secs(2);
/// Pause before the second roll-forward in a storm. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Highest level of a storm. At this level, the pause is 640 ms.
const MAX_LEVEL: u32 = 6;

/// Paces roll-forwards: if every new segment fails at once, attempts become rarer (virtuallog §5).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Storm {
    last: Option<Tick>,
    level: u32,
}

impl Storm {
    /// Counts an attempt, and returns how long it must wait first.
    fn next_wait(&mut self, now: Tick) -> Duration {
        self.level = match self.last {
            Some(last) if now.since(last) < CALM_AFTER => (self.level + 1).min(MAX_LEVEL),
            _ => 0,
        };
        self.last = Some(now);
        if self.level == 0 { Duration::ZERO } else { FIRST_WAIT * 2u32.pow(self.level - 1) }
    }
}

impl Shared {
    /// Installs a successor of a Loglet that was seen sealed, unless another node already has.
    pub(super) async fn roll_forward(self: &Arc<Self>, of: LogletId) -> Result<(), ReconfigError> {
        let wait = lock(&self.state).storm.next_wait(self.env.now());
        if !wait.is_zero() {
            self.env.sleep(self.env.jitter(wait)).await;
        }
        match self.extend_from(of, LogletSpec::default(), Purpose::Needed).await? {
            Installed::Mine(_) | Installed::Lost(_) => Ok(()),
        }
    }
}

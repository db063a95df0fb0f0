//! Writing a new chain by conditional write, and finding out whether it was written (vlog-E6, virtuallog §8).

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Tick;
use atoll_core::testing::hit;

use super::refresh::parse;
use super::{LogError, ReconfigError, Shared, Step};
use crate::chain::{Chain, VersionedChain};
use crate::origin::{self, Origin};
use atoll_contract::loglet::{LogletId, Unavailability};
use atoll_contract::register::{Nonce, RegisterError, Version, Versioned, Written};

/// First pause before a step is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(3);
/// Longest such pause.
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The outcome of an install, with the newest chain in either case.
pub(super) enum Installed {
    /// This writer's chain was installed. A later chain may have replaced it already.
    Mine(Arc<VersionedChain>),
    /// Another writer's chain came first; this one was never installed and never will be.
    Lost(Arc<VersionedChain>),
}

impl Shared {
    /// Returns a unique nonce.
    pub(super) fn draw_nonce(&self) -> Nonce {
        Nonce(u128::from(self.env.random()) << 64 | u128::from(self.env.random()))
    }

    /// Returns a new id for a Loglet that is made for a change of this log.
    pub(super) fn draw_loglet(&self, origin: Origin) -> LogletId {
        origin::new_id(self.env.random(), &self.name, origin)
    }

    /// Returns the deadline of a reconfiguration that begins now.
    pub(super) fn reconfigure_until(&self) -> Tick {
        self.env.now().after(self.options.reconfigure_within)
    }

    /// Writes `chain` if the register is still at `expected`. Resolves an unknown outcome: a retry of the same write gets the first
    /// answer, and a later chain remembers the nonces of its predecessors. Fails at once if the registers have no room for a new log, which
    /// nobody waits for yet.
    pub(super) async fn install(
        &self,
        expected: Version,
        chain: Chain,
        until: Tick,
    ) -> Result<Installed, ReconfigError> {
        let (nonce, value) = (chain.nonce(), chain.to_value()?);
        let mut pause = PAUSE;
        let mut doubt = false;
        loop {
            let why = match self.register.write_if(expected, value.clone(), nonce).await {
                Ok(Written::Yes(version)) => {
                    return Ok(Installed::Mine(self.adopt(VersionedChain { version, chain })));
                }
                Ok(Written::Conflict(other)) => return self.decide(other, nonce),
                Err(RegisterError::NotWritten(why)) => why.into(),
                Err(RegisterError::Unknown(why)) => {
                    hit("vlog.install.unknown");
                    doubt = true;
                    why.into()
                }
                Err(e) => return Err(LogError::from(e).into()),
            };
            let is_refused = why == Unavailability::DiskFull && expected == Version(0);
            if is_refused || self.env.now() >= until {
                let step = if doubt { Step::Install } else { Step::CheckTail };
                return Err(ReconfigError::Unavailable { step, why });
            }
            self.env.sleep(self.env.jitter(pause)).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    /// Decides the outcome of an install that found the register at another version. The install succeeded if this chain, or one before
    /// it, has this writer's nonce.
    fn decide(&self, other: Versioned, nonce: Nonce) -> Result<Installed, ReconfigError> {
        if other.version == Version(0) {
            // A register that was written is never at version 0 again.
            return Err(ReconfigError::Unavailable { step: Step::Install, why: Unavailability::NoQuorum });
        }
        let wrote_it = other.nonce == nonce;
        let found = self.adopt(parse(other)?);
        if wrote_it || found.chain.was_installed(nonce) {
            hit("vlog.install.mine_after_all");
            return Ok(Installed::Mine(found));
        }
        hit("vlog.install.lost");
        Ok(Installed::Lost(found))
    }
}

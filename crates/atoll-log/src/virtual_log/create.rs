//! Creates a log by installing its first chain with a conditional write from version 0. Of several creators, one wins (virtuallog §8). A
//! deleted log is created anew from the version that marks its deletion (`delete.rs`).

use std::sync::Arc;

use super::install::Installed;
use super::{LogError, ReconfigError, Shared, Step};
use crate::chain::{Chain, VersionedChain};
use crate::origin::Origin;
use atoll_contract::loglet::{LogletSpec, PlanError, Unavailability};
use atoll_contract::register::Version;

impl Shared {
    pub(super) async fn create(
        self: &Arc<Self>,
        spec: LogletSpec,
    ) -> Result<Arc<VersionedChain>, ReconfigError> {
        let before = match self.refreshed_or_deleted().await {
            Ok(chain) if chain.chain.is_deleted() => Some(chain),
            Ok(chain) => return Ok(chain),
            Err(LogError::NoSuchLog) => None,
            Err(e) => return Err(e.into()),
        };
        let wanted = spec.kind.as_deref().or(self.options.first_kind.as_deref());
        let kind = match wanted.or_else(|| self.registry.kinds().next()) {
            Some(kind) => kind,
            None => return Err(PlanError::UnknownKind { wanted: String::new(), known: String::new() }.into()),
        };
        let provider = self.registry.provider(kind)?.clone();
        let config = provider.plan(&spec, None).await?;
        let nonce = self.draw_nonce();
        let (id, version, chain) = match before {
            None => {
                let id = self.draw_loglet(Origin::Create);
                (id, Version(0), Chain::first(nonce, id, provider.kind(), config.clone())?)
            }
            Some(deleted) => {
                atoll_core::testing::hit("vlog.create.anew");
                let id = self.draw_loglet(Origin::Extend(deleted.chain.active().loglet));
                let chain = deleted.chain.created_anew(nonce, id, provider.kind(), config.clone())?;
                (id, deleted.version, chain)
            }
        };
        self.provision(&provider, id, &config);
        match self.install(version, chain, self.reconfigure_until()).await {
            Ok(Installed::Mine(chain)) => Ok(chain),
            Ok(Installed::Lost(chain)) => {
                self.discard(provider, id, config);
                if chain.chain.is_deleted() { Err(ReconfigError::Deleted) } else { Ok(chain) }
            }
            // No attempt was in doubt, so no chain names the Loglet.
            Err(ReconfigError::Unavailable { step: Step::CheckTail, why }) => {
                self.discard(provider, id, config);
                match why {
                    Unavailability::DiskFull => Err(ReconfigError::NoRoom),
                    why => Err(ReconfigError::Unavailable { step: Step::CheckTail, why }),
                }
            }
            Err(e) => Err(e),
        }
    }
}

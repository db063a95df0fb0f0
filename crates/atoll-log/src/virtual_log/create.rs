//! The first chain of a log: bootstrap from version 0 by conditional write. Of several, one wins (virtuallog §8).

use std::sync::Arc;

use super::install::Installed;
use super::{LogError, ReconfigError, Shared};
use crate::chain::{Chain, VersionedChain};
use crate::loglet::{LogletSpec, PlanError};
use crate::origin::Origin;
use crate::register::Version;

impl Shared {
    pub(super) async fn create(
        self: &Arc<Self>,
        spec: LogletSpec,
    ) -> Result<Arc<VersionedChain>, ReconfigError> {
        match self.refreshed().await {
            Ok(chain) => return Ok(chain),
            Err(LogError::NoSuchLog) => {}
            Err(e) => return Err(e.into()),
        }
        let wanted = spec.kind.as_deref().or(self.options.first_kind.as_deref());
        let kind = match wanted.or_else(|| self.registry.kinds().next()) {
            Some(kind) => kind,
            None => return Err(PlanError::UnknownKind { wanted: String::new(), known: String::new() }.into()),
        };
        let provider = self.registry.provider(kind)?.clone();
        let config = provider.plan(&spec, None).await?;
        let (nonce, id) = (self.draw_nonce(), self.draw_loglet(Origin::Create));
        let chain = Chain::first(nonce, id, provider.kind(), config.clone())?;
        self.provision(&provider, id, &config);
        match self.install(Version(0), chain, self.reconfigure_until()).await? {
            Installed::Mine(chain) => Ok(chain),
            Installed::Lost(chain) => {
                self.discard(provider, id, config);
                Ok(chain)
            }
        }
    }
}

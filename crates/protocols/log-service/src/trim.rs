//! prefixTrim: a message says up to where the log is given up, and later messages of entries repeat it. Whole messages below it are purged
//! afterwards, but never the newest one of entries: it says what is below it, and where the log goes on (service-S5).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_contract::Offset;
use atoll_core::testing::{hit, mutant};

use crate::known::Trouble;
use crate::layout::Body;
use crate::loglet::Shared;
use crate::mutants;
use crate::service::{Fault, Request};

impl Shared {
    pub(crate) async fn prefix_trim(self: &Arc<Self>, to: Offset) -> Result<(), Trouble> {
        let until = self.op_until();
        while let Err(trouble) = self.begin().await {
            self.again(until, trouble).await?;
        }
        if self.known(|known| known.trim < to)? {
            let seq = self.publish_blindly(Body::Trim(to)).await?;
            self.follow_to(seq, until).await?;
        } else {
            while let Err(trouble) = self.check_alive().await {
                self.again(until, trouble).await?;
            }
        }
        if !self.purging.swap(true, Ordering::AcqRel) {
            let shared = self.clone();
            let work = async move {
                // What fails is tried again after the next trim.
                let _ = shared.purge().await;
                shared.purging.store(false, Ordering::Release);
            };
            self.env.spawn("service.purge", Box::pin(work));
        }
        Ok(())
    }

    async fn purge(&self) -> Result<(), Trouble> {
        let (trim, next, newest) = self.known(|known| (known.trim, known.next, known.last_entries))?;
        let below = match trim < next {
            true => self.find(trim).await?.map_or(0, |seq| seq.min(newest)),
            false => newest,
        };
        let below = if mutant(mutants::SERVICE_PURGES_ALL) { newest + 1 } else { below };
        hit("service.trim.purge");
        Ok(self.tell(Request::Purge { below }).await?)
    }

    /// Deletes the loglet permanently. No stream gets its name again (service-S6).
    pub(crate) async fn delete(&self) -> Result<(), Trouble> {
        let until = self.op_until();
        loop {
            match self.tell(Request::Delete).await {
                Ok(()) | Err(Fault::Missing) => return Ok(()),
                Err(fault) => self.again(until, fault.into()).await?,
            }
        }
    }
}

//! Copies entries into a new loglet and seals it, for a move of a sealed segment (virtuallog §7). A copy continues where an earlier attempt
//! has ended: the entries are the same, and so are their offsets.

use std::ops::Range;

use atoll_contract::{Loglet, Offset, ReadFrom};
use atoll_loglet_store::{batches, skip_one_if};

use crate::known::Trouble;
use crate::layout::{Body, Damaged, Entries, Message};
use crate::loglet::Shared;
use crate::mutants;
use crate::service::{Fault, Subject};

impl Shared {
    /// Makes this loglet hold exactly the entries of a range of another one, and sealed.
    pub(crate) async fn copy(&self, source: &dyn Loglet, range: Range<Offset>) -> Result<(), Trouble> {
        let whole = range.end.since(range.start);
        let mut until = self.op_until();
        loop {
            let tail = self.check_tail().await?;
            if tail.at.0 > whole || (tail.sealed.is_some() && tail.at.0 < whole) {
                return Err(Damaged("the loglet of a copy holds something else").into());
            }
            if tail.at.0 == whole {
                return self.seal().await;
            }
            let from = range.start.plus(tail.at.0);
            let got =
                source.read(from..range.end, self.options.step_bytes as usize, ReadFrom::Anywhere).await;
            let mut entries = got.map_err(|_| Trouble::Service(Fault::NoAnswer))?.entries;
            skip_one_if(mutants::SERVICE_COPY_SKIPS_ENTRY, &mut entries);
            let Some(batch) = batches(entries).into_iter().next() else {
                return Err(Fault::NoAnswer.into());
            };
            let (previous, first, trim) = self.known(|known| (known.last, known.next, known.trim))?;
            if first != tail.at {
                continue;
            }
            let body = Body::Entries(Entries { previous, first, trim, batch: Some(batch) });
            let data = Message { stamp: self.next_stamp(), body }.encode(self.config.token);
            // The next check shows what became of it. Another copy of the same entries does no harm.
            match self.publish(Subject::Log, Some(previous), data).await {
                Ok(_) => until = self.op_until(),
                Err(fault) => self.again(until, fault.into()).await?,
            }
        }
    }
}

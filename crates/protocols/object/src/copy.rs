//! Copies entries into a new Loglet and seals it, for a move of a sealed segment (virtuallog §7). A copy continues where an earlier attempt
//! with the same id has ended: the entries are the same, and so are their offsets.

use std::ops::Range;
use std::sync::Arc;

use atoll_contract::{Batch, Loglet, Offset, ReadFrom};
use atoll_loglet_store::{batches, skip_one_if};

use crate::known::At;
use crate::loglet::Shared;
use crate::mutants;
use crate::object::{Damaged, Entries, Stamp};
use crate::shelf::Fault;
use crate::store::StoreError;

impl Shared {
    /// Makes this Loglet hold exactly the entries of a range of another one, and sealed.
    pub(crate) async fn copy(
        self: &Arc<Self>,
        source: &dyn Loglet,
        range: Range<Offset>,
    ) -> Result<(), Fault> {
        let whole = range.end.since(range.start);
        let mut until = self.op_until();
        loop {
            let tail = match self.follow().await {
                Ok(tail) => tail,
                Err(fault) => {
                    self.again(until, fault).await?;
                    continue;
                }
            };
            if tail.at.0 > whole || (tail.sealed.is_some() && tail.at.0 < whole) {
                return Err(Damaged("the loglet of a copy holds something else").into());
            }
            if tail.at.0 == whole {
                return self.seal().await;
            }
            let from = range.start.plus(tail.at.0);
            let got =
                source.read(from..range.end, self.options.step_bytes as usize, ReadFrom::Anywhere).await;
            let mut entries = got.map_err(|_| Fault::Store(StoreError::NoAnswer))?.entries;
            skip_one_if(mutants::OBJECT_COPY_SKIPS_ENTRY, &mut entries);
            let at = self.known().next();
            if at.first != tail.at {
                continue;
            }
            match self.put_copy(at, batches(entries)).await {
                Ok(()) => until = self.op_until(),
                Err(fault) => self.again(until, fault).await?,
            }
        }
    }

    /// Takes an index for copied entries. The next look shows what has the index.
    async fn put_copy(&self, at: At, batches: Vec<Batch>) -> Result<(), Fault> {
        let count = batches.iter().map(Batch::len).sum::<usize>() as u32;
        let stamp = Stamp { writer: self.env.random(), nonce: 0 };
        let entries = Entries { index: at.index, first: at.first, count, stamp, batches };
        let id = self.id;
        let encoded = self.shelf.compute(entries.bytes(), move || entries.encode(id)).await?;
        let bytes = encoded.ok_or(Damaged("a step of the copy is too large"))?;
        self.shelf.take(at.index, bytes).await?;
        Ok(())
    }
}

//! Deletes a Loglet. A late put could create any object again, so what says that the Loglet is deleted stays: a note, and the mark of every
//! block (vlog-L7).

use std::sync::Arc;

use atoll_contract::Offset;

use crate::loglet::Shared;
use crate::shelf::{Fault, Row};

impl Shared {
    pub(crate) async fn delete(self: &Arc<Self>) -> Result<(), Fault> {
        let until = self.op_until();
        loop {
            match self.try_delete().await {
                Ok(()) => return Ok(()),
                Err(fault) => self.again(until, fault).await?,
            }
        }
    }

    /// Deletes everything. It begins where an earlier attempt has ended.
    async fn try_delete(&self) -> Result<(), Fault> {
        self.check_store().await?;
        if self.shelf.gone().await?.is_none() {
            // Sealed, the Loglet has an end. No appender looks behind it.
            let mut losses = 0;
            while !self.try_seal(&mut losses).await? {}
            let seal = self.known().next().index;
            self.shelf.set_gone(seal).await?;
        }
        // Of several that delete, the first one has decided.
        let Some(seal) = self.shelf.gone().await? else { return Err(Fault::Deleted) };
        let trims = self.shelf.last(Row::Trims, 0).await?.map_or(0, |(number, _)| number + 1);
        let (mut block, mut end) = match self.shelf.last(Row::Deleted, 0).await? {
            // It may not be finished.
            Some((block, end)) => (block, end),
            None => (0, Offset::ZERO),
        };
        while self.shelf.block_start(block) <= seal {
            end = end.max(self.known().next().first);
            self.shelf.delete_block(block, end).await?;
            block += 1;
        }
        self.shelf.delete_trims(trims).await?;
        Ok(())
    }
}

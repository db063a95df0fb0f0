//! prefixTrim: a trim is an object with the next number in the row of trims, so trims never go back. Behind it, whole blocks of objects are
//! deleted, in the background and a few at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_contract::Offset;
use atoll_core::testing::hit;

use crate::known::At;
use crate::loglet::Shared;
use crate::shelf::{Fault, Row};

/// The most blocks that are deleted after one trim. The others follow after the next ones.
const BLOCKS_PER_TRIM: u32 = 4;

impl Shared {
    pub(crate) async fn prefix_trim(self: &Arc<Self>, to: Offset) -> Result<(), Fault> {
        let until = self.op_until();
        loop {
            match self.try_trim(to).await {
                Ok(()) => break,
                Err(fault) => self.again(until, fault).await?,
            }
        }
        if !self.clearing.swap(true, Ordering::AcqRel) {
            let shared = self.clone();
            let work = async move {
                // What fails is tried again after the next trim.
                let _ = shared.clear().await;
                shared.clearing.store(false, Ordering::Release);
            };
            self.env.spawn("object.clear", Box::pin(work));
        }
        Ok(())
    }

    /// Adds a trim, unless there is one that gives up as much.
    async fn try_trim(&self, to: Offset) -> Result<(), Fault> {
        self.check_store().await?;
        loop {
            self.learn_trims().await?;
            let (trim, number) = self.known().trims();
            if trim >= to {
                // A trim that is forgotten, because its Loglet is deleted, must not seem to be new.
                return match self.shelf.gone().await? {
                    Some(_) => Err(Fault::Gone),
                    None => Ok(()),
                };
            }
            if self.shelf.gone().await?.is_some() {
                return Err(Fault::Gone);
            }
            if self.shelf.add_trim(number, to).await? {
                self.known().saw_trim(number, to);
                return Ok(());
            }
        }
    }

    /// Deletes blocks that are below the trim as a whole.
    async fn clear(&self) -> Result<(), Fault> {
        self.rebase().await?;
        let first = self.shelf.block(self.known().base().index);
        // Whoever deleted the block before may have died in the middle. Once per handle, it is deleted again.
        let cleared = self.known().cleared;
        if let Some(before) = first.checked_sub(1).filter(|before| cleared.is_none_or(|c| c < *before)) {
            let end = self.known().base().first;
            self.shelf.delete_block(before, end).await?;
            self.known().cleared = Some(before);
        }
        for block in (first..).take(BLOCKS_PER_TRIM as usize) {
            let start = self.shelf.block_start(block + 1);
            let next = self.known().next();
            let (trim, _) = self.known().trims();
            if start > next.index {
                return Ok(());
            }
            let end = match start == next.index {
                true => Some(next.first),
                false => self.shelf.value(Row::Log, start - 1).await?,
            };
            let Some(end) = end.filter(|end| *end <= trim) else { return Ok(()) };
            hit("object.trim.block");
            self.shelf.delete_block(block, end).await?;
            let mut known = self.known();
            known.saw_base(At { index: start, first: end });
            known.cleared = Some(block);
        }
        Ok(())
    }
}

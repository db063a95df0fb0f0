//! seal: a conditional put that takes the next index. Whoever takes an index has seen what is below, so no append can follow.

use atoll_core::testing::{hit, mutant};

use crate::loglet::Shared;
use crate::mutants;
use crate::object::{self, Note, Stamp};
use crate::shelf::Fault;

/// After this many indexes that appends took first, a sealer asks the appenders to let it.
const LOSSES: u32 = 2;

impl Shared {
    pub(crate) async fn seal(&self) -> Result<(), Fault> {
        let until = self.op_until();
        let mut losses = 0;
        loop {
            match self.try_seal(&mut losses).await {
                Ok(true) => return Ok(()),
                // An index was taken by somebody else. This is not a failure, but it must end.
                Ok(false) if self.env.now() < until => {}
                Ok(false) => return Err(Fault::Store(crate::store::StoreError::Busy)),
                Err(fault) => self.again(until, fault).await?,
            }
        }
    }

    /// Seals unless an append takes the index first. An attempt without an answer may still succeed: then the log has a seal that somebody
    /// wanted, and the next attempt finds it.
    pub(crate) async fn try_seal(&self, losses: &mut u32) -> Result<bool, Fault> {
        if self.follow().await?.sealed.is_some() {
            return Ok(true);
        }
        let at = self.known().next();
        let stamp = Stamp { writer: self.env.random(), nonce: 0 };
        let index = if mutant(mutants::OBJECT_SEAL_BESIDE) { at.index + 1 } else { at.index };
        let taken = self.shelf.take(index, object::seal(self.id, index, at.first, stamp)).await?;
        if mutant(mutants::OBJECT_SEAL_BESIDE) {
            self.tails.learn_sealed(at.first);
            return Ok(true);
        }
        if taken {
            // Behind a trim, the name may have been free again: then this seal does not count, and the look says so (object-O3).
            self.look(at).await?;
            return Ok(self.known().sealed());
        }
        hit("object.seal.lost");
        *losses += 1;
        if *losses >= LOSSES {
            hit("object.seal.asks");
            // Appenders read the mark of the block after each put. The next index may be in the next block.
            let block = self.shelf.block(at.index);
            self.shelf.ask_for_seal(block).await?;
            self.shelf.ask_for_seal(block + 1).await?;
        }
        Ok(false)
    }

    /// Seals on behalf of somebody who asked for it in the mark of a block, if nothing is in the way. Returns whether the Loglet is sealed.
    pub(crate) async fn help_to_seal(&self, mark: Option<Note>) -> bool {
        if mark != Some(Note::Sealing) {
            return false;
        }
        hit("object.seal.helped");
        let mut losses = 0;
        matches!(self.try_seal(&mut losses).await, Ok(true))
    }
}

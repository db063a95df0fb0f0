//! checkTail: follows the log to the first index without entries. No object lists the others, and no list is asked for: an object at an
//! index proves that there were objects at all lower ones (object-O2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_contract::{Offset, SealedConfig, Tail};
use atoll_core::testing::hit;

use crate::known::At;
use crate::loglet::Shared;
use crate::object::{Damaged, Entries};
use crate::shelf::{Fault, Look, Row};

/// After this many objects in a row, the end is searched for instead.
const STEPS: u32 = 3;

impl Shared {
    /// Makes sure that this node sees the store that the Loglet was made in, once.
    pub(crate) async fn check_store(&self) -> Result<(), Fault> {
        if !self.known().store_checked {
            self.shelf.check_store().await?;
            self.known().store_checked = true;
        }
        Ok(())
    }

    /// Learns that there are entries at an index.
    pub(crate) fn learn(&self, entries: &Entries) -> Result<(), Fault> {
        let tail = {
            let mut known = self.known();
            let next = known.next();
            if entries.index == next.index && (entries.first != next.first || known.sealed()) {
                return Err(Damaged("it does not begin where the object before it ends").into());
            }
            known.saw(entries.index, entries.first, entries.count);
            known.next().first
        };
        self.tails.learn(tail);
        Ok(())
    }

    /// Learns that the seal is at an index.
    fn learn_seal(&self, at: At, tail: Offset) -> Result<(), Fault> {
        if tail != at.first {
            return Err(Damaged("the seal is not where the object before it ends").into());
        }
        let mut known = self.known();
        // What is behind it came from an object that this one contradicts.
        if known.next().index != at.index {
            return Err(Damaged("there are entries behind the seal").into());
        }
        known.saw_seal(at.index);
        drop(known);
        self.tails.learn(tail);
        self.tails.learn_sealed(tail);
        Ok(())
    }

    /// Looks at an index and learns what is there, if it is the next one.
    pub(crate) async fn look(&self, at: At) -> Result<Look, Fault> {
        let look = self.shelf.look(at.index).await?;
        match &look {
            Look::Entries(entries) => self.learn(entries)?,
            Look::Seal { tail } => self.learn_seal(at, *tail)?,
            Look::Absent => {}
        }
        Ok(look)
    }

    /// Follows the log to its end, which it returns.
    pub(crate) async fn follow(&self) -> Result<Tail, Fault> {
        self.check_store().await?;
        self.known().looked = self.env.now();
        let mut steps = 0;
        loop {
            let at = self.known().next();
            match self.look(at).await? {
                Look::Entries(_) => steps += 1,
                Look::Seal { .. } => return Ok(Tail { at: at.first, sealed: Some(SealedConfig::new()) }),
                Look::Absent => return Ok(Tail { at: at.first, sealed: None }),
            }
            if steps >= STEPS {
                hit("object.tail.search");
                let from = self.known().next().index;
                if let Some((last, end)) = self.shelf.last(Row::Log, from).await? {
                    self.known().saw_last(last, end);
                    self.tails.learn(end);
                }
                steps = 0;
            }
        }
    }

    /// Finds the first block that is not deleted.
    pub(crate) async fn rebase(&self) -> Result<(), Fault> {
        hit("object.tail.rebase");
        if self.shelf.gone().await?.is_some() {
            return Err(Fault::Gone);
        }
        let from = self.shelf.block(self.known().base().index);
        if let Some((block, end)) = self.shelf.last(Row::Deleted, from).await? {
            let base = At { index: self.shelf.block_start(block + 1), first: end };
            self.known().saw_base(base);
            self.tails.learn(end);
        }
        Ok(())
    }

    /// Learns the trims of others.
    pub(crate) async fn learn_trims(&self) -> Result<(), Fault> {
        let (_, from) = self.known().trims();
        if let Some((number, to)) = self.shelf.last(Row::Trims, from).await? {
            self.known().saw_trim(number, to);
        }
        Ok(())
    }

    pub(crate) async fn check_tail(&self) -> Result<Tail, Fault> {
        let until = self.op_until();
        loop {
            let found = match self.follow().await {
                Ok(tail) => self.learn_trims().await.map(|()| tail),
                Err(fault) => Err(fault),
            };
            match found {
                Ok(tail) => return Ok(tail),
                Err(fault) => self.again(until, fault).await?,
            }
        }
    }

    /// Waits for the tail to move. Appends of this node move it at once; for those of others, one of the waits looks at the next index,
    /// first often and then rarely.
    pub(crate) async fn wait_tail(self: &Arc<Self>, above: Offset) -> Result<Tail, Fault> {
        let until = self.env.now().after(self.options.wait_patience);
        let (mut pause, longest) = self.options.look_every;
        loop {
            if let Some(tail) = self.tails.above(above) {
                return Ok(tail);
            }
            if self.env.now() >= until {
                // This also finds out that the Loglet was deleted, or that it is not the right store.
                let tail = self.check_tail().await?;
                return Ok(self.tails.above(above).unwrap_or(tail));
            }
            if let Ok(tail) = self.tails.or(above, self.env.sleep(self.env.jitter(pause))).await {
                return Ok(tail);
            }
            pause = longest.min(pause * 2);
            let Some(_looking) = Looking::start(self) else { continue };
            // Errors show in the check at the end.
            let next = self.known().next();
            let checked = self.known().store_checked;
            self.known().looked = self.env.now();
            if !checked || self.shelf.seems_taken(next.index).await == Ok(true) {
                pause = self.options.look_every.0;
                let _ = self.follow().await;
            }
        }
    }
}

/// The right to look at the store for all waits.
struct Looking<'a>(&'a Shared);

impl<'a> Looking<'a> {
    fn start(shared: &'a Shared) -> Option<Self> {
        (!shared.looking.swap(true, Ordering::AcqRel)).then_some(Looking(shared))
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.looking.store(false, Ordering::Release);
    }
}

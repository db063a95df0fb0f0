//! checkTail, waits for the tail, prefixTrim and seal: all of them work on the ordering log alone (scalog.md §10).

use atoll_contract::{LogletError, Offset, Tail};
use atoll_core::Encode;
use atoll_core::sync::lock;
use atoll_core::testing::hit;

use super::{Known, NO_ORDER, ScalogLoglet};
use crate::order::{Order, OrderEntry, SEALED_FORMAT, SealedOrder};
use crate::ordering::{next_tail, write};

fn tail_of(known: &Known) -> Tail {
    let order = &known.order;
    let entries = order.sealed_after().or(known.ended.then(|| order.applied()));
    let sealed = entries.map(|entries| SealedOrder { format: SEALED_FORMAT, entries }.to_bytes());
    Tail { at: Offset(order.base()), sealed }
}

impl ScalogLoglet {
    fn tail(&self) -> Tail {
        tail_of(&lock(&self.0.known))
    }

    /// Returns the tail as of a check of the ordering log, never from a storage server, which may lag (scalog-S16). If an entry has sealed
    /// the log, the sealed tail is the same for everybody. If the ordering log itself is sealed, its tails may differ (vlog-L5), and so may
    /// these. All of them are above what was acknowledged.
    pub(super) async fn check(&self) -> Result<Tail, LogletError> {
        self.refresh().await?;
        Ok(self.tail())
    }

    pub(super) async fn wait(&self, above: Offset) -> Result<Tail, LogletError> {
        let s = &self.0;
        loop {
            let (tail, applied) = (self.tail(), self.with_order(Order::applied));
            if tail.at > above || tail.sealed.is_some() {
                return Ok(tail);
            }
            let ordering = next_tail(&s.log, applied).await?;
            if ordering.at.0 <= applied && ordering.sealed.is_none() {
                // It may return early. So may this call.
                s.env.sleep(s.env.jitter(s.options.retry)).await;
                return Ok(self.tail());
            }
            self.catch_up(&ordering).await?;
        }
    }

    /// Trims: the ordering log first, which all servers follow. Once the log has ended and the ordering log takes no entries, servers
    /// learn of no trim any more. Then the records stay until the Loglet is deleted, and only this handle gives them up.
    pub(super) async fn trim(&self, to: Offset) -> Result<(), LogletError> {
        let s = &self.0;
        match self.refresh().await {
            Err(error) if error == LogletError::Gone || !self.is_sealed() => return Err(error),
            _ => {}
        }
        if to.0 <= self.with_order(Order::trim) {
            return Ok(());
        }
        let ended = lock(&s.known).ended;
        if !ended {
            let patience = if self.is_sealed() { s.options.seal_patience } else { s.options.op_timeout };
            let (until, entry) =
                (s.env.now().after(patience), OrderEntry { trim: to.0, ..OrderEntry::nothing() });
            let written = s.env.within(patience, write(&s.env, &s.log, &entry, until)).await;
            match written.unwrap_or(Err(NO_ORDER)) {
                Ok(_) => return self.refresh().await,
                Err(LogletError::Gone) => return Err(LogletError::Gone),
                Err(error) => {
                    // It shows whether the log has ended. If it fails, too, the answer is the first error.
                    let _ = self.refresh().await;
                    if !self.is_sealed() {
                        return Err(error);
                    }
                }
            }
        }
        hit("scalog.trim.ended");
        lock(&s.known).order.raise_trim(to.0);
        Ok(())
    }

    /// Seals: entries of the ordering log after this one carry no cut. If the ordering log does not take it soon, because its sequencer is
    /// lost, the ordering log itself is sealed. Neither needs a shard.
    pub(super) async fn end(&self) -> Result<(), LogletError> {
        let s = &self.0;
        if self.is_sealed() {
            hit("scalog.seal.again");
            return Ok(());
        }
        let until = s.env.now().after(s.options.seal_patience);
        let entry = OrderEntry { seal: true, ..OrderEntry::nothing() };
        let written = s.env.within(s.options.seal_patience, write(&s.env, &s.log, &entry, until)).await;
        match written {
            Ok(Ok(_)) => {}
            Ok(Err(LogletError::Gone)) => return Err(LogletError::Gone),
            _ => {
                hit("scalog.seal.ordering_log");
                s.log.seal().await?;
            }
        }
        // It is sealed, whether this handle can already see it or not.
        match self.refresh().await {
            Err(LogletError::Gone) => Err(LogletError::Gone),
            _ => Ok(()),
        }
    }
}

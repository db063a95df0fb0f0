//! checkTail, waits for the tail, prefixTrim and seal: all of them work on the ordering log alone (scalog.md §10).

use atoll_contract::{LogletError, Offset, SealedConfig, Tail};
use atoll_core::testing::hit;

use super::ScalogLoglet;
use crate::order::{Order, OrderEntry};
use crate::ordering::write;

fn tail_of(order: &Order) -> Tail {
    Tail { at: Offset(order.base()), sealed: order.is_sealed().then(SealedConfig::new) }
}

impl ScalogLoglet {
    /// Returns the tail as of a check of the ordering log, never from a storage server, which may lag (scalog-S16). The tail and the seal
    /// bit come from the same entry, so the sealed tail is the same for everybody.
    pub(super) async fn check(&self) -> Result<Tail, LogletError> {
        self.refresh().await?;
        Ok(self.with_order(tail_of))
    }

    pub(super) async fn wait(&self, above: Offset) -> Result<Tail, LogletError> {
        let s = &self.0;
        loop {
            let (tail, applied) = self.with_order(|order| (tail_of(order), order.applied()));
            if tail.at > above || tail.sealed.is_some() {
                return Ok(tail);
            }
            let ordering = s.log.wait_tail(Offset(applied)).await?;
            if ordering.at.0 <= applied {
                // It may return early. So may this call.
                s.env.sleep(s.env.jitter(s.options.retry)).await;
                return Ok(self.with_order(tail_of));
            }
            self.catch_up(ordering.at.0).await?;
        }
    }

    /// Trims: the ordering log first, which all servers follow.
    pub(super) async fn trim(&self, to: Offset) -> Result<(), LogletError> {
        let s = &self.0;
        self.refresh().await?;
        if to.0 <= self.with_order(Order::trim) {
            return Ok(());
        }
        let until = s.env.now().after(s.options.op_timeout);
        write(&s.env, &s.log, &OrderEntry { trim: to.0, ..OrderEntry::nothing() }, until).await?;
        self.refresh().await
    }

    /// Seals: entries of the ordering log after this one carry no cut.
    pub(super) async fn end(&self) -> Result<(), LogletError> {
        let s = &self.0;
        self.refresh().await?;
        if self.with_order(Order::is_sealed) {
            hit("scalog.seal.again");
            return Ok(());
        }
        let until = s.env.now().after(s.options.op_timeout);
        write(&s.env, &s.log, &OrderEntry { seal: true, ..OrderEntry::nothing() }, until).await?;
        self.refresh().await
    }
}

//! checkTail: publishes a mark, and follows the log up to it. A mark is durable on a majority of the servers, so no append that was
//! acknowledged before is above it, whatever an old leader still shows (service-S3). A mark has no condition, and is not of the log: it
//! never fails because of appends, nor makes one fail.
//!
//! seal: publishes a message without a condition. Whoever appends must know it first.

use atoll_contract::{Offset, SealedConfig, Tail};
use atoll_core::testing::{hit, mutant};
use bytes::Bytes;

use crate::known::Trouble;
use crate::layout::{Body, Message};
use crate::loglet::Shared;
use crate::mutants;
use crate::service::{Request, Subject};

impl Shared {
    pub(crate) async fn check_tail(&self) -> Result<Tail, Trouble> {
        let until = self.op_until();
        loop {
            match self.mark().await {
                Ok(seq) => self.follow_to(seq, until).await?,
                Err(trouble) => {
                    self.again(until, trouble).await?;
                    continue;
                }
            }
            return self.known(|known| Tail { at: known.next, sealed: known.sealed.then(SealedConfig::new) });
        }
    }

    /// Publishes a mark, and returns the sequence up to which the log must be known.
    async fn mark(&self) -> Result<u64, Trouble> {
        self.begin().await?;
        if mutant(mutants::SERVICE_STALE_TAIL) {
            self.follow().await?;
            return self.known(|known| known.upto);
        }
        let seq = self.publish(Subject::Mark, None, Bytes::new()).await?;
        let follows = self.known(|known| {
            if seq == known.upto + 1 {
                // Nothing is between.
                known.upto = seq;
            }
            known.upto < seq
        })?;
        if follows {
            hit("service.tail.follow");
        }
        Ok(seq)
    }

    /// Waits for the tail to move. Appends of this handle move it at once, and the service brings news of others.
    pub(crate) async fn wait_tail(&self, above: Offset) -> Result<Tail, Trouble> {
        if let Some(tail) = self.tails.above(above) {
            return Ok(tail);
        }
        let patience = self.options.wait_patience;
        let upto = match self.follow().await {
            Ok(()) => self.known(|known| known.upto)?,
            Err(Trouble::Service(fault)) if fault.passes() => {
                self.env.sleep(self.env.jitter(self.options.retry)).await;
                return Ok(self.seen_above(above));
            }
            Err(trouble) => return Err(trouble),
        };
        let news = self.service.news(self.stream.clone(), upto, patience);
        let limit = patience + self.options.request_timeout;
        if let Ok(Ok(tail)) = self.env.within(limit, self.tails.or(above, news)).await {
            return Ok(tail);
        }
        match self.follow().await {
            Ok(()) => {}
            // It is a hint only.
            Err(Trouble::Service(fault)) if fault.passes() => {}
            Err(trouble) => return Err(trouble),
        }
        Ok(self.seen_above(above))
    }

    fn seen_above(&self, above: Offset) -> Tail {
        self.tails.above(above).unwrap_or_else(|| Tail { at: self.tails.tail(), sealed: None })
    }

    /// Publishes a message of the log without a condition, until it is there. An earlier attempt may be there, too: it says the same.
    pub(crate) async fn publish_blindly(&self, body: Body) -> Result<u64, Trouble> {
        let until = self.op_until();
        let message = Message { stamp: self.next_stamp(), body };
        let data = message.encode(self.config.token);
        loop {
            match self.publish(Subject::Log, None, data.clone()).await {
                Ok(seq) => return Ok(seq),
                Err(fault) => self.again(until, fault.into()).await?,
            }
        }
    }

    pub(crate) async fn seal(&self) -> Result<(), Trouble> {
        self.publish_blindly(Body::Seal).await.map(|_| ())
    }

    /// Finds out whether the stream is still there.
    pub(crate) async fn check_alive(&self) -> Result<(), Trouble> {
        Ok(self.tell(Request::Look).await?)
    }
}

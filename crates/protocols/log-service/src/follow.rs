//! Requests of a handle, and how it follows its log: it reads the messages behind those that it knows. What it reads may be old, but a
//! message that is there is the one that has that sequence, and all before it are there or purged.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Tick;
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use bytes::Bytes;

use crate::known::{Known, Trouble};
use crate::layout::{Damaged, Message};
use crate::loglet::Shared;
use crate::service::{Answer, Fault, Request, Stored, Subject};

/// How many messages one read asks for.
pub(crate) const AT_ONCE: u32 = 16;
/// How many sequences below the newest message a handle begins to know the log: that many operations it remembers from before.
const READ_BACK: u64 = 32;
/// A handle that is further behind begins anew near the newest message.
const FAR: u64 = 4096;
/// For how long a handle lets others go first after one of them has appended.
const CROWDED_FOR: Duration = Duration::from_secs(1);

impl Shared {
    async fn ask(&self, request: Request) -> Result<Answer, Fault> {
        // The service ends its requests itself; this is for one that does not.
        let patience = self.options.request_timeout + self.options.request_timeout / 4;
        let asked = self.service.ask(self.stream.clone(), request);
        self.env.within(patience, asked).await.unwrap_or(Err(Fault::NoAnswer))
    }

    /// Makes a request whose answer has no content.
    pub(crate) async fn tell(&self, request: Request) -> Result<(), Fault> {
        self.ask(request).await.map(|_| ())
    }

    /// Publishes a message, and returns its sequence.
    pub(crate) async fn publish(
        &self,
        on: Subject,
        expected: Option<u64>,
        data: Bytes,
    ) -> Result<u64, Fault> {
        match self.ask(Request::Publish { on, expected, data }).await? {
            Answer::Published(seq) => Ok(seq),
            _ => Err(Fault::NoAnswer),
        }
    }

    async fn messages(&self, request: Request) -> Result<Vec<Stored>, Trouble> {
        match self.ask(request).await? {
            Answer::Messages(messages) => Ok(messages),
            _ => Err(Fault::NoAnswer.into()),
        }
    }

    /// Reads messages of all subjects from a sequence on.
    pub(crate) async fn next(&self, from: u64) -> Result<Vec<Stored>, Trouble> {
        self.messages(Request::Next { from, most: AT_ONCE }).await
    }

    pub(crate) fn decode(&self, stored: &Stored) -> Result<Message, Damaged> {
        Message::decode(&stored.data, self.config.token)
    }

    /// Keeps a message in memory for readers.
    pub(crate) fn keep(&self, seq: u64, message: Message) {
        let bytes = message.entries().map_or(0, |entries| entries.bytes());
        self.cache.put(self.id, seq, Arc::new(message), bytes + size_of::<Message>());
    }

    pub(crate) fn op_until(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }

    /// Pauses after trouble that may pass, or returns it: if it does not pass, or time is up.
    pub(crate) async fn again(&self, until: Tick, trouble: Trouble) -> Result<(), Trouble> {
        if !trouble.passes() || self.env.now() >= until {
            if !matches!(trouble, Trouble::Gone) {
                tracing::debug!(loglet = %self.id, %trouble, "given up");
            }
            if let Trouble::Damaged(_) | Trouble::Service(Fault::Altered(_)) = &trouble {
                tracing::error!(loglet = %self.id, stream = self.stream.name, %trouble, "the stream of a log is damaged");
            }
            return Err(trouble);
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        Ok(())
    }

    /// Runs `f` on what is known. The handle must have begun.
    pub(crate) fn known<T>(&self, f: impl FnOnce(&mut Known) -> T) -> Result<T, Trouble> {
        // A handle that is far behind begins anew.
        lock(&self.known).as_mut().map(f).ok_or(Trouble::Service(Fault::NoAnswer))
    }

    /// Looks at the log, if this handle has not yet.
    pub(crate) async fn begin(&self) -> Result<(), Trouble> {
        if lock(&self.known).is_some() {
            return Ok(());
        }
        self.tell(Request::Look).await?;
        let newest = self.messages(Request::Last).await?;
        let Some(newest) = newest.first().map(|stored| stored.seq) else {
            // The first message is published before a chain names the stream, so this is an old server.
            return Err(Fault::NoAnswer.into());
        };
        let mut back = READ_BACK;
        loop {
            let from = newest.saturating_sub(back).max(1);
            for stored in self.next(from).await?.iter().filter(|stored| stored.on == Subject::Log) {
                let message = self.decode(stored)?;
                if let Some(entries) = message.entries() {
                    let known = Known::begin(stored.seq, entries, self.options.dedupe_spans);
                    self.tails.learn(known.next);
                    lock(&self.known).get_or_insert(known);
                    return Ok(());
                }
            }
            // Only seals and trims: what is below them is further back (service-S5).
            if from == 1 {
                return Err(Fault::NoAnswer.into());
            }
            back = back.saturating_mul(2);
        }
    }

    /// Reads on behind what is known. Returns whether there was anything, and whether there may be more.
    async fn read_on(&self) -> Result<(bool, bool), Trouble> {
        let from = self.known(|known| known.upto + 1)?;
        let messages = self.next(from).await?;
        for stored in &messages {
            let message = match stored.on {
                Subject::Log => Some(self.decode(stored)?),
                Subject::Mark => None,
            };
            self.known(|known| {
                if stored.seq <= known.upto {
                    return Ok(());
                }
                match &message {
                    Some(message) => {
                        if message.entries().is_some() && message.stamp.writer != self.writer {
                            known.crowded_until = self.env.now().after(CROWDED_FOR);
                        }
                        known.learn(stored.seq, message, self.writer)
                    }
                    None => {
                        known.upto = stored.seq;
                        Ok(())
                    }
                }
            })??;
            if let Some(message) = message {
                self.keep(stored.seq, message);
            }
        }
        self.learned()?;
        Ok((!messages.is_empty(), messages.len() == AT_ONCE as usize))
    }

    /// Tells those who wait for the tail what is known.
    pub(crate) fn learned(&self) -> Result<(), Trouble> {
        let (next, sealed) = self.known(|known| (known.next, known.sealed))?;
        self.tails.learn(next);
        if sealed {
            self.tails.learn_sealed(next);
        }
        Ok(())
    }

    /// Follows the log as far as the service shows it now.
    pub(crate) async fn follow(&self) -> Result<(), Trouble> {
        self.begin().await?;
        while let (_, true) = self.read_on().await? {}
        Ok(())
    }

    /// Follows the log until everything up to a sequence is known, at which a message was published.
    pub(crate) async fn follow_to(&self, seq: u64, until: Tick) -> Result<(), Trouble> {
        loop {
            let upto = self.known(|known| known.upto)?;
            if upto >= seq {
                return Ok(());
            }
            match self.read_on().await {
                Ok((true, true)) if seq - upto > FAR => {
                    hit("service.tail.far");
                    *lock(&self.known) = None;
                    while let Err(trouble) = self.begin().await {
                        self.again(until, trouble).await?;
                    }
                }
                Ok((true, _)) => {}
                // A server that lags behind.
                Ok((false, _)) => self.again(until, Fault::NoAnswer.into()).await?,
                Err(trouble) => self.again(until, trouble).await?,
            }
        }
    }
}

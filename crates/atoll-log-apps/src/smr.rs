//! CORFU-SMR (TOCS'13 §3): a replicated state machine, with several commands in one entry.
//!
//! Commands wait in a bounded queue. Whoever flushes takes as many as fit into one entry, so entries grow under load and nothing waits
//! when there is none. A command takes effect once, also if its entry is in the log twice.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};

use atoll_contract::{ClientId, OpId};
use atoll_core::sync::lock;
use atoll_core::{Decode, DecodeError, Encode, Reader};

use crate::entry;
use crate::player::{Machine, PlayError, Player};
use crate::sessions::{Known, Sessions, Stamp};

atoll_core::record! {
    /// One entry: commands, which replicas apply in this order.
    pub struct Commands {
        /// The commands with their names.
        pub commands: Vec<(Stamp, Bytes)>,
    }
}

/// What is replicated: a deterministic function of its commands.
pub trait Service: Send + fmt::Debug {
    /// Applies a command and returns its reply.
    fn apply(&mut self, command: &Bytes) -> Bytes;

    /// Returns the state, in a form that is equal on all replicas.
    fn save(&self) -> Bytes;

    /// Replaces the state by a saved one. An error leaves it unchanged.
    fn load(&mut self, state: Bytes) -> Result<(), DecodeError>;
}

/// A replica's state: the service, and which commands took effect.
#[derive(Debug)]
pub struct SmrState<S> {
    service: S,
    sessions: Sessions<Bytes>,
}

impl<S: Service> SmrState<S> {
    /// Returns a state that remembers this many clients, and this many commands of each. The limits are the same on all replicas.
    pub fn new(service: S, max_clients: u32, max_ops: u32) -> Self {
        SmrState { service, sessions: Sessions::new(max_clients, max_ops) }
    }

    /// Returns the service, to read from it.
    pub fn service(&self) -> &S {
        &self.service
    }
}

impl<S: Service> Machine for SmrState<S> {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        for (stamp, command) in Commands::from_bytes(body)?.commands {
            if self.sessions.check(&stamp) == Known::Fresh {
                let reply = self.service.apply(&command);
                self.sessions.record(stamp.op, position + 1, reply);
            }
        }
        Ok(())
    }

    fn save(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.service.save().encode(&mut out);
        self.sessions.encode(&mut out);
        out.freeze()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        let mut from = Reader::new(state);
        let (service, sessions) = (Bytes::decode(&mut from)?, Decode::decode(&mut from)?);
        from.finish("the state of a service")?;
        self.service.load(service)?;
        self.sessions = sessions;
        Ok(())
    }
}

/// Limits of one proposer.
#[derive(Clone, Copy, Debug)]
pub struct SmrOptions {
    /// The most commands in one entry. Not more than the state remembers of one client.
    pub max_commands: usize,
    /// The most bytes of commands in one entry, unless one command alone has more.
    pub max_bytes: usize,
    /// The most commands that wait.
    pub max_waiting: usize,
    /// How often an entry of unknown outcome is appended in all.
    pub append_attempts: usize,
}

impl Default for SmrOptions {
    fn default() -> Self {
        SmrOptions { max_commands: 64, max_bytes: 256 << 10, max_waiting: 4096, append_attempts: 3 }
    }
}

/// The command did not happen: too many are waiting, or it is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Too many commands wait.
    #[error("too many commands are waiting")]
    Waiting,
    /// The command exceeds the limit of an entry.
    #[error("a command exceeds the limit of an entry")]
    TooLarge,
}

/// What became of the commands of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing was waiting.
    Nothing,
    /// Each took effect, with its reply. `None`: it did or did not, so long ago that it was forgotten.
    Applied(Vec<(OpId, Option<Bytes>)>),
    /// None of them happened.
    NotDone(Vec<OpId>, PlayError),
    /// Each may have happened or may still happen.
    Unknown(Vec<OpId>),
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Stamp, Bytes)>,
    seq: u64,
}

/// Proposes commands at one replica.
#[derive(Debug)]
pub struct Proposer<S> {
    replica: Arc<Player<SmrState<S>>>,
    client: ClientId,
    options: SmrOptions,
    queue: Mutex<Queue>,
}

impl<S: Service> Proposer<S> {
    /// Returns a proposer. `client` is an incarnation: no other, before or after, has the same.
    pub fn new(replica: Arc<Player<SmrState<S>>>, client: ClientId, options: SmrOptions) -> Self {
        Proposer { replica, client, options, queue: Mutex::default() }
    }

    /// Queues a command. [`Proposer::flush`] sends it.
    pub fn propose(&self, command: Bytes) -> Result<OpId, Busy> {
        if command.len() > self.options.max_bytes {
            return Err(Busy::TooLarge);
        }
        let began = self.replica.applied();
        let mut queue = lock(&self.queue);
        if queue.waiting.len() >= self.options.max_waiting {
            return Err(Busy::Waiting);
        }
        queue.seq += 1;
        let op = OpId { client: self.client, seq: queue.seq };
        queue.waiting.push_back((Stamp { op, began }, command));
        Ok(op)
    }

    fn take(&self) -> Vec<(Stamp, Bytes)> {
        let mut queue = lock(&self.queue);
        let (mut commands, mut bytes) = (Vec::new(), 0);
        while let Some((_, next)) = queue.waiting.front() {
            bytes += next.len();
            if commands.len() >= self.options.max_commands.max(1)
                || (bytes > self.options.max_bytes && !commands.is_empty())
            {
                break;
            }
            commands.extend(queue.waiting.pop_front());
        }
        commands
    }

    /// Appends what is waiting, as one entry, and waits until this replica has applied it. Call it again while commands wait.
    pub async fn flush(&self) -> Flushed {
        let commands = self.take();
        if commands.is_empty() {
            return Flushed::Nothing;
        }
        let ops: Vec<OpId> = commands.iter().map(|(stamp, _)| stamp.op).collect();
        let data = entry::record(&Commands { commands });
        match self.replica.append_named(data, self.options.append_attempts).await {
            Ok(Some(place)) if self.replica.play_to(place.position + 1).await.is_ok() => {
                let outcomes = |state: &SmrState<S>, _| {
                    ops.iter().map(|op| (*op, state.sessions.outcome(*op))).collect::<Vec<_>>()
                };
                Flushed::Applied(self.replica.view(outcomes))
            }
            Ok(_) => Flushed::Unknown(ops),
            Err(error) => Flushed::NotDone(ops, error.into()),
        }
    }
}

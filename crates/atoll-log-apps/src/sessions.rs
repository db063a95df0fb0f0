//! Which operations of which clients took effect, so that a retry takes effect only once (apps-A3). Part of the replicated
//! state: every decision is a function of the log.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;

use atoll_contract::OpId;
use atoll_core::testing::mutant;
use atoll_core::{Decode, DecodeError, Encode, Reader};

use crate::mutants;

atoll_core::record! {
    /// The name of an operation, and how far the log was when it began.
    pub struct Stamp {
        /// The client's incarnation and its number for the operation, from 1. A retry has the same.
        pub op: OpId,
        /// An index that was applied somewhere before the operation's first append. Every copy of the operation is at or above it.
        pub began: u64,
    }
}

/// What is known about an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<O> {
    /// It has not taken effect.
    Fresh,
    /// It took effect, or was refused, with this outcome.
    Done(O),
    /// It may have taken effect so long ago that its outcome is forgotten. It must not take effect now.
    Forgotten,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Client<O> {
    /// The index of the first operation that is remembered without a gap since.
    since: u64,
    /// The index of the newest operation.
    last: u64,
    /// Numbers up to this one are forgotten, unless they are in `done`.
    forgotten: u64,
    done: BTreeMap<u64, O>,
}

/// The newest operations of the newest clients. What is forgotten is refused and never repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions<O> {
    clients: BTreeMap<u64, Client<O>>,
    by_age: BTreeSet<(u64, u64)>,
    /// The newest operation of a forgotten client was below this index.
    horizon: u64,
    max_clients: u32,
    max_ops: u32,
}

impl<O: Clone> Sessions<O> {
    /// Returns an empty table that remembers this many clients, and this many operations of each. Both are at least 1, and the same on
    /// all replicas. A client must have at most `max_ops` operations in flight.
    pub fn new(max_clients: u32, max_ops: u32) -> Self {
        let (max_clients, max_ops) = (max_clients.max(1), max_ops.max(1));
        Sessions { clients: BTreeMap::new(), by_age: BTreeSet::new(), horizon: 0, max_clients, max_ops }
    }

    /// Returns whether the operation may take effect.
    pub fn check(&self, stamp: &Stamp) -> Known<O> {
        if mutant(mutants::APPS_A3) {
            return Known::Fresh;
        }
        match self.clients.get(&stamp.op.client.0) {
            Some(client) => match client.done.get(&stamp.op.seq) {
                Some(outcome) => Known::Done(outcome.clone()),
                None if stamp.op.seq <= client.forgotten => Known::Forgotten,
                // The client may have been forgotten before it came back, and an older copy may lie in that time.
                None if stamp.began < client.since.min(self.horizon) => Known::Forgotten,
                None => Known::Fresh,
            },
            // If it had taken effect before, its client would be among the forgotten ones.
            None if stamp.began < self.horizon => Known::Forgotten,
            None => Known::Fresh,
        }
    }

    /// Records the outcome of an operation that [`Sessions::check`] allowed, at the index above its position.
    pub fn record(&mut self, op: OpId, index: u64, outcome: O) {
        let id = op.client.0;
        let fresh = || Client { since: index, last: index, forgotten: 0, done: BTreeMap::new() };
        let client = self.clients.entry(id).or_insert_with(fresh);
        self.by_age.remove(&(client.last, id));
        client.last = index;
        client.done.insert(op.seq, outcome);
        if client.done.len() > self.max_ops as usize
            && let Some((seq, _)) = client.done.pop_first()
        {
            client.forgotten = client.forgotten.max(seq);
        }
        self.by_age.insert((index, id));
        if self.clients.len() > self.max_clients as usize
            && let Some((last, oldest)) = self.by_age.pop_first()
        {
            self.clients.remove(&oldest);
            self.horizon = self.horizon.max(last);
        }
    }

    /// Returns the outcome of an operation, if it is known.
    pub fn outcome(&self, op: OpId) -> Option<O> {
        self.clients.get(&op.client.0)?.done.get(&op.seq).cloned()
    }
}

impl<O: Encode> Encode for Sessions<O> {
    fn encode(&self, out: &mut BytesMut) {
        (self.max_clients, self.max_ops).encode(out);
        self.horizon.encode(out);
        atoll_core::codec::put_len(self.clients.len(), out);
        for (id, client) in &self.clients {
            (*id, client.last).encode(out);
            (client.since, client.forgotten).encode(out);
            client.done.encode(out);
        }
    }
}

impl<O: Decode> Decode for Sessions<O> {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (max_clients, max_ops) = Decode::decode(from)?;
        let horizon = Decode::decode(from)?;
        let (mut clients, mut by_age) = (BTreeMap::new(), BTreeSet::new());
        for _ in 0..u32::decode(from)? {
            let (id, last) = Decode::decode(from)?;
            let (since, forgotten) = Decode::decode(from)?;
            let client = Client { since, last, forgotten, done: Decode::decode(from)? };
            by_age.insert((last, id));
            clients.insert(id, client);
        }
        Ok(Sessions { clients, by_age, horizon, max_clients, max_ops })
    }
}

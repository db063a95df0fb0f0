//! The clerk: passes appends to the store in the order of their arrival, and the store's answers back.
//!
//! It keeps nothing of a loglet except the relays without an answer. A configuration names one life of the clerk, so that the handling of
//! failures has an orderer whose restart it must notice (native-T6).

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{
    Budget, Caller, Class, DecodeError, Effects, Env, Frame, Link, Loc, Lsn, Message, Refused, Role, Tick,
};
use atoll_loglet_store::message::{Appended, Ordered};

use crate::config;
use crate::message::{Append, Relay, Relayed};
use crate::roles::STORE;

/// Limits of a clerk.
#[derive(Clone, Debug)]
pub struct ClerkOptions {
    /// Maximum number of bytes per loglet that wait for the store. Further appends are refused as busy.
    pub window_bytes: usize,
    /// The same limit for all loglets together.
    pub node_window_bytes: usize,
    /// How long an append may wait for the store before its outcome is reported as unknown.
    pub patience: Duration,
}

impl Default for ClerkOptions {
    fn default() -> Self {
        ClerkOptions {
            window_bytes: 64 << 20,
            node_window_bytes: 256 << 20,
            patience: Duration::from_millis(700),
        }
    }
}

/// A relay without an answer.
struct Waiting {
    caller: Caller,
    loglet: LogletId,
    len_bytes: usize,
    since: Tick,
}

/// See the module documentation. One object serves all trio loglets of which this life of the node is the clerk.
pub struct Clerk {
    env: Env,
    options: ClerkOptions,
    /// Relays by number. Numbers rise, so the oldest relay comes first.
    waiting: BTreeMap<u64, Waiting>,
    next_tag: u64,
    /// The bytes of the relays of each loglet that has any.
    windows: BTreeMap<LogletId, usize>,
    /// The bytes of all relays.
    in_flight: Budget,
}

impl Clerk {
    /// Creates a clerk in the node and the life of `env`.
    pub fn new(env: Env, options: ClerkOptions) -> Self {
        Clerk {
            env,
            in_flight: Budget::new(options.node_window_bytes),
            options,
            waiting: BTreeMap::new(),
            next_tag: 0,
            windows: BTreeMap::new(),
        }
    }

    fn on_append(&mut self, now: Tick, from: Caller, m: Append, out: &mut Effects) {
        if let Err(outcome) = self.relay(now, from, m, out) {
            out.reply(from, Appended { outcome, known_tail: Offset::ZERO }, Lsn::NONE);
        }
    }

    /// Passes an append to the store, or returns why it does not. If the relay is lost, its time runs out.
    fn relay(&mut self, now: Tick, from: Caller, m: Append, out: &mut Effects) -> Result<(), Ordered> {
        let named = config::parse(&m.config).map_err(|_| Ordered::WrongSequencer {})?;
        if named.clerk != (self.env.node(), self.env.incarnation()) {
            hit("trio.clerk.other_life");
            return Err(Ordered::WrongSequencer {});
        }
        if m.batch.is_empty() {
            return Err(Ordered::TooLarge {});
        }
        let (own, more) = (self.windows.get(&m.loglet).copied().unwrap_or_default(), m.batch.len());
        let has_room = own + more <= self.options.window_bytes && self.in_flight.has_room(own, more);
        let (store, _) = named.store;
        if !has_room || self.env.link(store, Class::Data) == Link::Full {
            hit("trio.clerk.busy");
            return Err(Ordered::Busy {});
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        self.waiting.insert(tag, Waiting { caller: from, loglet: m.loglet, len_bytes: more, since: now });
        self.windows.insert(m.loglet, own + more);
        self.in_flight.add(more);
        let relay = Relay {
            loglet: m.loglet,
            config: m.config,
            life: self.env.incarnation(),
            tag,
            sender: from.node,
            place: m.place,
            not_below: m.not_below,
            batch: m.batch,
        };
        out.post(store, Class::Data, STORE, relay, Lsn::NONE);
        Ok(())
    }

    fn on_relayed(&mut self, m: Relayed, out: &mut Effects) {
        // A slow disk may delay the answer to an earlier life until this life is connected. That life used the same numbers.
        if m.life != self.env.incarnation() {
            hit("trio.clerk.late_answer");
            return;
        }
        if let Some(caller) = self.take(m.tag) {
            out.reply(caller, Appended { outcome: m.outcome, known_tail: m.known_tail }, Lsn::NONE);
        }
    }

    /// Removes a relay and gives its bytes back. Returns who waits for its answer.
    fn take(&mut self, tag: u64) -> Option<Caller> {
        let waiting = self.waiting.remove(&tag)?;
        self.in_flight.give_back(waiting.len_bytes);
        if let Some(window) = self.windows.get_mut(&waiting.loglet) {
            *window -= waiting.len_bytes;
            if *window == 0 {
                self.windows.remove(&waiting.loglet);
            }
        }
        Some(waiting.caller)
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Append::KIND => self.on_append(now, from, Append::from_frame(f)?, out),
            Relayed::KIND => self.on_relayed(Relayed::from_frame(f)?, out),
            got => return Err(DecodeError::WrongKind { expected: "a message for a clerk", got }),
        }
        Ok(())
    }
}

impl Role for Clerk {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}

    fn deadline(&self) -> Option<Tick> {
        self.waiting.values().next().map(|first| first.since.after(self.options.patience))
    }

    /// Answers the appends whose time is up. The store may still store them, so their outcome is unknown.
    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        while let Some((tag, first)) = self.waiting.first_key_value()
            && first.since.after(self.options.patience) <= now
        {
            let tag = *tag;
            hit("trio.clerk.no_answer");
            if let Some(caller) = self.take(tag) {
                let answer = Appended { outcome: Ordered::NoQuorum {}, known_tail: Offset::ZERO };
                out.reply(caller, answer, Lsn::NONE);
            }
        }
    }
}

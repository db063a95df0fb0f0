//! Data directories that are put back as a whole from an older copy. Such a copy is consistent, so only peers that kept running can detect
//! it, and they refuse the node when it connects. The simulated network has no handshake, so this file performs it with the product's own
//! witness. A process can detect only what contradicts the heartbeats delivered to it in its current life. In some cases, the node runs
//! with an empty directory before, and what the peers know of the other directory must survive that.

use std::collections::BTreeMap;

use atoll_core::level::since;
use atoll_core::testing::hit;
use atoll_core::{Envelope, Lsn, Message, NodeId, StorageId};
use atoll_node::members::detector::Heartbeat;

use super::fault::Death;
use super::{Assembly, World};

/// How far one process has heard that the journal in a data directory of another is durable.
#[derive(Clone, Copy, Debug)]
struct DurableHeard {
    /// The life of the process that received the heartbeat.
    life: u64,
    durable: Lsn,
}

/// What all processes have heard. Stays empty until the first copy is taken, because other runs do not need it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    is_kept: bool,
    /// Keyed by receiver, sender, and data directory of the sender.
    heard: BTreeMap<(usize, usize, StorageId), DurableHeard>,
}

impl Memory {
    /// Starts recording heartbeats.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl<A: Assembly> World<A> {
    /// Records a heartbeat that is delivered to a process.
    pub(super) fn remember(&mut self, host: usize, from: NodeId, envelope: &Envelope) {
        let h = &self.hosts[host];
        if !self.memory.is_kept || h.paused || envelope.frame.kind != Heartbeat::KIND {
            return;
        }
        let (Ok(beat), Some(speaker)) = (Heartbeat::from_frame(envelope.frame.clone()), self.host_of(from))
        else {
            return;
        };
        let told = DurableHeard { life: h.life, durable: beat.durable };
        let heard = self.memory.heard.entry((host, speaker, beat.storage)).or_insert(told);
        if heard.life != told.life || heard.durable < told.durable {
            *heard = told;
        }
    }

    /// Performs the handshake of a new connection. Returns false if it ended a node that was put back, or found a violation.
    pub(super) fn greet(&mut self, dialer: usize, peer: usize) -> bool {
        !self.memory.is_kept || (self.takes_in(peer, dialer) && self.takes_in(dialer, peer))
    }

    fn takes_in(&mut self, hearer: usize, speaker: usize) -> bool {
        let (Some(here), Some(there)) = (self.hosts[hearer].who(), self.hosts[speaker].who()) else {
            return true;
        };
        let env = |host: usize| self.hosts[host].process.as_ref().map(|p| p.core.env());
        let (Some(own), Some(other)) = (env(hearer), env(speaker)) else { return true };
        let durable = other.witness().own();
        let is_told = own.levels().allows(since::WITNESS) && other.levels().allows(since::WITNESS);
        let refused = match is_told {
            true => own.witness().check(there.node, there.incarnation, there.storage, durable).err(),
            false => None,
        };
        let knows_better = self
            .memory
            .heard
            .get(&(hearer, speaker, there.storage))
            .filter(|heard| heard.life == here.life && heard.durable > durable);
        let is_put_back = self.hosts[speaker].put_back;
        match (refused, knows_better) {
            (Some(words), _) if !is_put_back => {
                self.verdict.fail(format!("PUTBACK sound directory refused: by {}: {words}", here.node));
                false
            }
            (Some(words), _) => {
                hit("sim.put_back.refused");
                self.stop_for_good(speaker, words.to_string());
                false
            }
            (None, Some(heard)) if is_put_back && is_told => {
                self.verdict.fail(format!(
                    "PUTBACK taken in: node {} came back with a journal that ends at {durable}; node {} had heard {} in this life",
                    there.node, here.node, heard.durable
                ));
                false
            }
            // Nobody can detect this. The operator who put the directory back has to know the consequences (operate.md).
            (None, _) if is_put_back => {
                hit("sim.put_back.unseen");
                self.stop_for_good(speaker, "put back, and nobody saw it".to_owned());
                false
            }
            _ => true,
        }
    }

    /// Ends a process whose data directory must not be used again.
    fn stop_for_good(&mut self, host: usize, why: String) {
        self.crash(host, Death::Kill, None);
        self.trace.line(self.now, format_args!("host {host} ends: {why}"));
        self.hosts[host].refused = Some(why);
        self.publish(host);
    }
}

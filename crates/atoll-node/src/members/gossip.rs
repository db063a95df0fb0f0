//! The role that gossips about which nodes are up. It uses the SWIM implementation of the library foca, which does no I/O itself.
//!
//! In-band evidence decides (see `detector.rs`); gossip only informs. Through gossip, a node learns about peers that it does not exchange
//! messages with, and does not trust a peer that all other nodes have lost.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use atoll_core::{Caller, Class, Effects, Frame, Loc, Lsn, Message, NodeId, Role, Tick};
use bytes::Bytes;
use foca::{Config, Foca, NoCustomBroadcast, Notification, PostcardCodec, Runtime, Timer};

use super::Members;

atoll_core::message! {
    /// One packet of foca.
    pub struct Gossip = 401 {
        /// The bytes of the packet.
        pub packet: Bytes,
    }
}

/// The largest packet, in bytes. This suffices because there are few members with short names.
const MAX_PACKET_BYTES: NonZeroUsize = NonZeroUsize::new(1400).expect("not zero");

/// A node's identity in gossip. The identity of a later life, or of a return after the node was declared down, replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GossipId {
    node: u32,
    /// The reading of one of the node's clocks at its start, in milliseconds. It increases by one each time the node returns after it was
    /// declared down.
    since: u64,
}

impl foca::Identity for GossipId {
    type Addr = u32;

    fn renew(&self) -> Option<Self> {
        Some(GossipId { node: self.node, since: self.since + 1 })
    }

    fn addr(&self) -> u32 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.since > adversary.since
    }
}

/// Random numbers for foca, derived from the node's seed so that a simulated run can be replayed.
#[derive(Clone, Debug)]
struct Draw(u64);

impl rand_core::TryRng for Draw {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.try_next_u64()? >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        // xorshift64* is good enough, because foca only uses it to select members.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        Ok(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
        for chunk in into.chunks_mut(8) {
            let word = self.try_next_u64()?.to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        Ok(())
    }
}

/// The effects that foca requested during one call.
#[derive(Default)]
struct Asked {
    packets: Vec<(u32, Bytes)>,
    timers: Vec<(Duration, Timer<GossipId>)>,
    news: Vec<(u32, bool)>,
}

impl Runtime<GossipId> for &mut Asked {
    fn notify(&mut self, notification: Notification<'_, GossipId>) {
        match notification {
            Notification::MemberUp(m) => self.news.push((m.node, true)),
            Notification::MemberDown(m) => self.news.push((m.node, false)),
            _ => {}
        }
    }

    fn send_to(&mut self, to: GossipId, data: &[u8]) {
        self.packets.push((to.node, Bytes::copy_from_slice(data)));
    }

    fn submit_after(&mut self, event: Timer<GossipId>, after: Duration) {
        self.timers.push((after, event));
    }
}

/// The gossip role. See the module documentation.
pub struct GossipRole {
    members: Members,
    foca: Foca<GossipId, PostcardCodec, Draw, NoCustomBroadcast>,
    timers: BTreeMap<(Tick, u64), Timer<GossipId>>,
    next_timer: u64,
    next_announce: Tick,
}

/// How often a node announces itself to all members. Announcements are cheap, and regular ones make up for lost packets.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);

impl GossipRole {
    /// Creates the role of a node that knows no other node yet. `started` is any number that rises from one life of the node to the next.
    pub fn new(node: NodeId, started: u64, seed: u64, members: Members) -> Self {
        let config = Config {
            probe_period: Duration::from_millis(500),
            probe_rtt: Duration::from_millis(200),
            num_indirect_probes: NonZeroUsize::new(3).expect("not zero"),
            max_transmissions: NonZeroU8::new(6).expect("not zero"),
            suspect_to_down_after: Duration::from_millis(1500),
            remove_down_after: Some(Duration::from_secs(24 * 3600)),
            max_packet_size: MAX_PACKET_BYTES,
            notify_down_members: true,
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: None,
        };
        let id = GossipId { node: node.0, since: started };
        GossipRole {
            members,
            foca: Foca::new(id, config, Draw(seed | 1), PostcardCodec),
            timers: BTreeMap::new(),
            next_timer: 0,
            next_announce: Tick(0),
        }
    }

    fn carry_out(&mut self, now: Tick, asked: Asked, out: &mut Effects) {
        for (to, packet) in asked.packets {
            out.post(NodeId(to), Class::Control, crate::members::roles::GOSSIP, Gossip { packet }, Lsn::NONE);
        }
        for (after, timer) in asked.timers {
            self.timers.insert((now.after(after), self.next_timer), timer);
            self.next_timer += 1;
        }
        for (node, up) in asked.news {
            self.members.gossip_says(now, NodeId(node), up);
        }
    }

    fn announce(&mut self, now: Tick, out: &mut Effects) {
        self.next_announce = now.after(ANNOUNCE_EVERY);
        for node in self.members.peers() {
            let mut asked = Asked::default();
            // Only the address matters: the member replies with its own identity.
            let _ = self.foca.announce(GossipId { node: node.0, since: 0 }, &mut asked);
            self.carry_out(now, asked, out);
        }
    }
}

impl Role for GossipRole {
    fn on_frame(&mut self, now: Tick, _from: Caller, frame: Frame, out: &mut Effects) {
        let Ok(gossip) = Gossip::from_frame(frame) else { return };
        let mut asked = Asked::default();
        // If foca refuses the packet because it is malformed or from an earlier life, nothing changes.
        let _ = self.foca.handle_data(&gossip.packet, &mut asked);
        self.carry_out(now, asked, out);
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn deadline(&self) -> Option<Tick> {
        self.timers.keys().next().map(|(at, _)| *at).into_iter().chain([self.next_announce]).min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let mut asked = Asked::default();
            let _ = self.foca.handle_timer(entry.remove(), &mut asked);
            self.carry_out(now, asked, out);
        }
        if now >= self.next_announce {
            self.announce(now, out);
        }
    }
}

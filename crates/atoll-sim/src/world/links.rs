//! Connections between processes: how they are made and lost, and how frames travel on them.

use atoll_core::{Exchange, Link, Outgoing};

use super::host::Input;
use super::network::Sent;
use super::observer::OnWire;
use super::queue::Event;
use super::{Assembly, World, envelope};

impl<A: Assembly> World<A> {
    pub(super) fn send(&mut self, host: usize, outgoing: Outgoing) {
        let Outgoing { to, class, mut envelope } = outgoing;
        let (Some(peer), Some(who)) = (self.host_of(to), self.hosts[host].who()) else { return };
        let (conn, to_peer) = match &mut envelope.exchange {
            Exchange::Reply(number) => {
                let tag = (*number >> envelope::REQUEST_BITS) as u16;
                *number &= (1 << envelope::REQUEST_BITS) - 1;
                (self.net.by_tag(host, tag), false)
            }
            _ => (self.net.current(self.net.slot(host, peer, class)), true),
        };
        let to_life = match (conn, to_peer) {
            (Some(conn), false) => self.net.conn(conn).map(|c| c.dialer_life),
            _ => None,
        };
        let bytes = envelope::encode(&envelope);
        self.trace.event(self.now, host as u64, 16 + peer as u64, u64::from(envelope.frame.kind));
        self.trace.bytes(&bytes);
        if self.trace.is_written() {
            let words = self.assembly.describe(&envelope.frame);
            let exchange = envelope.exchange;
            self.trace.line(self.now, format_args!("{} -> {to} {exchange:?} {words}", who.node));
        }
        // A reply whose connection is gone is dropped.
        let Some(conn) = conn else { return };
        let seen = OnWire { at: self.now, from: &who, to, to_life, class, envelope: &envelope };
        for o in &mut self.observers {
            o.sent(seen, &mut self.verdict);
        }
        let sent = self.net.send(self.now, conn, to_peer, bytes, &mut self.queue);
        match (sent, to_peer) {
            (Sent::Filled, true) => self.input(host, Input::Link { peer: to, class, link: Link::Full }),
            // A reply that does not fit closes the connection (X12).
            (Sent::Filled, false) => self.net.cut(self.now, conn, &mut self.queue),
            _ => {}
        }
    }

    pub(super) fn arrive(&mut self, id: u64, to_peer: bool, bytes: bytes::Bytes, copy: bool) {
        let (deliver, room) = self.net.arrived(self.now, id, to_peer, &bytes, copy);
        let Some(conn) = self.net.conn(id) else { return };
        let (dialer, peer, class, tag) = (conn.dialer, conn.peer, conn.class, conn.tag);
        let (host, life, from) = if to_peer {
            (peer, conn.peer_life, self.hosts[dialer].node)
        } else {
            (dialer, conn.dialer_life, self.hosts[peer].node)
        };
        if room {
            let link = Input::Link { peer: self.hosts[peer].node, class, link: Link::Up };
            let dialer_life = conn.dialer_life;
            self.input_of(dialer, dialer_life, link);
        }
        if !deliver || self.hosts[host].life != life || self.hosts[host].process.is_none() {
            return;
        }
        self.trace.event(self.now, host as u64, 6, bytes.len() as u64);
        match envelope::decode(bytes) {
            Ok(mut envelope) => {
                self.remember(host, from, &envelope);
                if let Exchange::Request(number) = &mut envelope.exchange {
                    *number |= u64::from(tag) << envelope::REQUEST_BITS;
                }
                self.input(host, Input::Frame { from, class, envelope });
            }
            Err(e) => self.verdict.fail(format!("CODEC: a frame did not come back as it was sent: {e}")),
        }
    }

    pub(super) fn dial(&mut self, slot: usize, life: u64) {
        let (dialer, peer, class) = self.net.of_slot(slot);
        let d = &self.hosts[dialer];
        if d.life != life || d.process.is_none() || self.net.current(slot).is_some() {
            return;
        }
        let p = &self.hosts[peer];
        let reachable = p.process.is_some()
            && !p.paused
            && !d.paused
            && !self.net.holds_up(dialer, peer, class)
            && !self.net.holds_up(peer, dialer, class);
        if reachable && self.greet(dialer, peer) {
            let p = &self.hosts[peer];
            let (peer_life, node) = (p.life, p.node);
            self.net.connect(slot, life, peer_life);
            self.trace.event(self.now, dialer as u64, 7, slot as u64);
            self.trace.line(self.now, format_args!("host {dialer} connected to {peer} ({class:?})"));
            self.input(dialer, Input::Link { peer: node, class, link: Link::Up });
        } else {
            let again = self.now + self.rng.range(10_000_000, 150_000_000);
            self.queue.push(again, Event::Dial { slot, life });
        }
    }

    pub(super) fn connection_down(&mut self, id: u64) {
        let Some((slot, conn)) = self.net.down(id) else { return };
        self.trace.event(self.now, conn.dialer as u64, 8, slot as u64);
        self.trace.line(self.now, format_args!("host {} lost {} ({:?})", conn.dialer, conn.peer, conn.class));
        let peer = self.hosts[conn.peer].node;
        self.input_of(
            conn.dialer,
            conn.dialer_life,
            Input::Link { peer, class: conn.class, link: Link::Down },
        );
        let again = self.now + self.rng.range(500_000, 20_000_000);
        self.queue.push(again, Event::Dial { slot, life: conn.dialer_life });
    }

    pub(super) fn silent(&mut self, id: u64) {
        let Some(conn) = self.net.conn(id) else { return };
        let (d, p, class) = (conn.dialer, conn.peer, conn.class);
        let silent = self.net.holds_up(d, p, class)
            || self.net.holds_up(p, d, class)
            || self.hosts[d].paused
            || self.hosts[p].paused;
        if silent {
            self.net.cut(self.now, id, &mut self.queue);
        }
    }
}

//! What a host's journal writes and syncs, and the space that it wants, on the simulated disk.

use atoll_core::Space;

use super::disk::WriteError;
use super::host::Input;
use super::queue::Event;
use super::{Assembly, World};

impl<A: Assembly> World<A> {
    pub(super) fn written(&mut self, host: usize, life: u64) {
        let h = &mut self.hosts[host];
        if h.life != life || h.process.is_none() {
            return;
        }
        let Some(batch) = &h.writing else { return };
        match h.disk.write(batch) {
            Ok(()) => {
                let took = self.rng.tail(self.weather.sync_ns) * self.hosts[host].disk_slower;
                // One sync in five hundred finds a busy device.
                let busy = if self.rng.below(500) == 0 { self.rng.below(50_000_000) } else { 0 };
                self.queue.push(self.now + took + busy, Event::Synced { host, life });
            }
            Err(WriteError::NoSpace) => {
                // The host keeps the batch and retries it until there is space, as a real host does.
                let again = self.now + self.rng.range(5_000_000, 20_000_000);
                self.queue.push(again, Event::Written { host, life });
                self.upkeep_soon(host);
            }
            Err(WriteError::Closed(e)) => self.journal_failed(host, e),
            Err(WriteError::TooLarge(e)) => {
                self.verdict.fail(format!("host {host} wrote a record that its journal cannot take: {e}"));
                self.journal_failed(host, e);
            }
        }
    }

    pub(super) fn synced(&mut self, host: usize, life: u64) {
        let h = &mut self.hosts[host];
        if h.life != life || h.process.is_none() {
            return;
        }
        if h.disk_hung {
            h.sync_waits = true;
            return;
        }
        match h.disk.sync() {
            Ok(written) => {
                let batch = h.writing.take();
                if self.trace.is_written() {
                    let upto = written.last().map(|(lsn, loc)| (lsn.0, *loc));
                    self.trace.line(
                        self.now,
                        format_args!("host {host} synced {} records up to {upto:?}", written.len()),
                    );
                }
                let calls = h.disk.calls();
                self.trace.event(self.now, host as u64, 9, written.len() as u64 ^ calls);
                let who = self.hosts[host].who().filter(|who| !self.hosts[who.host].put_back);
                if let (Some(batch), Some(who)) = (batch, who) {
                    for o in &mut self.observers {
                        o.synced(self.now, &who, &batch.records, &mut self.verdict);
                    }
                }
                self.input(host, Input::Durable(Ok(written)));
                self.upkeep_soon(host);
            }
            Err(e) => self.journal_failed(host, e),
        }
    }

    fn journal_failed(&mut self, host: usize, why: String) {
        self.journal_closed(host, &why);
        self.input(host, Input::Durable(Err(why)));
    }

    /// Closes a journal. That is a violation unless its disk failed.
    fn journal_closed(&mut self, host: usize, why: &str) {
        self.trace.event(self.now, host as u64, 10, 0);
        self.trace.line(self.now, format_args!("host {host}: journal closed: {why}"));
        if !self.hosts[host].disk.has_failed() {
            self.verdict.fail(format!("JOURNAL: host {host} closed it, and its disk did not fail: {why}"));
        }
        self.hosts[host].closed = true;
        self.publish(host);
    }

    pub(super) fn upkeep_soon(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        if !h.upkeep_planned {
            h.upkeep_planned = true;
            // A request for space needs no write, so a slow disk must not delay it.
            let (pause, slower) =
                if h.disk.is_short() { (100_000_000, 1) } else { (2_000_000, h.disk_slower) };
            let at = self.now + self.rng.tail(pause) * slower;
            self.queue.push(at, Event::Upkeep { host, life: h.life });
        }
    }

    pub(super) fn upkeep(&mut self, host: usize, life: u64) {
        let h = &mut self.hosts[host];
        if h.life != life || h.process.is_none() {
            return;
        }
        h.upkeep_planned = false;
        let is_idle = h.writing.is_none();
        if is_idle && !h.disk.mark() {
            return self.journal_failed(host, "the journal could not be marked".to_owned());
        }
        let inputs = match h.disk.upkeep(is_idle) {
            Ok(inputs) => inputs,
            Err(why) => {
                self.journal_closed(host, &why);
                return self.input(host, Input::Space(Space::Closed));
            }
        };
        for input in inputs {
            self.trace.line(self.now, format_args!("host {host}: journal wants {input:?}"));
            self.input(host, input);
        }
        // The disk does not report when space becomes available, so the journal is polled.
        if self.hosts[host].disk.is_short() {
            self.upkeep_soon(host);
        }
    }
}

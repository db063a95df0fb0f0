//! Injects the faults of [`Fault`].

use atoll_core::Tick;
use atoll_core::testing::hit;

use super::fault::{Death, Fault};
use super::network::Slow;
use super::queue::Event;
use super::{Assembly, World};

/// Returns the mark that counts a kind of fault.
fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::Crash { death: Death::Kill, .. } => "sim.fault.kill",
        Fault::Crash { death: Death::PowerCut, .. } => "sim.fault.power_cut",
        Fault::CrashAll { .. } => "sim.fault.crash_all",
        Fault::CrashAfterFrames { .. } => "sim.fault.crash_mid_turn",
        Fault::Pause { .. } => "sim.fault.pause",
        Fault::JumpClock { .. } => "sim.fault.clock",
        Fault::Block { .. } => "sim.fault.one_way",
        Fault::BlockData { .. } => "sim.fault.data_cut",
        Fault::SlowLink { .. } => "sim.fault.slow_link",
        Fault::HangDisk { .. } => "sim.fault.hung_disk",
        Fault::Split { .. } => "sim.fault.split",
        Fault::Reset { .. } => "sim.fault.reset",
        Fault::Mood(_) => "sim.fault.frames",
        Fault::SlowDisk { .. } => "sim.fault.slow_disk",
        Fault::FullDisk { .. } => "sim.fault.full_disk",
        Fault::FailWrite { .. } => "sim.fault.failed_write",
        Fault::FailSync { .. } => "sim.fault.failed_sync",
        Fault::Rot { .. } => "sim.fault.rot",
        Fault::LoseFiles { .. } => "sim.fault.lost_files",
        Fault::FailReads { .. } => "sim.fault.failed_reads",
        Fault::RotLive { .. } => "sim.fault.rot_live",
        Fault::CopyDisk { .. } => "sim.copied_disk",
        Fault::PutBack { whole: false, .. } => "sim.fault.put_back_files",
        Fault::PutBack { whole: true, .. } => "sim.fault.put_back_all",
        Fault::Wipe { .. } => "sim.fault.wipe",
        Fault::Unmount { .. } => "sim.fault.unmount",
        Fault::Boot { .. } | Fault::Defuse { .. } | Fault::HealNetwork | Fault::HealDisk { .. } => "sim.heal",
    }
}

/// Returns whether a fault only ends another one, so that it does not count.
fn is_end(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::HealNetwork
            | Fault::HealDisk { .. }
            | Fault::Boot { .. }
            | Fault::Defuse { .. }
            | Fault::CopyDisk { .. }
            | Fault::FailReads { failing: false, .. }
            | Fault::SlowDisk { factor: 1, .. }
            | Fault::FullDisk { full: false, .. }
            | Fault::HangDisk { hung: false, .. }
            | Fault::SlowLink { slow: Slow { by_ns: 0, jitter_ns: 0, resent_permille: 0 }, .. }
    )
}

impl<A: Assembly> World<A> {
    pub(super) fn inject(&mut self, fault: Fault) {
        let ends = is_end(&fault);
        self.totals.faults += u64::from(!ends);
        self.cluster.state().faults_done = self.totals.faults;
        hit(kind(&fault));
        self.trace.event(self.now, 0xfffe, 14, self.totals.faults);
        self.trace.line(self.now, format_args!("fault: {fault:?}"));
        let now = self.now;
        match fault {
            Fault::Crash { host, death, back_after } => self.crash(host, death, back_after),
            Fault::CrashAll { death, back_within } => {
                for host in 0..self.hosts.len() {
                    let back = self.rng.below(back_within.max(1));
                    self.crash(host, death, Some(back));
                }
            }
            Fault::CrashAfterFrames { host, frames, back_after } => {
                if let Some(p) = &mut self.hosts[host].process {
                    p.fuse = Some((frames, back_after));
                }
            }
            Fault::Defuse { host } => {
                if let Some(p) = &mut self.hosts[host].process {
                    p.fuse = None;
                }
            }
            Fault::Boot { host } => {
                let life = self.hosts[host].life;
                self.queue.push(now, Event::Boot { host, life });
            }
            Fault::Pause { host, nanos } => {
                let h = &mut self.hosts[host];
                if h.process.is_some() && !h.paused {
                    h.paused = true;
                    let life = h.life;
                    self.queue.push(now + nanos, Event::Resume { host, life });
                    self.net.watch_silence(now, host, &mut self.queue);
                    self.publish(host);
                }
            }
            Fault::JumpClock { host, nanos } => {
                if let Some(process) = &mut self.hosts[host].process {
                    process.clock.jump(nanos);
                    self.plan_turn(host, now + 1);
                }
            }
            Fault::Block { from, to, blocked } => self.net.block(now, from, to, blocked, &mut self.queue),
            Fault::BlockData { from, to, blocked } => {
                self.net.block_data(now, from, to, blocked, &mut self.queue);
            }
            Fault::SlowLink { from, to, slow } => self.net.slow_down(from, to, slow),
            Fault::HangDisk { host, hung } => self.hang(host, hung),
            Fault::Split { side } => {
                for from in 0..self.hosts.len() {
                    for to in 0..self.hosts.len() {
                        if from != to && side.contains(&from) != side.contains(&to) {
                            self.net.block(now, from, to, true, &mut self.queue);
                        }
                    }
                }
            }
            Fault::HealNetwork => self.net.heal(now, &mut self.queue),
            Fault::Reset { a, b } => self.net.cut_all(now, a, Some(b), &mut self.queue),
            Fault::Mood(mood) => self.net.mood = mood,
            Fault::SlowDisk { host, factor } => self.hosts[host].disk_slower = factor.max(1),
            Fault::FullDisk { host, full } => {
                self.hosts[host].disk.set_full(full);
                self.upkeep_soon(host);
            }
            Fault::FailWrite { host } => self.hosts[host].disk.fail_write(),
            Fault::FailSync { host } => self.hosts[host].disk.fail_sync(),
            Fault::FailReads { host, failing } => self.hosts[host].disk.fail_reads(failing),
            Fault::HealDisk { host } => self.hosts[host].disk.heal(),
            Fault::Rot { host, back_after } => {
                if let Some(seed) = self.crash_marked(host) {
                    self.hosts[host].disk.rot(seed);
                }
                self.boot_later(host, back_after);
            }
            Fault::RotLive { host, frames, back_after } => self.rot_live(host, frames, back_after),
            Fault::CopyDisk { host } => {
                self.memory.keep();
                self.hosts[host].disk.keep_copy();
            }
            Fault::PutBack { host, whole, back_after } => self.put_back(host, whole, back_after),
            Fault::LoseFiles { host, back_after } => self.lose_files(host, back_after),
            Fault::Wipe { host, back_after } => {
                self.empty_disk(host, back_after);
                self.hosts[host].disk.forget_copy();
            }
            Fault::Unmount { host, back_after } => self.empty_disk(host, back_after),
        }
    }

    /// Causes a power cut after which the host restarts with an empty disk.
    fn empty_disk(&mut self, host: usize, back_after: u64) {
        self.crash(host, Death::PowerCut, None);
        self.cluster.state().lost_at = Some(Tick(self.now));
        let h = &mut self.hosts[host];
        h.disk.wipe();
        h.put_back = false;
        h.rotten = false;
        h.wipes += 1;
        h.refused = None;
        self.publish(host);
        self.boot_later(host, back_after);
    }

    /// Causes a power cut before a disk loses something. Returns the seed of the loss, or None if damage is not possible now. Damage to a
    /// batch that nothing on the disk records as synced would look like a torn write. The journal soon records each sync, so that window is
    /// short, and damage never falls into it.
    fn crash_marked(&mut self, host: usize) -> Option<u64> {
        self.cluster.state().lost_at = Some(Tick(self.now));
        let h = &mut self.hosts[host];
        let quiet = h.process.is_some() && h.writing.is_none() && h.disk.mark();
        self.crash(host, Death::PowerCut, None);
        let seed = self.rng.bits();
        quiet.then_some(seed)
    }

    /// Flips a bit under a running node, in data that is recorded as synced. The next start finds it, and reads may find it earlier.
    fn rot_live(&mut self, host: usize, frames: u64, back_after: u64) {
        let seed = self.rng.bits();
        let h = &mut self.hosts[host];
        let Some(process) = &mut h.process else { return };
        if h.writing.is_none() && h.disk.mark() && h.disk.rot(seed) {
            process.fuse = Some((frames, back_after));
            h.rotten = true;
            self.cluster.state().lost_at = Some(Tick(self.now));
            self.publish(host);
        }
    }

    fn lose_files(&mut self, host: usize, back_after: u64) {
        if let Some(seed) = self.crash_marked(host)
            && let Some(loss) = self.hosts[host].disk.lose_files(seed)
        {
            self.trace.line(self.now, format_args!("host {host}: {loss}"));
        }
        self.boot_later(host, back_after);
    }

    fn put_back(&mut self, host: usize, whole: bool, back_after: u64) {
        let seed = self.crash_marked(host);
        let h = &mut self.hosts[host];
        let done = match (whole, seed) {
            (true, _) => {
                h.put_back |= h.disk.put_back_all();
                None
            }
            (false, Some(seed)) => h.disk.put_back_some(seed),
            (false, None) => None,
        };
        if let Some(files) = done {
            self.trace.line(self.now, format_args!("host {host}: {files} put back from an older copy"));
        }
        self.publish(host);
        self.boot_later(host, back_after);
    }

    /// While the disk hangs, no sync ends, not even one that is under way.
    fn hang(&mut self, host: usize, hung: bool) {
        let h = &mut self.hosts[host];
        h.disk_hung = hung;
        if !hung && std::mem::take(&mut h.sync_waits) {
            self.queue.push(self.now, Event::Synced { host, life: h.life });
        }
    }

    fn boot_later(&mut self, host: usize, after: u64) {
        let life = self.hosts[host].life;
        self.queue.push(self.now + after, Event::Boot { host, life });
    }

    /// Ends a process. Marks it dead first, so that nothing that is dropped with it can still act (contracts §4).
    pub(super) fn crash(&mut self, host: usize, death: Death, back_after: Option<u64>) {
        let who = self.hosts[host].who();
        if let (Some(who), Some(process)) = (who, self.hosts[host].process.take()) {
            process.core.kill();
            self.cluster.mourn(host);
            for o in &mut self.observers {
                o.died(self.now, &who, &mut self.verdict);
            }
            self.net.forget_dialer(host);
            self.net.sender_died(self.now, host, &mut self.queue);
        }
        let seed = self.rng.bits();
        let h = &mut self.hosts[host];
        h.backlog.clear();
        h.paused = false;
        h.writing = None;
        h.sync_waits = false;
        match death {
            Death::Kill => h.disk.kill_process(),
            Death::PowerCut => h.disk.power_cut(seed),
        }
        self.publish(host);
        if let Some(after) = back_after {
            self.boot_later(host, after);
        }
        self.clients_if_due();
    }

    /// Counts a frame against the process's fuse. Returns true if that ended the process, or if no process runs.
    pub(super) fn fuse_burnt(&mut self, host: usize) -> bool {
        let Some(process) = &mut self.hosts[host].process else { return true };
        match &mut process.fuse {
            None => false,
            Some((0, back_after)) => {
                let back_after = *back_after;
                self.trace.line(self.now, format_args!("host {host}: the fuse has burnt"));
                self.crash(host, Death::Kill, Some(back_after));
                true
            }
            Some((left, _)) => {
                *left -= 1;
                false
            }
        }
    }
}

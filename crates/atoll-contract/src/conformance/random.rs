//! The random part of the Loglet suite: runs many clients concurrently, and checks the history that they observed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Env, Tick, Ticket};

use super::history::{Dice, Event, History};
use super::loglet::{LogletHarness, PATIENCE, entry, on, patiently, read_all};
use crate::entry::{Batch, Entry, OpId};
use crate::loglet::{AppendError, Loglet, LogletError, Placement, ReadError, Tail};
use crate::position::Offset;

#[derive(Clone, Debug)]
enum Seen {
    Append { handle: usize, call: u64, entries: Vec<Entry>, got: Result<Placement, AppendError> },
    Check(Result<Tail, LogletError>),
    Wait(Result<Tail, LogletError>),
    Seal(Result<(), LogletError>),
    Trim { to: Offset, got: Result<(), LogletError> },
}

/// The state of one client in the random test.
struct Client {
    env: Env,
    loglet: Arc<dyn Loglet>,
    seen: History<Seen>,
    dice: Dice,
    until: Tick,
    handle: usize,
}

impl Client {
    async fn nap(&mut self, up_to_ms: u64) {
        let micros = self.dice.roll(up_to_ms * 1000);
        self.env.sleep(Duration::from_micros(micros)).await;
    }

    fn go_on(&self) -> bool {
        self.env.now() < self.until
    }

    /// Appends, with several appends in flight if the Loglet keeps order, until the Loglet is sealed.
    async fn append(mut self) {
        let mut next = 1;
        let mut call = 0;
        while self.go_on() {
            let depth = if self.loglet.keeps_order() { 1 + self.dice.roll(6) } else { 1 };
            let mut flights = Vec::new();
            for _ in 0..depth {
                let count = 1 + self.dice.roll(4);
                let entries: Vec<Entry> =
                    (next..next + count).map(|seq| entry(self.handle as u64 + 100, seq)).collect();
                next += count;
                call += 1;
                let start = self.seen.begin();
                flights.push((start, call, entries.clone(), self.loglet.append(Batch::of(entries))));
            }
            let mut sealed = false;
            for (start, call, entries, ticket) in flights {
                let unknown = Err(AppendError::Unknown(crate::loglet::Unavailability::Stopping));
                let got = ticket.await.unwrap_or(unknown);
                sealed |= got == Err(AppendError::Sealed);
                self.seen.end(start, Seen::Append { handle: self.handle, call, entries, got });
            }
            if sealed {
                return;
            }
            self.nap(4).await;
        }
    }

    async fn check(mut self) {
        while self.go_on() {
            let start = self.seen.begin();
            let got = self.loglet.check_tail().await;
            self.seen.end(start, Seen::Check(got));
            self.nap(10).await;
        }
    }

    async fn follow(mut self) {
        let mut above = Offset::ZERO;
        while self.go_on() {
            let start = self.seen.begin();
            let wait = self.loglet.wait_tail(above);
            let Ok(got) = self.env.within(Duration::from_millis(50), wait).await else { continue };
            if let Ok(tail) = &got {
                above = above.max(tail.at);
                if tail.sealed.is_some() {
                    self.seen.end(start, Seen::Wait(got));
                    return;
                }
            }
            self.seen.end(start, Seen::Wait(got));
            self.nap(2).await;
        }
    }

    async fn seal(mut self) {
        let wait = self.until.since(self.env.now()).as_millis() as u64;
        let part = wait / 4 + self.dice.roll(wait / 2);
        self.env.sleep(Duration::from_millis(part)).await;
        while self.go_on() {
            let start = self.seen.begin();
            let got = self.loglet.seal().await;
            let done = got.is_ok();
            self.seen.end(start, Seen::Seal(got));
            if done {
                return;
            }
            self.nap(3).await;
        }
    }

    async fn trim(mut self) {
        while self.go_on() {
            self.nap(60).await;
            if let Ok(tail) = self.loglet.check_tail().await
                && tail.at > Offset::ZERO
                && tail.sealed.is_none()
            {
                let to = Offset(self.dice.roll(tail.at.0 / 2 + 1));
                let start = self.seen.begin();
                let got = self.loglet.prefix_trim(to).await;
                self.seen.end(start, Seen::Trim { to, got });
            }
        }
    }
}

/// Runs clients that append, check the tail, follow, seal and trim concurrently under the harness's faults, and then checks the history.
pub fn random(h: &mut dyn LogletHarness, seed: u64) {
    let mut dice = Dice::new(seed);
    let log = h.fresh();
    let seen: History<Seen> = History::new();
    let nodes = h.clients();
    let keeps_order = h.open(log, nodes[0]).keeps_order();
    let until = h.driver().now().after(Duration::from_millis(100 + dice.roll(400)));
    let mut work: Vec<Ticket<()>> = Vec::new();
    for (i, node) in nodes.iter().cycle().take(nodes.len().max(3) * 2).enumerate() {
        let loglet = h.open(log, *node);
        let env = h.driver().env(*node);
        let client = |handle: usize, salt: u64| Client {
            env: env.clone(),
            loglet: loglet.clone(),
            seen: seen.clone(),
            dice: Dice::new(seed * 1000 + handle as u64 * 10 + salt),
            until,
            handle,
        };
        work.push(env.launch("conformance.append", client(i, 1).append()));
        work.push(env.launch("conformance.check", client(i, 2).check()));
        match i % 3 {
            0 => work.push(env.launch("conformance.follow", client(i, 3).follow())),
            1 => work.push(env.launch("conformance.seal", client(i, 4).seal())),
            _ => work.push(env.launch("conformance.trim", client(i, 5).trim())),
        }
    }
    while h.driver().now() < until {
        let slice = Duration::from_micros(500 + dice.roll(5000));
        h.driver().run_for(slice);
        let random = dice.roll(u64::MAX);
        h.disturb(random);
    }
    h.heal();
    let limit = h.driver().now().after(PATIENCE);
    for mut ticket in work {
        while ticket.try_take().is_none() {
            assert!(h.driver().step(limit), "seed {seed}: an operation never ended after the faults did");
        }
    }
    judge(h, log, seed, &seen, keeps_order);
}

fn judge(h: &mut dyn LogletHarness, log: u64, seed: u64, seen: &History<Seen>, keeps_order: bool) {
    let mut contents: Vec<(Offset, Tail, Vec<Entry>)> = Vec::new();
    for node in h.clients() {
        let (l, env, seen) = (h.open(log, node), h.driver().env(node), seen.clone());
        contents.push(on(h, node, async move {
            let start = seen.begin();
            let sealed = patiently(&env, || l.seal()).await;
            assert_eq!(sealed, Ok(()), "seed {seed}: L2: a seal succeeds once a majority answers");
            seen.end(start, Seen::Seal(sealed));
            let start = seen.begin();
            let got = patiently(&env, || l.check_tail()).await;
            seen.end(start, Seen::Check(got.clone()));
            let Ok(tail) = got else { panic!("seed {seed}: no tail after a seal: {got:?}") };
            let mut from = Offset::ZERO;
            loop {
                match read_all(&env, &l, from, tail.at).await {
                    Ok(entries) => return (from, tail, entries),
                    Err(ReadError::Trimmed(to)) if to > from => from = to,
                    Err(e) => panic!("seed {seed}: L6: [{from}, {}) is not readable: {e}", tail.at),
                }
            }
        }));
    }
    let events = seen.events();
    judge_tails(seed, &events);
    judge_seals(seed, &events);
    judge_order(seed, &events, keeps_order);
    judge_contents(seed, &events, &contents);
}

fn acks(events: &[Event<Seen>]) -> impl Iterator<Item = (u64, u64, Vec<Offset>)> {
    events.iter().filter_map(|e| match &e.what {
        Seen::Append { got: Ok(p), .. } => Some((e.start, e.end, p.offsets().collect())),
        _ => None,
    })
}

/// Checks vlog-L3 and vlog-L4: sealed tails are above all acknowledged offsets. Open tails are above all offsets acknowledged before, never
/// above a sealed tail, and never fall.
fn judge_tails(seed: u64, events: &[Event<Seen>]) {
    let tails: Vec<(u64, u64, Tail, bool)> = events
        .iter()
        .filter_map(|e| match &e.what {
            Seen::Check(Ok(t)) => Some((e.start, e.end, t.clone(), true)),
            Seen::Wait(Ok(t)) => Some((e.start, e.end, t.clone(), false)),
            _ => None,
        })
        .collect();
    let lowest_sealed = tails.iter().filter(|t| t.2.sealed.is_some()).map(|t| t.2.at).min();
    let lowest_sealed = lowest_sealed.unwrap_or(Offset(u64::MAX));
    let acks: Vec<_> = acks(events).collect();
    for (_, _, offsets) in &acks {
        let highest = offsets.iter().max().copied().unwrap_or_default();
        assert!(
            highest < lowest_sealed,
            "seed {seed}: L3: {highest} was acknowledged, sealed at {lowest_sealed}"
        );
    }
    for (start, _, tail, checked) in &tails {
        if tail.sealed.is_none() {
            assert!(tail.at <= lowest_sealed, "seed {seed}: L4: open tail {} above {lowest_sealed}", tail.at);
        }
        if *checked && tail.sealed.is_none() {
            let before = acks.iter().filter(|(_, end, _)| end < start).flat_map(|a| &a.2).max();
            let at = tail.at;
            assert!(
                before.is_none_or(|b| *b < at),
                "seed {seed}: L4: tail {at} misses the ack of {before:?}"
            );
            let earlier = tails.iter().filter(|t| t.1 < *start && t.2.sealed.is_none()).map(|t| t.2.at).max();
            assert!(
                earlier.is_none_or(|e| e <= at),
                "seed {seed}: L4: the tail went back from {earlier:?} to {at}"
            );
        }
    }
}

/// Checks vlog-L2: after a seal has returned, no check reports an open Loglet, and no append that began later is acknowledged.
fn judge_seals(seed: u64, events: &[Event<Seen>]) {
    let sealed_by = |e: &&Event<Seen>| match &e.what {
        Seen::Seal(Ok(())) => true,
        Seen::Check(Ok(t)) | Seen::Wait(Ok(t)) => t.sealed.is_some(),
        _ => false,
    };
    let Some(sealed) = events.iter().filter(sealed_by).map(|e| e.end).min() else { return };
    for e in events.iter().filter(|e| e.start > sealed) {
        match &e.what {
            Seen::Check(Ok(t)) => assert!(t.sealed.is_some(), "seed {seed}: L2: open after a seal: {t:?}"),
            Seen::Append { got, .. } => {
                assert!(got.is_err(), "seed {seed}: L2: appended after a seal: {got:?}")
            }
            _ => {}
        }
    }
}

/// Checks vlog-L1 and vlog-L8: acknowledged appends follow real-time order, and appends of one handle follow the order of the calls if the
/// Loglet promises that.
fn judge_order(seed: u64, events: &[Event<Seen>], keeps_order: bool) {
    let acks: Vec<_> = acks(events).collect();
    let mut by_end: Vec<_> = acks.iter().collect();
    by_end.sort_by_key(|(_, end, _)| *end);
    let mut by_start: Vec<_> = acks.iter().collect();
    by_start.sort_by_key(|(start, _, _)| *start);
    let (mut done, mut highest) = (0, None);
    for (start, _, offsets) in by_start {
        while done < by_end.len() && by_end[done].1 < *start {
            highest = highest.max(by_end[done].2.iter().max().copied());
            done += 1;
        }
        let lowest = offsets.iter().min().copied();
        assert!(
            lowest > highest,
            "seed {seed}: L1: {lowest:?} was given out after {highest:?} was acknowledged"
        );
    }
    if !keeps_order {
        return;
    }
    let mut calls: BTreeMap<usize, Vec<(u64, Vec<Offset>)>> = BTreeMap::new();
    for e in events {
        if let Seen::Append { handle, call, got: Ok(p), .. } = &e.what {
            calls.entry(*handle).or_default().push((*call, p.offsets().collect()));
        }
    }
    for (handle, mut made) in calls {
        made.sort();
        let offsets: Vec<Offset> = made.into_iter().flat_map(|m| m.1).collect();
        assert!(offsets.is_sorted(), "seed {seed}: L8: appends of handle {handle} landed out of order");
    }
}

/// Checks vlog-L1, vlog-L6 and trims: every reader reads the same, acknowledged entries are at their acknowledged offsets, no entry is
/// there twice, and a client appended every entry.
fn judge_contents(seed: u64, events: &[Event<Seen>], contents: &[(Offset, Tail, Vec<Entry>)]) {
    let mut all: BTreeMap<Offset, &Entry> = BTreeMap::new();
    for (from, _, entries) in contents {
        for (i, entry) in entries.iter().enumerate() {
            let at = from.plus(i as u64);
            let first = all.entry(at).or_insert(entry);
            assert_eq!(*first, entry, "seed {seed}: L6: two contents at {at}");
        }
    }
    let trim_wanted = events.iter().filter_map(|e| match &e.what {
        Seen::Trim { to, .. } => Some(*to),
        _ => None,
    });
    let trim_done = events.iter().filter_map(|e| match &e.what {
        Seen::Trim { to, got: Ok(()) } => Some(*to),
        _ => None,
    });
    let (most, least) = (trim_wanted.max().unwrap_or_default(), trim_done.max().unwrap_or_default());
    for (from, _, _) in contents {
        assert!(*from <= most, "seed {seed}: trimmed up to {from}, asked up to {most}");
        assert!(*from >= least, "seed {seed}: still readable from {from}, trimmed up to {least}");
    }
    let mut sent: BTreeMap<OpId, &Entry> = BTreeMap::new();
    for e in events {
        let Seen::Append { entries, got, .. } = &e.what else { continue };
        sent.extend(entries.iter().map(|e| (e.op, e)));
        let Ok(placed) = got else { continue };
        let offsets: Vec<Offset> = placed.offsets().collect();
        assert_eq!(offsets.len(), entries.len(), "seed {seed}: one offset per entry");
        for (at, entry) in offsets.iter().zip(entries).filter(|(at, _)| **at >= most) {
            assert_eq!(all.get(at), Some(&entry), "seed {seed}: L1: acknowledged at {at} and not there");
        }
    }
    let mut places: BTreeMap<OpId, Offset> = BTreeMap::new();
    for (at, entry) in all.into_iter().filter(|(_, entry)| !entry.is_pad()) {
        assert_eq!(sent.get(&entry.op), Some(&entry), "seed {seed}: {at} has what nobody appended");
        if let Some(other) = places.insert(entry.op, at) {
            panic!("seed {seed}: {:?} is at {other} and at {at}", entry.op);
        }
    }
}

//! Logs that are reconfigured very often. A chain never fills up so far that a usable log can no longer be extended or ended (vlog-V17).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{self, Cluster};
use atoll_contract::{
    ClientId, Listed, LogPos, LogletSpec, Nonce, OpId, ReadFrom, Register, RegisterError, Registers,
    Registry, Version, Versioned, Written,
};
use atoll_core::{BoxFuture, Level, Tick};
use atoll_log::{Chain, LogAppendError, LogReadError, LogRecord, ReconfigError, Segment, VirtualLog};

/// Returns a cluster whose chains have no index pages, because some member may be unable to read them.
fn without_pages(seed: u64) -> Cluster {
    Cluster::at_first_level(seed, 3)
}

/// Returns a cluster whose index pages hold two items each.
fn with_small_pages(seed: u64) -> Cluster {
    let mut c = Cluster::new(seed, 3);
    c.options.page_items = 2;
    c
}

fn append(c: &mut Cluster, log: &Arc<VirtualLog>, seq: u64) -> Option<LogPos> {
    let op = OpId { client: ClientId(7), seq };
    let record = LogRecord { op, floor: None, payload: bytes::Bytes::from_static(b"entry") };
    let (env, ticket) = (c.env(1), log.submit(vec![record]).unwrap());
    let answer = c.run(1, async move { env.within(Duration::from_secs(30), ticket).await });
    answer.ok()?.unwrap().ok().map(|positions| positions[0])
}

fn extend(c: &mut Cluster, log: &Arc<VirtualLog>) -> bool {
    let extend = log.extend(LogletSpec::default());
    c.run(1, extend).unwrap().is_ok()
}

/// Extends the log, with an entry in each segment, until an extend is refused. Returns the number of segments.
fn fill(c: &mut Cluster, log: &Arc<VirtualLog>) -> u64 {
    for seq in 1..2000 {
        assert!(append(c, log, seq).is_some(), "append {seq}");
        if !extend(c, log) {
            return seq;
        }
    }
    panic!("the chain takes any number of segments");
}

#[test]
fn a_full_chain_is_refused_before_the_seal() {
    let mut c = without_pages(31);
    let log = c.created("memory");
    let last = fill(&mut c, &log);
    let loglets = c.servers.loglets();
    assert!(!extend(&mut c, &log));
    assert_eq!(c.servers.loglets(), loglets, "a refused extension provisions nothing");
    assert_eq!(append(&mut c, &log, last + 1), Some(LogPos(last)), "a refused extension seals nothing");
}

#[test]
fn a_full_chain_leaves_room_to_roll_forward_and_to_end() {
    let mut c = without_pages(32);
    let log = c.created("memory");
    let last = fill(&mut c, &log);
    // A reconfigurer seals the active segment and dies.
    let chain = log.chain().unwrap();
    let active = chain.chain.active();
    let loglet = log.registry().provider("memory").unwrap().open(active.loglet, &active.config).unwrap();
    c.run(1, async move { loglet.seal().await }).unwrap();
    assert_eq!(append(&mut c, &log, last + 1), Some(LogPos(last)));
    let end = log.end();
    assert_eq!(c.run(1, end).unwrap(), Ok(LogPos(last + 1)));
}

#[test]
fn empty_segments_leave_the_chain_at_once() {
    let mut c = Cluster::new(33, 3);
    let log = c.created("memory");
    append(&mut c, &log, 1).unwrap();
    for _ in 0..50 {
        assert!(extend(&mut c, &log));
    }
    assert_eq!(log.chain().unwrap().chain.segments().len(), 2);
    assert_eq!(append(&mut c, &log, 2), Some(LogPos(1)));
    let until = Tick(c.driver.now().0).after(Duration::from_secs(60));
    c.driver.run_for(until.since(c.driver.now()));
    assert_eq!(c.servers.loglets(), 2, "their Loglets are deleted");
}

/// Appends an entry and extends the log, `n` times, from sequence number `first` on.
fn grow(c: &mut Cluster, log: &Arc<VirtualLog>, first: u64, n: u64) {
    for seq in first..first + n {
        assert_eq!(append(c, log, seq), Some(LogPos(seq - 1)));
        assert!(extend(c, log));
    }
}

/// Returns all segments from a position on, read page by page.
fn walk(c: &mut Cluster, log: &Arc<VirtualLog>, from: u64) -> Vec<Segment> {
    let (mut segments, mut at) = (Vec::new(), Some(LogPos(from)));
    while let Some(from) = at {
        let page = log.segments_from(from);
        let page = c.run(1, page).unwrap().unwrap();
        segments.extend(page.segments);
        at = page.next;
    }
    segments
}

fn seq_at(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>, at: u64) -> Result<u64, LogReadError> {
    let read = log.read(LogPos(at)..LogPos(at + 1), 1000, ReadFrom::Anywhere);
    c.run(node, read).unwrap().map(|read| read.entries[0].op.seq)
}

#[test]
fn old_segments_move_to_pages_and_every_position_stays_where_it_is() {
    let mut c = with_small_pages(34);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 100);
    let chain = log.chain().unwrap();
    assert!(chain.chain.segments().len() <= 6, "{:?}", chain.chain.segments().len());
    assert!(chain.chain.pages().len() <= 20, "{:?}", chain.chain.pages());
    assert!(chain.chain.pages()[0].level >= 3);
    assert_eq!(chain.chain.segment_count(), 101);
    // vlog-V12: each position maps to one offset, in order.
    let segments = walk(&mut c, &log, 0);
    assert_eq!(segments.len(), 101);
    for (i, s) in segments.iter().enumerate() {
        let at = LogPos(i as u64);
        assert_eq!((s.start, s.position_of(s.offset_of(at))), (at, at));
        assert_eq!(s.stop, (i < 100).then_some(at.plus(1)));
    }
    assert_eq!(walk(&mut c, &log, 57), segments[57..]);
    // Read through a handle that has seen none of the chain.
    let cold = c.log(2, "log");
    for at in [0, 99, 1, 50, 49, 98, 7] {
        assert_eq!(seq_at(&mut c, 2, &cold, at), Ok(at + 1));
    }
    let whole = Chain::parse(chain.chain.to_value().unwrap()).unwrap();
    assert_eq!(whole, chain.chain);
}

#[test]
fn the_last_of_many_changes_costs_what_the_first_did() {
    let mut c = Cluster::new(35, 3);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 200);
    let (early, at) = (log.chain().unwrap().chain.size_bytes(), c.driver.now());
    grow(&mut c, &log, 201, 100);
    let first = c.driver.now().since(at);
    grow(&mut c, &log, 301, 4700);
    let (late, at) = (log.chain().unwrap().chain.size_bytes(), c.driver.now());
    grow(&mut c, &log, 5001, 100);
    let last = c.driver.now().since(at);
    assert!(late < early + 32 * 2 * 100, "{early} bytes after 200 segments, {late} after 5,000");
    assert!(last < first * 2, "{first:?} for the third hundred, {last:?} for the last");
}

/// Registers that count how often they are read.
#[derive(Debug)]
struct Counting(Arc<dyn Registers>, Arc<AtomicU64>);

#[derive(Debug)]
struct CountingRegister(Arc<dyn Register>, Arc<AtomicU64>);

impl Registers for Counting {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(CountingRegister(self.0.register(name), self.1.clone()))
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        self.0.list(prefix)
    }
}

impl Register for CountingRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read()
    }

    fn write_if(
        &self,
        expected: Version,
        value: bytes::Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        self.0.write_if(expected, value, nonce)
    }
}

/// Reads positions all over the log, each through a handle that has seen nothing. Returns the highest number of register reads, and the
/// longest virtual time, that one of these reads took.
fn cold_reads(c: &mut Cluster, segments: u64) -> (u64, Duration) {
    let (mut reads, mut longest) = (0, Duration::ZERO);
    for at in (0..segments).step_by(segments as usize / 20) {
        let (env, count) = (c.env(2), Arc::new(AtomicU64::new(0)));
        let registry = Registry::new().with(c.servers.provider(&env, "memory", true));
        let counting = Counting(c.servers.registers(&env), count.clone());
        let cold = VirtualLog::open(env, "log", Arc::new(counting), registry, c.options.clone());
        let began = c.driver.now();
        assert_eq!(seq_at(c, 2, &cold, at), Ok(at + 1));
        longest = longest.max(c.driver.now().since(began));
        reads = reads.max(count.load(Ordering::Relaxed));
    }
    (reads, longest)
}

#[test]
fn a_cold_read_of_an_old_position_takes_the_chain_and_a_page() {
    let mut c = Cluster::new(41, 3);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 60);
    let (reads, longest) = cold_reads(&mut c, 60);
    assert_eq!(reads, 1, "all is in the chain");
    grow(&mut c, &log, 61, 1940);
    let (reads, late) = cold_reads(&mut c, 2000);
    assert_eq!(reads, 2, "the chain refers to each page itself");
    assert!(late < longest * 3, "{longest:?} with 60 segments, {late:?} with 2,000");
    grow(&mut c, &log, 2001, 3000);
    let (reads, late) = cold_reads(&mut c, 5000);
    assert_eq!(reads, 3, "the oldest pages are in a page of pages");
    assert!(late < longest * 4, "{longest:?} with 60 segments, {late:?} with 5,000");
    // With two segments per page, the number of reads grows with the logarithm to base two.
    let mut c = with_small_pages(42);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 2000);
    let (reads, _) = cold_reads(&mut c, 2000);
    assert!((8..=12).contains(&reads), "{reads} register reads for 2,000 segments");
}

#[test]
fn a_trim_deletes_what_is_in_pages_and_the_pages() {
    let mut c = with_small_pages(36);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 40);
    for to in [3, 4, 17, 32] {
        let trim = log.trim(LogPos(to));
        assert_eq!(c.run(1, trim).unwrap(), Ok(LogPos(to)));
        c.driver.run_for(Duration::from_secs(20));
        assert_eq!(c.servers.loglets() as u64, 41 - to, "the Loglets below {to} are deleted");
        assert_eq!(seq_at(&mut c, 1, &log, to - 1), Err(LogReadError::Trimmed(LogPos(to))));
        assert_eq!(seq_at(&mut c, 1, &log, to), Ok(to + 1));
    }
    let trim = log.trim(LogPos(40));
    assert_eq!(c.run(1, trim).unwrap(), Ok(LogPos(40)));
    c.driver.run_for(Duration::from_secs(20));
    assert_eq!(log.chain().unwrap().chain.segment_count(), 1);
    let registers = c.servers.registers(&c.env(1));
    let left = c.run(1, async move {
        let mut left = Vec::new();
        for name in registers.list("page/").await.unwrap() {
            if !registers.register(&name.name).read().await.unwrap().value.is_empty() {
                left.push(name);
            }
        }
        left
    });
    assert_eq!(left, Vec::<atoll_contract::Listed>::new(), "pages that nothing names are empty");
}

#[test]
fn a_segment_in_a_page_is_rebuilt() {
    let mut c = with_small_pages(38);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 40);
    let stale = c.log(2, "log");
    assert_eq!(seq_at(&mut c, 2, &stale, 9), Ok(10));
    let trim = log.trim(LogPos(3));
    assert_eq!(c.run(1, trim).unwrap(), Ok(LogPos(3)));
    for at in [9, 3] {
        let old = walk(&mut c, &log, at)[0].clone();
        let modify = log.modify_at(old.loglet, old.start, common::spec("shuffled"));
        c.run(1, modify).unwrap().unwrap();
        let new = walk(&mut c, &log, at)[0].clone();
        assert_eq!((new.start, new.stop, new.kind.as_str()), (old.start, old.stop, "shuffled"));
        c.driver.run_for(Duration::from_secs(20));
        // The handle that knows only the old pages finds them gone, refreshes its chain, and continues to read.
        assert_eq!(seq_at(&mut c, 2, &stale, at), Ok(at + 1));
        let again = log.modify(old.loglet, LogletSpec::default());
        assert_eq!(c.run(1, again).unwrap(), Err(ReconfigError::NoSuchSegment(old.loglet)));
    }
    assert_eq!(walk(&mut c, &log, 0).len(), 38);
    assert_eq!(c.servers.loglets(), 38);
}

#[test]
fn a_segment_is_found_although_the_page_that_an_older_chain_names_is_gone() {
    let mut c = with_small_pages(39);
    let log = c.created("memory");
    grow(&mut c, &log, 1, 8);
    // Another node reads the chain, but none of its pages.
    let other = c.log(2, "log");
    let refresh = other.refresh();
    let old = c.run(2, refresh).unwrap().unwrap();
    let wanted = walk(&mut c, &log, 0)[1].loglet;
    assert!(old.chain.segment(wanted).is_none(), "it is in a page");
    // Meanwhile all its neighbours are rebuilt, so that the pages are written anew and the old ones emptied.
    for at in [0, 2, 3] {
        let neighbour = walk(&mut c, &log, at)[0].clone();
        let modify = log.modify_at(neighbour.loglet, neighbour.start, common::spec("shuffled"));
        c.run(1, modify).unwrap().unwrap();
    }
    c.driver.run_for(Duration::from_secs(60));
    assert_eq!(other.chain().unwrap().version, old.version, "the other node has heard nothing");
    atoll_core::testing::take_marks();
    let find = other.find_in_pages(|_, _| true, move |s| s.loglet == wanted);
    let found = c.run(2, find).unwrap().unwrap();
    assert_eq!(found.map(|s| s.loglet), Some(wanted));
    assert!(atoll_core::testing::take_marks().contains_key("vlog.page.gone"), "no page was gone");
}

#[test]
fn a_log_with_a_full_chain_goes_on_when_pages_may_be_written() {
    let mut c = without_pages(39);
    let log = c.created("memory");
    let last = fill(&mut c, &log);
    c.env(2).levels().learn(Level::CURRENT).unwrap();
    let log = c.log(2, "log");
    grow(&mut c, &log, last + 1, 10);
    assert!(log.chain().unwrap().chain.segments().len() < 200);
    assert_eq!(seq_at(&mut c, 2, &log, 3), Ok(4));
}

#[test]
fn a_damaged_entry_stalls_nobody_behind_it() {
    let mut c = Cluster::new(40, 3);
    let log = c.created("memory");
    append(&mut c, &log, 1).unwrap();
    // The outcome of the second record is unknown when its segment is sealed, and the segment cannot be read.
    c.servers.faults(|f| f.append_unknown = 1000);
    let op = OpId { client: ClientId(8), seq: 1 };
    let record = LogRecord { op, floor: None, payload: bytes::Bytes::from_static(b"doubtful") };
    let ticket = log.submit(vec![record]).unwrap();
    c.driver.run_for(Duration::from_millis(500));
    let damaged = log.chain().unwrap().chain.active().loglet;
    c.servers.faults(|f| {
        f.append_unknown = 0;
        f.damaged.insert(damaged);
    });
    let other = c.log(2, "log");
    let extend = other.extend(LogletSpec::default());
    c.run(2, extend).unwrap().unwrap();
    let env = c.env(1);
    let answer = c.run(1, async move { env.within(Duration::from_secs(60), ticket).await });
    assert!(matches!(answer, Ok(Ok(Err(LogAppendError::Damaged { .. }) | Ok(_)))), "{answer:?}");
    assert!(append(&mut c, &log, 2).is_some(), "what was never sent to the damaged segment continues");
}

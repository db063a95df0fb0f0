//! Checks vlog-L1–vlog-L9 of virtuallog §2 for any Loglet. [`all`] runs everything; each part can also be called separately.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::{BoxFuture, Env, Level, NodeId};

use super::driver::Driver;
pub use super::random::random;
use crate::entry::{Batch, ClientId, Entry, OpId};
use crate::loglet::{AppendError, Loglet, LogletError, Placement, ReadError, ReadFrom, Tail};
use crate::position::Offset;

/// Bytes per read.
const PAGE_BYTES: usize = 4096;
/// Virtual time within which every operation of a suite must end once the faults are over.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The interface through which the suite drives an implementation.
pub trait LogletHarness {
    /// Returns the driver of the nodes.
    fn driver(&mut self) -> &mut Driver;

    /// Returns the nodes that clients run on: at least two.
    fn clients(&self) -> Vec<NodeId>;

    /// Creates an empty, open Loglet and returns a number that names it.
    fn fresh(&mut self) -> u64;

    /// Opens a new handle on a node.
    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet>;

    /// Deletes a Loglet permanently. Returns false if this implementation cannot.
    fn delete(&mut self, _loglet: u64) -> bool {
        false
    }

    /// Called from time to time during a random test. May start or end a fault.
    fn disturb(&mut self, _random: u64) {}

    /// Ends all faults.
    fn heal(&mut self) {}
}

/// Runs the whole suite, with these seeds for the random part.
pub fn all(h: &mut dyn LogletHarness, seeds: std::ops::Range<u64>) {
    appends_are_read_back(h);
    one_handle_keeps_its_order(h);
    retries_are_not_doubled(h);
    pads_fill_each_offset_once(h);
    a_seal_is_for_ever(h);
    an_empty_loglet_seals_at_zero(h);
    waiting_ends(h);
    trimmed_is_gone(h);
    deleted_is_gone(h);
    for seed in seeds {
        random(h, seed);
    }
}

/// Returns a batch of `count` entries, numbered from `seq` on.
fn batch(client: u64, seq: u64, count: u64) -> Batch {
    Batch::of((seq..seq + count).map(|seq| entry(client, seq)))
}

pub(super) fn entry(client: u64, seq: u64) -> Entry {
    let payload = Bytes::from(format!("{client}/{seq}/{}", "x".repeat((seq % 7) as usize)));
    Entry { op: OpId { client: ClientId(client), seq }, payload }
}

/// Runs a future on a node.
pub(super) fn on<T: Send + 'static>(
    h: &mut dyn LogletHarness,
    node: NodeId,
    f: impl Future<Output = T> + Send + 'static,
) -> T {
    h.driver().block_on(node, f)
}

async fn append(l: &Arc<dyn Loglet>, b: Batch) -> Result<Placement, AppendError> {
    l.append(b).await.unwrap_or(Err(AppendError::Unknown(crate::loglet::Unavailability::Stopping)))
}

pub(super) async fn patiently<'a, T>(
    env: &Env,
    mut again: impl FnMut() -> BoxFuture<'a, Result<T, LogletError>>,
) -> Result<T, LogletError> {
    let until = env.now().after(PATIENCE);
    loop {
        match again().await {
            Err(LogletError::Unavailable(_)) if env.now() < until => {
                env.sleep(Duration::from_millis(5)).await
            }
            other => return other,
        }
    }
}

/// Reads all entries of `[from, to)`.
pub(super) async fn read_all(
    env: &Env,
    l: &Arc<dyn Loglet>,
    from: Offset,
    to: Offset,
) -> Result<Vec<Entry>, ReadError> {
    let mut entries: Vec<Entry> = Vec::new();
    let until = env.now().after(PATIENCE);
    while (entries.len() as u64) < to.since(from) {
        let at = from.plus(entries.len() as u64);
        match l.read(at..to, PAGE_BYTES, ReadFrom::Anywhere).await {
            Ok(got) => {
                assert!(!got.entries.is_empty(), "L6: a read gives one entry at least");
                assert!(got.entries.len() as u64 <= to.since(at), "L6: a read stays in its range");
                entries.extend(got.entries);
            }
            Err(ReadError::Unavailable(_)) if env.now() < until => env.sleep(Duration::from_millis(5)).await,
            Err(e) => return Err(e),
        }
    }
    Ok(entries)
}

/// Returns what clients appended among these entries: all but the pads. Where the Loglet does not keep order, the
/// order is that of their names.
fn records(l: &Arc<dyn Loglet>, mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.retain(|e| !e.is_pad());
    if !l.keeps_order() {
        entries.sort_by_key(|e| e.op);
    }
    entries
}

/// Reads `[from, to)` and returns what clients appended.
async fn read_records(
    env: &Env,
    l: &Arc<dyn Loglet>,
    from: Offset,
    to: Offset,
) -> Result<Vec<Entry>, ReadError> {
    Ok(records(l, read_all(env, l, from, to).await?))
}

fn pair(h: &mut dyn LogletHarness) -> (NodeId, NodeId) {
    let nodes = h.clients();
    assert!(nodes.len() >= 2, "a harness has two clients at least");
    (nodes[0], nodes[1])
}

/// Checks vlog-L1, vlog-L4 and vlog-L6: acknowledged entries are below any tail that is checked afterwards on any node, and every node
/// reads them back.
pub fn appends_are_read_back(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    let (env, writer) = (h.driver().env(a), la.clone());
    let tail = on(h, a, async move { patiently(&env, || writer.check_tail()).await });
    assert_eq!(tail, Ok(Tail { at: Offset::ZERO, sealed: None }), "a fresh loglet is empty and open");
    let writer = la.clone();
    let placed = on(h, a, async move { append(&writer, batch(1, 1, 5)).await });
    let Ok(placed) = placed else { panic!("without faults an append succeeds, not {placed:?}") };
    let offsets: Vec<Offset> = placed.offsets().collect();
    assert_eq!(offsets.len(), 5, "one offset for each entry");
    if la.keeps_order() {
        assert_eq!(placed, Placement::contiguous(Offset::ZERO, 5), "offsets are dense, from 0");
    }
    // A client that knows the offset of its append may read it without a tail check.
    let (env, reader, last) = (h.driver().env(a), la, offsets[4]);
    let own = on(h, a, async move { read_all(&env, &reader, last, last.plus(1)).await });
    assert_eq!(own, Ok(vec![entry(1, 5)]));
    let (env, other) = (h.driver().env(b), lb);
    let (tail, read) = on(h, b, async move {
        let tail = patiently(&env, || other.check_tail()).await;
        let at = tail.as_ref().map_or(Offset::ZERO, |tail| tail.at);
        (tail, read_records(&env, &other, Offset::ZERO, at).await)
    });
    let Ok(Tail { at, sealed: None }) = tail else { panic!("L4: the loglet is open, not {tail:?}") };
    assert!(offsets.iter().all(|offset| *offset < at), "L4: above what was acknowledged before");
    assert_eq!(read, Ok((1..6).map(|seq| entry(1, seq)).collect()));
}

/// Checks vlog-L8: appends of one handle land in the order of the calls, if the Loglet promises that.
pub fn one_handle_keeps_its_order(h: &mut dyn LogletHarness) {
    let (a, _) = pair(h);
    let log = h.fresh();
    let l = h.open(log, a);
    if !l.keeps_order() {
        return;
    }
    let placed = on(h, a, async move {
        let sent: Vec<_> = (0..8).map(|i| l.append(batch(1, 1 + i * 3, 3))).collect();
        let mut placed = Vec::new();
        for ticket in sent {
            placed.push(ticket.await);
        }
        placed
    });
    let offsets: Vec<Offset> = placed
        .into_iter()
        .flat_map(|p| match p {
            Ok(Ok(p)) => p.offsets().collect::<Vec<_>>(),
            other => panic!("without faults an append succeeds, not {other:?}"),
        })
        .collect();
    assert_eq!(offsets, (0..24).map(Offset).collect::<Vec<_>>(), "L8: in the order of the calls");
}

/// Checks that retries with the same names get the offsets of the first attempt, or "forgotten", but never a second copy.
pub fn retries_are_not_doubled(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    let first = on(h, a, async move { append(&la, batch(3, 1, 4)).await });
    let other = lb.clone();
    let again = on(h, b, async move { append(&other, batch(3, 1, 4)).await });
    assert!(
        again == first || again == Err(AppendError::Forgotten),
        "a retry through another node gave {again:?} after {first:?}"
    );
    let env = h.driver().env(b);
    let all = on(h, b, async move {
        let tail = patiently(&env, || lb.check_tail()).await.map_or(Offset::ZERO, |tail| tail.at);
        read_records(&env, &lb, Offset::ZERO, tail).await
    });
    assert_eq!(all, Ok((1..5).map(|seq| entry(3, seq)).collect()), "no second copy");
}

/// Checks that pads fill the offsets that they are for, and those once, whoever asks, if the Loglet promises that.
pub fn pads_fill_each_offset_once(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    if !la.fills_once() {
        return;
    }
    for node in [a, b] {
        assert!(h.driver().env(node).levels().learn(Level::CURRENT).is_ok(), "it is our own level");
    }
    let (env, writer) = (h.driver().env(a), la.clone());
    on(h, a, async move { append(&writer, batch(1, 1, 2)).await }).map_err(|e| panic!("{e}")).ok();
    for (node, l) in [(a, la.clone()), (b, lb)] {
        let placed = on(h, node, async move { l.append_above(Batch::pads(3), Offset(1)).await });
        let placed = placed.map(|placed| placed.map(|p| p.offsets().collect::<Vec<_>>()));
        assert_eq!(placed, Ok(Ok(vec![Offset(1), Offset(2), Offset(3)])), "one is taken by a record");
    }
    let tail = on(h, a, async move { patiently(&env, || la.check_tail()).await });
    assert_eq!(tail, Ok(Tail { at: Offset(4), sealed: None }), "and no other offset is filled");
}

/// Checks vlog-L2 and vlog-L3: a seal is idempotent and permanent, appends after it fail, and its tail is above what was acknowledged.
pub fn a_seal_is_for_ever(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    let writer = la.clone();
    let placed = on(h, a, async move { append(&writer, batch(1, 1, 3)).await });
    let end = placed.map_or(Offset::ZERO, |p| p.offsets().max().map_or(Offset::ZERO, |last| last.plus(1)));
    assert!(end >= Offset(3), "without faults an append succeeds");
    for _ in 0..2 {
        let (env, sealer) = (h.driver().env(b), lb.clone());
        let sealed = on(h, b, async move { patiently(&env, || sealer.seal()).await });
        assert_eq!(sealed, Ok(()), "L2");
    }
    for (node, l) in [(a, la), (b, lb)] {
        let (env, one) = (h.driver().env(node), l.clone());
        let tail = on(h, node, async move { patiently(&env, || one.check_tail()).await });
        let Ok(Tail { at, sealed: Some(_) }) = tail else { panic!("L2: sealed is sealed, not {tail:?}") };
        assert!(at >= end, "L3: the sealed tail {at} is below an acknowledged offset");
        let (env, one) = (h.driver().env(node), l.clone());
        let read = on(h, node, async move { read_records(&env, &one, Offset::ZERO, end).await });
        assert_eq!(read, Ok((1..4).map(|seq| entry(1, seq)).collect()));
        let refused = on(h, node, async move { append(&l, batch(u64::from(node.0) + 50, 1, 1)).await });
        assert_eq!(refused, Err(AppendError::Sealed), "L2: no append after a seal");
    }
}

/// Checks vlog-L9: sealing an empty Loglet gives tail 0 and a sealed configuration (native-T21).
pub fn an_empty_loglet_seals_at_zero(h: &mut dyn LogletHarness) {
    let (a, _) = pair(h);
    let log = h.fresh();
    let l = h.open(log, a);
    let env = h.driver().env(a);
    let tail = on(h, a, async move {
        patiently(&env, || l.seal()).await?;
        patiently(&env, || l.check_tail()).await
    });
    assert!(matches!(tail, Ok(Tail { at: Offset::ZERO, sealed: Some(_) })), "got {tail:?}");
}

/// Checks that a wait ends when another client's append moves the tail, and when the Loglet is sealed (native-T18).
pub fn waiting_ends(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    let mut above = Offset::ZERO;
    for seal in [false, true] {
        let (env, waiter) = (h.driver().env(b), lb.clone());
        let mut wait = h.driver().env(b).launch("conformance.wait", async move {
            loop {
                let got = patiently(&env, || waiter.wait_tail(above)).await;
                match &got {
                    Ok(Tail { at, sealed: None }) if *at <= above => {
                        env.sleep(Duration::from_millis(1)).await
                    }
                    _ => return got,
                }
            }
        });
        h.driver().run_for(Duration::from_millis(50));
        let early = wait.try_take();
        assert!(early.is_none(), "nothing has happened yet above {above}, and the wait ended with {early:?}");
        let (env, writer) = (h.driver().env(a), la.clone());
        on(h, a, async move {
            if seal {
                patiently(&env, || writer.seal()).await.is_ok()
            } else {
                append(&writer, batch(1, 1, 1)).await.is_ok()
            }
        });
        let got = on(h, b, wait);
        match got {
            Ok(Ok(Tail { at, sealed: None })) if !seal && at > above => {}
            Ok(Ok(Tail { sealed: Some(_), .. })) if seal => {}
            other => panic!("the wait ended with {other:?}"),
        }
        // Pads may still have been on their way.
        let (env, checker) = (h.driver().env(a), la.clone());
        let tail = on(h, a, async move { patiently(&env, || checker.check_tail()).await });
        above = tail.map_or(above, |tail| tail.at);
    }
}

/// Checks that trimmed offsets are gone for all handles, that the others stay, and that the tail does not move (native-T12).
pub fn trimmed_is_gone(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    let env = h.driver().env(a);
    let end = on(h, a, async move {
        append(&la, batch(1, 1, 6)).await.map_err(|e| panic!("{e}")).ok();
        let end = patiently(&env, || la.check_tail()).await.map_or(Offset::ZERO, |tail| tail.at);
        for to in [4, 4, 2] {
            assert_eq!(patiently(&env, || la.prefix_trim(Offset(to))).await, Ok(()));
        }
        end
    });
    assert!(end >= Offset(6), "L4: above what was acknowledged before");
    let env = h.driver().env(b);
    on(h, b, async move {
        let tail = patiently(&env, || lb.check_tail()).await;
        assert_eq!(tail.map(|t| t.at), Ok(end), "a trim does not move the tail");
        let gone = read_all(&env, &lb, Offset(3), end).await;
        assert_eq!(gone, Err(ReadError::Trimmed(Offset(4))));
        let kept = read_all(&env, &lb, Offset(4), end).await.map(|entries| records(&lb, entries));
        if lb.keeps_order() {
            assert_eq!(kept, Ok(vec![entry(1, 5), entry(1, 6)]));
        } else {
            assert!(kept.is_ok(), "got {kept:?}");
        }
    });
}

/// Checks vlog-L7: a deleted Loglet is gone permanently and never appears empty and open.
pub fn deleted_is_gone(h: &mut dyn LogletHarness) {
    let (a, b) = pair(h);
    let log = h.fresh();
    let (la, lb) = (h.open(log, a), h.open(log, b));
    let writer = la.clone();
    assert!(on(h, a, async move { append(&writer, batch(1, 1, 2)).await }).is_ok());
    if !h.delete(log) {
        return;
    }
    let again = h.open(log, b);
    for (node, l) in [(a, la), (b, lb), (b, again)] {
        let env = h.driver().env(node);
        let (tail, appended) = on(h, node, async move {
            let appended = append(&l, batch(9, 1, 1)).await;
            (patiently(&env, || l.check_tail()).await, appended)
        });
        assert_eq!(tail, Err(LogletError::Gone), "L7");
        assert!(appended.is_err(), "L7, VL10: a deleted loglet takes no append");
    }
}

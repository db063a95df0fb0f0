//! The NativeLoglet on a small cluster, one procedure at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cluster::{Cluster, RoleOptions, batch};
use atoll_contract::*;
use atoll_core::level::since;
use atoll_core::testing::{Mutant, set_mutant, take_marks};
use atoll_core::*;
use atoll_native::message::{Seal, Status};
use atoll_native::roles::LOG_SERVER;
use atoll_native::{NativeLoglet, NativeOptions};
use bytes::Bytes;

const SOON: Duration = Duration::from_secs(10);

fn append(
    c: &mut Cluster,
    log: &NativeLoglet,
    client: u64,
    seq: u64,
    what: &[&str],
) -> Result<Placement, AppendError> {
    let ticket = log.append(batch(client, seq, what));
    c.wait(ticket, SOON).expect("an append is answered")
}

fn check(c: &mut Cluster, at: u32, log: &NativeLoglet) -> Result<Tail, LogletError> {
    let log = log.clone();
    c.on(at, async move { log.check_tail().await })
}

fn seal(c: &mut Cluster, at: u32, log: &NativeLoglet) -> Result<(), LogletError> {
    let log = log.clone();
    c.on(at, async move { log.seal().await })
}

fn read(
    c: &mut Cluster,
    at: u32,
    log: &NativeLoglet,
    from: u64,
    to: u64,
    which: ReadFrom,
) -> Result<Vec<String>, ReadError> {
    let log = log.clone();
    c.on(at, async move {
        let mut out = Vec::new();
        let mut next = Offset(from);
        while next < Offset(to) {
            let got = log.read(next..Offset(to), 1 << 20, which).await?;
            next = next.plus(got.entries.len() as u64);
            out.extend(got.entries.iter().map(|e| String::from_utf8(e.payload.to_vec()).unwrap()));
        }
        Ok(out)
    })
}

#[test]
fn append_read_check_seal() {
    for n in [1u32, 3, 5] {
        let mut c = Cluster::new(n, 7);
        let config = c.config(&(1..=n).collect::<Vec<_>>(), 1);
        let log = c.open(1, 9, &config);
        assert_eq!(check(&mut c, 1, &log), Ok(Tail { at: Offset(0), sealed: None }));
        assert_eq!(append(&mut c, &log, 1, 1, &["a", "b"]), Ok(Placement::contiguous(Offset(0), 2)));
        assert_eq!(append(&mut c, &log, 1, 3, &["c"]), Ok(Placement::contiguous(Offset(2), 1)));
        // The same operations again get the same offsets, and nothing is appended twice.
        assert_eq!(
            append(&mut c, &log, 1, 2, &["b", "c", "d"]).unwrap().runs,
            [(Offset(1), 2), (Offset(3), 1)]
        );
        assert_eq!(check(&mut c, 1, &log), Ok(Tail { at: Offset(4), sealed: None }));
        let other = c.open(n, 9, &config);
        assert_eq!(read(&mut c, n, &other, 0, 4, ReadFrom::Anywhere).unwrap(), ["a", "b", "c", "d"]);
        assert_eq!(seal(&mut c, n, &other), Ok(()));
        let tail = check(&mut c, 1, &log).unwrap();
        assert_eq!((tail.at, tail.sealed.is_some()), (Offset(4), true));
        assert_eq!(append(&mut c, &log, 1, 5, &["e"]), Err(AppendError::Sealed));
    }
}

fn status(c: &mut Cluster, node: u32) -> BTreeMap<u128, (bool, u64, u64, u64)> {
    let env = c.env(node);
    let page =
        c.on(
            node,
            async move { env.call_role(env.node(), LOG_SERVER, Status { above: None }).await.unwrap() },
        );
    page.loglets
        .into_iter()
        .map(|l| (l.loglet.0, (l.state.sealed, l.state.local_tail.0, l.state.known_tail.0, l.missing)))
        .collect()
}

/// native-T6: a restarted sequencer knows no offsets, and its old configuration is no longer valid.
#[test]
fn a_restarted_sequencer_orders_nothing() {
    let run = |mutant| {
        set_mutant(mutant);
        let mut c = Cluster::new(4, 3);
        let config = c.config(&[1, 2, 3], 4);
        let log = c.open(1, 9, &config);
        assert!(append(&mut c, &log, 1, 1, &["a", "b"]).is_ok());
        c.kill(NodeId(4));
        c.restart(NodeId(4));
        let mut got = append(&mut c, &log, 1, 3, &["c"]);
        if got == Err(AppendError::NotAppended(Unavailability::Busy)) {
            got = append(&mut c, &log, 1, 3, &["c"]);
        }
        set_mutant(Mutant::NONE);
        got
    };
    assert_eq!(run(Mutant::NONE), Err(AppendError::NotAppended(Unavailability::WrongSequencer)));
    assert_eq!(
        run(atoll_native::mutants::NATIVE_T6),
        Ok(Placement::contiguous(Offset(0), 1)),
        "the bug: an offset given twice"
    );
}

/// native-T8: a wiped data directory must not answer for the data that it lost.
#[test]
fn a_wiped_server_is_no_member_of_a_majority() {
    let run = |mutant| {
        set_mutant(mutant);
        let mut c = Cluster::new(4, 3);
        let config = c.config(&[1, 2, 3], 4);
        let log = c.open(4, 9, &config);
        c.cut.insert((NodeId(4), NodeId(3)));
        assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
        c.kill(NodeId(1));
        c.kill(NodeId(2));
        c.wipe(NodeId(2));
        let other = c.open(3, 9, &config);
        let sealed = seal(&mut c, 3, &other).and_then(|()| check(&mut c, 3, &other));
        set_mutant(Mutant::NONE);
        sealed.map(|t| t.at.0)
    };
    assert_eq!(run(Mutant::NONE), Err(LogletError::Unavailable(Unavailability::NoQuorum)));
    assert_eq!(run(atoll_native::mutants::NATIVE_T8), Ok(0), "the bug: an acked entry is beyond the tail");
}

/// native-T10: a deletion is permanent, also for clients that have not heard of it.
#[test]
fn a_deleted_loglet_takes_no_append() {
    let run = |mutant| {
        set_mutant(mutant);
        let mut c = Cluster::new(3, 3);
        let config = c.config(&[1, 2, 3], 1);
        let log = c.open(2, 9, &config);
        assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
        let (provider, bytes) = (c.provider(3), config.to_bytes());
        c.on(3, async move { provider.delete(LogletId(9), &bytes).await.unwrap() });
        for node in c.nodes.values() {
            let entries = node.disk.records.values().filter(|s| s.record.kind == RecordKind::Entry);
            assert_eq!(entries.count(), 0, "a deleted loglet holds no space");
        }
        // The same holds after a restart, from the journal alone.
        c.kill(NodeId(3));
        c.restart(NodeId(3));
        let stale = append(&mut c, &log, 1, 2, &["b"]);
        let tail = check(&mut c, 2, &log);
        set_mutant(Mutant::NONE);
        (stale, tail)
    };
    assert_eq!(run(Mutant::NONE), (Err(AppendError::Sealed), Err(LogletError::Gone)));
    assert!(
        run(atoll_loglet_store::mutants::NATIVE_T10).0.is_ok(),
        "the bug: a deleted loglet is open again"
    );
}

/// native-T11, X7: a server does not skip entries that it lacks; it fetches them from its peers.
#[test]
fn a_gap_is_not_skipped_and_then_filled() {
    let run = |mutant| {
        set_mutant(mutant);
        let mut c = Cluster::new(3, 3);
        let config = c.config(&[1, 2, 3], 1);
        let log = c.open(1, 9, &config);
        assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
        c.cut.insert((NodeId(1), NodeId(3)));
        assert!(append(&mut c, &log, 1, 2, &["b", "c"]).is_ok());
        c.cut.clear();
        assert!(append(&mut c, &log, 1, 4, &["d"]).is_ok());
        c.run_for(Duration::from_millis(2));
        let own = c.open(3, 9, &config);
        let early = read(&mut c, 3, &own, 1, 2, ReadFrom::LocalOnly);
        let anywhere = read(&mut c, 3, &own, 0, 4, ReadFrom::Anywhere);
        set_mutant(Mutant::NONE);
        c.run_for(Duration::from_secs(3));
        assert_eq!(status(&mut c, 3)[&9], (false, 4, 4, 0));
        assert_eq!(read(&mut c, 3, &own, 0, 4, ReadFrom::LocalOnly).unwrap(), ["a", "b", "c", "d"]);
        (early, anywhere)
    };
    let (early, anywhere) = run(Mutant::NONE);
    assert_eq!(early, Err(ReadError::Unavailable(Unavailability::NoQuorum)));
    assert_eq!(anywhere.unwrap(), ["a", "b", "c", "d"]);
    assert_eq!(
        run(atoll_native::mutants::NATIVE_T11).0.unwrap(),
        ["d"],
        "the bug: another entry at the offset"
    );
}

/// native-T12: the local tail outlives its entries.
#[test]
fn a_trimmed_server_remembers_its_tail() {
    let run = |mutant, checkpoint| {
        set_mutant(mutant);
        let mut c = Cluster::new(4, 3);
        let config = c.config(&[1, 2, 3], 4);
        let log = c.open(4, 9, &config);
        assert!(append(&mut c, &log, 1, 1, &["a", "b", "c"]).is_ok());
        let trimmer = log.clone();
        c.on(4, async move { trimmer.prefix_trim(Offset(3)).await.unwrap() });
        for n in 1..=3 {
            if checkpoint {
                c.checkpoint(NodeId(n));
            }
            c.kill(NodeId(n));
            c.restart(NodeId(n));
        }
        let tail = check(&mut c, 4, &log).unwrap().at.0;
        set_mutant(Mutant::NONE);
        tail
    };
    for checkpoint in [false, true] {
        assert_eq!(run(Mutant::NONE, checkpoint), 3);
        assert_eq!(
            run(atoll_loglet_store::mutants::NATIVE_T12, checkpoint),
            0,
            "the bug: an empty store reports 0"
        );
    }
}

/// native-T18: a client that waits for the tail of a loglet is notified when the loglet is sealed.
#[test]
fn a_wait_ends_with_the_seal() {
    let run = |mutant| {
        set_mutant(mutant);
        let mut c = Cluster::new(3, 3);
        let config = c.config(&[1, 2, 3], 1);
        let (log, reader) = (c.open(1, 9, &config), c.open(3, 9, &config));
        assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
        c.run_for(Duration::from_millis(5));
        let wait = c.env(3).launch("wait", async move { reader.wait_tail(Offset(1)).await });
        c.run_for(Duration::from_millis(5));
        seal(&mut c, 1, &log).unwrap();
        let got = c.wait(wait, Duration::from_millis(500));
        set_mutant(Mutant::NONE);
        got.map(|tail| tail.unwrap().sealed.is_some())
    };
    assert_eq!(run(Mutant::NONE), Some(true));
    assert_eq!(run(atoll_native::mutants::NATIVE_T18), None, "the bug: the reader is parked");
}

/// Waits for entries above an offset through a handle on a node, while something else happens.
fn next_entries(
    c: &mut Cluster,
    (at, reader): (u32, &NativeLoglet),
    above: u64,
    meanwhile: impl FnOnce(&mut Cluster),
) -> (Tail, Vec<Bytes>) {
    let reader = reader.clone();
    let wait = c.env(at).launch("wait", async move { reader.wait_entries(Offset(above), 1 << 16).await });
    c.run_for(Duration::from_millis(5));
    meanwhile(c);
    let (tail, entries) = c.wait(wait, SOON).unwrap().unwrap();
    (tail, entries.into_iter().map(|entry| entry.payload).collect())
}

/// Entries come with the news that they are there. A sealed loglet has none to give: its servers may have some that no tail covers
/// (native-T3).
#[test]
fn a_wait_brings_the_next_entries_but_none_of_a_sealed_loglet() {
    let mut c = Cluster::new(4, 3);
    let config = c.config(&[1, 2, 3], 1);
    let (log, reader) = (c.open(1, 9, &config), c.open(4, 9, &config));
    c.env(4).levels().learn(since::READ_NEXT).unwrap();
    let (tail, entries) = next_entries(&mut c, (4, &reader), 0, |c| {
        assert!(append(c, &log, 1, 1, &["a", "b"]).is_ok());
    });
    assert_eq!((tail, entries), (Tail { at: Offset(2), sealed: None }, vec!["a".into(), "b".into()]));
    // Older programs could not read the question.
    let older = c.open(3, 9, &config);
    let (tail, entries) = next_entries(&mut c, (3, &older), 1, |_| {});
    assert_eq!((tail.at, entries), (Offset(2), vec![]));
    // The handle knows the tail, so it asks nobody.
    let (tail, entries) = next_entries(&mut c, (4, &reader), 1, |_| {});
    assert_eq!((tail.at, entries), (Offset(2), vec![]));
    let (tail, entries) = next_entries(&mut c, (4, &reader), 2, |c| {
        let ticket = log.append(batch(1, 3, &["c"]));
        seal(c, 1, &log).unwrap();
        c.wait(ticket, SOON);
    });
    assert!(tail.sealed.is_some());
    assert_eq!(entries, Vec::<Bytes>::new());
    let (provider, bytes) = (c.provider(1), config.to_bytes());
    c.on(1, async move { provider.delete(LogletId(9), &bytes).await.unwrap() });
    let fresh = c.open(4, 9, &config);
    let gone = c.on(4, async move { fresh.wait_entries(Offset(0), 1).await });
    assert_eq!(gone, Err(LogletError::Gone));
}

/// Many follow a loglet from nodes that have no server of it, and one server would have the work of all of them.
#[test]
fn waits_of_nodes_without_a_server_are_spread_over_the_servers() {
    let mut c = Cluster::new(9, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    for node in 4..=9 {
        let reader = c.open(node, 9, &config);
        drop(c.env(node).launch("wait", async move { reader.wait_tail(Offset(1)).await }));
    }
    c.run_for(Duration::from_millis(5));
    let waits = |node: u32| {
        let measures = c.nodes[&NodeId(node)].core.as_ref().unwrap().measures();
        measures.iter().find(|measure| measure.name == "native_waits").unwrap().value
    };
    assert_eq!([1, 2, 3].map(waits), [2.0, 2.0, 2.0]);
}

/// X14: even if no append follows, every server and every watch learns of the last append.
#[test]
fn an_idle_log_is_known_everywhere() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    let (log, reader) = (c.open(1, 9, &config), c.open(3, 9, &config));
    let waiter = reader.clone();
    let wait = c.env(3).launch("wait", async move { waiter.wait_tail(Offset(0)).await });
    c.run_for(Duration::from_millis(5));
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    let tail = c.wait(wait, Duration::from_millis(2)).unwrap().unwrap();
    assert_eq!(tail, Tail { at: Offset(1), sealed: None });
    assert_eq!(read(&mut c, 3, &reader, 0, 1, ReadFrom::LocalOnly).unwrap(), ["a"]);
    // The first message about it may be lost. The sequencer repeats it until it is confirmed.
    c.cut.insert((NodeId(1), NodeId(3)));
    assert!(append(&mut c, &log, 1, 2, &["b"]).is_ok());
    c.run_for(Duration::from_millis(10));
    c.cut.clear();
    c.run_for(Duration::from_secs(3));
    assert_eq!(status(&mut c, 3)[&9].2, 2);
    assert_eq!(read(&mut c, 3, &reader, 0, 2, ReadFrom::LocalOnly).unwrap(), ["a", "b"]);
    let before = c.steps;
    c.run_for(Duration::from_secs(60));
    assert_eq!(c.steps, before, "and then there is silence");
}

/// Runs the cluster for a while, and checks that all of it is then silent.
fn settles(c: &mut Cluster) {
    c.run_for(Duration::from_secs(5));
    let before = c.steps;
    c.run_for(Duration::from_secs(60));
    assert_eq!(c.steps, before, "and then there is silence");
}

/// X14, X7: a server that was down when the only entry of a log was appended gets a copy, although the log is idle since then, and although
/// the check of the other servers, which carries the configuration, was lost on its way there.
#[test]
fn an_idle_log_reaches_a_server_that_never_heard_of_it() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    c.kill(NodeId(3));
    let log = c.open(1, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.run_for(Duration::from_secs(1));
    c.cut.extend([(NodeId(1), NodeId(3)), (NodeId(2), NodeId(3))]);
    c.restart(NodeId(3));
    c.run_for(Duration::from_secs(2));
    c.cut.clear();
    settles(&mut c);
    assert_eq!(status(&mut c, 3).get(&9), Some(&(false, 0, 1, 0)));
    let own = c.open(3, 9, &config);
    assert_eq!(read(&mut c, 3, &own, 0, 1, ReadFrom::LocalOnly).unwrap(), ["a"]);
}

/// native-T8: a server that has lost its disk never gets a copy of an idle log, and is not asked again and again.
#[test]
fn an_idle_log_leaves_a_wiped_server_alone() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.run_for(Duration::from_secs(1));
    c.kill(NodeId(3));
    c.wipe(NodeId(3));
    settles(&mut c);
    assert!(status(&mut c, 3).is_empty());
}

/// vlog-V6: a sequencer that was cut off while its idle loglet was sealed and deleted forgets the loglet.
#[test]
fn a_sequencer_that_slept_through_a_deletion_falls_silent() {
    let mut c = Cluster::new(4, 3);
    let config = c.config(&[1, 2, 3], 4);
    let (log, other) = (c.open(4, 9, &config), c.open(1, 9, &config));
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.run_for(Duration::from_secs(1));
    let cut_off = |c: &mut Cluster, link| {
        for n in [1, 2, 3] {
            c.set_link(NodeId(n), NodeId(4), link);
            c.set_link(NodeId(4), NodeId(n), link);
        }
    };
    cut_off(&mut c, Link::Down);
    seal(&mut c, 1, &other).unwrap();
    let (provider, bytes) = (c.provider(1), config.to_bytes());
    c.on(1, async move { provider.delete(LogletId(9), &bytes).await.unwrap() });
    cut_off(&mut c, Link::Up);
    settles(&mut c);
    let measures = c.nodes[&NodeId(4)].core.as_ref().unwrap().measures();
    let ordered = measures.iter().find(|m| m.name == "sequencer_loglets").unwrap();
    assert_eq!(ordered.value, 0.0);
    assert_eq!(append(&mut c, &log, 1, 2, &["b"]), Err(AppendError::Sealed));
}

/// One round trip when nothing is in flight; calls that arrive before it starts share it (vlog-V14).
#[test]
fn an_idle_check_is_one_round_trip() {
    let mut c = Cluster::new(5, 3);
    let config = c.config(&[1, 2, 3, 4, 5], 1);
    let log = c.open(2, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.run_for(Duration::from_millis(5));
    take_marks();
    let start = c.now;
    let tickets: Vec<_> = (0..10)
        .map(|_| {
            let log = log.clone();
            c.env(2).launch("check", async move { log.check_tail().await })
        })
        .collect();
    for ticket in tickets {
        assert_eq!(c.wait(ticket, SOON).unwrap().unwrap().at, Offset(1));
    }
    assert!(
        c.now.since(start) < Duration::from_micros(400),
        "one way takes at most 80 µs; two rounds may pass"
    );
    assert!(take_marks().contains_key("native.check_tail.shared"));
}

/// X7: after a server that was dead returns, its own disk gets every entry, of open and sealed segments alike.
#[test]
fn a_server_that_was_away_catches_up() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["x"]).is_ok());
    c.kill(NodeId(3));
    let texts: Vec<String> = (0..300).map(|i| format!("{i:0>4000}")).collect();
    for (i, text) in texts.iter().enumerate() {
        assert!(append(&mut c, &log, 1, 2 + i as u64, &[text]).is_ok());
    }
    c.restart(NodeId(3));
    c.run_for(Duration::from_secs(5));
    assert_eq!(status(&mut c, 3)[&9].3, 0, "what was appended meanwhile is fetched without another append");
    c.kill(NodeId(3));
    assert!(append(&mut c, &log, 1, 302, &["last"]).is_ok());
    seal(&mut c, 1, &log).unwrap();
    let stop = check(&mut c, 1, &log).unwrap();
    assert_eq!(stop.at, Offset(302));
    c.restart(NodeId(3));
    let (provider, bytes) = (c.provider(1), config.to_bytes());
    let told = c.on(1, async move { provider.back_fill(LogletId(9), &bytes, Offset(302)).await.unwrap() });
    assert_eq!(told, 3);
    c.run_for(Duration::from_secs(3));
    // Sealed, no entry missing, and the local tail not raised by copies.
    assert_eq!(status(&mut c, 3)[&9], (true, 1, 302, 0));
    // It still knows this after another restart.
    c.kill(NodeId(3));
    c.restart(NodeId(3));
    assert_eq!(status(&mut c, 3)[&9], (true, 1, 302, 0));
    let own = c.open(3, 9, &config);
    let all = read(&mut c, 3, &own, 0, 302, ReadFrom::LocalOnly).unwrap();
    assert_eq!(all.len(), 302);
    assert_eq!(all[1..301], texts[..]);
}

/// X7: a server that was away during a seal finds this out by itself, after a restart and after a partition.
#[test]
fn a_seal_that_was_slept_through_is_found_out() {
    for restart in [true, false] {
        let mut c = Cluster::new(3, 3);
        let config = c.config(&[1, 2, 3], 1);
        let log = c.open(1, 9, &config);
        assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
        c.run_for(Duration::from_secs(1));
        if restart {
            c.kill(NodeId(3));
        } else {
            for n in [1, 2] {
                c.set_link(NodeId(n), NodeId(3), Link::Down);
                c.set_link(NodeId(3), NodeId(n), Link::Down);
            }
        }
        assert!(append(&mut c, &log, 1, 2, &["b", "c"]).is_ok());
        seal(&mut c, 1, &log).unwrap();
        assert_eq!(check(&mut c, 1, &log).unwrap().at, Offset(3));
        if restart {
            c.restart(NodeId(3));
        } else {
            for n in [1, 2] {
                c.set_link(NodeId(n), NodeId(3), Link::Up);
                c.set_link(NodeId(3), NodeId(n), Link::Up);
            }
        }
        c.run_for(Duration::from_secs(5));
        let (sealed, _, known, missing) = status(&mut c, 3)[&9];
        assert_eq!((sealed, known, missing), (true, 3, 0), "restart: {restart}");
        let own = c.open(3, 9, &config);
        assert_eq!(read(&mut c, 3, &own, 0, 3, ReadFrom::LocalOnly).unwrap(), ["a", "b", "c"]);
    }
}

/// native-T22: a full disk refuses appends with its own error but accepts seals, and appends work again once there is space.
#[test]
fn full_disks_refuse_appends_and_nothing_else() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.set_space(NodeId(3), Space::FactsOnly);
    assert!(append(&mut c, &log, 1, 2, &["b"]).is_ok(), "two of three are enough");
    c.set_space(NodeId(2), Space::FactsOnly);
    let first = append(&mut c, &log, 1, 3, &["c"]);
    assert_eq!(
        first,
        Err(AppendError::Unknown(Unavailability::DiskFull)),
        "in flight when the second disk filled up"
    );
    assert_eq!(append(&mut c, &log, 1, 3, &["c"]), Err(AppendError::NotAppended(Unavailability::DiskFull)));
    c.set_space(NodeId(2), Space::Plenty);
    c.run_for(Duration::from_millis(500));
    let again = append(&mut c, &log, 1, 3, &["c"]);
    assert_eq!(
        again,
        Ok(Placement::contiguous(Offset(2), 1)),
        "the first try was in the window all the time"
    );
    c.set_space(NodeId(2), Space::FactsOnly);
    assert_eq!(seal(&mut c, 1, &log), Ok(()));
    assert_eq!(check(&mut c, 1, &log).unwrap().at, Offset(3));
}

/// native-T22: a server with a closed journal counts as not answering, but its durable state can still be read.
#[test]
fn a_closed_journal_is_no_answer() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.set_space(NodeId(3), Space::Closed);
    assert!(append(&mut c, &log, 1, 2, &["b"]).is_ok());
    let own = c.open(3, 9, &config);
    assert_eq!(read(&mut c, 3, &own, 0, 1, ReadFrom::LocalOnly).unwrap(), ["a"]);
    c.set_space(NodeId(2), Space::Closed);
    assert_eq!(append(&mut c, &log, 1, 3, &["c"]), Err(AppendError::Unknown(Unavailability::NoQuorum)));
    assert_eq!(seal(&mut c, 1, &log), Err(LogletError::Unavailable(Unavailability::StorageFailed)));
}

/// native-T15: two of five servers are sealed by a client that died, and one server is dead. Only a completed seal gives the appends in
/// flight an outcome.
#[test]
fn a_minority_seal_is_completed_by_the_sequencer() {
    let mut c = Cluster::new(6, 3);
    let config = c.config(&[1, 2, 3, 4, 5], 6);
    let log = c.open(6, 9, &config);
    assert!(append(&mut c, &log, 1, 1, &["a"]).is_ok());
    c.kill(NodeId(5));
    take_marks();
    let (env, bytes) = (c.env(1), config.to_bytes());
    c.on(1, async move {
        for node in [1, 2] {
            let seal = Seal { loglet: LogletId(9), config: bytes.clone() };
            env.call_role(NodeId(node), LOG_SERVER, seal).await.unwrap();
        }
    });
    assert_eq!(append(&mut c, &log, 1, 2, &["b"]), Err(AppendError::Sealed));
    assert!(take_marks().contains_key("native.seal.draining"));
    c.run_for(Duration::from_secs(1));
    for node in [3, 4] {
        assert!(status(&mut c, node)[&9].0, "node {node} is sealed");
    }
    let tail = check(&mut c, 1, &log).unwrap();
    assert!(tail.sealed.is_some() && tail.at >= Offset(1));
}

/// native-T14: if the sequencer is dead and an entry is on one server, a check reports within bounded time which part makes no progress.
#[test]
fn an_open_tail_that_cannot_settle_ends_in_an_error() {
    let mut c = Cluster::new(4, 3);
    let config = c.config(&[1, 2, 3], 4);
    let log = c.open(4, 9, &config);
    for n in [2, 3] {
        c.cut.insert((NodeId(4), NodeId(n)));
    }
    let lonely = log.append(batch(1, 1, &["a"]));
    c.run_for(Duration::from_millis(5));
    c.kill(NodeId(4));
    drop(lonely);
    c.cut.clear();
    // A majority without server 1 reports tail 0. Check until server 1 is in the majority.
    c.cut.insert((NodeId(2), NodeId(3)));
    let other = c.open(2, 9, &config);
    assert_eq!(check(&mut c, 2, &other), Err(LogletError::Unavailable(Unavailability::NoSequencer)));
    assert!(c.now < Tick(5_000_000_000));
    // The failure policy then seals the loglet: the entry is found, repaired, and becomes part of the segment.
    assert_eq!(seal(&mut c, 2, &other), Ok(()));
    let tail = check(&mut c, 2, &other).unwrap();
    assert_eq!((tail.at, tail.sealed.is_some()), (Offset(1), true));
    assert_eq!(read(&mut c, 2, &other, 0, 1, ReadFrom::LocalOnly).unwrap(), ["a"]);
}

/// X4: entries move out of sparse journal segments, and trimmed entries free their space, also across restarts.
#[test]
fn compaction_and_trim_lose_nothing() {
    let mut options = RoleOptions::default();
    options.server.store.cache_bytes = 0;
    let mut c = Cluster::with(3, 3, options);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    for i in 0..50 {
        assert!(append(&mut c, &log, 1, 1 + i, &[&i.to_string()]).is_ok());
    }
    let expected: Vec<String> = (0..50).map(|i| i.to_string()).collect();
    for round in 0..3 {
        c.compact(NodeId(2), 0);
        c.run_for(Duration::from_millis(20));
        if round == 1 {
            c.checkpoint(NodeId(2));
        }
        c.kill(NodeId(2));
        c.restart(NodeId(2));
        let own = c.open(2, 9, &config);
        assert_eq!(read(&mut c, 2, &own, 0, 50, ReadFrom::LocalOnly).unwrap(), expected);
    }
    let trimmer = log.clone();
    c.on(1, async move { trimmer.prefix_trim(Offset(45)).await.unwrap() });
    c.run_for(Duration::from_millis(50));
    for node in c.nodes.values() {
        let entries = node.disk.records.values().filter(|s| s.record.kind == RecordKind::Entry);
        assert_eq!(entries.count(), 5);
    }
    let own = c.open(2, 9, &config);
    assert_eq!(read(&mut c, 2, &own, 44, 50, ReadFrom::Anywhere), Err(ReadError::Trimmed(Offset(45))));
    assert_eq!(read(&mut c, 2, &own, 45, 50, ReadFrom::LocalOnly).unwrap(), expected[45..]);
}

/// X5: compaction must not use the space that a full disk reserves for facts, or a trim could no longer be journaled.
#[test]
fn compaction_waits_while_the_disk_is_full() {
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    for i in 0..50 {
        assert!(append(&mut c, &log, 1, 1 + i, &[&i.to_string()]).is_ok());
    }
    let first_and_last = |c: &Cluster| {
        let disk = &c.nodes[&NodeId(2)].disk;
        let entries = disk.records.values().filter(|s| s.record.kind == RecordKind::Entry);
        let lsns: Vec<_> = entries.map(|s| s.lsn).collect();
        (lsns.iter().min().copied().unwrap(), lsns.iter().max().copied().unwrap())
    };
    let (before, last) = first_and_last(&c);
    c.set_space(NodeId(2), Space::FactsOnly);
    c.compact(NodeId(2), 0);
    c.run_for(Duration::from_millis(50));
    assert_eq!(first_and_last(&c), (before, last), "nothing was copied");
    c.set_space(NodeId(2), Space::Plenty);
    c.run_for(Duration::from_millis(50));
    assert!(first_and_last(&c).0 > last, "all was copied once there was room");
}

/// virtuallog §7: a sealed copy on other servers is exactly as long as the range.
#[test]
fn a_sealed_copy_is_exact() {
    let mut c = Cluster::new(6, 3);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    for i in 0..40 {
        assert!(append(&mut c, &log, 1, 1 + i, &[&i.to_string()]).is_ok());
    }
    seal(&mut c, 1, &log).unwrap();
    c.kill(NodeId(6));
    let target = c.config(&[4, 5, 6], 4);
    let (provider, bytes, source) = (c.provider(4), target.to_bytes(), log.clone());
    for _ in 0..2 {
        let (provider, bytes, source) = (provider.clone(), bytes.clone(), source.clone());
        let built = c.on(4, async move {
            provider.build_sealed(LogletId(10), &bytes, &source, Offset(3)..Offset(33)).await
        });
        assert_eq!(built, Ok(()), "also the second time");
    }
    let copy = c.open(5, 10, &target);
    let tail = check(&mut c, 5, &copy).unwrap();
    assert_eq!((tail.at, tail.sealed.is_some()), (Offset(30), true));
    let expected: Vec<String> = (3..33).map(|i| i.to_string()).collect();
    assert_eq!(read(&mut c, 5, &copy, 0, 30, ReadFrom::LocalOnly).unwrap(), expected);
}

fn plan(c: &mut Cluster, at: u32, spec: LogletSpec, previous: Option<Bytes>) -> Result<Duties, PlanError> {
    let provider = c.provider(at);
    c.on(at, async move {
        let planned = provider.plan(&spec, previous.as_ref()).await?;
        Ok(provider.duties(&planned))
    })
}

#[test]
fn plans_follow_wishes_health_and_habit() {
    let nodes = |d: &Duties| d.holders().map(|(n, _)| n.0).collect::<Vec<_>>();
    let mut c = Cluster::new(5, 3);
    let fresh = plan(&mut c, 2, LogletSpec::default(), None).unwrap();
    assert_eq!(nodes(&fresh), [1, 2, 3]);
    let before = c.config(&[2, 4, 5], 4).to_bytes();
    let kept = plan(&mut c, 1, LogletSpec::default(), Some(before.clone())).unwrap();
    assert_eq!((nodes(&kept), kept.in_role("sequencer")[0]), (vec![2, 4, 5], NodeId(4)));
    let avoid = LogletSpec::default().avoiding([NodeId(4)]);
    let moved = plan(&mut c, 1, avoid, Some(before.clone())).unwrap();
    assert_eq!((nodes(&moved), moved.in_role("sequencer")[0]), (vec![1, 2, 5], NodeId(1)));
    let even = LogletSpec::default().place("server", [NodeId(1), NodeId(2)]);
    assert!(matches!(plan(&mut c, 1, even, None), Err(PlanError::Invalid { .. })));
    let apart = LogletSpec::default().place("server", [NodeId(1)]).place("sequencer", [NodeId(5)]);
    let apart = plan(&mut c, 1, apart, None).unwrap();
    assert_eq!((nodes(&apart), apart.in_role("sequencer")[0]), (vec![1], NodeId(5)));
    let odd = LogletSpec::default().place("unit", [NodeId(1)]);
    let words = plan(&mut c, 1, odd, None).unwrap_err().to_string();
    assert!(words.contains("no role \"unit\"; it has: server, sequencer"), "{words}");
    // Two live nodes of three members: the dead one keeps its place if it had one.
    let mut c = Cluster::new(3, 3);
    let config = c.config(&[1, 2, 3], 3);
    let before = config.to_bytes();
    c.kill(NodeId(3));
    let named = LogletSpec::default().place("server", [NodeId(3)]);
    assert_eq!(plan(&mut c, 1, named, None), Err(PlanError::NodeDown(NodeId(3))));
    let short = plan(&mut c, 1, LogletSpec::default(), Some(before)).unwrap();
    assert_eq!((nodes(&short), short.in_role("sequencer")[0]), (vec![1, 2, 3], NodeId(1)));
    assert_eq!(plan(&mut c, 1, LogletSpec::default(), None), Err(PlanError::TooFew { up: 2, wanted: 3 }));
    // It may have had its place in a Loglet of another kind.
    let after_another = LogletSpec { held: config.servers.clone(), ..LogletSpec::default() };
    assert_eq!(nodes(&plan(&mut c, 1, after_another, None).unwrap()), [1, 2, 3]);
    c.kill(NodeId(2));
    let before = c.config(&[1, 2, 3], 1).to_bytes();
    assert_eq!(
        plan(&mut c, 1, LogletSpec::default(), Some(before)),
        Err(PlanError::TooFew { up: 1, wanted: 3 })
    );
}

/// native-T20: for the sequencer, a slow server is only a cursor. It never blocks the others, and later fills the gap that it has.
#[test]
fn a_slow_server_blocks_nobody() {
    let mut options = RoleOptions::default();
    options.sequencer.server_window_bytes = 10_000;
    let mut c = Cluster::with(3, 3, options);
    let config = c.config(&[1, 2, 3], 1);
    let log = c.open(1, 9, &config);
    c.cut.insert((NodeId(3), NodeId(1)));
    let text = "z".repeat(4000);
    take_marks();
    for i in 0..50 {
        assert!(append(&mut c, &log, 1, 1 + i, &[&text]).is_ok());
    }
    c.cut.clear();
    c.run_for(Duration::from_secs(4));
    assert!(append(&mut c, &log, 1, 51, &[&text]).is_ok());
    c.run_for(Duration::from_secs(4));
    assert_eq!(status(&mut c, 3)[&9].3, 0);
}

/// The client uses the options of its provider.
#[test]
fn an_append_without_a_sequencer_is_unknown_in_time() {
    let mut c = Cluster::new(2, 3);
    let config = c.config(&[1], 1);
    let options = NativeOptions { append_timeout: Duration::from_millis(50), ..NativeOptions::default() };
    let log = c.provider_with(2, options).open_native(LogletId(9), &config.to_bytes()).unwrap();
    c.cut.insert((NodeId(1), NodeId(2)));
    let start = c.now;
    assert_eq!(append(&mut c, &log, 1, 1, &["a"]), Err(AppendError::Unknown(Unavailability::NoSequencer)));
    assert!(c.now.since(start) < Duration::from_millis(60));
    c.cut.clear();
    assert_eq!(append(&mut c, &log, 1, 1, &["a"]), Ok(Placement::contiguous(Offset(0), 1)));
    c.kill(NodeId(1));
    assert_eq!(
        append(&mut c, &log, 1, 2, &["b"]),
        Err(AppendError::NotAppended(Unavailability::NoSequencer))
    );
}

//! Logs that are deleted and created anew: no caller gets a wrong answer, and no data is left behind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Cluster, spec};
use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom, Registers};
use atoll_core::Level;
use atoll_log::origin::{Origin, Suspects, new_id};
use atoll_log::virtual_log::PAGE_PREFIX;
use atoll_log::{LogAppendError, LogError, LogReadError, LogRecord, ReconfigError, VirtualLog};

fn record(client: u64, seq: u64) -> LogRecord {
    let payload = format!("record {client} {seq}").into();
    LogRecord { op: OpId { client: ClientId(client), seq }, floor: None, payload }
}

fn append(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>, seq: u64) -> Result<LogPos, LogAppendError> {
    let wait = log.submit(vec![record(u64::from(node), seq)]).unwrap();
    c.run(node, wait).unwrap().map(|positions| positions[0])
}

fn read(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>, at: u64) -> Result<u64, LogReadError> {
    let read = log.read(LogPos(at)..LogPos(at + 1), 1000, ReadFrom::Anywhere);
    c.run(node, read).unwrap().map(|read| read.entries[0].op.seq)
}

fn delete(c: &mut Cluster, log: &Arc<VirtualLog>) -> Result<bool, ReconfigError> {
    let delete = log.delete();
    c.run(1, delete).unwrap()
}

fn create(c: &mut Cluster, log: &Arc<VirtualLog>) {
    let create = log.create(spec("memory"));
    c.run(1, create).unwrap().unwrap();
}

/// Appends an entry and extends the log, `n` times.
fn grow(c: &mut Cluster, log: &Arc<VirtualLog>, n: u64) {
    for seq in 1..=n {
        append(c, 1, log, seq).unwrap();
        let extend = log.extend(LogletSpec::default());
        c.run(1, extend).unwrap().unwrap();
    }
}

#[test]
fn a_deleted_log_says_so_to_everybody_and_leaves_nothing_on_its_servers() {
    let mut c = Cluster::new(51, 3);
    let log = c.created("memory");
    let there = c.log(2, "log");
    grow(&mut c, &log, 3);
    assert_eq!(append(&mut c, 2, &there, 1), Ok(LogPos(3)), "this handle knows the log from before");
    assert_eq!(delete(&mut c, &log), Ok(true));
    assert_eq!(delete(&mut c, &log), Ok(false), "it may be repeated");
    let fresh = c.log(3, "log");
    for (node, log) in [(1, &log), (2, &there), (3, &fresh)] {
        // A handle that knew the log sends the record to the sealed segment. The answer there does not prove that nothing was appended.
        let refused = match node {
            2 => LogAppendError::Unknown(LogError::Deleted),
            _ => LogAppendError::NotAppended(LogError::Deleted),
        };
        assert_eq!(append(&mut c, node, log, 9), Err(refused), "at {node}");
        assert_eq!(read(&mut c, node, log, 1), Err(LogError::Deleted.into()), "at {node}");
        let (check, trim, extend) =
            (log.check_tail(), log.trim(LogPos(1)), log.extend(LogletSpec::default()));
        assert_eq!(c.run(node, check).unwrap(), Err(LogError::Deleted));
        assert_eq!(c.run(node, trim).unwrap(), Err(LogError::Deleted.into()));
        assert_eq!(c.run(node, extend).unwrap(), Err(ReconfigError::Deleted));
    }
    c.driver.run_for(Duration::from_secs(30));
    assert_eq!(c.servers.loglets(), 0);
    assert!(log.chain().unwrap().chain.size_bytes() < 1024, "what stays is small");
}

#[test]
fn a_log_that_never_was_cannot_be_deleted() {
    let mut c = Cluster::new(52, 3);
    let log = c.log(1, "log");
    assert_eq!(delete(&mut c, &log), Err(ReconfigError::NoSuchLog));
}

#[test]
fn who_waits_for_the_tail_hears_of_the_deletion() {
    let mut c = Cluster::new(53, 3);
    let log = c.created("memory");
    let there = c.log(2, "log");
    append(&mut c, 2, &there, 1).unwrap();
    let (here_waits, there_waits) = (log.wait_tail(LogPos(5)), there.wait_tail(LogPos(5)));
    c.driver.run_for(Duration::from_millis(50));
    assert_eq!(delete(&mut c, &log), Ok(true));
    assert_eq!(c.run(1, here_waits).unwrap(), Err(LogError::Deleted));
    assert_eq!(c.run(2, there_waits).unwrap(), Err(LogError::Deleted));
}

#[test]
fn the_index_pages_of_a_deleted_log_are_emptied() {
    let mut c = Cluster::new(54, 3);
    c.options.page_items = 2;
    let log = c.created("memory");
    grow(&mut c, &log, 40);
    assert!(log.chain().unwrap().chain.pages().len() > 1, "there are pages of pages");
    assert_eq!(delete(&mut c, &log), Ok(true));
    c.driver.run_for(Duration::from_secs(60));
    assert_eq!(c.servers.loglets(), 0, "Loglets that only pages named are deleted");
    let registers: Arc<dyn Registers> = c.servers.registers(&c.env(1));
    let held = c.run(1, async move {
        let mut held = 0;
        for page in registers.list(PAGE_PREFIX).await.unwrap() {
            held += registers.register(&page.name).read().await.unwrap().value.len();
        }
        held
    });
    assert_eq!(held, 0, "bytes in pages");
}

#[test]
fn a_log_that_is_created_anew_begins_where_it_ended() {
    let mut c = Cluster::new(55, 3);
    let log = c.created("memory");
    let there = c.log(2, "log");
    grow(&mut c, &log, 4);
    assert_eq!(read(&mut c, 2, &there, 0), Ok(1));
    for round in 1..=3u64 {
        assert_eq!(delete(&mut c, &log), Ok(true));
        create(&mut c, &log);
        assert_eq!(append(&mut c, 1, &log, 100 + round), Ok(LogPos(3 + round)), "no position is used twice");
        // Handles on other nodes follow, whichever chain they knew.
        assert_eq!(read(&mut c, 2, &there, 3 + round), Ok(100 + round));
        assert_eq!(read(&mut c, 2, &there, 0), Err(LogReadError::Trimmed(LogPos(3 + round))));
    }
    assert_eq!(append(&mut c, 2, &there, 1), Ok(LogPos(7)));
    c.driver.run_for(Duration::from_secs(30));
    assert_eq!(c.servers.loglets(), 1);
}

#[test]
fn a_deleter_that_dies_behind_the_seal_leaves_a_log_that_works() {
    let mut c = Cluster::new(56, 3);
    let log = c.created("memory");
    append(&mut c, 1, &log, 1).unwrap();
    let chain = log.chain().unwrap();
    let active = chain.chain.active();
    let loglet = log.registry().provider("memory").unwrap().open(active.loglet, &active.config).unwrap();
    c.run(1, async move { loglet.seal().await }).unwrap();
    assert_eq!(append(&mut c, 1, &log, 2), Ok(LogPos(1)), "it was not deleted");
    assert_eq!(delete(&mut c, &log), Ok(true), "and can be");
}

#[test]
fn a_log_without_room_in_its_chain_or_that_was_ended_can_be_deleted() {
    let mut c = Cluster::at_first_level(57, 3);
    c.options.max_segments = 70;
    let log = c.created("memory");
    let full = (1..100).find(|seq| {
        append(&mut c, 1, &log, *seq).unwrap();
        let extend = log.extend(LogletSpec::default());
        c.run(1, extend).unwrap().is_err()
    });
    assert!(full.is_some(), "the chain takes no more");
    let refused = delete(&mut c, &log);
    assert_eq!(
        refused,
        Err(ReconfigError::Level { needs: Level(2), active: Level(1) }),
        "a member may not read it"
    );
    assert!(append(&mut c, 1, &log, 1000).is_ok(), "a refused deletion changes nothing");
    for n in [1, 2, 3] {
        c.env(n).levels().learn(Level::CURRENT).unwrap();
    }
    let end = log.end();
    c.run(1, end).unwrap().unwrap();
    assert_eq!(delete(&mut c, &log), Ok(true));
    c.driver.run_for(Duration::from_secs(30));
    assert_eq!(c.servers.loglets(), 0);
}

#[test]
fn all_that_a_deleted_log_had_is_garbage_but_for_the_first_of_the_next() {
    let mut c = Cluster::new(58, 3);
    let log = c.created("memory");
    grow(&mut c, &log, 3);
    let chain = log.chain().unwrap();
    let named: Vec<_> = chain.chain.segments().iter().map(|s| s.loglet).collect();
    assert_eq!(delete(&mut c, &log), Ok(true));
    let deleted = log.chain().unwrap();
    let mark = deleted.chain.active().loglet;
    let late = new_id(1 << 40, "log", Origin::Extend(chain.chain.active().loglet));
    let next = new_id(2 << 40, "log", Origin::Extend(mark));
    let all = named.iter().copied().chain([late, next]);
    let abandoned = Suspects::new("log", all).abandoned(&deleted.chain);
    assert!(named.iter().chain([&late]).all(|id| abandoned.contains(id)));
    assert!(!abandoned.contains(&next), "somebody may be creating the log anew");
}

/// The record that was acknowledged at each position, which never changes (vlog-VL3, vlog-VL4).
#[derive(Default)]
struct Acknowledged(Mutex<BTreeMap<u64, (u64, u64)>>);

impl Acknowledged {
    fn note(&self, at: LogPos, op: OpId) {
        let mut all = self.0.lock().unwrap();
        let before = all.insert(at.0, (op.client.0, op.seq));
        assert!(
            before.is_none_or(|b| b == (op.client.0, op.seq)),
            "two records at {at}: {before:?} and {op:?}"
        );
    }
}

/// Appends and reads on one node while the log is deleted and created again.
async fn use_log(
    env: atoll_core::Env,
    log: Arc<VirtualLog>,
    client: u64,
    seen: Arc<Acknowledged>,
) -> [usize; 3] {
    let [mut appended, mut refused, mut was_read] = [0; 3];
    for seq in 1..=60u64 {
        match log.submit(vec![record(client, seq)]).unwrap().await.unwrap() {
            Ok(at) => {
                seen.note(at[0], OpId { client: ClientId(client), seq });
                appended += 1;
            }
            Err(
                LogAppendError::NotAppended(LogError::Deleted) | LogAppendError::Unknown(LogError::Deleted),
            ) => refused += 1,
            Err(_) => {}
        }
        let tail = log.known_tail().0.max(1);
        let from = LogPos(env.random() % tail);
        if let Ok(read) = log.read(from..LogPos(tail), 10_000, ReadFrom::Anywhere).await.unwrap() {
            for (i, entry) in read.entries.iter().enumerate() {
                seen.note(read.first.plus(i as u64), entry.op);
                was_read += 1;
            }
        }
        env.sleep(Duration::from_millis(env.random() % 20)).await;
    }
    [appended, refused, was_read]
}

#[test]
fn positions_of_deleted_logs_are_never_answered_wrongly() {
    let mut sums = [0; 3];
    for seed in 0..12 {
        let mut c = Cluster::new(700 + seed, 3);
        let log = c.created("memory");
        c.servers.faults(|f| {
            f.append_unknown = 30;
            f.unavailable = 50;
            f.register_unknown = 50;
            f.max_delay = Duration::from_millis(3);
        });
        let seen = Arc::new(Acknowledged::default());
        let users: Vec<_> = [1, 2, 3]
            .map(|n| {
                let (env, log, seen) = (c.env(n), c.log(n, "log"), seen.clone());
                let user = use_log(env.clone(), log, u64::from(n), seen);
                env.launch("user", user)
            })
            .into();
        // One node deletes and creates the log while another extends it.
        let (env, other) = (c.env(1), c.log(2, "log"));
        c.env(2).spawn(
            "extender",
            Box::pin({
                let env = c.env(2);
                async move {
                    for _ in 0..20 {
                        drop(other.extend(LogletSpec::default()).await);
                        env.sleep(Duration::from_millis(env.random() % 60)).await;
                    }
                }
            }),
        );
        c.run(1, async move {
            for _ in 0..8 {
                env.sleep(Duration::from_millis(env.random() % 80)).await;
                drop(log.delete().await);
                env.sleep(Duration::from_millis(env.random() % 40)).await;
                drop(log.create(LogletSpec::default()).await);
            }
            // The users end only once the log exists again, so a failed create is repeated.
            loop {
                match log.create(LogletSpec::default()).await {
                    Ok(Ok(_)) => return,
                    _ => env.sleep(Duration::from_millis(10)).await,
                }
            }
        });
        for user in users {
            let counts = c.run(1, user).unwrap();
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
    }
    let [appended, refused, was_read] = sums;
    assert!(appended > 500 && refused > 50 && was_read > 500, "{sums:?}: the test is to meet all of it");
}

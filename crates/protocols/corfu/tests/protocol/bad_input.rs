//! Bad input: projections that cannot be, units with the data of another, positions far beyond the tail, and readers that stop reading.
//! Each gets a clear error, and others are unaffected.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{self, Cluster, provider};
use crate::shelf::Shelf;
use atoll_contract::register::*;
use atoll_contract::{LogletId, LogletProvider};
use atoll_core::*;
use atoll_corfu::log::{CorfuLog, Entry, LogError, MAX_POSITION, id_of, nodes_of};
use atoll_corfu::message::{Await, Look, UnitAnswer, Verdict};
use atoll_corfu::projection::OPEN;
use atoll_corfu::{Chain, ClientOptions, Projection, Stretch};
use bytes::Bytes;

fn shelf_with(projection: &Projection) -> Arc<Shelf> {
    let value = projection.to_bytes();
    let now = Versioned { version: Version(projection.epoch), value, nonce: Nonce(1) };
    Arc::new(Shelf(Mutex::new(now)))
}

fn log(c: &Cluster, name: &str, shelf: &Arc<Shelf>) -> CorfuLog {
    let options = ClientOptions {
        round_timeout: Duration::from_millis(60),
        op_timeout: Duration::from_millis(500),
        ..ClientOptions::default()
    };
    CorfuLog::new(c.env(4), id_of(name), shelf.clone(), options)
}

fn append(c: &mut Cluster, log: &CorfuLog, text: &'static str) -> Result<u64, LogError> {
    let log = log.clone();
    c.on(4, async move { log.append(Bytes::from(text)).await })
}

fn read(c: &mut Cluster, log: &CorfuLog, position: u64) -> Result<Entry, LogError> {
    let log = log.clone();
    c.on(4, async move { log.read(position).await })
}

/// Another log on the same units, which must work whatever is done to the first one.
struct Bystander(CorfuLog);

impl Bystander {
    fn new(c: &Cluster) -> Self {
        let shelf = shelf_with(&cluster::projection(c, 4, &[&[1, 2]]));
        Bystander(log(c, "bystander", &shelf))
    }

    fn works(&self, c: &mut Cluster) {
        let at = append(c, &self.0, "x").unwrap();
        assert_eq!(read(c, &self.0, at).unwrap(), Entry::Data(Bytes::from("x")));
    }
}

#[test]
fn projections_that_cannot_be_are_refused_by_name() {
    let mut c = cluster::new(4, 1);
    let bystander = Bystander::new(&c);
    let good = cluster::projection(&c, 4, &[&[1, 2]]);
    let of = |bounds: &[(u64, u64)]| {
        let chain = |base| Chain { base, ..good.stretches[0].chains[0].clone() };
        let range = |(start, end): &(u64, u64)| Stretch {
            start: *start,
            end: *end,
            stripe: 1,
            chains: vec![chain(*start)],
        };
        Projection { stretches: bounds.iter().map(range).collect(), ..good.clone() }
    };
    for (bad, words) in [
        (of(&[(0, 9), (7, OPEN)]), "two ranges contain position 7"),
        (of(&[(0, 9), (12, OPEN)]), "positions 9 to 12 are in no range"),
        (of(&[(0, 9)]), "only the last one is open"),
        (of(&[]), "has no range"),
    ] {
        let stored = log(&c, "bad", &shelf_with(&bad));
        let refused = append(&mut c, &stored, "a").unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert_eq!(read(&mut c, &stored, 0).unwrap_err(), refused);
        let (created, wanted) = (log(&c, "bad", &Arc::default()), bad.clone());
        assert_eq!(c.on(4, async move { created.create(wanted).await }).unwrap_err(), refused);
        // As the configuration of a Loglet, it names the place, too.
        let config = bad.to_bytes();
        let opened = provider(&c, 4).open(LogletId(3), &config).map(drop).unwrap_err();
        assert!(opened.to_string().contains("projection"), "{opened}");
        assert!(provider(&c, 4).describe(&config)[0].1.contains("projection"));
        assert_eq!(nodes_of(&config), None, "it counts as naming every node");
    }
    let gap = provider(&c, 4).open(LogletId(3), &of(&[(0, 9), (12, OPEN)]).to_bytes()).map(drop);
    assert!(gap.unwrap_err().to_string().contains("position in no range of a projection: 9"));
    bystander.works(&mut c);
}

#[test]
fn a_unit_that_is_not_the_one_that_the_projection_names_serves_nothing() {
    let mut c = cluster::new(4, 2);
    let bystander = Bystander::new(&c);
    let mut stranger = cluster::projection(&c, 4, &[&[1, 3]]);
    // Node 3 is there, but no unit of it has this data directory.
    stranger.stretches[0].chains[0].units[1].1 = StorageId(999);
    let unknown = log(&c, "unknown", &shelf_with(&stranger));
    assert_eq!(append(&mut c, &unknown, "a"), Err(LogError::Unknown(0)), "the head has it");
    assert_eq!(read(&mut c, &unknown, 0), Err(LogError::WrongUnit));
    stranger.stretches[0].chains[0].units.reverse();
    let unknown = log(&c, "unknown head", &shelf_with(&stranger));
    let refused = append(&mut c, &unknown, "a").unwrap_err();
    assert_eq!(refused, LogError::WrongUnit, "no unit has anything of it");
    assert!(refused.to_string().contains("another data directory"), "{refused}");
    bystander.works(&mut c);
}

/// A node comes back with an empty disk, under the same id. It must not answer for the disk that was lost.
#[test]
fn a_unit_whose_disk_was_replaced_does_not_pass_for_the_old_one() {
    let mut c = cluster::new(4, 3);
    let bystander = Bystander::new(&c);
    let shelf = shelf_with(&cluster::projection(&c, 4, &[&[1, 3]]));
    let one = log(&c, "reef", &shelf);
    assert_eq!(append(&mut c, &one, "a"), Ok(0));
    let old = (NodeId(3), c.nodes[&NodeId(3)].storage);
    c.kill(NodeId(3));
    c.wipe(NodeId(3));
    let new = (NodeId(3), c.nodes[&NodeId(3)].storage);
    assert_ne!(old, new);
    assert_eq!(read(&mut c, &one, 0), Err(LogError::WrongUnit), "it does not say that nothing was written");
    bystander.works(&mut c);
    let changed = one.clone();
    c.on(4, async move {
        changed.replace_unit(old, new).await.unwrap();
        changed.rebuild(new).await.unwrap();
    });
    assert_eq!(read(&mut c, &one, 0), Ok(Entry::Data(Bytes::from("a"))));
    assert!(append(&mut c, &one, "b").is_ok());
}

#[test]
fn positions_far_beyond_the_tail_hold_nothing_and_are_not_filled() {
    let mut c = cluster::new(4, 4);
    let one = log(&c, "reef", &shelf_with(&cluster::projection(&c, 4, &[&[1, 2], &[3]])));
    assert_eq!(append(&mut c, &one, "a"), Ok(0));
    for far in [1, 1_000_000, MAX_POSITION - 1, MAX_POSITION, u64::MAX - 1, u64::MAX] {
        assert_eq!(read(&mut c, &one, far), Ok(Entry::Unwritten));
        let checked = one.clone();
        let refused = c.on(4, async move { checked.check_below_tail(far).await }).unwrap_err();
        assert_eq!(refused, LogError::BeyondTail { position: far, tail: 1 });
    }
    for far in [MAX_POSITION, u64::MAX] {
        let (filled, trimmed) = (one.clone(), one.clone());
        let beyond = Err(LogError::BeyondTail { position: far, tail: MAX_POSITION });
        assert_eq!(c.on(4, async move { filled.fill(far).await }), beyond);
        assert_eq!(c.on(4, async move { trimmed.trim(far).await }), beyond);
    }
    assert_eq!(append(&mut c, &one, "b"), Ok(1), "the tail is where it was");
}

/// A reader asks for much and takes nothing: it waits for addresses that nobody writes, and drops its looks. The unit bounds what it keeps
/// for it, and serves the others.
#[test]
fn a_reader_that_stops_reading_holds_up_nobody() {
    let mut c = cluster::new(4, 5);
    let one = log(&c, "reef", &shelf_with(&cluster::projection(&c, 4, &[&[1, 2]])));
    assert_eq!(append(&mut c, &one, "a"), Ok(0));
    let (env, id) = (c.env(3), id_of("reef"));
    for addr in 0..20_000_u64 {
        let far = Await { log: id, config: Bytes::new(), epoch: 1, addr: 10 + addr, patience_ms: 60_000 };
        drop(env.call::<Await>(NodeId(2), far));
        let look =
            Look { log: id, config: Bytes::new(), epoch: 1, from: 0, to: u64::MAX, max_bytes: u32::MAX };
        drop(env.call::<Look>(NodeId(2), look));
    }
    c.run_for(Duration::from_millis(50));
    assert_eq!(append(&mut c, &one, "b"), Ok(1));
    assert_eq!(read(&mut c, &one, 1), Ok(Entry::Data(Bytes::from("b"))));
    // One more wait than a unit keeps is answered at once; the asker looks again later.
    let env = c.env(4);
    let more = Await { log: id, config: Bytes::new(), epoch: 1, addr: 9, patience_ms: 60_000 };
    let caller = env.clone();
    let asked = env.launch("more", async move { caller.call(NodeId(2), more).await });
    let answer: UnitAnswer = c.wait(asked, Duration::from_millis(100)).unwrap().unwrap();
    assert_eq!((answer.verdict, answer.missing), (Verdict::Done {}, 9));
}

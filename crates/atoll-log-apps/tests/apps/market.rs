//! The market: producers whose appends fail, and analysers that crash and continue from what they saved.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_core::{Decode, Encode};
use atoll_log_apps::entry::{self, AppEntry};
use atoll_log_apps::market::*;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{Machine, PlayError, PlayOptions, Player};
use atoll_log_apps::shared_log::SharedLog;
use bytes::Bytes;

use crate::store::{SOME_FAULTS, caught};

const WINDOWS: Windows = Windows { bucket_ms: 100, window_ms: 1000, lateness_ms: 300, burst: 3 };

fn fresh(log: &MemoryLog, saved: Option<&Bytes>) -> Result<Player<Analysis>, PlayError> {
    let options = PlayOptions { read_ahead: 3, ..PlayOptions::default() };
    let log: Arc<dyn SharedLog> = Arc::new(log.clone());
    match saved {
        Some(saved) => Player::resume(log, Analysis::new(WINDOWS), options, saved.clone()),
        None => Ok(Player::new(log, Analysis::new(WINDOWS), options)),
    }
}

fn some_event(dice: &mut Dice, now_ms: u64) -> UserEvent {
    let kind = [Kind::View {}, Kind::Cart {}, Kind::Purchase {}, Kind::Search {}][dice.below(4) as usize];
    UserEvent {
        user: format!("u{}", dice.below(3)),
        session: format!("s{}", dice.below(2)),
        kind,
        item: format!("c{}/i{}", dice.below(2), dice.below(2)),
        price_cents: 1 + dice.below(100),
        // Some come late.
        time_ms: now_ms.saturating_sub(dice.below(2) * dice.below(600)),
    }
}

/// What the log says, counted by somebody who keeps all events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scan {
    totals: BTreeMap<String, Counts>,
    window: BTreeMap<String, Counts>,
    late: u64,
}

fn add(to: &mut BTreeMap<String, Counts>, event: &UserEvent) {
    let counts = to.entry(event.item.clone()).or_default();
    match event.kind {
        Kind::View {} => counts.views += 1,
        Kind::Cart {} => counts.carts += 1,
        Kind::Search {} => counts.searches += 1,
        Kind::Purchase {} => {
            counts.purchases += 1;
            counts.revenue_cents += event.price_cents;
        }
    }
}

fn scan(ever: &BTreeMap<u64, Bytes>) -> Scan {
    let events = ever.values().map(|data| match AppEntry::open(data.clone()).unwrap() {
        AppEntry::Record { body } => UserEvent::from_bytes(body).unwrap(),
        AppEntry::Part { .. } => panic!("nobody writes checkpoints"),
    });
    let (mut scan, mut newest, mut on_time) = (Scan::default(), 0, Vec::new());
    for event in events {
        add(&mut scan.totals, &event);
        newest = newest.max(event.time_ms);
        match event.time_ms + WINDOWS.lateness_ms < newest {
            true => scan.late += 1,
            false => on_time.push(event),
        }
    }
    // The bucket of the newest event is the tenth.
    let first = (newest / 100).saturating_sub(9);
    on_time
        .iter()
        .filter(|event| event.time_ms / 100 >= first)
        .for_each(|event| add(&mut scan.window, event));
    scan
}

fn told(analysis: &Analysis) -> Scan {
    let window = analysis.window().into_iter().map(|(item, counts)| (item.to_owned(), counts)).collect();
    Scan { totals: analysis.totals().clone(), window, late: analysis.late() }
}

/// Producers append; an analyser plays, saves and dies, again and again. Returns what is wrong in the end (apps-AP7).
fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let (log, mut dice) = (MemoryLog::new(seed, faults), Dice::new(seed));
    let disk: Arc<Mutex<Option<Bytes>>> = Arc::default();
    let mut clients = Clients::default();
    for id in 0..3 {
        let (log, mut dice) = (log.clone(), Dice::new(seed * 10 + id));
        clients.start(async move {
            for n in 0..30 {
                // What fails is not repeated.
                drop(log.append(entry::record(&some_event(&mut dice, 1000 + 50 * n))).await);
            }
        });
    }
    let analyser = |disk: Arc<Mutex<Option<Bytes>>>| {
        let log = log.clone();
        async move {
            let saved = disk.lock().unwrap().clone();
            let Ok(analyser) = fresh(&log, saved.as_ref()) else { return };
            loop {
                drop(analyser.play().await);
                *disk.lock().unwrap() = Some(analyser.saved());
            }
        }
    };
    // It never ends, so it is dropped as the others are, and the last one at the end.
    for turn in 0..40 {
        let mut one = Clients::default();
        one.start(analyser(disk.clone()));
        for _ in 0..dice.below(30) {
            clients.step(&mut dice, crashes);
            one.step(&mut dice, 0);
        }
        if turn == 39 {
            clients.run(&mut dice, crashes);
        }
    }
    log.settle();
    let saved = disk.lock().unwrap().clone();
    let found = fresh(&log, saved.as_ref()).map(|last| {
        run(last.play()).unwrap();
        (last.view(|analysis, _| told(analysis)), last.hash())
    });
    let never_died = fresh(&log, None).unwrap();
    run(never_died.play()).unwrap();
    let due = scan(&log.ever());
    match found {
        Err(error) => vec![format!("AP7 what was saved cannot be loaded: {error}")],
        Ok((counts, _)) if counts != due => {
            vec![format!("AP7 the counts are {counts:?}; a scan has {due:?}")]
        }
        Ok((_, hash)) if hash != never_died.hash() => {
            vec!["AP3 an analyser that died has another hash".into()]
        }
        Ok(_) => Vec::new(),
    }
}

#[test]
fn counts_equal_a_scan() {
    for seed in 0..100 {
        assert_eq!(round(seed, Faults::default(), 0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn counts_equal_a_scan_after_crashes() {
    for seed in 0..200 {
        assert_eq!(round(seed, SOME_FAULTS, 4), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_the_market_are_found() {
    for mutant in [mutants::APPS_K1, mutants::APPS_K2] {
        let found = caught(mutant, 300, |seed| round(seed, SOME_FAULTS, 4));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

fn event(session: &str, kind: Kind, item: &str, time_ms: u64) -> UserEvent {
    let (user, session, item) = ("u".to_owned(), session.to_owned(), item.to_owned());
    UserEvent { user, session, kind, item, price_cents: 250, time_ms }
}

fn play(events: &[UserEvent]) -> Analysis {
    let mut analysis = Analysis::new(WINDOWS);
    events.iter().for_each(|event| analysis.apply(0, event.to_bytes()).unwrap());
    analysis
}

#[test]
fn windows_slide_with_the_time_of_events_and_late_ones_count_in_the_totals() {
    let view = |time_ms| event("s", Kind::View {}, "books/atlas", time_ms);
    let analysis = play(&[view(1000), view(1999), view(1850), view(1500)]);
    assert_eq!(analysis.totals()["books/atlas"].views, 4);
    assert_eq!((analysis.window()["books/atlas"].views, analysis.late()), (3, 1));
    assert_eq!(analysis.timeline(), [1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    // The bucket of 1000 to 1099 goes when the newest event is in that of 2000.
    let analysis = play(&[view(1000), view(1999), view(2000)]);
    assert_eq!((analysis.window()["books/atlas"].views, analysis.totals()["books/atlas"].views), (2, 3));
    assert_eq!(play(&[]).timeline(), [0]);
}

#[test]
fn categories_and_sessions_are_summed_up() {
    let many = (0..6).map(|_| event("robot", Kind::Search {}, "toys/kite", 50));
    let some = [
        event("a", Kind::View {}, "books/atlas", 0),
        event("a", Kind::Purchase {}, "books/atlas", 10),
        event("b", Kind::Cart {}, "books/novel", 20),
    ];
    let analysis = play(&some.into_iter().chain(many).collect::<Vec<_>>());
    let books = analysis.categories()["books"];
    assert_eq!((books.views, books.carts, books.purchases, books.revenue_cents), (1, 1, 1, 250));
    assert_eq!(analysis.anomalies().collect::<Vec<_>>(), [("robot", 6)]);
    let saved = analysis.save();
    let mut copy = Analysis::new(Windows::default());
    copy.load(saved.clone()).unwrap();
    assert_eq!((copy.save(), &copy), (saved, &analysis));
}

#[test]
fn items_above_the_limit_count_together() {
    let events: Vec<_> =
        (0..MAX_ITEMS + 5).map(|n| event("s", Kind::View {}, &format!("c/{n}"), 0)).collect();
    let analysis = play(&events);
    assert_eq!(analysis.totals().len(), MAX_ITEMS + 1);
    assert_eq!(analysis.totals()[OTHERS].views, 5);
    assert_eq!(analysis.totals().values().map(Counts::events).sum::<u64>(), MAX_ITEMS as u64 + 5);
}

#[test]
fn what_must_not_be_appended_is_refused_and_so_is_a_damaged_save() {
    assert_eq!(event("s", Kind::View {}, "a/b", 0).check(), Ok(()));
    for bad in [
        event("", Kind::View {}, "a/b", 0),
        event("s", Kind::View {}, "ab", 0),
        event("s", Kind::View {}, "/b", 0),
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
    let log = MemoryLog::new(1, Faults::default());
    let analyser = fresh(&log, None).unwrap();
    let saved = analyser.saved();
    for at in 0..saved.len() {
        let mut damaged = saved.to_vec();
        damaged[at] ^= 1;
        let error = fresh(&log, Some(&damaged.into())).err();
        assert!(matches!(error, Some(PlayError::Damaged(_))), "byte {at}: {error:?}");
    }
    assert!(fresh(&log, Some(&saved.slice(..saved.len() - 1))).is_err());
}

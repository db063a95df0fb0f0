//! An exhaustive check of an append to a shard that ends, while another orderer takes over, over Scalog's own ordering state machine; and
//! of the model's storage server against the real one.

mod log;
mod model;
mod properties;
mod real;
mod server;

use atoll_scalog::mutants;
use stateright::{Checker, HasDiscoveries, Model};

use log::{Entry, Log};
use model::{Bug, Race};
use real::Real;
use server::{Flaws, Record, Request, Server};

#[test]
fn one_append_an_ending_shard_and_two_orderers() {
    let checker = Race::new(Bug::None).checker().spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000);
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        (Bug::Product(mutants::SCALOG_S2), "G2"),
        (Bug::Product(mutants::SCALOG_S3), "G1"),
        (Bug::Product(mutants::SCALOG_S5), "G3"),
        (Bug::Product(mutants::SCALOG_S13), "G6"),
        (Bug::ReportsUnsynced, "G3"),
        (Bug::SkipsCuts, "G1"),
        (Bug::RetriesElsewhere, "S15"),
        (Bug::Server(Flaws { takes_moved: true, ..Flaws::default() }), "S15"),
        (Bug::Server(Flaws { never_too_early: true, ..Flaws::default() }), "G7"),
    ];
    for (bug, expected) in bugs {
        let checker = Race::new(bug).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discoveries();
        println!("{bug:?}: {:?}, {} states", found.keys(), checker.unique_state_count());
        assert!(found.keys().any(|name| name.starts_with(expected)), "{bug:?} is not found");
    }
}

/// What can happen to a server.
#[derive(Clone, Debug)]
enum Event {
    /// An append of our client arrives.
    Append(Request),
    Sync,
    /// The ordering log gets an entry, and the server applies what it has not applied.
    Entry(Entry),
    Restart,
}

/// Plays events on both servers, and returns the answers of the model's. The other one must give the same. None if a cut has what the
/// server has not reported.
fn play(node: u32, client: u64, events: &[Event]) -> Option<Vec<String>> {
    let (mut real, mut log, flaws) = (Real::start(node, client), Log::new(), Flaws::default());
    let mut model = if node == 1 { Server::new(0, 0, 2) } else { Server::new(1, 0, 1) };
    if node == 1 {
        model.segments[1].records.push(Record::Others);
        model.sync();
    }
    let (mut waiting, mut all) = (Vec::new(), Vec::new());
    for event in events {
        let mut answers = Vec::new();
        match event {
            Event::Append(request) => {
                real.append(*request, model.shard);
                match model.append(log.at(model.applied), client, *request, flaws) {
                    Ok(place) => waiting.push(place),
                    Err(answer) => answers.push(answer),
                }
            }
            Event::Sync => {
                real.sync();
                model.sync();
            }
            Event::Entry(entry) => {
                if entry.counts(model.shard).is_some_and(|counts| !is_below(counts, &model.counts(false))) {
                    return None;
                }
                log.push(entry.clone());
                real.follow(model.applied, &log.entries[model.applied..]);
                model.applied = log.len();
            }
            Event::Restart => {
                real.restart();
                model.crash();
                waiting.clear();
            }
        }
        waiting.retain(|place| {
            let answer = model.settle(log.at(model.applied), *place, flaws);
            answers.extend(answer);
            answer.is_none()
        });
        let answers: Vec<String> = answers.iter().map(|answer| format!("{answer:?}")).collect();
        assert_eq!(real.answers(), answers, "{event:?} of {events:?} on node {node}");
        all.extend(answers);
    }
    Some(all)
}

fn is_below(counts: &[u64], synced: &[u64]) -> bool {
    counts.iter().zip(synced).all(|(count, synced)| count <= synced)
}

/// Every sequence of four events, after some others: the model's server and the real one answer alike.
#[test]
fn the_server_of_the_model_is_the_real_one() {
    let cut = |shard, counts: &[u64]| Event::Entry(Entry::Cut(vec![(shard, counts.to_vec())]));
    let [now, later] = [0, 1].map(|after| Event::Entry(Entry::End(after)));
    let append = |view, floor, chosen| Event::Append(Request { view, floor, chosen });
    let first = vec![
        append(0, 0, false),
        append(1, 0, false),
        append(0, 0, true),
        Event::Sync,
        cut(0, &[1, 0]),
        cut(0, &[0, 1]),
        now.clone(),
        later.clone(),
        Event::Restart,
    ];
    let second = vec![
        append(0, 0, false),
        append(1, 0, false),
        append(1, 2, false),
        append(0, 0, true),
        Event::Sync,
        cut(1, &[1]),
        now,
        Event::Restart,
    ];
    let race = Race::new(Bug::None);
    let (mut answers, mut played) = (std::collections::BTreeMap::new(), 0);
    for (node, before, events) in [(1, vec![], first), (3, vec![cut(0, &[1, 1])], second)] {
        let count = events.len();
        for number in 0..count.pow(4) {
            let sequence = (0..4).map(|n| events[number / count.pow(n) % count].clone());
            let sequence: Vec<Event> = before.iter().cloned().chain(sequence).collect();
            let Some(given) = play(node, race.name, &sequence) else { continue };
            played += 1;
            for answer in given {
                *answers.entry(answer).or_insert(0) += 1;
            }
        }
    }
    println!("{played} sequences: {answers:?}");
    for expected in ["Ordered(0)", "Ordered(1)", "Ordered(2)", "Never", "Moved", "Behind", "Forgotten"] {
        assert!(answers.contains_key(expected), "{expected} was never answered: {answers:?}");
    }
}

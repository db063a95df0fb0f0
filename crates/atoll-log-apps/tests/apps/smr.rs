//! Replicated state machines: several commands in an entry, each takes effect once.

use std::sync::{Arc, Mutex};

use atoll_contract::{ClientId, OpId};
use atoll_core::DecodeError;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{PlayOptions, Player};
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::smr::*;
use bytes::Bytes;

use crate::store::{SOME_FAULTS, caught};

/// Remembers its commands in order; replies with how many there were before.
#[derive(Debug, Default)]
struct List(Vec<Bytes>);

impl Service for List {
    fn apply(&mut self, command: &Bytes) -> Bytes {
        self.0.push(command.clone());
        Bytes::from((self.0.len() - 1).to_string())
    }

    fn save(&self) -> Bytes {
        atoll_core::Encode::to_bytes(&self.0)
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        self.0 = atoll_core::Decode::from_bytes(state)?;
        Ok(())
    }
}

type Replica = Arc<Player<SmrState<List>>>;

fn replica(log: &MemoryLog) -> Replica {
    Arc::new(Player::new(
        Arc::new(log.clone()),
        SmrState::new(List::default(), 100, 64),
        PlayOptions::default(),
    ))
}

fn few() -> SmrOptions {
    SmrOptions { max_commands: 4, max_bytes: 60, max_waiting: 10, ..SmrOptions::default() }
}

type Told = Arc<Mutex<Vec<(Bytes, Result<Bytes, bool>)>>>;

/// Proposes commands and writes down what became of each: its reply, or whether it may have happened.
async fn client(replica: Replica, id: u64, seed: u64, told: Told) {
    let (mut dice, proposer) = (Dice::new(seed * 100 + id), Proposer::new(replica, ClientId(id), few()));
    let mut sent = Vec::<(OpId, Bytes)>::new();
    for n in 0..5 {
        for m in 0..dice.below(7) {
            let command = Bytes::from(format!("{id}.{n}.{m}"));
            sent.push((proposer.propose(command.clone()).unwrap(), command));
        }
        loop {
            let command = |op: &OpId| sent.iter().find(|(o, _)| o == op).unwrap().1.clone();
            match proposer.flush().await {
                Flushed::Nothing => break,
                Flushed::Applied(done) => {
                    told.lock()
                        .unwrap()
                        .extend(done.iter().map(|(op, reply)| (command(op), reply.clone().ok_or(true))));
                }
                Flushed::NotDone(ops, _) => {
                    told.lock().unwrap().extend(ops.iter().map(|op| (command(op), Err(false))))
                }
                Flushed::Unknown(ops) => {
                    told.lock().unwrap().extend(ops.iter().map(|op| (command(op), Err(true))))
                }
            }
        }
    }
}

fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let (log, mut dice, told) = (MemoryLog::new(seed, faults), Dice::new(seed), Told::default());
    let replicas = [replica(&log), replica(&log)];
    let mut clients = Clients::default();
    for id in 1..=4 {
        clients.start(client(replicas[id as usize % 2].clone(), id, seed, told.clone()));
    }
    clients.run(&mut dice, crashes);
    log.settle();
    let fresh = replica(&log);
    let mut wrong = Vec::new();
    for one in replicas.iter().chain([&fresh]) {
        run(one.play()).unwrap();
        if one.hash() != fresh.hash() && one.applied() == fresh.applied() {
            wrong.push("AP3 replicas differ".to_owned());
        }
    }
    let list = fresh.view(|state, _| state.service().0.clone());
    for (command, outcome) in told.lock().unwrap().iter() {
        let at: Vec<String> =
            (0..list.len()).filter(|n| list[*n] == command).map(|n| n.to_string()).collect();
        let is_right = match outcome {
            Ok(reply) => at.len() == 1 && at[0].as_bytes() == &reply[..],
            Err(true) => at.len() <= 1,
            Err(false) => at.is_empty(),
        };
        if !is_right {
            wrong.push(format!("{command:?} is at {at:?}, and its proposer was told {outcome:?}"));
        }
    }
    wrong
}

#[test]
fn commands_take_effect_once_and_their_proposers_know() {
    for seed in 0..200 {
        assert_eq!(round(seed, SOME_FAULTS, 3), Vec::<String>::new(), "seed {seed}");
    }
    let found = caught(mutants::APPS_A3, 100, |seed| round(seed, SOME_FAULTS, 3));
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn commands_share_entries_and_the_queue_is_bounded() {
    let log = MemoryLog::new(1, Faults::default());
    let proposer = Proposer::new(replica(&log), ClientId(1), few());
    for n in 0..10 {
        proposer.propose(Bytes::from(format!("c{n}"))).unwrap();
    }
    assert_eq!(proposer.propose("one more".into()), Err(Busy::Waiting));
    assert_eq!(proposer.propose(Bytes::from(vec![0; 61])), Err(Busy::TooLarge));
    let mut sizes = Vec::new();
    while let Flushed::Applied(done) = run(proposer.flush()) {
        sizes.push(done.len());
    }
    assert_eq!((sizes, run(log.tail())), (vec![4, 4, 2], Ok(3)));
}

//! Scenarios in which clients hand in records, some of which must be searched for, while searches run in other threads.

use std::collections::BTreeSet;

use atoll_contract::{ClientId, LogPos};
use shuttle::thread::{self, JoinHandle};

use super::parking_piece::{Class, Parkable, Parking};
use crate::sync::{Arc, Mutex, lock};

const TAIL: LogPos = LogPos(1_000_000);

/// A record of a client, with its number in the order of that client.
#[derive(Debug, PartialEq)]
struct Record(u64, u32, Option<LogPos>);

impl Parkable for Record {
    fn client(&self) -> ClientId {
        ClientId(self.0)
    }

    fn sought_from(&self) -> Option<LogPos> {
        self.2
    }

    fn was_sent(&self) -> bool {
        false
    }

    fn may_go(&self) -> bool {
        false
    }

    fn bind(&mut self) {}
}

/// The parking, and what has arrived in the lane.
#[derive(Default)]
struct Door {
    parking: Parking<Record>,
    lane: Mutex<Vec<Record>>,
    searches: Mutex<Vec<JoinHandle<()>>>,
}

impl Door {
    fn push(&self, records: Vec<Record>) {
        lock(&self.lane).extend(records);
    }

    fn start(self: &Arc<Self>, classes: Vec<Class>) {
        for class in classes {
            let me = self.clone();
            let search = thread::spawn(move || me.search(class));
            lock(&self.searches).push(search);
        }
    }

    /// Finds nothing. The first search fails once and is repeated.
    fn search(self: Arc<Self>, class: Class) {
        let mut fails = true;
        while let Some(mut sought) = self.parking.take(class) {
            let clients: BTreeSet<ClientId> = sought.iter().map(Record::client).collect();
            let begin = if std::mem::take(&mut fails) {
                self.parking.put_back(&clients, sought, TAIL, |ready| self.push(ready))
            } else {
                sought.iter_mut().for_each(|record| record.2 = None);
                self.parking.release(&clients, sought, TAIL, |ready| self.push(ready))
            };
            self.start(begin);
        }
    }

    fn hand_in(self: &Arc<Self>, record: Record) {
        let begin = self.parking.enter(vec![record], || TAIL, |pass| self.push(pass));
        self.start(begin);
    }
}

/// Two clients in two threads hand in two retries and two new records each, with floors near and far. All records reach the lane, in the
/// order of their client.
pub(crate) fn keeps_the_order() {
    let door = Arc::new(Door::default());
    let clients = [(1, TAIL), (2, LogPos(0))].map(|(client, floor)| {
        let door = door.clone();
        thread::spawn(move || {
            for (n, sought) in [(0, Some(floor)), (1, None), (2, Some(floor)), (3, None)] {
                door.hand_in(Record(client, n, sought));
            }
        })
    });
    assert!(clients.into_iter().all(|client| client.join().is_ok()));
    loop {
        let Some(search) = lock(&door.searches).pop() else { break };
        assert!(search.join().is_ok());
    }
    let lane = lock(&door.lane);
    for client in [1, 2] {
        let order: Vec<u32> = lane.iter().filter(|r| r.0 == client).map(|r| r.1).collect();
        assert_eq!(order, [0, 1, 2, 3], "lost or out of order in the lane");
    }
}

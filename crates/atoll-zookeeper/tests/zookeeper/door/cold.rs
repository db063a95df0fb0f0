//! Reads of data that is not in memory: nobody but the client that asks waits for the disk.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::client::Client;
use super::served::{Alone, door_on, serve_door};
use atoll_db::{
    Applications, Change, Direction, InMemory, KeyRange, MemoryStore, Solo, Store, StoreError, StoreSnapshot,
};
use atoll_zookeeper::jute::codes::{ErrorCode, EventType};
use atoll_zookeeper::jute::reply::{GetDataReply, NamesReply};
use atoll_zookeeper::jute::request::{
    AddWatchRequest, PathRequest, Request, SetDataRequest, SetWatchesRequest, WatchedRequest,
};
use atoll_zookeeper::jute::transaction::{MultiReadOp, MultiReadRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::{Door, Options, ZooKeeper};
use bytes::Bytes;

/// How long to wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A disk that holds up reads of keys with "cold" in them.
#[derive(Debug, Default)]
struct Gate {
    /// Whether it is open, and how many reads wait.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    fn pass(&self, key: &[u8]) {
        if is_cold(key) {
            let mut state = self.state.lock().unwrap();
            state.1 += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |(open, _)| !*open).unwrap());
        }
    }

    /// Waits until so many reads have come to the gate. If the door's thread makes them, the second one never comes.
    fn wait_for(&self, reads: usize) {
        let state = self.state.lock().unwrap();
        let is_missing = |(_, n): &mut (bool, usize)| *n < reads;
        let (state, waited) = self.changed.wait_timeout_while(state, PATIENCE, is_missing).unwrap();
        assert!(!waited.timed_out(), "{} of {reads} reads came to the gate", state.1);
    }
}

fn is_cold(key: &[u8]) -> bool {
    key.windows(4).any(|part| part == b"cold")
}

#[derive(Debug)]
struct Disk(MemoryStore, Arc<Gate>);

#[derive(Debug)]
struct Snapshot(Arc<dyn StoreSnapshot>, Arc<Gate>);

impl Store for Disk {
    fn snapshot(&self) -> Arc<dyn StoreSnapshot> {
        Arc::new(Snapshot(self.0.snapshot(), self.1.clone()))
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        self.0.commit(changes)
    }

    fn persist(&mut self) -> Result<(), StoreError> {
        self.0.persist()
    }

    fn begin_refill(&mut self) -> Result<(), StoreError> {
        self.0.begin_refill()
    }

    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError> {
        self.0.refill(items)
    }

    fn finish_refill(&mut self) -> Result<(), StoreError> {
        self.0.finish_refill()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

impl StoreSnapshot for Snapshot {
    fn is_in_memory(&self) -> bool {
        false
    }

    fn get_in_memory(&self, key: &[u8]) -> InMemory {
        if is_cold(key) { InMemory::OnDisk } else { self.0.get_in_memory(key) }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.1.pass(key);
        self.0.get(key)
    }

    fn page(&self, r: &KeyRange, d: Direction, limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.1.pass(&r.start);
        self.0.page(r, d, limit)
    }
}

/// Returns a door over a store whose disk has `/hot`, `/cold` and its children `a` and `b`, behind a closed gate.
fn door() -> (SocketAddr, Arc<Gate>) {
    let store = MemoryStore::new();
    let mut apps = Applications::new();
    let slot = apps.add(ZooKeeper);
    let solo = Solo::open(apps, Box::new(store.clone())).unwrap();
    let door = Door::open(solo.engine(&slot), Arc::new(Alone), Options::default()).unwrap();
    let mut c = Client::connect(serve_door(door, None).0);
    for (path, data) in [("/hot", "1"), ("/cold", ""), ("/cold/a", "A"), ("/cold/b", "B")] {
        assert_eq!(c.create(path, data.as_bytes()), 0);
    }
    solo.commit();
    solo.close();
    let gate = Arc::<Gate>::default();
    (door_on(Box::new(Disk(store, gate.clone())), Options::default()), gate)
}

fn read(path: &str, watch: bool) -> WatchedRequest<'_> {
    WatchedRequest { path, watch }
}

fn get(path: &str) -> Request<'_> {
    Request::GetData(read(path, false))
}

fn set<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    Request::SetData(SetDataRequest { path, data: Some(data), version: -1 })
}

fn data(body: &[u8]) -> Vec<u8> {
    GetDataReply::parse(body).unwrap().data.unwrap_or_default().to_vec()
}

#[test]
fn a_read_that_waits_for_the_disk_holds_up_nobody_else() {
    let (door, gate) = door();
    let mut slow: Vec<Client> = (0..5).map(|_| Client::connect(door)).collect();
    let cold = [
        get("/cold/a"),
        Request::Exists(read("/cold/a", true)),
        Request::GetChildren(read("/cold", true)),
        Request::GetAcl(PathRequest { path: "/cold/a" }),
        Request::MultiRead(MultiReadRequest { ops: vec![MultiReadOp::GetData(read("/cold/a", false)); 2] }),
    ];
    let asked: Vec<i32> = slow.iter_mut().zip(&cold).map(|(c, request)| c.ask(request)).collect();
    gate.wait_for(5);
    let mut quick = Client::connect(door);
    assert_eq!(quick.call(&set("/hot", b"2")).0, 0);
    assert_eq!(data(&quick.call(&get("/hot")).1), b"2");
    gate.open();
    let answers: Vec<(i32, Vec<u8>)> = slow.iter_mut().zip(asked).map(|(c, xid)| c.answer(xid)).collect();
    assert!(answers.iter().all(|(err, _)| *err == 0));
    assert_eq!(data(&answers[0].1), b"A");
    assert_eq!(NamesReply::parse(&answers[2].1).unwrap().names, ["a", "b"]);
    let row = MultiResult::read_row(&mut Reader::new(&answers[4].1)).unwrap();
    assert!(row.len() == 2 && row.iter().all(|r| matches!(r, MultiResult::GetData(Some(b"A"), _))));
}

#[test]
fn what_a_client_asks_behind_such_a_read_keeps_its_order() {
    let (door, gate) = door();
    let (mut c, mut other) = (Client::connect(door), Client::connect(door));
    c.call(&Request::AddWatch(AddWatchRequest { path: "/hot", mode: 0 }));
    let first = c.ask(&get("/cold/a"));
    gate.wait_for(1);
    let (write, second) = (c.ask(&set("/hot", b"2")), c.ask(&get("/hot")));
    // It is applied before the first reply, which shows an older state. So its event follows that reply.
    assert_eq!(other.call(&set("/hot", b"3")).0, 0);
    gate.open();
    assert_eq!(data(&c.answer(first).1), b"A");
    assert!(c.events.is_empty(), "{:?} came before the reply", c.events);
    assert_eq!(c.answer(write).0, 0);
    let shown = data(&c.answer(second).1);
    assert!(shown == b"2" || shown == b"3");
    assert_eq!(c.told().len(), 2, "one for each write");
}

#[test]
fn a_watch_stays_only_if_its_read_is_answered() {
    let (door, gate) = door();
    let (mut c, mut other) = (Client::connect(door), Client::connect(door));
    let asked = [
        c.ask(&Request::GetData(read("/cold/none", true))),
        c.ask(&Request::GetChildren(read("/cold/none", true))),
        c.ask(&Request::Exists(read("/cold/later", true))),
        c.ask(&Request::GetData(read("/cold/a", true))),
    ];
    gate.wait_for(1);
    gate.open();
    let absent = ErrorCode::NoNode.number();
    assert_eq!(asked.map(|xid| c.answer(xid).0), [absent, absent, absent, 0]);
    for path in ["/cold/none", "/cold/later"] {
        assert_eq!(other.create(path, b""), 0);
    }
    assert_eq!(other.call(&set("/cold/a", b"2")).0, 0);
    let expected = [(EventType::NodeCreated, "/cold/later"), (EventType::NodeDataChanged, "/cold/a")];
    let told: Vec<(i32, String)> =
        expected.into_iter().map(|(event, path)| (event.number(), path.to_owned())).collect();
    assert_eq!(c.told(), told);
}

#[test]
fn watches_of_nodes_on_the_disk_are_set_again_beside_everything_else() {
    let (door, gate) = door();
    let (mut c, mut other) = (Client::connect(door), Client::connect(door));
    let again = SetWatchesRequest {
        relative_zxid: 0,
        data: vec!["/cold/a"],
        exist: vec!["/cold/none"],
        child: vec!["/cold/gone"],
    };
    let asked = c.ask(&Request::SetWatches(again));
    gate.wait_for(1);
    assert_eq!(other.call(&set("/hot", b"2")).0, 0);
    gate.open();
    assert_eq!(c.answer(asked).0, 0);
    let mut told = std::mem::take(&mut c.events);
    told.sort();
    let changed = (EventType::NodeDataChanged.number(), "/cold/a".to_owned());
    let gone = (EventType::NodeDeleted.number(), "/cold/gone".to_owned());
    let mut expected = vec![changed, gone];
    expected.sort();
    assert_eq!(told, expected);
    assert_eq!(other.create("/cold/none", b""), 0);
    assert_eq!(c.told(), [(EventType::NodeCreated.number(), "/cold/none".to_owned())]);
}

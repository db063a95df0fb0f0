//! Objects with streams of their own: updates, reads, checkpoints and trims of clients that die, on a log that fails.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::ClientId;
use atoll_core::{Decode, DecodeError, Encode};
use atoll_log_apps::counted::CountedLog;
use atoll_log_apps::entry::AppEntry;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{Machine, PlayOptions, Player};
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::{Readers, StoreError};
use atoll_log_apps::streams::*;
use bytes::Bytes;

use crate::model::{Book, Model, Seen, State, Writes};
use crate::store::{SOME_FAULTS, caught};

const OBJECTS: u64 = 3;

/// An object that knows which entries it was told.
#[derive(Debug, Default)]
struct Audited {
    fields: Fields,
    told: Vec<u64>,
}

impl Machine for Audited {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        self.told.push(position);
        self.fields.apply(position, body)
    }

    fn save(&self) -> Bytes {
        (self.fields.save(), self.told.clone()).to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        let (fields, told) = <(Bytes, Vec<u64>)>::from_bytes(state)?;
        self.told = told;
        self.fields.load(fields)
    }
}

/// What a reader had read when an operation ended: the stream, the index, what the object was told, and the counts.
type Audit = (Bytes, u64, Vec<u64>, Played, u64);

fn server(log: &MemoryLog, share: Share) -> Arc<StreamServer> {
    let options = PlayOptions { read_ahead: 3, ..PlayOptions::default() };
    Arc::new(Player::new(Arc::new(log.clone()), StreamIndex::new(share), options))
}

fn shares(log: &MemoryLog, of: u64) -> Vec<Arc<StreamServer>> {
    (0..of).map(|number| server(log, Share { number, of })).collect()
}

fn asked(servers: &[Arc<StreamServer>]) -> Vec<Arc<dyn IndexServer>> {
    servers.iter().map(|server| Arc::new(server.clone()) as Arc<dyn IndexServer>).collect()
}

fn stream(n: u64) -> Bytes {
    format!("o{n}").into()
}

fn key(stream: &[u8], field: &[u8]) -> Bytes {
    [stream, b"/", field].concat().into()
}

fn part(n: u64, field: u64, value: &str) -> (Bytes, Bytes) {
    let writes = vec![(format!("f{field}").into(), Some(Bytes::from(value.to_owned())))];
    (stream(n), FieldWrites { writes }.to_bytes())
}

fn writes_of(parts: &[(Bytes, Bytes)]) -> Writes {
    let of = |(stream, body): &(Bytes, Bytes)| {
        let writes = FieldWrites::from_bytes(body.clone()).unwrap().writes;
        writes.into_iter().map(|(field, value)| (key(stream, &field), value)).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of).collect()
}

fn told<T>(result: Result<T, StreamError>) -> Result<T, StoreError> {
    result.map_err(|error| match error {
        StreamError::NotDone(why) => StoreError::NotDone(why),
        StreamError::Unknown(op) => StoreError::Unknown(op),
        _ => StoreError::Refused("a read of a stream failed"),
    })
}

/// The state of all objects at every index, and the entries of each stream, from what was ever written.
fn replay(ever: &BTreeMap<u64, Bytes>, book: &Book) -> (Model, BTreeMap<Bytes, Vec<u64>>) {
    let (tried, mut streams) = (book.tried(), BTreeMap::<Bytes, Vec<u64>>::new());
    let mut model = Model { states: vec![State::new()], ..Model::default() };
    for position in 0..ever.keys().next_back().map_or(0, |at| at + 1) {
        let mut state = model.states.last().unwrap().clone();
        if let Some(AppEntry::Record { body }) =
            ever.get(&position).map(|d| AppEntry::open(d.clone()).unwrap())
            && let StreamRecord::Update { parts, .. } = StreamRecord::from_bytes(body).unwrap()
        {
            let writes = writes_of(&parts);
            if !tried.contains(&writes) {
                model.wrong.push(format!("AP1 a part of an update is at {position}: {writes:?}"));
            }
            parts.iter().for_each(|(stream, _)| streams.entry(stream.clone()).or_default().push(position));
            for (key, value) in writes.clone() {
                match value {
                    Some(value) => state.insert(key, value),
                    None => state.remove(&key),
                };
            }
            model.committed.insert(position + 1, writes);
        }
        model.states.push(state);
    }
    (model, streams)
}

struct Client {
    id: u64,
    objects: Objects,
    full: Arc<StreamServer>,
    readers: Vec<(ObjectReader<Audited>, Arc<CountedLog>)>,
    book: Book,
    audits: Arc<Mutex<Vec<Audit>>>,
}

impl Client {
    fn new(
        log: &MemoryLog,
        servers: &[Arc<StreamServer>],
        full: Arc<StreamServer>,
        id: u64,
        book: Book,
    ) -> Self {
        let reader = |n| {
            let counted = Arc::new(CountedLog::new(Arc::new(log.clone())));
            let reader = ObjectReader::new(counted.clone(), asked(servers), stream(n), Audited::default());
            (reader.in_pages_of(2), counted)
        };
        let objects = Objects::new(Arc::new(log.clone()), ClientId(id));
        Client {
            id,
            objects,
            full,
            readers: (0..OBJECTS).map(reader).collect(),
            book,
            audits: Arc::default(),
        }
    }

    async fn run(mut self, seed: u64, ops: u64) {
        let mut dice = Dice::new(seed * 1000 + self.id);
        for n in 0..ops {
            let some = dice.below(OBJECTS) as usize;
            match dice.below(20) {
                0..9 => self.update(&mut dice, n).await,
                9..15 => self.read(some).await,
                15..18 => self.read_all().await,
                18 => self.checkpoint(some).await,
                // Whatever fails, the next one continues.
                _ => drop(self.objects.trim(&self.full, &Readers::default()).await),
            }
            self.audit();
        }
    }

    async fn update(&mut self, dice: &mut Dice, n: u64) {
        let (first, count, value) = (dice.below(OBJECTS), 1 + dice.below(2), format!("c{}-{n}", self.id));
        let parts: Vec<_> = (0..count).map(|n| part((first + n) % OBJECTS, dice.below(2), &value)).collect();
        let (begin, writes) = (self.book.now(), writes_of(&parts));
        self.book.tries(&writes);
        let result = told(self.objects.update(parts).await);
        self.book.saw(begin, Seen::Put { writes, result });
    }

    fn values(&self, of: std::ops::Range<usize>) -> (Vec<Bytes>, Vec<Option<Bytes>>) {
        let fields = [&b"f0"[..], b"f1"];
        let readers = self.readers[of].iter().map(|(reader, _)| reader);
        let all = readers.flat_map(|reader| {
            fields.map(|field| (key(reader.stream(), field), reader.object().0.fields.get(field).cloned()))
        });
        all.unzip()
    }

    async fn read(&mut self, n: usize) {
        let begin = self.book.now();
        let result = told(self.readers[n].0.sync().await);
        let (keys, values) = self.values(n..n + 1);
        self.book.saw(begin, Seen::Get { keys, result: result.map(|index| (index, values)) });
    }

    async fn read_all(&mut self) {
        let begin = self.book.now();
        let mut all: Vec<_> = self.readers.iter_mut().map(|(reader, _)| reader).collect();
        let result = told(read_together(&mut all).await);
        let (keys, values) = self.values(0..OBJECTS as usize);
        self.book.saw(begin, Seen::Get { keys, result: result.map(|index| (index, values)) });
    }

    async fn checkpoint(&mut self, n: usize) {
        let reader = &mut self.readers[n].0;
        if reader.sync().await.is_ok() {
            let (object, index) = reader.object();
            drop(self.objects.checkpoint(reader.stream().clone(), index, object.save()).await);
        }
    }

    fn audit(&self) {
        let of = |(reader, counted): &(ObjectReader<Audited>, Arc<CountedLog>)| {
            let (object, index) = reader.object();
            (reader.stream().clone(), index, object.told.clone(), reader.played(), counted.entries())
        };
        self.audits.lock().unwrap().extend(self.readers.iter().map(of));
    }
}

/// apps-AP6: an object was told exactly the entries of its stream, in order, and nothing else was read for it.
fn judge(audits: &[Audit], streams: &BTreeMap<Bytes, Vec<u64>>, wrong: &mut Vec<String>) {
    for (stream, index, told, played, entries) in audits {
        let all = streams.get(stream).map_or(&[][..], |all| &all[..]);
        let due: Vec<u64> = all.iter().copied().filter(|position| position < index).collect();
        if *told != due {
            wrong.push(format!("AP6 at {index}, {stream:?} was told {told:?}; its entries are {due:?}"));
        }
        if played.foreign > 0 {
            wrong.push(format!("AP6 a reader of {stream:?} read {} entries of others", played.foreign));
        }
        // Reads that failed halfway are repeated.
        if *entries < played.delivered + played.loaded {
            wrong.push(format!("AP6 a reader of {stream:?} read {entries} entries: {played:?}"));
        }
    }
}

/// Runs clients at two replicas of each share of the index, and returns what is wrong.
fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let (log, book, mut dice) = (MemoryLog::new(seed, faults), Book::default(), Dice::new(seed));
    let servers = [shares(&log, 2), shares(&log, 2)];
    let full = server(&log, Share::ALL);
    let (mut clients, mut audits) = (Clients::default(), Vec::new());
    for id in 1..=4 {
        let client = Client::new(&log, &servers[id as usize % 2], full.clone(), id, book.clone());
        audits.push(client.audits.clone());
        clients.start(client.run(seed, 12));
    }
    clients.run(&mut dice, crashes);
    log.settle();
    // A client that begins now, at servers that begin now, reads the same.
    let fresh = shares(&log, 2);
    let mut last = Client::new(&log, &fresh, full.clone(), 999, book.clone());
    run(last.read_all());
    last.audit();
    audits.push(last.audits.clone());
    let mut wrong = Vec::new();
    let all = servers.iter().chain([&fresh]);
    let hashes: Vec<Vec<_>> = all
        .map(|some| {
            some.iter().map(|one| run(one.play()).map(|_| one.hash()).map_err(|e| e.to_string())).collect()
        })
        .collect();
    if hashes.iter().any(|some| *some != hashes[0] || some.iter().any(Result::is_err)) {
        wrong.push(format!("AP3 index servers differ: {hashes:?}"));
    }
    let (model, streams) = replay(&log.ever(), &book);
    wrong.extend(model.judge(&book));
    audits.iter().for_each(|some| judge(&some.lock().unwrap(), &streams, &mut wrong));
    wrong
}

#[test]
fn objects_of_clients_that_never_fail_have_one_order() {
    for seed in 0..150 {
        assert_eq!(round(seed, Faults::default(), 0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn objects_of_clients_that_die_anywhere_have_one_order() {
    for seed in 0..300 {
        assert_eq!(round(seed, SOME_FAULTS, 2), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_streams_are_found() {
    for mutant in [
        mutants::APPS_V1,
        mutants::APPS_V2,
        mutants::APPS_V3,
        mutants::APPS_V4,
        mutants::APPS_V5,
        mutants::APPS_V6,
    ] {
        let found = caught(mutant, 300, |seed| round(seed, SOME_FAULTS, 2));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

/// A reader of one object among many reads the entries of that object, and no others.
#[test]
fn a_reader_reads_its_own_stream_only() {
    let log = MemoryLog::new(1, Faults::default());
    let objects = Objects::new(Arc::new(log.clone()), ClientId(1));
    for n in 0..200 {
        run(objects.update(vec![part(n % 20, 0, "x")])).unwrap();
    }
    run(objects.update(vec![part(3, 1, "both"), part(4, 1, "both")])).unwrap();
    let servers = shares(&log, 3);
    let counted = Arc::new(CountedLog::new(Arc::new(log.clone())));
    let mut reader = ObjectReader::new(counted.clone(), asked(&servers), stream(3), Audited::default());
    assert_eq!(run(reader.sync()), Ok(201));
    assert_eq!(reader.played(), Played { delivered: 11, loaded: 0, foreign: 0 });
    assert_eq!(counted.entries(), 11);
    let mine: Vec<u64> = (0..10).map(|n| 3 + 20 * n).chain([200]).collect();
    assert_eq!(reader.object().0.told, mine);
    // A checkpoint bounds what the next one reads.
    run(objects.checkpoint(stream(3), 201, reader.object().0.save())).unwrap();
    run(objects.update(vec![part(3, 0, "after")])).unwrap();
    let counted = Arc::new(CountedLog::new(Arc::new(log.clone())));
    let mut late = ObjectReader::new(counted.clone(), asked(&servers), stream(3), Audited::default());
    assert_eq!(run(late.sync()), Ok(203));
    assert_eq!((late.played().delivered, late.played().loaded, counted.entries()), (1, 1, 2));
    assert_eq!(late.object().0.told, [mine, vec![202]].concat());
}

/// The prefix goes once every stream has a checkpoint above it, and not before.
#[test]
fn a_prefix_is_trimmed_once_every_stream_has_passed_it() {
    let log = MemoryLog::new(1, Faults::default());
    let objects = Objects::new(Arc::new(log.clone()), ClientId(1));
    for n in 0..30 {
        run(objects.update(vec![part(n % 3, n % 2, &format!("v{n}"))])).unwrap();
    }
    let full = server(&log, Share::ALL);
    assert_eq!(run(objects.trim(&full, &Readers::default())), Ok(0), "no stream has a checkpoint");
    let shares = asked(std::slice::from_ref(&full));
    let mut before = Vec::new();
    for n in 0..3 {
        let mut reader =
            ObjectReader::new(Arc::new(log.clone()), shares.clone(), stream(n), Audited::default());
        run(reader.sync()).unwrap();
        run(objects.checkpoint(stream(n), reader.object().1, reader.object().0.save())).unwrap();
        let expected = [1, 2, 30][n as usize];
        assert_eq!(
            run(objects.trim(&full, &Readers::default())),
            Ok(expected),
            "after {} checkpoints",
            n + 1
        );
        before.push(reader.object().0.save());
    }
    // A server that begins now never sees what is gone.
    let fresh = server(&log, Share::ALL);
    run(fresh.play()).unwrap();
    assert_eq!(fresh.hash(), full.hash());
    for (n, saved) in (0..3).zip(before) {
        let shares = asked(std::slice::from_ref(&fresh));
        let mut reader = ObjectReader::new(Arc::new(log.clone()), shares, stream(n), Audited::default());
        run(reader.sync()).unwrap();
        assert_eq!(reader.object().0.save(), saved);
    }
    let some = server(&log, Share { number: 0, of: 2 });
    assert!(matches!(run(objects.trim(&some, &Readers::default())), Err(StreamError::Refused(_))));
}

#[test]
fn limits_are_checked_before_anything_is_appended() {
    let log = MemoryLog::new(1, Faults::default());
    let objects = Objects::new(Arc::new(log.clone()), ClientId(1));
    let many = (0..=MAX_STREAMS as u64).map(|n| part(n, 0, "x")).collect();
    let long = vec![(Bytes::from(vec![b'x'; MAX_STREAM_BYTES + 1]), Bytes::new())];
    let large = vec![(stream(0), Bytes::from(vec![0; MAX_UPDATE_BYTES]))];
    for bad in [
        vec![],
        vec![(Bytes::new(), Bytes::new())],
        vec![part(1, 0, "x"), part(1, 1, "y")],
        many,
        long,
        large,
    ] {
        assert!(matches!(run(objects.update(bad)), Err(StreamError::Refused(_))));
    }
    let state = Bytes::from(vec![0; MAX_STATE_BYTES + 1]);
    assert!(matches!(run(objects.checkpoint(stream(0), 0, state)), Err(StreamError::Refused(_))));
    assert_eq!(run(log.tail()), Ok(0));
}

/// A server that is behind refuses to answer, and a checkpoint that is older than another one changes nothing.
#[test]
fn a_server_knows_how_far_it_is() {
    let log = MemoryLog::new(1, Faults::default());
    let objects = Objects::new(Arc::new(log.clone()), ClientId(1));
    for n in 0..6 {
        run(objects.update(vec![part(0, 0, &format!("v{n}"))])).unwrap();
    }
    let server = Arc::new(server(&log, Share::ALL));
    let ask = |from, at_least, max| run(server.ask(Ask { stream: stream(0), from, at_least, max }));
    assert_eq!(ask(0, 0, 10), Ok(Answer { complete_below: 0, ..Answer::default() }));
    log.cut_off(true);
    assert!(matches!(ask(0, 6, 10), Err(StreamError::NotDone(_))));
    log.cut_off(false);
    assert_eq!(ask(0, 6, 2), Ok(Answer { saved: None, positions: vec![0, 1], complete_below: 2 }));
    assert_eq!(ask(4, 6, 2), Ok(Answer { saved: None, positions: vec![4, 5], complete_below: 6 }));
    assert_eq!(ask(0, 9, 2), Err(StreamError::Behind { applied: 6, wanted: 9 }));
    run(objects.checkpoint(stream(0), 4, Bytes::from_static(b"new"))).unwrap();
    run(objects.checkpoint(stream(0), 2, Bytes::from_static(b"old"))).unwrap();
    let saved = Some(Saved { position: 6, index: 4 });
    assert_eq!(ask(0, 8, 9), Ok(Answer { saved, positions: vec![4, 5], complete_below: 8 }));
    assert_eq!(ask(4, 8, 9), Ok(Answer { saved: None, positions: vec![4, 5], complete_below: 8 }));
    // Nobody knows the state above a checkpoint's own entry: it is no checkpoint.
    run(objects.checkpoint(stream(0), 100, Bytes::from_static(b"wrong"))).unwrap();
    assert_eq!(ask(0, 9, 9), Ok(Answer { saved, positions: vec![4, 5], complete_below: 9 }));
}

//! A log and a state that are made up, a store in memory that may fail, and an oracle: a plain reader of the backup that makes the state
//! again.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use atoll_backup::{
    Backup, BackupError, Entry, Folder, LogPos, Moment, Nap, Shipper, Source, SourceError, StateAt,
    StatePiece, StateSnapshot, take,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::BoxFuture;
use atoll_object_store::{Inline, Put, Store, StoreError, Tag};
use bytes::Bytes;
use object_store::memory::InMemory;

pub const ID: u128 = 77;

/// The time of the entry at a position.
pub fn time_of(at: u64) -> u64 {
    1_000_000 + at * 10
}

pub fn entry(at: u64) -> Entry {
    let op = OpId { client: ClientId(1), seq: at + 1 };
    Entry { op, time_ms: time_of(at), operated: 0, payload: format!("entry {at}").into_bytes().into() }
}

/// The state is the list of payloads; this is its hash.
pub fn hash(payloads: &[Bytes]) -> u128 {
    let all = payloads.iter().fold((0u128, 1u128), |(sum, factor), payload| {
        let one = u128::from(crc32c(payload)) + payload.len() as u128;
        (sum.wrapping_mul(31).wrapping_add(one.wrapping_mul(factor)), factor.wrapping_add(2))
    });
    all.0
}

fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(17, |sum: u32, byte| sum.wrapping_mul(131).wrapping_add(u32::from(*byte)))
}

fn payloads(to: u64) -> Vec<Bytes> {
    (0..to).map(|at| entry(at).payload).collect()
}

/// A replica that stands at `at`, has committed `lag` fewer entries, and whose log begins at `trim`.
#[derive(Debug, Default)]
pub struct Toy {
    pub at: AtomicU64,
    pub lag: u64,
    pub trim: AtomicU64,
}

impl Toy {
    pub fn at(at: u64) -> Self {
        Toy { at: at.into(), lag: 3, trim: 0.into() }
    }

    pub fn go_to(&self, at: u64) {
        self.at.store(at, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }
}

impl Source for Toy {
    fn at(&self) -> Option<StateAt> {
        Some(StateAt { below: LogPos(self.now()), hash: hash(&payloads(self.now())) })
    }

    fn read(&self, range: Range<LogPos>, _: usize) -> BoxFuture<'_, Result<Vec<Entry>, SourceError>> {
        let trim = self.trim.load(Ordering::Relaxed);
        let read = match range.start.0 < trim {
            true => Err(SourceError::Trimmed(LogPos(trim))),
            // At most seven at a time.
            false => Ok((range.start.0..range.end.0.min(range.start.0 + 7)).map(entry).collect()),
        };
        Box::pin(std::future::ready(read))
    }

    fn snapshot(&self) -> Result<Box<dyn StateSnapshot>, SourceError> {
        let below = self.now().saturating_sub(self.lag);
        Ok(Box::new(ToyState { below, given: 0 }))
    }
}

struct ToyState {
    below: u64,
    given: u64,
}

impl StateSnapshot for ToyState {
    fn at(&self) -> StateAt {
        StateAt { below: LogPos(self.below), hash: hash(&payloads(self.below)) }
    }

    fn time_ms(&self) -> u64 {
        self.below.checked_sub(1).map_or(0, time_of)
    }

    fn next(&mut self) -> BoxFuture<'_, Result<StatePiece, SourceError>> {
        let last = self.given >= self.below;
        let bytes = if last { Bytes::new() } else { entry(self.given).payload };
        self.given += 1;
        Box::pin(std::future::ready(Ok(StatePiece { bytes, keys: u64::from(!last), last })))
    }
}

/// How looks lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    /// What was put since is not shown.
    HidesPuts,
    /// What was deleted since is shown, too.
    HidesAll,
}

/// What looks show, and how they lag.
type Looks = Option<(BTreeSet<String>, Lag)>;

/// A store in memory. Some of its answers are lost, whether the request was carried out or not.
#[derive(Clone, Debug, Default)]
pub struct Shaky {
    memory: Arc<InMemory>,
    /// Of so many requests, about one loses its answer; 0: none.
    pub loses_one_in: Arc<AtomicU64>,
    drawn: Arc<AtomicU64>,
    pub down: Arc<std::sync::atomic::AtomicBool>,
    /// The names of all objects that were put.
    pub names: Arc<Mutex<Vec<String>>>,
    /// The objects that looks show, and whether they show those of them that are deleted by now. None: those that are there.
    pub looks_at: Arc<Mutex<Looks>>,
    /// The name of an object whose next answer is altered.
    pub alters_next: Arc<Mutex<Option<String>>>,
}

impl Shaky {
    fn inner(&self) -> Inline {
        Inline::new(self.memory.clone())
    }

    fn draw(&self) -> u64 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(0x9e37_79b9);
        let mixed = n.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    /// Carries out a request, or loses it, or its answer.
    fn carry<T: Send + 'static>(
        &self,
        request: BoxFuture<'static, Result<T, StoreError>>,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        if self.down.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(StoreError::NoAnswer)));
        }
        let (one_in, drawn) = (self.loses_one_in.load(Ordering::Relaxed), self.draw());
        match (one_in > 0 && drawn % one_in.max(1) == 0, drawn & 1 << 40 == 0) {
            (false, _) => request,
            (true, true) => Box::pin(std::future::ready(Err(StoreError::NoAnswer))),
            (true, false) => Box::pin(async move {
                let _ = request.await;
                Err(StoreError::NoAnswer)
            }),
        }
    }

    /// Changes an object, as rot or a stranger does; None deletes it.
    pub fn alter(&self, name: &str, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) {
        let inner = self.inner();
        let found = wait(inner.get(name.to_owned(), None)).unwrap().unwrap();
        match change(found.to_vec()) {
            Some(bytes) => {
                wait(inner.put(name.to_owned(), bytes.into(), Put::Replace)).unwrap();
            }
            None => wait(inner.delete(vec![name.to_owned()])).unwrap(),
        }
    }

    /// From now on, looks lag behind, or not any more.
    pub fn looks_lag(&self, lag: Option<Lag>) {
        let names = self.names.lock().unwrap().clone();
        let there = || names.into_iter().filter(|name| self.has(name)).collect();
        *self.looks_at.lock().unwrap() = lag.map(|lag| (there(), lag));
    }

    pub fn has(&self, name: &str) -> bool {
        wait(self.inner().get(name.to_owned(), None)).unwrap().is_some()
    }
}

impl Store for Shaky {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.names.lock().unwrap().push(name.clone());
        self.carry(self.inner().put(name, bytes, how))
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        let altered = self.alters_next.lock().unwrap().take_if(|next| *next == name).is_some();
        let got = self.carry(self.inner().get(name, most));
        Box::pin(async move {
            let got = got.await?;
            Ok(got.map(|bytes| if altered { bytes.slice(..bytes.len() - 1) } else { bytes }))
        })
    }

    fn look(&self, name: String) -> BoxFuture<'static, Result<bool, StoreError>> {
        let lag = self.looks_at.lock().unwrap().as_ref().map(|(names, lag)| (names.contains(&name), *lag));
        let got = self.carry(self.inner().get(name, Some(1)));
        Box::pin(async move {
            let there = got.await?.is_some();
            Ok(lag.map_or(there, |(was, lag)| was && (there || lag == Lag::HidesAll)))
        })
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        self.carry(self.inner().get_tagged(name))
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.carry(self.inner().delete(names))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// Runs a future that never waits.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return done;
        }
    }
    panic!("a future over a store in memory waits");
}

pub fn folder(store: &Shaky) -> Folder {
    let nap: Nap = Arc::new(|_| Box::pin(std::future::ready(())));
    Folder::with_store(Arc::new(store.clone()), "some/place", "reef", "db", nap)
}

pub fn shipper(store: &Shaky) -> Shipper {
    wait(Shipper::open(folder(store), ID, 1)).unwrap()
}

/// One node's round: follows, ships, and with `snapshot`, ships one.
pub fn round(
    shipper: &mut Shipper,
    store: &Shaky,
    toy: &Toy,
    snapshot: bool,
    now_ms: u64,
) -> Result<(), BackupError> {
    wait(async {
        shipper.follow().await?;
        shipper.ship(toy, now_ms, now_ms).await?;
        if snapshot {
            let taken = take(&folder(store), ID, shipper.next_snapshot(), toy, now_ms).await?;
            shipper.add(&taken, false, now_ms).await?;
            shipper.ship(toy, now_ms, now_ms).await?;
        }
        Ok(())
    })
}

/// Makes the state at a moment again, with every hash compared; its payloads.
pub fn restore(store: &Shaky, moment: Moment) -> Result<Vec<Bytes>, String> {
    wait(async {
        let backup = Backup::open(folder(store)).await.map_err(|e| e.to_string())?;
        let snapshot = backup.snapshot_for(moment).map_err(|e| e.to_string())?;
        let mut state = Vec::new();
        for piece in 0..snapshot.head.pieces {
            let pieces = backup.pieces(snapshot, piece).await.map_err(|e| e.to_string())?;
            state.extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        }
        if hash(&state) != snapshot.head.hash || state.len() as u64 != snapshot.head.below.0 {
            return Err("the snapshot differs".to_owned());
        }
        let mut runs = backup.runs(snapshot);
        let mut chosen = None;
        let is_there = |state: &[Bytes]| matches!(moment, Moment::Position(to) if state.len() as u64 == to.0);
        while !is_there(&state)
            && let Some((run, entries)) = runs.next().await.map_err(|e| e.to_string())?
        {
            for entry in entries {
                let over = match moment {
                    Moment::Latest => false,
                    Moment::Position(to) => state.len() as u64 >= to.0,
                    Moment::Time(ms) => entry.time_ms > ms,
                };
                if over && chosen.is_none() {
                    chosen = Some(state.len());
                }
                state.push(entry.payload);
            }
            if run.hash.is_some_and(|expected| expected != hash(&state)) {
                return Err(format!("the hash below {} differs", run.to));
            }
            if chosen.is_some() && run.hash.is_some() {
                break;
            }
        }
        state.truncate(chosen.unwrap_or(state.len()));
        Ok(state)
    })
}

/// The state that every replica has below a position.
pub fn state_below(at: u64) -> Vec<Bytes> {
    payloads(at)
}

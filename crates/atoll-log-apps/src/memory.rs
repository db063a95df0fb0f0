//! A log in memory for tests, with faults, and an executor that runs clients in chosen orders. Only with the feature `testing`.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use atoll_contract::Unavailability;
use atoll_core::BoxFuture;
use atoll_core::sync::lock;

use crate::shared_log::{LogError, Place, SharedLog, Slot};

/// A small generator of numbers that look random.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Returns a generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// How often operations fail, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// An append takes effect, but its answer is lost.
    pub lost_answers: u64,
    /// An append takes a position, and its answer is lost before it writes there: a hole.
    pub holes: u64,
    /// An append takes a position and its answer is lost; the write arrives later, unless the hole is filled before.
    pub late: u64,
    /// An operation is refused.
    pub refused: u64,
}

#[derive(Debug)]
struct Space {
    slots: BTreeMap<u64, Slot>,
    /// What was ever written, for oracles: trims leave it.
    ever: BTreeMap<u64, Bytes>,
    /// The next position that the sequencer gives out.
    next: u64,
    /// The position above every written one.
    written: u64,
    /// Everything below is trimmed.
    prefix: u64,
    late: Vec<(u64, Bytes)>,
    faults: Faults,
    dice: Dice,
    is_cut_off: bool,
    shards: u64,
}

/// A log in memory. Clones share it. Every operation yields before and after it takes effect, so that a test can stop a client there.
#[derive(Clone, Debug)]
pub struct MemoryLog(Arc<Mutex<Space>>);

/// Lets the executor run another client.
pub async fn step() {
    let mut is_second = false;
    poll_fn(|_| match std::mem::replace(&mut is_second, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl MemoryLog {
    /// Returns an empty log.
    pub fn new(seed: u64, faults: Faults) -> Self {
        MemoryLog(Arc::new(Mutex::new(Space {
            slots: BTreeMap::new(),
            ever: BTreeMap::new(),
            next: 0,
            written: 0,
            prefix: 0,
            late: Vec::new(),
            faults,
            dice: Dice::new(seed),
            is_cut_off: false,
            shards: 1,
        })))
    }

    /// Spreads the positions of the log over so many shards, at least 1.
    #[must_use]
    pub fn with_shards(self, shards: u64) -> Self {
        lock(&self.0).shards = shards.max(1);
        self
    }

    /// Ends all faults, and lets every late write arrive now.
    pub fn settle(&self) {
        let mut space = lock(&self.0);
        (space.faults, space.is_cut_off) = (Faults::default(), false);
        for (position, data) in std::mem::take(&mut space.late) {
            space.write(position, Slot::Data(data));
        }
    }

    /// Cuts the log off: every operation is refused until it is connected again.
    pub fn cut_off(&self, is_cut_off: bool) {
        lock(&self.0).is_cut_off = is_cut_off;
    }

    /// Returns how many entries it holds.
    pub fn held(&self) -> usize {
        lock(&self.0).slots.values().filter(|slot| matches!(slot, Slot::Data(_))).count()
    }

    /// Returns every entry that was ever written, trimmed or not, for oracles.
    pub fn ever(&self) -> BTreeMap<u64, Bytes> {
        lock(&self.0).ever.clone()
    }
}

impl Space {
    /// Returns the shard of a position: neighbours are now in one shard and now in different ones.
    fn shard(&self, position: u64) -> u32 {
        ((position / 2 + position / 5) % self.shards) as u32
    }

    fn get(&self, position: u64) -> Slot {
        match self.slots.get(&position) {
            _ if position < self.prefix => Slot::Trimmed,
            Some(slot) => slot.clone(),
            None => Slot::Unwritten,
        }
    }

    fn write(&mut self, position: u64, slot: Slot) -> bool {
        let is_free = self.get(position) == Slot::Unwritten;
        if is_free {
            if let Slot::Data(data) = &slot {
                self.ever.insert(position, data.clone());
            }
            self.slots.insert(position, slot);
            self.written = self.written.max(position + 1);
            self.next = self.next.max(position + 1);
        }
        is_free
    }

    fn rolls(&mut self, percent: u64) -> bool {
        self.dice.below(100) < percent
    }

    /// Refuses an operation now and then, and lets late writes arrive.
    fn begin(&mut self) -> Result<(), LogError> {
        if !self.late.is_empty() && self.rolls(20) {
            let at = self.dice.below(self.late.len() as u64) as usize;
            let (position, data) = self.late.swap_remove(at);
            self.write(position, Slot::Data(data));
        }
        if self.is_cut_off || self.rolls(self.faults.refused) {
            return Err(LogError::Unavailable(Unavailability::NoQuorum));
        }
        Ok(())
    }

    fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

impl SharedLog for MemoryLog {
    fn append(&self, data: Bytes) -> BoxFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            step().await;
            loop {
                let position = {
                    let mut space = lock(&self.0);
                    space.begin()?;
                    space.take()
                };
                step().await;
                {
                    let mut space = lock(&self.0);
                    let faults = space.faults;
                    if space.rolls(faults.holes) {
                        return Err(LogError::Unknown(Some(position)));
                    }
                    if space.rolls(faults.late) {
                        space.late.push((position, data));
                        return Err(LogError::Unknown(None));
                    }
                    if !space.write(position, Slot::Data(data.clone())) {
                        continue;
                    }
                    if space.rolls(faults.lost_answers) {
                        return Err(LogError::Unknown(Some(position)));
                    }
                }
                step().await;
                return Ok(position);
            }
        })
    }

    fn read(&self, position: u64) -> BoxFuture<'_, Result<Slot, LogError>> {
        Box::pin(async move {
            step().await;
            let slot = {
                let mut space = lock(&self.0);
                space.begin()?;
                space.get(position)
            };
            step().await;
            Ok(slot)
        })
    }

    fn fill(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            step().await;
            let mut space = lock(&self.0);
            space.begin()?;
            space.write(position, Slot::Junk);
            Ok(())
        })
    }

    fn trim(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            step().await;
            let mut space = lock(&self.0);
            space.begin()?;
            if space.get(position) == Slot::Unwritten {
                space.write(position, Slot::Junk);
            }
            space.slots.insert(position, Slot::Trimmed);
            Ok(())
        })
    }

    fn trim_prefix(&self, to: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            step().await;
            let mut space = lock(&self.0);
            space.begin()?;
            space.prefix = space.prefix.max(to);
            space.slots = space.slots.split_off(&to);
            (space.written, space.next) = (space.written.max(to), space.next.max(to));
            Ok(())
        })
    }

    fn tail(&self) -> BoxFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            step().await;
            let tail = {
                let mut space = lock(&self.0);
                space.begin()?;
                space.written
            };
            step().await;
            Ok(tail)
        })
    }

    fn append_to_shard(&self, data: Bytes) -> BoxFuture<'_, Result<Place, LogError>> {
        Box::pin(async move {
            let position = self.append(data).await?;
            Ok(Place { position, shard: lock(&self.0).shard(position) })
        })
    }

    fn read_place(&self, place: Place) -> BoxFuture<'_, Result<Slot, LogError>> {
        Box::pin(async move {
            if lock(&self.0).shard(place.position) != place.shard {
                return Err(LogError::NotInShard(place));
            }
            self.read(place.position).await
        })
    }

    fn read_places(&self, from: u64, to: u64) -> BoxFuture<'_, Result<Vec<(Slot, u32)>, LogError>> {
        Box::pin(async move {
            let slots = self.read_range(from, to).await?;
            let space = lock(&self.0);
            Ok((from..).zip(slots).map(|(position, slot)| (slot, space.shard(position))).collect())
        })
    }
}

/// Runs one future to its end.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
    }
}

/// Clients that run in turns. Dropping one is its crash.
#[derive(Default)]
pub struct Clients<'a> {
    running: Vec<(u64, BoxFuture<'a, ()>)>,
    next: u64,
}

impl std::fmt::Debug for Clients<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} clients", self.running.len())
    }
}

impl<'a> Clients<'a> {
    /// Starts a client and returns its number.
    pub fn start(&mut self, client: impl Future<Output = ()> + Send + 'a) -> u64 {
        self.next += 1;
        self.running.push((self.next, Box::pin(client)));
        self.next
    }

    /// Lets a client take one step, chosen by the dice, or crashes it, with this chance out of a thousand. Returns false if none is left.
    pub fn step(&mut self, dice: &mut Dice, crashes: u64) -> bool {
        if self.running.is_empty() {
            return false;
        }
        let at = dice.below(self.running.len() as u64) as usize;
        if dice.below(1000) < crashes {
            drop(self.running.swap_remove(at));
            return true;
        }
        let mut cx = Context::from_waker(Waker::noop());
        if self.running[at].1.as_mut().poll(&mut cx).is_ready() {
            drop(self.running.swap_remove(at));
        }
        true
    }

    /// Runs until no client is left. Panics after far more steps than any test needs.
    pub fn run(&mut self, dice: &mut Dice, crashes: u64) {
        let mut steps = 0u64;
        while self.step(dice, crashes) {
            steps += 1;
            assert!(steps < 2_000_000, "clients make no progress");
        }
    }
}

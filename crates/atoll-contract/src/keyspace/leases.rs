//! Leases on keys, with fencing numbers, over any keyspace (rmwpaxos.md §10). A lease is the value of its key, and changes only through
//! conditional writes, so every engine offers leases with the guarantees of its writes.
//!
//! - **Fencing.** The fencing number of a lease is the version that its grant gave to the key. Versions are never used again, so it rises
//!   with each grant. What the lease protects must refuse numbers that are lower than one it has seen: only this stops a former holder
//!   that is late.
//! - **Expiry.** Nobody compares clocks. A lease has expired for a contender that has watched the version of its key stay the same for
//!   longer than the lease was granted for, by the contender's own monotonic clock. It then takes the key over under the condition that it
//!   still has that version. A step of the clock that is too long does not count: the node may have been paused, or its clock may have
//!   jumped (contracts X22). A lease that nobody contends for does not expire: its holder can still renew it.
//! - **The holder** stops using the lease earlier than contenders take it over: see [`usable_for`].
//!
//! A put or a deletion of the key without these procedures takes the lease away.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, Encode, Env, Reader, Tick};
use bytes::{Bytes, BytesMut};

use super::{Attempt, Change, Changed, Guard, Held, KeyVersion, Keyspace, KeyspaceError, Unavailability};
use crate::entry::{ClientId, OpId};
use crate::mutants;

/// The shortest time for which a lease is granted, in milliseconds.
pub const MIN_LEASE_MS: u64 = 100;
/// The longest time for which a lease is granted, in milliseconds.
pub const MAX_LEASE_MS: u64 = 3_600_000;
/// The longest name of the owner of a lease, in bytes.
pub const MAX_OWNER_BYTES: usize = 128;
/// The most leases that a node watches for their expiry at the same time, for each keyspace.
const MAX_WATCHED: usize = 4096;
/// Clocks may differ by this part in their speed: contenders wait longer by it, and holders stop earlier by it.
const DRIFT: u32 = 8;
/// A step of the clock that is longer than planned by more than this does not count.
const LATE: Duration = Duration::from_millis(250);
/// The value of a key with a lease starts with this.
const MAGIC: &[u8] = b"\0atoll lease 1\0";

/// A granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Rises with every grant for the key. What the lease protects refuses lower numbers.
    pub fencing: u64,
    /// For how long the lease was granted, in milliseconds. See [`usable_for`].
    pub for_ms: u64,
}

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub owner: Bytes,
    /// Its lease.
    pub lease: Lease,
    /// Whether this node has watched the lease for long enough to judge that it has expired. The next contender takes it over.
    pub expired: bool,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lease { fencing, for_ms } = self.lease;
        write!(f, "held by {:?} with the fencing number {fencing}, for {for_ms} ms at a time", self.owner)
    }
}

/// Why there is no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The keyspace did not answer. It says whether something may have happened.
    #[error(transparent)]
    Keys(#[from] KeyspaceError),
    /// Somebody else holds the lease. Nothing was done.
    #[error("the lease is {0}")]
    Taken(Holder),
    /// Nobody holds the lease. Nothing was done.
    #[error("nobody holds the lease on this key")]
    NobodyHolds,
    /// The caller does not hold the lease any more. Nothing was done.
    #[error("the fencing number {given} is not the present one: the lease is {holder}")]
    NotHolder {
        /// The number that the caller gave.
        given: u64,
        /// Who holds the lease.
        holder: Holder,
    },
    /// The key has a value that is no lease. Nothing was done.
    #[error("the key has a value that is no lease")]
    NoLease,
    /// The name of the owner is empty or too long. Nothing was done.
    #[error("the name of the owner has {0} bytes; 1 to {MAX_OWNER_BYTES} are allowed")]
    InvalidOwner(usize),
    /// The time is too short or too long. Nothing was done.
    #[error("a lease for {0} ms; {MIN_LEASE_MS} to {MAX_LEASE_MS} are allowed")]
    InvalidTime(u64),
}

/// Returns for how long its holder may use a lease, from the moment at which it first sent the request for the grant or the renewal, by its
/// own monotonic clock.
pub fn usable_for(for_ms: u64) -> Duration {
    let granted = Duration::from_millis(for_ms);
    granted - granted / DRIFT
}

/// What a key with a lease holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    owner: Bytes,
    for_ms: u64,
    /// The fencing number. None stands for the version of the key: a grant does not know its version before it is done.
    fencing: Option<u64>,
    /// The request that wrote it, by which a repeat is recognised.
    op: OpId,
}

impl Record {
    fn to_value(&self) -> Bytes {
        let mut out = BytesMut::from(MAGIC);
        self.owner.encode(&mut out);
        self.for_ms.encode(&mut out);
        self.fencing.encode(&mut out);
        self.op.encode(&mut out);
        out.freeze()
    }

    fn of(value: &Bytes) -> Option<Record> {
        // The value may share a buffer, and the holder of a lease is kept.
        let mut from = Reader::new(Bytes::copy_from_slice(value.strip_prefix(MAGIC)?));
        let owner = Bytes::decode(&mut from).ok()?;
        let for_ms = u64::decode(&mut from).ok()?;
        let record = Record {
            owner,
            for_ms,
            fencing: Option::decode(&mut from).ok()?,
            op: OpId::decode(&mut from).ok()?,
        };
        let valid = from.left() == 0 && check(&record.owner, record.for_ms).is_ok();
        valid.then_some(record)
    }
}

/// A lease as it is in the keyspace.
struct Found {
    version: KeyVersion,
    record: Record,
}

impl Found {
    fn fencing(&self) -> u64 {
        self.record.fencing.unwrap_or(self.version.0)
    }

    fn lease(&self) -> Lease {
        Lease { fencing: self.fencing(), for_ms: self.record.for_ms }
    }
}

fn check(owner: &[u8], for_ms: u64) -> Result<(), LeaseError> {
    if owner.is_empty() || owner.len() > MAX_OWNER_BYTES {
        return Err(LeaseError::InvalidOwner(owner.len()));
    }
    check_time(for_ms)
}

fn check_time(for_ms: u64) -> Result<(), LeaseError> {
    let valid = (MIN_LEASE_MS..=MAX_LEASE_MS).contains(&for_ms);
    if valid { Ok(()) } else { Err(LeaseError::InvalidTime(for_ms)) }
}

/// For how long this node has watched the version of a lease.
#[derive(Clone, Copy, Debug)]
struct Watched {
    version: KeyVersion,
    counted: Duration,
    needed: Duration,
}

impl Watched {
    fn expired(&self) -> bool {
        self.counted >= self.needed
    }
}

type AllWatched = Arc<Mutex<BTreeMap<Bytes, Watched>>>;

/// The leases of a keyspace, as a node sees them. Cheap to clone. The methods are procedures: call them within one of the node.
#[derive(Clone, Debug)]
pub struct Leases {
    env: Env,
    keyspace: Arc<dyn Keyspace>,
    watched: AllWatched,
}

impl Leases {
    /// Returns the leases of a keyspace.
    pub fn new(env: Env, keyspace: Arc<dyn Keyspace>) -> Self {
        Leases { env, keyspace, watched: Arc::default() }
    }

    /// Takes the lease on a key for an owner, waiting for it for up to `wait`. On return, the grant has the durability of the keyspace. A
    /// repeat with the same `op` finds the grant of the first attempt. An owner that holds the lease already must renew it: it is refused
    /// like anybody else, so two processes with one name do not share a lease.
    ///
    /// # Errors
    /// [`LeaseError::Taken`] if somebody holds it. Waiting for less than the time of the grant is enough if the caller tries again: the
    /// node watches the lease in the meantime.
    pub async fn acquire(
        &self,
        op: OpId,
        key: Bytes,
        (owner, for_ms): (Bytes, u64),
        wait: Duration,
    ) -> Result<Lease, LeaseError> {
        check(&owner, for_ms)?;
        let until = self.env.now().after(wait);
        let value = Record { owner, for_ms, fencing: None, op }.to_value();
        loop {
            let guard = match self.find(&key).await? {
                None => Guard::Absent,
                Some(found) if found.record.op == op => return Ok(found.lease()),
                Some(found) => {
                    let watched = self.watch(&key, &found)?;
                    if !watched.expired() {
                        if self.env.now() >= until {
                            return Err(LeaseError::Taken(self.holder_of(&key, &found)));
                        }
                        self.wait_for_end(&key, &found, until).await;
                        continue;
                    }
                    hit("lease.takes_over");
                    if mutant(mutants::LEASE_BLIND_TAKEOVER) {
                        Guard::Always
                    } else {
                        Guard::Version(found.version)
                    }
                }
            };
            if let Changed::Done(version) = self.write(&key, guard, Change::Put(value.clone())).await? {
                lock(&self.watched).remove(&key);
                return Ok(Lease { fencing: version.0, for_ms });
            }
            hit("lease.lost_race");
        }
    }

    /// Renews the lease that was granted with this fencing number, for the given time from now on.
    ///
    /// # Errors
    /// [`LeaseError::NobodyHolds`] or [`LeaseError::NotHolder`] if it is lost.
    pub async fn renew(&self, op: OpId, key: Bytes, fencing: u64, for_ms: u64) -> Result<Lease, LeaseError> {
        check_time(for_ms)?;
        loop {
            let found = self.find_held(&key, fencing).await?;
            if found.record.op == op {
                return Ok(found.lease());
            }
            let record = Record { owner: found.record.owner, for_ms, fencing: Some(fencing), op };
            let change = Change::Put(record.to_value());
            if let Changed::Done(_) = self.write(&key, Guard::Version(found.version), change).await? {
                return Ok(Lease { fencing, for_ms });
            }
            hit("lease.lost_race");
        }
    }

    /// Gives up the lease that was granted with this fencing number. A repeat, if an earlier attempt may have done it, also succeeds if
    /// nobody holds the lease.
    ///
    /// # Errors
    /// [`LeaseError::NobodyHolds`] or [`LeaseError::NotHolder`] if it is lost.
    pub async fn release(&self, key: Bytes, fencing: u64, repeat: bool) -> Result<(), LeaseError> {
        loop {
            let found = match self.find_held(&key, fencing).await {
                Err(LeaseError::NobodyHolds) if repeat => return Ok(()),
                other => other?,
            };
            if let Changed::Done(_) = self.write(&key, Guard::Version(found.version), Change::Delete).await? {
                return Ok(());
            }
            hit("lease.lost_race");
        }
    }

    /// Returns who holds the lease on a key; linearizable.
    ///
    /// # Errors
    /// [`LeaseError::NobodyHolds`] if nobody does.
    pub async fn holder(&self, key: Bytes) -> Result<Holder, LeaseError> {
        let found = self.find(&key).await?.ok_or(LeaseError::NobodyHolds)?;
        Ok(self.holder_of(&key, &found))
    }

    /// Waits for a while, with this mean.
    #[cfg(feature = "testing")]
    pub async fn pause(&self, mean: Duration) {
        self.env.sleep(self.env.jitter(mean)).await;
    }

    async fn find(&self, key: &Bytes) -> Result<Option<Found>, LeaseError> {
        let Some(Held { version, value }) = self.keyspace.get(key.clone()).await? else { return Ok(None) };
        let record = Record::of(&value).ok_or(LeaseError::NoLease)?;
        Ok(Some(Found { version, record }))
    }

    async fn find_held(&self, key: &Bytes, fencing: u64) -> Result<Found, LeaseError> {
        let found = self.find(key).await?.ok_or(LeaseError::NobodyHolds)?;
        if found.fencing() != fencing {
            let holder = self.holder_of(key, &found);
            return Err(LeaseError::NotHolder { given: fencing, holder });
        }
        Ok(found)
    }

    fn holder_of(&self, key: &Bytes, found: &Found) -> Holder {
        let watched = lock(&self.watched).get(key).copied();
        let expired = watched.is_some_and(|w| w.version == found.version && w.expired());
        Holder { owner: found.record.owner.clone(), lease: found.lease(), expired }
    }

    /// Writes under a name of its own. If the outcome is unknown, the write is repeated under that name.
    async fn write(&self, key: &Bytes, guard: Guard, change: Change) -> Result<Changed, KeyspaceError> {
        let op = OpId { client: ClientId(self.env.random().max(1)), seq: 1 };
        let first = self.keyspace.write(op, Attempt::First, key.clone(), guard.clone(), change.clone()).await;
        let settled = match first {
            Err(KeyspaceError::Unknown { floor, .. }) => {
                self.keyspace.write(op, Attempt::Again(floor), key.clone(), guard, change).await
            }
            other => other,
        };
        match settled {
            // The callers read the key, whatever it was that the first attempt found.
            Err(KeyspaceError::ConditionFailed) => Ok(Changed::Not(None)),
            other => other,
        }
    }

    /// Returns for how long this node has watched a lease, and begins to watch it.
    fn watch(&self, key: &Bytes, found: &Found) -> Result<Watched, LeaseError> {
        let mut all = lock(&self.watched);
        if let Some(known) = all.get(key).filter(|known| known.version == found.version) {
            return Ok(*known);
        }
        if all.len() >= MAX_WATCHED && !all.contains_key(key) {
            // Whoever still wants one of those that have expired begins to watch it again.
            all.retain(|_, watched| !watched.expired());
            if all.len() >= MAX_WATCHED {
                return Err(KeyspaceError::NotDone(Unavailability::Busy).into());
            }
        }
        let granted = Duration::from_millis(found.record.for_ms);
        // One step more, because one jump of the clock by less than what is noticed may have counted.
        let needed = granted + granted / DRIFT + step_of(granted) + LATE;
        let watched = Watched { version: found.version, counted: Duration::ZERO, needed };
        all.insert(key.clone(), watched);
        let (env, all) = (self.env.clone(), self.watched.clone());
        self.env.spawn("lease.watch", Box::pin(count(env, all, key.clone(), watched, step_of(granted))));
        Ok(watched)
    }

    /// Waits until the key of a lease may have changed, this node judges that the lease has expired, or the time is over.
    async fn wait_for_end(&self, key: &Bytes, found: &Found, until: Tick) {
        let step = step_of(Duration::from_millis(found.record.for_ms));
        let mut wait = self.keyspace.wait_change(key.clone(), found.version);
        let mut ended = false;
        loop {
            let watched = lock(&self.watched).get(key).copied();
            let is_watched = watched.is_some_and(|w| w.version == found.version && !w.expired());
            let now = self.env.now();
            if ended || !is_watched || now >= until {
                return;
            }
            let mut sleep = self.env.sleep_until(until.min(now.after(step)));
            let changed = std::future::poll_fn(|cx| {
                if !ended && let Poll::Ready(held) = wait.as_mut().poll(cx) {
                    // Without an answer, the key is read after one step. An engine that cannot watch keys is asked so again and again.
                    ended = true;
                    let version = held.map(|held| held.map_or(KeyVersion(0), |held| held.version));
                    if version.is_ok_and(|version| version != found.version) {
                        return Poll::Ready(true);
                    }
                }
                Pin::new(&mut sleep).poll(cx).map(|()| false)
            });
            if changed.await {
                return;
            }
        }
    }
}

/// Returns how often a node looks at its clock while it watches a lease that was granted for so long.
fn step_of(granted: Duration) -> Duration {
    (granted / 16).clamp(Duration::from_millis(10), LATE)
}

/// Counts the time for which a lease stays the same, until it has expired.
async fn count(env: Env, all: AllWatched, key: Bytes, mut watched: Watched, step: Duration) {
    let mut last = env.now();
    while !watched.expired() {
        env.sleep(step).await;
        let now = env.now();
        let passed = now.since(last);
        last = now;
        if passed > step + LATE && !mutant(mutants::LEASE_TRUSTS_CLOCK) {
            hit("lease.late_step");
            continue;
        }
        watched.counted += passed;
        match lock(&all).get_mut(&key) {
            Some(known) if known.version == watched.version => *known = watched,
            // The lease was renewed, taken over or given up.
            _ => return,
        }
    }
    hit("lease.expired");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(owner: &[u8], for_ms: u64, fencing: Option<u64>) -> Record {
        let op = OpId { client: ClientId(3), seq: 4 };
        Record { owner: Bytes::copy_from_slice(owner), for_ms, fencing, op }
    }

    #[test]
    fn what_users_put_is_no_lease() {
        let value = record(b"a", 1_000, None).to_value();
        assert_eq!(Record::of(&value), Some(record(b"a", 1_000, None)));
        assert_eq!(Record::of(&value.slice(..value.len() - 1)), None, "cut");
        assert_eq!(Record::of(&[&value[..], b"x"].concat().into()), None, "longer");
        assert_eq!(
            Record::of(&record(b"a", MAX_LEASE_MS + 1, None).to_value()),
            None,
            "a time beyond the limit"
        );
        assert_eq!(Record::of(&record(b"", 1_000, None).to_value()), None, "no owner");
        assert_eq!(Record::of(&Bytes::from_static(b"plain")), None);
    }

    #[test]
    fn a_holder_stops_before_a_contender_begins() {
        for for_ms in [MIN_LEASE_MS, 1_000, MAX_LEASE_MS] {
            let granted = Duration::from_millis(for_ms);
            assert!(usable_for(for_ms) < granted && step_of(granted) <= LATE);
        }
    }

    proptest! {
        #[test]
        fn leases_are_read_as_they_were_written(
            owner in prop::collection::vec(any::<u8>(), 1..=MAX_OWNER_BYTES),
            for_ms in MIN_LEASE_MS..=MAX_LEASE_MS,
            fencing in any::<Option<u64>>(),
        ) {
            let record = record(&owner, for_ms, fencing);
            prop_assert_eq!(Record::of(&record.to_value()), Some(record));
        }

        #[test]
        fn any_value_is_a_lease_or_none(rest in prop::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
            let start = if magic { MAGIC } else { b"" };
            let value = Bytes::from([start, &rest[..]].concat());
            if let Some(record) = Record::of(&value) {
                prop_assert!(check(&record.owner, record.for_ms).is_ok());
            }
        }
    }
}

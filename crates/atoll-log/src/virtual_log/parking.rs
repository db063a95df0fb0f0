//! Records that the log must be searched for before they may be appended, and the records that wait behind them. Each client has a line
//! of its own, so a long search holds up only the client that needs it.
//!
//! Searches run in classes, by how far back they begin. A class has one search at a time, and that search serves all of its lines: many
//! clients that come from a dead node share one pass over the end of the log. A search passes over at most sixteen times as many records
//! as its nearest client needs, or over 4,096, whatever other clients ask for.
//!
//! The lock of the lines also orders the lane: records enter the lane while it is held. Otherwise a later record of a client could enter
//! between a search and the records that come from it (X15). The crate `atoll-threads` plays this file (decision 0012).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_contract::entry::ClientId;
use atoll_contract::position::LogPos;
use atoll_core::sync::{Mutex, lock};

/// Positions that every search may pass over, as a power of two.
const NEAREST_BITS: u32 = 12;
/// The factor from one class to the next, as a power of two.
const CLASS_BITS: u32 = 4;

/// How far back a search begins. Bounded by 13, so that a set of classes fits into an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(u8);

impl Class {
    /// The class up to which the lane searches by itself: everybody waits for less than 65,536 records.
    pub(super) const BRIEF: Class = Class(1);

    /// Returns the class of a search from `floor` to `tail`.
    pub(super) fn of(floor: LogPos, tail: LogPos) -> Class {
        let bits = u64::BITS - tail.0.saturating_sub(floor.0).leading_zeros();
        Class(bits.saturating_sub(NEAREST_BITS).div_ceil(CLASS_BITS) as u8)
    }

    fn bit(self) -> u32 {
        1 << self.0
    }
}

/// A record in a line.
pub(super) trait Parkable {
    fn client(&self) -> ClientId;
    /// Returns where the search for the record begins; None if it needs no search.
    fn sought_from(&self) -> Option<LogPos>;
    /// Returns true if an attempt by this node may be in the log.
    fn was_sent(&self) -> bool;
    /// Returns true if the record was never sent, nobody waits for it any more, and it is not bound.
    fn may_go(&self) -> bool;
    /// Notes that a later record of the client was sent, so that this one must not be left out.
    fn bind(&mut self);
}

/// Splits records, which are in the order of each client, into those that can be left out and the others, which keep their order.
///
/// A record that was never sent can be left out once nobody waits for it, unless a later record of its client was sent. That one may get
/// into the log, and the client may send both again elsewhere: the record that was left out would then come after the later one (X15).
pub(super) fn leave_out<T: Parkable>(
    records: impl IntoIterator<Item = T, IntoIter: DoubleEndedIterator>,
) -> (Vec<T>, VecDeque<T>) {
    let (mut gone, mut kept) = (Vec::new(), VecDeque::new());
    let mut sent: BTreeSet<ClientId> = BTreeSet::new();
    for mut record in records.into_iter().rev() {
        if record.was_sent() {
            sent.insert(record.client());
        } else if sent.contains(&record.client()) {
            record.bind();
        }
        if record.may_go() {
            gone.push(record);
        } else {
            kept.push_front(record);
        }
    }
    (gone, kept)
}

#[derive(Debug)]
struct Line<T> {
    /// If no search is under way, the first record needs one.
    waiting: VecDeque<T>,
    /// The highest class of the waiting records.
    class: Class,
    /// Whether earlier records of the client are being searched for.
    away: bool,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line { waiting: VecDeque::new(), class: Class(0), away: false }
    }
}

#[derive(Debug)]
struct Lines<T> {
    of: BTreeMap<ClientId, Line<T>>,
    /// The classes in which a search runs, or is about to start.
    running: u32,
}

/// The lines of all clients. Bounded by the lane's window.
#[derive(Debug)]
pub(super) struct Parking<T>(Mutex<Lines<T>>);

impl<T> Default for Parking<T> {
    fn default() -> Self {
        Parking(Mutex::new(Lines { of: BTreeMap::new(), running: 0 }))
    }
}

impl<T: Parkable> Lines<T> {
    /// Marks the search that a line waits for as running. Returns its class if the caller must start it.
    fn begin(&mut self, client: ClientId) -> Option<Class> {
        let line = self.of.get(&client)?;
        if line.away || self.running & line.class.bit() != 0 {
            return None;
        }
        self.running |= line.class.bit();
        Some(line.class)
    }

    fn push(&mut self, record: T, tail: LogPos) -> Option<Class> {
        let client = record.client();
        let line = self.of.entry(client).or_default();
        if let Some(floor) = record.sought_from() {
            line.class = line.class.max(Class::of(floor, tail));
        }
        line.waiting.push_back(record);
        self.begin(client)
    }

    /// Takes the records at the front of a line that need no search, unless earlier ones are away. Then finds the class of the rest.
    fn advance(&mut self, client: ClientId, tail: LogPos, ready: &mut Vec<T>) -> Option<Class> {
        let line = self.of.get_mut(&client)?;
        if !line.away {
            while let Some(record) = line.waiting.pop_front_if(|r| r.sought_from().is_none()) {
                ready.push(record);
            }
            if line.waiting.is_empty() {
                self.of.remove(&client);
                return None;
            }
        }
        let classes = line.waiting.iter().filter_map(T::sought_from).map(|floor| Class::of(floor, tail));
        line.class = classes.max().unwrap_or(Class(0));
        self.begin(client)
    }

    fn advance_all(&mut self, of: &BTreeSet<ClientId>, tail: LogPos, ready: &mut Vec<T>) -> Vec<Class> {
        of.iter().filter_map(|client| self.advance(*client, tail, ready)).collect()
    }

    /// Notes that nothing of these clients is away any more.
    fn came_back(&mut self, clients: &BTreeSet<ClientId>) {
        for client in clients {
            if let Some(line) = self.of.get_mut(client) {
                line.away = false;
            }
        }
    }
}

impl<T: Parkable> Parking<T> {
    /// Parks the records that need a search, or wait behind one that does, and passes the others to the lane. Returns the classes whose
    /// search the caller must start.
    pub(super) fn enter(
        &self,
        records: Vec<T>,
        tail: impl FnOnce() -> LogPos,
        pass: impl FnOnce(Vec<T>),
    ) -> Vec<Class> {
        let mut lines = lock(&self.0);
        if lines.of.is_empty() && records.iter().all(|r| r.sought_from().is_none()) {
            pass(records);
            return Vec::new();
        }
        let tail = tail();
        let (mut through, mut begin) = (Vec::new(), Vec::new());
        for record in records {
            if record.sought_from().is_none() && !lines.of.contains_key(&record.client()) {
                through.push(record);
            } else {
                begin.extend(lines.push(record, tail));
            }
        }
        pass(through);
        begin
    }

    /// Takes the records for the next search of a class: of each line, those before the first that needs no search. None: the search of
    /// this class has ended.
    pub(super) fn take(&self, class: Class) -> Option<Vec<T>> {
        let mut lines = lock(&self.0);
        let mut taken = Vec::new();
        for line in lines.of.values_mut().filter(|line| !line.away && line.class == class) {
            line.away = true;
            while let Some(record) = line.waiting.pop_front_if(|r| r.sought_from().is_some()) {
                taken.push(record);
            }
        }
        if taken.is_empty() {
            lines.running &= !class.bit();
            return None;
        }
        Some(taken)
    }

    /// Ends a search for these clients: what was not found goes to the lane, and so do the records that arrived meanwhile, up to the next
    /// one that needs a search. Returns the classes whose search the caller must start.
    pub(super) fn release(
        &self,
        clients: &BTreeSet<ClientId>,
        left: Vec<T>,
        tail: LogPos,
        pass: impl FnOnce(Vec<T>),
    ) -> Vec<Class> {
        let mut lines = lock(&self.0);
        let mut ready = left;
        lines.came_back(clients);
        let begin = lines.advance_all(clients, tail, &mut ready);
        pass(ready);
        begin
    }

    /// Puts records that were not searched for back in front of their lines.
    pub(super) fn put_back(
        &self,
        clients: &BTreeSet<ClientId>,
        records: Vec<T>,
        tail: LogPos,
        pass: impl FnOnce(Vec<T>),
    ) -> Vec<Class> {
        let mut lines = lock(&self.0);
        for record in records.into_iter().rev() {
            lines.of.entry(record.client()).or_default().waiting.push_front(record);
        }
        lines.came_back(clients);
        let mut ready = Vec::new();
        let begin = lines.advance_all(clients, tail, &mut ready);
        pass(ready);
        begin
    }

    /// Moves the clients that have a record for which `is_far` holds from the lane to lines of their own, with all their records: those
    /// in `records`, and the later ones that `rest` takes from the lane's queue. `mark` says that a record must be searched for. A client
    /// with a search under way stays, because what is away is newer than its records in the lane.
    pub(super) fn divert(
        &self,
        records: &mut VecDeque<T>,
        tail: LogPos,
        is_far: impl Fn(&T) -> bool,
        mark: impl Fn(&mut T),
        rest: impl FnOnce(&BTreeSet<ClientId>) -> Vec<T>,
    ) -> Vec<Class> {
        let mut clients: BTreeSet<ClientId> = records.iter().filter(|r| is_far(r)).map(T::client).collect();
        if clients.is_empty() {
            return Vec::new();
        }
        let mut lines = lock(&self.0);
        clients.retain(|client| lines.of.get(client).is_none_or(|line| !line.away));
        let (moved, kept) = std::mem::take(records).into_iter().partition(|r| clients.contains(&r.client()));
        *records = kept;
        let moved: VecDeque<T> = moved;
        for mut record in moved.into_iter().chain(rest(&clients)).collect::<Vec<T>>().into_iter().rev() {
            mark(&mut record);
            lines.of.entry(record.client()).or_default().waiting.push_front(record);
        }
        let mut ready = Vec::new();
        let begin = lines.advance_all(&clients, tail, &mut ready);
        records.extend(ready);
        begin
    }

    /// Takes all waiting records of these clients.
    pub(super) fn take_of(&self, clients: &BTreeSet<ClientId>) -> Vec<T> {
        let mut lines = lock(&self.0);
        let mut taken = Vec::new();
        for client in clients {
            if let Some(line) = lines.of.get_mut(client) {
                taken.extend(std::mem::take(&mut line.waiting));
                if !line.away {
                    lines.of.remove(client);
                }
            }
        }
        taken
    }

    /// Removes the waiting records that can be left out ([`leave_out`]). Records that waited behind those go to the lane.
    pub(super) fn tidy(&self, tail: LogPos, pass: impl FnOnce(Vec<T>)) -> (Vec<T>, Vec<Class>) {
        let mut lines = lock(&self.0);
        let (mut gone, mut clients) = (Vec::new(), BTreeSet::new());
        for (client, line) in &mut lines.of {
            if line.waiting.iter().any(T::may_go) {
                let (out, kept) = leave_out(std::mem::take(&mut line.waiting));
                line.waiting = kept;
                gone.extend(out);
                clients.insert(*client);
            }
        }
        let mut ready = Vec::new();
        let begin = lines.advance_all(&clients, tail, &mut ready);
        pass(ready);
        (gone, begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a client, with whether it was sent and whether it is abandoned.
    struct Record(u64, bool, bool, bool);

    impl Parkable for Record {
        fn client(&self) -> ClientId {
            ClientId(self.0)
        }

        fn sought_from(&self) -> Option<LogPos> {
            None
        }

        fn was_sent(&self) -> bool {
            self.1
        }

        fn may_go(&self) -> bool {
            self.2 && !self.1 && !self.3
        }

        fn bind(&mut self) {
            self.3 = true;
        }
    }

    #[test]
    fn what_precedes_a_sent_record_of_its_client_stays() {
        let records = [
            Record(1, false, true, false),
            Record(2, false, true, false),
            Record(1, true, true, false),
            Record(1, false, true, false),
            Record(2, false, false, false),
        ];
        let (gone, kept) = leave_out(records);
        let clients = |records: &mut dyn Iterator<Item = &Record>| records.map(|r| r.0).collect::<Vec<_>>();
        assert_eq!(
            clients(&mut gone.iter()),
            [1, 2],
            "from the back: the last of client 1, the first of client 2"
        );
        assert_eq!(clients(&mut kept.iter()), [1, 1, 2]);
        let bound: Vec<bool> = kept.iter().map(|r| r.3).collect();
        assert_eq!(bound, [true, false, false], "it stays even if its turn comes much later");
    }
}

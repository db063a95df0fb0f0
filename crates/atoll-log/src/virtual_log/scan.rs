//! Searching the log for records that may already be in it (vlog-V2, X16): after a seal, and for a client's retry through another node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::hit;

use super::append::Item;
use super::parking::{Class, Parkable, leave_out};
use super::{LogAppendError, LogError, LogReadError, Shared};
use atoll_contract::entry::{ClientId, Entry, OpId};
use atoll_contract::loglet::{ReadFrom, Unavailability};
use atoll_contract::position::LogPos;

/// Bytes per read of a scan.
const PAGE_BYTES: usize = 1024 * 1024;
/// Attempts to read the first entry without a good copy. Each of the entries right after it gets one attempt.
const DAMAGED_ATTEMPTS: u32 = 5;
/// First pause after a failed read.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest such pause.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// How often a search looks for records that nobody waits for any more.
const TIDY_EVERY: Duration = Duration::from_millis(100);

/// A search of the log for the names of records.
struct Search {
    /// Where each record was found.
    found: BTreeMap<OpId, Option<LogPos>>,
    unseen: usize,
    at: LogPos,
    end: LogPos,
    /// Positions below this were trimmed.
    trimmed: LogPos,
    /// The last position without a good copy.
    damaged: Option<(LogPos, String)>,
    failures: u32,
    pause: Duration,
}

impl Search {
    /// Returns the search for those records that may be below `end`; None if there are none.
    fn below(end: LogPos, items: &[Item]) -> Option<Search> {
        let sought = || items.iter().filter(|i| i.may_be_below(end));
        let at = sought().filter_map(|i| i.since).min()?;
        let found: BTreeMap<OpId, Option<LogPos>> = sought().map(|i| (i.op, None)).collect();
        let (unseen, trimmed, damaged, failures) = (found.len(), LogPos::ZERO, None, 0);
        Some(Search { found, unseen, at, end, trimmed, damaged, failures, pause: PAUSE })
    }

    fn saw(&mut self, entries: &[Entry]) {
        for (i, entry) in entries.iter().enumerate() {
            if let Some(slot) = self.found.get_mut(&entry.op)
                && slot.is_none()
            {
                *slot = Some(self.at.plus(i as u64));
                self.unseen -= 1;
            }
        }
    }

    /// Drops the names of records that have left the search.
    fn keep(&mut self, items: &[Item]) {
        let names: BTreeSet<OpId> = items.iter().map(|i| i.op).collect();
        self.found.retain(|op, _| names.contains(op));
        self.unseen = self.found.values().filter(|at| at.is_none()).count();
    }

    /// Returns the position after an unreadable one, or the start of the log if there is none.
    fn after_damage(&self) -> LogPos {
        self.damaged.as_ref().map_or(LogPos::ZERO, |(at, _)| at.plus(1))
    }
}

/// Clients with a record that was refused as outdated, and where the log was trimmed.
#[must_use = "later records of these clients must be refused too"]
#[derive(Default)]
pub(super) struct Outdated {
    clients: BTreeSet<ClientId>,
    trimmed: LogPos,
}

/// Where later records of a client may be than those that were searched for.
pub(super) enum Behind {
    /// In the client's line. What the lane has of this client is older.
    InLine,
    /// In the lane's queue, and in the client's line.
    InLane,
}

impl Parkable for Item {
    fn client(&self) -> ClientId {
        self.op.client
    }

    fn sought_from(&self) -> Option<LogPos> {
        self.seek.then(|| self.since.unwrap_or(LogPos::ZERO))
    }

    fn was_sent(&self) -> bool {
        Item::was_sent(self)
    }

    fn may_go(&self) -> bool {
        Item::may_go(self)
    }

    fn bind(&mut self) {
        self.bound = true;
    }
}

impl Shared {
    /// Starts the searches for parked records of these classes.
    pub(super) fn start_searches(self: &Arc<Self>, classes: Vec<Class>) {
        for class in classes {
            let me = self.clone();
            self.env.spawn("vlog.seek", Box::pin(me.unpark(class)));
        }
    }

    /// Searches for the parked records of a class until none is left. Those that are not in the log go to the lane.
    async fn unpark(self: Arc<Self>, class: Class) {
        let mut pause = PAUSE;
        while let Some(mut sought) = self.parking.take(class) {
            let mut clients: BTreeSet<ClientId> = sought.iter().map(Parkable::client).collect();
            self.leave_out_gone(&mut sought);
            // The check begins after the retry arrived, so everything that was acknowledged to its client before is below the tail.
            let round = self.check();
            let tail = match self.checked(round).await {
                Ok(checked) => checked.tail,
                Err(LogError::Unavailable(_)) => {
                    self.put_back(&clients, sought, LogPos::ZERO);
                    self.env.sleep(self.env.jitter(pause)).await;
                    pause = MAX_PAUSE.min(pause * 2);
                    continue;
                }
                Err(e) => {
                    for item in sought.drain(..) {
                        self.drop_item(item, e.clone());
                    }
                    self.release(&clients, sought);
                    continue;
                }
            };
            pause = PAUSE;
            self.put_back_farther(class, tail, &mut clients, &mut sought);
            hit("vlog.append.sought");
            let outdated = self.settle_found(&mut sought, tail).await;
            self.refuse_behind(outdated, Behind::InLine);
            for item in &mut sought {
                item.seek = false;
            }
            self.release(&clients, sought);
        }
    }

    /// Puts back the clients whose search turns out to be longer than those of this class.
    fn put_back_farther(
        self: &Arc<Self>,
        class: Class,
        tail: LogPos,
        clients: &mut BTreeSet<ClientId>,
        sought: &mut Vec<Item>,
    ) {
        let is_farther = |i: &&Item| i.sought_from().is_some_and(|floor| Class::of(floor, tail) > class);
        let farther: BTreeSet<ClientId> = sought.iter().filter(is_farther).map(Parkable::client).collect();
        if farther.is_empty() {
            return;
        }
        hit("vlog.append.sought_farther");
        clients.retain(|client| !farther.contains(client));
        let (back, kept) = std::mem::take(sought).into_iter().partition(|i| farther.contains(&i.client()));
        *sought = kept;
        self.put_back(&farther, back, tail);
    }

    /// Puts records back in front of their lines. `seen`: a tail that was seen.
    fn put_back(self: &Arc<Self>, clients: &BTreeSet<ClientId>, items: Vec<Item>, seen: LogPos) {
        let pass = |ready| self.lane.push(ready);
        let classes = self.parking.put_back(clients, items, self.known().tail.max(seen), pass);
        self.start_lane();
        self.start_searches(classes);
    }

    /// Sends records on to the lane, and what waited behind them.
    fn release(self: &Arc<Self>, clients: &BTreeSet<ClientId>, items: Vec<Item>) {
        let pass = |ready| self.lane.push(ready);
        let classes = self.parking.release(clients, items, self.known().tail, pass);
        self.start_lane();
        self.start_searches(classes);
    }

    /// Takes the clients out of the lane that need a long search below `end`, so that only they wait for it.
    pub(super) fn divert_far(self: &Arc<Self>, redo: &mut VecDeque<Item>, end: LogPos) {
        let is_far = |i: &Item| {
            i.may_be_below(end) && i.since.is_some_and(|since| Class::of(since, end) > Class::BRIEF)
        };
        let mark = |i: &mut Item| i.seek |= i.may_be_below(end);
        let rest = |clients: &BTreeSet<ClientId>| self.lane.take_of(clients);
        let classes = self.parking.divert(redo, end, is_far, mark, rest);
        if !classes.is_empty() {
            hit("vlog.lane.diverted");
        }
        self.start_searches(classes);
    }

    /// Leaves out records that nobody waits for any more ([`leave_out`]). They hold room in the window.
    pub(super) fn leave_out_gone(&self, items: &mut Vec<Item>) {
        let (gone, kept) = leave_out(std::mem::take(items));
        *items = kept.into();
        self.drop_gone(gone);
    }

    /// Does the same with the records that wait behind a search.
    fn tidy_parking(self: &Arc<Self>) {
        let pass = |ready| self.lane.push(ready);
        let (gone, classes) = self.parking.tidy(self.known().tail, pass);
        self.drop_gone(gone);
        self.start_lane();
        self.start_searches(classes);
    }

    fn drop_gone(&self, gone: Vec<Item>) {
        for item in gone {
            self.drop_item(item, LogError::Unavailable(Unavailability::Stopping));
        }
    }

    /// Searches `[since, end)` for records and settles those found; the others are not below `end`. Everything below `end` must be
    /// decided: `end` is a stop or a tail. The search repeats reads until they succeed, or until nobody waits for its records any more.
    /// The caller passes the result to [`Shared::refuse_behind`] before it sends anything.
    pub(super) async fn settle_found(self: &Arc<Self>, items: &mut Vec<Item>, end: LogPos) -> Outdated {
        self.leave_out_gone(items);
        let Some(mut search) = Search::below(end, items) else { return Outdated::default() };
        let mut tidy_at = self.env.now().after(TIDY_EVERY);
        while search.at < end && search.unseen > 0 {
            if let Err(deleted) = self.search_once(&mut search).await {
                hit("vlog.scan.deleted");
                for item in items.drain(..) {
                    self.drop_item(item, deleted.clone());
                }
                return Outdated::default();
            }
            if self.env.now() >= tidy_at {
                tidy_at = self.env.now().after(TIDY_EVERY);
                self.leave_out_gone(items);
                search.keep(items);
                self.tidy_parking();
            }
        }
        self.conclude(items, search)
    }

    /// Reads once, and pauses if the read failed. An error: the outcome can never be determined.
    async fn search_once(self: &Arc<Self>, search: &mut Search) -> Result<(), LogError> {
        // After a failure, read one entry at a time, so that a damaged entry hides no other.
        let to = if search.failures == 0 { search.end } else { search.at.plus(1) };
        match self.read_stored(search.at..to, PAGE_BYTES, ReadFrom::Anywhere).await {
            Ok(read) => {
                (search.pause, search.failures) = (PAUSE, 0);
                search.saw(&read.entries);
                search.at = read.next();
            }
            Err(LogReadError::Trimmed(to)) => {
                hit("vlog.scan.trimmed");
                search.trimmed = search.trimmed.max(to);
                search.at = search.at.max(to);
            }
            Err(LogReadError::Log(LogError::Deleted)) => return Err(LogError::Deleted),
            // No server that answers has a good copy. A server that is away may have one, but all records behind this search are waiting.
            Err(LogReadError::Damaged(what)) if search.failures >= DAMAGED_ATTEMPTS => {
                hit("vlog.scan.damaged");
                search.damaged = Some((search.at, what));
                search.at = search.at.plus(1);
            }
            Err(e) => {
                hit("vlog.scan.again");
                search.failures = if matches!(e, LogReadError::Damaged(_)) { search.failures + 1 } else { 0 };
                self.env.sleep(self.env.jitter(search.pause)).await;
                search.pause = MAX_PAUSE.min(search.pause * 2);
            }
        }
        Ok(())
    }

    /// Settles the records that were found. A record that may have been trimmed fails as trimmed, and one that may be at a position without
    /// a readable copy fails as damaged. A record that this node never sent is refused as outdated if its client may have sent it through
    /// another node and that copy may have been trimmed; a client that still waits sends it again with a newer tail. The others stay.
    fn conclude(&self, items: &mut Vec<Item>, search: Search) -> Outdated {
        let mut lost = Vec::new();
        let place = |op: &OpId| search.found.get(op).copied();
        // Settle first: the first failure answers a submission, and "not appended" must not hide a record that is in the log.
        for item in std::mem::take(items) {
            match place(&item.op) {
                Some(Some(at)) => {
                    hit("vlog.append.found");
                    self.settle_item(item, at);
                }
                _ => lost.push(item),
            }
        }
        let mut outdated = Outdated { clients: BTreeSet::new(), trimmed: search.trimmed };
        for mut item in lost {
            let sought = place(&item.op).is_some();
            let is_trimmed = sought && item.since.is_some_and(|s| s < search.trimmed);
            if is_trimmed && item.is_doubtful() {
                self.fail_item(item, LogAppendError::Trimmed(search.trimmed));
                continue;
            }
            if (is_trimmed && item.outside) || outdated.clients.contains(&item.op.client) {
                hit("vlog.append.outdated");
                outdated.clients.insert(item.op.client);
                self.drop_item(item, LogError::Outdated(search.trimmed));
                continue;
            }
            // The record may be at an unreadable position. `damaged` holds the last such position. A record whose search began above it is
            // at none of them.
            if sought
                && item.is_doubtful()
                && item.may_be_below(search.after_damage())
                && let Some((at, what)) = search.damaged.clone()
            {
                self.fail_item(item, LogAppendError::Damaged { at, what });
                continue;
            }
            item.not_below(search.end);
            items.push(item);
        }
        outdated
    }

    /// Refuses what clients have submitted after a record that was refused as outdated. Otherwise a later record would get into the log
    /// first: the client sends the refused one again (X15). What arrives from now on states the same old tail, and is refused as well,
    /// unless an acknowledgement has raised that tail above the trim point.
    pub(super) fn refuse_behind(&self, outdated: Outdated, behind: Behind) {
        if outdated.clients.is_empty() {
            return;
        }
        let mut items = self.parking.take_of(&outdated.clients);
        if matches!(behind, Behind::InLane) {
            items.extend(self.lane.take_of(&outdated.clients));
        }
        for item in items {
            self.drop_item(item, LogError::Outdated(outdated.trimmed));
        }
    }
}

//! The lane: all appends of one node to one log, in order, across seals, lost connections and whole segments (contracts §3, X15, X16).
//!
//! It cuts batches from the queued records and keeps a few of them in flight; when idle, it sends at once. After the first batch that ends
//! without positions, it sends nothing more until every batch in flight has ended. It then resolves the doubt about unsettled records, and
//! sends them again in order.
//!
//! An orderer whose window is full holds batches until it has room, so the lane does not pause then. Only an orderer that can hold nothing
//! more refuses a batch as busy; it is sent again after a pause.

mod batch;
mod window;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use atoll_contract::entry::{BatchBuilder, MAX_BATCH_BYTES};
use atoll_contract::loglet::{AppendError, Loglet, LogletId, LogletSpec, Placement, Unavailability};
use atoll_contract::position::LogPos;
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Cut, Pipeline, Tick, Ticket};

use self::batch::{Alone, BatchSize, Worst};
pub(super) use self::window::Lane;
use super::append::Item;
use super::room::Purpose;
use super::scan::Behind;
use super::{LogAppendError, LogError, Shared, Trouble};
use crate::chain::{Segment, VersionedChain};
use crate::mutants;
use crate::rounds::race;

/// First pause before a refused batch is sent again.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest such pause.
const MAX_PAUSE: Duration = Duration::from_millis(40);
/// How often the lane looks for a newer chain in each stall period in which appends get no answer.
const LOOKS_PER_STALL: u32 = 2;
/// How long the first append through a new handle waits for the tail. The tail bounds a later search for the append.
const FIND_TAIL_WITHIN: Duration = Duration::from_millis(100);

impl Shared {
    pub(super) fn enqueue(self: &Arc<Self>, items: Vec<Item>) {
        let searches = self.parking.enter(items, || self.known().tail, |pass| self.lane.push(pass));
        self.start_lane();
        self.start_searches(searches);
    }

    /// Starts the lane if it has work and is not running.
    pub(super) fn start_lane(self: &Arc<Self>) {
        let waker = {
            let mut w = lock(&self.lane.waiting);
            if w.queue.is_empty() {
                return;
            }
            if w.running {
                w.waker.take()
            } else {
                w.running = true;
                drop(w);
                let run = Run::new(self.clone());
                self.env.spawn("vlog.lane", Box::pin(run.run()));
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn settle_item(&self, item: Item, at: LogPos) {
        self.lane.release(item.size_bytes(), &self.budget);
        item.settle(at);
    }

    pub(super) fn fail_item(&self, item: Item, why: LogAppendError) {
        self.lane.release(item.size_bytes(), &self.budget);
        item.fail(why);
    }

    pub(super) fn drop_item(&self, item: Item, why: LogError) {
        let why = Shared::refusal(&item, why);
        self.fail_item(item, why);
    }
}

type AppendResult = Result<Placement, AppendError>;

struct Flight {
    items: Vec<Item>,
    wait: Ticket<AppendResult>,
    /// Set once the flight ended without positions.
    failed: Option<AppendError>,
    sent: Tick,
}

/// The segment that the lane sends to.
struct Target {
    segment: Segment,
    loglet: Arc<dyn Loglet>,
}

/// What the lane learned while waiting.
enum Event {
    /// Something was settled, or there is something to send.
    Progress,
    /// Every batch in flight has ended, and some have failed.
    Failed,
    /// The chain has another active segment.
    Moved,
    /// No answer for a long time.
    Stalled,
}

struct Run {
    me: Arc<Shared>,
    target: Option<Target>,
    /// The batches in flight, and the records that wait to be sent again, in order. They precede everything in the queue.
    records: Pipeline<Item, Flight>,
    /// Whether records that wait to be sent again may have lost their callers.
    may_leave_out: bool,
    /// Number of records that wait to be sent again, from the first on, that were searched for after a "forgotten" answer and not found.
    scanned: usize,
    pause: Duration,
    /// A pending search for a newer chain. Dropping the ticket would cancel the search, so it is kept until the next search.
    look: Option<Ticket<Result<Arc<VersionedChain>, LogError>>>,
    /// No stall is noticed before this time.
    next_stall: Tick,
    /// No stall is reported before this time.
    next_report: Tick,
    /// The Loglet that forgot a record again after a search for it.
    forgetful: Option<LogletId>,
}

impl Run {
    fn new(me: Arc<Shared>) -> Self {
        Run {
            me,
            target: None,
            records: Pipeline::default(),
            may_leave_out: false,
            scanned: 0,
            pause: PAUSE,
            look: None,
            next_stall: Tick(0),
            next_report: Tick(0),
            forgetful: None,
        }
    }

    async fn run(mut self) {
        loop {
            if self.records.is_idle() {
                let mut w = lock(&self.me.lane.waiting);
                if w.queue.is_empty() {
                    w.running = false;
                    w.waker = None;
                    return;
                }
            }
            if self.target.is_none() {
                if let Err(e) = self.find_target().await {
                    self.refuse(e).await;
                }
                continue;
            }
            if self.records.flights().is_empty() && self.must_look() {
                self.look().await;
                continue;
            }
            self.send();
            if self.records.flights().is_empty() {
                // The queue held only records that no caller waits for.
                continue;
            }
            match self.wait().await {
                Event::Progress => {}
                Event::Failed => self.recover(false).await,
                Event::Moved => self.recover(true).await,
                Event::Stalled => {
                    hit("vlog.lane.stalled");
                    let now = self.me.env.now();
                    self.next_stall = now.after(self.me.options.stall_after / LOOKS_PER_STALL);
                    if now >= self.next_report {
                        self.next_report = now.after(self.me.options.stall_after);
                        self.me.trouble(Trouble::NoSequencer);
                    }
                    self.look = Some(self.me.fresh());
                }
            }
        }
    }

    /// Finds the active segment of the chain. A handle that has seen nothing of that segment asks for its tail first, so
    /// that a later search for lost records need not begin at the segment's start.
    async fn find_target(&mut self) -> Result<(), LogError> {
        let chain = self.me.some_chain().await?;
        let segment = chain.chain.active().clone();
        if segment.is_end() {
            return Err(LogError::Ended(segment.start));
        }
        let loglet = self.me.handle(&segment)?;
        if self.me.known().seen_in != Some(segment.loglet) {
            hit("vlog.lane.cold");
            if let Ok(Ok(tail)) = self.me.env.within(FIND_TAIL_WITHIN, loglet.check_tail()).await
                && tail.sealed.is_none()
            {
                self.me.raise_known(segment.loglet, segment.position_of(tail.at));
            }
        }
        self.target = Some(Target { segment, loglet });
        Ok(())
    }

    /// Handles a log that cannot be used: pauses if it is only unavailable, otherwise fails every waiting record.
    async fn refuse(&mut self, why: LogError) {
        if matches!(why, LogError::Unavailable(_)) {
            return self.back_off().await;
        }
        self.drop_all(&why);
    }

    /// Fails every waiting record with `why`.
    fn drop_all(&mut self, why: &LogError) {
        let waiting = std::mem::take(&mut lock(&self.me.lane.waiting).queue);
        self.scanned = 0;
        // Doubtful records first: the first failure answers a submission, and "not appended" must not hide the doubt.
        let all = std::mem::take(self.records.waiting_mut()).into_iter().chain(waiting);
        let (doubtful, sure): (Vec<Item>, Vec<Item>) = all.partition(Item::is_doubtful);
        for item in doubtful.into_iter().chain(sure) {
            self.me.drop_item(item, why.clone());
        }
    }

    async fn back_off(&mut self) {
        self.back_off_since(self.me.env.now()).await;
    }

    /// Pauses until some time after `since`.
    async fn back_off_since(&mut self, since: Tick) {
        let wait = self.me.env.jitter(self.pause);
        self.pause = MAX_PAUSE.min(self.pause * 2);
        let until = since.after(wait);
        if until > self.me.env.now() {
            self.me.env.sleep_until(until).await;
        }
    }

    /// Pauses while a Loglet is the active one: the pause is for that Loglet, which the next one does not need.
    async fn back_off_in(&mut self, active: LogletId) {
        let me = self.me.clone();
        let moved = async {
            loop {
                let seen = me.changed.count();
                if me.cached().is_some_and(|c| c.chain.active().loglet != active) {
                    return hit("vlog.lane.pause_cut_short");
                }
                me.changed.after(seen).await;
            }
        };
        race(self.back_off(), moved).await;
    }

    /// Cuts and sends batches until the limit on batches in flight is reached.
    fn send(&mut self) {
        let Some(target) = &self.target else { return };
        if self.records.flights().iter().any(|f| f.failed.is_some()) {
            return;
        }
        let room = self.me.options.max_inflight_batches.max(1);
        // A record sent after a tail became known cannot land below that tail. The tail that a Loglet reports may lie
        // beyond its eventual stop, but then this append is not in that Loglet.
        let floor = self.me.known().tail.max(target.segment.position_of(target.loglet.known_tail()));
        while self.records.flights().len() < room {
            let items = self.cut();
            if items.is_empty() {
                return;
            }
            let mut batch = BatchBuilder::new();
            let mut flight = Vec::with_capacity(items.len());
            let mut not_below = floor;
            for mut item in items {
                item.sent(floor);
                not_below = not_below.min(item.not_anywhere_below().unwrap_or(not_below));
                batch.push(item.op, &item.payload);
                flight.push(item);
            }
            let Some(target) = &self.target else { return };
            let not_below = target.segment.offset_of(not_below);
            let wait = target.loglet.append_above(batch.finish(), not_below);
            let sent = self.me.env.now();
            self.records.sent(Flight { items: flight, wait, failed: None, sent });
        }
    }

    /// Cuts the next batch: unsettled records first, then the queue.
    fn cut(&mut self) -> Vec<Item> {
        let limit = self.me.options.max_batch_bytes.min(MAX_BATCH_BYTES);
        let start = self.target.as_ref().map_or(LogPos::ZERO, |t| t.segment.start);
        let mut size = BatchSize::default();
        // Where the Loglet does not keep order, at most one record of each client whose records are ordered is in flight (X15).
        let mut alone = Alone::new(self.keeps_order());
        self.records.flights().iter().flat_map(|f| &f.items).for_each(|item| alone.is_in_flight(item));
        // With a larger count, this would never again return a record, and `run` would spin on the node's thread.
        let again = self.records.waiting().len();
        atoll_core::invariant!(
            self.scanned <= again,
            "{} records were looked for, {again} are left",
            self.scanned,
        );
        if std::mem::take(&mut self.may_leave_out) && self.scanned == 0 {
            let mut items: Vec<Item> = std::mem::take(self.records.waiting_mut()).into();
            self.me.leave_out_gone(&mut items);
            *self.records.waiting_mut() = items.into();
        }
        let most = if self.scanned > 0 { self.scanned } else { usize::MAX };
        let judge = |item: &Item, batch: &[Item]| match batch.len() < most
            && alone.admits(item)
            && size.takes(item, limit)
        {
            true => Cut::Take,
            false => Cut::Stop,
        };
        let mut items = self.records.cut(judge, |_| ());
        if self.scanned > 0 {
            self.scanned -= items.len();
            return items;
        }
        if !self.records.waiting().is_empty() {
            return items;
        }
        let mut gone = Vec::new();
        {
            let mut w = lock(&self.me.lane.waiting);
            while let Some(front) = w.queue.front() {
                if front.may_go() {
                    gone.extend(w.queue.pop_front());
                } else if !front.may_be_below(start) && alone.admits(front) && size.takes(front, limit) {
                    items.extend(w.queue.pop_front());
                } else {
                    break;
                }
            }
        }
        for item in gone {
            self.me.drop_item(item, LogError::Unavailable(Unavailability::Stopping));
        }
        items
    }

    /// Waits for an answer, for records to send while there is room, for a new segment, or for a stall.
    async fn wait(&mut self) -> Event {
        let me = self.me.clone();
        let seen = me.changed.count();
        if self.has_moved() {
            return Event::Moved;
        }
        let oldest = self.records.flights().iter().filter(|f| f.failed.is_none()).map(|f| f.sent).min();
        let stalled_at = oldest.map_or(Tick(u64::MAX), |t| t.after(me.options.stall_after));
        let stalled_at = stalled_at.max(self.next_stall);
        let mut stall = me.env.sleep_until(stalled_at);
        let mut changed = pin!(me.changed.after(seen));
        std::future::poll_fn(|cx| {
            let progress = self.poll_flights(cx);
            if self.records.flights().iter().any(|f| f.failed.is_some()) {
                if self.records.flights().iter().all(|f| f.failed.is_some()) {
                    return Poll::Ready(Event::Failed);
                }
            } else if progress || self.has_work() {
                return Poll::Ready(Event::Progress);
            }
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(if self.has_moved() { Event::Moved } else { Event::Progress });
            }
            lock(&me.lane.waiting).waker = Some(cx.waker().clone());
            // Check again now that the waker is registered: otherwise a submission in between would be missed.
            if self.has_work() {
                return Poll::Ready(Event::Progress);
            }
            Pin::new(&mut stall).poll(cx).map(|()| Event::Stalled)
        })
        .await
    }

    fn has_room(&self) -> bool {
        let room = self.me.options.max_inflight_batches.max(1);
        self.records.flights().len() < room && self.records.flights().iter().all(|f| f.failed.is_none())
    }

    fn keeps_order(&self) -> bool {
        self.target.as_ref().is_none_or(|t| t.loglet.keeps_order())
    }

    /// Returns whether a record has to wait for an earlier one of its client that is in flight.
    fn waits_for_its_client(&self, item: &Item) -> bool {
        let Some(client) = item.goes_alone().filter(|_| !self.keeps_order()) else { return false };
        self.records.flights().iter().flat_map(|f| &f.items).any(|other| other.goes_alone() == Some(client))
    }

    /// Returns true if a record in the queue may be sent now.
    fn has_work(&self) -> bool {
        let start = self.target.as_ref().map_or(LogPos::ZERO, |t| t.segment.start);
        let flights = self.records.flights();
        let ready = |i: &Item| flights.is_empty() || !(i.may_be_below(start) || self.waits_for_its_client(i));
        // What is to be sent again precedes the queue.
        self.has_room()
            && match self.records.waiting().front() {
                Some(front) => !self.waits_for_its_client(front),
                None => lock(&self.me.lane.waiting).queue.front().is_some_and(ready),
            }
    }

    fn has_moved(&self) -> bool {
        let active = self.me.cached().map(|c| c.chain.active().loglet);
        self.target.as_ref().is_some_and(|t| active.is_some_and(|a| a != t.segment.loglet))
    }

    /// Settles the batches that were answered with positions. Returns true if there was one.
    fn poll_flights(&mut self, cx: &mut std::task::Context<'_>) -> bool {
        let mut progress = false;
        for flight in self.records.flights_mut() {
            if flight.failed.is_some() {
                continue;
            }
            let Poll::Ready(got) = Pin::new(&mut flight.wait).poll(cx) else { continue };
            match got.unwrap_or(Err(AppendError::Unknown(Unavailability::NoSequencer))) {
                Ok(placement) => {
                    if let Some(target) = &self.target {
                        settle(&self.me, &target.segment, std::mem::take(&mut flight.items), &placement);
                    }
                    progress = true;
                }
                Err(e) => flight.failed = Some(e),
            }
        }
        if progress {
            self.records.flights_mut().retain(|f| !f.items.is_empty());
            self.pause = PAUSE;
        }
        progress
    }

    /// Runs when every batch in flight has ended, or when their segment is no longer active. Puts unsettled records back in order, and
    /// resolves doubt where possible.
    async fn recover(&mut self, moved: bool) {
        let Some(target) = self.target.take() else { return };
        let mut worst = Worst::default();
        let first_sent = self.records.flights().front().map(|flight| flight.sent);
        self.records.take_back(|flight| {
            let mut items = flight.items;
            if worst.add(flight.failed.as_ref()) {
                items.iter_mut().for_each(Item::not_sent);
            }
            items
        });
        self.scanned = 0;
        self.may_leave_out = true;
        if let Some(trouble) = worst.why.and_then(Trouble::of) {
            self.me.trouble(trouble);
        }
        if worst.sealed || moved {
            hit("vlog.lane.sealed");
            return self.follow_to_successor(&target).await;
        }
        if worst.forgotten {
            hit("vlog.lane.forgotten");
            return self.look_in_open_segment(target).await;
        }
        hit("vlog.lane.again");
        if worst.why == Some(Unavailability::DiskFull) {
            // Answer the waiters instead of keeping them waiting for an operator (native-T22).
            hit("vlog.lane.disk_full");
            self.drop_all(&LogError::Unavailable(Unavailability::DiskFull));
        }
        if worst.why == Some(Unavailability::Busy) {
            // The time that the first batch waited at its orderer counts as part of the pause.
            self.back_off_since(first_sent.unwrap_or(self.me.env.now())).await;
            self.target = Some(target);
            return;
        }
        let id = target.segment.loglet;
        self.back_off_in(id).await;
        if self.has_successor(id) {
            return self.follow_to_successor(&target).await;
        }
        if let Ok(chain) = self.me.refreshed().await
            && chain.chain.active().loglet != id
        {
            return self.follow_to_successor(&target).await;
        }
        // Send the same records again. A sequencer that already has them answers with their offsets.
        self.target = Some(target);
    }

    /// Waits until the stop of the sealed segment is installed. The lane then continues in the next segment.
    async fn follow_to_successor(&mut self, target: &Target) {
        if let Err(e) = self.me.successor(target.segment.loglet).await {
            self.refuse(e).await;
        }
    }

    /// Returns true if a record that is to be sent next may be in a segment before the target's.
    fn must_look(&self) -> bool {
        let Some(target) = &self.target else { return false };
        let start = target.segment.start;
        match self.records.waiting().front() {
            Some(_) => self.records.waiting().iter().any(|i| i.may_be_below(start)),
            None => lock(&self.me.lane.waiting).queue.front().is_some_and(|i| i.may_be_below(start)),
        }
    }

    /// Searches all segments before the target, which have their stops, and settles the records found there. No other unsettled record is
    /// below the target (vlog-V2).
    async fn look(&mut self) {
        let Some(end) = self.target.as_ref().map(|t| t.segment.start) else { return };
        self.records.waiting_mut().extend(std::mem::take(&mut lock(&self.me.lane.waiting).queue));
        // The second mutant creates copies that a replica may take for new commands.
        if mutant(mutants::VLOG_V2) || mutant(mutants::DB_APPLIES_COPIES) {
            self.records.waiting_mut().iter_mut().for_each(|i| i.not_below(end));
        } else {
            self.me.divert_far(self.records.waiting_mut(), end);
            let mut items: Vec<Item> = std::mem::take(self.records.waiting_mut()).into();
            let outdated = self.me.settle_found(&mut items, end).await;
            self.me.refuse_behind(outdated, Behind::InLane);
            *self.records.waiting_mut() = items.into();
        }
        // This search covered everything below the new segment for every record, so the result of an older search no longer matters.
        self.scanned = 0;
    }

    /// Searches an open Loglet that does not remember whether it has some of these records. Records that it has forgotten are not in
    /// flight, so a search below a tail checked now is conclusive.
    async fn look_in_open_segment(&mut self, target: Target) {
        let id = target.segment.loglet;
        let again = self.forgetful.replace(id) == Some(id);
        let round = self.me.check();
        match self.me.checked(round).await {
            Ok(checked) => {
                self.me.divert_far(self.records.waiting_mut(), checked.tail);
                let mut items: Vec<Item> = std::mem::take(self.records.waiting_mut()).into();
                let outdated = self.me.settle_found(&mut items, checked.tail).await;
                self.me.refuse_behind(outdated, Behind::InLane);
                *self.records.waiting_mut() = items.into();
                self.scanned = self.records.waiting().len();
            }
            Err(_) => self.back_off().await,
        }
        if again && self.scanned > 0 {
            // The Loglet has forgotten them repeatedly. A new segment has no history of them and accepts them.
            hit("vlog.lane.forgotten_again");
            self.back_off().await;
            let _ = self.me.extend_from(id, LogletSpec::default(), Purpose::Needed).await;
        }
        if self.has_successor(id) {
            return self.follow_to_successor(&target).await;
        }
        self.target = Some(target);
    }

    fn has_successor(&self, of: LogletId) -> bool {
        self.me.cached().is_some_and(|c| c.chain.active().loglet != of)
    }
}

fn settle(me: &Shared, segment: &Segment, items: Vec<Item>, placement: &Placement) {
    let mut offsets = placement.offsets();
    let mut highest = LogPos::ZERO;
    for item in items {
        let Some(offset) = offsets.next() else {
            // The Loglet broke its contract: whether this record is in it is unknown, and a search cannot be made yet.
            me.fail_item(item, LogAppendError::Unknown(LogError::Unavailable(Unavailability::NoSequencer)));
            continue;
        };
        let at = segment.position_of(offset);
        highest = highest.max(at.plus(1));
        me.settle_item(item, at);
    }
    // Acknowledged by an open Loglet, so below every sealed tail (vlog-L3), and therefore below every stop.
    me.raise_known(segment.loglet, highest);
}

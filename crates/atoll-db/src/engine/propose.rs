//! Appends commands to the log. All waiting commands form one entry, a few entries are in flight at a time, and a command is not
//! delayed while the log is idle (contracts §3).
//!
//! The entries of one client id are numbered without gaps. If the append of one of them fails, every replica refuses the later
//! ones, so the node continues under a new client id.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, Unavailability};
use atoll_core::level::since;
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, Gate, Pipeline, Sleep, Ticket, ticket};
use atoll_log::{LogAppendError, LogError, LogRecord, Room, VirtualLog};

use super::clock::{CheckedClock, Reading};
use super::core::{Caller, Core, Path, Proposal, Reached, Waiting};
use super::{BarrierError, Busy, Options, ProposeError, Proposed};
use crate::entry::{EntryBuilder, Header, MAX_COMMAND_BYTES};
use crate::mutants;
use crate::part::Cutter;

/// The pause before the next attempt to find the log, its tail, the cluster's level, or the other members' clocks.
const LOG_PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Proposal, Caller)>,
    /// Wakes the procedure that sends the waiting commands.
    waker: Option<Waker>,
    /// The client id whose entries are refused. The sender must continue under a new one.
    refused: Option<ClientId>,
    /// How many times commands were lost. It rises before the sender continues under a new client id.
    losses: u64,
}

#[derive(Default)]
struct Barriers {
    waiting: Vec<Reached>,
    running: bool,
}

/// The state that proposals and barriers share; see the module documentation.
pub(crate) struct ToLog {
    pub(crate) env: Env,
    pub(crate) log: Arc<VirtualLog>,
    pub(crate) clock: CheckedClock,
    options: Options,
    queue: Mutex<Queue>,
    barriers: Mutex<Barriers>,
}

/// The interface through which a core uses [`ToLog`].
pub(crate) struct LogPath(pub(crate) Arc<ToLog>);

impl ToLog {
    pub(crate) fn new(env: Env, log: Arc<VirtualLog>, clock: CheckedClock, options: Options) -> Self {
        ToLog { env, log, clock, options, queue: Mutex::default(), barriers: Mutex::default() }
    }

    /// Creates the log if there is none, waits for the start check, and then sends proposals. Never returns.
    pub(crate) async fn send(self: Arc<Self>, core: Arc<Core>) {
        self.settled().await;
        self.make_log().await;
        // No caller may get an answer from a state that has not been compared. The wait cannot fail, because the core outlives this
        // procedure.
        let _ = core.check.wait().await;
        let mut sender = Sender::new(self, core);
        poll_fn(move |cx| sender.poll(cx)).await
    }

    /// Completes once the cluster knows which formats this program reads. Before that, this node might read entries that it does
    /// not understand, or write entries that other nodes do not (X28).
    pub(crate) async fn settled(&self) {
        while !self.env.levels().is_settled() {
            self.env.sleep(self.env.jitter(LOG_PAUSE)).await;
        }
    }

    /// Creates the log if it does not exist. Completes once it exists.
    async fn make_log(&self) {
        loop {
            match self.log.refresh().await {
                Ok(Ok(_)) => return,
                Ok(Err(LogError::NoSuchLog)) => {
                    hit("db.propose.create");
                    if let Ok(Ok(_)) = self.log.create(LogletSpec::default()).await {
                        return;
                    }
                }
                _ => {}
            }
            self.env.sleep(self.env.jitter(LOG_PAUSE)).await;
        }
    }

    /// Runs tail checks one after another for as long as there are waiters for a check that has not begun (vlog-V14).
    async fn check(self: Arc<Self>, core: Arc<Core>) {
        // The wait cannot fail, because the core outlives this procedure.
        let _ = core.check.wait().await;
        loop {
            let joined = {
                let mut barriers = lock(&self.barriers);
                barriers.running = !barriers.waiting.is_empty();
                if !barriers.running {
                    return;
                }
                std::mem::take(&mut barriers.waiting)
            };
            let tail = if mutant(mutants::DB_BARRIER_WITHOUT_CHECK) {
                Ok(self.log.known_tail())
            } else {
                self.log.check_tail().await.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping)))
            };
            match tail {
                Ok(tail) => core.when_applied(tail, joined),
                // This node or another one is creating the log.
                Err(LogError::NoSuchLog) => {
                    lock(&self.barriers).waiting.extend(joined);
                    self.env.sleep(self.env.jitter(LOG_PAUSE)).await;
                }
                Err(error) => joined.into_iter().for_each(|one| one.fail(&error)),
            }
        }
    }
}

impl Path for LogPath {
    fn propose(&self, core: &Arc<Core>, proposal: Proposal) -> Result<Proposed, Busy> {
        if let Some(halt) = core.halted() {
            return Ok(Ticket::ready(Err(ProposeError::Stopped(halt))));
        }
        let bytes = proposal.command.len();
        core.reserve(bytes)?;
        let (caller, wait) = ticket();
        let waker = {
            let mut queue = lock(&self.0.queue);
            if proposal.losses.is_some_and(|known| known != queue.losses) {
                drop(queue);
                core.release(1, bytes);
                return Ok(Ticket::ready(Err(ProposeError::Refused)));
            }
            queue.waiting.push_back((proposal, caller));
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(wait)
    }

    fn barrier(&self, core: &Arc<Core>) -> Ticket<Result<LogPos, BarrierError>> {
        let (done, wait) = ticket();
        {
            let mut barriers = lock(&self.0.barriers);
            barriers.waiting.push(Reached::Barrier(done));
            if barriers.running {
                return wait;
            }
            barriers.running = true;
        }
        self.0.env.spawn("db.barrier", Box::pin(self.0.clone().check(core.clone())));
        wait
    }

    fn known_tail(&self) -> LogPos {
        self.0.log.known_tail()
    }

    fn refused(&self, op: OpId) {
        let sender = {
            let mut queue = lock(&self.0.queue);
            queue.refused = Some(op.client);
            queue.waker.take()
        };
        // It continues at once under a new client id, and not with the next command, which would be refused.
        sender.into_iter().for_each(Waker::wake);
    }

    fn losses(&self) -> u64 {
        lock(&self.0.queue).losses
    }
}

struct Flight {
    op: OpId,
    wait: Ticket<Result<Vec<LogPos>, LogAppendError>>,
}

/// A command that is sent in parts, until its last part is sent.
struct Long {
    parts: Cutter,
    caller: Caller,
}

struct Sender {
    to: Arc<ToLog>,
    core: Arc<Core>,
    /// At most one entry waits: one for which the log has no room. The log sends entries again, so those in flight are not kept.
    entries: Pipeline<(OpId, Bytes), Flight>,
    /// Closed while the log has no room for that entry.
    gate: Gate<Room>,
    /// The command whose parts are being sent.
    long: Option<Long>,
    /// The pause before the other members' clocks are read again.
    listening: Option<Sleep>,
    client: ClientId,
    last_seq: u64,
    /// No entry of this client is below this position.
    since: LogPos,
}

impl Sender {
    fn new(to: Arc<ToLog>, core: Arc<Core>) -> Self {
        let mut sender = Sender {
            to,
            core,
            entries: Pipeline::default(),
            gate: Gate::default(),
            long: None,
            listening: None,
            client: ClientId(0),
            last_seq: 0,
            since: LogPos::ZERO,
        };
        sender.begin_anew();
        sender
    }

    /// Continues under a new random client id.
    fn begin_anew(&mut self) {
        // The log itself uses client id 0.
        self.client = ClientId(self.to.env.random().max(1));
        self.last_seq = 0;
        self.since = self.core.published().below;
    }

    /// Continues under a new client id, because an entry of the present one is lost. The commands that wait were proposed before their
    /// callers could know of that, and must not be applied without the lost ones.
    fn continue_after_loss(&mut self) {
        self.begin_anew();
        let waiting = {
            let mut queue = lock(&self.to.queue);
            queue.losses += 1;
            std::mem::take(&mut queue.waiting)
        };
        self.give_up_long(&ProposeError::Refused);
        self.answer(waiting, &ProposeError::Refused);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.settle(cx);
            if !self.send(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Removes entries whose append has ended and handles those that failed.
    fn settle(&mut self, cx: &mut Context<'_>) {
        let outcome = |flight: &mut Flight, cx: &mut Context<'_>| Pin::new(&mut flight.wait).poll(cx);
        while let Poll::Ready(Some((flight, got))) = self.entries.poll_first(cx, outcome) {
            let failed = match got {
                // The applier answers the callers of an appended entry.
                Ok(Ok(_)) => continue,
                Ok(Err(failed)) => failed,
                Err(_) => LogAppendError::Unknown(LogError::Unavailable(Unavailability::Stopping)),
            };
            hit("db.propose.failed");
            self.give_up(flight.op, failed);
        }
    }

    /// Answers the callers of an entry whose append failed. Callers of later entries are answered when the appends of those entries
    /// end.
    fn give_up(&mut self, op: OpId, failed: LogAppendError) {
        if op.client == self.client {
            self.continue_after_loss();
        }
        let error = match failed {
            LogAppendError::NotAppended(why) => ProposeError::NotProposed(why),
            LogAppendError::TooLarge(bytes) => ProposeError::TooLarge { bytes, allowed: MAX_COMMAND_BYTES },
            unknown => ProposeError::Unknown(unknown),
        };
        for caller in self.core.take_waiting(op).into_iter().flat_map(|w| w.callers) {
            caller.complete(Err(error.clone()));
        }
    }

    /// Submits the next entry. Returns false if there is no entry or no room; the task is woken when that changes.
    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        if self.gate.poll_open(cx).is_pending() {
            return false;
        }
        if self.entries.waiting().is_empty() {
            if self.entries.flights().len() >= self.to.options.max_inflight_entries {
                return false;
            }
            let Some(entry) = self.next_entry(cx) else { return false };
            self.entries.push(entry);
        }
        let Some((op, payload)) = self.entries.waiting().front() else { return false };
        let record = LogRecord { op: *op, floor: None, payload: payload.clone() };
        match self.to.log.submit(vec![record]) {
            Ok(wait) => {
                let op = *op;
                self.gate.open();
                self.entries.waiting_mut().pop_front();
                self.entries.sent(Flight { op, wait });
            }
            Err(_) => {
                hit("db.propose.busy");
                self.gate.close(self.to.log.room(1, payload.len()));
            }
        }
        true
    }

    /// Returns true if commands are waiting. Otherwise the task is woken when one arrives.
    fn is_asked(&self, cx: &mut Context<'_>) -> bool {
        let mut queue = lock(&self.to.queue);
        if queue.waiting.is_empty() {
            queue.waker = Some(cx.waker().clone());
        }
        !queue.waiting.is_empty()
    }

    /// Returns the time for the next entry. None: nothing can be proposed now, and the task is woken when that may change.
    fn time_ms(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        loop {
            match self.to.clock.read(self.core.published().time_ms) {
                Reading::At(time_ms) => return Some(time_ms),
                Reading::Listening => {
                    hit("db.propose.listens");
                    let sleep = || self.to.env.sleep(self.to.env.jitter(LOG_PAUSE));
                    let pause = self.listening.get_or_insert_with(sleep);
                    if Pin::new(pause).poll(cx).is_pending() {
                        return None;
                    }
                    self.listening = None;
                }
                Reading::Ahead(ahead) => {
                    self.refuse(cx, &ProposeError::ClockAhead(ahead));
                    return None;
                }
            }
        }
    }

    /// Answers all waiting commands with `why`. They did not happen. The reason is a clock that is far ahead, or a replica that has
    /// halted or is withheld.
    fn refuse(&mut self, cx: &mut Context<'_>, why: &ProposeError) {
        let refused = {
            let mut queue = lock(&self.to.queue);
            queue.waker = Some(cx.waker().clone());
            std::mem::take(&mut queue.waiting)
        };
        self.give_up_long(why);
        self.answer(refused, why);
    }

    /// Answers the command whose parts are being sent. It did not happen, because its last part is never sent.
    fn give_up_long(&mut self, why: &ProposeError) {
        let Some(Long { parts, caller }) = self.long.take() else { return };
        hit("db.propose.long_given_up");
        self.core.release(1, parts.command_bytes());
        caller.complete(Err(why.clone()));
    }

    /// Answers commands that were taken from the queue. They did not happen.
    fn answer(&self, refused: VecDeque<(Proposal, Caller)>, why: &ProposeError) {
        self.core.release(refused.len(), refused.iter().map(|(proposal, _)| proposal.command.len()).sum());
        for (_, caller) in refused {
            caller.complete(Err(why.clone()));
        }
    }

    /// Builds an entry from the waiting commands, up to the size limits of an entry. Returns None if nothing can be proposed now.
    fn next_entry(&mut self, cx: &mut Context<'_>) -> Option<(OpId, Bytes)> {
        if lock(&self.to.queue).refused.take() == Some(self.client) {
            hit("db.propose.refused");
            self.continue_after_loss();
        }
        if self.long.is_none() && !self.is_asked(cx) {
            return None;
        }
        if self.core.is_withheld() {
            self.refuse(cx, &ProposeError::Withheld);
            return None;
        }
        let time_ms = self.time_ms(cx)?;
        if let Some(long) = self.long.take() {
            return self.next_part(cx, long, time_ms);
        }
        let options = &self.to.options;
        let may_cut = self.core.levels.allows(since::LONG_COMMANDS);
        let cut_above = if may_cut { options.cut_above_bytes.min(MAX_COMMAND_BYTES) } else { usize::MAX };
        let mut taken = Vec::new();
        let mut size = 0;
        let mut long = None;
        {
            let mut queue = lock(&self.to.queue);
            while let Some((proposal, _)) = queue.waiting.front() {
                if proposal.command.len() > cut_above {
                    long = if taken.is_empty() { queue.waiting.pop_front() } else { None };
                    break;
                }
                let more = EntryBuilder::size_of(&proposal.command);
                let full = size + more > options.max_entry_bytes || taken.len() >= options.max_entry_commands;
                if full && !taken.is_empty() {
                    break;
                }
                size += more;
                taken.extend(queue.waiting.pop_front());
            }
        }
        if let Some((Proposal { app, version, command, .. }, caller)) = long {
            hit("db.propose.long");
            let parts = Cutter::new(app, version, command, options.part_bytes);
            return self.next_part(cx, Long { parts, caller }, time_ms);
        }
        let (op, header) = self.name_next(time_ms);
        let mut entry = EntryBuilder::new(&header, size, self.core.levels.active());
        let (mut callers, mut bytes) = (Vec::with_capacity(taken.len()), 0);
        for (proposal, caller) in taken {
            entry.push(proposal.app, proposal.version, &proposal.command);
            bytes += proposal.command.len();
            callers.push(caller);
        }
        // The callers are registered before the entry is submitted, because another thread may apply it immediately.
        if let Err(halt) = self.core.expect(Waiting { op, callers, bytes }) {
            self.last_seq -= 1;
            self.refuse(cx, &ProposeError::Stopped(halt));
            return None;
        }
        Some((op, entry.finish()))
    }

    fn name_next(&mut self, time_ms: u64) -> (OpId, Header) {
        self.last_seq += 1;
        let op = OpId { client: self.client, seq: self.last_seq };
        (op, Header { proposer: self.core.proposer, since: self.since, time_ms })
    }

    /// Builds an entry from the next part of a long command. The caller of the command waits for the entry with the last part.
    fn next_part(&mut self, cx: &mut Context<'_>, mut long: Long, time_ms: u64) -> Option<(OpId, Bytes)> {
        let part = long.parts.next()?;
        let (op, header) = self.name_next(time_ms);
        let mut entry =
            EntryBuilder::new(&header, EntryBuilder::size_of(&part.data), self.core.levels.active());
        entry.push_part(&part);
        let (callers, bytes) = if part.is_last() {
            let bytes = long.parts.command_bytes();
            (vec![long.caller], bytes)
        } else {
            self.long = Some(long);
            (Vec::new(), 0)
        };
        if let Err(halt) = self.core.expect(Waiting { op, callers, bytes }) {
            self.last_seq -= 1;
            self.refuse(cx, &ProposeError::Stopped(halt));
            return None;
        }
        Some((op, entry.finish()))
    }
}

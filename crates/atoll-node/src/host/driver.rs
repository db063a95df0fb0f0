//! The loop of the node thread. Each round delivers a batch of events, runs one turn of the core, and carries out its outputs.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atoll_core::{JournalBatch, NodeCore, Outputs, Tick};
use atoll_net::{Net, NetEvent, NetEvents, RefusalCode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use super::incoming::Incoming;
use super::journal::{Here, SharedWriter, is_small, land, write_here};
use super::options::HostOptions;
use super::readers;
use super::shared::{Ended, Shared};
use super::stats::add;

/// The maximum number of network events in a turn whose batch this thread writes itself. With more events, others wait for this thread.
const FEW_EVENTS: usize = 3;
/// How many batches go to the journal thread after a turn with more events, or after an attempt to write and wait that was not possible.
const SKIP: u32 = 32;

pub(crate) struct Driver {
    core: Option<NodeCore>,
    net: Net,
    events: NetEvents,
    shared: Arc<Shared>,
    events_per_turn: usize,
    bytes_per_turn: usize,
    /// The start of the core's clock.
    base: Instant,
    out: Outputs,
    batch: Vec<NetEvent>,
    incoming: Vec<Incoming>,
    /// Whether a batch is being written.
    writing: bool,
    writer: SharedWriter,
    /// Becomes readable when a batch that was begun has ended. None if the disk cannot write without a thread that waits.
    signal: Option<AsyncFd<OwnedFd>>,
    /// Whether a batch is under way that this thread has begun, and whose end it reports.
    flying: bool,
    /// The batch of the last turn, if this thread should write it with [`write_here`].
    batch_here: Option<JournalBatch>,
    /// How many of the next batches go to the journal thread without an attempt to write them here.
    skip: u32,
    stopping: bool,
    timer: Pin<Box<Sleep>>,
    armed: Option<Tick>,
}

/// What to do after a turn.
#[derive(PartialEq, Eq)]
enum Next {
    Wait,
    Again,
    /// Write the batch here, or start to. Then run another turn if it is written, and wait if it is not. If `sends` is set, the turn has
    /// frames to send first.
    Write {
        sends: bool,
    },
    End,
}

impl Driver {
    pub(crate) fn new(
        mut core: NodeCore,
        net: Net,
        events: NetEvents,
        shared: Arc<Shared>,
        writer: SharedWriter,
        signal: Option<OwnedFd>,
        options: &HostOptions,
    ) -> Self {
        core.env().set_host_waker(Waker::from(shared.inbound.bell.clone()));
        core.set_turn_steps(options.steps_per_turn);
        Driver {
            core: Some(core),
            net,
            events,
            shared,
            events_per_turn: options.events_per_turn.max(1),
            bytes_per_turn: options.bytes_per_turn.max(1),
            base: Instant::now(),
            out: Outputs::default(),
            batch: Vec::new(),
            incoming: Vec::new(),
            writing: false,
            writer,
            signal: signal.and_then(readable),
            flying: false,
            batch_here: None,
            skip: 0,
            stopping: false,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: None,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            match self.turn() {
                // Let the sockets run. Every task that is ready may add to the next batch.
                Next::Again => tokio::task::yield_now().await,
                Next::Write { sends } => {
                    if sends {
                        // Send the frames of the turn first, so that other nodes can work on them meanwhile.
                        tokio::task::yield_now().await;
                    }
                    if self.write() {
                        self.wait().await;
                    }
                }
                Next::Wait => self.wait().await,
                Next::End => break,
            }
        }
        if let Some(core) = self.core.take() {
            core.kill();
        }
        self.shared.ended.send_replace(Some(Ended::Stopped));
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn turn(&mut self) -> Next {
        let now = self.now();
        let Some(mut core) = self.core.take() else { return Next::End };
        // If the core panics, it is dropped, and `Drop` below closes the node.
        let mut took = 0;
        if !self.stopping {
            took = self.events.drain(&mut self.batch, self.events_per_turn, self.bytes_per_turn);
            for event in self.batch.drain(..) {
                deliver(&mut core, now, event, &self.shared);
            }
        }
        if self.flying {
            self.flying = land(&self.writer, &self.shared.journal);
        }
        self.shared.inbound.take(&mut self.incoming);
        for event in self.incoming.drain(..) {
            match event {
                Incoming::Durable(written) => {
                    (self.writing, self.flying) = (false, false);
                    core.durable(now, written);
                }
                Incoming::Space(space) => core.set_space(now, space),
                Incoming::WantsCheckpoint => core.request_checkpoint(),
                Incoming::Compact(segment) => core.compact(now, segment),
                Incoming::Fetched { role, tag, got } => core.fetched(now, role, tag, got),
                Incoming::Inject(f) => f(&mut core),
                Incoming::Stop => self.stopping = true,
            }
        }
        core.turn(now, &mut self.out);
        self.core = Some(core);
        self.dispatch(took)
    }

    fn dispatch(&mut self, took: usize) -> Next {
        let out = &mut self.out;
        let stats = &self.shared.stats;
        add(&stats.turns, 1);
        add(&stats.steps, out.steps);
        if took > 0 {
            add(&stats.events, took);
            stats.events_per_turn.add(took as u64);
        }
        let mut batch = out.journal.take();
        self.writing |= batch.is_some();
        if took > FEW_EVENTS {
            self.skip = SKIP;
        }
        // A large batch is for the journal thread, which should not wait until the sockets have run.
        if batch.as_ref().is_some_and(is_small) && !out.more && !self.stopping && out.freed.is_empty() {
            match self.skip {
                0 => self.batch_here = batch.take(),
                _ => self.skip -= 1,
            }
        }
        // Start with the disk: it takes longest, and works during the rest.
        self.shared.journal.put(batch, &mut out.freed, out.checkpoint.take());
        let sends = !out.frames.is_empty();
        if sends {
            self.net.send(out.frames.drain(..));
        }
        for fetch in out.fetches.drain(..) {
            if let Err(refusal) = readers::ask(&self.shared.readers, fetch) {
                add(&stats.refused_fetches, 1);
                self.shared.inbound.put(refusal);
            }
        }
        let more = std::mem::take(&mut out.more);
        out.steps = 0;
        if self.batch_here.is_some() {
            Next::Write { sends }
        } else if more {
            Next::Again
        } else if (self.stopping && !self.writing) || self.events.is_closed() {
            Next::End
        } else if took > 0 && self.events.has_waiting() {
            Next::Again
        } else {
            Next::Wait
        }
    }

    /// Writes the batch in this thread, starts to write it, or passes it to the journal thread. Returns whether it was started.
    fn write(&mut self) -> bool {
        let Some(batch) = self.batch_here.take() else { return false };
        match write_here(&self.writer, &self.shared.journal, batch, self.signal.is_some()) {
            Here::Done => {}
            Here::Begun => self.flying = true,
            Here::Nothing(batch) => {
                // To start a write costs little, so the next batch may be tried again. A slow disk often finds the journal thread at work.
                if self.signal.is_none() {
                    self.skip = SKIP;
                }
                self.shared.journal.put(Some(batch), &mut Vec::new(), None);
            }
        }
        self.flying
    }

    /// Waits until there is work for a turn.
    async fn wait(&mut self) {
        let shared = self.shared.clone();
        let mut has_waited = false;
        std::future::poll_fn(|cx| {
            let ready = shared.inbound.bell.poll(cx, |cx| self.has_work(cx));
            has_waited |= ready.is_pending();
            ready
        })
        .await;
        // During a compaction, the reader threads may answer as fast as this thread asks, for seconds. Without a yield, the runtime would
        // not poll the sockets during that time.
        if !has_waited {
            tokio::task::yield_now().await;
        }
    }

    /// Whether there is work for a turn. If not, event sources that do not ring the bell are set up to wake this task.
    fn has_work(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.stopping && self.events.poll_ready(cx).is_ready() || !self.shared.inbound.is_empty() {
            return true;
        }
        if self.flying && self.has_signal(cx) {
            return true;
        }
        let Some(at) = self.core.as_ref().and_then(NodeCore::next_deadline) else { return false };
        if at <= self.now() {
            return true;
        }
        if self.armed != Some(at) {
            let deadline = self.base + Duration::from_nanos(at.0);
            self.timer.as_mut().reset(deadline.into());
            self.armed = Some(at);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            self.armed = None;
            return true;
        }
        false
    }

    /// Whether the batch that was begun may have ended. The next turn looks.
    fn has_signal(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(signal) = &self.signal else { return false };
        match signal.poll_read_ready(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
            // The runtime is shutting down. The journal thread waits for the batch.
            Poll::Ready(Err(_)) => {
                self.flying = false;
                self.shared.journal.leave(|work| work.flying = true);
            }
        }
        true
    }
}

/// Only a panic drops the driver before it has ended regularly. Peers must then notice at once that this node is gone, and the process must
/// be notified.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.inbound.close();
        if std::thread::panicking() {
            tracing::error!("the node thread panicked; this node stops");
            self.net.close();
            self.shared.ended.send_replace(Some(Ended::Panicked));
        }
    }
}

fn deliver(core: &mut NodeCore, now: Tick, event: NetEvent, shared: &Shared) {
    match event {
        NetEvent::Frame { from, class, envelope } => core.deliver(now, from, class, envelope),
        NetEvent::Link { peer, class, link } => core.set_link(now, peer, class, link),
        NetEvent::Peer { peer, identity } => {
            tracing::info!(%peer, life = %identity.incarnation, data = %identity.storage, "a life of a peer");
        }
        NetEvent::Refused { by, refusal } => {
            if matches!(refusal.code, RefusalCode::Duplicate | RefusalCode::Level | RefusalCode::PutBack) {
                shared.turned_away.send_if_modified(|known| {
                    let first = known.is_none();
                    known.get_or_insert((by, refusal));
                    first
                });
            }
        }
    }
}

/// Lets the runtime wait until the descriptor is readable. None if it cannot, so that nothing is written directly.
#[allow(unsafe_code)]
fn readable(fd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open, the result owns it, and nobody closes or replaces it meanwhile.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok()
}

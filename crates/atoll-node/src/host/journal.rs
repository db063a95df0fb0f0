//! The journal thread, which does all writes to the journal and to the files of cells. Each batch is one group commit.
//!
//! It writes one batch at a time and begins the next one when the last is synced (contracts X2). After a failure it writes nothing more,
//! and the node continues to answer what it can.
//!
//! If this thread is idle and recent batches were small on average, the node thread writes a small batch itself. Otherwise two threads
//! would have to be woken for the batch, one after the other. If the disk can write without a thread that waits, the node thread starts the
//! write, waits a short time if the disk is quick, and continues (`journal/flight.rs`). If not, and the disk is quick, it writes, syncs and
//! waits.

mod flight;
mod giving_back;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_core::testing::hit;
use atoll_core::{JournalBatch, Space};
use atoll_storage::{
    Aside, BatchError, CellStore, CheckpointJob, Journal, JournalError, PrepareJob, sync_batch, write_batch,
};

use super::incoming::Incoming;
use super::options::HostOptions;
use super::port::{self, Left, Worker};
use super::shared::Shared;
use super::stats::add;
use super::work::{JournalPort, Work};
use flight::{Flight, Synced, batch_bytes};
use giving_back::GivingBack;

/// After this long without a write, the journal marks what is synced.
const QUIET: Duration = Duration::from_millis(200);
/// How often a journal that is out of space checks for free space.
const RETRY: Duration = Duration::from_millis(250);
/// The maximum age of the published statistics under load.
const STATS_EVERY: Duration = Duration::from_millis(250);
/// If the journal lacks files that a checkpoint would free, the checkpoint comes this many times sooner. Otherwise a fast writer on a log
/// that is trimmed would fill one new file after another.
const HURRY: u32 = 16;
/// The maximum size of a batch that the node thread writes itself, in bytes. Too large: sockets wait longer. Too small: two threads are
/// woken more often.
const HERE_BYTES: usize = 8 * 1024;
/// The most that a single batch counts in the smoothed size, in bytes. A large batch between small ones keeps the node thread from writing
/// for a few batches, however large it was: for one small batch of up to 1 KiB, or for five of 4 KiB. Without this limit, a batch of
/// 1 MiB would do so for about twenty.
const COUNTED_BYTES: usize = 8 * HERE_BYTES;

/// The writer. One thread at a time uses it.
pub(crate) type SharedWriter = Arc<Mutex<Writer>>;

/// What [`write_here`] did.
pub(crate) enum Here {
    /// The batch was handled as in the journal thread, including a failure.
    Done,
    /// The batch is being written. Ask [`land`] for its end.
    Begun,
    /// Nothing: the batch is for the journal thread.
    Nothing(JournalBatch),
}

/// Returns whether the node thread may write a batch itself as far as its size is concerned.
pub(crate) fn is_small(batch: &JournalBatch) -> bool {
    batch_bytes(batch) <= HERE_BYTES
}

/// Writes a batch in the caller's thread, if that is probably faster than waking another one. If `begins`, it may only start the write.
pub(crate) fn write_here(
    writer: &Mutex<Writer>,
    port: &JournalPort,
    batch: JournalBatch,
    begins: bool,
) -> Here {
    let Some(mut writer) = port.take_over(writer) else { return Here::Nothing(batch) };
    if !writer.may_take(&batch) {
        return Here::Nothing(batch);
    }
    let batch = match begins {
        true => match writer.begin(batch) {
            Ok(()) => {
                writer.land_soon();
                return if writer.flight.is_some() { Here::Begun } else { Here::Done };
            }
            Err(batch) => batch,
        },
        false => batch,
    };
    if !writer.may_write_here(&batch) {
        return Here::Nothing(batch);
    }
    hit("host.journal.here");
    writer.write_alone(batch);
    Here::Done
}

/// Reports the batch that [`write_here`] has begun, if it has ended. Returns false if the journal thread does so from now on.
pub(crate) fn land(writer: &Mutex<Writer>, port: &JournalPort) -> bool {
    // The journal thread waits for the end of the batch before anything else that it does with the writer.
    let Ok(mut writer) = writer.try_lock() else {
        port.leave(|work| work.flying = true);
        return false;
    };
    writer.land();
    true
}

/// Runs the journal thread.
pub(crate) fn run(writer: &Mutex<Writer>, shared: &Shared) {
    // Even if this thread panics, the journal is closed, so that nothing is acknowledged that is not durable.
    let _closed = CloseOnPanic(shared);
    writer.lock().unwrap_or_else(PoisonError::into_inner).look_after(true);
    port::run(writer, &shared.journal);
}

impl Worker for Writer {
    type Left = Work;

    /// Returns how long to wait for work at most.
    fn patience(&self) -> Option<Duration> {
        // A closed journal has no errands any more. A time that stayed set would be past forever, and this thread would never sleep again.
        if self.space == Space::Closed {
            return None;
        }
        let rest = match () {
            () if self.stalled.is_some() || self.space == Space::FactsOnly => Some(RETRY),
            () if !self.marked => Some(QUIET.saturating_sub(self.synced_at.elapsed())),
            () => None,
        };
        let now = Instant::now();
        let errands = [self.checkpoint_at, self.giving_back.at].into_iter().flatten();
        errands.map(|at| at.saturating_duration_since(now)).chain(rest).min()
    }

    /// Does the work, or if there is none, what is due when the journal is idle.
    fn round(&mut self, work: Work) {
        // The node thread may have begun a batch since this thread looked last. There is one batch at a time (contracts X2).
        self.wait_for_flight();
        let quiet = work.is_empty();
        if let Err(error) = self.work(work) {
            self.fail(&error);
        }
        let due = quiet && self.stalled.is_none() && !self.marked;
        if due && self.synced_at.elapsed() >= QUIET {
            self.mark();
        }
        // A full disk is tried again at the pace of an idle journal.
        if self.space != Space::Closed
            && (quiet || !self.cells.is_short())
            && let Err(error) = self.cells.look_ahead()
        {
            self.fail(&error.into());
        }
        self.look_after(quiet);
    }

    fn end(&mut self) {
        self.wait_for_flight();
        self.mark();
        self.publish();
    }
}

/// Writes the journal.
pub(crate) struct Writer {
    journal: Journal,
    cells: CellStore,
    shared: Arc<Shared>,
    jobs: SyncSender<PrepareJob>,
    checkpoints: SyncSender<CheckpointJob>,
    /// The batch that is being written while no thread waits for it.
    flight: Option<Flight>,
    /// A batch that found no space on the disk. It is written when there is space again.
    stalled: Option<JournalBatch>,
    /// The state that was last reported to the core.
    space: Space,
    giving_back: GivingBack,
    checkpoint_spread: Duration,
    /// Since when a checkpoint has been due, and the fraction of the spread that it waits.
    checkpoint_due: Option<(Instant, f64)>,
    /// When to request the checkpoint that is due.
    checkpoint_at: Option<Instant>,
    /// The time before which no checkpoint is requested, because the last one found no space.
    checkpoint_rest: Option<Instant>,
    /// Whether a checkpoint was requested and is not written yet.
    asked: bool,
    /// Whether the last batch is marked.
    marked: bool,
    /// When the last batch was synced.
    synced_at: Instant,
    /// The smoothed duration of writing and syncing a batch.
    usual: Duration,
    /// The smoothed size of a batch, in bytes: the newest batch counts one eighth, and at most [`COUNTED_BYTES`] of it.
    usual_bytes: usize,
    /// See [`HostOptions::quick_disk`].
    quick: Duration,
    published: Instant,
}

impl Writer {
    pub(crate) fn new(
        journal: Journal,
        cells: CellStore,
        shared: Arc<Shared>,
        jobs: SyncSender<PrepareJob>,
        checkpoints: SyncSender<CheckpointJob>,
        options: &HostOptions,
    ) -> Self {
        Writer {
            giving_back: GivingBack::new(options.remove_pause),
            checkpoint_spread: options.checkpoint_spread,
            journal,
            cells,
            shared,
            jobs,
            checkpoints,
            flight: None,
            stalled: None,
            space: Space::Plenty,
            checkpoint_due: None,
            checkpoint_at: None,
            checkpoint_rest: None,
            asked: false,
            marked: false,
            synced_at: Instant::now(),
            usual: Duration::ZERO,
            usual_bytes: 0,
            quick: options.quick_disk,
            published: Instant::now(),
        }
    }

    /// Whether the node thread may write the batch itself and wait for the disk.
    fn may_write_here(&self, batch: &JournalBatch) -> bool {
        self.usual < self.quick && self.may_take(batch)
    }

    /// Whether the node thread may write the batch itself, apart from how long that takes.
    fn may_take(&self, batch: &JournalBatch) -> bool {
        self.space == Space::Plenty
            && self.stalled.is_none()
            && self.flight.is_none()
            // If recent batches were large on average, there is load: this small batch is only the beginning of the next one. It is
            // better to let that one form while the journal's thread is woken. One large batch between small ones is soon forgotten.
            && self.usual_bytes <= HERE_BYTES
            && self.weight(batch) <= HERE_BYTES
            && self.journal.has_room_for(batch)
            && self.cells.has_room_for(&batch.cells)
    }

    /// Returns the bytes of the records of a batch, and of the blocks of its cells. A cell takes whole blocks, however short it is.
    fn weight(&self, batch: &JournalBatch) -> usize {
        let records = batch.records.iter().map(|(_, record)| record.head.len() + record.payload.len());
        records.sum::<usize>() + self.cells.written_bytes(&batch.cells)
    }

    /// Writes a batch while the journal thread sleeps.
    fn write_alone(&mut self, batch: JournalBatch) {
        let was_marked = self.marked;
        if let Err(error) = self.write(batch) {
            return self.fail(&error);
        }
        self.was_alone(was_marked);
    }

    /// Starts to write a batch. `Err` returns the batch if that is not possible. Otherwise it is under way, or has failed, which is
    /// reported.
    fn begin(&mut self, batch: JournalBatch) -> Result<(), JournalBatch> {
        if !batch.cells.is_empty() {
            return Err(batch);
        }
        let began = Instant::now();
        match self.journal.begin_batch(&batch) {
            Ok(None) => return Err(batch),
            Ok(Some(written)) => {
                hit("host.journal.begun");
                self.flight = Some(Flight::new(&batch, written, began));
            }
            Err(error) => self.fail(&error.into()),
        }
        Ok(())
    }

    /// Reports the batch that is under way, if it has ended.
    fn land(&mut self) {
        if self.flight.is_some() {
            let ended = self.journal.poll_batch();
            self.landed(ended);
        }
    }

    /// Waits for the batch that is under way on a quick disk, for twice the usual time at most, and reports it if it has ended.
    fn land_soon(&mut self) {
        if self.flight.is_some() && self.usual < self.quick {
            let ended = self.journal.wait_batch_at_most((self.usual * 2).min(self.quick));
            self.landed(ended);
        }
    }

    /// Waits for the batch that is under way, if there is one, and reports it.
    fn wait_for_flight(&mut self) {
        if self.flight.is_some() {
            hit("host.journal.waited");
            let ended = self.journal.wait_batch().map(|()| true);
            self.landed(ended);
        }
    }

    fn landed(&mut self, ended: Result<bool, JournalError>) {
        if ended == Ok(false) {
            return;
        }
        let Some(flight) = self.flight.take() else { return };
        if let Err(error) = ended {
            return self.fail(&BatchError::from(error));
        }
        let was_marked = self.marked;
        self.is_durable(flight.landed());
        add(&self.shared.stats.flights, 1);
        self.was_alone(was_marked);
    }

    /// Does what follows a batch that the node thread has written.
    fn was_alone(&mut self, was_marked: bool) {
        add(&self.shared.stats.syncs_here, 1);
        if was_marked {
            self.shared.journal.leave(|work| work.unmarked = true);
        }
        self.look_after(false);
    }

    fn work(&mut self, work: Work) -> Result<(), BatchError> {
        let Work { batch, freed, checkpoint, aside, prepared, unmarked: _, flying: _ } = work;
        if self.space == Space::Closed {
            return Ok(());
        }
        if let Some((prepared, took)) = prepared {
            self.giving_back.ended(took);
            self.journal.prepared(prepared)?;
        }
        // The batch first, because acknowledgements wait for it. The rest is done while the node thread handles them.
        if let Some(batch) = batch {
            self.write(batch)?;
        }
        if !freed.is_empty() {
            self.journal.free(&freed)?;
        }
        if let Some(checkpoint) = checkpoint {
            // There is only one checkpoint at a time, so the queue has room. If the checkpoint thread is gone, the writer runs the job
            // itself.
            match self.checkpoints.try_send(self.journal.checkpoint_job(checkpoint)) {
                Ok(()) => {}
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                    self.checkpointed(job.run())?;
                }
            }
        }
        if let Some(aside) = aside {
            self.checkpointed(aside)?;
        }
        match self.stalled.take() {
            Some(batch) => self.write(batch),
            None => Ok(()),
        }
    }

    fn checkpointed(&mut self, aside: Aside) -> Result<(), JournalError> {
        self.asked = false;
        match self.journal.checkpointed(aside) {
            Ok(()) => add(&self.shared.stats.checkpoints, 1),
            // The old checkpoint remains valid. The next one is requested after a pause, because it needs space, too.
            Err(error @ JournalError::NoSpace { .. }) => {
                self.checkpoint_rest = Some(Instant::now() + RETRY);
                tracing::warn!(%error, "checkpoint not written");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn write(&mut self, batch: JournalBatch) -> Result<(), BatchError> {
        let began = Instant::now();
        let written = match write_batch(&mut self.journal, &mut self.cells, &batch) {
            Ok(written) => written,
            Err(error) if error.is_no_space() => {
                if self.space != Space::FactsOnly {
                    add(&self.shared.stats.stalled_batches, 1);
                    tracing::warn!(%error, "a batch waits for space");
                }
                self.stalled = Some(batch);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let between = Instant::now();
        sync_batch(&mut self.journal, &mut self.cells)?;
        let (bytes, weight, records) = (batch_bytes(&batch), self.weight(&batch), batch.records.len());
        self.is_durable(Synced { written, bytes, weight, records, began, between, ended: Instant::now() });
        Ok(())
    }

    /// Reports a batch that is durable.
    fn is_durable(&mut self, batch: Synced) {
        let Synced { written, bytes, weight, records, began, between, ended } = batch;
        self.shared.inbound.put(Incoming::Durable(Ok(written)));
        self.marked = false;
        self.synced_at = ended;
        self.usual = (self.usual * 7 + (ended - began)) / 8;
        self.usual_bytes = (self.usual_bytes * 7 + weight.min(COUNTED_BYTES)) / 8;
        self.giving_back.syncs += 1;
        let stats = &self.shared.stats;
        add(&stats.syncs, 1);
        add(&stats.records, records);
        add(&stats.bytes, bytes);
        stats.batch_records.add(records as u64);
        stats.write_us.add_micros(between - began);
        stats.sync_us.add_micros(ended - between);
    }

    /// Starts the jobs that the journal needs, and reports to the core what it accepts and what is due.
    fn look_after(&mut self, quiet: bool) {
        if self.space == Space::Closed {
            return;
        }
        let now = Instant::now();
        let due = self.giving_back.is_due(self.journal.has_excess(), now);
        let make = self.journal.needs_segment();
        let piece = if due && make.is_none() { self.journal.gives_back() } else { None };
        if piece.is_some() {
            self.giving_back.begins(now);
        }
        if let Some(job) = make.or(piece) {
            // There is only one job at a time, so the queue has room. If the preparing thread is gone, the journal makes its own segments.
            let _ = self.jobs.try_send(job);
        }
        // A batch that found no space is stronger evidence than the computed space, so entries are refused until it is written.
        let space = match self.journal.space() {
            Space::Plenty if self.stalled.is_some() || self.cells.is_short() => Space::FactsOnly,
            space => space,
        };
        if space != self.space && space != Space::Closed {
            tracing::warn!(?space, "what the journal accepts has changed");
            self.space = space;
            self.shared.inbound.put(Incoming::Space(space));
        }
        if !self.journal.wants_checkpoint() {
            // What made it due is over, for example because a full disk has room again.
            (self.checkpoint_due, self.checkpoint_at) = (None, None);
        } else if !self.asked {
            let (due, part) = *self.checkpoint_due.get_or_insert_with(|| (now, part()));
            let hurry = if self.journal.lacks_files() { HURRY } else { 1 };
            // If the disk is full, only a checkpoint frees space, so do not delay it.
            let spread =
                if self.space == Space::FactsOnly { Duration::ZERO } else { self.checkpoint_spread / hurry };
            let at = self.checkpoint_rest.into_iter().fold(due + spread.mul_f64(part), Instant::max);
            self.checkpoint_at = Some(at);
            if now >= at {
                (self.checkpoint_due, self.checkpoint_at, self.checkpoint_rest) = (None, None, None);
                self.asked = true;
                self.shared.inbound.put(Incoming::WantsCheckpoint);
            }
        }
        if let Some(segment) = self.journal.sparse_segment() {
            self.shared.inbound.put(Incoming::Compact(segment));
        }
        if quiet || self.published.elapsed() >= STATS_EVERY {
            self.publish();
        }
    }

    fn mark(&mut self) {
        self.marked = true;
        if self.space == Space::Closed {
            return;
        }
        let marked = self.journal.mark().and_then(|()| self.journal.sync().map(drop));
        if let Err(error) = marked.map_err(BatchError::from).and_then(|()| Ok(self.cells.mark()?)) {
            self.fail(&error);
        }
    }

    fn publish(&mut self) {
        self.published = Instant::now();
        let stats = self.journal.stats();
        *self.shared.journal_stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
        *self.shared.cell_stats.lock().unwrap_or_else(PoisonError::into_inner) = self.cells.stats();
    }

    fn fail(&mut self, error: &BatchError) {
        if self.space == Space::Closed {
            return;
        }
        tracing::error!(%error, "the journal is closed until this node restarts");
        self.space = Space::Closed;
        self.stalled = None;
        self.shared.close(error.to_string());
    }
}

/// Returns a random number from 0 to 1.
fn part() -> f64 {
    let bits = RandomState::new().build_hasher().finish() as u32;
    f64::from(bits) / f64::from(u32::MAX)
}

struct CloseOnPanic<'a>(&'a Shared);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close("the journal thread panicked".into());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc::{Receiver, sync_channel};

    use atoll_core::{Cell, CellWrite, Checkpoint, Lsn, Record, RecordKind, RoleKind, StorageId};
    use atoll_storage::{CellOptions, Fault, JournalOptions, MemDisk};
    use bytes::Bytes;
    use tokio::sync::watch;

    use super::*;

    pub(super) const HOUR: Duration = Duration::from_secs(3600);

    /// A writer whose jobs nobody runs. Whatever can wait is due in an hour, and its disk counts as quick however busy the machine is.
    pub(super) struct Lone {
        pub(super) writer: Writer,
        _jobs: (Receiver<PrepareJob>, Receiver<CheckpointJob>),
    }

    pub(super) fn lone(disk: &MemDisk, options: JournalOptions) -> Lone {
        let visit = &mut |_| Ok::<_, Infallible>(());
        let (journal, _) = Journal::recover(Arc::new(disk.clone()), options, visit).unwrap();
        let cells = CellStore::recover(Arc::new(disk.clone()), CellOptions::small(StorageId(1)), &mut |_| {
            Ok::<_, Infallible>(())
        });
        let shared = Arc::new(Shared {
            inbound: Default::default(),
            stats: Default::default(),
            failure: Default::default(),
            journal_stats: Mutex::new(journal.stats()),
            cell_stats: Mutex::default(),
            turned_away: watch::Sender::new(None),
            ended: watch::Sender::new(None),
            journal: Arc::default(),
            readers: Arc::new(super::super::shared::Readers::new(1)),
        });
        let ((jobs, job), (checkpoints, checkpoint)) = (sync_channel(1), sync_channel(1));
        let options = HostOptions {
            remove_pause: HOUR,
            checkpoint_spread: HOUR,
            quick_disk: HOUR,
            ..HostOptions::default()
        };
        let writer = Writer::new(journal, cells.unwrap(), shared, jobs, checkpoints, &options);
        Lone { writer, _jobs: (job, checkpoint) }
    }

    pub(super) fn facts(first: u64, count: u64) -> JournalBatch {
        let (head, payload) = (Bytes::new(), Bytes::from_static(&[7; 1000]));
        let record = Record { owner: RoleKind(1), kind: RecordKind::Fact, head, payload };
        JournalBatch::of((first..first + count).map(|n| (Lsn(n), record.clone())).collect())
    }

    #[test]
    fn a_small_batch_between_large_ones_is_left_to_the_journal_thread() {
        // One segment has room for everything that the test writes.
        let segment_bytes = 4 * 1024 * 1024;
        let small = JournalOptions::small(StorageId(1));
        let options = JournalOptions { segment_bytes, first_segment_bytes: segment_bytes, ..small };
        let mut lone = lone(&MemDisk::new(), options);
        let writer = &mut lone.writer;
        assert!(writer.may_write_here(&facts(1, 1)));
        let mut next = 1;
        let mut write = |writer: &mut Writer, count: u64, times: usize| {
            for _ in 0..times {
                writer.write_alone(facts(next, count));
                next += count;
            }
        };
        // One large batch among many small ones is soon forgotten, however large it was.
        for large in [70, 700] {
            write(writer, 1, 40);
            assert!(writer.may_write_here(&facts(1, 1)));
            write(writer, large, 1);
            assert!(!writer.may_write_here(&facts(1, 1)), "the batch right after {large} records");
            write(writer, 1, 1);
            assert!(writer.may_write_here(&facts(1, 1)), "{large} records, and one small batch since");
        }
        // Several large batches show that there is load.
        write(writer, 20, 16);
        assert!(!writer.may_write_here(&facts(1, 1)));
        write(writer, 1, 1);
        assert!(!writer.may_write_here(&facts(1, 1)), "a small batch between large ones");
        write(writer, 20, 1);
        assert!(!writer.may_write_here(&facts(1, 1)));
        write(writer, 1, 12);
        assert!(writer.may_write_here(&facts(1, 1)), "the load is over");
        assert!(!writer.may_write_here(&facts(1, 20)), "a large batch");
    }

    #[test]
    fn a_closed_journal_is_waited_for_without_end() {
        let (disk, options) = (MemDisk::new(), JournalOptions::small(StorageId(1)));
        lone(&disk, options.clone()).writer.write_alone(facts(1, 1));
        disk.kill_process();
        // The restart has the end of a file to give back, in an hour.
        let mut lone = lone(&disk, options);
        lone.writer.look_after(true);
        lone.writer.marked = true;
        assert!(lone.writer.patience().is_some());
        disk.fail_next(Fault::Sync, 1);
        lone.writer.write_alone(facts(2, 1));
        assert!(lone.writer.space == Space::Closed && lone.writer.giving_back.at.is_some());
        assert_eq!(lone.writer.patience(), None);
    }

    #[test]
    fn a_checkpoint_that_is_not_wanted_any_more_is_not_waited_for() {
        let options = JournalOptions { checkpoint_facts_bytes: 4000, ..JournalOptions::small(StorageId(1)) };
        let mut lone = lone(&MemDisk::new(), options);
        lone.writer.write_alone(facts(1, 5));
        lone.writer.mark();
        assert!(lone.writer.checkpoint_due.is_some() && lone.writer.patience().is_some());
        let checkpoint = Checkpoint { covers: Lsn(5), states: Vec::new() };
        lone.writer.journal.write_checkpoint(&checkpoint).unwrap();
        lone.writer.look_after(true);
        assert_eq!((lone.writer.patience(), lone.writer.checkpoint_due), (None, None));
    }

    pub(super) fn cell(number: u64, key: u8) -> JournalBatch {
        let (key, value) = (Bytes::from(vec![key]), Some(Bytes::from(vec![number as u8; 700])));
        JournalBatch {
            records: Vec::new(),
            cells: vec![CellWrite { number, owner: RoleKind(1), key, value }],
        }
    }

    fn cells_of(disk: &MemDisk) -> Vec<(u8, u8)> {
        let mut found = Vec::new();
        let visit = &mut |cell: Cell| {
            found.push((cell.key[0], cell.value[0]));
            Ok::<_, Infallible>(())
        };
        CellStore::recover(Arc::new(disk.clone()), CellOptions::small(StorageId(1)), visit).unwrap();
        found
    }

    pub(super) fn told(lone: &Lone) -> Vec<Incoming> {
        let mut incoming = Vec::new();
        lone.writer.shared.inbound.take(&mut incoming);
        incoming
    }

    #[test]
    fn a_batch_of_cells_is_durable_once_it_is_reported() {
        let disk = MemDisk::new();
        let mut lone = lone(&disk, JournalOptions::small(StorageId(1)));
        assert!(!lone.writer.may_write_here(&cell(1, 7)), "a file has to be made first");
        lone.writer.round(Work { batch: Some(cell(1, 7)), ..Work::default() });
        lone.writer.usual = Duration::ZERO;
        assert!(matches!(&told(&lone)[..], [Incoming::Durable(Ok(written))] if written.is_empty()));
        assert!(lone.writer.may_write_here(&cell(2, 7)));
        let syncs = disk.syncs();
        lone.writer.write_alone(cell(2, 7));
        assert_eq!(disk.syncs() - syncs, 1, "one sync, and none of the journal");
        let cut = disk.fork();
        cut.crash(&mut || false);
        assert_eq!(cells_of(&cut), [(7, 2)]);
        disk.fail_next(Fault::Sync, 1);
        lone.writer.write_alone(cell(3, 7));
        assert!(matches!(told(&lone)[..], [Incoming::Durable(Ok(_)), Incoming::Durable(Err(_))]));
        assert!(lone.writer.space == Space::Closed);
    }

    /// Short cells take whole blocks, so a few of them are load, although they have few bytes.
    #[test]
    fn a_batch_of_several_cells_is_left_to_the_journal_thread() {
        let mut lone = lone(&MemDisk::new(), JournalOptions::small(StorageId(1)));
        let cells = |first: u64, count: u64| JournalBatch {
            records: Vec::new(),
            cells: (0..count).flat_map(|n| cell(first + n, n as u8).cells).collect(),
        };
        lone.writer.round(Work { batch: Some(cells(1, 9)), ..Work::default() });
        lone.writer.usual = Duration::ZERO;
        assert!(batch_bytes(&cells(10, 9)) < HERE_BYTES);
        assert!(!lone.writer.may_write_here(&cells(10, 9)));
        assert!(lone.writer.may_write_here(&cells(10, 7)));
    }

    #[test]
    fn cells_that_find_no_space_wait_for_it() {
        let disk = MemDisk::new();
        let mut lone = lone(&disk, JournalOptions::small(StorageId(1)));
        disk.set_capacity(Some(disk.used_bytes()));
        lone.writer.round(Work { batch: Some(cell(1, 7)), ..Work::default() });
        assert!(matches!(told(&lone)[..], [Incoming::Space(Space::FactsOnly)]));
        assert!(lone.writer.patience().is_some_and(|patience| patience <= RETRY));
        disk.set_capacity(None);
        lone.writer.round(Work::default());
        let told = told(&lone);
        assert!(matches!(told[..], [Incoming::Durable(Ok(_)), Incoming::Space(Space::Plenty)]));
        assert_eq!(cells_of(&disk.fork()), [(7, 1)]);
    }
}

#[cfg(test)]
#[path = "journal/flight_test.rs"]
mod flight_tests;

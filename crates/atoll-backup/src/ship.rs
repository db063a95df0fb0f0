//! Ships entries, and follows what others ship.

use atoll_contract::LogPos;
use atoll_core::testing::{hit, mutant};
use atoll_core::ticket;
use bytes::Bytes;

use crate::entries;
use crate::error::BackupError;
use crate::find::Row;
use crate::folder::{Created, Folder};
use crate::format::{self, About, Head, ONLY, Place, Run, SnapshotHead};
use crate::mutants;
use crate::reading::SnapshotInfo;
use crate::source::{Source, SourceError};
use crate::take::Taken;

/// About as many bytes of entries are in a run at most.
const RUN_BYTES: usize = 4 * 1024 * 1024;

/// A reader looks for later runs behind the end, so many times, each time twice as far.
const LOOK_BEYOND: u32 = 12;

/// The end of what is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The number of the next run.
    pub runs: u64,
    /// All entries below are shipped, as far as they are kept.
    pub to: LogPos,
    /// The time of the last of them, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// When it was shipped, by the clock of its node.
    pub made_ms: u64,
    link: u32,
}

impl End {
    fn behind(number: u64, run: &Head<Run>) -> Self {
        let Run { to, time_ms, made_ms, .. } = run.meta;
        End { runs: number + 1, to, time_ms, made_ms, link: run.sum }
    }

    /// Entries below a snapshot need no run.
    fn not_below(self, snapshot: &SnapshotHead) -> Self {
        match snapshot.below > self.to {
            true => End { to: snapshot.below, time_ms: snapshot.time_ms, ..self },
            false => self,
        }
    }
}

/// What a round has shipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// How many runs.
    pub runs: u64,
    /// How many bytes they have in the store.
    pub bytes: u64,
}

/// One node's view of a backup that grows.
#[derive(Clone, Debug)]
pub struct Shipper {
    folder: Folder,
    backup: u128,
    newest: Option<SnapshotInfo>,
    end: Option<End>,
}

impl Shipper {
    /// Opens the backup with this id, and begins it if there is none at its place.
    ///
    /// # Errors
    /// The store gives no result, or another backup is there.
    pub async fn open(folder: Folder, backup: u128, now_ms: u64) -> Result<Self, BackupError> {
        let place = Place { backup, number: ONLY };
        let about = About { cluster: folder.cluster.clone(), log: folder.log.clone(), made_ms: now_ms };
        let name = folder.about();
        let bytes = format::encode(place, &about, &[]).ok_or(BackupError::Empty)?;
        let decode = |bytes: &Bytes| format::head_of_any::<About>(bytes);
        let found = match folder.read(&name, None, decode).await? {
            Some(found) => Some(found),
            None => match folder.create(&name, &bytes).await? {
                Created::Ours => None,
                Created::Theirs => {
                    let theirs = folder.read(&name, None, decode).await?;
                    Some(theirs.ok_or(BackupError::Missing(name))?)
                }
            },
        };
        if found.is_some_and(|head| {
            head.place != place || head.meta.cluster != folder.cluster || head.meta.log != folder.log
        }) {
            return Err(BackupError::Other { cluster: folder.cluster });
        }
        Ok(Shipper { folder, backup, newest: None, end: None })
    }

    /// Opens the backup that is at a place, to read it.
    pub(crate) async fn found(folder: Folder) -> Result<(Self, About), BackupError> {
        let name = folder.about();
        let none = || BackupError::None { cluster: folder.cluster.clone(), log: folder.log.clone() };
        let found = folder.read(&name, None, |bytes| format::head_of_any::<About>(bytes)).await?;
        let head = found.ok_or_else(none)?;
        if head.meta.cluster != folder.cluster || head.meta.log != folder.log {
            return Err(BackupError::Other { cluster: folder.cluster });
        }
        let backup = head.place.backup;
        Ok((Shipper { folder, backup, newest: None, end: None }, head.meta))
    }

    pub(crate) fn parts(&self) -> (&Folder, u128) {
        (&self.folder, self.backup)
    }

    /// Returns the end of what is shipped. None before the first snapshot.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns the newest snapshot.
    pub fn newest(&self) -> Option<&SnapshotInfo> {
        self.newest.as_ref()
    }

    /// Returns the number of the next snapshot.
    pub fn next_snapshot(&self) -> u64 {
        self.newest.as_ref().map_or(0, |newest| newest.number + 1)
    }

    fn place(&self, number: u64) -> Place {
        Place { backup: self.backup, number }
    }

    async fn run_head(&self, number: u64) -> Result<Option<Head<Run>>, BackupError> {
        self.folder.get_head::<Run>(&self.folder.run(number), self.place(number)).await
    }

    /// Learns what was shipped since the last call, by any node.
    ///
    /// # Errors
    /// The store gives no result, or an object is damaged.
    pub async fn follow(&mut self) -> Result<(), BackupError> {
        let next = self.next_snapshot();
        let free = self.folder.first_free(Row::Snapshots, next).await?;
        if free > next {
            let name = self.folder.head(free - 1);
            let head = self.folder.get_head::<SnapshotHead>(&name, self.place(free - 1)).await?;
            let head = head.ok_or(BackupError::Missing(name))?.meta;
            self.newest = Some(SnapshotInfo { number: free - 1, head });
        }
        let Some(newest) = self.newest.clone() else { return Ok(()) };
        let mut end = match self.end {
            Some(end) => end,
            None => self.find_end(&newest.head).await?,
        };
        while let Some(run) = self.run_head(end.runs).await? {
            end = End::behind(end.runs, &run);
        }
        self.end = Some(end.not_below(&newest.head));
        Ok(())
    }

    async fn find_end(&self, newest: &SnapshotHead) -> Result<End, BackupError> {
        let free = self.folder.first_free(Row::Runs, newest.run).await?;
        if let Some(last) = free.checked_sub(1)
            && let Some(run) = self.run_head(last).await?
        {
            return Ok(End::behind(last, &run));
        }
        let SnapshotHead { below, time_ms, made_ms, .. } = *newest;
        Ok(End { runs: free, to: below, time_ms, made_ms, link: 0 })
    }

    /// Makes sure that no later run follows the end: then one between is missing.
    ///
    /// # Errors
    /// The store gives no result, or a run is missing.
    pub(crate) async fn check_end(&mut self) -> Result<(), BackupError> {
        for step in (0..LOOK_BEYOND).map(|power| 1 << power) {
            let Some(end) = self.end else { return Ok(()) };
            if !self.folder.has(&self.folder.run(end.runs + step)).await? {
                continue;
            }
            // It may have been shipped since.
            let name = self.folder.run(end.runs);
            if !self.folder.has(&name).await? {
                return Err(BackupError::Missing(name));
            }
            self.follow().await?;
        }
        Ok(())
    }

    /// Ships what the source has and the backup lacks. Ships nothing before the first snapshot.
    ///
    /// # Errors
    /// The store gives no result, or the source does not have what is to be shipped. What was shipped before stays.
    pub async fn ship(
        &mut self,
        source: &dyn Source,
        writer: u64,
        now_ms: u64,
    ) -> Result<Shipped, BackupError> {
        let mut shipped = Shipped::default();
        let (Some(mut end), Some(at)) = (self.end, source.at()) else { return Ok(shipped) };
        while end.to < at.below {
            let mut list = source.read(end.to..at.below, RUN_BYTES).await?;
            if list.is_empty() {
                return Err(SourceError::Later("the log gives no entries".to_owned()).into());
            }
            if mutant(mutants::BACKUP_SKIPS_ENTRY) && list.len() > 1 {
                let last = list.len() - 1;
                list[last] = list[last - 1].clone();
            }
            let to = end.to.plus(list.len() as u64);
            let run = Run {
                from: end.to,
                to,
                before_ms: end.time_ms,
                time_ms: list.iter().map(|entry| entry.time_ms).fold(end.time_ms, u64::max),
                hash: (to == at.below).then_some(at.hash),
                link: end.link,
                made_ms: now_ms,
                writer,
            };
            let (number, place) = (end.runs, self.place(end.runs));
            let made = self.folder.compute(move || format::encode(place, &run, &entries::encode(&list)));
            let too_long = || SourceError::Later("a run of entries is too long".to_owned());
            let bytes = made.await.flatten().ok_or_else(too_long)?;
            let name = self.folder.run(number);
            let run = match self.folder.create(&name, &bytes).await? {
                Created::Ours => {
                    shipped.runs += 1;
                    shipped.bytes += bytes.len() as u64;
                    let damaged = |error| BackupError::Damaged { name, error };
                    format::head::<Run>(&bytes, place).map_err(damaged)?
                }
                Created::Theirs => self.run_head(number).await?.ok_or(BackupError::Missing(name))?,
            };
            end = End::behind(number, &run);
            self.end = Some(end);
        }
        Ok(shipped)
    }

    /// Adds a snapshot whose pieces are shipped. `gap`: the log has lost entries between what is shipped and the snapshot, so the snapshot
    /// stands alone. Returns false if runs up to the snapshot have to be shipped first.
    ///
    /// # Errors
    /// The store gives no result, another node has added this snapshot, or there is one of a later state. A replica may have committed
    /// little of what it has applied, for example after it has lost its store. As the newest snapshot, an old state would make those before
    /// it look too old to be kept, and the runs that it needs may be gone.
    pub async fn add(&mut self, taken: &Taken, gap: bool, now_ms: u64) -> Result<bool, BackupError> {
        self.follow().await?;
        if self.next_snapshot() != taken.number {
            return Err(BackupError::Overtaken);
        }
        let newest = self.newest.as_ref().map_or(LogPos::ZERO, |newest| newest.head.below);
        if taken.below < newest && !mutant(mutants::BACKUP_GOES_BACK) {
            hit("backup.old_state");
            let why = format!(
                "the state of this replica, below {}, is older than the newest snapshot",
                taken.below
            );
            return Err(SourceError::Later(why).into());
        }
        let joined = self.end.is_some_and(|end| end.to >= taken.below);
        if !joined && !gap && self.newest.is_some() {
            return Ok(false);
        }
        let run = self.first_run(taken.below).await?;
        let head = SnapshotHead {
            below: taken.below,
            time_ms: taken.time_ms,
            hash: taken.hash,
            run,
            joined,
            attempt: taken.attempt,
            pieces: taken.pieces,
            keys: taken.keys,
            bytes: taken.bytes,
            made_ms: now_ms,
        };
        let bytes = format::encode(self.place(taken.number), &head, &[]).ok_or(BackupError::Empty)?;
        match self.folder.create(&self.folder.head(taken.number), &bytes).await? {
            Created::Ours => {}
            Created::Theirs => return Err(BackupError::Overtaken),
        }
        self.follow().await?;
        Ok(true)
    }

    /// Returns the first run that a reader needs behind a snapshot.
    async fn first_run(&self, below: LogPos) -> Result<u64, BackupError> {
        let Some(end) = self.end else { return Ok(0) };
        let least = self.newest.as_ref().map_or(0, |newest| newest.head.run);
        let mut number = end.runs;
        while number > least {
            let name = self.folder.run(number - 1);
            let run = self.run_head(number - 1).await?.ok_or(BackupError::Missing(name))?;
            if run.meta.to <= below {
                break;
            }
            number -= 1;
        }
        Ok(number)
    }
}

impl Folder {
    /// Runs a computation where it keeps nobody waiting. None if its thread has ended.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, wait) = ticket();
        self.spawn(Box::new(move || done.complete(work())));
        wait.await.ok()
    }
}

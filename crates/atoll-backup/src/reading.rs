//! Reads a backup. Nothing is written to it.

use std::fmt;

use atoll_contract::LogPos;
use bytes::{Buf, Bytes};

use crate::entries::Entry;
use crate::error::{BackupError, Damaged};
use crate::find::Row;
use crate::folder::Folder;
use crate::format::{self, About, Part, Place, Run, SnapshotHead};
use crate::ship::{End, Shipper};

/// More snapshots are not listed.
const MOST_SNAPSHOTS: u64 = 100_000;

/// A snapshot in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its number.
    pub number: u64,
    /// What it is.
    pub head: SnapshotHead,
}

/// A moment that can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The end of the backup.
    Latest,
    /// The state with all entries below this position.
    Position(LogPos),
    /// The state with all entries up to this time of the log, in milliseconds since the Unix epoch.
    Time(u64),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Latest => f.write_str("latest"),
            Moment::Position(at) => write!(f, "position {at}"),
            Moment::Time(ms) => write!(f, "{ms} ms"),
        }
    }
}

/// A backup as it was when it was opened.
#[derive(Clone, Debug)]
pub struct Backup {
    folder: Folder,
    backup: u128,
    /// Whose it is.
    pub about: About,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// The end of its entries. None if it has no snapshot yet.
    pub end: Option<End>,
}

impl Backup {
    /// Opens the backup at a place.
    ///
    /// # Errors
    /// There is none, the store gives no result, or an object is damaged.
    pub async fn open(folder: Folder) -> Result<Self, BackupError> {
        let (mut shipper, about) = Shipper::found(folder).await?;
        let first = shipper.parts().0.first_free(Row::Gone, 0).await?;
        shipper.follow().await?;
        shipper.check_end().await?;
        let (folder, backup) = (shipper.parts().0.clone(), shipper.parts().1);
        let mut snapshots = Vec::new();
        for number in (first..shipper.next_snapshot()).take(MOST_SNAPSHOTS as usize) {
            let name = folder.head(number);
            match folder.get_head::<SnapshotHead>(&name, Place { backup, number }).await? {
                Some(head) => snapshots.push(SnapshotInfo { number, head: head.meta }),
                // It was given up meanwhile.
                None if folder.has(&folder.gone(number)).await? => {}
                None => return Err(BackupError::Missing(name)),
            }
        }
        Ok(Backup { backup, about, snapshots, end: shipper.end(), folder })
    }

    /// Returns the id of the backup.
    pub fn id(&self) -> u128 {
        self.backup
    }

    /// Returns the snapshot from which a moment is restored.
    ///
    /// # Errors
    /// The moment is not in the backup.
    pub fn snapshot_for(&self, moment: Moment) -> Result<&SnapshotInfo, BackupError> {
        self.snapshots_for(moment).map(|(best, _)| best)
    }

    /// Returns the snapshot from which a moment is best restored, and the earlier ones, the newest first: more entries follow those.
    ///
    /// # Errors
    /// The moment is not in the backup.
    pub fn snapshots_for(
        &self,
        moment: Moment,
    ) -> Result<(&SnapshotInfo, impl Iterator<Item = &SnapshotInfo>), BackupError> {
        let (Some(first), Some(end)) = (self.snapshots.first(), self.end) else {
            return Err(BackupError::Empty);
        };
        let late = match moment {
            Moment::Latest => false,
            Moment::Position(to) => to > end.to,
            Moment::Time(ms) => ms > end.time_ms,
        };
        if late {
            return Err(BackupError::TooLate { below: end.to, time_ms: end.time_ms });
        }
        let is_before = move |head: &SnapshotHead| match moment {
            Moment::Latest => true,
            Moment::Position(to) => head.below <= to,
            Moment::Time(ms) => head.time_ms <= ms,
        };
        let mut before = self.snapshots.iter().rev().filter(move |snapshot| is_before(&snapshot.head));
        let early = BackupError::TooEarly { below: first.head.below, time_ms: first.head.time_ms };
        let best = before.next().ok_or(early)?;
        Ok((best, before))
    }

    /// Returns the pieces of the state in one object of a snapshot, in order.
    ///
    /// # Errors
    /// The store gives no result, or the object is missing or damaged.
    pub async fn pieces(&self, snapshot: &SnapshotInfo, number: u64) -> Result<Vec<Bytes>, BackupError> {
        let attempt = snapshot.head.attempt;
        let name = self.folder.piece(snapshot.number, attempt, number);
        let place = Place { backup: self.backup, number };
        let read = self.folder.read(&name, None, |bytes| format::decode::<Part>(bytes, place)).await?;
        let (head, mut body) = read.ok_or_else(|| BackupError::Missing(name.clone()))?;
        let damaged = |error| BackupError::Damaged { name: name.clone(), error };
        if head.meta != (Part { snapshot: snapshot.number, attempt }) {
            return Err(damaged(Damaged("it belongs to another snapshot")));
        }
        let mut pieces = Vec::new();
        while !body.is_empty() {
            let length = if body.len() < 4 { usize::MAX } else { body.get_u32_le() as usize };
            if length > body.len() {
                return Err(damaged(Damaged("a piece ends too early")));
            }
            pieces.push(body.split_to(length));
        }
        Ok(pieces)
    }

    /// Returns a reader of the entries behind a snapshot.
    pub fn runs(&self, snapshot: &SnapshotInfo) -> Runs<'_> {
        Runs { backup: self, number: snapshot.head.run, at: snapshot.head.below, link: None }
    }
}

/// Reads the entries of a backup in order.
#[derive(Debug)]
pub struct Runs<'a> {
    backup: &'a Backup,
    number: u64,
    at: LogPos,
    link: Option<u32>,
}

impl Runs<'_> {
    /// Returns the next entries, of which the first one is at the position where the last ones ended, and the run that they are from. None
    /// at the end of the backup.
    ///
    /// # Errors
    /// The store gives no result, or the run is missing, damaged, or not the next one.
    pub async fn next(&mut self) -> Result<Option<(Run, Vec<Entry>)>, BackupError> {
        while self.number < self.backup.end.map_or(0, |end| end.runs) {
            let folder = &self.backup.folder;
            let name = folder.run(self.number);
            let place = Place { backup: self.backup.backup, number: self.number };
            let read = folder.read(&name, None, |bytes| format::decode_run(bytes, place)).await?;
            let (head, mut entries) = read.ok_or_else(|| BackupError::Missing(name.clone()))?;
            let damaged = |error| BackupError::Damaged { name: name.clone(), error };
            if self.link.is_some_and(|link| link != head.meta.link) {
                return Err(damaged(Damaged("it does not follow the run before it")));
            }
            self.link = Some(head.sum);
            self.number += 1;
            let run = head.meta;
            if run.to <= self.at {
                continue;
            }
            if run.from > self.at {
                return Err(BackupError::Gap { from: self.at, to: run.from });
            }
            let skipped = usize::try_from(self.at.since(run.from)).unwrap_or(usize::MAX);
            let skipped = skipped.min(entries.len());
            entries.drain(..skipped);
            self.at = run.to;
            return Ok(Some((run, entries)));
        }
        Ok(None)
    }
}

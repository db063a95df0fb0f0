//! Which positions of a log are left in all old data directories together. Every entry is read, so its checksums are checked.

use std::ops::Range;

use atoll_contract::{Entry, LogPos, ReadError, Remains};
use atoll_log::Segment;

use super::error::RescueError;
use super::missed::Held;
use super::survivor::Survivor;

/// About how many bytes one read returns.
const STEP_BYTES: usize = 1 << 20;
/// More notes about one log only count.
const MOST_NOTES: usize = 8;

/// What is left of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scanned {
    /// Positions below this one were trimmed.
    pub(super) trim: LogPos,
    /// The position after the last entry that is left, or `trim`.
    pub(super) end: LogPos,
    /// The positions below `end` that are not left, in order.
    pub(super) lost: Vec<Range<LogPos>>,
    /// Every position below was acknowledged, as far as the old directories know.
    pub(super) acknowledged: LogPos,
    /// The bytes of the entries.
    pub(super) bytes: u64,
    /// What people should know.
    pub(super) notes: Vec<String>,
}

impl Scanned {
    fn lose(&mut self, range: Range<LogPos>) {
        match self.lost.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.lost.push(range),
        }
    }

    fn note(&mut self, words: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&words) {
            self.notes.push(words);
        }
    }
}

/// What a read of one position found.
pub(super) enum Found {
    /// The entries from there on.
    Entries(Vec<Entry>),
    /// Nobody has it; a damaged copy says what is wrong with it.
    Nothing(Option<String>),
}

/// Reads entries of a segment from a position on, from whichever survivor has them.
pub(super) async fn read(
    survivors: &[Survivor],
    segment: &Segment,
    range: Range<LogPos>,
) -> Result<Found, RescueError> {
    let mut damage = None;
    for survivor in survivors {
        let offsets = segment.offset_of(range.start)..segment.offset_of(range.end);
        match survivor.read(segment, offsets, STEP_BYTES).await? {
            Ok(batch) if !batch.entries.is_empty() => return Ok(Found::Entries(batch.entries)),
            Err(ReadError::Damaged(what)) => damage = Some(what),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(Found::Nothing(damage))
}

/// Reads everything that is left of a log.
pub(super) async fn scan(
    survivors: &[Survivor],
    held: &Held,
    log: &str,
    segments: &[Segment],
    trim: LogPos,
) -> Result<Scanned, RescueError> {
    let mut scanned = Scanned { trim, end: trim, acknowledged: trim, ..Scanned::default() };
    for segment in segments {
        let mut remains = Vec::new();
        for (number, survivor) in survivors.iter().enumerate() {
            let listed = held.has(number, segment.loglet);
            let found = survivor.remains(&segment.kind, segment.loglet, listed).await?;
            if found.is_none() && listed {
                survivor.check_answers(segment).await?;
                let (path, kind, start) = (survivor.path().display(), &segment.kind, segment.start);
                scanned.note(format!(
                    "{path} has entries of the segment of kind `{kind}` at {start}; they cannot be read alone"
                ));
            }
            remains.extend(found);
        }
        scan_segment(survivors, log, segment, &remains, &mut scanned).await?;
    }
    let Scanned { trim, end, .. } = scanned;
    scanned.lost.retain_mut(|range| {
        range.start = range.start.max(trim);
        range.end = range.end.min(end);
        !range.is_empty()
    });
    Ok(scanned)
}

async fn scan_segment(
    survivors: &[Survivor],
    log: &str,
    segment: &Segment,
    remains: &[Remains],
    scanned: &mut Scanned,
) -> Result<(), RescueError> {
    // Neither has entries.
    if segment.is_end() || segment.is_deletion() {
        scanned.end = scanned.end.max(segment.start);
        return Ok(());
    }
    let clip = |at: LogPos| segment.stop.map_or(at, |stop| at.min(stop));
    let reach = remains.iter().map(|r| clip(segment.position_of(r.range.end))).max().unwrap_or(segment.start);
    let first = remains.iter().map(|r| r.range.start).max().unwrap_or(segment.base);
    if first > segment.base {
        // The Loglet was trimmed after the chain that is left.
        scanned.trim = scanned.trim.max(clip(segment.position_of(first)));
        scanned.end = scanned.end.max(scanned.trim);
    }
    let known = remains.iter().map(|r| clip(segment.position_of(r.acknowledged))).max();
    scanned.acknowledged = scanned.acknowledged.max(known.unwrap_or(segment.start));
    if let Some(stop) = segment.stop {
        scanned.acknowledged = scanned.acknowledged.max(stop);
    }
    if remains.is_empty() {
        let (kind, start) = (&segment.kind, segment.start);
        scanned.note(format!("nothing is left of the segment of kind `{kind}` at {start}"));
    }
    let missing_here = remains.iter().map(|r| r.missing).min().unwrap_or(0);
    let mut missing = 0;
    let mut is_damaged = false;
    let mut at = segment.start.max(scanned.trim);
    while at < reach {
        match read(survivors, segment, at..reach).await? {
            Found::Entries(entries) => {
                scanned.bytes += entries.iter().map(|e| e.payload.len() as u64).sum::<u64>();
                at = at.plus(entries.len() as u64);
                scanned.end = at;
            }
            Found::Nothing(damage) => {
                if let Some(what) = damage {
                    is_damaged = true;
                    scanned.note(format!("the entry at {at} is damaged: {what}"));
                }
                missing += 1;
                if missing > missing_here && !is_damaged {
                    return Err(RescueError::Unreadable { log: log.to_owned(), at });
                }
                scanned.lose(at..at.plus(1));
                at = at.plus(1);
            }
        }
    }
    if let Some(stop) = segment.stop.filter(|stop| *stop > at) {
        scanned.lose(at..stop);
        scanned
            .note(format!("the positions {at} to {stop} (exclusive) of a sealed segment are on no survivor"));
    }
    Ok(())
}

//! From which position to which each log can be kept, and what may be lost.

use std::ops::Range;

use atoll_contract::{LogPos, Version};
use atoll_log::{Chain, Segment};

use super::error::RescueError;
use super::scan::Scanned;
use super::survivor::SurvivorPlan;

/// What becomes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is kept and takes appends.
    Kept,
    /// It is kept and has ended, as before.
    Ended,
    /// It was deleted before.
    Deleted,
}

/// What is kept of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPlan {
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub fate: Fate,
    /// The version of the newest chain that is left.
    pub version: Version,
    /// The first readable position.
    pub trim: LogPos,
    /// The position after the last one that is kept. Entries that were acknowledged at or above it are lost.
    pub end: LogPos,
    /// Every position below was acknowledged, as far as the old directories know. If it is above `end`, acknowledged entries are lost for
    /// certain.
    pub acknowledged: LogPos,
    /// The positions below `end` whose entries are lost, and which only the state of the database covers.
    pub covered: Vec<Range<LogPos>>,
    /// The first missing position, if the log is cut there.
    pub cut_at: Option<LogPos>,
    /// The time of the last entry in the state of the database, in milliseconds since the Unix epoch.
    pub time_ms: Option<u64>,
    /// The bytes of what is left.
    pub bytes: u64,
    /// What else people should know.
    pub notes: Vec<String>,
    pub(super) chain: Chain,
    pub(super) segments: Vec<Segment>,
}

/// What will be kept of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The name of the lost cluster.
    pub from: String,
    /// The old data directories.
    pub survivors: Vec<SurvivorPlan>,
    /// The logs.
    pub logs: Vec<LogPlan>,
    /// The registers of what a rescue does not keep: keyspaces, and the layouts of logs that are not kept.
    pub not_rescued: Vec<String>,
}

/// The part of a log that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    trim: LogPos,
    end: LogPos,
    covered: Vec<Range<LogPos>>,
    cut_at: Option<LogPos>,
}

/// Chooses the part of a log that has no hole. `state` is the position below which a state of the database has all entries: what is missing
/// below it, nobody needs. Another hole ends the log, if `cut` allows that; otherwise it is returned as the error.
fn choose(scanned: &Scanned, state: Option<LogPos>, cut: bool) -> Result<Part, Range<LogPos>> {
    let floor = state.unwrap_or(scanned.trim).max(scanned.trim);
    let mut part = Part { trim: scanned.trim, end: scanned.end, covered: Vec::new(), cut_at: None };
    let mut lost = scanned.lost.clone();
    if scanned.end < floor {
        lost.push(scanned.end..floor);
        part.end = floor;
    }
    for hole in lost {
        if hole.start < floor {
            let below = hole.start..hole.end.min(floor);
            part.trim = below.end;
            part.covered.push(below);
        }
        if hole.end > floor {
            let from = hole.start.max(floor);
            if !cut {
                return Err(from..hole.end);
            }
            part.end = from;
            part.cut_at = Some(from);
            break;
        }
    }
    Ok(part)
}

/// Decides what is kept of a log. `state` is given for the log of the database: where its newest state stands.
pub(super) fn plan_log(
    log: &str,
    version: Version,
    chain: Chain,
    segments: Vec<Segment>,
    scanned: Scanned,
    state: Option<LogPos>,
    cut: bool,
) -> Result<LogPlan, RescueError> {
    let fate = match chain.active() {
        active if active.is_deletion() => Fate::Deleted,
        active if active.is_end() => Fate::Ended,
        _ => Fate::Kept,
    };
    if let Some(next) = state.filter(|next| *next < scanned.trim && fate != Fate::Deleted) {
        return Err(RescueError::NoState { log: log.to_owned(), trim: scanned.trim, next });
    }
    let part = choose(&scanned, state, cut && fate == Fate::Kept).map_err(|hole| RescueError::Hole {
        log: log.to_owned(),
        from: hole.start,
        to: hole.end,
        covered: state.map_or_else(String::new, |next| format!("; the state of the database ends at {next}")),
    })?;
    Ok(LogPlan {
        name: log.to_owned(),
        fate,
        version,
        trim: part.trim,
        end: part.end,
        acknowledged: scanned.acknowledged,
        covered: part.covered,
        cut_at: part.cut_at,
        time_ms: None,
        bytes: scanned.bytes,
        notes: scanned.notes,
        chain,
        segments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range((start, end): (u64, u64)) -> Range<LogPos> {
        LogPos(start)..LogPos(end)
    }

    fn scanned(trim: u64, end: u64, lost: &[(u64, u64)]) -> Scanned {
        let lost = lost.iter().copied().map(range).collect();
        Scanned { trim: LogPos(trim), end: LogPos(end), lost, ..Scanned::default() }
    }

    /// The trim position, the end, what the state covers, and where the log was cut; or the hole.
    type Chosen = Result<(u64, u64, Vec<(u64, u64)>, Option<u64>), (u64, u64)>;

    fn chosen(scanned: &Scanned, state: Option<u64>, cut: bool) -> Chosen {
        let pair = |r: &Range<LogPos>| (r.start.0, r.end.0);
        match choose(scanned, state.map(LogPos), cut) {
            Ok(p) => Ok((p.trim.0, p.end.0, p.covered.iter().map(pair).collect(), p.cut_at.map(|at| at.0))),
            Err(hole) => Err(pair(&hole)),
        }
    }

    #[test]
    fn a_log_without_holes_is_kept_whole() {
        assert_eq!(chosen(&scanned(5, 90, &[]), None, false), Ok((5, 90, vec![], None)));
        assert_eq!(chosen(&scanned(5, 90, &[]), Some(40), false), Ok((5, 90, vec![], None)));
        assert_eq!(chosen(&scanned(5, 5, &[]), None, true), Ok((5, 5, vec![], None)));
    }

    #[test]
    fn what_the_state_covers_is_no_hole() {
        assert_eq!(chosen(&scanned(5, 90, &[(20, 30)]), Some(40), false), Ok((30, 90, vec![(20, 30)], None)));
        let two = scanned(5, 90, &[(10, 12), (20, 40)]);
        assert_eq!(chosen(&two, Some(40), false), Ok((40, 90, vec![(10, 12), (20, 40)], None)));
        // The replica has read from others what its node does not store.
        assert_eq!(chosen(&scanned(5, 90, &[]), Some(95), false), Ok((95, 95, vec![(90, 95)], None)));
        let behind = scanned(5, 90, &[(80, 85)]);
        assert_eq!(chosen(&behind, Some(95), true), Ok((95, 95, vec![(80, 85), (90, 95)], None)));
    }

    #[test]
    fn another_hole_is_refused_or_ends_the_log() {
        let holes = scanned(5, 90, &[(20, 30), (50, 60)]);
        assert_eq!(chosen(&holes, None, false), Err((20, 30)));
        assert_eq!(chosen(&holes, None, true), Ok((5, 20, vec![], Some(20))));
        assert_eq!(chosen(&holes, Some(40), false), Err((50, 60)));
        assert_eq!(chosen(&holes, Some(40), true), Ok((30, 50, vec![(20, 30)], Some(50))));
        assert_eq!(chosen(&holes, Some(25), false), Err((25, 30)));
        assert_eq!(chosen(&holes, Some(25), true), Ok((25, 25, vec![(20, 25)], Some(25))));
    }

    #[test]
    fn a_state_that_ends_below_the_log_is_refused() {
        let nonce = atoll_contract::Nonce(1);
        let chain = Chain::first(nonce, atoll_contract::LogletId(1), "some", bytes::Bytes::new());
        let Ok(chain) = chain else { panic!("a first chain is valid") };
        let plan = |state: u64| {
            let chain = chain.clone();
            plan_log("db", Version(1), chain, Vec::new(), scanned(5, 9, &[]), Some(LogPos(state)), false)
        };
        assert!(matches!(plan(4), Err(RescueError::NoState { trim: LogPos(5), next: LogPos(4), .. })));
        assert!(plan(5).is_ok_and(|plan| plan.end == LogPos(9) && plan.fate == Fate::Kept));
    }
}

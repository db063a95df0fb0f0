//! The results of the checks.

use std::fmt;

use crate::history::{History, Kind};
use crate::{search, session};

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Ok,
    /// It does not.
    Illegal,
    /// The search gave up.
    Undecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Ok => "ok",
            Verdict::Illegal => "illegal",
            Verdict::Undecided => "undecided",
        })
    }
}

/// The results for a history.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Whether the operations have an order that agrees with their answers and with real time.
    pub linearizable: Verdict,
    /// Whether no session saw an older state after a newer one.
    pub session: Verdict,
    /// A description of what is wrong. Empty if nothing is.
    pub why: String,
    /// How many placements the search tried.
    pub tried: u64,
}

/// Checks a history.
pub fn judge(history: &History) -> Judgement {
    let found = search::search(history);
    let mut why = Vec::new();
    if found.verdict == Verdict::Illegal {
        let stuck: Vec<String> = found.stuck.iter().map(|n| format!("line {}", n + 2)).collect();
        why.push(format!("nothing can come next of {}", stuck.join(", ")));
    }
    let back = if history.head.kind == Kind::ZooKeeper { session::goes_back(history) } else { None };
    if let Some((n, how)) = &back {
        why.push(format!("line {}: {how}", n + 2));
    }
    Judgement {
        linearizable: found.verdict,
        session: if back.is_none() { Verdict::Ok } else { Verdict::Illegal },
        why: why.join("; "),
        tried: found.tried,
    }
}

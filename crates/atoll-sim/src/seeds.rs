//! Which seeds to run.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Ranges of seeds, without their ends. A seed that is in two of them runs twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(Vec<Range<u64>>);

/// A text that names no seeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no seed and no range of seeds; allowed are N and FROM..TO, several with commas")]
pub struct NoSeeds(pub String);

impl Seeds {
    /// How many seeds there are.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|r| r.end.saturating_sub(r.start)).fold(0, u64::saturating_add)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The seed at a place in the order in which they are written, counted from 0. None at or after the end.
    pub fn nth(&self, mut place: u64) -> Option<u64> {
        for range in &self.0 {
            let len = range.end.saturating_sub(range.start);
            if place < len {
                return Some(range.start + place);
            }
            place -= len;
        }
        None
    }

    /// Returns the first seeds of each range: one for every `of_each` seeds in it.
    pub fn share(&self, of_each: u64) -> Self {
        Self(self.0.iter().map(|r| r.start..r.start + r.end.saturating_sub(r.start) / of_each).collect())
    }
}

impl From<Range<u64>> for Seeds {
    fn from(range: Range<u64>) -> Self {
        Self(vec![range])
    }
}

/// As on the command line: `7`, `0..300`, `0..50,1000..1050`.
impl FromStr for Seeds {
    type Err = NoSeeds;

    fn from_str(text: &str) -> Result<Self, NoSeeds> {
        let range = |part: &str| {
            let number = |t: &str| t.parse::<u64>().map_err(|_| NoSeeds(part.to_owned()));
            match part.split_once("..") {
                Some((from, to)) => Ok(number(from)?..number(to)?),
                None => number(part).map(|n| n..n.saturating_add(1)),
            }
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(|r| format!("{}..{}", r.start, r.end)).collect();
        f.write_str(&ranges.join(","))
    }
}

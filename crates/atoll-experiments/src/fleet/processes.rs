//! What the servers take of the machine.

use std::fs::read_to_string;
use std::ops::Sub;

use serde_json::{Value, json};

/// `USER_HZ`, which is 100 on every architecture that we run on.
const TICKS_PER_S: f64 = 100.0;

/// What some processes took until now, or between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Time of the processors, in seconds.
    pub processor_s: f64,
    /// Bytes of memory that are resident; less than before is negative.
    pub resident_bytes: f64,
}

impl Taken {
    /// Returns what these processes took until now. One that has ended took nothing.
    pub fn now(pids: &[u32]) -> Self {
        let mut all = Taken::default();
        for pid in pids {
            let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name in front of the numbers may have spaces and brackets.
            let numbers = stat.rsplit_once(')').map_or("", |(_, numbers)| numbers);
            let ticks =
                numbers.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok());
            all.processor_s += ticks.sum::<f64>() / TICKS_PER_S;
            let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kb = resident.and_then(|words| words.split_whitespace().next()?.parse::<f64>().ok());
            all.resident_bytes += kb.unwrap_or(0.0) * 1024.0;
        }
        all
    }

    /// Returns the figures of a line.
    pub fn to_json(self) -> Value {
        json!({ "processor_s": (self.processor_s * 100.0).round() / 100.0, "resident_mb": (self.resident_bytes / 1e6).round() })
    }
}

impl Sub for Taken {
    type Output = Taken;

    fn sub(self, earlier: Taken) -> Taken {
        Taken {
            processor_s: self.processor_s - earlier.processor_s,
            resident_bytes: self.resident_bytes - earlier.resident_bytes,
        }
    }
}

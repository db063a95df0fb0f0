//! What the threads of this process take of the processors.

use std::collections::BTreeMap;

/// The processor time of the threads, by name, in nanoseconds.
pub struct ThreadTimes(BTreeMap<String, u64>);

impl ThreadTimes {
    /// Returns the times until now. Empty if there are no such files.
    pub fn now() -> Self {
        let mut times = BTreeMap::new();
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for thread in threads {
            let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
            let (Some(name), Some(accounts)) = (read("comm"), read("schedstat")) else { continue };
            let took = accounts.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            // Some have a number of their own at the end.
            let name = name.trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
            *times.entry(name.to_owned()).or_insert(0) += took.unwrap_or(0);
        }
        ThreadTimes(times)
    }

    /// Returns which part of one processor the threads with each name took since then, which was so many seconds ago.
    pub fn since(&self, seconds: f64) -> BTreeMap<String, f64> {
        let now = ThreadTimes::now();
        let share = |(name, until): (String, u64)| {
            let from = self.0.get(&name).copied().unwrap_or(0);
            let share = until.saturating_sub(from) as f64 / 1e9 / seconds.max(1e-9);
            (name, (share * 1e3).round() / 1e3)
        };
        now.0.into_iter().map(share).filter(|(_, share)| *share > 0.0).collect()
    }
}

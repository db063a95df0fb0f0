//! What nodes took of the processors, and what they did in that time: counts of the product's own host, of one node in a process.

use std::ops::Sub;

use atoll_node::host::HostHandle;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

/// `USER_HZ`, which is 100 on every architecture that we run on.
const TICK_NS: u64 = 10_000_000;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of a node and its process since they started, or between two moments.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Usage { $($(#[$doc])* pub $name: u64),* }

        impl Usage {
            /// Returns the counts as JSON.
            pub fn to_json(self) -> Value {
                let fields = [$((stringify!($name), self.$name)),*];
                Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
            }

            /// Reads what [`Usage::to_json`] returned. None if a field is missing.
            pub fn from_json(value: &Value) -> Option<Self> {
                Some(Usage { $($name: value.get(stringify!($name))?.as_u64()?),* })
            }
        }

        impl Sub for Usage {
            type Output = Usage;

            fn sub(self, earlier: Usage) -> Usage {
                Usage { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }

        impl std::iter::Sum for Usage {
            fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
                all.fold(Usage::default(), |sum, one| Usage { $($name: sum.$name + one.$name),* })
            }
        }
    };
}

counts! {
    /// Time of the processors, in nanoseconds: of the program and of the system's calls.
    processor_ns,
    /// Turns of the core.
    turns,
    /// Steps in these turns, without the messages that went out.
    steps,
    /// Messages that came in.
    frames_in,
    /// Messages that went out.
    frames_out,
    /// Reads from sockets.
    reads,
    /// Writes to sockets.
    writes,
    /// Bytes that came in.
    bytes_in,
    /// Bytes that went out.
    bytes_out,
    /// Batches of the journal.
    batches,
    /// Bytes in these batches.
    batch_bytes,
    /// How long writing these batches took, in microseconds.
    write_us,
    /// How long syncing them took, in microseconds.
    sync_us,
    /// Time of the processors of the thread that writes and syncs larger batches, in nanoseconds.
    journal_ns,
    /// How often the thread of the node fell asleep.
    sleeps,
    /// How often the other threads did.
    other_sleeps,
}

impl Usage {
    /// Returns the counts of this process and its node until now. What the system does not tell is zero.
    pub fn now(host: &HostHandle) -> Self {
        let (core, net) = (host.stats(), host.net().stats());
        let threads = Threads::now();
        let processor = clock_gettime(ClockId::ProcessCPUTime);
        let nanos = processor.tv_sec * 1_000_000_000 + processor.tv_nsec;
        Usage {
            processor_ns: u64::try_from(nanos).unwrap_or(0),
            turns: core.turns,
            steps: core.steps,
            frames_in: net.frames_in,
            frames_out: net.frames_out,
            reads: net.reads,
            writes: net.writes,
            bytes_in: net.bytes_in,
            bytes_out: net.bytes_out,
            batches: core.syncs,
            batch_bytes: core.bytes,
            write_us: core.write_us.sum,
            sync_us: core.sync_us.sum,
            journal_ns: threads.journal_ns,
            sleeps: threads.sleeps,
            other_sleeps: threads.other_sleeps,
        }
    }

    /// Returns the counts for each of so many operations, as JSON.
    pub fn for_each(self, operations: u64) -> Value {
        let Value::Object(fields) = self.to_json() else { return Value::Null };
        let each = |value: Value| {
            let each = value.as_u64().unwrap_or(0) as f64 / operations.max(1) as f64;
            json!((each * 1e3).round() / 1e3)
        };
        Value::Object(fields.into_iter().map(|(name, value)| (name, each(value))).collect::<Map<_, _>>())
    }
}

/// What the threads of this process did until now. What the system does not tell is zero.
#[derive(Default)]
struct Threads {
    sleeps: u64,
    other_sleeps: u64,
    journal_ns: u64,
}

impl Threads {
    fn now() -> Self {
        let mut all = Threads::default();
        for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let status = read("status");
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = count.and_then(|word| word.trim().parse::<u64>().ok()).unwrap_or(0);
            match read("comm").trim() {
                "node" => all.sleeps += count,
                "journal" => {
                    let took = read("schedstat");
                    let took = took.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
                    all.journal_ns += took.unwrap_or(0);
                    all.other_sleeps += count;
                }
                _ => all.other_sleeps += count,
            }
        }
        all
    }
}

/// What the processors of the machine did since it started, or between two moments, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processors {
    /// They worked.
    pub busy_ns: u64,
    /// They had nothing to do.
    pub idle_ns: u64,
    /// The machine below this one did something else with them.
    pub stolen_ns: u64,
}

impl Processors {
    /// Returns what they did until now. What the system does not tell is zero.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let words = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let ticks: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
        // See proc(5): user, nice, system, idle, iowait, irq, softirq, steal.
        let of = |places: &[usize]| -> u64 {
            places.iter().map(|at| ticks.get(*at).copied().unwrap_or(0) * TICK_NS).sum()
        };
        Processors { busy_ns: of(&[0, 1, 2, 5, 6]), idle_ns: of(&[3, 4]), stolen_ns: of(&[7]) }
    }
}

impl Sub for Processors {
    type Output = Processors;

    fn sub(self, earlier: Processors) -> Processors {
        Processors {
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
            stolen_ns: self.stolen_ns.saturating_sub(earlier.stolen_ns),
        }
    }
}

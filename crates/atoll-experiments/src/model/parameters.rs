//! How long things take in the model.

use serde_json::{Value, json};

/// How long things take. Whole numbers, so that every machine computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Processor time of a turn of a node, in nanoseconds, beside its steps.
    pub turn_ns: u64,
    /// Processor time of a step of a turn (a message in or out, a poll of a procedure, a deadline), in nanoseconds.
    pub step_ns: u64,
    /// Processor time of waking a node that was idle, and of its falling asleep again, in nanoseconds.
    pub wake_ns: u64,
    /// Processor time of a batch of the journal, in nanoseconds, beside its bytes. The node takes its next turns meanwhile, if there is
    /// another processor.
    pub batch_ns: u64,
    /// Processor time of a byte of a batch of the journal, in picoseconds.
    pub batch_byte_ps: u64,
    /// Processor time of a read from a connection, in nanoseconds: one for each connection and turn.
    pub read_ns: u64,
    /// Processor time of a write to a connection, in nanoseconds: one for each connection and turn.
    pub write_ns: u64,
    /// Processor time of a byte that is read or written, in picoseconds.
    pub byte_ps: u64,
    /// Processor time of a step more, in picoseconds, for each request of the node that waits for its reply: the more it has under way, the
    /// less of what it needs is in the processor's caches.
    pub step_crowd_ps: u64,
    /// Processor time of a byte that is written more, in femtoseconds, for each such request.
    pub byte_crowd_fs: u64,
    /// Processor time of a step more, in picoseconds, for each thread that takes part beyond the number of processors: the more take
    /// turns on a processor, the less does each find in its caches.
    pub step_neighbour_ps: u64,
    /// Processor time of a byte of a batch of the journal more, in picoseconds, for each such thread.
    pub batch_byte_neighbour_ps: u64,
    /// How long a message travels, in nanoseconds.
    pub latency_ns: u64,
    /// What a node's link carries in each direction, in bytes per second.
    pub link_bytes_s: u64,
    /// How long a sync of the journal takes, in nanoseconds.
    pub sync_ns: u64,
    /// What a disk writes, in bytes per second.
    pub disk_bytes_s: u64,
}

impl Parameters {
    /// Nothing takes any time.
    #[cfg(test)]
    pub const FREE: Parameters = Parameters {
        turn_ns: 0,
        step_ns: 0,
        wake_ns: 0,
        batch_ns: 0,
        batch_byte_ps: 0,
        read_ns: 0,
        write_ns: 0,
        byte_ps: 0,
        step_crowd_ps: 0,
        byte_crowd_fs: 0,
        step_neighbour_ps: 0,
        batch_byte_neighbour_ps: 0,
        latency_ns: 0,
        link_bytes_s: u64::MAX,
        sync_ns: 0,
        disk_bytes_s: u64::MAX,
    };
    /// Only ways and syncs take time: 100 and 300 microseconds.
    #[cfg(test)]
    pub const WAYS_AND_SYNCS: Parameters =
        Parameters { latency_ns: 100_000, sync_ns: 300_000, ..Parameters::FREE };

    /// The fields by name, in the order of the output.
    pub fn fields(&self) -> [(&'static str, u64); 16] {
        [
            ("turn_ns", self.turn_ns),
            ("step_ns", self.step_ns),
            ("wake_ns", self.wake_ns),
            ("batch_ns", self.batch_ns),
            ("batch_byte_ps", self.batch_byte_ps),
            ("read_ns", self.read_ns),
            ("write_ns", self.write_ns),
            ("byte_ps", self.byte_ps),
            ("step_crowd_ps", self.step_crowd_ps),
            ("byte_crowd_fs", self.byte_crowd_fs),
            ("step_neighbour_ps", self.step_neighbour_ps),
            ("batch_byte_neighbour_ps", self.batch_byte_neighbour_ps),
            ("latency_ns", self.latency_ns),
            ("link_bytes_s", self.link_bytes_s),
            ("sync_ns", self.sync_ns),
            ("disk_bytes_s", self.disk_bytes_s),
        ]
    }

    /// Returns the fields as JSON.
    pub fn to_json(self) -> Value {
        Value::Object(
            self.fields().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect(),
        )
    }

    /// Reads what [`Parameters::to_json`] returned. None if a field is missing. Earlier models took nothing for waking nodes,
    /// for batches of the journal, for what is under way, and for other threads.
    pub fn from_json(value: &Value) -> Option<Self> {
        let field = |name: &str| value.get(name)?.as_u64();
        let new_field = |name: &str| value.get(name).map_or(Some(0), Value::as_u64);
        Some(Parameters {
            turn_ns: field("turn_ns")?,
            step_ns: field("step_ns")?,
            wake_ns: new_field("wake_ns")?,
            batch_ns: new_field("batch_ns")?,
            batch_byte_ps: new_field("batch_byte_ps")?,
            read_ns: field("read_ns")?,
            write_ns: field("write_ns")?,
            byte_ps: field("byte_ps")?,
            step_crowd_ps: new_field("step_crowd_ps")?,
            byte_crowd_fs: new_field("byte_crowd_fs")?,
            step_neighbour_ps: new_field("step_neighbour_ps")?,
            batch_byte_neighbour_ps: new_field("batch_byte_neighbour_ps")?,
            latency_ns: field("latency_ns")?,
            link_bytes_s: field("link_bytes_s")?,
            sync_ns: field("sync_ns")?,
            disk_bytes_s: field("disk_bytes_s")?,
        })
    }
}

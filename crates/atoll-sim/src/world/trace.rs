//! Hashes the events of a run. The same run has the same hash in every process, in debug and in release builds.

use std::fmt;
use std::io::Write;

/// Adds events to a 64-bit hash, and writes them out as text if requested.
pub struct Trace {
    hash: u64,
    events: u64,
    out: Option<Box<dyn Write + Send>>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({:016x}, {} events)", self.hash, self.events)
    }
}

impl Trace {
    /// Creates an empty trace. If there is an `out`, each line of text goes there.
    pub fn new(out: Option<Box<dyn Write + Send>>) -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, events: 0, out }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Adds an event: when, who, what, and a detail.
    pub fn event(&mut self, at: u64, who: u64, what: u64, detail: u64) {
        self.events += 1;
        self.mix(at);
        self.mix(who << 32 | what);
        self.mix(detail);
    }

    /// Adds bytes that belong to the last event.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for w in &mut words {
            self.mix(u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]));
        }
        let mut last = (bytes.len() as u64) << 56;
        for (i, b) in words.remainder().iter().enumerate() {
            last |= u64::from(*b) << (8 * i);
        }
        self.mix(last);
    }

    /// Returns whether the trace is also written out as text.
    pub fn is_written(&self) -> bool {
        self.out.is_some()
    }

    /// Writes a line of text, if somebody requested it.
    pub fn line(&mut self, at: u64, line: fmt::Arguments<'_>) {
        if let Some(out) = &mut self.out {
            // A trace that cannot be written must not change the run.
            let _ = writeln!(out, "{:>12.6} {line}", at as f64 / 1e9);
        }
    }

    /// Returns the hash so far, and the number of events that it covers.
    pub fn hash(&self) -> (u64, u64) {
        (self.hash, self.events)
    }

    /// Flushes the text output.
    pub fn flush(&mut self) {
        if let Some(out) = &mut self.out {
            let _ = out.flush();
        }
    }
}

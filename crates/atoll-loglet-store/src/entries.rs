//! Converts between entries and batches, the form in which entries are sent and stored.

use bytes::Bytes;

use atoll_contract::mutants::COPY_SKIPS_UNSEEN;
use atoll_contract::{Batch, BatchBuilder, Entry};
use atoll_core::DecodeError;
use atoll_core::testing::{Mutant, mutant};

use crate::message::Entries;

/// The known bugs of copies, that of one kind and that of all: leaves out the last of these entries, and has the one before it twice.
pub fn skip_one_if(bug: Mutant, entries: &mut [Entry]) {
    if (mutant(bug) || mutant(COPY_SKIPS_UNSEEN))
        && let [.., before, last] = entries
    {
        last.clone_from(before);
    }
}

/// Packs entries into batches within the size limits.
pub fn batches(entries: Vec<Entry>) -> Vec<Batch> {
    let mut out = Vec::new();
    let mut building = BatchBuilder::new();
    for entry in entries {
        if !building.fits(entry.payload.len()) {
            out.push(std::mem::take(&mut building).finish());
        }
        building.push(entry.op, &entry.payload);
    }
    if !building.is_empty() {
        out.push(building.finish());
    }
    out
}

/// Returns the entries of an answer; None if it is malformed or empty.
pub fn decode_entries(entries: Entries) -> Option<Vec<Entry>> {
    let mut out = Vec::new();
    for (count, bytes) in entries.counts.into_iter().zip(entries.batches) {
        let batch: Batch = parse_counted(bytes, count).ok()?;
        out.extend(batch.entries());
    }
    (!out.is_empty()).then_some(out)
}

/// Parses a batch, which must have exactly `count` entries.
pub fn parse_counted(bytes: Bytes, count: u32) -> Result<Batch, DecodeError> {
    let batch = Batch::parse(bytes)?;
    if batch.len() != count as usize {
        return Err(DecodeError::Invalid {
            what: "entries in a batch",
            value: batch.len() as u64,
            allowed: "the number in the head",
        });
    }
    Ok(batch)
}

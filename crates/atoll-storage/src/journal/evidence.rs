//! The first pass of recovery: finds the highest number that some header says was synced (native-T9).
//!
//! Clients choose the payloads, so a record may hold bytes that look like the header of a batch. Therefore only what the chain of intact
//! batches leads to counts as a header: the next one begins where the padding of the last one ends. Behind the first batch that is not
//! intact there is no chain, and every block may hold a header: a batch that a crash tore may be followed by later ones that are evidence
//! of rot. There, only the checksum tells a header from a payload. Its seed contains the generation of the segment, which no client knows
//! if [`JournalOptions::generation_secret`](super::JournalOptions) is set.

use atoll_core::testing::hit;
use atoll_core::{Lsn, StorageId};

use super::format::{BATCH_HEADER_BYTES, BatchHeader, padded};
use super::listed::spare_header;
use super::recover::{Files, Loaded, load, read_batch};
use super::{JournalError, segment_path};
use crate::disk::{Disk, Open};

/// Returns the evidence, and the newest segment, which the second pass needs again: a restarted node is the sooner there, and takes less of
/// the processors of others. Syncs every segment that it reads, because what recovery hands out must survive a later power cut.
pub(super) fn find_evidence(
    disk: &dyn Disk,
    files: &Files,
    storage: StorageId,
    covers: Lsn,
) -> Result<(Lsn, Option<Loaded>), JournalError> {
    let (mut evidence, mut newest) = (covers, None);
    // A restart puts empty segments away before it makes the next one. If it crashes in between, only a spare file may hold the number.
    for &generation in &files.spares {
        if let Some(header) = spare_header(disk, generation)?
            && header.storage == storage
        {
            evidence = evidence.max(header.floor);
        }
    }
    for &generation in files.segments.iter().rev() {
        let mut file = disk.open(&segment_path(generation), Open::Write)?;
        file.sync_data()?;
        file.forget_cached();
        let loaded = load(&*file, generation, storage)?;
        evidence = evidence.max(loaded.header.floor);
        if let Some(footer) = &loaded.footer {
            evidence = evidence.max(footer.synced_upto);
        }
        let mut first = None;
        for header in headers(&loaded) {
            evidence = evidence.max(header.synced_upto);
            if header.count > 0 {
                first.get_or_insert(header.first_lsn);
            }
        }
        newest.get_or_insert(loaded);
        // Everything that was written before a synced record is synced, too.
        if first.is_some_and(|first| first <= evidence) {
            break;
        }
    }
    Ok((evidence, newest))
}

/// Returns the headers of a segment in the order of their offsets: first those of the intact batches from its beginning on, then one for
/// each later block that begins with a valid header.
fn headers(loaded: &Loaded) -> Vec<BatchHeader> {
    let block_bytes = loaded.header.block_bytes;
    let mut found = Vec::new();
    let mut at = block_bytes as usize;
    while let Some(header) = BatchHeader::parse(&loaded.bytes, at, loaded.seed)
        && read_batch(loaded, &header).is_ok()
    {
        at += padded(BATCH_HEADER_BYTES + header.body_bytes as usize, block_bytes);
        found.push(header);
    }
    let chained = found.len();
    let blocks = (at..loaded.bytes.len()).step_by(block_bytes as usize);
    found.extend(blocks.filter_map(|at| BatchHeader::parse(&loaded.bytes, at, loaded.seed)));
    if found.len() > chained {
        hit("journal.recover.beyond_the_chain");
    }
    found
}

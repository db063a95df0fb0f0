//! Checks that everything that must exist does exist: the segments that the manifest lists, the checkpoint that it mentions, and the
//! manifest itself.

use atoll_core::testing::{hit, mutant};
use atoll_core::{Checkpoint, Lsn, StorageId};

use super::format::SegmentHeader;
use super::manifest::{Facts, MANIFEST};
use super::recover::Files;
use super::segment::MIN_BLOCK_BYTES;
use super::{JournalError, checkpoint_path, segment_path, spare_path};
use crate::disk::{Disk, DiskError, Open};
use crate::identity::Identity;
use crate::mutants;

/// Returns the header of a spare file. It is the header of the file's last use as a segment, until the file is reused.
pub(super) fn spare_header(disk: &dyn Disk, generation: u64) -> Result<Option<SegmentHeader>, DiskError> {
    let mut block = [0; MIN_BLOCK_BYTES as usize];
    disk.open(&spare_path(generation), Open::Read)?.read_at(0, &mut block)?;
    Ok(SegmentHeader::parse(&block).ok())
}

/// Checks that everything that the manifest mentions exists and is not an older copy.
pub(super) fn check_listed(
    disk: &dyn Disk,
    listed: &Facts,
    files: &Files,
    storage: StorageId,
    checkpoint: Option<&Checkpoint>,
) -> Result<(), JournalError> {
    for &generation in &listed.segments {
        let is_recycled = || -> Result<bool, DiskError> {
            if !files.spares.contains(&generation) {
                return Ok(false);
            }
            let header = spare_header(disk, generation)?;
            Ok(header.is_some_and(|h| h.generation == generation && h.storage == storage))
        };
        if !files.segments.contains(&generation) && !is_recycled()? {
            hit("journal.recover.missing");
            // The error names both files, because either may be the older copy.
            let why = "journal.manifest lists it, if that is not an older copy itself";
            return Err(JournalError::Missing { file: segment_path(generation).to_string(), why });
        }
    }
    match checkpoint {
        None if listed.covers > Lsn::NONE => {
            hit("journal.recover.missing");
            let why = "the manifest says that one was written";
            Err(JournalError::Missing { file: checkpoint_path().to_string(), why })
        }
        Some(checkpoint) if checkpoint.covers < listed.covers => {
            hit("journal.recover.older");
            let (found, expected) = (checkpoint.covers, listed.covers);
            let why = format!("it covers the facts up to {found}, and one up to {expected} was written");
            Err(JournalError::Older { file: checkpoint_path().to_string(), why })
        }
        _ => Ok(()),
    }
}

/// Accepts a directory without a manifest if it is new, or dates from before there were manifests. Otherwise the manifest is lost.
pub(super) fn check_unlisted(
    disk: &dyn Disk,
    files: &Files,
    is_checkpointed: bool,
) -> Result<(), JournalError> {
    let is_old = !files.segments.is_empty();
    let is_new = !is_checkpointed && files.spares.is_empty() && !Identity::is_there(disk)?;
    if is_old || is_new || mutant(mutants::JOURNAL_LOSS_UNSEEN) {
        return Ok(());
    }
    hit("journal.recover.missing");
    let why = "the directory was in use, and neither the manifest nor a segment of the journal is there";
    Err(JournalError::Missing { file: MANIFEST.to_owned(), why })
}

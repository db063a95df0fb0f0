//! The marker of a data directory says which node owns it. It is written and synced before anything else in the directory is used
//! (native-T8).
//!
//! A disk that was replaced or wiped has no marker, so its node gets a new [`StorageId`] and takes no part in Loglets that are configured
//! with the old one.

use std::fmt::Write as _;

use atoll_core::{NodeId, StorageId};

use crate::cells;
use crate::disk::{Disk, DiskError, DiskPath, Open, read_all, replace};
use crate::journal::{JOURNAL_DIR, is_segment_name, manifest};

/// The file name of the marker.
const MARKER: &str = "node";
const MARKER_ASIDE: &str = "node.new";
const TITLE: &str = "atoll data directory";
const FORMAT: u32 = 1;
/// An upper limit for the length of a marker of this format, in bytes.
const MAX_MARKER_BYTES: u64 = 4096;
/// The longest name of a cluster, in bytes.
pub const MAX_CLUSTER_NAME_BYTES: usize = 64;

/// The owner of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's name: 1 to [`MAX_CLUSTER_NAME_BYTES`] letters, digits, `.`, `_`, `-`.
    pub cluster: String,
    /// The node that owns the directory.
    pub node: NodeId,
    /// The storage identity of this directory. The node has never had another directory with the same one.
    pub storage: StorageId,
}

/// Why a data directory must not be used as it is. Nothing was changed, unless the disk failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A disk operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The marker is missing, although there are journal segments, cells, or the manifest of a journal that was in use.
    #[error(
        "the marker file `{MARKER}` is missing, and {segments} journal segments are there: part of this directory is lost; \
         move it away and start with an empty one, which gets a new identity"
    )]
    LostMarker {
        /// The number of journal segments.
        segments: usize,
    },
    /// The directory belongs to another node.
    #[error(
        "this data directory belongs to node {found} of cluster `{found_cluster}`, not to node {node} of `{cluster}`"
    )]
    Foreign {
        /// The node that wanted to use it.
        node: NodeId,
        /// Its cluster.
        cluster: String,
        /// The owner.
        found: NodeId,
        /// The owner's cluster.
        found_cluster: String,
    },
    /// Another version of the program wrote the marker.
    #[error("the data directory has format {found}, this program reads format {FORMAT}")]
    UnsupportedFormat {
        /// The format version in the marker.
        found: u32,
    },
    /// The marker is damaged: it cannot be parsed, or its checksum is wrong.
    #[error("the marker file `{MARKER}` is damaged: {what}")]
    Damaged {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The cluster's name is empty, too long, or contains a character that is not allowed.
    #[error(
        "cluster name `{name}`: 1 to {MAX_CLUSTER_NAME_BYTES} letters, digits, `.`, `_` and `-` are allowed"
    )]
    BadClusterName {
        /// The name.
        name: String,
    },
}

impl Identity {
    /// Reads the marker of a data directory and checks that it names this cluster and node. An empty directory gets a marker with a new
    /// storage id, which is durable on return. The flag says whether the marker is new.
    pub fn open(
        disk: &dyn Disk,
        cluster: &str,
        node: NodeId,
        new_storage: impl FnOnce() -> StorageId,
    ) -> Result<(Identity, bool), IdentityError> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if cluster.is_empty() || cluster.len() > MAX_CLUSTER_NAME_BYTES || !cluster.bytes().all(fine) {
            return Err(IdentityError::BadClusterName { name: cluster.to_owned() });
        }
        let marker = DiskPath::fixed(MARKER);
        match read_all(disk, &marker, MAX_MARKER_BYTES) {
            Ok(Some(bytes)) => {
                let found = Identity::parse(&bytes)?;
                if found.node != node || found.cluster != cluster {
                    return Err(IdentityError::Foreign {
                        node,
                        cluster: cluster.to_owned(),
                        found: found.node,
                        found_cluster: found.cluster,
                    });
                }
                Ok((found, false))
            }
            Ok(None) => Err(IdentityError::Damaged { what: "longer than a marker can be" }),
            Err(DiskError::NotFound { .. }) => {
                let names = disk.list(&DiskPath::fixed(JOURNAL_DIR))?;
                let has_cells = cells::are_there(disk)?;
                match names.iter().filter(|n| is_segment_name(n)).count() {
                    0 if !has_cells && manifest::orphan(disk)? == manifest::Orphan::Fresh => {}
                    segments => return Err(IdentityError::LostMarker { segments }),
                }
                let identity = Identity { cluster: cluster.to_owned(), node, storage: new_storage() };
                let aside = DiskPath::fixed(MARKER_ASIDE);
                manifest::create_first(disk, identity.storage)?;
                replace(disk, &marker, &aside, identity.to_text().as_bytes())?;
                Ok((identity, true))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the marker of a data directory, whichever node it names, and changes nothing. None if there is no marker.
    ///
    /// # Errors
    /// The marker cannot be read.
    pub fn read(disk: &dyn Disk) -> Result<Option<Identity>, IdentityError> {
        match read_all(disk, &DiskPath::fixed(MARKER), MAX_MARKER_BYTES) {
            Ok(Some(bytes)) => Identity::parse(&bytes).map(Some),
            Ok(None) => Err(IdentityError::Damaged { what: "longer than a marker can be" }),
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether there is a marker, whichever node it names.
    pub(crate) fn is_there(disk: &dyn Disk) -> Result<bool, DiskError> {
        match disk.open(&DiskPath::fixed(MARKER), Open::Read) {
            Ok(_) => Ok(true),
            Err(DiskError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "{TITLE}\nformat = {FORMAT}\ncluster = {}\nnode = {}\nstorage = {}\n",
            self.cluster, self.node, self.storage
        );
        let crc = crc32c::crc32c(text.as_bytes());
        // Writing to a string does not fail.
        let _ = writeln!(text, "crc32c = {crc:08x}");
        text
    }

    fn parse(bytes: &[u8]) -> Result<Identity, IdentityError> {
        let damaged = |what| IdentityError::Damaged { what };
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(damaged("its first line is not a marker's"));
        }
        let mut value = |key: &str| {
            let (k, v) = lines.next()?.split_once(" = ")?;
            (k == key).then_some(v)
        };
        // The version is checked first, because another version may have a different layout after it.
        let format = value("format").and_then(|v| v.parse().ok()).ok_or(damaged("no format line"))?;
        if format != FORMAT {
            return Err(IdentityError::UnsupportedFormat { found: format });
        }
        let cluster = value("cluster").ok_or(damaged("no cluster line"))?.to_owned();
        let node = value("node").and_then(|v| v.parse().ok()).ok_or(damaged("no node line"))?;
        let storage = value("storage").and_then(|v| u128::from_str_radix(v, 16).ok());
        let storage = storage.ok_or(damaged("no storage line"))?;
        let identity = Identity { cluster, node: NodeId(node), storage: StorageId(storage) };
        // There is only one way to write each identity, so anything else in the file is damage.
        if identity.to_text() != text {
            return Err(damaged("its checksum is wrong"));
        }
        Ok(identity)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem_disk::MemDisk;

    fn open(disk: &MemDisk, node: u32) -> Result<(Identity, bool), IdentityError> {
        Identity::open(disk, "reef", NodeId(node), || StorageId(0xabc))
    }

    #[test]
    fn it_is_durable_on_return_and_belongs_to_one_node() {
        let disk = MemDisk::new();
        let (identity, new) = open(&disk, 3).unwrap();
        assert!(new);
        assert_eq!(Identity::read(&disk), Ok(Some(identity.clone())));
        disk.crash(&mut || false);
        assert_eq!(open(&disk, 3), Ok((identity, false)));
        assert!(matches!(open(&disk, 4), Err(IdentityError::Foreign { found: NodeId(3), .. })));
        let other = Identity::open(&disk, "atoll", NodeId(3), || StorageId(1));
        assert!(matches!(other, Err(IdentityError::Foreign { .. })));
        let bad = Identity::open(&disk, "a b", NodeId(3), || StorageId(1));
        assert!(matches!(bad, Err(IdentityError::BadClusterName { .. })));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let disk = MemDisk::new();
        let (identity, _) = open(&disk, 3).unwrap();
        for offset in 0..identity.to_text().len() as u64 {
            for bit in 0..8 {
                let damaged = disk.fork();
                assert!(damaged.flip_bit(&DiskPath::fixed(MARKER), offset, bit));
                assert!(open(&damaged, 3).is_err(), "byte {offset} bit {bit}");
            }
        }
    }

    #[test]
    fn other_versions_and_lost_markers_are_named() {
        let disk = MemDisk::new();
        let mut file = disk.open(&DiskPath::fixed(MARKER), Open::Create).unwrap();
        let text = format!("{TITLE}\nformat = 2\nwhatever\n");
        file.write_at(0, &[std::io::IoSlice::new(text.as_bytes())]).unwrap();
        assert_eq!(open(&disk, 3), Err(IdentityError::UnsupportedFormat { found: 2 }));
        disk.remove(&DiskPath::fixed(MARKER)).unwrap();
        assert_eq!(Identity::read(&disk), Ok(None));
        disk.create_dir(&DiskPath::fixed(JOURNAL_DIR)).unwrap();
        disk.open(&DiskPath::fixed("journal/0000000000000001.seg"), Open::Create).unwrap();
        assert_eq!(open(&disk, 3), Err(IdentityError::LostMarker { segments: 1 }));
    }
}

//! Cells: small values of roles that a node stores in place. A cell has a key and holds the last value that was written to it. Writing a
//! cell costs the same however often it was written before: there is no log of its values, and nothing to compact.

use bytes::Bytes;

use crate::ids::RoleKind;

/// The longest key of a cell, in bytes.
pub const MAX_CELL_KEY_BYTES: usize = 256;
/// The longest value of a cell, in bytes.
pub const MAX_CELL_VALUE_BYTES: usize = 1024 * 1024 - 1024;

/// A cell as it was read back at a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The role that wrote it.
    pub owner: RoleKind,
    /// Its key, 1 to [`MAX_CELL_KEY_BYTES`]. Each role has its own keys.
    pub key: Bytes,
    /// Its value, at most [`MAX_CELL_VALUE_BYTES`].
    pub value: Bytes,
}

/// A write of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellWrite {
    /// The number of the write: 1 for the first that the data directory ever had, and one more for each later one.
    pub number: u64,
    /// The role that gets the cell back at recovery.
    pub owner: RoleKind,
    /// The key.
    pub key: Bytes,
    /// The new value. None deletes the cell.
    pub value: Option<Bytes>,
}

//! Restores: a tree snapshot replaces the whole tree, on every replica at the same position of the log.
//!
//! A tree snapshot may be larger than an entry of the log, so it is uploaded in pieces. The pieces are ordinary keys of the state:
//! they are part of its hashes and of state snapshots for other replicas. One final command reads the pieces again, verifies the
//! hash, and puts the snapshot in place. That happens completely or not at all, before every later command. There is one upload at
//! a time. A new upload ends the previous one, whose next piece is then refused. A stalled upload is discarded
//! (`server/admin/restore.rs`).
//!
//! The change begins an epoch above all zxids of both trees (contracts X23). Its proposer becomes the holder of the snapshot's
//! sessions, each with a full timeout and with a move count that no earlier command can name (X22). `/zookeeper/config` stays as it
//! is, because it describes this cluster.

use atoll_db::{KeyRange, Proposer};
use bytes::{Bytes, BytesMut};

use super::key;
use super::node::{Data, Node};
use super::snapshot::{self, HASH_BYTES, Snapshot};
use super::state::{Counters, Keys, TreeState, length};
use crate::command::{Discard, Restore, Stage};
use crate::event::Event;
use crate::jute::codes::ErrorCode;
use crate::jute::{Jute, record};
use crate::path;
use crate::session::state::Session;

/// Longest piece, in bytes.
pub const MAX_PIECE_BYTES: usize = 256 * 1024;
/// Keys to delete at once.
const PAGE: usize = 1000;

record! {
    /// The progress of an upload.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Staged {
        /// The number of the upload.
        upload: i64,
        /// The number of pieces so far.
        pieces: i32,
        /// The number of bytes in these pieces.
        bytes: i64,
    }
}

impl<K: Keys> TreeState<'_, K> {
    fn staged(&mut self) -> Option<Staged> {
        let bytes = self.keys.get(key::STAGED)?;
        // As for znodes, a replica that cannot read what it has applied must stop.
        Some(Staged::parse(&bytes).unwrap_or_else(|e| panic!("an upload: {e}")))
    }

    /// Adds a piece to an upload. Piece 0 begins a new upload.
    ///
    /// # Errors
    /// BadVersion: the piece is not the next one, or another upload has begun. BadArguments: the piece is empty or too long, or all
    /// pieces together are.
    pub fn stage(&mut self, asked: Stage<'_>) -> Result<(), ErrorCode> {
        let data = asked.data.unwrap_or_default();
        let before = match self.staged() {
            before if asked.piece == 0 => {
                self.drop_pieces(before);
                Some(Staged { upload: asked.upload, pieces: 0, bytes: 0 })
            }
            before => before.filter(|s| s.upload == asked.upload && s.pieces == asked.piece),
        };
        let before = before.ok_or(ErrorCode::BadVersion)?;
        let staged = Staged { pieces: before.pieces + 1, bytes: before.bytes + length(data.len()), ..before };
        let fits = !data.is_empty() && data.len() <= MAX_PIECE_BYTES;
        if !fits || staged.bytes > length(snapshot::MAX_BYTES) {
            return Err(ErrorCode::BadArguments);
        }
        self.keys.put(&key::staged_piece(asked.piece), data.to_vec());
        self.keys.put(key::STAGED, staged.to_vec());
        self.keys.emit(Event::Counted { zxid: self.zxid });
        Ok(())
    }

    fn drop_pieces(&mut self, staged: Option<Staged>) {
        (0..staged.map_or(0, |s| s.pieces)).for_each(|piece| self.keys.delete(&key::staged_piece(piece)));
        self.keys.delete(key::STAGED);
    }

    /// Discards an upload.
    ///
    /// # Errors
    /// NoNode: there is no such upload, or it has another number of pieces by now.
    pub fn discard(&mut self, asked: Discard) -> Result<(), ErrorCode> {
        let found = self.staged().filter(|s| s.upload == asked.upload && s.pieces == asked.pieces);
        self.drop_pieces(Some(found.ok_or(ErrorCode::NoNode)?));
        self.keys.emit(Event::Counted { zxid: self.zxid });
        Ok(())
    }

    /// Replaces the tree with the uploaded snapshot.
    ///
    /// # Errors
    /// NoNode: the upload is incomplete, because another one has begun or it was discarded. MarshallingError: the upload is not a
    /// snapshot, or not the one with this hash. BadArguments: no epoch is left above that of the snapshot.
    pub fn restore(&mut self, asked: Restore<'_>, by: Proposer) -> Result<(), ErrorCode> {
        let found = self.staged().filter(|s| s.upload == asked.upload && s.pieces == asked.pieces);
        let staged = found.ok_or(ErrorCode::NoNode)?;
        let mut file = BytesMut::new();
        for piece in 0..staged.pieces {
            file.extend_from_slice(&self.keys.get(&key::staged_piece(piece)).ok_or(ErrorCode::NoNode)?);
        }
        let snapshot = Snapshot::read(&file.freeze()).map_err(|_| ErrorCode::MarshallingError)?;
        if asked.hash.and_then(|hash| <[u8; HASH_BYTES]>::try_from(hash).ok()) != Some(snapshot.hash) {
            return Err(ErrorCode::MarshallingError);
        }
        self.raise_epoch(snapshot.zxid)?;
        self.drop_pieces(Some(staged));
        let config = self.config()?;
        self.clear();
        self.keys.emit(Event::Restored { zxid: self.zxid });
        self.put_snapshot(snapshot, by)?;
        self.put_config(config)?;
        self.keys.put(key::RESTORED, self.zxid.to_vec());
        Ok(())
    }

    /// Returns the node `/zookeeper/config`, and its data if that is not stored in the node.
    fn config(&mut self) -> Result<(Node, Option<Bytes>), ErrorCode> {
        let node = self.need(path::CONFIG)?;
        let apart = matches!(node.data, Data::Apart(_)).then(|| self.data(path::CONFIG, &node.data));
        Ok((node, apart.flatten()))
    }

    /// Replaces the snapshot's `/zookeeper/config` with this cluster's.
    fn put_config(&mut self, (node, apart): (Node, Option<Bytes>)) -> Result<(), ErrorCode> {
        let theirs = self.need(path::CONFIG)?;
        if let Data::Apart(length) = theirs.data {
            let pieces = key::data_pieces(path::CONFIG, length as usize);
            pieces.for_each(|(key, _)| self.keys.delete(&key));
        }
        self.count(path::CONFIG, &theirs, -1);
        self.count(path::CONFIG, &node, 1);
        self.put_node(path::CONFIG, &node);
        if let Some(data) = apart {
            self.put_apart(path::CONFIG, &data);
        }
        Ok(())
    }

    /// Deletes the tree and all sessions.
    fn clear(&mut self) {
        let mut range = KeyRange::all();
        loop {
            let page = self.keys.first(&range, PAGE);
            let Some((last, _)) = page.last() else { break };
            let above = range.clone().above(last);
            for (key, _) in &page {
                if snapshot::is_carried(key) || key.first() == Some(&b'h') {
                    self.keys.delete(key);
                }
            }
            range = above;
        }
    }

    fn put_snapshot(&mut self, snapshot: Snapshot, by: Proposer) -> Result<(), ErrorCode> {
        for (key, value) in snapshot.entries {
            match key.first() {
                Some(b's') => {
                    let session = Session::of_bytes(&value).map_err(|_| ErrorCode::MarshallingError)?;
                    let id = key::session_at_end(&key).ok_or(ErrorCode::MarshallingError)?;
                    self.hold(id, Session { holder: by, moves: self.zxid, ..session }, false);
                }
                Some(b'z') => {
                    let zxid = self.counters.zxid;
                    let theirs = Counters::parse(&value).map_err(|_| ErrorCode::MarshallingError)?;
                    self.counters = Counters { zxid, ..theirs };
                }
                _ if snapshot::is_carried(&key) => self.keys.put(&key, value.to_vec()),
                _ => return Err(ErrorCode::MarshallingError),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;

    #[test]
    fn a_piece_fits_into_a_command() {
        let data = vec![0; MAX_PIECE_BYTES];
        let stage = Stage { upload: i64::MAX, piece: i32::MAX, data: Some(&data) };
        assert!(Command::Stage(stage).to_bytes().len() <= atoll_db::MAX_COMMAND_BYTES);
    }
}

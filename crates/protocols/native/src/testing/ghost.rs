//! What shows outside of one Loglet: which disks have which copies, what its servers report, and what is acknowledged.

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_contract::testing::{Violations, digest};
use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::{NodeId, StorageId};

use crate::config::NativeConfig;

/// The state of one server of one Loglet, as far as it shows outside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    pub(super) local_tail: u64,
    pub(super) said_sealed: bool,
    pub(super) sealed_fact: bool,
    pub(super) tombstone: bool,
    /// A node has asked the server to delete the Loglet. From then on, its reports about the Loglet are ignored.
    pub(super) deleting: bool,
}

/// The state of one Loglet, as far as it shows outside.
#[derive(Debug, Default)]
pub(super) struct Ghost {
    pub(super) config: Option<NativeConfig>,
    /// The digest of each offset, if known.
    content: Vec<Option<u64>>,
    /// For each offset, a bit for each disk that has a copy.
    pub(super) copies: Vec<u32>,
    disks: Vec<StorageId>,
    pub(super) servers: BTreeMap<StorageId, Server>,
    /// Everything below this is on a majority.
    pub(super) committed: u64,
    /// Above every acknowledged offset.
    pub(super) acked: u64,
    /// The lowest sealed tail that was returned or installed as a stop.
    pub(super) sealed_tail: Option<u64>,
    /// The highest open tail that was returned.
    pub(super) open_tail: u64,
    /// Whether a chain contains the Loglet.
    pub(super) chained: bool,
}

/// Offsets from here on are ignored. No run gets near it.
pub(super) const MAX_OFFSETS: u64 = 1 << 22;

impl Ghost {
    pub(super) fn disk(&mut self, storage: StorageId) -> u32 {
        match self.disks.iter().position(|d| *d == storage) {
            Some(i) => 1 << i.min(31),
            None => {
                self.disks.push(storage);
                1 << (self.disks.len() - 1).min(31)
            }
        }
    }

    pub(super) fn advance(&mut self) {
        let Some(config) = &self.config else { return };
        let named = config
            .servers
            .iter()
            .filter_map(|(_, s)| self.disks.iter().position(|d| d == s))
            .fold(0u32, |mask, i| mask | 1 << i);
        while let Some(mask) = self.copies.get(self.committed as usize)
            && (mask & named).count_ones() as usize >= config.quorum()
        {
            self.committed += 1;
        }
    }

    /// Returns how many of the configured servers have their seal bit on disk.
    pub(super) fn sealed_servers(&self) -> usize {
        self.sealed_on().count()
    }

    pub(super) fn sealed_on(&self) -> impl Iterator<Item = NodeId> {
        let sealed = |s: &StorageId| self.servers.get(s).is_some_and(|server| server.sealed_fact);
        let servers = self.config.iter().flat_map(|c| &c.servers);
        servers.filter(move |(_, s)| sealed(s)).map(|(node, _)| *node)
    }

    pub(super) fn holds(
        &mut self,
        loglet: LogletId,
        at: u64,
        bytes: u64,
        what: &str,
        verdict: &mut Violations,
    ) {
        if at >= MAX_OFFSETS {
            return;
        }
        let index = at as usize;
        if self.content.len() <= index {
            self.content.resize(index + 1, None);
            self.copies.resize(index + 1, 0);
        }
        match self.content[index] {
            Some(other) if other != bytes => {
                verdict.fail(format!(
                    "native-N1 two values: loglet {loglet} offset {at}: {what} differs from an earlier copy"
                ));
            }
            _ => self.content[index] = Some(bytes),
        }
    }
}

/// Returns offset and digest of each entry of a batch.
pub(super) fn entries(first: Offset, batch: &Bytes) -> Vec<(u64, u64)> {
    let Ok(batch) = Batch::parse(batch.clone()) else { return Vec::new() };
    let of = |e: atoll_contract::Entry| {
        digest(&e.payload) ^ e.op.client.0.rotate_left(17) ^ e.op.seq.rotate_left(41)
    };
    batch.entries().enumerate().map(|(i, e)| (first.0 + i as u64, of(e))).collect()
}

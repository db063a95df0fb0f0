//! readNext: from the store, or from the mirror for what it has. The mirror holds only sealed loglets, so a copy there is final.

use std::ops::Range;

use atoll_contract::{Offset, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{NodeId, RoleKind};
use atoll_loglet_store::decode_entries;
use atoll_loglet_store::message::{Read, Verdict};

use crate::loglet::TrioLoglet;
use crate::roles::{MIRROR, STORE};

const NO_COPY: ReadError = ReadError::Unavailable(Unavailability::NoQuorum);

impl TrioLoglet {
    /// Returns the holders in the order in which to ask them. The mirror comes first only if the loglet is known to be sealed, and then if
    /// it is on this node; if neither is, chance decides.
    fn readers(&self, from: ReadFrom) -> Vec<(NodeId, RoleKind)> {
        let s = &self.0;
        let own = s.env.node();
        let mut holders = vec![(s.config.store.0, STORE), (s.config.mirror.0, MIRROR)];
        if from == ReadFrom::LocalOnly {
            holders.retain(|(node, _)| *node == own);
        } else if s.tails.sealed().is_some() && s.config.store.0 != own {
            let is_first = s.config.mirror.0 == own || s.env.random().is_multiple_of(2);
            if is_first {
                holders.reverse();
            }
        }
        holders
    }

    pub(crate) async fn read_entries(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<ReadBatch, ReadError> {
        let s = &self.0;
        if range.is_empty() {
            return Err(ReadError::BeyondTail(range.start));
        }
        let until = s.env.now().after(s.options.op_timeout);
        let max_bytes = u32::try_from(max_bytes).unwrap_or(u32::MAX);
        let request = Read { loglet: s.id, from: range.start, to: range.end, max_bytes };
        loop {
            let mut failure = NO_COPY;
            for (node, role) in self.readers(from) {
                match self.copy_at(node, role, request.clone()).await {
                    Err(ReadError::Unavailable(_)) => {}
                    // The mirror may have what the store has lost, or cannot read.
                    Err(error @ (ReadError::BeyondTail(_) | ReadError::Damaged(_))) => failure = error,
                    done => return done,
                }
            }
            if failure != NO_COPY || from == ReadFrom::LocalOnly || s.env.now() >= until {
                return Err(failure);
            }
            hit("trio.read.again");
            s.env.sleep(s.env.jitter(s.options.retry)).await;
        }
    }

    /// Reads from one holder. `Unavailable` means that another holder, or this one later, may have the entry.
    async fn copy_at(&self, node: NodeId, role: RoleKind, request: Read) -> Result<ReadBatch, ReadError> {
        let s = &self.0;
        let at = request.from;
        let call = s.env.call_role(node, role, request);
        let Ok(Ok(entries)) = s.env.within(s.options.round_timeout, call).await else { return Err(NO_COPY) };
        match entries.verdict {
            Verdict::Done {} => {
                let got = decode_entries(entries);
                let got =
                    got.ok_or_else(|| ReadError::Damaged(format!("node {node} sent a malformed batch")))?;
                if role == MIRROR {
                    hit("trio.read.mirror");
                }
                let remote = if node == s.env.node() { 0 } else { got.len() as u64 };
                Ok(ReadBatch { entries: got, remote })
            }
            Verdict::Trimmed {} => Err(ReadError::Trimmed(entries.state.trim)),
            Verdict::Gone {} => Err(ReadError::Gone),
            Verdict::Damaged { reason } => Err(ReadError::Damaged(format!("node {node}: {reason}"))),
            // What the store lacks was never acknowledged. What the mirror lacks says nothing.
            Verdict::NotHere {} if role == STORE => Err(ReadError::BeyondTail(at)),
            _ => Err(NO_COPY),
        }
    }
}

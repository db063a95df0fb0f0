//! Reads: one server of each shard is asked for the records of the shard in a range of numbers. Numbers are dense, so the answers merge
//! into entries without gaps, as far as the shards answered.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use atoll_contract::{Entry, LogletError, Offset, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_loglet_store::parse_counted;

use super::ScalogLoglet;
use crate::message::{Fetch, Fetched, Found};
use crate::order::Order;

const NO_SERVER: ReadError = ReadError::Unavailable(Unavailability::NoQuorum);

impl ScalogLoglet {
    pub(super) async fn read_range(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<ReadBatch, ReadError> {
        let (s, start) = (&self.0, range.start.0);
        if range.is_empty() {
            return Err(ReadError::BeyondTail(range.start));
        }
        // The caller may know the number of its own append, or a tail that another node has checked.
        if start >= self.with_order(Order::base) {
            self.refresh().await.map_err(read_error)?;
        }
        let (base, trim) = self.with_order(|order| (order.base(), order.trim()));
        if start < trim {
            return Err(ReadError::Trimmed(Offset(trim)));
        }
        if start >= base {
            return Err(ReadError::BeyondTail(range.start));
        }
        let end = range.end.0.min(base);
        let mut calls = Vec::new();
        for (shard, nodes) in self.servers(start, from) {
            let loglet = self.clone();
            let fetch = async move { loglet.fetch(shard, nodes, start..end, max_bytes).await };
            calls.push(s.env.launch("scalog.fetch", fetch));
        }
        let (mut found, mut failure): (BTreeMap<u64, (NodeId, Entry)>, ReadError) =
            (BTreeMap::new(), NO_SERVER);
        for call in calls {
            match call.await.unwrap_or(Err(NO_SERVER)) {
                Ok((node, entries)) => {
                    found.extend(entries.into_iter().map(|(number, entry)| (number, (node, entry))));
                }
                Err(error @ (ReadError::Gone | ReadError::Trimmed(_))) => return Err(error),
                Err(error) => failure = error,
            }
        }
        let (mut got, mut bytes) = (ReadBatch { entries: Vec::new(), remote: 0 }, 0);
        for number in start..end {
            let Some((node, entry)) = found.remove(&number) else { break };
            bytes += entry.payload.len();
            if bytes > max_bytes && !got.entries.is_empty() {
                break;
            }
            got.remote += u64::from(node != s.env.node());
            got.entries.push(entry);
        }
        if got.entries.is_empty() { Err(failure) } else { Ok(got) }
    }

    /// Reads one record of a shard. None if the record with this number is in another shard.
    pub(super) async fn read_one(&self, at: u64, shard: u32) -> Result<Option<Entry>, ReadError> {
        if at >= self.with_order(Order::base) {
            self.refresh().await.map_err(read_error)?;
        }
        let (base, trim) = self.with_order(|order| (order.base(), order.trim()));
        if at < trim {
            return Err(ReadError::Trimmed(Offset(trim)));
        }
        if at >= base {
            return Err(ReadError::BeyondTail(Offset(at)));
        }
        let servers = self.servers(at, ReadFrom::Anywhere).into_iter().find(|(number, _)| *number == shard);
        let Some((_, nodes)) = servers else { return Ok(None) };
        let (_, entries) = self.fetch(shard, nodes, at..at + 1, 1).await?;
        Ok(entries.into_iter().find(|(number, _)| *number == at).map(|(_, entry)| entry))
    }

    /// Returns the shards that may have records from a number on, each with its servers in the order in which they are asked.
    fn servers(&self, start: u64, from: ReadFrom) -> Vec<(u32, Vec<NodeId>)> {
        let me = self.0.env.node();
        self.with_order(|order| {
            let may_have = |shard: &crate::order::Shard| {
                shard.ended.is_none_or(|end| end.base > start) && shard.counts.iter().any(|count| *count > 0)
            };
            let shards = order.shards().iter().filter(|(_, shard)| may_have(shard));
            let one = |(number, shard): (&u32, &crate::order::Shard)| {
                let mut nodes: Vec<NodeId> = shard.servers.iter().map(|server| server.node).collect();
                // Readers on different nodes ask different servers, and each its own node first.
                let len = nodes.len();
                nodes.rotate_left(me.0 as usize % len);
                nodes.sort_by_key(|node| *node != me);
                if from == ReadFrom::LocalOnly {
                    nodes.retain(|node| *node == me);
                }
                (*number, nodes)
            };
            shards.map(one).collect()
        })
    }

    /// Asks the servers of a shard, one after the other, for its records in a range.
    async fn fetch(
        &self,
        shard: u32,
        nodes: Vec<NodeId>,
        range: Range<u64>,
        max_bytes: usize,
    ) -> Result<(NodeId, Vec<(u64, Entry)>), ReadError> {
        let s = &self.0;
        let mut failure = NO_SERVER;
        let patience = s.options.round_timeout;
        for node in nodes {
            let mut request = Fetch {
                loglet: s.id,
                config: Bytes::new(),
                shard,
                from: range.start,
                to: range.end,
                max_bytes: u32::try_from(max_bytes).unwrap_or(u32::MAX),
                patience_ms: u32::try_from(patience.as_millis() / 2).unwrap_or(u32::MAX),
            };
            let mut answer = s.env.within(patience, s.env.call(node, request.clone())).await;
            if matches!(&answer, Ok(Ok(Fetched { found: Found::Unconfigured {}, .. }))) {
                request.config = s.config_bytes.clone();
                answer = s.env.within(patience, s.env.call(node, request)).await;
            }
            let Ok(Ok(fetched)) = answer else {
                hit("scalog.read.next_server");
                continue;
            };
            match fetched.found {
                Found::Records {} => match entries(fetched) {
                    Some(entries) => return Ok((node, entries)),
                    None => failure = ReadError::Damaged(format!("node {node} sent a malformed batch")),
                },
                Found::Trimmed { to } => return Err(ReadError::Trimmed(Offset(to))),
                Found::Gone {} => return Err(ReadError::Gone),
                Found::Damaged { reason } => failure = ReadError::Damaged(reason),
                Found::Busy {} => failure = ReadError::Unavailable(Unavailability::Busy),
                Found::Behind {} | Found::Unconfigured {} | Found::NotInShard {} => {}
            }
        }
        Err(failure)
    }
}

/// Returns the entries of an answer with their numbers; None if it is malformed.
fn entries(fetched: Fetched) -> Option<Vec<(u64, Entry)>> {
    let mut all = Vec::new();
    for ((first, count), bytes) in fetched.runs.into_iter().zip(fetched.batches) {
        let batch = parse_counted(bytes, count).ok()?;
        all.extend((first..).zip(batch.entries()));
    }
    Some(all)
}

pub(super) fn read_error(error: LogletError) -> ReadError {
    match error {
        LogletError::Gone => ReadError::Gone,
        LogletError::Unavailable(why) => ReadError::Unavailable(why),
    }
}

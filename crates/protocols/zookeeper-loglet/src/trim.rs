//! prefixTrim, and the deletion of a whole loglet. A trim is one number that only rises. The batches below it are deleted afterwards, by
//! the bucket and a few buckets at a time, by whoever trims next.

use atoll_contract::{LogletError, Offset};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{Encode, Tick};
use bytes::Bytes;

use crate::ensemble::{Answer, Fault, Node, Op, Refusal, Request};
use crate::layout::{BUCKET_BATCHES, BucketNode, DELETED, TrimNode};
use crate::loglet::{Shared, Trouble, decode};

/// How many buckets one trim deletes, at most. The next trim continues.
const BUCKETS_AT_ONCE: u64 = 64;

impl Shared {
    /// Trims, and deletes some of what was trimmed.
    pub(crate) async fn trim(&self, to: Offset) -> Result<(), LogletError> {
        let until = self.deadline();
        loop {
            match self.raise_trim(to).await {
                Ok(()) => break,
                Err(Trouble::Fault(Fault::Refused(Refusal::Version))) if self.env.now() < until => {}
                Err(trouble) => self.again(until, trouble).await?,
            }
        }
        lock(&self.recent).forget_below(to);
        // What is left over is deleted by the next trim, or with the loglet.
        if let Err(trouble) = self.sweep(to).await {
            tracing::debug!(loglet = %self.id, ?trouble, "trimmed entries stay for now");
        }
        Ok(())
    }

    async fn trim_node(&self) -> Result<(TrimNode, Node), Trouble> {
        if let Some(node) = self.get(self.paths.trim.clone()).await? {
            return Ok((decode(&node)?, node));
        }
        // It was not created yet, or was deleted.
        self.look(true).await?;
        Err(Fault::Lost.into())
    }

    async fn raise_trim(&self, to: Offset) -> Result<(), Trouble> {
        let (trim, node) = self.trim_node().await?;
        if trim.deleted {
            return Err(Trouble::Gone);
        }
        if trim.to >= to {
            return Ok(());
        }
        Ok(self.write(vec![self.set_trim(TrimNode { to, ..trim }, node.version)]).await?)
    }

    fn set_trim(&self, trim: TrimNode, version: i32) -> Op {
        Op::Set { path: self.paths.trim.clone(), data: trim.to_bytes(), version: Some(version) }
    }

    /// Deletes buckets all of whose entries are below `to`, and remembers which.
    async fn sweep(&self, to: Offset) -> Result<(), Trouble> {
        let (trim, node) = self.trim_node().await?;
        let mut first_bucket = trim.first_bucket;
        for _ in 0..BUCKETS_AT_ONCE {
            // The newest bucket stays: whether its last batch is below, no other bucket tells.
            let Some(next) = self.get(self.paths.bucket(first_bucket + 1)).await? else { break };
            if decode::<BucketNode>(&next)?.first > to {
                break;
            }
            self.delete_bucket(first_bucket).await?;
            first_bucket += 1;
        }
        if first_bucket > trim.first_bucket {
            hit("zookeeper.swept");
            self.write(vec![self.set_trim(TrimNode { first_bucket, ..trim }, node.version)]).await?;
        }
        Ok(())
    }

    /// Deletes a bucket with its batches, in one write.
    async fn delete_bucket(&self, bucket: u64) -> Result<(), Trouble> {
        let path = self.paths.bucket(bucket);
        let children = match self.ask(vec![Request::Children(path.clone())]).await.pop() {
            Some(Ok(Answer::Children(Some(children)))) => children,
            // Somebody else has deleted it.
            Some(Ok(Answer::Children(None))) => return Ok(()),
            Some(Err(fault)) => return Err(fault.into()),
            Some(Ok(_)) | None => return Err(Fault::Lost.into()),
        };
        let mut ops: Vec<Op> =
            children.iter().map(|name| Op::Delete { path: format!("{path}/{name}") }).collect();
        ops.push(Op::Delete { path });
        match self.write(ops).await {
            // Somebody else was faster.
            Ok(()) | Err(Fault::Refused(Refusal::Missing)) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Deletes the loglet permanently. Its znode stays, as a tombstone.
    pub(crate) async fn delete(&self) -> Result<(), LogletError> {
        let until = self.deadline();
        loop {
            match self.bury().await {
                Ok(()) => break,
                Err(trouble) => self.again(until, trouble).await?,
            }
        }
        self.patiently_delete_entries().await?;
        let until = self.deadline();
        loop {
            let nodes = [&self.paths.entries, &self.paths.trim, &self.paths.tail, &self.paths.seal];
            let ops = nodes.map(|path| Op::Delete { path: path.clone() }).to_vec();
            match self.write(ops).await {
                Ok(()) | Err(Fault::Refused(Refusal::Missing)) => return Ok(()),
                Err(fault) => self.again(until, fault.into()).await?,
            }
        }
    }

    /// Makes the loglet one that was deleted. From then on, no append succeeds, and every handle finds it gone.
    async fn bury(&self) -> Result<(), Trouble> {
        let set = |path: &String, data: Bytes| Op::Set { path: path.clone(), data, version: None };
        let Some(trim) = self.get(self.paths.trim.clone()).await? else {
            return match self.look(true).await {
                // It exists now.
                Ok(_) => Err(Fault::Busy.into()),
                Err(Trouble::Gone) => Ok(()),
                Err(trouble) => Err(trouble),
            };
        };
        let gone = TrimNode { to: Offset(u64::MAX), deleted: true, ..decode(&trim)? };
        let ops = vec![
            set(&self.paths.home, Bytes::from_static(DELETED)),
            set(&self.paths.seal, Bytes::new()),
            set(&self.paths.trim, gone.to_bytes()),
        ];
        match self.write(ops).await {
            // Somebody else has deleted it altogether.
            Ok(()) | Err(Fault::Refused(Refusal::Missing)) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Deletes all buckets, one after the other. Each has the time of an operation.
    async fn patiently_delete_entries(&self) -> Result<(), LogletError> {
        let until = self.deadline();
        let (mut bucket, end) = loop {
            match self.buckets().await {
                Ok(Some(buckets)) => break (buckets.start, buckets.end),
                Ok(None) => return Ok(()),
                Err(trouble) => self.again(until, trouble).await?,
            }
        };
        let mut until: Tick = self.deadline();
        while bucket < end {
            match self.delete_bucket(bucket).await {
                Ok(()) => (bucket, until) = (bucket + 1, self.deadline()),
                Err(trouble) => self.again(until, trouble).await?,
            }
        }
        Ok(())
    }

    /// Returns the buckets that may exist. None if the loglet's znodes were deleted already.
    async fn buckets(&self) -> Result<Option<std::ops::Range<u64>>, Trouble> {
        let (trim, tail) =
            (self.get(self.paths.trim.clone()).await?, self.get(self.paths.tail.clone()).await?);
        let (Some(trim), Some(tail)) = (trim, tail) else { return Ok(None) };
        let batches =
            u64::try_from(tail.version).map_err(|_| Trouble::Damaged("the tail's version".into()))?;
        Ok(Some(decode::<TrimNode>(&trim)?.first_bucket..batches.div_ceil(BUCKET_BATCHES)))
    }
}

//! Where the shards of a keyspace are, so that a request for a key goes straight to the node that leads its shard.
//!
//! Every node answers for every key, so a placement that is out of date only costs a hop. It is learned when the handle is first used, and
//! again from time to time, because shards move.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::connections::{Connections, Repeat};
use crate::keyspace_proto::{DescribeKeyspaceRequest, keyspace_service_client::KeyspaceServiceClient};
use crate::operations::Node;
use crate::proto::NodeListRequest;
use crate::proto::cluster_service_client::ClusterServiceClient;

/// How long a placement is used. Too small: the nodes describe the keyspace often. Too large: requests for shards that have moved take a
/// hop more for longer.
const FRESH: Duration = Duration::from_secs(10);
/// How long the request that learns a placement waits for it before it is sent anywhere.
const LEARN_WITHIN: Duration = Duration::from_millis(500);
/// For how long a node that failed is not asked first.
const AVOID: Duration = Duration::from_secs(2);

/// Returns the shard of a key in a keyspace with this many shards; `Keyspace` in keyspace.proto defines it.
pub fn shard_of(key: &[u8], shards: usize) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    (hash % shards.max(1) as u64) as usize
}

#[derive(Debug, Default)]
struct Known {
    /// The nodes of each shard. The first one leads.
    shards: Vec<Vec<u32>>,
    nodes: BTreeMap<u32, Arc<Node>>,
    /// When to learn it again; None before the first time.
    next: Option<Instant>,
}

/// The placement of a keyspace, as its clients know it.
#[derive(Debug, Default)]
pub(crate) struct Placement(Mutex<Known>);

impl Placement {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node to which a request for a key goes first: the first one of its shard that takes streams, and has not failed lately.
    /// None if none is known.
    pub(crate) async fn node(&self, all: &Connections, keyspace: &str, key: &[u8]) -> Option<Arc<Node>> {
        if self.is_due() {
            // Without an answer, what was known before is used.
            let _ = timeout(LEARN_WITHIN, self.learn(all, keyspace)).await;
        }
        let known = self.known();
        let shard = known.shards.get(shard_of(key, known.shards.len()))?;
        shard
            .iter()
            .filter_map(|id| known.nodes.get(id))
            .find(|node| node.has_streams() && !node.connections.failed_within(AVOID))
            .cloned()
    }

    /// Returns whether the caller is the one that learns the placement now.
    fn is_due(&self) -> bool {
        let (mut known, now) = (self.known(), Instant::now());
        let is_due = known.next.is_none_or(|next| next <= now);
        if is_due {
            known.next = Some(now + FRESH);
        }
        is_due
    }

    async fn learn(&self, all: &Connections, keyspace: &str) -> Option<()> {
        let within = all.options.attempt_timeout;
        let request = DescribeKeyspaceRequest { name: keyspace.to_owned() };
        let described = all.call(Repeat::Idempotent, within, |channel| {
            let request = request.clone();
            async move { KeyspaceServiceClient::new(channel).describe_keyspace(request).await }
        });
        let shards = described.await.ok()?.shards;
        let members = all.call(Repeat::Idempotent, within, |channel| async move {
            ClusterServiceClient::new(channel).node_list(NodeListRequest {}).await
        });
        let members = members.await.ok()?.nodes;
        let mut known = self.known();
        known.shards = shards.into_iter().map(|shard| shard.nodes).collect();
        let members = members.into_iter().filter(|member| !member.grpc.is_empty());
        let nodes = members.filter_map(|member| Some((member.id, all.node(&member.grpc)?))).collect();
        known.nodes = nodes;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::options::Options;
    use crate::proto::Reason;

    fn placement(shards: &[&[u32]], nodes: &[u32]) -> Placement {
        let node = |id: u32| {
            Node::new(Connections::new(&format!("127.0.0.1:{id}"), Options::default()).expect("valid"))
        };
        Placement(Mutex::new(Known {
            shards: shards.iter().map(|nodes| nodes.to_vec()).collect(),
            nodes: nodes.iter().map(|id| (*id, Arc::new(node(*id)))).collect(),
            next: Some(Instant::now() + FRESH),
        }))
    }

    async fn first(placement: &Placement, key: &str) -> Option<String> {
        let all = Connections::new("127.0.0.1:1", Options::default()).expect("valid");
        placement.node(&all, "keyspace", key.as_bytes()).await.map(|node| node.connections.text(0).to_owned())
    }

    #[tokio::test]
    async fn a_request_goes_to_the_first_node_of_its_shard_that_has_not_failed() {
        let gone = Failure::new(Reason::Unavailable, "gone", "");
        let placement = placement(&[&[1, 2], &[2, 3], &[3, 1], &[9]], &[1, 2, 3]);
        assert_eq!(shard_of(b"owner/7", 4), 3);
        assert_eq!(first(&placement, "owner/7").await, None, "the address of node 9 is not known");
        let key =
            (0..).map(|n| n.to_string()).find(|key| shard_of(key.as_bytes(), 4) == 1).expect("one of them");
        assert_eq!(first(&placement, &key).await.as_deref(), Some("127.0.0.1:2"));
        placement.known().nodes[&2].connections.failed(0, &gone);
        assert_eq!(first(&placement, &key).await.as_deref(), Some("127.0.0.1:3"));
        placement.known().nodes[&3].connections.failed(0, &gone);
        assert_eq!(first(&placement, &key).await, None);
    }
}

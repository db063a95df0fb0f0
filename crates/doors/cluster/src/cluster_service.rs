//! The cluster service: status, membership and feature levels.

use atoll_client::Reason;
use atoll_client::proto::cluster_service_server::ClusterService;
use atoll_client::proto::{
    LevelsReply, LevelsRequest, NodeAddRequest, NodeDrainRequest, NodeListReply, NodeListRequest,
    NodeRemoveRequest, NodeReply, StatusReply, StatusRequest, UpgradeRequest,
};
use atoll_core::{Level, LevelRange, NodeId};
use atoll_door::backend::{Refusal, answer};
use atoll_door::grpc::{Shared, caller_of};
use atoll_door::limits::{check_list, check_text, shown};
use tonic::{Request, Response, Status};

/// The names of the roles that a member can have.
const ROLES: [&str; 3] = ["log", "sequencer", "meta"];

/// The longest address of a member, in bytes: a DNS name of the maximum length, and a port.
const MAX_ADDRESS_BYTES: usize = 260;

/// The cluster service of this node.
pub(crate) struct ClusterApi {
    shared: Shared,
}

impl ClusterApi {
    pub(crate) fn new(shared: Shared) -> Self {
        ClusterApi { shared }
    }
}

fn node_id(id: u32) -> Result<NodeId, Refusal> {
    match id {
        0 => Err(Refusal::no(Reason::Invalid, "0 is not a node id", "ids of nodes start at 1")),
        id => Ok(NodeId(id)),
    }
}

fn level(to: u32) -> Result<Level, Refusal> {
    let next = || format!("levels are 1 to {}; this node reads {}", u16::MAX, LevelRange::OURS);
    match u16::try_from(to) {
        Ok(to) if to > 0 => Ok(Level(to)),
        _ => Err(Refusal::no(Reason::Invalid, format!("{to} is not a feature level"), next())),
    }
}

fn check_add(request: &NodeAddRequest) -> Result<(), Refusal> {
    node_id(request.id)?;
    check_text("an address", &request.address, MAX_ADDRESS_BYTES)?;
    check_list("roles", request.roles.len(), ROLES.len())?;
    let port = request.address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    if port.and_then(|port| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
        let message = format!("{} is not an address", shown(&request.address));
        let next = "give HOST:PORT, where the other nodes reach the new one";
        return Err(Refusal::no(Reason::Invalid, message, next));
    }
    match request.roles.iter().find(|role| !ROLES.contains(&role.as_str())) {
        Some(role) => Err(Refusal::no(
            Reason::Invalid,
            format!("no role {}", shown(role)),
            format!("roles are {}", ROLES.join(", ")),
        )),
        None => Ok(()),
    }
}

#[tonic::async_trait]
impl ClusterService for ClusterApi {
    async fn status(&self, _request: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        Ok(Response::new(answer(self.shared.backend.operations().status()).await?))
    }

    async fn node_list(&self, _request: Request<NodeListRequest>) -> Result<Response<NodeListReply>, Status> {
        let nodes = answer(self.shared.backend.operations().nodes()).await?;
        Ok(Response::new(NodeListReply { nodes }))
    }

    async fn node_add(&self, request: Request<NodeAddRequest>) -> Result<Response<NodeReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        check_add(&request)?;
        caller.detail(format_args!("node {} at {}", request.id, request.address));
        Ok(Response::new(answer(self.shared.backend.operations().add_node(request)).await?))
    }

    async fn node_drain(&self, request: Request<NodeDrainRequest>) -> Result<Response<NodeReply>, Status> {
        let caller = caller_of(&request)?;
        let id = node_id(request.into_inner().id)?;
        caller.detail(format_args!("node {id}"));
        Ok(Response::new(answer(self.shared.backend.operations().drain_node(id)).await?))
    }

    async fn node_remove(&self, request: Request<NodeRemoveRequest>) -> Result<Response<NodeReply>, Status> {
        let caller = caller_of(&request)?;
        let id = node_id(request.into_inner().id)?;
        caller.detail(format_args!("node {id}"));
        Ok(Response::new(answer(self.shared.backend.operations().remove_node(id)).await?))
    }

    async fn levels(&self, _request: Request<LevelsRequest>) -> Result<Response<LevelsReply>, Status> {
        Ok(Response::new(answer(self.shared.backend.operations().levels()).await?))
    }

    async fn upgrade(&self, request: Request<UpgradeRequest>) -> Result<Response<LevelsReply>, Status> {
        let to = request.into_inner().to.map(level).transpose()?;
        Ok(Response::new(answer(self.shared.backend.operations().upgrade(to)).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_members_are_checked() {
        let request = |id, address: &str, roles: &[&str]| NodeAddRequest {
            id,
            address: address.to_owned(),
            roles: roles.iter().map(|r| (*r).to_owned()).collect(),
        };
        assert_eq!(check_add(&request(4, "10.0.0.4:7410", &["log", "meta"])), Ok(()));
        assert_eq!(check_add(&request(4, "[::1]:7410", &[])), Ok(()));
        for bad in [
            request(0, "a:1", &[]),
            request(4, "a", &[]),
            request(4, ":1", &[]),
            request(4, "a:0", &[]),
            request(4, "a:1", &["leader"]),
            request(4, "a:1", &["log"; 4]),
            request(4, &format!("{}:1", "a".repeat(259)), &[]),
        ] {
            assert!(check_add(&bad).is_err(), "{bad:?}");
        }
    }
}

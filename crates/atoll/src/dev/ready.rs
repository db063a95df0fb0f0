//! Waits until the cluster answers: every node answers, the registers of the logs answer through it, and it knows that all nodes have
//! joined.

use std::cell::Cell;
use std::time::Duration;

use atoll_client::proto::cluster_service_client::ClusterServiceClient;
use atoll_client::proto::log_service_client::LogServiceClient;
use atoll_client::proto::{ListLogsRequest, NodeListRequest};
use tonic::transport::Endpoint;

use super::plan::Plan;

/// Pause between two requests to a node that did not answer.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Time limit for one request.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Completes once each node has answered a request that needs a majority of the registers, and knows of no child that has not joined yet.
/// So no node refuses the next request for that reason. `why_not` holds the last error of the node that is being asked.
pub async fn cluster_answers(plan: &Plan, why_not: &Cell<String>) {
    for node in &plan.nodes {
        while let Err(why) = ask(&node.config.grpc, plan).await {
            why_not.set(format!("node {}: {why}", node.id));
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

async fn ask(grpc: &str, plan: &Plan) -> Result<(), String> {
    let ask = async {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(|e| e.to_string())?;
        let channel = endpoint.connect().await.map_err(|_| "does not listen yet".to_owned())?;
        let said = |status: tonic::Status| status.message().to_owned();
        LogServiceClient::new(channel.clone()).list_logs(ListLogsRequest::default()).await.map_err(said)?;
        let members = ClusterServiceClient::new(channel).node_list(NodeListRequest {}).await.map_err(said)?;
        // Members that are not children of this process may join at any time.
        let ours = |id| plan.nodes.iter().any(|node| node.id == id);
        match members.get_ref().nodes.iter().find(|member| member.state == "down" && ours(member.id)) {
            Some(member) => Err(format!("of node {}: {}", member.id, member.reason)),
            None => Ok(()),
        }
    };
    match tokio::time::timeout(ASK_WITHIN, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", ASK_WITHIN.as_secs())),
    }
}

//! When the cluster answers: every node does, and the registers of the logs do through it.

use std::time::Duration;

use atoll_client::proto::ListLogsRequest;
use atoll_client::proto::log_service_client::LogServiceClient;
use tonic::transport::Endpoint;

use super::plan::Plan;

/// Pause between two questions to a node that did not answer.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Time for one question.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Ready once each node has answered a question that needs a majority of the registers.
pub async fn cluster_answers(plan: &Plan) {
    for node in &plan.nodes {
        while !answers(&node.config.grpc).await {
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

async fn answers(grpc: &str) -> bool {
    let ask = async {
        let channel = Endpoint::from_shared(format!("http://{grpc}")).ok()?.connect().await.ok()?;
        LogServiceClient::new(channel).list_logs(ListLogsRequest {}).await.ok()
    };
    matches!(tokio::time::timeout(ASK_WITHIN, ask).await, Ok(Some(_)))
}

//! When the cluster answers: every node does, and the registers of the logs do through it.

use std::cell::Cell;
use std::time::Duration;

use atoll_client::proto::ListLogsRequest;
use atoll_client::proto::log_service_client::LogServiceClient;
use tonic::transport::Endpoint;

use super::plan::Plan;

/// Pause between two questions to a node that did not answer.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Time for one question.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Ready once each node has answered a question that needs a majority of the registers. `why_not` holds what the node
/// that is asked now said last.
pub async fn cluster_answers(plan: &Plan, why_not: &Cell<String>) {
    for node in &plan.nodes {
        while let Err(why) = ask(&node.config.grpc).await {
            why_not.set(format!("node {}: {why}", node.id));
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

async fn ask(grpc: &str) -> Result<(), String> {
    let ask = async {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).map_err(|e| e.to_string())?;
        let channel = endpoint.connect().await.map_err(|_| "does not listen yet".to_owned())?;
        let answer = LogServiceClient::new(channel).list_logs(ListLogsRequest {}).await;
        answer.map(drop).map_err(|status| status.message().to_owned())
    };
    match tokio::time::timeout(ASK_WITHIN, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", ASK_WITHIN.as_secs())),
    }
}

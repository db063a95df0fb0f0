//! The policy service: declares, ends and shows the policies of logs.

use std::sync::Arc;

use atoll_client::Reason;
use atoll_client::proto::policy_service_server::PolicyService;
use atoll_client::proto::{
    ClearPolicyRequest, DryRunReply, DryRunRequest, PolicyReply, SetPolicyRequest, ShowPolicyRequest,
};
use atoll_door::backend::{PolicyBackend, Refusal, answer};
use atoll_door::grpc::{Caller, Shared, caller_of};
use tonic::{Request, Response, Status};

use crate::names::admit;

/// The policy service of this node.
pub(crate) struct PolicyApi {
    shared: Shared,
}

impl PolicyApi {
    pub(crate) fn new(shared: Shared) -> Self {
        PolicyApi { shared }
    }

    /// Returns the policies of this node, for a request about this log. Refuses a caller who may not do this with the log.
    fn policies(&self, caller: &Caller, log: &str) -> Result<Arc<dyn PolicyBackend>, Status> {
        admit(caller, log)?;
        let none = || Refusal::no(Reason::Refused, "this node has no policies", "").into();
        self.shared.backend.policies().ok_or_else(none)
    }
}

#[tonic::async_trait]
impl PolicyService for PolicyApi {
    async fn set(&self, request: Request<SetPolicyRequest>) -> Result<Response<PolicyReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let policies = self.policies(&caller, &request.log)?;
        let policy = request.policy.unwrap_or_default();
        Ok(Response::new(answer(policies.set(request.log, policy)).await?))
    }

    async fn clear(&self, request: Request<ClearPolicyRequest>) -> Result<Response<PolicyReply>, Status> {
        let caller = caller_of(&request)?;
        let log = request.into_inner().log;
        Ok(Response::new(answer(self.policies(&caller, &log)?.clear(log)).await?))
    }

    async fn show(&self, request: Request<ShowPolicyRequest>) -> Result<Response<PolicyReply>, Status> {
        let caller = caller_of(&request)?;
        let log = request.into_inner().log;
        Ok(Response::new(answer(self.policies(&caller, &log)?.show(log)).await?))
    }

    async fn dry_run(&self, request: Request<DryRunRequest>) -> Result<Response<DryRunReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let policies = self.policies(&caller, &request.log)?;
        Ok(Response::new(answer(policies.dry_run(request.log, request.policy)).await?))
    }
}

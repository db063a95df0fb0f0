//! The backup service: begins, ends and shows the backup of the database.

use std::sync::Arc;

use atoll_client::Reason;
use atoll_client::proto::backup_service_server::BackupService;
use atoll_client::proto::{
    BackupStatusReply, BackupStatusRequest, ListBackupReply, ListBackupRequest, StartBackupRequest,
    StopBackupRequest,
};
use atoll_door::backend::{BackupBackend, Refusal, answer};
use atoll_door::grpc::{Shared, caller_of};
use atoll_door::limits::check_text;
use tonic::{Request, Response, Status};

/// The longest URL.
const MAX_URL_BYTES: usize = 512;

/// The backup service of this node.
pub(crate) struct BackupApi {
    shared: Shared,
}

impl BackupApi {
    pub(crate) fn new(shared: Shared) -> Self {
        BackupApi { shared }
    }

    fn backups(&self) -> Result<Arc<dyn BackupBackend>, Status> {
        let none = || Refusal::no(Reason::Refused, "this node offers no backup", "").into();
        self.shared.backend.backups().ok_or_else(none)
    }
}

#[tonic::async_trait]
impl BackupService for BackupApi {
    async fn start(
        &self,
        request: Request<StartBackupRequest>,
    ) -> Result<Response<BackupStatusReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        check_text("a URL", &request.url, MAX_URL_BYTES)?;
        // What stands before an @ could be a password. The node refuses such a URL.
        caller.detail(request.url.split_once('@').map_or(request.url.as_str(), |_| ""));
        Ok(Response::new(answer(self.backups()?.start(request)).await?))
    }

    async fn stop(&self, _: Request<StopBackupRequest>) -> Result<Response<BackupStatusReply>, Status> {
        Ok(Response::new(answer(self.backups()?.stop()).await?))
    }

    async fn status(&self, _: Request<BackupStatusRequest>) -> Result<Response<BackupStatusReply>, Status> {
        Ok(Response::new(answer(self.backups()?.status()).await?))
    }

    async fn list(&self, _: Request<ListBackupRequest>) -> Result<Response<ListBackupReply>, Status> {
        Ok(Response::new(answer(self.backups()?.list()).await?))
    }
}

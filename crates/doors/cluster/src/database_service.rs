//! The database service, which shows operators the replica of this node.

use atoll_client::proto::database_service_server::DatabaseService;
use atoll_client::proto::{
    DatabaseStatusReply, DatabaseStatusRequest, ScrubReply, ScrubRequest, StateHash as ToldHash,
};
use atoll_db::{Database, HashAt};
use atoll_door::backend::no_database;
use atoll_door::grpc::Shared;
use tonic::{Request, Response, Status};

/// The database service of this node.
pub(crate) struct DatabaseApi {
    shared: Shared,
}

impl DatabaseApi {
    pub(crate) fn new(shared: Shared) -> Self {
        DatabaseApi { shared }
    }

    fn database(&self) -> Result<Database, Status> {
        self.shared.backend.database().ok_or_else(|| no_database().into())
    }
}

#[tonic::async_trait]
impl DatabaseService for DatabaseApi {
    async fn status(
        &self,
        _request: Request<DatabaseStatusRequest>,
    ) -> Result<Response<DatabaseStatusReply>, Status> {
        let database = self.database()?;
        let health = database.health();
        let hash = |h: HashAt| ToldHash { below: h.below.0, hash: format!("{:032x}", h.hash) };
        let (refilling, scrubbed) = (health.refilling.as_ref(), health.scrubbed.as_ref());
        Ok(Response::new(DatabaseStatusReply {
            node: self.shared.backend.node().0,
            applied_below: health.applied_below.0,
            committed_below: health.committed_below.0,
            durable_below: health.durable_below.0,
            known_tail: health.known_tail.0,
            store_bytes: health.store_bytes,
            hashes: database.hashes().into_iter().map(hash).collect(),
            refills: health.refills,
            refilling_from: refilling.map(|r| r.from.0),
            refilled_keys: refilling.map_or(0, |r| r.keys),
            refilled_bytes: refilling.map_or(0, |r| r.bytes),
            scrubbed_below: scrubbed.map(|s| s.below.0),
            scrubbed_keys: scrubbed.map_or(0, |s| s.keys),
            withheld: health.withheld.map(|f| f.to_string()).unwrap_or_default(),
            found: health.found.iter().map(ToString::to_string).collect(),
            found_total: health.found_total,
            halted: health.halted.map(|h| h.to_string()).unwrap_or_default(),
            store_trouble: health.store_trouble.map(|e| e.to_string()).unwrap_or_default(),
            checked: health.checked.map(|c| c.to_string()).unwrap_or_default(),
            out_of_service: health.out_of_service.map(|o| o.to_string()).unwrap_or_default(),
        }))
    }

    async fn scrub(&self, _request: Request<ScrubRequest>) -> Result<Response<ScrubReply>, Status> {
        self.database()?.scrub();
        Ok(Response::new(ScrubReply {}))
    }
}

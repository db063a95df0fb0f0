//! The keyspace service.

use std::pin::Pin;
use std::sync::Arc;

use atoll_auth::Right;
use atoll_client::Reason;
use atoll_client::keyspace_proto as proto;
use atoll_client::keyspace_proto::keyspace_service_server::KeyspaceService;
use atoll_contract::keyspace::Change;
use atoll_door::Refusal;
use atoll_door::backend::KeyspaceBackend;
use atoll_door::grpc::{AnswerRoom, Caller, Shared, caller_of, connection_of};
use atoll_door::keyspaces::{Described, KeyWrite, LeaseRequest};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::operations::OperationStream;
use crate::{convert, keys, watch};

/// The maximum number of listings that a node streams at a time.
const MAX_LISTINGS: usize = 16;
/// The maximum number of keys that clients of a node watch at a time.
const MAX_WATCHES: usize = 256;
/// The maximum number of clients that wait for leases at a time.
const MAX_WAITING: usize = 256;

/// The keyspace service of this node.
pub(crate) struct KeyspaceApi {
    shared: Shared,
    listings: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl KeyspaceApi {
    pub(crate) fn new(shared: Shared) -> Self {
        let permits = |most| Arc::new(Semaphore::new(most));
        KeyspaceApi {
            shared,
            listings: permits(MAX_LISTINGS),
            watches: permits(MAX_WATCHES),
            waiting: permits(MAX_WAITING),
        }
    }

    fn keyspaces(&self) -> Result<Arc<dyn KeyspaceBackend>, Refusal> {
        let missing = || Refusal::no(Reason::Unavailable, "this node has no keyspaces", "ask another node");
        self.shared.backend.keyspaces().ok_or_else(missing)
    }

    async fn write(
        &self,
        caller: &Caller,
        keyspace: String,
        name: Option<proto::WriteName>,
        key: Bytes,
        condition: Option<proto::Condition>,
        change: Change,
    ) -> Result<Response<proto::WriteReply>, Status> {
        convert::check_name(caller, &keyspace)?;
        let (name, guard) = (convert::write_name(name)?, convert::guard(condition)?);
        let write = KeyWrite { name, key, guard, change };
        Ok(Response::new(convert::wrote(self.keyspaces()?.write(keyspace, write).await?)))
    }

    async fn lease(
        &self,
        caller: &Caller,
        keyspace: String,
        key: Bytes,
        request: LeaseRequest,
    ) -> Result<Response<proto::Lease>, Status> {
        convert::check_name(caller, &keyspace)?;
        convert::check_keys(std::slice::from_ref(&key))?;
        let waits = matches!(&request, LeaseRequest::Acquire { wait, .. } if !wait.is_zero());
        let busy = |_| {
            Refusal::no(Reason::Busy, "too many clients wait for leases at this node", "use another node")
        };
        let _permit =
            if waits { Some(self.waiting.clone().try_acquire_owned().map_err(busy)?) } else { None };
        Ok(Response::new(convert::lease(self.keyspaces()?.lease(keyspace, key, request).await?)))
    }
}

#[tonic::async_trait]
impl KeyspaceService for KeyspaceApi {
    async fn create_keyspace(
        &self,
        request: Request<proto::CreateKeyspaceRequest>,
    ) -> Result<Response<proto::Keyspace>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.name)?;
        let (name, spec) = (request.name.clone(), convert::spec(request)?);
        let layout = self.keyspaces()?.create(name.clone(), spec).await?;
        Ok(Response::new(convert::keyspace(name, &Described { layout, left_to_move: 0 })))
    }

    async fn list_keyspaces(
        &self,
        request: Request<proto::ListKeyspacesRequest>,
    ) -> Result<Response<proto::ListKeyspacesReply>, Status> {
        // The number of keyspaces is limited, and so is the length of their names.
        let names = caller_of(&request)?.visible(self.keyspaces()?.list().await?)?;
        Ok(Response::new(proto::ListKeyspacesReply { names }))
    }

    async fn describe_keyspace(
        &self,
        request: Request<proto::DescribeKeyspaceRequest>,
    ) -> Result<Response<proto::Keyspace>, Status> {
        let caller = caller_of(&request)?;
        let name = request.into_inner().name;
        convert::check_name(&caller, &name)?;
        let described = self.keyspaces()?.describe(name.clone()).await?;
        Ok(Response::new(convert::keyspace(name, &described)))
    }

    async fn move_keyspace(
        &self,
        request: Request<proto::MoveKeyspaceRequest>,
    ) -> Result<Response<proto::Keyspace>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.name)?;
        let (name, spec) = (request.name.clone(), convert::placement(request)?);
        let described = self.keyspaces()?.relocate(name.clone(), spec).await?;
        Ok(Response::new(convert::keyspace(name, &described)))
    }

    async fn delete_keyspace(
        &self,
        request: Request<proto::DeleteKeyspaceRequest>,
    ) -> Result<Response<proto::DeleteKeyspaceReply>, Status> {
        let caller = caller_of(&request)?;
        let name = request.into_inner().name;
        convert::check_name(&caller, &name)?;
        self.keyspaces()?.delete(name).await?;
        Ok(Response::new(proto::DeleteKeyspaceReply {}))
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<proto::GetReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        convert::check_keys(&request.keys)?;
        let found = self.keyspaces()?.get(request.keyspace, request.keys).await?;
        let bytes = found.iter().map(|f| f.held.as_ref().map_or(16, |held| held.value.len() + 32)).sum();
        room.map_or(Ok(()), |room| room.take(bytes))?;
        Ok(Response::new(proto::GetReply { found: found.into_iter().map(convert::found).collect() }))
    }

    async fn put(&self, request: Request<proto::PutRequest>) -> Result<Response<proto::WriteReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        // The buffer of the request is shared with the key. A copy keeps only the value.
        let change = Change::Put(Bytes::copy_from_slice(&request.value));
        self.write(&caller, request.keyspace, request.write, request.key, request.condition, change).await
    }

    async fn delete(
        &self,
        request: Request<proto::DeleteRequest>,
    ) -> Result<Response<proto::WriteReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        self.write(&caller, request.keyspace, request.write, request.key, request.condition, Change::Delete)
            .await
    }

    type OperateStream = OperationStream;

    async fn operate(
        &self,
        request: Request<Streaming<proto::OperateRequest>>,
    ) -> Result<Response<OperationStream>, Status> {
        let (caller, connection) = (caller_of(&request)?, connection_of(&request)?);
        let keyspaces = self.keyspaces()?;
        let stream = OperationStream::new(keyspaces, &self.shared, caller, connection, request.into_inner());
        Ok(Response::new(stream))
    }

    async fn transact(
        &self,
        request: Request<proto::TransactRequest>,
    ) -> Result<Response<proto::TransactReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        // A part that only checks a condition shows whether it holds, and the outcome what is there.
        let changes = request.parts.iter().any(convert::changes);
        let right = if changes { Right::Write } else { Right::Read };
        convert::check_name_with(&caller, right, &request.keyspace)?;
        let txn = convert::txn(request.write, request.parts)?;
        let reply = convert::transacted(self.keyspaces()?.transact(request.keyspace, txn).await?);
        let shown = |outcome: &proto::transact_reply::Outcome| {
            outcome.current.as_ref().map_or(0, |held| held.value.len())
        };
        let bytes = reply.outcomes.iter().map(|outcome| shown(outcome) + 32).sum();
        room.map_or(Ok(()), |room| room.take(bytes))?;
        Ok(Response::new(reply))
    }

    type KeysStream = Pin<Box<dyn Stream<Item = Result<proto::KeysReply, Status>> + Send>>;

    async fn keys(&self, request: Request<proto::KeysRequest>) -> Result<Response<Self::KeysStream>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        convert::check_keys(&[request.prefix.clone(), request.after.clone()])?;
        let busy = |_| {
            Refusal::no(Reason::Busy, "too many listings are being read from this node", "try again later")
        };
        let permit = self.listings.clone().try_acquire_owned().map_err(busy)?;
        let stream = keys::stream(self.keyspaces()?, &self.shared, permit, request).await?;
        Ok(Response::new(Box::pin(stream)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::WatchReply, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        convert::check_keys(std::slice::from_ref(&request.key))?;
        let busy =
            |_| Refusal::no(Reason::Busy, "too many keys are being watched at this node", "use another node");
        let permit = self.watches.clone().try_acquire_owned().map_err(busy)?;
        let stream = watch::stream(self.keyspaces()?, &self.shared, permit, request).await?;
        Ok(Response::new(Box::pin(stream)))
    }

    async fn acquire_lease(
        &self,
        request: Request<proto::AcquireLeaseRequest>,
    ) -> Result<Response<proto::Lease>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        let (keyspace, key) = (request.keyspace.clone(), request.key.clone());
        self.lease(&caller, keyspace, key, convert::acquire(request)?).await
    }

    async fn renew_lease(
        &self,
        request: Request<proto::RenewLeaseRequest>,
    ) -> Result<Response<proto::Lease>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        let renewal = convert::renew(&request)?;
        self.lease(&caller, request.keyspace, request.key, renewal).await
    }

    async fn release_lease(
        &self,
        request: Request<proto::ReleaseLeaseRequest>,
    ) -> Result<Response<proto::ReleaseLeaseReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        convert::check_keys(std::slice::from_ref(&request.key))?;
        let (key, fencing) = (request.key, request.fencing);
        self.keyspaces()?.release(request.keyspace, key, fencing, request.again).await?;
        Ok(Response::new(proto::ReleaseLeaseReply {}))
    }

    async fn lease_holder(
        &self,
        request: Request<proto::LeaseHolderRequest>,
    ) -> Result<Response<proto::LeaseHolderReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.keyspace)?;
        convert::check_keys(std::slice::from_ref(&request.key))?;
        let holder = self.keyspaces()?.holder(request.keyspace, request.key).await?;
        Ok(Response::new(convert::holder(holder)))
    }
}

//! The Scalog service.

use atoll_client::Reason;
use atoll_client::scalog_proto as proto;
use atoll_client::scalog_proto::scalog_service_server::ScalogService;
use atoll_contract::{Entry, LogPos};
use atoll_door::backend::Refusal;
use atoll_door::grpc::{AnswerRoom, Caller, Shared, caller_of, connection_of};
use atoll_door::shards::ShardChange;
use tonic::{Request, Response, Status};

use crate::append::{Appends, Named};
use crate::convert;
use crate::subscribe::{self, Records};

/// The most bytes of records in one answer: one record comes, however long it is.
const ONE_RECORD: usize = 1;

/// The Scalog service of this node.
pub(crate) struct ScalogApi {
    shared: Shared,
    appends: Appends,
}

impl ScalogApi {
    pub(crate) fn new(shared: Shared) -> Self {
        ScalogApi { appends: Appends::new(shared.clone()), shared }
    }

    async fn shards(&self, name: &str) -> Result<proto::ShardsReply, Refusal> {
        let active = self.appends.shards()?.shards(name).await?;
        Ok(convert::shards(name.to_owned(), active, self.shared.backend.node()))
    }

    async fn change(
        &self,
        caller: &Caller,
        name: &str,
        change: ShardChange,
    ) -> Result<proto::ChangeShardReply, Refusal> {
        // The database's log, too: its shards are not what is in it.
        convert::check_name(caller, name)?;
        let shard = self.appends.shards()?.change(name, change).await?;
        let shards = self.shards(name).await.map_err(Refusal::although_it_happened)?;
        Ok(proto::ChangeShardReply { shard, shards: Some(shards) })
    }

    async fn read(
        &self,
        caller: &Caller,
        request: &proto::ReadRecordRequest,
    ) -> Result<proto::read_record_reply::What, Refusal> {
        use proto::read_record_reply::What;
        let (name, at) = (request.log.as_str(), convert::position(request.position)?);
        convert::check_name(caller, name)?;
        let found = match request.shard {
            Some(shard) => self.appends.shards()?.read(name, at, shard).await,
            None => self.read_anywhere(name, at).await.map(Some),
        };
        match found {
            Ok(None) => Ok(What::Elsewhere(true)),
            Ok(Some(entry)) if entry.is_pad() => Ok(What::Pad(true)),
            Ok(Some(entry)) => Ok(What::Data(entry.payload)),
            Err(refusal) if refusal.failure.reason == Reason::Trimmed => Ok(What::Trimmed(true)),
            Err(refusal) => Err(refusal),
        }
    }

    async fn read_anywhere(&self, name: &str, at: LogPos) -> Result<Entry, Refusal> {
        let log = self.shared.backend.log(name)?;
        let mut read = log.read(at..at.plus(1), ONE_RECORD, false).await?;
        let lost = || Refusal::no(Reason::Unavailable, "the read returned no record", "try again");
        read.entries.pop().ok_or_else(lost)
    }
}

#[tonic::async_trait]
impl ScalogService for ScalogApi {
    async fn append(
        &self,
        request: Request<proto::AppendRequest>,
    ) -> Result<Response<proto::AppendReply>, Status> {
        let caller = caller_of(&request)?;
        let proto::AppendRequest { log, data, client, policy, floor } = request.into_inner();
        let named = Named { log, data, client, floor };
        Ok(Response::new(self.appends.by_policy(&caller, named, policy).await?))
    }

    async fn append_to_shard(
        &self,
        request: Request<proto::AppendToShardRequest>,
    ) -> Result<Response<proto::AppendReply>, Status> {
        let caller = caller_of(&request)?;
        let proto::AppendToShardRequest { log, data, client, shard, floor } = request.into_inner();
        let named = Named { log, data, client, floor };
        Ok(Response::new(self.appends.to_shard(&caller, named, shard).await?))
    }

    async fn read_record(
        &self,
        request: Request<proto::ReadRecordRequest>,
    ) -> Result<Response<proto::ReadRecordReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let what = self.read(&caller, &request.into_inner()).await?;
        if let (Some(room), proto::read_record_reply::What::Data(data)) = (room, &what) {
            room.take(data.len())?;
        }
        Ok(Response::new(proto::ReadRecordReply { what: Some(what) }))
    }

    type SubscribeStream = Records;

    async fn subscribe(
        &self,
        request: Request<proto::SubscribeRequest>,
    ) -> Result<Response<Records>, Status> {
        let (caller, connection) = (caller_of(&request)?, connection_of(&request)?);
        let proto::SubscribeRequest { log: name, from } = request.into_inner();
        convert::check_name(&caller, &name)?;
        let from = convert::position(from)?;
        self.appends.shards()?.check(&name).await?;
        let log = self.shared.backend.log(&name)?;
        Ok(Response::new(subscribe::stream(log, from, connection, &self.shared)?))
    }

    async fn trim(&self, request: Request<proto::TrimRequest>) -> Result<Response<proto::TrimReply>, Status> {
        let caller = caller_of(&request)?;
        let proto::TrimRequest { log: name, below } = request.into_inner();
        convert::check_name_to_change(&caller, &name)?;
        caller.detail(format_args!("below {below}"));
        self.appends.shards()?.check(&name).await?;
        self.shared.backend.log(&name)?.trim(convert::position(below)?).await?;
        Ok(Response::new(proto::TrimReply {}))
    }

    async fn shards(
        &self,
        request: Request<proto::ShardsRequest>,
    ) -> Result<Response<proto::ShardsReply>, Status> {
        let caller = caller_of(&request)?;
        let name = request.into_inner().log;
        convert::check_name(&caller, &name)?;
        Ok(Response::new(ScalogApi::shards(self, &name).await?))
    }

    async fn add_shard(
        &self,
        request: Request<proto::AddShardRequest>,
    ) -> Result<Response<proto::ChangeShardReply>, Status> {
        let caller = caller_of(&request)?;
        let proto::AddShardRequest { log, number, nodes } = request.into_inner();
        convert::check_name(&caller, &log)?;
        Ok(Response::new(self.change(&caller, &log, convert::add(number, nodes)?).await?))
    }

    async fn finalize_shard(
        &self,
        request: Request<proto::FinalizeShardRequest>,
    ) -> Result<Response<proto::ChangeShardReply>, Status> {
        let caller = caller_of(&request)?;
        let proto::FinalizeShardRequest { log, shard, after } = request.into_inner();
        Ok(Response::new(self.change(&caller, &log, ShardChange::End { number: shard, after }).await?))
    }
}

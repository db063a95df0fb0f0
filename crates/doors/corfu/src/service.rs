//! The CORFU service.

use std::sync::Arc;
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::corfu_proto as proto;
use atoll_client::corfu_proto::corfu_service_server::CorfuService;
use atoll_contract::LogPos;
use atoll_door::backend::{PositionBackend, Refusal, Submitted};
use atoll_door::grpc::{AnswerRoom, Caller, Shared, caller_of};
use atoll_door::positions::{PositionOp, PositionState};
use tonic::{Request, Response, Status};

use crate::convert;

/// How long an append waits for room.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The most bytes of entries in one answer: one entry comes, however long it is.
const ONE_ENTRY: usize = 1;

/// The CORFU service of this node.
pub(crate) struct CorfuApi {
    shared: Shared,
}

impl CorfuApi {
    pub(crate) fn new(shared: Shared) -> Self {
        CorfuApi { shared }
    }

    fn positions(&self) -> Result<Arc<dyn PositionBackend>, Refusal> {
        let missing =
            || Refusal::no(Reason::Unavailable, "this node serves no single positions", "ask another node");
        self.shared.backend.positions().ok_or_else(missing)
    }

    async fn append(&self, caller: &Caller, request: proto::AppendRequest) -> Result<u64, Refusal> {
        convert::check_name_to_change(caller, &request.log)?;
        let name = request.log.clone();
        let mut records = convert::record(request)?;
        self.positions()?.check(&name).await?;
        let log = self.shared.backend.log(&name)?;
        let until = tokio::time::Instant::now() + BUSY_FOR;
        loop {
            let busy = match log.submit(records) {
                Submitted::Pending(pending) => {
                    let lost = || Refusal::unknown(Reason::Abandoned, "the append has no position", "");
                    return pending.await?.first().map(|at| at.0).ok_or_else(lost);
                }
                Submitted::Busy(back, busy) => {
                    records = back;
                    busy
                }
            };
            let room = log.room(1, records.payload_bytes());
            if tokio::time::timeout_at(until, room).await.is_err() {
                let next = "try again later, or through another node";
                return Err(Refusal::no(Reason::Busy, busy.to_string(), next));
            }
        }
    }

    async fn read(
        &self,
        caller: &Caller,
        name: &str,
        at: LogPos,
    ) -> Result<proto::read_reply::What, Refusal> {
        use proto::read_reply::What;
        convert::check_name(caller, name)?;
        self.positions()?.check(name).await?;
        let log = self.shared.backend.log(name)?;
        match log.read(at..at.plus(1), ONE_ENTRY, false).await {
            Ok(read) => match read.entries.into_iter().next() {
                Some(entry) if !entry.is_pad() => return Ok(What::Data(entry.payload)),
                // A reader of the log passes both kinds of gaps; here, they differ.
                _ => {}
            },
            Err(refusal) if refusal.failure.reason == Reason::Trimmed => return Ok(What::Trimmed(true)),
            Err(mut refusal) => {
                if refusal.failure.reason == Reason::BeyondTail {
                    let tail = log.known_tail();
                    refusal.failure.message = format!("position {at} is beyond the tail, which is {tail}");
                }
                return Err(refusal);
            }
        }
        match self.positions()?.at(name, at, PositionOp::Look).await {
            Ok(PositionState::Trimmed) => Ok(What::Trimmed(true)),
            Err(refusal) if refusal.failure.reason == Reason::Trimmed => Ok(What::Trimmed(true)),
            Ok(_) => Ok(What::Junk(true)),
            Err(refusal) => Err(refusal),
        }
    }

    async fn fill(&self, caller: &Caller, name: &str, at: LogPos) -> Result<bool, Refusal> {
        convert::check_name_to_change(caller, name)?;
        let positions = self.positions()?;
        // Both begin at once. Without operations on single positions, a fill changes nothing.
        let (check, filled) = (positions.check(name), positions.at(name, at, PositionOp::Fill));
        check.await?;
        match filled.await? {
            PositionState::Junk => Ok(false),
            PositionState::Trimmed => Ok(true),
            PositionState::Data | PositionState::Unwritten => {
                let words = format!("position {at} is already written");
                Err(Refusal::no(Reason::Conflict, words, "read it; only a hole is filled"))
            }
        }
    }

    async fn trim(&self, caller: &Caller, request: proto::TrimRequest) -> Result<bool, Refusal> {
        use proto::trim_request::What;
        let name = request.log.as_str();
        convert::check_name_to_change(caller, name)?;
        let positions = self.positions()?;
        positions.check(name).await?;
        match request.what {
            Some(What::Position(at)) => {
                match positions.at(name, convert::position(at)?, PositionOp::Trim).await {
                    Ok(held) => Ok(held == PositionState::Junk),
                    // It is gone already, with all below it.
                    Err(refusal) if refusal.failure.reason == Reason::Trimmed => Ok(false),
                    Err(refusal) => Err(refusal),
                }
            }
            Some(What::Below(to)) => {
                self.shared.backend.log(name)?.trim(LogPos(to)).await?;
                Ok(false)
            }
            None => {
                let words = "the request does not say what to trim, or this node does not know it";
                Err(Refusal::no(Reason::Invalid, words, "name a position, or the end of a prefix"))
            }
        }
    }
}

#[tonic::async_trait]
impl CorfuService for CorfuApi {
    async fn append(
        &self,
        request: Request<proto::AppendRequest>,
    ) -> Result<Response<proto::AppendReply>, Status> {
        let caller = caller_of(&request)?;
        let position = CorfuApi::append(self, &caller, request.into_inner()).await?;
        Ok(Response::new(proto::AppendReply { position }))
    }

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<proto::ReadReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let what = CorfuApi::read(self, &caller, &request.log, convert::position(request.position)?).await?;
        if let (Some(room), proto::read_reply::What::Data(data)) = (room, &what) {
            room.take(data.len())?;
        }
        Ok(Response::new(proto::ReadReply { what: Some(what) }))
    }

    async fn fill(&self, request: Request<proto::FillRequest>) -> Result<Response<proto::FillReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let at = convert::position(request.position)?;
        let trimmed = CorfuApi::fill(self, &caller, &request.log, at).await?;
        Ok(Response::new(proto::FillReply { trimmed }))
    }

    async fn trim(&self, request: Request<proto::TrimRequest>) -> Result<Response<proto::TrimReply>, Status> {
        let caller = caller_of(&request)?;
        let junk = CorfuApi::trim(self, &caller, request.into_inner()).await?;
        Ok(Response::new(proto::TrimReply { junk }))
    }

    async fn show(
        &self,
        request: Request<proto::ShowRequest>,
    ) -> Result<Response<proto::Projection>, Status> {
        let caller = caller_of(&request)?;
        let log = request.into_inner().log;
        convert::check_name(&caller, &log)?;
        let active = self.positions()?.active(&log).await?;
        Ok(Response::new(convert::projection(log, active)))
    }

    async fn replace(
        &self,
        request: Request<proto::ReplaceRequest>,
    ) -> Result<Response<proto::Projection>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        convert::check_name(&caller, &request.log)?;
        let change = convert::replace(request.what)?;
        let positions = self.positions()?;
        positions.replace(&request.log, change).await?;
        let active = positions.active(&request.log).await.map_err(Refusal::although_it_happened)?;
        Ok(Response::new(convert::projection(request.log, active)))
    }
}

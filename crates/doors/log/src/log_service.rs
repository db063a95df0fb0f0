//! The log service: creates, lists and deletes logs, appends, reads, checks tails and trims.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::proto::log_service_server::LogService;
use atoll_client::proto::{self, Run};
use atoll_contract::{ClientId, LogPos};
use atoll_door::backend::{DATABASE_LOG, LogBackend, LogRecords, Refusal, Submitted, answer};
use atoll_door::grpc::{Caller, Shared, caller_of, connection_of};
use atoll_door::spec::loglet_spec;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status, Streaming};

use crate::append_stream::AppendStream;
use crate::names::{admit, check_trim, open, open_for_append};
use crate::read;
use crate::records::{check_records, runs};

/// How long a unary append waits for room.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The maximum number of names in one reply to a list request.
const NAMES_PER_REPLY: usize = 1000;

/// The log service of this node.
pub(crate) struct LogApi {
    shared: Shared,
    /// The last sequence number that was assigned to an append without a name, under [`atoll_door::Backend::client`].
    unnamed: Mutex<u64>,
}

impl LogApi {
    pub(crate) fn new(shared: Shared) -> Self {
        LogApi { shared, unnamed: Mutex::new(0) }
    }

    /// Submits records. Records without a name get one of this node. The name is assigned together with the submission, so that sequence
    /// numbers rise in the order of the submissions.
    fn submit(&self, log: &dyn LogBackend, mut records: LogRecords) -> Submitted {
        if records.client != ClientId(0) {
            return log.submit(records);
        }
        let mut last = self.unnamed.lock().unwrap_or_else(PoisonError::into_inner);
        records.client = self.shared.backend.client();
        records.first_seq = *last + 1;
        // Nobody has sent records of these names. With an old tail they would be searched for, and all unnamed appends behind them.
        records.known = None;
        let count = records.payloads.len() as u64;
        match log.submit(records) {
            Submitted::Busy(mut back, busy) => {
                back.client = ClientId(0);
                Submitted::Busy(back, busy)
            }
            pending => {
                *last += count;
                pending
            }
        }
    }

    async fn append(&self, caller: &Caller, request: proto::AppendRequest) -> Result<Vec<Run>, Refusal> {
        admit(caller, &request.log)?;
        let records = request.records.unwrap_or_default();
        if request.client == 0 && records.floor.is_some() {
            return Err(Refusal::no(
                Reason::Invalid,
                "an append without a client id cannot be a retry",
                "set client and first_seq, or leave floor out",
            ));
        }
        let first_seq = if request.client == 0 { records.first_seq.max(1) } else { records.first_seq };
        let records = check_records(ClientId(request.client), proto::Records { first_seq, ..records })?;
        let log = open_for_append(&self.shared, caller, &request.log).await?;
        let mut held = LogRecords { known: request.known_tail.map(LogPos), ..records };
        let until = Instant::now() + BUSY_FOR;
        loop {
            let busy = match self.submit(&*log, held) {
                Submitted::Pending(pending) => return Ok(runs(&pending.await?)),
                Submitted::Busy(back, busy) => {
                    held = back;
                    busy
                }
            };
            let room = log.room(held.payloads.len(), held.payload_bytes());
            if timeout_at(until, room).await.is_err() {
                let next = "try again later, or through another node";
                return Err(Refusal::no(Reason::Busy, busy.to_string(), next));
            }
        }
    }
}

/// Returns the requested part of all names.
fn names_after(all: Vec<String>, request: &proto::ListLogsRequest) -> proto::ListLogsReply {
    let limit = match request.limit {
        0 => NAMES_PER_REPLY,
        limit => usize::try_from(limit).unwrap_or(NAMES_PER_REPLY).min(NAMES_PER_REPLY),
    };
    let mut left = all.into_iter().skip_while(|name| *name <= request.after);
    let logs = left.by_ref().take(limit).collect();
    proto::ListLogsReply { logs, more: left.next().is_some() }
}

#[tonic::async_trait]
impl LogService for LogApi {
    async fn create_log(
        &self,
        request: Request<proto::CreateLogRequest>,
    ) -> Result<Response<proto::CreateLogReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        admit(&caller, &request.log)?;
        let spec = loglet_spec(request.loglet)?;
        let created = answer(self.shared.backend.create(&request.log, spec)).await?;
        Ok(Response::new(proto::CreateLogReply { created }))
    }

    async fn list_logs(
        &self,
        request: Request<proto::ListLogsRequest>,
    ) -> Result<Response<proto::ListLogsReply>, Status> {
        let all = caller_of(&request)?.visible(answer(self.shared.backend.list()).await?)?;
        Ok(Response::new(names_after(all, &request.into_inner())))
    }

    async fn delete_log(
        &self,
        request: Request<proto::DeleteLogRequest>,
    ) -> Result<Response<proto::DeleteLogReply>, Status> {
        let caller = caller_of(&request)?;
        let name = request.into_inner().log;
        admit(&caller, &name)?;
        if name == DATABASE_LOG {
            let words = "this log is the database's: it is not deleted while the cluster lives";
            return Err(Refusal::no(Reason::Refused, words, "").into());
        }
        let deleted = answer(self.shared.backend.delete(&name)).await?;
        Ok(Response::new(proto::DeleteLogReply { deleted }))
    }

    async fn append(
        &self,
        request: Request<proto::AppendRequest>,
    ) -> Result<Response<proto::AppendReply>, Status> {
        let caller = caller_of(&request)?;
        let runs = LogApi::append(self, &caller, request.into_inner()).await?;
        Ok(Response::new(proto::AppendReply { runs }))
    }

    type AppendStreamStream = AppendStream;

    async fn append_stream(
        &self,
        request: Request<Streaming<proto::AppendStreamRequest>>,
    ) -> Result<Response<AppendStream>, Status> {
        // Returns at once. The stream itself waits for the first message, so that a client may open it before it has anything to send.
        let (caller, connection) = (caller_of(&request)?, connection_of(&request)?);
        Ok(Response::new(AppendStream::new(self.shared.clone(), caller, connection, request.into_inner())))
    }

    type ReadStream = read::Replies;

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let (caller, connection) = (caller_of(&request)?, connection_of(&request)?);
        let request = request.into_inner();
        let log = open(&self.shared, &caller, &request.log)?;
        let (limits, stopping) = (self.shared.limits.clone(), self.shared.stopping.clone());
        Ok(Response::new(read::stream(log, request, connection, limits, stopping)?))
    }

    async fn check_tail(
        &self,
        request: Request<proto::CheckTailRequest>,
    ) -> Result<Response<proto::CheckTailReply>, Status> {
        let caller = caller_of(&request)?;
        let log = open(&self.shared, &caller, &request.into_inner().log)?;
        let tail = answer(log.check_tail()).await?;
        let trim = log.trim_point().min(tail);
        Ok(Response::new(proto::CheckTailReply { tail: tail.0, trim: trim.0 }))
    }

    async fn trim(&self, request: Request<proto::TrimRequest>) -> Result<Response<proto::TrimReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let log = open(&self.shared, &caller, &request.log)?;
        caller.detail(format_args!("below {}", request.to));
        check_trim(&self.shared, &request.log, LogPos(request.to))?;
        answer(log.trim(LogPos(request.to))).await?;
        Ok(Response::new(proto::TrimReply {}))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_come_in_pages_without_gaps() {
        let all: Vec<String> = (0..2500).map(|n| format!("log-{n:04}")).collect();
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = names_after(all.clone(), &proto::ListLogsRequest { after, limit: 0 });
            assert!(page.logs.len() <= NAMES_PER_REPLY);
            seen.extend(page.logs);
            after = seen.last().cloned().unwrap();
            if !page.more {
                break;
            }
        }
        assert_eq!(seen, all);
        let few = names_after(all, &proto::ListLogsRequest { after: "log-0007".into(), limit: 2 });
        assert_eq!((few.logs, few.more), (vec!["log-0008".to_owned(), "log-0009".to_owned()], true));
    }
}

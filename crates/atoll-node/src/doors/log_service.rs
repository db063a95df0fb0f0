//! The log service: creates, lists and deletes logs, appends, reads, checks tails and trims.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_client::proto::log_service_server::LogService;
use atoll_client::proto::{self, Run};
use atoll_client::{
    MAX_MESSAGE_BYTES, MAX_MESSAGE_RECORDS, MAX_RECORD_BYTES, Reason, is_log_name, log_name_hint,
};
use atoll_contract::{ClientId, LogPos, LogletSpec};
use atoll_core::NodeId;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status, Streaming};

use super::Shared;
use super::append_stream::AppendStream;
use super::backend::{LogBackend, LogRecords, Pending, Refusal, Submitted};
use super::grpc::Connection;
use super::limits::{check_spec, shown};
use super::read;

/// How long a unary append waits for room.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// The maximum number of names in one reply to a list request.
const NAMES_PER_REPLY: usize = 1000;

/// The log service of this node.
pub(super) struct Door {
    shared: Shared,
    /// The last sequence number that was assigned to an append without a name, under [`super::Backend::client`].
    unnamed: Mutex<u64>,
}

impl Door {
    pub(super) fn new(shared: Shared) -> Self {
        Door { shared, unnamed: Mutex::new(0) }
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

    async fn append(&self, request: proto::AppendRequest) -> Result<Vec<Run>, Refusal> {
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
        let log = self.shared.log_for_append(&request.log).await?;
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

impl Shared {
    /// Returns a log by name. Refuses an invalid name.
    pub(super) fn log(&self, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
        check_name(name)?;
        self.backend.log(name)
    }

    /// Returns a log by name, and creates it if it does not exist. Refuses an invalid name, and the database's log.
    pub(super) async fn log_for_append(&self, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
        check_name(name)?;
        if name == crate::database::LOG {
            let next = "use another log, or the database's doors";
            return Err(Refusal::no(
                Reason::Refused,
                "this log is the database's: only its replicas append to it",
                next,
            ));
        }
        self.backend.log_for_append(name).await
    }

    /// Refuses a trim that would lose data. The database's log may lose only what a store has on its disk, because the rest is stored
    /// nowhere else.
    fn check_trim(&self, name: &str, to: LogPos) -> Result<(), Refusal> {
        if name != crate::database::LOG {
            return Ok(());
        }
        let Some(database) = self.backend.database() else {
            let next = "ask a node with the role meta or sequencer";
            return Err(Refusal::no(
                Reason::Refused,
                "this log is the database's, and no replica is open here",
                next,
            ));
        };
        let held_below = database.held_below();
        if to <= held_below {
            return Ok(());
        }
        let message = format!(
            "this log is the database's, and only what is below {held_below} is in the store of this node, too"
        );
        Err(Refusal::no(Reason::Refused, message, "its replicas trim it themselves"))
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    match is_log_name(name) {
        true => Ok(()),
        false => Err(Refusal::no(Reason::Invalid, log_name_hint(name), "")),
    }
}

/// Checks the limits of an append, before anything is replicated.
pub(super) fn check_records(client: ClientId, records: proto::Records) -> Result<LogRecords, Refusal> {
    let count = records.payloads.len();
    if count == 0 || records.first_seq == 0 {
        let next = "send one record at least; sequences start at 1";
        return Err(Refusal::no(Reason::Invalid, "no records, or no sequence", next));
    }
    if records.first_seq.checked_add(count as u64).is_none() {
        return Err(Refusal::no(Reason::Invalid, "the sequences pass 2^64", "take a new client id"));
    }
    let bytes: usize = records.payloads.iter().map(bytes::Bytes::len).sum();
    if count > MAX_MESSAGE_RECORDS || bytes > MAX_MESSAGE_BYTES {
        return Err(Refusal::no(
            Reason::TooLarge,
            format!(
                "{count} records with {bytes} bytes in one message; at most {MAX_MESSAGE_RECORDS} records \
                 with {MAX_MESSAGE_BYTES} bytes are allowed"
            ),
            "send them in several messages",
        ));
    }
    if let Some(longest) = records.payloads.iter().map(bytes::Bytes::len).max()
        && longest > MAX_RECORD_BYTES
    {
        return Err(Refusal::no(
            Reason::TooLarge,
            format!("a record has {longest} bytes; at most {MAX_RECORD_BYTES} are allowed"),
            "split it",
        ));
    }
    Ok(LogRecords {
        client,
        first_seq: records.first_seq,
        payloads: records.payloads,
        floor: records.floor.map(LogPos),
        known: None,
    })
}

/// Groups positions into runs of consecutive ones.
pub(super) fn runs(positions: &[LogPos]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for position in positions {
        match runs.last_mut() {
            Some(run) if run.first + u64::from(run.count) == position.0 => run.count += 1,
            _ => runs.push(Run { first: position.0, count: 1 }),
        }
    }
    runs
}

/// Converts a specification for the virtual log.
///
/// # Errors
/// One of its lists or texts is too long, or it places a role twice.
pub(super) fn loglet_spec(spec: Option<proto::LogletSpec>) -> Result<LogletSpec, Refusal> {
    let spec = spec.unwrap_or_default();
    check_spec(&spec)?;
    let nodes = |ids: Vec<u32>| ids.into_iter().map(NodeId).collect::<Vec<_>>();
    let servers = Some(nodes(spec.servers)).filter(|servers| !servers.is_empty());
    let short = [("server", servers), ("sequencer", spec.sequencer.map(|node| vec![NodeId(node)]))];
    let short = short.into_iter().filter_map(|(role, nodes)| Some((role.to_owned(), nodes?)));
    let mut places = BTreeMap::new();
    for (role, nodes) in short.chain(spec.places.into_iter().map(|p| (p.role, nodes(p.nodes)))) {
        if places.contains_key(&role) {
            let words = format!("the role {} is placed twice", shown(&role));
            return Err(Refusal::no(Reason::Invalid, words, "place each role once"));
        }
        places.insert(role, nodes);
    }
    Ok(LogletSpec {
        kind: spec.kind,
        places,
        options: spec.options.into_iter().collect(),
        avoid: nodes(spec.avoid),
    })
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

/// Waits for an outcome and converts a refusal to a status.
pub(super) async fn answer<T>(pending: Pending<T>) -> Result<T, Status> {
    pending.await.map_err(Status::from)
}

#[tonic::async_trait]
impl LogService for Door {
    async fn create_log(
        &self,
        request: Request<proto::CreateLogRequest>,
    ) -> Result<Response<proto::CreateLogReply>, Status> {
        let request = request.into_inner();
        check_name(&request.log)?;
        let spec = loglet_spec(request.loglet)?;
        let created = answer(self.shared.backend.create(&request.log, spec)).await?;
        Ok(Response::new(proto::CreateLogReply { created }))
    }

    async fn list_logs(
        &self,
        request: Request<proto::ListLogsRequest>,
    ) -> Result<Response<proto::ListLogsReply>, Status> {
        let all = answer(self.shared.backend.list()).await?;
        Ok(Response::new(names_after(all, &request.into_inner())))
    }

    async fn delete_log(
        &self,
        request: Request<proto::DeleteLogRequest>,
    ) -> Result<Response<proto::DeleteLogReply>, Status> {
        let name = request.into_inner().log;
        check_name(&name)?;
        if name == crate::database::LOG {
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
        let runs = Door::append(self, request.into_inner()).await?;
        Ok(Response::new(proto::AppendReply { runs }))
    }

    type AppendStreamStream = AppendStream;

    async fn append_stream(
        &self,
        request: Request<Streaming<proto::AppendStreamRequest>>,
    ) -> Result<Response<AppendStream>, Status> {
        // Returns at once. The stream itself waits for the first message, so that a client may open it before it has anything to send.
        Ok(Response::new(AppendStream::new(self.shared.clone(), request.into_inner())))
    }

    type ReadStream = read::Replies;

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let connection = connection.ok_or_else(|| Status::internal("a request of no connection"))?;
        let request = request.into_inner();
        let log = self.shared.log(&request.log)?;
        let (limits, stopping) = (self.shared.limits.clone(), self.shared.stopping.clone());
        Ok(Response::new(read::stream(log, request, connection, limits, stopping)?))
    }

    async fn check_tail(
        &self,
        request: Request<proto::CheckTailRequest>,
    ) -> Result<Response<proto::CheckTailReply>, Status> {
        let log = self.shared.log(&request.into_inner().log)?;
        let tail = answer(log.check_tail()).await?;
        let trim = log.trim_point().min(tail);
        Ok(Response::new(proto::CheckTailReply { tail: tail.0, trim: trim.0 }))
    }

    async fn trim(&self, request: Request<proto::TrimRequest>) -> Result<Response<proto::TrimReply>, Status> {
        let request = request.into_inner();
        let log = self.shared.log(&request.log)?;
        self.shared.check_trim(&request.log, LogPos(request.to))?;
        answer(log.trim(LogPos(request.to))).await?;
        Ok(Response::new(proto::TrimReply {}))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bytes::Bytes;

    fn records(first_seq: u64, payloads: Vec<Bytes>) -> proto::Records {
        proto::Records { first_seq, payloads, floor: None }
    }

    #[test]
    fn limits_are_checked_with_the_figure_and_the_limit_in_the_words() {
        let reason = |r: proto::Records| check_records(ClientId(1), r).map_err(|e| e.failure.reason);
        assert_eq!(reason(records(1, vec![])), Err(Reason::Invalid));
        assert_eq!(reason(records(0, vec![Bytes::new()])), Err(Reason::Invalid));
        assert_eq!(reason(records(u64::MAX, vec![Bytes::new()])), Err(Reason::Invalid));
        let long = Bytes::from(vec![0; MAX_RECORD_BYTES + 1]);
        let refusal = check_records(ClientId(1), records(1, vec![long.clone()])).unwrap_err();
        assert_eq!(refusal.failure.reason, Reason::TooLarge);
        assert!(refusal.failure.message.contains("1000001") && refusal.failure.message.contains("1000000"));
        assert!(check_records(ClientId(1), records(1, vec![long.slice(1..)])).is_ok());
        assert_eq!(reason(records(1, vec![Bytes::new(); MAX_MESSAGE_RECORDS + 1])), Err(Reason::TooLarge));
        assert_eq!(reason(records(1, vec![long.slice(1..); 5])), Err(Reason::TooLarge));
    }

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

    #[test]
    fn positions_become_runs() {
        let run = |first, count| Run { first, count };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[4, 5, 6, 9, 3, 4].map(LogPos)), [run(4, 3), run(9, 1), run(3, 2)]);
    }
}

//! The chain service: shows and reconfigures chains.

use atoll_client::Reason;
use atoll_client::proto::chain_service_server::ChainService;
use atoll_client::proto::{
    Chain, ExtendRequest, LogletSpec, ModifyRequest, MoveChainRequest, OperateReply, OperateRequest,
    ShowChainRequest, TruncateRequest,
};
use atoll_contract::{LogPos, LogletId};
use atoll_door::backend::{DATABASE_LOG, Refusal, answer};
use atoll_door::grpc::{Caller, Shared, caller_of};
use atoll_door::limits::shown;
use atoll_door::spec::loglet_spec;
use atoll_log::Incision;
use tonic::{Request, Response, Status};

use crate::names::{admit, open};

/// The chain service of this node.
pub(crate) struct ChainApi {
    shared: Shared,
}

impl ChainApi {
    pub(crate) fn new(shared: Shared) -> Self {
        ChainApi { shared }
    }
}

fn loglet_id(text: &str) -> Result<LogletId, Refusal> {
    match u128::from_str_radix(text, 16) {
        Ok(id) if text.len() == 32 => Ok(LogletId(id)),
        _ => Err(Refusal::no(
            Reason::Invalid,
            format!("{} is not the id of a loglet", shown(text)),
            "it has 32 hexadecimal digits; `atoll chain show` lists those of a log",
        )),
    }
}

/// Returns the wanted kind, for the audit log.
fn kind_of(spec: Option<&LogletSpec>) -> String {
    spec.and_then(|spec| spec.kind.as_deref()).map(shown).unwrap_or_default()
}

/// Refuses surgery that nobody has confirmed, and on logs whose readers Atoll does not know: it could not fence them (virtuallog §7).
fn check_surgery(caller: &Caller, request: &OperateRequest) -> Result<(), Refusal> {
    admit(caller, &request.log)?;
    caller.detail(format_args!("position {}: {}", request.position, request.reason));
    check_incision(request)
}

fn check_incision(request: &OperateRequest) -> Result<(), Refusal> {
    if request.log != DATABASE_LOG {
        let next = "append a record that corrects the wrong one";
        let message = format!(
            "only the log of the database, {DATABASE_LOG}, allows surgery: the readers of others are clients, which may have read the entry"
        );
        return Err(Refusal::no(Reason::Refused, message, next));
    }
    if !request.confirmed {
        let message = "the entry would be gone for good, even if it was acknowledged";
        return Err(Refusal::no(Reason::Refused, message, "confirm it: --yes"));
    }
    Ok(())
}

#[tonic::async_trait]
impl ChainService for ChainApi {
    async fn show(&self, request: Request<ShowChainRequest>) -> Result<Response<Chain>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let log = open(&self.shared, &caller, &request.log)?;
        Ok(Response::new(answer(log.chain(request.from.map(LogPos))).await?))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<Chain>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        caller.detail(kind_of(request.loglet.as_ref()));
        let log = open(&self.shared, &caller, &request.log)?;
        let spec = loglet_spec(request.loglet)?;
        Ok(Response::new(answer(log.extend(spec)).await?))
    }

    async fn truncate(&self, request: Request<TruncateRequest>) -> Result<Response<Chain>, Status> {
        let caller = caller_of(&request)?;
        let log = open(&self.shared, &caller, &request.into_inner().log)?;
        Ok(Response::new(answer(log.truncate()).await?))
    }

    async fn modify(&self, request: Request<ModifyRequest>) -> Result<Response<Chain>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let log = open(&self.shared, &caller, &request.log)?;
        caller.detail(format_args!("segment {}: {}", shown(&request.loglet), kind_of(request.spec.as_ref())));
        let id = loglet_id(&request.loglet)?;
        let spec = loglet_spec(request.spec)?;
        Ok(Response::new(answer(log.modify(id, spec)).await?))
    }

    async fn move_chain(&self, request: Request<MoveChainRequest>) -> Result<Response<Chain>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let log = open(&self.shared, &caller, &request.log)?;
        caller.detail(format_args!("to {}", shown(&request.to)));
        Ok(Response::new(answer(log.move_chain(request.to)).await?))
    }

    async fn operate(&self, request: Request<OperateRequest>) -> Result<Response<OperateReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        check_surgery(&caller, &request)?;
        let incision = Incision {
            at: LogPos(request.position),
            with: request.with,
            operator: request.operator,
            reason: request.reason,
            take_over: request.take_over,
        };
        let record = answer(self.shared.backend.operate(incision)).await?;
        Ok(Response::new(OperateReply { record: Some(record) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surgery_needs_a_confirmation_and_readers_that_can_be_asked() {
        let request = |log: &str, confirmed| OperateRequest {
            log: log.to_owned(),
            confirmed,
            ..OperateRequest::default()
        };
        assert!(check_incision(&request(DATABASE_LOG, true)).is_ok());
        assert!(check_incision(&request(DATABASE_LOG, false)).is_err());
        assert!(check_incision(&request("main", true)).is_err());
    }

    #[test]
    fn loglet_ids_are_read_as_they_are_shown() {
        let id = LogletId(0xab);
        assert_eq!(loglet_id(&id.to_string()), Ok(id));
        for bad in ["", "ab", "g0000000000000000000000000000000", "000000000000000000000000000000000"] {
            assert!(loglet_id(bad).is_err(), "{bad}");
        }
    }
}

//! Opens logs by name, and protects the log of the database from clients.

use std::sync::Arc;

use atoll_client::{Reason, is_log_name, log_name_hint};
use atoll_contract::LogPos;
use atoll_door::backend::{DATABASE_LOG, LogBackend, Refusal};
use atoll_door::grpc::{Caller, Shared};

/// Refuses an invalid name.
fn check_name(name: &str) -> Result<(), Refusal> {
    match is_log_name(name) {
        true => Ok(()),
        false => Err(Refusal::no(Reason::Invalid, log_name_hint(name), "")),
    }
}

/// Refuses an invalid name, and a caller who may not do this with the log.
pub(crate) fn admit(caller: &Caller, name: &str) -> Result<(), Refusal> {
    check_name(name)?;
    caller.on(name)
}

/// Returns a log by name. Refuses an invalid name, and a caller who may not do this with the log.
pub(crate) fn open(shared: &Shared, caller: &Caller, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
    admit(caller, name)?;
    shared.backend.log(name)
}

/// Returns a log by name, and creates it if it does not exist. Refuses an invalid name, a caller who may not append to the log, and the
/// database's log.
pub(crate) async fn open_for_append(
    shared: &Shared,
    caller: &Caller,
    name: &str,
) -> Result<Arc<dyn LogBackend>, Refusal> {
    admit(caller, name)?;
    if name == DATABASE_LOG {
        let next = "use another log, or the database's doors";
        return Err(Refusal::no(
            Reason::Refused,
            "this log is the database's: only its replicas append to it",
            next,
        ));
    }
    shared.backend.log_for_append(name).await
}

/// Refuses a trim that would lose data. The database's log may lose only what a store has on its disk, because the rest is stored
/// nowhere else.
pub(crate) fn check_trim(shared: &Shared, name: &str, to: LogPos) -> Result<(), Refusal> {
    if name != DATABASE_LOG {
        return Ok(());
    }
    let Some(database) = shared.backend.database() else {
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

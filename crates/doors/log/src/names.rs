//! Opens logs by name, and protects the log of the database from clients.

use std::sync::Arc;

use atoll_client::{Reason, is_log_name, log_name_hint};
use atoll_contract::LogPos;
use atoll_door::backend::{DATABASE_LOG, LogBackend, Refusal};
use atoll_door::grpc::Shared;

/// Refuses an invalid name.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    match is_log_name(name) {
        true => Ok(()),
        false => Err(Refusal::no(Reason::Invalid, log_name_hint(name), "")),
    }
}

/// Returns a log by name. Refuses an invalid name.
pub(crate) fn open(shared: &Shared, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
    check_name(name)?;
    shared.backend.log(name)
}

/// Returns a log by name, and creates it if it does not exist. Refuses an invalid name, and the database's log.
pub(crate) async fn open_for_append(shared: &Shared, name: &str) -> Result<Arc<dyn LogBackend>, Refusal> {
    check_name(name)?;
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

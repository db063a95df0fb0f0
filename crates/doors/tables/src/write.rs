//! Writes: transactions, and changes of tables. Once a command was applied, no refusal says that it did not happen.

use std::collections::BTreeSet;

use atoll_auth::Right;
use atoll_client::{Reason, proto};
use atoll_core::codec::Encode;
use atoll_db::View;
use atoll_door::backend::Refusal;
use atoll_door::grpc::AnswerRoom;
use atoll_tables::{Action, Body, Command, MAX_OPERATIONS, Schema};
use bytes::Bytes;

use crate::answer::{Asked, answer, bytes_of_names};
use crate::convert;
use crate::handle::{TablesHandle, aside};
use crate::propose::propose;

/// The maximum size of the names of columns in the answer to a transaction, in bytes. The rows have a limit of their own.
const MAX_NAMES_BYTES: usize = 4 * 1024 * 1024;

/// Refuses a request that makes the data grow while the disk is nearly full.
fn need_room(tables: &TablesHandle, grows: bool) -> Result<(), Refusal> {
    if grows && tables.node.is_short_of_space() {
        let next = "delete rows, drop tables, free disk space, or use another node";
        return Err(Refusal::no(Reason::DiskFull, "the disk of this node is nearly full", next));
    }
    Ok(())
}

/// Changes the schema. Background work that follows from it starts at once.
pub(crate) async fn change(
    tables: &TablesHandle,
    write: Option<proto::WriteName>,
    body: Body,
) -> Result<(), Refusal> {
    need_room(tables, !matches!(body, Body::DropTable { .. }))?;
    propose(&tables.engine, command(write, body)?).await?;
    tables.kick.notify_one();
    Ok(())
}

/// Changes the schema, and returns the table as it is afterwards.
pub(crate) async fn change_and_show(
    tables: &TablesHandle,
    write: Option<proto::WriteName>,
    body: Body,
    name: String,
) -> Result<proto::TableReply, Refusal> {
    change(tables, write, body).await?;
    // The node may be stopping, or another client may have dropped the table meanwhile: the change has happened nevertheless.
    tables.schema(name).await.map_err(Refusal::although_it_happened)
}

/// Returns the right that an operation needs on its table.
pub(crate) fn right_for(operation: &proto::Operation) -> Right {
    use proto::operation::Action;
    match &operation.action {
        Some(Action::Read(_) | Action::Check(_)) => Right::Read,
        Some(Action::Put(_) | Action::Delete(_)) | None => Right::Write,
    }
}

/// Performs the operations of a transaction in order, all or none.
pub(crate) async fn transact(
    tables: &TablesHandle,
    request: proto::TransactRequest,
    room: Option<AnswerRoom>,
) -> Result<proto::TransactReply, Refusal> {
    let count = request.operations.len();
    if count == 0 || count > MAX_OPERATIONS {
        let words = format!("{count} operations; 1 to {MAX_OPERATIONS} are allowed");
        return Err(Refusal::no(if count == 0 { Reason::Invalid } else { Reason::TooLarge }, words, ""));
    }
    let view = tables.engine.view();
    let converted = {
        let operations = request.operations.clone();
        aside(&tables.reads, move || operations_of(&view, operations)).await
    };
    let (ops, of, schemas) = match converted {
        // This node may be behind the other nodes, and the table may be new or changed. Retry with the newest view.
        Err(_) => {
            let view = tables.view(false).await?;
            aside(&tables.reads, move || operations_of(&view, request.operations)).await?
        }
        Ok(converted) => converted,
    };
    need_room(tables, ops.iter().any(|op| matches!(op.action, Action::Put { .. })))?;
    let reads = ops.iter().zip(&of).filter(|(op, _)| matches!(op.action, Action::Read {}));
    let read_from: BTreeSet<usize> = reads.map(|(_, at)| *at).collect();
    let names: usize = read_from.iter().map(|at| bytes_of_names(&schemas[*at])).sum();
    if names > MAX_NAMES_BYTES {
        let words = format!(
            "the columns of the tables that it reads have names of {names} bytes; at most {MAX_NAMES_BYTES} are allowed"
        );
        return Err(Refusal::no(Reason::TooLarge, words, "do it in several transactions"));
    }
    let rows = ops.iter().map(|op| op.key.clone()).zip(of).collect();
    let asked = Asked { rows, schemas, reads: !read_from.is_empty() };
    let reply = propose(&tables.engine, command(request.write, Body::Transaction { ops })?).await?;
    answer(tables, asked, reply, room).await.map_err(Refusal::although_it_happened)
}

type Converted = (Vec<atoll_tables::Op>, Vec<usize>, Vec<Schema>);

fn operations_of(view: &View, operations: Vec<proto::Operation>) -> Result<Converted, Refusal> {
    let (mut ops, mut of, mut schemas) = (Vec::new(), Vec::new(), Vec::new());
    for (n, operation) in operations.into_iter().enumerate() {
        let named = |mut refusal: Refusal| {
            refusal.failure.message = format!("operation {}: {}", n + 1, refusal.failure.message);
            refusal
        };
        let (op, at) = convert::operation(view, operation, &mut schemas).map_err(named)?;
        ops.push(op);
        of.push(at);
    }
    Ok((ops, of, schemas))
}

fn command(write: Option<proto::WriteName>, body: Body) -> Result<Bytes, Refusal> {
    let (client, seq) = match write {
        None => (0, 0),
        Some(name) if name.client != 0 && name.seq != 0 => (name.client, name.seq),
        Some(_) => {
            let next = "set both, or leave the name out";
            return Err(Refusal::no(
                Reason::Invalid,
                "the name of a write has no client, or no sequence",
                next,
            ));
        }
    };
    Ok(Command { client, seq, body }.to_bytes())
}

#[cfg(test)]
#[path = "write_test.rs"]
mod tests;

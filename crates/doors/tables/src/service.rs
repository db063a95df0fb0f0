//! The table service.

use std::pin::Pin;

use atoll_client::proto::table_service_server::TableService;
use atoll_client::{Reason, proto};
use atoll_core::codec::Encode;
use atoll_db::{BarrierError, View};
use atoll_door::backend::Refusal;
use atoll_door::grpc::{AnswerRoom, Shared};
use atoll_tables::{Action, Body, Command, MAX_OPERATIONS, Row, Schema, read};
use bytes::Bytes;
use prost::Message as _;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::handle::{TablesCell, TablesHandle, aside};
use crate::propose::{propose, unreadable};
use crate::{convert, scan};

/// The maximum size of the rows in one reply, in bytes.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The table service of this node.
pub(crate) struct TableApi {
    shared: Shared,
    tables: TablesCell,
}

/// Refuses a request that makes the data grow while the disk is nearly full.
fn need_room(tables: &TablesHandle, grows: bool) -> Result<(), Refusal> {
    if grows && tables.node.is_short_of_space() {
        let next = "delete rows or drop tables, give the disk room, or continue at another node";
        return Err(Refusal::no(Reason::DiskFull, "the disk of this node is nearly full", next));
    }
    Ok(())
}

impl TableApi {
    pub(crate) fn new(shared: Shared, tables: TablesCell) -> Self {
        TableApi { shared, tables }
    }

    fn tables(&self) -> Result<TablesHandle, Refusal> {
        let next = "ask a node that runs the database, or wait until this one has opened it";
        let missing = || Refusal::no(Reason::Unavailable, "this node has no tables", next);
        self.tables.get().cloned().ok_or_else(missing)
    }

    /// Returns a view to read: after a barrier, or with `stale`, the current one of this node.
    async fn view(&self, tables: &TablesHandle, stale: bool) -> Result<View, Refusal> {
        if !stale {
            let failed = |e: BarrierError| {
                Refusal::no(
                    Reason::Unavailable,
                    e.to_string(),
                    "`atoll status` shows whether enough servers are up",
                )
            };
            tables.engine.barrier().await.map_err(|_| Refusal::stopping())?.map_err(failed)?;
        }
        Ok(tables.engine.view())
    }

    async fn schema(&self, tables: &TablesHandle, name: String) -> Result<proto::TableReply, Refusal> {
        let view = self.view(tables, false).await?;
        let schema =
            aside(&tables.reads, move || read::schema(&view, &name).map_err(|e| convert::read_refusal(&e)))
                .await?;
        Ok(proto::TableReply { table: Some(convert::table(&schema)) })
    }

    /// Changes the schema. Background work that follows from it starts at once.
    async fn change(&self, write: Option<proto::WriteName>, body: Body) -> Result<TablesHandle, Refusal> {
        let tables = self.tables()?;
        need_room(&tables, !matches!(body, Body::DropTable { .. }))?;
        propose(&tables.engine, command(write, body)?).await?;
        tables.kick.notify_one();
        Ok(tables)
    }

    async fn get_rows(
        &self,
        request: proto::GetRequest,
        room: Option<AnswerRoom>,
    ) -> Result<proto::GetReply, Refusal> {
        if request.keys.len() > MAX_OPERATIONS {
            let words = format!("{} keys; at most {MAX_OPERATIONS} are allowed", request.keys.len());
            return Err(Refusal::no(Reason::TooLarge, words, "ask for them in several calls"));
        }
        let tables = self.tables()?;
        let view = self.view(&tables, request.stale).await?;
        aside(&tables.reads, move || {
            let refused = |e| convert::read_refusal(&e);
            let schema = read::schema(&view, &request.table).map_err(refused)?;
            let mut found = Vec::with_capacity(request.keys.len());
            let mut bytes = 0;
            for key in request.keys {
                let key = convert::key(&schema, Some(key))?;
                let row = read::get(&view, &schema, &key).map_err(refused)?.map(convert::row);
                bytes += row.as_ref().map_or(0, size_of_row);
                if bytes > MAX_ANSWER_BYTES {
                    let words = format!("the rows have more than {MAX_ANSWER_BYTES} bytes together");
                    return Err(Refusal::no(Reason::TooLarge, words, "ask for them in several calls"));
                }
                found.push(proto::get_reply::Found { row });
            }
            // Take the room before this read gives up its thread, so that only a few replies are in memory without it.
            room.map_or(Ok(()), |room| room.take(bytes))?;
            Ok(proto::GetReply { columns: schema.columns.into_iter().map(|c| c.name).collect(), found })
        })
        .await
    }

    async fn run(
        &self,
        request: proto::TransactRequest,
        room: Option<AnswerRoom>,
    ) -> Result<proto::TransactReply, Refusal> {
        let count = request.operations.len();
        if count == 0 || count > MAX_OPERATIONS {
            let words = format!("{count} operations; 1 to {MAX_OPERATIONS} are allowed");
            return Err(Refusal::no(if count == 0 { Reason::Invalid } else { Reason::TooLarge }, words, ""));
        }
        let tables = self.tables()?;
        let view = tables.engine.view();
        let converted = {
            let operations = request.operations.clone();
            aside(&tables.reads, move || operations_of(&view, operations)).await
        };
        let (ops, of, schemas) = match converted {
            // This node may be behind the other nodes, and the table may be new or changed. Retry with the newest view.
            Err(_) => {
                let view = self.view(&tables, false).await?;
                aside(&tables.reads, move || operations_of(&view, request.operations)).await?
            }
            Ok(converted) => converted,
        };
        need_room(&tables, ops.iter().any(|op| matches!(op.action, Action::Put { .. })))?;
        let keys: Vec<_> = ops.iter().map(|op| op.key.clone()).collect();
        let reads = ops.iter().any(|op| matches!(op.action, Action::Read {}));
        let done = propose(&tables.engine, command(request.write, Body::Transaction { ops })?).await?;
        // An earlier attempt was executed. The transaction reads nothing, so its reply is the same now.
        if done.read.is_none() && !reads {
            let read = vec![proto::get_reply::Found { row: None }; keys.len()];
            return Ok(proto::TransactReply { version: done.version, read });
        }
        let Some(read) = done.read else {
            let words = "it was done by an earlier attempt, whose reads are not kept";
            return Err(Refusal {
                happened: atoll_client::Outcome::Yes,
                ..Refusal::no(Reason::Refused, words, "read again")
            });
        };
        let bytes = read.iter().flatten().map(Bytes::len).sum();
        room.map_or(Ok(()), |room| room.take(bytes))
            .map_err(|refusal| Refusal { happened: atoll_client::Outcome::Yes, ..refusal })?;
        let row = |((stored, key), at): ((Option<Bytes>, Vec<_>), usize)| {
            let schema = &schemas[at];
            let key = schema.key_bytes(&key).map_err(|e| convert::schema_refusal(&e))?;
            let row = stored.map(|bytes| Row::decode(schema, &key, bytes)).transpose();
            Ok::<_, Refusal>(proto::get_reply::Found {
                row: row.map_err(|e| unreadable(&e.to_string()))?.map(convert::row),
            })
        };
        let read = read.into_iter().zip(keys).zip(of).map(row).collect::<Result<_, _>>()?;
        Ok(proto::TransactReply { version: done.version, read })
    }
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

fn size_of_row(row: &proto::TableRow) -> usize {
    let cell = |c: &proto::Cell| match &c.value {
        Some(proto::cell::Value::TextValue(text)) => text.len() + 8,
        Some(proto::cell::Value::BytesValue(bytes)) => bytes.len() + 8,
        _ => 12,
    };
    row.cells.iter().map(cell).sum()
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

#[tonic::async_trait]
impl TableService for TableApi {
    async fn create_table(
        &self,
        request: Request<proto::CreateTableRequest>,
    ) -> Result<Response<proto::TableReply>, Status> {
        let request = request.into_inner();
        let table = convert::definition(request.table.unwrap_or_default())?;
        let name = table.name.clone();
        let tables = self.change(request.write, Body::CreateTable { table }).await?;
        Ok(Response::new(self.schema(&tables, name).await?))
    }

    async fn drop_table(
        &self,
        request: Request<proto::DropTableRequest>,
    ) -> Result<Response<proto::DropTableReply>, Status> {
        let request = request.into_inner();
        self.change(request.write, Body::DropTable { name: request.table }).await?;
        Ok(Response::new(proto::DropTableReply {}))
    }

    async fn change_table(
        &self,
        request: Request<proto::ChangeTableRequest>,
    ) -> Result<Response<proto::TableReply>, Status> {
        let request = request.into_inner();
        let next = "set add_column, drop_column, add_index or drop_index";
        let nothing = || Refusal::no(Reason::Invalid, "no change", next);
        let change = convert::change(request.change.ok_or_else(nothing)?)?;
        let body = Body::ChangeTable { name: request.table.clone(), change };
        let tables = self.change(request.write, body).await?;
        Ok(Response::new(self.schema(&tables, request.table).await?))
    }

    async fn describe_table(
        &self,
        request: Request<proto::DescribeTableRequest>,
    ) -> Result<Response<proto::TableReply>, Status> {
        let tables = self.tables()?;
        Ok(Response::new(self.schema(&tables, request.into_inner().table).await?))
    }

    async fn list_tables(
        &self,
        request: Request<proto::ListTablesRequest>,
    ) -> Result<Response<proto::ListTablesReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let tables = self.tables()?;
        let view = self.view(&tables, false).await?;
        let reply = aside(&tables.reads, move || {
            let tables = read::schemas(&view).map_err(|e| convert::read_refusal(&e))?;
            let reply = proto::ListTablesReply { tables: tables.iter().map(convert::table).collect() };
            room.map_or(Ok(()), |room| room.take(reply.encoded_len()))?;
            Ok(reply)
        });
        Ok(Response::new(reply.await?))
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<proto::GetReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        Ok(Response::new(self.get_rows(request.into_inner(), room).await?))
    }

    async fn transact(
        &self,
        request: Request<proto::TransactRequest>,
    ) -> Result<Response<proto::TransactReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        Ok(Response::new(self.run(request.into_inner(), room).await?))
    }

    type ScanStream = Pin<Box<dyn Stream<Item = Result<proto::ScanReply, Status>> + Send>>;

    async fn scan(&self, request: Request<proto::ScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let request = request.into_inner();
        let tables = self.tables()?;
        let view = self.view(&tables, request.stale).await?;
        let stream = scan::stream(&tables, &self.shared, view, request).await?;
        Ok(Response::new(Box::pin(stream)))
    }
}

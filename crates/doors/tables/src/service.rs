//! The table service.

use std::collections::BTreeSet;
use std::pin::Pin;

use atoll_client::proto::table_service_server::TableService;
use atoll_client::{Reason, proto};
use atoll_door::backend::Refusal;
use atoll_door::grpc::{AnswerRoom, Shared, caller_of};
use atoll_tables::{Body, MAX_OPERATIONS, read};
use prost::Message as _;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::handle::{TablesCell, TablesHandle, aside};
use crate::{convert, scan, write};

/// The maximum size of the rows in one reply, in bytes.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The table service of this node.
pub(crate) struct TableApi {
    shared: Shared,
    tables: TablesCell,
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
        let view = tables.view(request.stale).await?;
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
}

fn size_of_row(row: &proto::TableRow) -> usize {
    let cell = |c: &proto::Cell| match &c.value {
        Some(proto::cell::Value::TextValue(text)) => text.len() + 8,
        Some(proto::cell::Value::BytesValue(bytes)) => bytes.len() + 8,
        _ => 12,
    };
    row.cells.iter().map(cell).sum()
}

#[tonic::async_trait]
impl TableService for TableApi {
    async fn create_table(
        &self,
        request: Request<proto::CreateTableRequest>,
    ) -> Result<Response<proto::TableReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        let table = request.table.unwrap_or_default();
        caller.on(&table.name)?;
        let table = convert::definition(table)?;
        let name = table.name.clone();
        let body = Body::CreateTable { table };
        Ok(Response::new(write::change_and_show(&self.tables()?, request.write, body, name).await?))
    }

    async fn drop_table(
        &self,
        request: Request<proto::DropTableRequest>,
    ) -> Result<Response<proto::DropTableReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        caller.on(&request.table)?;
        write::change(&self.tables()?, request.write, Body::DropTable { name: request.table }).await?;
        Ok(Response::new(proto::DropTableReply {}))
    }

    async fn change_table(
        &self,
        request: Request<proto::ChangeTableRequest>,
    ) -> Result<Response<proto::TableReply>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        caller.on(&request.table)?;
        let next = "set add_column, drop_column, add_index or drop_index";
        let nothing = || Refusal::no(Reason::Invalid, "no change", next);
        let change = convert::change(request.change.ok_or_else(nothing)?)?;
        let body = Body::ChangeTable { name: request.table.clone(), change };
        Ok(Response::new(write::change_and_show(&self.tables()?, request.write, body, request.table).await?))
    }

    async fn describe_table(
        &self,
        request: Request<proto::DescribeTableRequest>,
    ) -> Result<Response<proto::TableReply>, Status> {
        let caller = caller_of(&request)?;
        let name = request.into_inner().table;
        caller.on(&name)?;
        Ok(Response::new(self.tables()?.schema(name).await?))
    }

    async fn list_tables(
        &self,
        request: Request<proto::ListTablesRequest>,
    ) -> Result<Response<proto::ListTablesReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let tables = self.tables()?;
        let view = tables.view(false).await?;
        let reply = aside(&tables.reads, move || {
            let mut tables = read::schemas(&view).map_err(|e| convert::read_refusal(&e))?;
            let names = caller.visible(tables.iter().map(|table| table.name.clone()).collect())?;
            let visible: BTreeSet<String> = names.into_iter().collect();
            tables.retain(|table| visible.contains(&table.name));
            let reply = proto::ListTablesReply { tables: tables.iter().map(convert::table).collect() };
            room.map_or(Ok(()), |room| room.take(reply.encoded_len()))?;
            Ok(reply)
        });
        Ok(Response::new(reply.await?))
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<proto::GetReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        caller.on(&request.table)?;
        Ok(Response::new(self.get_rows(request, room).await?))
    }

    async fn transact(
        &self,
        request: Request<proto::TransactRequest>,
    ) -> Result<Response<proto::TransactReply>, Status> {
        let room = request.extensions().get::<AnswerRoom>().cloned();
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        // A transaction of too many operations is refused below.
        for operation in request.operations.iter().take(MAX_OPERATIONS) {
            caller.on_with(write::right_for(operation), &operation.table)?;
        }
        Ok(Response::new(write::transact(&self.tables()?, request, room).await?))
    }

    type ScanStream = Pin<Box<dyn Stream<Item = Result<proto::ScanReply, Status>> + Send>>;

    async fn scan(&self, request: Request<proto::ScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let caller = caller_of(&request)?;
        let request = request.into_inner();
        caller.on(&request.table)?;
        let tables = self.tables()?;
        let view = tables.view(request.stale).await?;
        let stream = scan::stream(&tables, &self.shared, view, request).await?;
        Ok(Response::new(Box::pin(stream)))
    }
}

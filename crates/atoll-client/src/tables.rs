//! Tables: definitions, rows, transactions and ranges.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Streaming;

use crate::connections::{Channel, Connections, Repeat};
use crate::error::{Error, Failure, parse};
use crate::lane::random_client;
use crate::proto::table_service_client::TableServiceClient;
use crate::proto::{self, Reason, ScanReply, WriteName};

/// The number of writes of one client whose outcomes the cluster remembers (`atoll_tables::CLIENT_WINDOW`). A write that may be
/// sent again must be less than this far behind the newest one.
const WINDOW: u64 = 32;
/// The maximum length of a message that a node sends, in bytes.
const MAX_REPLY_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
struct UnderWay {
    client: u64,
    last: u64,
    seqs: BTreeSet<u64>,
}

/// Assigns names to writes, and keeps the writes in flight within the window.
#[derive(Debug)]
struct Names {
    under_way: Mutex<UnderWay>,
    done: Notify,
}

/// A write in flight. It counts until this is dropped.
struct Named<'a> {
    names: &'a Names,
    client: u64,
    seq: u64,
}

impl Names {
    fn new(client: u64) -> Names {
        let under_way = UnderWay { client, last: 0, seqs: BTreeSet::new() };
        Names { under_way: Mutex::new(under_way), done: Notify::new() }
    }

    /// Makes later writes under a new client id. Called when the cluster does not know `client`: it has forgotten it, or so many of
    /// the first writes failed that the first successful one looks like a write of a forgotten client.
    fn renew(&self, client: u64) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.client == client {
            *under_way = UnderWay { client: random_client(), last: 0, seqs: BTreeSet::new() };
            drop(under_way);
            self.done.notify_one();
        }
    }

    fn try_next(&self) -> Option<Named<'_>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let next = under_way.last + 1;
        if under_way.seqs.first().is_some_and(|oldest| next >= oldest + WINDOW) {
            return None;
        }
        under_way.last = next;
        under_way.seqs.insert(next);
        Some(Named { names: self, client: under_way.client, seq: next })
    }

    async fn next(&self) -> Named<'_> {
        loop {
            // Register before the check, so that a write that ends in between is not missed.
            let done = self.done.notified();
            if let Some(named) = self.try_next() {
                // There may be room for the next waiter, too. A waiter that finds none waits again.
                self.done.notify_one();
                return named;
            }
            done.await;
        }
    }
}

impl Named<'_> {
    fn write(&self) -> Option<WriteName> {
        Some(WriteName { client: self.client, seq: self.seq })
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        let mut under_way = self.names.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.client == self.client {
            under_way.seqs.remove(&self.seq);
        }
        drop(under_way);
        // The permit is stored for a waiter that has checked for room but does not wait yet.
        self.names.done.notify_one();
    }
}

/// The tables of a cluster. Cheap to clone; all clones are one client. A write that returns `Ok` was applied exactly once, however
/// often it was sent; an error says whether it happened. At most 32 writes of one client are in flight; further ones wait.
#[derive(Clone, Debug)]
pub struct Tables {
    connections: Arc<Connections>,
    names: Arc<Names>,
}

fn client(channel: Channel) -> TableServiceClient<Channel> {
    TableServiceClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES)
}

/// Performs a call that may be retried, because it is a read or has a name.
macro_rules! call {
    ($self:ident, $method:ident, $request:expr) => {{
        let request = $request;
        $self
            .connections
            .call(Repeat::Idempotent, $self.connections.options.attempt_timeout, |channel| {
                let request = request.clone();
                async move { client(channel).$method(request).await }
            })
            .await
    }};
}

/// Performs a write under a name. If the cluster has forgotten the client and the write certainly did not happen, performs it once
/// more under a new client id.
macro_rules! write {
    ($self:ident, $method:ident, $request:expr) => {{
        let mut request = $request;
        let mut renewed = false;
        loop {
            let name = $self.names.next().await;
            request.write = name.write();
            let done: Result<_, Error> = call!($self, $method, request.clone());
            match done {
                Err(error) if error.failure().reason == Reason::Forgotten => {
                    $self.names.renew(name.client);
                    if renewed || !matches!(error, Error::DidNotHappen(_)) {
                        break Err(error);
                    }
                    renewed = true;
                }
                done => break done,
            }
        }
    }};
}

impl Tables {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        Tables { connections, names: Arc::new(Names::new(random_client())) }
    }

    /// Returns the table in an answer. `error` says whether the call that was answered happened.
    fn table(reply: proto::TableReply, error: fn(Failure) -> Error) -> Result<proto::Table, Error> {
        reply.table.ok_or_else(|| {
            let next = "are the versions of client and server compatible?";
            error(Failure::new(Reason::Damaged, "the answer has no table", next))
        })
    }

    /// Creates a table, and returns it as it is afterwards. After [`Error::Happened`] the table was made.
    pub async fn create(&self, table: proto::Table) -> Result<proto::Table, Error> {
        let request = proto::CreateTableRequest { write: None, table: Some(table) };
        Self::table(write!(self, create_table, request)?, Error::Happened)
    }

    /// Drops a table.
    pub async fn drop_table(&self, table: &str) -> Result<(), Error> {
        let request = proto::DropTableRequest { write: None, table: table.to_owned() };
        write!(self, drop_table, request).map(drop)
    }

    /// Adds or drops a column or an index, and returns the table as it is afterwards. After [`Error::Happened`] the change was made.
    pub async fn change(
        &self,
        table: &str,
        change: proto::change_table_request::Change,
    ) -> Result<proto::Table, Error> {
        let request =
            proto::ChangeTableRequest { write: None, table: table.to_owned(), change: Some(change) };
        Self::table(write!(self, change_table, request)?, Error::Happened)
    }

    /// Returns the definition of a table.
    pub async fn describe(&self, table: &str) -> Result<proto::Table, Error> {
        let request = proto::DescribeTableRequest { table: table.to_owned() };
        Self::table(call!(self, describe_table, request)?, Error::DidNotHappen)
    }

    /// Returns the definitions of all tables, in the order of their names.
    pub async fn list(&self) -> Result<Vec<proto::Table>, Error> {
        Ok(call!(self, list_tables, proto::ListTablesRequest {})?.tables)
    }

    /// Reads rows by their keys, all from the same state.
    pub async fn get(&self, request: proto::GetRequest) -> Result<proto::GetReply, Error> {
        call!(self, get, request)
    }

    /// Performs operations in order, all or none. The cells of a row that was read belong to the columns in `tables` of the reply, which
    /// may differ from those of an earlier [`Tables::describe`]. After [`Error::Happened`] the transaction was done, but the rows that it
    /// read cannot be shown.
    pub async fn transact(&self, operations: Vec<proto::Operation>) -> Result<proto::TransactReply, Error> {
        let request = proto::TransactRequest { write: None, operations };
        write!(self, transact, request)
    }

    /// Reads the rows of a range, all from the same state. If the node fails before it begins to answer, another one is asked.
    pub async fn scan(&self, request: proto::ScanRequest) -> Result<Rows, Error> {
        let stream = call!(self, scan, request)?;
        Ok(Rows { stream, attempt_timeout: self.connections.options.operation_timeout })
    }
}

/// The rows of a range, as they arrive.
#[derive(Debug)]
pub struct Rows {
    stream: Streaming<ScanReply>,
    attempt_timeout: Duration,
}

impl Rows {
    /// Returns the next rows, or None at the end. After an error, the state that was being read is no longer available: start a new
    /// scan after the last row, or from the beginning.
    pub async fn next(&mut self) -> Result<Option<ScanReply>, Error> {
        match timeout(self.attempt_timeout, self.stream.message()).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(status)) => Err(Error::DidNotHappen(parse(&status).1)),
            Err(_) => {
                let words = "the node sends no more rows";
                Err(Error::DidNotHappen(Failure::new(Reason::Unavailable, words, "begin again")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stay_within_the_window() {
        let names = Names::new(7);
        let mut held: Vec<Named<'_>> = (0..WINDOW).filter_map(|_| names.try_next()).collect();
        assert_eq!(held.len() as u64, WINDOW);
        assert!(names.try_next().is_none(), "the oldest would be forgotten");
        held.remove(1);
        assert!(names.try_next().is_none(), "the oldest is still under way");
        held.remove(0);
        assert_eq!(names.try_next().map(|n| n.seq), Some(WINDOW + 1));
    }

    #[test]
    fn a_forgotten_client_is_another_one_from_then_on() {
        let names = Names::new(7);
        let held: Vec<Named<'_>> = (0..WINDOW).filter_map(|_| names.try_next()).collect();
        names.renew(7);
        let first = names.try_next().expect("room");
        assert!(first.client != 7 && first.seq == 1);
        // Writes of the old client do not count for the new one, and another report of the old client has no effect.
        names.renew(7);
        drop(held);
        assert_eq!(names.try_next().map(|n| (n.client, n.seq)), Some((first.client, 2)));
    }
}

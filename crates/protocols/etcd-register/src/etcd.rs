//! What the protocol needs of etcd. `client.rs` has the real one; `testing.rs` has one in memory, with faults.

use std::fmt;

use atoll_core::BoxFuture;
use atoll_register_store::Fault;

use crate::proto::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};

/// A cluster of etcd. Each future ends by itself, and may be dropped; whether its request then happens is unknown.
pub trait Etcd: Send + Sync + fmt::Debug {
    /// Reads keys.
    fn range(&self, request: RangeRequest) -> BoxFuture<'static, Result<RangeResponse, Fault>>;

    /// Does a transaction. It is durable on return.
    fn txn(&self, request: TxnRequest) -> BoxFuture<'static, Result<TxnResponse, Fault>>;
}

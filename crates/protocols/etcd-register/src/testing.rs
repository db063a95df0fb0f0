//! An etcd in memory, on virtual time, with the faults that a real one has: servers that lag behind, answers and requests that are lost,
//! and requests that are done long after their sender gave them up. It knows what registers ask for, and no more.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Env};
use atoll_register_store::Fault;
use bytes::Bytes;

use crate::client::Client;
use crate::etcd::Etcd;
use crate::proto::{
    Compare, KeyValue, RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse, compare,
    request_op,
};

/// The longest that a lost request may still be under way.
const LATE_MS: u64 = 800;
/// The most transactions that a server lags behind when it answers alone.
const LAG: u64 = 6;
/// The revision of an etcd without keys.
const FIRST_REVISION: i64 = 1;

/// How often faults happen, in percent of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The request is lost.
    pub lost_requests: u64,
    /// The request is done, and the answer is lost.
    pub lost_answers: u64,
    /// The request counts as lost, and is done later.
    pub late: u64,
}

#[derive(Default)]
struct State {
    /// All puts, in their order. Each raises the revision by one.
    puts: Vec<(Bytes, Bytes)>,
    faults: Faults,
}

impl State {
    /// Returns the keys after the first `count` puts, with their values and revisions.
    fn at(&self, count: usize) -> BTreeMap<&Bytes, (&Bytes, i64)> {
        let revisions = FIRST_REVISION + 1..;
        self.puts[..count].iter().zip(revisions).map(|((key, value), at)| (key, (value, at))).collect()
    }

    fn range(&self, request: &RangeRequest, lag: u64) -> RangeResponse {
        let known = self.puts.len().saturating_sub(if request.serializable { lag as usize } else { 0 });
        let alone = request.range_end.is_empty();
        let asked = |key: &Bytes| match alone {
            true => *key == request.key,
            false => *key >= request.key && *key < request.range_end,
        };
        let found = self.at(known).into_iter().filter(|(key, _)| asked(key));
        let mut kvs: Vec<KeyValue> = found
            .map(|(key, (value, mod_revision))| KeyValue {
                key: key.clone(),
                mod_revision,
                value: if request.keys_only { Bytes::new() } else { value.clone() },
            })
            .collect();
        let most = usize::try_from(request.limit).ok().filter(|most| *most > 0).unwrap_or(kvs.len());
        let more = kvs.len() > most;
        kvs.truncate(most);
        RangeResponse { header: header(), kvs, more }
    }

    fn holds(&self, compare: &Compare) -> bool {
        assert_eq!(compare.target(), compare::CompareTarget::Mod, "registers compare revisions");
        let revision = self.at(self.puts.len()).get(&compare.key).map_or(0, |(_, revision)| *revision);
        compare.target_union == Some(compare::TargetUnion::ModRevision(revision))
    }

    fn txn(&mut self, request: &TxnRequest) -> TxnResponse {
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        if succeeded {
            for op in &request.success {
                let Some(request_op::Request::RequestPut(put)) = &op.request else { continue };
                self.puts.push((put.key.clone(), put.value.clone()));
            }
        }
        TxnResponse { header: header(), succeeded }
    }
}

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: 1 })
}

/// An etcd in memory. Cheap to clone.
#[derive(Clone, Default)]
pub struct MemoryEtcd(Arc<Mutex<State>>);

impl fmt::Debug for MemoryEtcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryEtcd")
    }
}

impl MemoryEtcd {
    /// Sets how often faults happen from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.0).faults = faults;
    }

    /// Puts a value behind everybody's back.
    pub fn put(&self, key: &str, value: Bytes) {
        lock(&self.0).puts.push((Bytes::copy_from_slice(key.as_bytes()), value));
    }

    /// Returns the etcd as a node sees it. The time that one way takes is up to twice this long.
    pub fn at(&self, env: Env, latency: Duration) -> Arc<dyn Etcd> {
        Arc::new(Way { env, etcd: self.clone(), latency })
    }
}

/// The way of a node to the etcd.
#[derive(Clone, Debug)]
struct Way {
    env: Env,
    etcd: MemoryEtcd,
    latency: Duration,
}

impl Way {
    fn carry<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Fault>> {
        let way = self.clone();
        let work = async move {
            let faults = lock(&way.etcd.0).faults;
            let dice = way.env.random() % 100;
            way.env.sleep(way.env.jitter(way.latency)).await;
            if dice < faults.lost_requests {
                return Err(Fault::NoAnswer);
            }
            if dice < faults.lost_requests + faults.late {
                let (env, etcd) = (way.env.clone(), way.etcd.clone());
                let late = async move {
                    env.sleep(Duration::from_millis(env.random() % LATE_MS)).await;
                    request(&mut lock(&etcd.0));
                };
                way.env.spawn("etcd.late", Box::pin(late));
                return Err(Fault::NoAnswer);
            }
            let answer = request(&mut lock(&way.etcd.0));
            way.env.sleep(way.env.jitter(way.latency)).await;
            if dice < faults.lost_requests + faults.late + faults.lost_answers {
                return Err(Fault::NoAnswer);
            }
            Ok(answer)
        };
        let wait = self.env.launch("etcd", work);
        Box::pin(async move { wait.await.unwrap_or(Err(Fault::NoAnswer)) })
    }
}

impl Etcd for Way {
    fn range(&self, request: RangeRequest) -> BoxFuture<'static, Result<RangeResponse, Fault>> {
        let lag = self.env.random() % LAG;
        self.carry(move |state| state.range(&request, lag))
    }

    fn txn(&self, request: TxnRequest) -> BoxFuture<'static, Result<TxnResponse, Fault>> {
        self.carry(move |state| state.txn(&request))
    }
}

/// Returns a client of a real cluster, whose servers are given as `HOST:PORT,HOST:PORT`; None if they are not written so.
pub fn client(servers: &str, timeout: Duration) -> Option<Arc<dyn Etcd>> {
    Some(Arc::new(Client::new(servers, timeout)?))
}

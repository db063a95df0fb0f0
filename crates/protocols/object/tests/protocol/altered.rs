//! Answers that are altered on their way: an object is read once more before it counts as damaged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::{Batch, ClientId, Entry, LogletId, LogletProvider, Offset, OpId, ReadFrom};
use atoll_core::{BoxFuture, Encode, Env, NodeId};
use atoll_object::store::{Put, Store, StoreError, Tag};
use atoll_object::testing::Memory;
use atoll_object::{ObjectConfig, ObjectOptions, ObjectProvider};
use bytes::Bytes;

const TOKEN: u64 = 5;
const ID: LogletId = LogletId(9);
const RECORDS: u64 = 20;

/// Alters the first answers that have each object.
#[derive(Debug)]
struct Alters {
    inner: Arc<dyn Store>,
    /// So many of each.
    times: u32,
    given: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Store for Alters {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.inner.put(name, bytes, how)
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        let (got, given, times) = (self.inner.get(name.clone(), most), self.given.clone(), self.times);
        Box::pin(async move {
            let Some(bytes) = got.await? else { return Ok(None) };
            let mut given = given.lock().unwrap();
            let before = given.entry(name).or_default();
            *before += 1;
            if *before > times {
                return Ok(Some(bytes));
            }
            let mut altered = bytes.to_vec();
            let last = altered.len() - 1;
            altered[last] ^= 8;
            Ok(Some(altered.into()))
        })
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        self.inner.get_tagged(name)
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.inner.delete(names)
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        self.inner.compute(work);
    }
}

/// A node appends, and another one reads over a store that alters the first answers with each object. Returns how many entries it got.
fn read_over(times: u32) -> Result<u64, String> {
    let mut driver = Driver::new(1);
    let memory = Memory::default();
    let config = ObjectConfig { interval_ms: 0, ..ObjectConfig::at("memory:///t", TOKEN) }.to_bytes();
    let envs: Vec<Env> = [1, 2].map(|n| driver.add_node(NodeId(n), |_| {})).to_vec();
    let put = memory.of(&envs[0]).put(format!("t/stores/{TOKEN:016x}"), vec![1].into(), Put::Create);
    assert_eq!(driver.block_on(NodeId(1), put), Ok(true));
    let open = |env: &Env, store: Arc<dyn Store>| {
        let options = ObjectOptions { op_timeout: Duration::from_millis(200), ..ObjectOptions::default() };
        ObjectProvider::with_store(env.clone(), options, store).open(ID, &config).unwrap()
    };
    let writer = open(&envs[0], memory.of(&envs[0]));
    driver.block_on(NodeId(1), async move {
        for seq in 1..=RECORDS {
            let op = OpId { client: ClientId(1), seq };
            writer.append(Batch::of([Entry { op, payload: "x".into() }])).await.unwrap().unwrap();
        }
        writer.seal().await.unwrap();
    });
    let store = Alters { inner: memory.of(&envs[1]), times, given: Arc::default() };
    let reader = open(&envs[1], Arc::new(store));
    driver.block_on(NodeId(2), async move {
        let tail = reader.check_tail().await.map_err(|error| error.to_string())?.at;
        let mut at = Offset(0);
        while at < tail {
            let read = reader.read(at..tail, 1 << 20, ReadFrom::Anywhere).await;
            at = at.plus(read.map_err(|error| error.to_string())?.entries.len() as u64);
        }
        Ok(at.0)
    })
}

#[test]
fn what_is_altered_once_on_its_way_is_read_again() {
    assert_eq!(read_over(0), Ok(RECORDS));
    assert_eq!(read_over(1), Ok(RECORDS));
}

#[test]
fn what_is_altered_each_time_is_damaged() {
    assert!(read_over(u32::MAX).is_err());
}

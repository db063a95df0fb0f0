//! How the door reacts to information about its node and the cluster, over a real socket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::client::Client;
use super::served::{door_in, figure};
use atoll_core::NodeId;
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::codes::EventType;
use atoll_zookeeper::jute::reply::GetDataReply;
use atoll_zookeeper::jute::request::{Request, SetDataRequest, VersionRequest, WatchedRequest};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest};
use atoll_zookeeper::{Addresses, Cluster, Options};

#[derive(Default)]
struct OneNode {
    short_of_space: AtomicBool,
    client: Mutex<String>,
}

impl Cluster for OneNode {
    fn living(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }

    fn is_short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::SeqCst)
    }

    fn member_ids(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }

    fn addresses(&self) -> Option<Addresses> {
        let client = self.client.lock().unwrap().clone();
        (!client.is_empty()).then(|| Addresses { peer: "here:7412".to_owned(), client })
    }
}

fn set<'a>(path: &'a str, data: &'a [u8]) -> SetDataRequest<'a> {
    SetDataRequest { path, data: Some(data), version: -1 }
}

#[test]
fn without_room_what_grows_is_refused_and_what_gives_room_is_not() {
    let told = Arc::new(OneNode::default());
    let door = door_in(told.clone(), Options::default());
    let mut c = Client::connect(door);
    assert_eq!((c.create("/a", b"data"), c.create("/b", b"data")), (0, 0));
    told.short_of_space.store(true, Ordering::SeqCst);
    let delete = |path| VersionRequest { path, version: -1 };
    let mixed = vec![MultiOp::Delete(delete("/b")), MultiOp::SetData(set("/a", b"x"))];
    let only = vec![MultiOp::Check(delete("/a")), MultiOp::Delete(delete("/b"))];
    let full = ErrorCode::SystemError.number();
    assert_eq!(c.create("/c", b""), full);
    assert_eq!(c.call(&Request::SetData(set("/a", b"x"))).0, full);
    assert_eq!(c.call(&Request::Multi(MultiRequest { ops: mixed })).0, full);
    let get = Request::GetData(WatchedRequest { path: "/a", watch: false });
    assert_eq!(GetDataReply::parse(&c.call(&get).1).unwrap().data, Some(&b"data"[..]), "nothing was done");
    assert_eq!(c.call(&Request::Multi(MultiRequest { ops: only })).0, 0);
    assert_eq!(c.call(&Request::SetData(set("/a", b""))).0, 0);
    assert_eq!(c.call(&Request::Delete(delete("/a"))).0, 0);
    assert!((figure(door, "zk_writes_refused_by_disk") - 3.0).abs() < 0.5);
    told.short_of_space.store(false, Ordering::SeqCst);
    assert_eq!(c.create("/c", b""), 0);
}

#[test]
fn the_config_is_announced_and_its_watch_fires() {
    let told = Arc::new(OneNode::default());
    let mut c = Client::connect(door_in(told.clone(), Options::default()));
    let get = Request::GetData(WatchedRequest { path: "/zookeeper/config", watch: true });
    for port in [2181, 2182] {
        let (_, before) = c.call(&get);
        let version = GetDataReply::parse(&before).unwrap().stat.version;
        *told.client.lock().unwrap() = format!("here:{port}");
        // The door checks its addresses periodically. The watch shows when it has.
        while c.told() != [(EventType::NodeDataChanged.number(), "/zookeeper/config".to_owned())] {}
        let (_, now) = c.call(&get);
        let now = GetDataReply::parse(&now).unwrap();
        let text = String::from_utf8(now.data.unwrap().to_vec()).unwrap();
        let expected =
            format!("server.1=here:7412:7412:participant;here:{port}\nversion={:x}", now.stat.mzxid);
        assert_eq!((text, now.stat.version), (expected, version + 1));
    }
}

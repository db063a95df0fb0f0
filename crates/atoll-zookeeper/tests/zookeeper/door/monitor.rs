//! The metrics of the door under ZooKeeper's names: they follow what clients do.

use super::client::Client;
use super::served::{ask, door, figure};
use atoll_zookeeper::Options;
use atoll_zookeeper::jute::codes::CreateMode;
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{CreateRequest, Request, WatchedRequest};

#[test]
fn figures_follow_what_clients_do() {
    let door = door(Options::default());
    let mut c = Client::connect(door);
    let (nodes, bytes) = (figure(door, "zk_znode_count"), figure(door, "zk_approximate_data_size"));
    for n in 0..10 {
        assert_eq!(c.create(&format!("/n{n}"), b"12345678"), 0);
    }
    let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    let flags = CreateMode::Ephemeral.number();
    c.call(&Request::Create(CreateRequest { path: "/e", data: None, acl, flags }));
    for _ in 0..20 {
        assert_eq!(c.call(&Request::GetData(WatchedRequest { path: "/n1", watch: true })).0, 0);
    }
    let mut again = Client::attach(door, c.session, &c.password);
    assert!(c.is_ended());
    let is = |name: &str, value: f64| assert_eq!(figure(door, name), value, "{name}");
    is("zk_znode_count", nodes + 11.0);
    is("zk_approximate_data_size", bytes + 10.0 * 11.0 + 2.0);
    is("zk_ephemerals_count", 1.0);
    is("zk_cnt_readlatency", 20.0);
    is("zk_cnt_updatelatency", 11.0);
    is("zk_commit_count", 11.0);
    is("zk_connection_request_count", 2.0);
    is("zk_connection_revalidate_count", 1.0);
    is("zk_global_sessions", 1.0);
    again.call(&Request::GetData(WatchedRequest { path: "/n1", watch: true }));
    is("zk_watch_count", 1.0);
    assert!(figure(door, "zk_max_latency") >= figure(door, "zk_min_latency"));
    assert!(figure(door, "zk_bytes_received_count") > 0.0);
    assert_eq!(ask(door, "srst"), "Server stats reset.\n");
    is("zk_cnt_updatelatency", 0.0);
    is("zk_max_latency", 0.0);
}

//! Tests of the example with a log in the program's own process: each run of the program reads what the earlier ones appended.

#[path = "../../examples/embedded.rs"]
#[allow(dead_code)] // Its `main`.
pub(crate) mod embedded;

#[tokio::test]
async fn what_one_life_appends_the_next_one_reads() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    assert_eq!(embedded::append_and_read(dir, "hello").await.unwrap(), ["hello"]);
    assert_eq!(embedded::append_and_read(dir, "again").await.unwrap(), ["hello", "again"]);
}

#[tokio::test]
async fn a_free_port_is_told_as_the_one_that_it_became() {
    let dir = tempfile::tempdir().unwrap();
    let config = atoll_node::NodeConfig {
        metrics: Some("127.0.0.1:0".into()),
        ..atoll_node::NodeConfig::alone(dir.path())
    };
    let node = atoll_node::start(config).unwrap();
    node.joined().await.unwrap();
    let table = node.parts().members.table();
    let row = &table.nodes[&node.id()];
    for address in [&row.grpc, &row.metrics] {
        assert!(!address.ends_with(":0"), "{address}");
        std::net::TcpStream::connect(address).unwrap();
    }
    node.shutdown().await;
}

//! Data directories written by earlier programs must open, with all their data.
//!
//! `tests/fixtures/level-1` was written by the last program without feature levels (format 1 of everything). Each file is packed with
//! zstd. `write_the_fixtures` wrote it, with `ATOLL_FIXTURE_PROGRAM` naming that program. The fixtures of that level are never written
//! again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Process, ok, verb, wait_for};
use atoll_zookeeper::acl::OPEN;
use atoll_zookeeper::client::{Client, ClientOptions};
use atoll_zookeeper::jute::records::Stat;
use atoll_zookeeper::jute::request::{CreateRequest, Request, SetDataRequest, WatchedRequest};
use atoll_zookeeper::jute::{Jute, Reader};
use serde_json::Value;

/// A kind of data directory.
struct Shape {
    name: &'static str,
    /// The third byte of its addresses, because the tests run at the same time.
    net: u8,
    nodes: u32,
    /// Number of records of 512 KiB that are written first and trimmed. They fill journal segments, which are freed and reused.
    bulk: u32,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "one-tail", net: 1, nodes: 1, bulk: 0 },
    Shape { name: "one-recycled", net: 2, nodes: 1, bulk: 160 },
    Shape { name: "three-tail", net: 3, nodes: 3, bulk: 0 },
    Shape { name: "three-recycled", net: 4, nodes: 3, bulk: 160 },
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/level-1")
}

impl Shape {
    /// Returns the address of a node. The data contains the addresses, so they are fixed. The ports are below those that systems give to
    /// outgoing connections.
    fn address(&self, node: u32, port: u16) -> String {
        format!("127.201.{}.{node}:{port}", self.net)
    }

    fn all(&self, port: u16) -> Vec<String> {
        (1..=self.nodes).map(|n| self.address(n, port)).collect()
    }

    fn config(&self, folder: &Path, node: u32) -> PathBuf {
        let at = |port| self.address(node, port);
        let mut text = format!(
            "[node]\nid = {node}\ncluster = \"reef\"\ndata = \"n{node}\"\n\n[listen]\ngrpc = \"{}\"\npeer = \"{}\"\nmetrics = \"\"\nzookeeper = \"{}\"\n",
            at(20411),
            at(20412),
            at(20181)
        );
        for peer in 1..=self.nodes {
            text += &format!(
                "\n[[peer]]\nid = {peer}\naddress = \"{}\"\ngrpc = \"{}\"\n",
                self.address(peer, 20412),
                self.address(peer, 20411)
            );
        }
        let path = folder.join(format!("n{node}.toml"));
        fs::write(&path, text).unwrap();
        path
    }

    fn start(&self, program: impl AsRef<Path>, folder: &Path) -> (Vec<Process>, String) {
        let run = |node| {
            let out = fs::File::create(folder.join(format!("n{node}.out"))).unwrap();
            let mut command = Command::new(program.as_ref());
            command.env_remove("RUST_LOG").args(["serve", "--config"]).arg(self.config(folder, node));
            Process::start(command.stdout(Stdio::null()).stderr(out))
        };
        let nodes = (1..=self.nodes).map(run).collect();
        let connect = self.all(20411).join(",");
        wait_for("the cluster answers", || verb(&connect, &["log", "list"]).status.success().then_some(()));
        (nodes, connect)
    }

    fn zookeeper(&self) -> Client {
        Client::new(ClientOptions {
            servers: self.all(20181),
            auth: Vec::new(),
            within: Duration::from_secs(60),
        })
    }
}

fn stop(nodes: &mut [Process]) {
    nodes.iter().for_each(|n| n.signal("TERM"));
    nodes.iter_mut().for_each(|n| assert!(n.ended().success()));
}

fn block<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

fn path(n: u32) -> String {
    format!("/app/node-{n}")
}

fn fill(shape: &Shape, connect: &str, folder: &Path) {
    let lines = |name: &str, from: u32, to: u32| {
        let file = folder.join("lines");
        fs::write(&file, (from..to).map(|n| format!("{name} {n}\n")).collect::<String>()).unwrap();
        ok(connect, &["log", "append", "--log", name, "--lines", file.to_str().unwrap()]);
    };
    if shape.bulk > 0 {
        let file = folder.join("bulk");
        fs::write(&file, format!("{}\n", "x".repeat(512 * 1024)).repeat(shape.bulk as usize)).unwrap();
        ok(connect, &["log", "append", "--log", "bulk", "--depth", "4", "--lines", file.to_str().unwrap()]);
        ok(connect, &["log", "trim", "--log", "bulk", &shape.bulk.to_string()]);
    }
    lines("main", 0, 50);
    for part in 0..3 {
        lines("second", part * 20, part * 20 + 20);
        ok(connect, &["chain", "extend", "--log", "second"]);
    }
    ok(connect, &["log", "trim", "--log", "second", "15"]);
    ok(
        connect,
        &[
            "table",
            "create",
            "fleet",
            "--column",
            "name:text",
            "--column",
            "zone:text",
            "--column",
            "size:int64?",
            "--key",
            "name",
            "--index",
            "by_zone=zone",
        ],
    );
    for n in 0..20 {
        let row = format!("{{\"name\": \"m{n:02}\", \"zone\": \"z{}\", \"size\": {n}}}", n % 3);
        ok(connect, &["table", "put", "fleet", &row]);
    }
    block(async {
        let mut client = shape.zookeeper();
        let mut make = async |path: &str, data: &[u8], flags| {
            let asked = CreateRequest { path, data: Some(data), acl: vec![OPEN], flags };
            let reply = client.call(Request::Create(asked)).await.unwrap();
            assert_eq!(reply.err, 0, "{path}");
        };
        make("/app", b"", 0).await;
        for n in 0..20 {
            make(&path(n), format!("data {n}").as_bytes(), 0).await;
        }
        // The session of this client is never closed, so the next life finds and expires it.
        make("/app/here", b"", 1).await;
        let change = SetDataRequest { path: &path(7), data: Some(b"changed"), version: 0 };
        assert_eq!(client.call(Request::SetData(change)).await.unwrap().err, 0);
    });
}

fn check_logs(shape: &Shape, connect: &str) {
    let read = |log, from: &str| ok(connect, &["log", "read", "--log", log, "--from", from, "--raw"]);
    let lines =
        |name: &str, from: u32, to: u32| -> String { (from..to).map(|n| format!("{name} {n}\n")).collect() };
    assert_eq!(read("main", "0"), lines("main", 0, 50));
    assert_eq!(read("second", "15"), lines("second", 15, 60));
    let chain: Value =
        serde_json::from_str(&ok(connect, &["chain", "show", "--log", "second", "--json"])).unwrap();
    assert!(chain["segments"].as_array().unwrap().len() >= 3, "{chain}");
    let trimmed = verb(connect, &["log", "read", "--log", "second", "--from", "14", "--raw"]);
    assert!(!trimmed.status.success());
    if shape.bulk > 0 {
        assert_eq!(ok(connect, &["log", "check-tail", "--log", "bulk"]).trim(), shape.bulk.to_string());
    }
    assert_eq!(ok(connect, &["log", "append", "--log", "main", "new"]).trim(), "50");
    assert_eq!(ok(connect, &["log", "append", "--log", "second", "new"]).trim(), "60");
}

fn check_tables(connect: &str) {
    let rows = ok(connect, &["table", "scan", "fleet", "--json"]);
    for n in 0..20 {
        assert!(rows.contains(&format!("m{n:02}")), "{rows}");
    }
    let zone = ok(connect, &["table", "query", "fleet", "by_zone", "--json"]);
    assert_eq!(zone.matches("z1").count(), 7, "{zone}");
    ok(connect, &["table", "put", "fleet", "{\"name\": \"new\", \"zone\": \"z9\", \"size\": null}"]);
}

fn check_znodes(shape: &Shape) {
    block(async {
        let mut client = shape.zookeeper();
        for n in 0..20 {
            let asked = Request::GetData(WatchedRequest { path: &path(n), watch: false });
            let reply = client.call(asked).await.unwrap();
            assert_eq!(reply.err, 0, "{}", path(n));
            let mut from = Reader::new(&reply.body);
            let data: Option<&[u8]> = Jute::read(&mut from).unwrap();
            let stat: Stat = Jute::read(&mut from).unwrap();
            let expected = if n == 7 { "changed".to_owned() } else { format!("data {n}") };
            assert_eq!(data, Some(expected.as_bytes()));
            assert_eq!(stat.version, i32::from(n == 7));
        }
        let create = CreateRequest { path: "/app/new", data: None, acl: vec![OPEN], flags: 0 };
        assert_eq!(client.call(Request::Create(create)).await.unwrap().err, 0);
        // The session of the previous life is in the state, and expires like any other.
        for _ in 0..600 {
            let asked = Request::Exists(WatchedRequest { path: "/app/here", watch: false });
            if client.call(asked).await.unwrap().err != 0 {
                return client.close().await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the ephemeral of the old session does not go");
    });
}

fn check_replicas(connect: &str, nodes: u32) {
    for node in 1..=nodes {
        let asked = ["database", "status", "--node", &node.to_string(), "--json"];
        // A replica that was just started first compares its state with that of its peers, and the verb fails meanwhile.
        let served =
            wait_for("the replica serves", || Some(verb(connect, &asked)).filter(|out| out.status.success()));
        let status: Value = serde_json::from_slice(&served.stdout).unwrap();
        assert!(status["halted"].is_null() || status["halted"] == "", "{status}");
        assert_eq!(status["found_total"].as_u64().unwrap_or(0), 0, "{status}");
    }
}

/// Collects the files in and below a folder, without the folder's path.
fn files(folder: &Path, below: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder.join(below)).unwrap().map(|e| e.unwrap()) {
        let path = below.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => files(folder, &path, into),
            false => into.push(path),
        }
    }
}

#[test]
#[ignore = "writes the fixtures, once per level"]
fn write_the_fixtures() {
    let program = std::env::var_os("ATOLL_FIXTURE_PROGRAM").unwrap();
    for shape in &SHAPES {
        let into = fixtures().join(shape.name);
        assert!(!into.exists(), "a level is written once");
        let dir = tempfile::tempdir().unwrap();
        let (mut nodes, connect) = shape.start(&program, dir.path());
        fill(shape, &connect, dir.path());
        // After an orderly stop, the database has committed what it applied. After a kill, some of it is in the log alone.
        match shape.name.ends_with("recycled") {
            true => {
                std::thread::sleep(Duration::from_secs(5));
                stop(&mut nodes);
            }
            false => nodes.iter_mut().for_each(|n| {
                n.signal("KILL");
                n.ended();
            }),
        }
        for node in 1..=shape.nodes {
            let data = dir.path().join(format!("n{node}"));
            let mut all = Vec::new();
            files(&data, Path::new(""), &mut all);
            for file in all {
                let packed = into.join(format!("n{node}")).join(&file);
                let packed = packed.with_file_name(format!("{}.zst", file.file_name().unwrap().display()));
                fs::create_dir_all(packed.parent().unwrap()).unwrap();
                let plain = fs::read(data.join(&file)).unwrap();
                fs::write(packed, zstd::bulk::compress(&plain, 19).unwrap()).unwrap();
            }
        }
    }
}

fn unpack(shape: &Shape, into: &Path) {
    let from = fixtures().join(shape.name);
    let mut all = Vec::new();
    files(&from, Path::new(""), &mut all);
    for file in all {
        let plain = into.join(file.with_extension(""));
        fs::create_dir_all(plain.parent().unwrap()).unwrap();
        let bytes = zstd::stream::decode_all(fs::File::open(from.join(&file)).unwrap()).unwrap();
        fs::write(plain, bytes).unwrap();
    }
}

fn opens(name: &str) {
    let shape = SHAPES.iter().find(|s| s.name == name).unwrap();
    let dir = tempfile::tempdir().unwrap();
    unpack(shape, dir.path());
    for _ in 0..2 {
        // The second life reads the data as the first one left it.
        let (mut nodes, connect) = shape.start(env!("CARGO_BIN_EXE_atoll"), dir.path());
        if !dir.path().join("seen").exists() {
            check_logs(shape, &connect);
            check_tables(&connect);
            check_znodes(shape);
        }
        assert_eq!(ok(&connect, &["log", "check-tail", "--log", "main"]).trim(), "51");
        assert!(ok(&connect, &["table", "scan", "fleet", "--json"]).contains("z9"));
        check_replicas(&connect, shape.nodes);
        fs::write(dir.path().join("seen"), "").unwrap();
        stop(&mut nodes);
    }
}

#[test]
fn a_tail_of_one_node_opens() {
    opens("one-tail");
}

#[test]
fn a_node_with_recycled_segments_opens() {
    opens("one-recycled");
}

#[test]
fn tails_of_three_nodes_open() {
    opens("three-tail");
}

#[test]
fn three_nodes_with_recycled_segments_open() {
    opens("three-recycled");
}

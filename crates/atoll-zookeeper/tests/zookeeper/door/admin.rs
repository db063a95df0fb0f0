//! The admin server over a real socket: routes, permissions, limits, malformed input, snapshots and restores.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::client::Client;
use super::served::{ask, door_with_admin};
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id, Stat};
use atoll_zookeeper::jute::reply::GetDataReply;
use atoll_zookeeper::jute::request::{
    CreateRequest, Request, SetAclRequest, SetDataRequest, SetWatchesRequest, WatchedRequest,
};
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::{AdminOptions, Options};
use serde_json::Value;

const JOE: &str = "Authorization: digest joe:secret\r\n";

/// A response.
struct HttpResponse {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl HttpResponse {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> String {
        let line = self.head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("{name} in {}", self.head)).to_owned()
    }
}

/// Sends bytes and reads the response until the connection ends.
fn exchange(admin: SocketAddr, bytes: &[u8]) -> HttpResponse {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // A request may be refused, and the connection closed, before everything is sent.
    let _ = stream.write_all(bytes);
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    let end = told.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(told[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head, body: told[end + 4..].to_vec() }
}

fn send(admin: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> HttpResponse {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}{length}\r\n");
    exchange(admin, &[head.as_bytes(), body].concat())
}

fn get(admin: SocketAddr, path: &str) -> HttpResponse {
    send(admin, "GET", path, "", b"")
}

/// Returns options that make Joe the superuser.
fn of_joe() -> Options {
    let super_digest = Some(atoll_zookeeper::acl::digest_id("joe:secret"));
    Options { super_digest, ..Options::default() }
}

fn unlimited() -> Options {
    let admin = AdminOptions {
        snapshot_every: Duration::ZERO,
        restore_every: Duration::ZERO,
        ..AdminOptions::default()
    };
    Options { admin, ..of_joe() }
}

fn data(client: &mut Client, path: &str) -> Result<(Vec<u8>, Stat), ErrorCode> {
    let (err, body) = client.call(&Request::GetData(WatchedRequest { path, watch: false }));
    match ErrorCode::of(err) {
        Some(code) => Err(code),
        None => {
            let reply = GetDataReply::read(&mut Reader::new(&body)).unwrap();
            Ok((reply.data.unwrap_or_default().to_vec(), reply.stat))
        }
    }
}

/// Registers a data watch that was set before `seen` was the newest zxid; returns the events that the door then sends.
fn brings_watch(client: &mut Client, seen: i64, path: &str) -> Vec<(i32, String)> {
    let asked =
        SetWatchesRequest { relative_zxid: seen, data: vec![path], exist: Vec::new(), child: Vec::new() };
    let xid = -8;
    client.send_as(xid, &Request::SetWatches(asked));
    assert_eq!(client.answer(xid).0, 0);
    client.told()
}

/// Gives only Joe all permissions on `/`.
fn protect(client: &mut Client) {
    let joe = atoll_zookeeper::acl::digest_id("joe:secret");
    let acl = vec![
        Acl { perms: 31, id: Id { scheme: "digest", id: &joe } },
        Acl { perms: 15, id: Id { scheme: "world", id: "anyone" } },
    ];
    assert_eq!(client.call(&Request::SetAcl(SetAclRequest { path: "/", acl, version: -1 })).0, 0);
}

/// These answers are limited in length, like those of the four-letter words `wchc`, `wchp` and `dump`.
#[test]
fn answers_about_what_clients_have_left_end_and_say_what_is_left_out() {
    let (door, admin) = door_with_admin(Options::default());
    let mut client = Client::connect(door);
    let paths: Vec<String> = (0..110).map(|n| format!("/{n}-{}", "x".repeat(10_000))).collect();
    for path in &paths {
        client.call(&Request::Exists(WatchedRequest { path, watch: true }));
    }
    let asked = |name: &str| get(admin, &format!("/commands/{name}"));
    for (name, left_out) in [("watches", 1), ("watches_by_path", 6)] {
        let told = asked(name);
        assert!(told.body.len() < 1_100_000, "{name}: {} bytes", told.body.len());
        assert_eq!(told.json()["left_out"], left_out, "{name}");
    }
    for path in &paths {
        let flags = CreateMode::Ephemeral.number();
        let create = CreateRequest { path, data: None, acl: vec![atoll_zookeeper::acl::OPEN], flags };
        assert_eq!(client.call(&Request::Create(create)).0, 0);
    }
    let told = asked("dump");
    assert!(told.body.len() < 1_100_000, "{} bytes", told.body.len());
    assert_eq!(told.json()["left_out"], 1);
    assert!(asked("watch_summary").json()["left_out"].is_null());
}

#[test]
fn commands_answer_in_json_by_all_of_their_names() {
    let (door, admin) = door_with_admin(Options::default());
    let mut client = Client::connect(door);
    assert_eq!(client.create("/a", b""), 0);
    client.call(&Request::GetData(WatchedRequest { path: "/a", watch: true }));
    let list = String::from_utf8(get(admin, "/commands").body).unwrap();
    let names: Vec<&str> = list.split("/commands/").skip(1).map(|l| l.split('"').next().unwrap()).collect();
    assert_eq!(names.len(), 28, "{names:?}");
    for name in names.iter().filter(|n| !matches!(**n, "snapshot" | "restore")) {
        let told = get(admin, &format!("/commands/{name}"));
        assert_eq!((told.status, &told.json()["command"]), (200, &Value::from(*name)));
        assert!(told.json()["error"].is_null() || *name == "set_trace_mask", "{name}");
    }
    let json = |path: &str| get(admin, &format!("/commands/{path}")).json();
    assert_eq!(json("mntr")["server_state"], "standalone");
    assert_eq!(json("mntr")["znode_count"], 5);
    assert_eq!(json("configuration")["max_session_timeout"], 40_000);
    assert_eq!(json("sysp")["tickTime"], "2000");
    assert_eq!(json("stat")["connections"][0]["session_id"], client.session);
    assert_eq!(json("srvr")["node_count"], 5);
    assert_eq!(json("wchp")["path_to_session_ids"]["/a"][0], client.session);
    assert_eq!(json("wchs")["num_total_watches"], 1);
    assert_eq!(json("zabstate")["zab_epoch"], 1);
    assert_eq!(json("stmk?traceMask=5")["tracemask"], 5);
    assert_eq!(json("stmk?traceMask=x")["error"], "setTraceMask requires long traceMask argument");
    assert_eq!(json("lsnp")["timestamp"], -1);
}

#[test]
fn what_is_not_a_command_is_told_so() {
    let (door, admin) = door_with_admin(unlimited());
    Client::connect(door);
    let told = get(admin, "/commands/kill");
    assert_eq!((told.status, told.error().as_str()), (404, "Unknown command: kill"));
    assert_eq!(get(admin, "/").status, 404);
    for (method, path, allow) in [
        ("POST", "/commands/ruok", "GET"),
        ("DELETE", "/commands", "GET"),
        ("POST", "/commands/snapshot", "GET"),
    ] {
        let told = send(admin, method, path, JOE, b"x");
        assert_eq!((told.status, told.header("allow").as_str()), (405, allow), "{path}");
        assert_eq!(told.error(), format!("{method} is not allowed here; allowed: {allow}"));
    }
    let told = send(admin, "GET", "/commands/restore", JOE, b"");
    assert_eq!((told.status, told.header("allow").as_str()), (405, "POST"));
    assert_eq!(exchange(admin, b"\x16\x03\x01 what\r\n\r\n").status, 400);
    // After a head that is too long, the door still serves requests.
    let long = format!("GET /commands/{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    assert!((400..500).contains(&exchange(admin, long.as_bytes()).status));
    assert_eq!(get(admin, "/commands/ruok").status, 200);
    assert_eq!(ask(door, "ruok"), "imok");
}

#[test]
fn the_tree_is_carried_for_those_alone_who_may_everything_on_the_root() {
    let (door, admin) = door_with_admin(unlimited());
    protect(&mut Client::connect(door));
    let snapshot = |headers: &str| send(admin, "GET", "/commands/snapshot", headers, b"");
    let told = snapshot("");
    assert_eq!((told.status, told.header("www-authenticate").as_str()), (401, "digest"));
    assert!(told.error().starts_with("Auth info is missing for the command"));
    for (headers, status) in [
        ("Authorization: digest joe:wrong\r\n", 403),
        ("Authorization: digest eve:secret\r\n", 403),
        ("Authorization: ip\r\n", 403),
        ("Authorization: digest\r\n", 401),
        ("Authorization: digest joe\r\n", 401),
        ("Authorization: digest joe:secret more\r\n", 401),
        ("Authorization: Basic am9lOnNlY3JldA==\r\n", 401),
        ("Authorization: x509\r\n", 401),
        (JOE, 200),
    ] {
        assert_eq!(snapshot(headers).status, status, "{headers}");
        let restore = send(admin, "POST", "/commands/restore", headers, b"garbage");
        assert_eq!(restore.status, if status == 200 { 400 } else { status }, "{headers}");
    }
}

#[test]
fn who_is_refused_is_told_so_also_behind_a_large_body() {
    let (door, admin) = door_with_admin(unlimited());
    protect(&mut Client::connect(door));
    let body = vec![0; 4 << 20];
    for _ in 0..3 {
        let mut stream = TcpStream::connect(admin).unwrap();
        let head =
            format!("POST /commands/restore HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        let mut told = [0; 12];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 401");
    }
}

/// By default, everybody has all permissions on `/`. That must not permit them to read and replace the tree past all other ACLs.
#[test]
fn only_the_superuser_carries_the_tree_whatever_the_list() {
    let super_digest = Some(atoll_zookeeper::acl::digest_id("root:toor"));
    for protected in [false, true] {
        let (door, admin) = door_with_admin(Options { super_digest: super_digest.clone(), ..unlimited() });
        let mut client = Client::connect(door);
        assert_eq!(client.create("/a", b"1"), 0);
        if protected {
            protect(&mut client);
        }
        for (headers, taken, restored) in [
            ("Authorization: digest root:toor\r\n", 200, 400),
            ("Authorization: digest root:root\r\n", 403, 403),
            ("Authorization: ip\r\n", 403, 403),
            (JOE, 403, 403),
        ] {
            assert_eq!(send(admin, "GET", "/commands/snapshot", headers, b"").status, taken, "{headers}");
            let restore = send(admin, "POST", "/commands/restore", headers, b"garbage");
            assert_eq!(restore.status, restored, "{headers}");
        }
    }
}

#[test]
fn what_is_switched_off_or_comes_too_soon_is_refused() {
    let off = AdminOptions { snapshot: false, restore: false, ..AdminOptions::default() };
    let (_, admin) = door_with_admin(Options { admin: off, ..of_joe() });
    for (method, path) in [("GET", "/commands/snapshot"), ("POST", "/commands/restore")] {
        let told = send(admin, method, path, JOE, b"");
        assert_eq!(told.status, 503);
        assert!(told.error().contains("is not enabled"), "{}", told.error());
    }
    // By default, one snapshot and one restore are allowed every five minutes.
    let (door, admin) = door_with_admin(of_joe());
    Client::connect(door);
    let file = send(admin, "GET", "/commands/snapshot", JOE, b"");
    assert_eq!(file.status, 200);
    let again = send(admin, "GET", "/commands/snapshot", JOE, b"");
    assert_eq!(again.status, 429, "{}", again.error());
    assert!((200..=300).contains(&again.header("retry-after").parse::<u64>().unwrap()));
    let restore = |body: &[u8]| send(admin, "POST", "/commands/restore", JOE, body).status;
    assert_eq!(restore(b"garbage"), 400, "and what was refused does not count");
    assert_eq!(restore(&file.body), 200);
    assert_eq!(restore(&file.body), 429);
}

#[test]
fn what_is_restored_is_what_was_taken_and_no_client_goes_back() {
    let (door, admin) = door_with_admin(unlimited());
    let mut client = Client::connect(door);
    let large = vec![7; 300_000];
    for (path, bytes) in [("/a", &b"1"[..]), ("/a/b", &large), ("/c", b"3")] {
        assert_eq!(client.create(path, bytes), 0);
    }
    let before: Vec<_> =
        ["/", "/a", "/a/b", "/c"].into_iter().map(|p| data(&mut client, p).unwrap()).collect();
    let file = send(admin, "GET", "/commands/snapshot?streaming=true", JOE, b"");
    assert_eq!(file.header("content-type"), "application/octet-stream");
    assert_eq!(file.header("snapshot_size"), file.body.len().to_string());
    let taken = i64::from_str_radix(file.header("last_zxid").strip_prefix("0x").unwrap(), 16).unwrap();
    let only_told = send(admin, "GET", "/commands/snap?streaming=false", JOE, b"");
    assert_eq!(only_told.header("snapshot_size"), file.header("snapshot_size"));
    assert!(only_told.json()["error"].is_null());
    assert_eq!(get(admin, "/commands/lsnp").json()["zxid"], format!("{taken:x}"));

    // After the snapshot, one node is created, one is changed and one is deleted.
    let mut later = Client::connect(door);
    let (session, password) = (later.session, later.password.clone());
    assert_eq!(later.create("/later", b""), 0);
    let set = Request::SetData(SetDataRequest { path: "/a", data: Some(b"2"), version: -1 });
    assert_eq!(client.call(&set).0, 0);
    let delete = Request::Delete(atoll_zookeeper::jute::request::VersionRequest { path: "/c", version: -1 });
    assert_eq!(client.call(&delete).0, 0);
    let newest = client.newest;
    assert!(newest > taken);

    let told = send(admin, "POST", "/commands/restore", JOE, &file.body);
    assert_eq!(told.status, 200, "{}", String::from_utf8_lossy(&told.body));
    let restored = told.json()["last_zxid"].as_i64().unwrap();
    assert_eq!((restored >> 32, restored & 0xffff_ffff), ((newest >> 32) + 1, 0), "a new epoch");
    assert!(client.is_ended() && later.is_ended(), "everybody comes again");
    // The session from the snapshot exists, the later one does not.
    let mut again = Client::attach(door, client.session, &client.password);
    assert_eq!(again.session, client.session);
    assert_eq!(Client::attach(door, session, &password).session, 0);
    let after: Vec<_> = ["/", "/a", "/a/b", "/c"].into_iter().map(|p| data(&mut again, p).unwrap()).collect();
    assert_eq!(after, before);
    assert_eq!(data(&mut again, "/later").unwrap_err(), ErrorCode::NoNode);
    assert!(again.newest >= restored);
    assert_eq!(again.create("/next", b""), 0);
    assert!(again.newest > restored);
    assert_eq!(get(admin, "/commands/monitor").json()["znode_count"], 8);
    // A client that has seen the newest change before the restore is served, and notified of what it had watched.
    assert_eq!(
        brings_watch(&mut again, newest, "/a"),
        [(3, "/a".to_owned())],
        "it may be another than it saw"
    );
    let knows = again.newest;
    assert_eq!(brings_watch(&mut again, knows, "/a"), [], "it knows this tree");
}

#[test]
fn a_file_that_is_none_or_damaged_is_refused_and_nothing_changes() {
    let (door, admin) = door_with_admin(unlimited());
    let mut client = Client::connect(door);
    assert_eq!(client.create("/a", b"1"), 0);
    let file = send(admin, "GET", "/commands/snapshot", JOE, b"").body;
    let restore = |body: &[u8]| {
        let told = send(admin, "POST", "/commands/restore", JOE, body);
        assert_eq!(told.status, 400, "{}", String::from_utf8_lossy(&told.body));
        told.error()
    };
    assert_eq!(restore(b""), "not restored: this is not a snapshot of Atoll's ZooKeeper door");
    assert_eq!(
        restore(b"ZKSN garbage of another kind"),
        "not restored: this is not a snapshot of Atoll's ZooKeeper door"
    );
    assert!(restore(&file[..file.len() - 1]).contains("cut off"));
    let mut damaged = file.clone();
    damaged[60] ^= 1;
    assert!(restore(&damaged).contains("checksum"));
    // A file that is too large is refused before it is sent.
    let head =
        format!("POST /commands/restore HTTP/1.1\r\nHost: x\r\n{JOE}Content-Length: {}\r\n\r\n", 300 << 20);
    let told = exchange(admin, head.as_bytes());
    assert_eq!((told.status, told.error().contains("bytes at most")), (413, true));
    // The body is cut off.
    let head = format!("POST /commands/restore HTTP/1.1\r\nHost: x\r\n{JOE}Content-Length: 1000\r\n\r\nhalf");
    TcpStream::connect(admin).unwrap().write_all(head.as_bytes()).unwrap();
    assert_eq!(data(&mut client, "/a").unwrap().0, b"1", "the connection is the same one");
    let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    let flags = CreateMode::Persistent.number();
    assert_eq!(client.call(&Request::Create(CreateRequest { path: "/b", data: None, acl, flags })).0, 0);
}

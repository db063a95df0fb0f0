//! Who may do what, with real processes: what a stranger finds in the log of the database.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Process, atoll, free_port, ok, verb, wait_for};
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::records::{ConnectRequest, ConnectResponse};

/// Asks the ZooKeeper door for a session, a new one or its own. Returns its id and password; an id of 0 says that there is none.
fn session(port: u16, session: i64, password: &[u8]) -> (TcpStream, i64, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = ConnectRequest { session, password: Some(password), ..ConnectRequest::first(30_000) };
    let body = request.to_vec();
    stream.write_all(&u32::try_from(body.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    let answer = ConnectResponse::parse(&answer).unwrap();
    let (id, password) = (answer.session, answer.password.unwrap().to_vec());
    (stream, id, password)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Returns the files below a folder that contain these bytes.
fn files_with(folder: &Path, part: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, part));
        } else if contains(&fs::read(&path).unwrap(), part) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn neither_the_log_nor_the_disk_has_the_password_of_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let (data, grpc, zookeeper) = (dir.path().join("data"), free_port(), free_port());
    let connect = format!("127.0.0.1:{grpc}");
    let mut command = atoll();
    command.arg("serve").arg("--data").arg(&data).args(["--grpc", &connect, "--peer", "127.0.0.1:0"]);
    command.args(["--metrics", "", "--zookeeper", &format!("127.0.0.1:{zookeeper}")]);
    let mut node = Process::start(command.stderr(Stdio::null()).stdout(Stdio::null()));
    wait_for("the node answers", || verb(&connect, &["log", "list"]).status.success().then_some(()));
    // Below this level, the nodes of a cluster may not be able to read the hash.
    wait_for("the feature level", || ok(&connect, &["cluster", "level"]).contains("level 2\n").then_some(()));
    wait_for("the door", || TcpStream::connect(("127.0.0.1", zookeeper)).ok());

    let (_open, id, password) = session(zookeeper, 0, &[0; 16]);
    let (_moved, same, _) = session(zookeeper, id, &password);
    assert_eq!(same, id, "the client itself attaches to its session");
    let read = verb(&connect, &["log", "read", "--log", "db", "--raw"]);
    assert!(read.status.success() && contains(&read.stdout, &id.to_be_bytes()), "the log has the session");
    assert!(!contains(&read.stdout, &password), "the log has the password of the session");
    let hash = ring::digest::digest(&ring::digest::SHA256, &password);
    assert!(contains(&read.stdout, hash.as_ref()), "the log has the hash");
    // What is in the log is of no use to who reads it.
    assert_eq!(session(zookeeper, id, hash.as_ref()).1, 0);
    assert_eq!(session(zookeeper, id, &hash.as_ref()[..16]).1, 0);
    node.signal("TERM");
    node.ended();
    assert_eq!(files_with(&data, &password), Vec::<String>::new());
    assert!(!files_with(&data, hash.as_ref()).is_empty());
}

/// Starts a node with a configuration file, and waits until it listens.
fn serve_with(config: &Path, grpc: u16) -> Process {
    let mut command = atoll();
    command.arg("serve").arg("--config").arg(config);
    let node = Process::start(command.stderr(Stdio::null()).stdout(Stdio::null()));
    wait_for("the node listens", || TcpStream::connect(("127.0.0.1", grpc)).ok());
    node
}

/// Runs a verb, with a token if there is one. Returns whether it succeeded, and what it said.
fn with_token(connect: &str, token: Option<&str>, args: &[&str]) -> (bool, String) {
    let mut command = atoll();
    command.args(args).env("ATOLL_CONNECT", connect).env_remove("ATOLL_TOKEN_FILE");
    match token {
        Some(token) => command.env("ATOLL_TOKEN", token),
        None => command.env_remove("ATOLL_TOKEN"),
    };
    let out = command.stdin(Stdio::null()).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_node_that_requires_grants_serves_who_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let (config, grpc) = (dir.path().join("node.toml"), free_port());
    let connect = format!("127.0.0.1:{grpc}");
    let text = format!(
        "[node]\ndata = \"data\"\n\n[listen]\ngrpc = \"{connect}\"\npeer = \"127.0.0.1:0\"\nmetrics = \"\"\nzookeeper = \"\"\n"
    );
    fs::write(&config, &text).unwrap();
    let mut node = serve_with(&config, grpc);
    // On loopback, nothing is required, and so the first grants are made.
    assert_eq!(ok(&connect, &["auth", "check"]).trim(), "everybody");
    // Below this level, the nodes of a cluster may not be able to read grants. A new cluster comes to it soon after its start.
    wait_for("the feature level", || ok(&connect, &["cluster", "level"]).contains("level 2\n").then_some(()));
    let token = |name: &str| ok(&connect, &["auth", "token", "create", name]).trim().to_owned();
    let (root, ci) = (token("root"), token("ci"));
    ok(&connect, &["auth", "grant", "token:root", "operate", "*"]);
    ok(&connect, &["auth", "grant", "token:ci", "write", "log:builds/*"]);
    node.signal("TERM");
    node.ended();

    fs::write(&config, format!("{text}\n[auth]\nrequired = true\n")).unwrap();
    let mut node = serve_with(&config, grpc);
    let by = |token: Option<&str>, args: &[&str]| with_token(&connect, token, args);
    let refused = |token: Option<&str>, args: &[&str], words: &str| {
        let (done, said) = by(token, args);
        assert!(!done && said.contains(words), "{args:?}: {said}");
    };
    // Once the replica is open, who has shown nothing is told so.
    wait_for("the node knows the grants", || {
        by(Some(&ci), &["log", "append", "--log", "builds/1", "x"]).0.then_some(())
    });
    refused(None, &["status"], "neither a certificate nor a token");
    refused(Some("atoll_00"), &["status"], "no such token");
    assert!(by(Some(&ci), &["log", "read", "--log", "builds/1", "--raw"]).1.contains('x'));
    refused(
        Some(&ci),
        &["log", "trim", "--log", "builds/1", "1"],
        "token:ci lacks the right to operate log:",
    );
    refused(Some(&ci), &["log", "append", "--log", "main", "x"], "atoll auth grant token:ci write log:main");
    refused(Some(&ci), &["log", "read", "--log", "db"], "token:ci lacks the right to operate cluster");
    refused(Some(&ci), &["auth", "grant", "token:ci", "operate", "*"], "lacks the right to operate cluster");
    assert!(by(Some(&root), &["log", "read", "--log", "db"]).0);
    assert!(by(Some(&root), &["auth", "check", "--who", "token:ci", "read", "log:builds/1"]).0);
    refused(Some(&root), &["auth", "check", "--who", "token:ci", "read", "log:main"], "may not");
    assert!(by(Some(&root), &["auth", "token", "revoke", "ci"]).0);
    refused(Some(&ci), &["log", "append", "--log", "builds/1", "x"], "no such token");
    let (_, list) = by(Some(&root), &["auth", "list"]);
    assert!(list.contains("refuses what is not granted") && !list.contains("token:ci"), "{list}");

    node.signal("TERM");
    node.ended();
    let audit = fs::read_to_string(dir.path().join("data/audit.log")).unwrap();
    for words in ["AuthService/CreateToken", "AuthService/RevokeToken", "\"event\":\"refused\"", "token:ci"] {
        assert!(audit.contains(words), "{words}: {audit}");
    }
    for secret in [&root, &ci] {
        assert_eq!(
            files_with(dir.path(), secret.as_bytes()),
            Vec::<String>::new(),
            "only hashes of tokens are kept"
        );
    }
}

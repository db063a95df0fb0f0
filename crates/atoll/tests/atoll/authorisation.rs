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

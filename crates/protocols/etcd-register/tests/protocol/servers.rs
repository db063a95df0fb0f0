//! Servers of a real etcd, which this process starts and kills.

// Real processes and threads.
#![allow(clippy::disallowed_methods)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use tempfile::TempDir;

/// The variable with the path of the program `etcd`.
const PROGRAM: &str = "ATOLL_TEST_ETCD";
/// What a server says once it answers clients.
const READY: &str = "ready to serve client requests";

/// Returns the program of etcd, or says why the test does nothing.
pub fn program() -> Option<PathBuf> {
    let program = std::env::var_os(PROGRAM).filter(|program| !program.is_empty());
    if program.is_none() {
        eprintln!("not run: set {PROGRAM} to the path of the program etcd");
    }
    program.map(PathBuf::from)
}

/// A cluster on loopback. Its servers end with it.
pub struct Servers {
    program: PathBuf,
    folder: TempDir,
    flags: Vec<String>,
    /// The ports for clients and for the other servers.
    ports: Vec<[u16; 2]>,
    running: Vec<Option<Child>>,
}

fn free_ports(count: usize) -> Vec<[u16; 2]> {
    let open = || TcpListener::bind("127.0.0.1:0").unwrap();
    // All are taken before any is given back.
    let taken: Vec<[TcpListener; 2]> = (0..count).map(|_| [open(), open()]).collect();
    taken.iter().map(|both| [0, 1].map(|at| both[at].local_addr().unwrap().port())).collect()
}

/// Waits until a server answers clients. What else it says is thrown away.
fn wait_until_ready(said: ChildStderr) {
    let mut lines = BufReader::new(said).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(READY)), "etcd ended before it answered");
    std::thread::spawn(move || lines.for_each(drop));
}

impl Servers {
    /// Starts a cluster, and waits until each server answers.
    pub fn start(program: PathBuf, count: usize, flags: &[&str]) -> Self {
        let mut servers = Servers {
            program,
            folder: tempfile::tempdir().unwrap(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            ports: free_ports(count),
            running: (0..count).map(|_| None).collect(),
        };
        let said: Vec<ChildStderr> = (0..count).map(|server| servers.spawn(server)).collect();
        said.into_iter().for_each(wait_until_ready);
        servers
    }

    /// The servers, as clients are told them.
    pub fn addresses(&self) -> String {
        let addresses: Vec<String> =
            self.ports.iter().map(|[client, _]| format!("127.0.0.1:{client}")).collect();
        addresses.join(",")
    }

    fn spawn(&mut self, server: usize) -> ChildStderr {
        let [client, peer] = self.ports[server].map(|port| format!("http://127.0.0.1:{port}"));
        let members: Vec<String> =
            (0..self.ports.len()).map(|n| format!("etcd{n}=http://127.0.0.1:{}", self.ports[n][1])).collect();
        let mut child = Command::new(&self.program)
            .args(["--name", &format!("etcd{server}"), "--data-dir"])
            .arg(self.folder.path().join(server.to_string()))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &members.join(","), "--initial-cluster-state", "new"])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = child.stderr.take().unwrap();
        self.running[server] = Some(child);
        said
    }

    /// Kills a server; it has no time to say good-bye.
    pub fn kill(&mut self, server: usize) {
        if let Some(mut child) = self.running[server].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts a killed server again, and waits until it answers.
    pub fn restart(&mut self, server: usize) {
        let said = self.spawn(server);
        wait_until_ready(said);
    }

    /// Sends a signal to a server, such as `STOP`.
    pub fn signal(&self, server: usize, signal: &str) {
        let pid = self.running[server].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([format!("-{signal}"), pid]).status().unwrap().success());
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|server| self.kill(server));
    }
}

//! Real processes of the program under test. They end with the test, however it ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest wait for anything. A test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a command that runs the program.
pub fn atoll() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    command.env_remove("ATOLL_CONNECT").env_remove("RUST_LOG");
    command
}

/// Calls `ask` until it returns an answer.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a port that is free now, below those that systems give to outgoing connections. Returns no port twice: tests of one process run
/// concurrently, and a test that got a port may not listen yet.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let first = 30_000 + u16::try_from(std::process::id() % 2_000).unwrap();
    // Bind the socket without listening: a process that another test is just starting has a copy of it for a while.
    let can_bind = |port: u16| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(std::net::SocketAddr::from(([127, 0, 0, 1], port))).is_ok()
    };
    let is_free = |p: &u16| !given.contains(p) && can_bind(*p);
    let port = (first..32_700).chain(30_000..first).find(is_free).unwrap();
    given.insert(port);
    port
}

/// A child process that is killed when this is dropped.
pub struct Process(Child);

impl Process {
    /// Starts the process.
    pub fn start(command: &mut Command) -> Self {
        Process(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }

    /// Waits until the process has ended, and returns its exit status.
    pub fn ended(&mut self) -> ExitStatus {
        wait_for("the process ends", || self.0.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `kill -NAME PID`.
pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap().success());
}

/// Returns whether a process with this id is alive.
pub fn is_alive(pid: u32) -> bool {
    // A zombie is not alive; its parent has only not reaped it yet.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

/// Runs a verb against these addresses.
pub fn verb(connect: &str, args: &[&str]) -> Output {
    atoll().args(args).env("ATOLL_CONNECT", connect).stdin(Stdio::null()).output().unwrap()
}

/// Runs a verb that must succeed, and returns its standard output.
pub fn ok(connect: &str, args: &[&str]) -> String {
    let out = verb(connect, args);
    let words = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "atoll {}: {}: {words}", args.join(" "), out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// Starts a node on ports of its own, and waits until it answers.
pub fn serve(data: &Path, port: u16) -> Process {
    let grpc = format!("127.0.0.1:{port}");
    let mut command = atoll();
    command.arg("serve").arg("--data").arg(data).args([
        "--grpc",
        &grpc,
        "--peer",
        "127.0.0.1:0",
        "--metrics",
        "",
        "--zookeeper",
        "127.0.0.1:0",
    ]);
    let node = Process::start(command.stderr(Stdio::null()).stdout(Stdio::null()));
    wait_for("the node answers", || verb(&grpc, &["log", "list"]).status.success().then_some(()));
    node
}

/// `atoll dev`.
pub struct Dev {
    process: Process,
    folder: PathBuf,
}

impl Dev {
    /// Starts `atoll dev` and waits until its cluster answers.
    pub fn start(folder: &Path, args: &[&str]) -> Self {
        let output = folder.join("output");
        let out = fs::File::create(&output).unwrap();
        let data = folder.join("cluster");
        let mut command = atoll();
        command.args(["dev", "--base-port", "0", "--data"]).arg(&data).args(args);
        let process = Process::start(command.stdout(out.try_clone().unwrap()).stderr(out));
        let mut dev = Dev { process, folder: data };
        wait_for("the cluster answers", || {
            let ended = dev.process.0.try_wait().unwrap();
            assert_eq!(ended, None, "atoll dev ended early: {}", fs::read_to_string(&output).unwrap());
            // The file of a killed supervisor may still exist, so wait until the file names the new one.
            let text = fs::read_to_string(dev.folder.join("dev.json")).ok()?;
            let state: Value = serde_json::from_str(&text).unwrap();
            (state["pid"] == dev.process.0.id()).then_some(())
        });
        dev
    }

    /// Returns the current content of `dev.json`.
    pub fn state(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.folder.join("dev.json")).unwrap()).unwrap()
    }

    /// Returns the current process id of a node, if it runs.
    pub fn pid(&self, id: u64) -> Option<u32> {
        let state = self.state();
        let node = state["nodes"].as_array().unwrap().iter().find(|n| n["id"] == id).unwrap();
        node["pid"].as_u64().map(|p| u32::try_from(p).unwrap())
    }

    /// Returns all gRPC addresses.
    pub fn connect(&self) -> String {
        let state = self.state();
        let doors = state["nodes"].as_array().unwrap().iter().map(|n| n["grpc"].as_str().unwrap());
        doors.collect::<Vec<_>>().join(",")
    }

    /// Sends the supervisor a signal and waits until it has ended.
    pub fn end(&mut self, name: &str) -> ExitStatus {
        self.process.signal(name);
        self.process.ended()
    }

    /// Returns whether `dev.json` exists.
    pub fn has_state(&self) -> bool {
        self.folder.join("dev.json").exists()
    }
}

//! The same over a real server of NATS, alone, without a cluster. It runs where `nats-server` is in the PATH, or where `ATOLL_NATS_SERVER`
//! names it; elsewhere, nothing is tested. The drill `log_service` builds one, and plays with three.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atoll_contract::conformance::{LogletHarness, loglet};
use atoll_contract::{LogletProvider, PlanError};
use atoll_core::NodeId;
use atoll_log_service::service::{Fault, Request, Stream};
use atoll_log_service::testing::remote;

use crate::harness::{Harness, Over, wait_for};

/// The variable with the path of the program.
const NAMED: &str = "ATOLL_NATS_SERVER";
const TIMEOUT: Duration = Duration::from_secs(5);

/// The program, if there is one.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(NAMED).filter(|name| !name.is_empty()) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("nats-server")).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("not run: there is no nats-server in the PATH; set {NAMED} to one");
    }
    found
}

/// A server that runs until it is dropped.
struct Server {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts one with these lines of configuration, on a free port. None if there is no program.
    fn start(lines: &str) -> Option<Server> {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("nats.conf");
        let store = folder.path().join("store");
        let text =
            format!("listen: \"127.0.0.1:-1\"\n{}\n", lines.replace("STORE", &store.display().to_string()));
        std::fs::write(&config, text).unwrap();
        Self::run(&program()?, &config, folder)
    }

    fn run(program: &Path, config: &Path, folder: tempfile::TempDir) -> Option<Server> {
        let mut command = Command::new(program);
        let mut process = command.arg("-c").arg(config).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut address = None;
        for line in said.by_ref() {
            if let Some((_, at)) = line.split_once("Listening for client connections on ") {
                address = Some(at.trim().to_owned());
            }
            if line.contains("Server is ready") {
                break;
            }
        }
        // The rest is read away, or the server would wait for it.
        std::thread::Builder::new().spawn(move || said.for_each(drop)).unwrap();
        Some(Server { process, address: address.expect("the server says where it listens"), _folder: folder })
    }

    fn harness(&self) -> Harness {
        let service = remote(&self.address, TIMEOUT);
        Harness::new(Over::Servers(service, self.address.clone()), false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const JETSTREAM: &str = "jetstream { store_dir: \"STORE\", sync_interval: always }";

#[test]
fn a_loglet_in_a_real_server_passes_the_suite() {
    let Some(server) = Server::start(JETSTREAM) else { return };
    loglet::all(&mut server.harness(), 0..3);
}

fn plan(server: &Server) -> Result<bytes::Bytes, PlanError> {
    let mut h = server.harness();
    let (provider, spec) = (h.provider(NodeId(1)), h.spec());
    h.driver.block_on(NodeId(1), async move { provider.plan(&spec, None).await })
}

fn refused(planned: Result<bytes::Bytes, PlanError>) -> &'static str {
    match planned {
        Err(PlanError::Invalid { allowed, .. }) => allowed,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn servers_that_cannot_hold_a_log_are_refused_by_name() {
    let Some(server) = Server::start("") else { return };
    assert!(refused(plan(&server)).contains("JetStream"));
    let locked = format!("{JETSTREAM}\nauthorization {{ user: a, password: b }}");
    let server = Server::start(&locked).unwrap();
    assert!(refused(plan(&server)).contains("credentials"));
    let small = format!("{JETSTREAM}\nmax_payload: 1000");
    assert!(refused(plan(&Server::start(&small).unwrap())).contains("1 MiB"));
    let address = "127.0.0.1:1".to_owned();
    let mut h = Harness::new(Over::Servers(remote(&address, TIMEOUT), address), false);
    let (provider, spec) = (h.provider(NodeId(1)), h.spec());
    let planned = h.driver.block_on(NodeId(1), async move { provider.plan(&spec, None).await });
    assert!(refused(planned).contains("answers"));
}

/// What a request gets.
fn ask(server: &Server, stream: &Stream, request: Request) -> Result<(), Fault> {
    wait_for(remote(&server.address, TIMEOUT).ask(stream.clone(), request)).map(|_| ())
}

#[test]
fn a_stream_that_is_missing_or_was_altered_is_told_apart() {
    let Some(server) = Server::start(JETSTREAM) else { return };
    let mut h = server.harness();
    let log = h.fresh();
    let stream = h.stream(log);
    assert_eq!(ask(&server, &stream, Request::Look), Ok(()));
    let other = Stream { name: "atoll-none".to_owned(), subject: "atoll.none".to_owned() };
    assert_eq!(ask(&server, &other, Request::Look), Err(Fault::Missing));
    assert_eq!(ask(&server, &other, Request::Last), Err(Fault::Missing));
    // A stream with that name that is not a log: another one's subjects.
    let strange = Stream { name: stream.name.clone(), subject: "elsewhere".to_owned() };
    assert!(matches!(ask(&server, &strange, Request::Look), Err(Fault::Altered(_))));
    assert!(h.delete(log));
    assert_eq!(ask(&server, &stream, Request::Look), Err(Fault::Missing));
}

//! Tests of the doors together with the Rust client, over sockets, with logs in memory behind the doors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::memory::{Logs, MemoryLog, MemoryNode, Trouble, services};
use atoll_client::proto::log_service_client::LogServiceClient;
use atoll_client::proto::{self, append_stream_request::What};
use atoll_client::{Client, Error, Options, ReadOptions, Reason};
use atoll_door::{Limits, Refusal, serve_grpc};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(20);

/// A door with its own port and its own thread.
struct Door {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    trouble: Arc<Trouble>,
}

impl Door {
    async fn open(id: u32, logs: &Logs) -> Door {
        Door::open_with(id, logs, Limits::default()).await
    }

    async fn open_with(id: u32, logs: &Logs, limits: Limits) -> Door {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (trouble, grpc) = (Arc::new(Trouble::default()), vec![address.to_string()]);
        let node = Arc::new(MemoryNode {
            id,
            logs: logs.clone(),
            grpc,
            trouble: trouble.clone(),
            ..MemoryNode::default()
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let (kill, killed) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let services = services(node, limits);
                let stopped = async {
                    // If the test has ended and dropped the sender, stop as well.
                    let _ = stopped.await;
                };
                tokio::select! {
                    served = serve_grpc(listener, services, None, stopped) => served.unwrap(),
                    Ok(()) = killed => {}
                }
            });
            // Dropping the runtime breaks all connections.
        });
        Door { address, stop: Some(stop), kill: Some(kill), thread: Some(thread), trouble }
    }

    /// Stops the door like SIGTERM.
    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        let thread = self.thread.take().unwrap();
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    }

    /// Stops the door like `kill -9`: the connections break without notice.
    fn kill(mut self) {
        self.kill.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }

    fn client(&self) -> Client {
        client(&[self])
    }
}

fn client(doors: &[&Door]) -> Client {
    let addresses: Vec<_> = doors.iter().map(|d| d.address.to_string()).collect();
    Client::connect(&addresses.join(",")).unwrap()
}

fn log_of(logs: &Logs, name: &str) -> Arc<MemoryLog> {
    logs.lock().unwrap().entry(name.to_owned()).or_default().clone()
}

fn payloads(log: &MemoryLog) -> Vec<String> {
    log.entries().iter().map(|e| String::from_utf8(e.payload.to_vec()).unwrap()).collect()
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    match result {
        Err(Error::DidNotHappen(failure)) => failure.reason,
        other => panic!("expected a certain failure, got {other:?}"),
    }
}

#[tokio::test]
async fn appends_land_in_the_order_of_submission_and_read_back() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let log = door.client().log("reef/a").unwrap();
    let mut under_way = Vec::new();
    for i in 0..5000u64 {
        under_way.push((i, log.submit(format!("record {i}")).await.unwrap()));
    }
    for (i, appending) in under_way {
        assert_eq!(appending.await, Ok(i));
    }
    assert_eq!(log.check_tail().await, Ok(5000));

    let mut reader = log.read(ReadOptions { to: Some(4998), limit: Some(4000), ..ReadOptions::from(10) });
    let (mut next, mut remote) = (10, 0);
    while let Some(batch) = reader.next().await.unwrap() {
        assert_eq!(batch.first, next);
        for record in &batch.records {
            assert_eq!(record.payload, format!("record {next}"));
            next += 1;
        }
        remote += batch.remote;
    }
    assert_eq!((next, remote), (4010, 4000));
    let mut local = log.read(ReadOptions { local_only: true, ..ReadOptions::default() });
    assert_eq!(local.next().await.unwrap().unwrap().remote, 0);
}

#[tokio::test]
async fn long_records_pass_and_longer_ones_are_refused_before_they_are_sent() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let log = door.client().log("main").unwrap();
    let long = vec![7u8; 1_000_000];
    let outcomes = log.append_batch((0..9).map(|_| long.clone().into())).await;
    assert_eq!(outcomes, (0..9).map(Ok).collect::<Vec<_>>());
    assert_eq!(reason(log.append(vec![7u8; 1_000_001]).await), Reason::TooLarge);
    assert_eq!(log_of(&logs, "main").entries().len(), 9);
    let batch = log.read(ReadOptions::from(8)).next().await.unwrap().unwrap();
    assert_eq!(batch.records[0].payload, long);
}

#[tokio::test]
async fn a_tail_follows_appends_and_a_trim_is_named() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let log = door.client().log("main").unwrap();
    let mut tail = log.tail(0);
    for i in 0..50u64 {
        assert_eq!(log.append(i.to_string()).await, Ok(i));
        let batch = tail.next().await.unwrap().unwrap();
        assert_eq!((batch.first, &batch.records[0].payload[..]), (i, i.to_string().as_bytes()));
    }
    log.trim(20).await.unwrap();
    let error = log.read(ReadOptions::from(5)).next().await.unwrap_err();
    assert_eq!(error.failure().reason, Reason::Trimmed);
    assert!(error.to_string().contains("20"), "{error}");
    assert_eq!(log.read(ReadOptions::default()).next().await.unwrap().unwrap().first, 20);
    assert_eq!(reason(log.read(ReadOptions::from(51)).next().await), Reason::BeyondTail);
    assert_eq!(log.read(ReadOptions::from(50)).next().await, Ok(None));
}

#[tokio::test]
async fn busy_logs_delay_and_reorder_nothing() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let log = door.client().log("main").unwrap();
    let behind = log_of(&logs, "main");
    for i in 0..200u64 {
        if i % 5 == 0 {
            behind.busy_once.store(true, Ordering::Relaxed);
        }
        let appending = log.submit(i.to_string()).await.unwrap();
        if i % 3 == 0 {
            assert_eq!(appending.await, Ok(i));
        }
    }
    log.append("end").await.unwrap();
    let mut expected: Vec<_> = (0..200u64).map(|i| i.to_string()).collect();
    expected.push("end".into());
    assert_eq!(payloads(&behind), expected);
}

#[tokio::test]
async fn a_stopped_door_hands_its_clients_on_and_nothing_fails_or_doubles() {
    let logs = Logs::default();
    let (first, second) = (Door::open(1, &logs).await, Door::open(2, &logs).await);
    let log = client(&[&first, &second]).log("main").unwrap();
    let appender = tokio::spawn(async move {
        let mut positions = Vec::new();
        for i in 0..2000u64 {
            positions.push(log.append(i.to_string()).await.unwrap());
            tokio::task::yield_now().await;
        }
        positions
    });
    while log_of(&logs, "main").entries().len() < 100 {
        tokio::task::yield_now().await;
    }
    first.stop().await;
    assert_eq!(appender.await.unwrap(), (0..2000).collect::<Vec<_>>());
    assert_eq!(payloads(&log_of(&logs, "main")), (0..2000).map(|i| i.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn outcomes_lost_with_a_node_are_found_by_name_at_the_next() {
    let logs = Logs::default();
    let (first, second) = (Door::open(1, &logs).await, Door::open(2, &logs).await);
    let log = client(&[&first, &second]).log("main").unwrap();
    log.append("before").await.unwrap();
    let behind = log_of(&logs, "main");
    behind.mute.store(true, Ordering::Relaxed);
    let lost: Vec<_> = [log.submit("a").await.unwrap(), log.submit("b").await.unwrap()].into();
    while behind.entries().len() < 3 {
        tokio::task::yield_now().await;
    }
    behind.mute.store(false, Ordering::Relaxed);
    first.kill();
    for (appending, position) in lost.into_iter().zip(1..) {
        assert_eq!(appending.await, Ok(position));
    }
    assert_eq!(payloads(&behind), ["before", "a", "b"]);
}

#[tokio::test]
async fn a_node_that_lives_but_gets_nowhere_is_left() {
    let logs = Logs::default();
    let (first, second) = (Door::open(1, &logs).await, Door::open(2, &logs).await);
    let addresses = format!("{},{}", first.address, second.address);
    let options = Options { attempt_timeout: Duration::from_millis(100), ..Options::default() };
    let log = Client::with_options(&addresses, options).unwrap().log("main").unwrap();
    let behind = log_of(&logs, "main");
    behind.mute.store(true, Ordering::Relaxed);
    let stuck = log.submit("a").await.unwrap();
    while behind.entries().is_empty() {
        tokio::task::yield_now().await;
    }
    behind.mute.store(false, Ordering::Relaxed);
    // The first door keeps sending heartbeats, but never an outcome.
    assert_eq!(stuck.await, Ok(0));
    assert_eq!(payloads(&behind), ["a"]);
}

#[tokio::test]
async fn silent_nodes_and_strangers_are_passed_over() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    // Like a stopped process: the system accepts connections, but nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let strange = stranger.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = stranger.accept() {
            let _ = std::io::Write::write_all(&mut socket, b"SSH-2.0-OpenSSH\r\n");
        }
    });
    let silent_at = silent.local_addr().unwrap();
    let options = Options { attempt_timeout: Duration::from_millis(100), ..Options::default() };
    let client =
        Client::with_options(&format!("{silent_at},{strange},{}", door.address), options.clone()).unwrap();
    assert_eq!(client.log("main").unwrap().append("a").await, Ok(0));
    let client = Client::with_options(&format!("{silent_at},{strange},{}", door.address), options).unwrap();
    assert!(client.status().await.unwrap().healthy);
    let client = Client::connect(&format!("{strange},{}", door.address)).unwrap();
    let mut reader = client.log("main").unwrap().read(ReadOptions::default());
    assert_eq!(reader.next().await.unwrap().unwrap().records[0].payload, "a");
}

#[tokio::test]
async fn a_read_goes_on_at_another_node_where_it_stopped() {
    let logs = Logs::default();
    let (first, second) = (Door::open(1, &logs).await, Door::open(2, &logs).await);
    let client = client(&[&first, &second]);
    let log = client.log("main").unwrap();
    let record = |i: u64| format!("{i} {}", "x".repeat(10_000));
    log.append_batch((0..600).map(|i| record(i).into())).await;
    let mut reader = log.tail(0);
    let mut next = 0;
    let mut first = Some(first);
    while next < 600 {
        let batch = reader.next().await.unwrap().unwrap();
        assert_eq!(batch.first, next);
        for read in &batch.records {
            assert_eq!(read.payload, record(next));
            next += 1;
        }
        if let Some(first) = first.take() {
            first.kill();
        }
    }
}

/// Waits until a reader has come to the tail at this node and waits there.
async fn until_followed(door: &Door) {
    let followed = async {
        while door.trouble.waits.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, followed).await.expect("no reader follows at this node");
}

#[tokio::test]
async fn a_reader_of_an_idle_log_outlives_its_nodes_however_far_apart_they_fail() {
    let logs = Logs::default();
    let doors = [Door::open(1, &logs).await, Door::open(2, &logs).await, Door::open(3, &logs).await];
    let addresses: Vec<_> = doors.iter().map(|d| d.address.to_string()).collect();
    let operation_timeout = Duration::from_secs(1);
    let options = Options { operation_timeout, ..Options::default() };
    let log = Client::with_options(&addresses.join(","), options).unwrap().log("main").unwrap();
    let mut reader = log.tail(0);
    let read = tokio::spawn(async move { reader.next().await });
    let [first, second, third] = doors;
    until_followed(&first).await;
    first.kill();
    until_followed(&second).await;
    // Not to wait for anything: the failures are further apart than the time that the reader has for each of them.
    tokio::time::sleep(operation_timeout + operation_timeout / 2).await;
    second.kill();
    until_followed(&third).await;
    third.client().log("main").unwrap().append("a").await.unwrap();
    assert_eq!(read.await.unwrap().unwrap().unwrap().records[0].payload, "a");
}

#[tokio::test]
async fn a_reader_leaves_a_node_that_is_cut_off_from_the_others() {
    let logs = Logs::default();
    let mut limits = Limits::default();
    limits.check_followed = Duration::from_millis(100);
    let (first, second) = (Door::open_with(1, &logs, limits).await, Door::open(2, &logs).await);
    let mut reader = client(&[&first, &second]).log("main").unwrap().tail(0);
    let read = tokio::spawn(async move { reader.next().await });
    until_followed(&first).await;
    first.trouble.cut.store(true, Ordering::Relaxed);
    second.client().log("main").unwrap().append("a").await.unwrap();
    let read = tokio::time::timeout(PATIENCE, read).await.expect("it stays at the first node");
    assert_eq!(read.unwrap().unwrap().unwrap().records[0].payload, "a");
}

#[tokio::test]
async fn a_deletion_in_doubt_does_not_reach_the_log_that_was_created_since() {
    let logs = Logs::default();
    let (first, second) = (Door::open(1, &logs).await, Door::open(2, &logs).await);
    let other = second.client();
    assert_eq!(other.create_log("x", Default::default()).await, Ok(true));
    first.trouble.mute_deletions.store(true, Ordering::Relaxed);
    let client = client(&[&first, &second]);
    let deletion = tokio::spawn(async move { client.delete_log("x").await });
    while !other.list_logs().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(other.create_log("x", Default::default()).await, Ok(true));
    assert_eq!(other.log("x").unwrap().append("kept").await, Ok(0));
    first.kill();
    let outcome = deletion.await.unwrap();
    assert!(matches!(outcome, Err(Error::Unknown(_))), "{outcome:?}");
    assert_eq!(payloads(&log_of(&logs, "x")), ["kept"]);
}

#[tokio::test]
async fn refusals_carry_outcome_reason_and_advice() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let client = door.client();
    let refusal = Refusal::no(Reason::DiskFull, "not appended: a disk is full", "trim the log");
    *log_of(&logs, "main").refuse.lock().unwrap() = Some(refusal.clone());
    let error = client.log("main").unwrap().append("x").await.unwrap_err();
    assert_eq!(error, Error::DidNotHappen(refusal.failure));
    let doubtful = Refusal::unknown(Reason::Trimmed, "the place it may be in was trimmed", "");
    *log_of(&logs, "main").refuse.lock().unwrap() = Some(doubtful.clone());
    let error = client.log("main").unwrap().append("x").await.unwrap_err();
    assert_eq!(error, Error::Unknown(doubtful.failure));
    assert_eq!(reason(client.drain_node(2).await), Reason::Refused);
    assert_eq!(reason(client.modify("main", "zz", Default::default()).await), Reason::Invalid);
    assert_eq!(reason(client.add_node(4, "nowhere", vec![]).await), Reason::Invalid);
    assert!(client.log("no spaces").is_err());
}

#[tokio::test]
async fn chain_and_cluster_calls_reach_the_node() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let client = door.client();
    assert_eq!(client.create_log("new", Default::default()).await, Ok(true));
    assert_eq!(client.create_log("new", Default::default()).await, Ok(false));
    assert_eq!(client.list_logs().await, Ok(vec!["new".to_owned()]));
    assert_eq!(client.chain("new").await.unwrap().version, 1);
    let spec = proto::LogletSpec { servers: vec![3, 1], sequencer: Some(3), ..Default::default() };
    let chain = client.extend("new", spec).await.unwrap();
    assert!(chain.segments[0].config[0].value.contains("\"sequencer\": [NodeId(3)]"));
    assert_eq!(client.truncate("new").await.unwrap().version, 1);
    assert_eq!(client.status().await.unwrap().node, 1);
    assert!(client.at_node(1).await.unwrap().status().await.unwrap().healthy);
    assert_eq!(reason(client.at_node(2).await.map(|_| ())), Reason::Invalid);
    assert!(client.add_node(4, "10.0.0.4:7400", vec!["log".into()]).await.unwrap().changed);
}

#[tokio::test]
async fn a_cluster_that_is_down_is_reported_in_time_with_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let options = Options { operation_timeout: Duration::from_millis(50), ..Options::default() };
    let client = Client::with_options(&address, options).unwrap();
    let error = client.log("main").unwrap().append("x").await.unwrap_err();
    assert!(matches!(&error, Error::DidNotHappen(f) if f.reason == Reason::Unavailable), "{error}");
    assert!(error.to_string().contains("atoll dev"), "{error}");
    assert_eq!(reason(client.status().await), Reason::Unavailable);
    // A long operation timeout does not delay the error for an address that has never answered.
    let options = Options { first_contact: Duration::from_millis(20), ..Options::default() };
    let client = Client::with_options(&address, options).unwrap();
    assert_eq!(reason(client.log("main").unwrap().append("x").await), Reason::Unavailable);
    assert_eq!(
        reason(client.log("main").unwrap().read(ReadOptions::default()).next().await),
        Reason::Unavailable
    );
}

/// The client has given up on the first attempt and sent the record through another node, where it was appended (X16).
#[tokio::test]
async fn an_append_that_comes_late_is_not_done_again() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let mut bare = LogServiceClient::connect(format!("http://{}", door.address)).await.unwrap();
    let mut append = async |client, floor, known_tail| {
        let records = Some(proto::Records { first_seq: 1, payloads: vec!["x".into()], floor });
        let request = proto::AppendRequest { log: "main".into(), client, records, known_tail };
        bare.append(request).await.unwrap().into_inner().runs[0].first
    };
    assert_eq!(append(8, None, Some(0)).await, 0);
    let retried = append(9, Some(1), None).await;
    assert_eq!(retried, 1);
    // This is the first attempt, which was delayed in a stopped node.
    assert_eq!(append(9, None, Some(1)).await, retried);
    assert_eq!(log_of(&logs, "main").entries().len(), 2);
}

/// Uses the protocol directly, like clients in other languages, without the Rust client.
#[tokio::test]
async fn the_bare_protocol() {
    let logs = Logs::default();
    let door = Door::open(1, &logs).await;
    let mut bare = LogServiceClient::connect(format!("http://{}", door.address)).await.unwrap();

    let records = |first_seq, payloads: &[&'static str]| proto::Records {
        first_seq,
        payloads: payloads.iter().map(|p| (*p).into()).collect(),
        floor: None,
    };
    let unnamed = |p| proto::AppendRequest {
        log: "main".into(),
        client: 0,
        records: Some(records(0, p)),
        known_tail: None,
    };
    assert_eq!(
        bare.append(unnamed(&["a", "b"])).await.unwrap().into_inner().runs,
        [proto::Run { first: 0, count: 2 }]
    );
    bare.append(unnamed(&["c"])).await.unwrap();
    let named: Vec<_> = log_of(&logs, "main").entries().iter().map(|e| e.op.seq).collect();
    assert_eq!(named, [1, 2, 3], "the node gives names in order");
    let status = bare.append(unnamed(&[])).await.unwrap_err();
    assert_eq!(status.metadata().get("atoll-happened").unwrap(), "no");
    assert_eq!(status.metadata().get("atoll-reason").unwrap(), "invalid");

    let open = |client| {
        What::Open(proto::append_stream_request::Open { log: "main".into(), client, known_tail: None })
    };
    let stream = |whats: Vec<What>| {
        tokio_stream::iter(whats.into_iter().map(|what| proto::AppendStreamRequest { what: Some(what) }))
    };
    let whats = vec![
        open(9),
        What::Records(records(1, &["d", "e"])),
        What::Records(records(2, &["again"])),
        What::Records(records(3, &["f"])),
    ];
    let mut replies = bare.append_stream(stream(whats)).await.unwrap().into_inner();
    assert_eq!(replies.message().await.unwrap().unwrap().opened.unwrap().known_tail, 3);
    let mut outcomes = Vec::new();
    while let Some(reply) = replies.message().await.unwrap() {
        outcomes.extend(reply.outcomes);
    }
    assert_eq!(outcomes[0].runs, [proto::Run { first: 3, count: 2 }]);
    assert_eq!(outcomes[1].failed.as_ref().unwrap().reason(), Reason::Invalid);
    assert_eq!(outcomes[2].runs, [proto::Run { first: 5, count: 1 }]);
    assert_eq!(outcomes.len(), 3);

    for bad in [vec![open(0)], vec![What::Records(records(1, &["x"]))], vec![open(9), open(9)]] {
        let mut replies = bare.append_stream(stream(bad)).await.unwrap().into_inner();
        let status = loop {
            match replies.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a broken protocol is an error"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    }
}

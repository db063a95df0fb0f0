//! The door over an engine without a log: order within a session, watches, and misbehaving clients.

use std::io::{Read, Write};

use super::client::{Client, create, receive, send};
use super::served::{ask, door};
use atoll_zookeeper::jute::codes::{ErrorCode, EventType, OpCode};
use atoll_zookeeper::jute::records::RequestHeader;
use atoll_zookeeper::jute::reply::GetDataReply;
use atoll_zookeeper::jute::request::{
    AddWatchRequest, Request, SetDataRequest, SetWatches2Request, SetWatchesRequest, VersionRequest,
    WatchedRequest,
};
use atoll_zookeeper::jute::{Jute, JuteError};
use atoll_zookeeper::{KNOWN_WORDS, Options};

fn get(path: &str, watch: bool) -> Request<'_> {
    Request::GetData(WatchedRequest { path, watch })
}

fn set<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    Request::SetData(SetDataRequest { path, data: Some(data), version: -1 })
}

#[test]
fn pipelined_requests_are_answered_in_order_and_reads_see_the_writes_before_them() {
    let mut c = Client::connect(door(Options::default()));
    assert_eq!(c.create("/a", b"0"), 0);
    let asked: Vec<(i32, Option<String>)> = (0..500)
        .map(|n| {
            if n % 3 == 0 {
                (c.ask(&get("/a", false)), Some(format!("{}", n / 3 * 3)))
            } else {
                (c.ask(&set("/a", format!("{}", n / 3 * 3 + 3).as_bytes())), None)
            }
        })
        .collect();
    for (xid, data) in asked {
        let (err, body) = c.answer(xid);
        assert_eq!(err, 0);
        if let Some(data) = data {
            assert_eq!(GetDataReply::parse(&body).unwrap().data, Some(data.as_bytes()));
        }
    }
}

/// The empty path means the root, as in ZooKeeper, even if the root's data has its own key.
#[test]
fn the_empty_path_reads_the_root() {
    let mut c = Client::connect(door(Options::default()));
    for data in [b"short".to_vec(), vec![7; 5_000]] {
        assert_eq!(c.call(&set("/", &data)).0, 0);
        for path in ["/", ""] {
            let (err, body) = c.call(&get(path, false));
            assert_eq!(
                (err, GetDataReply::parse(&body).unwrap().data),
                (0, Some(data.as_slice())),
                "{path:?}"
            );
        }
    }
}

#[test]
fn watches_fire_once_in_front_of_the_reply_that_shows_the_change() {
    let door = door(Options::default());
    let (mut c, mut other) = (Client::connect(door), Client::connect(door));
    assert_eq!(c.create("/w", b"0"), 0);
    c.call(&get("/w", true));
    other.call(&set("/w", b"1"));
    assert_eq!(c.events, []);
    c.call(&get("/w", false));
    assert_eq!(c.events, [(EventType::NodeDataChanged.number(), "/w".to_owned())]);
    c.events.clear();
    other.call(&set("/w", b"2"));
    assert_eq!(c.told(), [], "once");
    // A failed read sets no watch. Only exists does, on a node that does not exist.
    assert_eq!(c.call(&get("/later", true)).0, ErrorCode::NoNode.number());
    c.call(&Request::Exists(WatchedRequest { path: "/also", watch: true }));
    other.create("/later", b"");
    other.create("/also", b"");
    assert_eq!(c.told(), [(EventType::NodeCreated.number(), "/also".to_owned())]);
    // Events of a client's own writes, too, precede the reply.
    c.call(&get("/w", true));
    c.call(&set("/w", b"3"));
    assert_eq!(c.events.len(), 1);
}

#[test]
fn a_client_that_comes_back_is_told_what_it_missed() {
    let door = door(Options::default());
    let (mut c, mut other) = (Client::connect(door), Client::connect(door));
    for path in ["/same", "/set", "/gone", "/parent"] {
        assert_eq!(c.create(path, b""), 0);
    }
    let (_, body) = c.call(&get("/parent", false));
    let seen = GetDataReply::parse(&body).unwrap().stat.czxid;
    other.call(&set("/set", b"1"));
    other.call(&Request::Delete(VersionRequest { path: "/gone", version: -1 }));
    other.create("/parent/child", b"");
    other.create("/new", b"");
    let mut again = Client::attach(door, c.session, &c.password);
    assert_eq!(again.session, c.session);
    assert!(c.is_ended(), "the session is served by one connection");
    let one_time = SetWatchesRequest {
        relative_zxid: seen,
        data: vec!["/same", "/set", "/gone"],
        exist: vec!["/new", "/not"],
        child: vec!["/parent", "/same"],
    };
    let brought = SetWatches2Request { one_time, persistent: vec!["/same"], recursive: vec!["/not"] };
    again.call(&Request::SetWatches2(brought));
    let mut events = std::mem::take(&mut again.events);
    events.sort();
    let event = |kind: EventType, path: &str| (kind.number(), path.to_owned());
    let mut missed = vec![
        event(EventType::NodeDataChanged, "/set"),
        event(EventType::NodeDeleted, "/gone"),
        event(EventType::NodeCreated, "/new"),
        event(EventType::NodeChildrenChanged, "/parent"),
    ];
    missed.sort();
    assert_eq!(events, missed);
    // Nodes whose changes it did not miss are still watched.
    other.call(&set("/same", b"1"));
    other.create("/not", b"");
    other.create("/not/below", b"");
    let told = again.told();
    assert_eq!(
        told,
        [
            event(EventType::NodeDataChanged, "/same"),
            event(EventType::NodeCreated, "/not"),
            event(EventType::NodeCreated, "/not/below")
        ]
    );
}

#[test]
fn a_session_that_is_gone_is_told_so() {
    let door = door(Options::default());
    let c = Client::connect(door);
    let mut forged = Client::attach(door, c.session, &[1; 16]);
    assert_eq!(forged.session, 0);
    assert!(forged.is_ended());
}

#[test]
fn what_makes_no_sense_ends_its_connection_and_no_other() {
    let door = door(Options { max_buffer_bytes: 10_000, ..Options::default() });
    let mut good = Client::connect(door);
    assert_eq!(good.create("/a", b""), 0);
    // Frames that are too long or have a negative length, and malformed first messages.
    let long = [10_001_i32.to_be_bytes().as_slice(), &[0; 100]].concat();
    let negative = (-5_i32).to_be_bytes().to_vec();
    for bytes in [long, negative] {
        let mut bad = Client::socket(door);
        send(&mut bad, &handshake());
        receive(&mut bad).unwrap();
        bad.write_all(&bytes).unwrap();
        assert_eq!(receive(&mut bad), None);
    }
    for first in [vec![0; 4], vec![0xff; 64], b"nope".to_vec()] {
        let mut bad = Client::socket(door);
        bad.write_all(&first).unwrap();
        bad.shutdown(std::net::Shutdown::Write).unwrap();
        let mut told = Vec::new();
        let _ = bad.read_to_end(&mut told);
        assert!(
            told.is_empty() || String::from_utf8_lossy(&told).contains("not a known command"),
            "{told:?}"
        );
    }
    // A malformed body is refused with an error code, and the connection continues.
    let mut bad = Client::socket(door);
    send(&mut bad, &handshake());
    receive(&mut bad).unwrap();
    for _ in 0..2 {
        let mut frame = RequestHeader { xid: 1, op: OpCode::Create.number() }.to_vec();
        frame.extend_from_slice(&[0xff; 10]);
        send(&mut bad, &frame);
        let reply = receive(&mut bad).unwrap();
        assert_eq!(reply[12..16], ErrorCode::MarshallingError.number().to_be_bytes());
    }
    assert_eq!(good.call(&get("/a", false)).0, 0);
}

/// As Apache ZooKeeper 3.9.5 does, byte for byte. Requests before the unknown one are answered, those behind it are not.
#[test]
fn an_unknown_operation_ends_the_connection_after_its_answer() {
    let door = door(Options::default());
    for op in [4711, OpCode::Notification.number(), OpCode::Check.number()] {
        let mut bad = Client::socket(door);
        send(&mut bad, &handshake());
        receive(&mut bad).unwrap();
        for (xid, op) in [(1, OpCode::Sync.number()), (2, op), (3, OpCode::Ping.number())] {
            let mut frame = RequestHeader { xid, op }.to_vec();
            "/".write(&mut frame);
            send(&mut bad, &frame);
        }
        assert_eq!(receive(&mut bad).unwrap()[..4], 1_i32.to_be_bytes(), "{op}");
        let mut rest = Vec::new();
        bad.read_to_end(&mut rest).unwrap();
        let expected = [
            &16_i32.to_be_bytes()[..],
            &2_i32.to_be_bytes(),
            &(-1_i64).to_be_bytes(),
            &(-6_i32).to_be_bytes(),
        ];
        assert_eq!(rest, expected.concat(), "{op}");
    }
}

fn handshake() -> Vec<u8> {
    use atoll_zookeeper::jute::records::ConnectRequest;
    ConnectRequest { read_only: None, ..ConnectRequest::first(10_000) }.to_vec()
}

#[test]
fn a_client_of_long_ago_gets_no_byte_that_it_does_not_know() -> Result<(), JuteError> {
    use atoll_zookeeper::jute::records::ConnectResponse;
    let mut stream = Client::socket(door(Options::default()));
    send(&mut stream, &handshake());
    let answer = receive(&mut stream).unwrap();
    assert_eq!(ConnectResponse::parse(&answer)?.read_only, None);
    assert_eq!(answer.len(), 36);
    Ok(())
}

#[test]
fn too_many_connections_are_refused() {
    let door = door(Options { max_connections_of_address: 2, ..Options::default() });
    let (_a, _b) = (Client::connect(door), Client::connect(door));
    let mut third = Client::socket(door);
    assert_eq!(receive(&mut third), None);
}

#[test]
fn a_client_that_never_reads_does_not_stop_the_others() {
    let door = door(Options { max_buffer_bytes: 1 << 20, ..Options::default() });
    let mut good = Client::connect(door);
    assert_eq!(good.create("/large", &vec![7; 500_000]), 0);
    let mut deaf = Client::socket(door);
    send(&mut deaf, &handshake());
    receive(&mut deaf).unwrap();
    let mut frame = RequestHeader { xid: 1, op: OpCode::GetData.number() }.to_vec();
    get("/large", false).write(&mut frame);
    let mut watch = RequestHeader { xid: 2, op: OpCode::AddWatch.number() }.to_vec();
    Request::AddWatch(AddWatchRequest { path: "/", mode: 1 }).write(&mut watch);
    send(&mut deaf, &watch);
    for _ in 0..200 {
        send(&mut deaf, &frame);
    }
    // The 100 MB that it requested are held nowhere, and its events only up to their limit.
    for n in 0..2_000 {
        assert_eq!(good.call(&create(&format!("/n{n}"), b"")).0, 0);
    }
    let mut word = Client::socket(door);
    word.write_all(b"mntr").unwrap();
    let mut told = String::new();
    word.read_to_string(&mut told).unwrap();
    assert!(
        told.contains("zk_num_alive_connections\t2") || told.contains("zk_num_alive_connections\t3"),
        "{told}"
    );
}

#[test]
fn words_are_answered_and_those_that_are_not_allowed_are_refused() {
    let words = [
        "conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "isro", "mntr", "ruok", "srst", "srvr",
        "stat", "wchs",
    ];
    let door = door(Options { words: words.map(str::to_owned).to_vec(), ..Options::default() });
    let ask = |word: &str| ask(door, word);
    assert_eq!(ask("ruok"), "imok");
    assert_eq!(ask("isro"), "rw");
    assert!(ask("srvr").contains("Mode: standalone") && ask("stat").contains("Clients:"));
    assert!(ask("wchp").contains("not in the whitelist"));
    for word in ["conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "mntr", "srst", "wchs"] {
        assert!(!ask(word).contains("not"), "{word}");
    }
}

/// Returns the keys of a line of `cons`, with those values that do not depend on time.
fn keys_of(line: &str) -> (String, Vec<(String, String)>) {
    let (head, rest) = line.split_once('(').unwrap();
    let fields = rest.strip_suffix(')').unwrap().split(',').map(|field| field.split_once('=').unwrap());
    (head.to_owned(), fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// The lines have the fields of Apache ZooKeeper 3.9.5, in its order.
#[test]
fn cons_and_stat_list_clients_as_zookeeper_does() {
    let door = door(Options::default());
    let mut client = Client::connect(door);
    client.create("/a", b"x");
    assert_eq!(client.call(&get("/a", false)).0, 0);
    let line = |word: &str| {
        let told = ask(door, word);
        told.lines().find(|line| line.contains("[1](")).unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    let (head, fields) = keys_of(&line("cons"));
    assert!(head.starts_with(" /127.0.0.1:"), "{head}");
    let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "queued", "recved", "sent", "sid", "lop", "est", "to", "lcxid", "lzxid", "lresp", "llat", "minlat",
        "avglat", "maxlat",
    ];
    assert_eq!(names, expected);
    let value = |name: &str| fields.iter().find(|(n, _)| n == name).unwrap().1.as_str();
    assert_eq!((value("queued"), value("recved"), value("sent")), ("0", "3", "3"));
    assert_eq!((value("lop"), value("to"), value("lcxid")), ("GETD", "10000", "0x2"));
    assert!(value("lzxid").starts_with("0x1"), "{}", value("lzxid"));
    let (_, brief) = keys_of(&line("stat"));
    assert_eq!(brief.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["queued", "recved", "sent"]);
    // The client of a word has no session.
    assert!(ask(door, "cons").lines().any(|line| line.ends_with("[0](queued=0,recved=1,sent=0)")));
    ask(door, "crst");
    let (_, fields) = keys_of(&line("cons"));
    let of = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    assert_eq!((of("lop"), of("lcxid"), of("lzxid")), (Some("NA"), None, Some("0xffffffffffffffff")));
}

#[test]
fn conf_envi_and_gtmk_have_the_keys_of_zookeeper() {
    let data_folder = Some("/data/of/this/node".into());
    let door = door(Options { data_folder, ..Options::default() });
    let keys = |word: &str| {
        let told = ask(door, word);
        let keys = told.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.to_owned());
        keys.collect::<Vec<_>>()
    };
    let of_zookeeper = [
        "clientPort",
        "secureClientPort",
        "dataDir",
        "dataDirSize",
        "dataLogDir",
        "dataLogSize",
        "tickTime",
        "maxClientCnxns",
        "minSessionTimeout",
        "maxSessionTimeout",
        "clientPortListenBacklog",
        "serverId",
    ];
    assert_eq!(keys("conf")[..of_zookeeper.len()], of_zookeeper);
    let told = ask(door, "conf");
    assert!(
        told.contains(&format!("clientPort={}\n", door.port())) && told.contains("=/data/of/this/node\n")
    );
    let of_system = [
        "zookeeper.version",
        "host.name",
        "java.version",
        "java.vendor",
        "java.home",
        "java.class.path",
        "java.library.path",
        "java.io.tmpdir",
        "java.compiler",
        "os.name",
        "os.arch",
        "os.version",
        "user.name",
        "user.home",
        "user.dir",
        "os.memory.free",
        "os.memory.max",
        "os.memory.total",
    ];
    assert_eq!(keys("envi"), of_system);
    assert_eq!(ask(door, "gtmk"), "306");
    let mut stream = Client::socket(door);
    stream.write_all(b"stmk").unwrap();
    stream.write_all(&18_i64.to_be_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    assert_eq!((told.as_str(), ask(door, "gtmk").as_str()), ("18", "18"));
}

/// As in ZooKeeper, whose clients look for a node that can write with `isro` if nodes may be read-only.
#[test]
fn srvr_is_the_only_word_by_default_and_isro_where_nodes_may_be_read_only() {
    let answered = |read_only_mode| {
        let words = Options::default().words;
        // Twice, so that the door does not take it for the default of tests.
        let words = words.iter().cycle().take(2 * words.len()).cloned().collect();
        let door = door(Options { words, read_only_mode, ..Options::default() });
        KNOWN_WORDS
            .into_iter()
            .filter(|word| !ask(door, word).contains("not in the whitelist"))
            .collect::<Vec<_>>()
    };
    assert_eq!(answered(false), ["srvr"]);
    assert_eq!(answered(true), ["isro", "srvr"]);
}

/// Memory for events is limited: a client that reads nothing is cut off, and the client that causes the events does not wait for
/// it.
#[test]
fn a_client_that_never_reads_its_events_is_cut_off() {
    const EVENTS: usize = 10_000;
    let door = door(Options::default());
    let (mut deaf, mut busy) = (Client::connect(door), Client::connect(door));
    let path = format!("/{}", "n".repeat(4_000));
    assert_eq!(busy.create(&path, b""), 0);
    let watch = Request::AddWatch(AddWatchRequest { path: "/", mode: 1 });
    assert_eq!(deaf.call(&watch).0, 0);
    for _ in 0..EVENTS / 100 {
        let asked: Vec<i32> = (0..100).map(|_| busy.ask(&set(&path, b"x"))).collect();
        asked.into_iter().for_each(|xid| assert_eq!(busy.answer(xid).0, 0));
    }
    let heard = deaf.frames_until_the_end();
    assert!(heard < EVENTS, "{heard} events waited for a client that read none of them");
}

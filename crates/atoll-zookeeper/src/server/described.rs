//! What the words `cons`, `stat`, `conf` and `envi` tell about clients, settings and the system, in ZooKeeper's exact form: programs read
//! these lines.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::figures::ConnectionFigures;
use super::words::{Capped, VERSION, lines};
use super::{Shared, latency, monitor};
use crate::jute::records::Id;
use crate::tree::read;
use crate::{acl, path};

/// What ZooKeeper says for a property of its Java machine that has no value.
const NONE: &str = "<NA>";
/// Longest list of connections: that of about 30,000 with sessions.
const MAX_CONNECTIONS_BYTES: usize = 8 << 20;

/// Which lines of connections are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// Those of `stat`.
    Brief,
    /// Those of `cons`, with the session and its latencies.
    Full,
}

/// Returns a line for each connection, and an empty one.
pub(super) fn connections(shared: &Shared, detail: Detail) -> String {
    let mut text = Capped::with_at_most(MAX_CONNECTIONS_BYTES);
    // Not under the lock, which the node's thread needs to accept a client.
    let all = shared.all_connections();
    let whole = all.iter().take_while(|c| text.line(&line_of(c, detail))).count();
    let mut out = text.end(whole, all.len(), "connections");
    out.push('\n');
    out
}

fn line_of(connection: &Arc<ConnectionFigures>, detail: Detail) -> String {
    let session = connection.session.load(Ordering::Relaxed);
    // ZooKeeper's interest in the socket: the client of a word sends nothing more.
    let interest = u8::from(session != 0);
    let mut line = format!(
        " /{}[{interest}](queued={},recved={},sent={}",
        connection.peer,
        connection.outstanding.load(Ordering::Relaxed),
        connection.received.get(),
        connection.sent.get(),
    );
    if detail == Detail::Full && session != 0 {
        add_session(&mut line, connection, session);
    }
    line.push(')');
    line
}

fn add_session(line: &mut String, connection: &ConnectionFigures, session: i64) {
    let last = &connection.last;
    let taken = connection.latency.summary();
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        ",sid={session:#x},lop={},est={},to={}",
        last.operation(),
        monitor::epoch_ms(connection.since),
        connection.timeout_ms.load(Ordering::Relaxed),
    );
    if let Some(cxid) = last.cxid() {
        let _ = write!(line, ",lcxid={cxid:#x}");
    }
    let whole_ms = |us: u64| us / 1_000;
    let _ = write!(
        line,
        ",lzxid={:#x},lresp={},llat={},minlat={},avglat={},maxlat={}",
        last.zxid(),
        last.at_ms(),
        whole_ms(connection.latency.last_us()),
        whole_ms(taken.least_us),
        whole_ms(taken.sum_us / taken.count.max(1)),
        whole_ms(taken.most_us),
    );
}

/// Returns the answer to `srvr` or, with the clients, to `stat`.
pub(super) fn server(shared: &Shared, with_clients: bool) -> String {
    let (figures, counters, latency) = (&shared.figures, monitor::counters(shared), monitor::latency(shared));
    let mut out = String::new();
    lines!(out, "Zookeeper version: {VERSION}";);
    if with_clients {
        lines!(out, "Clients:";);
        out.push_str(&connections(shared, Detail::Brief));
    }
    let average = (latency.average_ms() * 10_000.0).round() / 10_000.0;
    lines!(
        out,
        // Java always prints a digit behind the point.
        "Latency min/avg/max: {:.0}/{average:?}/{:.0}", latency::ms(latency.least_us), latency::ms(latency.most_us);
        "Received: {}", figures.received.get();
        "Sent: {}", figures.sent.get();
        "Connections: {}", shared.connections().len();
        "Outstanding: {}", figures.outstanding.load(Ordering::Relaxed);
        "Zxid: {:#x}", counters.zxid;
        "Mode: {}", monitor::state(shared);
        "Node count: {}", counters.nodes;
    );
    out
}

/// Returns the options in the form NAME=VALUE, under ZooKeeper's names and in its order, and the members if there are others. Those of its
/// settings that have no meaning here are missing: `initLimit`, `syncLimit` and `electionAlg`. Reads the disk.
pub(crate) fn configuration(shared: &Shared) -> String {
    let (options, mut out) = (&shared.options, String::new());
    let ports = shared.ports.get().copied().unwrap_or_default();
    let folder = options.data_folder.as_ref().map_or(NONE.to_owned(), |folder| folder.display().to_string());
    let stored = shared.engine.health().store_bytes;
    let port = |port: Option<u16>| port.map_or(-1, i32::from);
    lines!(
        out,
        "clientPort={}", port(ports.plain);
        "secureClientPort={}", port(ports.secure);
        "dataDir={folder}";
        "dataDirSize={stored}";
        "dataLogDir={folder}";
        "dataLogSize={stored}";
        "tickTime={}", options.tick_ms;
        "maxClientCnxns={}", options.max_connections_of_address;
        "minSessionTimeout={}", options.min_session_timeout_ms;
        "maxSessionTimeout={}", options.max_session_timeout_ms;
        // The system's own.
        "clientPortListenBacklog=-1";
        "serverId={}", shared.engine.proposer().node.0;
    );
    if shared.cluster.members() > 1 {
        add_members(shared, &mut out);
    }
    lines!(
        out,
        "maxCnxns={}", options.max_connections;
        "globalOutstandingLimit={}", options.max_outstanding_of_all;
        "jute.maxbuffer={}", options.max_buffer_bytes;
    );
    out
}

/// Adds what only a node among others has.
fn add_members(shared: &Shared, out: &mut String) {
    let peer = shared.cluster.addresses().map(|addresses| addresses.peer).unwrap_or_default();
    // Atoll uses one port between nodes, where ZooKeeper has two.
    let port = peer.rsplit_once(':').map_or("-1", |(_, port)| port);
    let members = read::data(&shared.engine.view(), path::CONFIG, &[Id { scheme: acl::SUPER, id: "" }]);
    let members = members.ok().and_then(|(_, data)| data).unwrap_or_default();
    lines!(
        out,
        "electionPort={port}";
        "quorumPort={port}";
        "peerType=0";
        "membership: ";
        "{}", String::from_utf8_lossy(&members).trim_end();
    );
}

/// Returns the answer to `envi`. Nothing here runs on Java, so its properties have no value.
pub(crate) fn environment() -> Vec<(&'static str, String)> {
    let file = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned());
    let variable = |name: &str| std::env::var(name).ok();
    let memory = file("/proc/meminfo").unwrap_or_default();
    let megabytes = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.map(|kb| format!("{}MB", kb / 1024))
    };
    let os = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Mac OS X",
        other => other,
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        other => other,
    };
    let folder = |path: std::path::PathBuf| path.display().to_string();
    let found = [
        ("zookeeper.version", Some(VERSION.to_owned())),
        ("host.name", file("/proc/sys/kernel/hostname")),
        ("java.version", None),
        ("java.vendor", None),
        ("java.home", None),
        ("java.class.path", None),
        ("java.library.path", None),
        ("java.io.tmpdir", Some(folder(std::env::temp_dir()))),
        ("java.compiler", None),
        ("os.name", Some(os.to_owned())),
        ("os.arch", Some(arch.to_owned())),
        ("os.version", file("/proc/sys/kernel/osrelease")),
        ("user.name", variable("USER").or_else(|| variable("LOGNAME"))),
        ("user.home", variable("HOME")),
        ("user.dir", std::env::current_dir().ok().map(folder)),
        ("os.memory.free", megabytes("MemAvailable:")),
        ("os.memory.max", megabytes("MemTotal:")),
        ("os.memory.total", megabytes("MemTotal:")),
    ];
    found.into_iter().map(|(name, value)| (name, value.unwrap_or_else(|| NONE.to_owned()))).collect()
}

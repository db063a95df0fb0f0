//! Compares the znodes of both sides.

use std::collections::BTreeSet;

use atoll_zookeeper::client::Client;
use atoll_zookeeper::path;

use super::super::CliError;
use super::import::Places;
use super::report::Report;
use super::walk::{Found, Walk, Znode, read};

/// Walks both sides and notes the differences.
pub async fn run(
    from: &mut Client,
    to: &mut Client,
    places: &Places,
    report: &mut Report,
) -> Result<(), CliError> {
    let mut walk = Walk::new(from, &places.chroot);
    loop {
        let found = walk.next().await?;
        if found.is_empty() {
            return Ok(());
        }
        let nodes: Vec<Znode> = found
            .into_iter()
            .filter_map(|f| if let Found::Node(node) = f { Some(node) } else { None })
            .collect();
        let paths: Vec<String> = nodes.iter().map(|node| places.here(&node.path)).collect();
        let (here, _) = read(to, &paths).await?;
        for ((there, path), here) in nodes.iter().zip(paths).zip(here) {
            report.compared += 1;
            match here {
                Found::Node(here) => differences(there, &here, path, report),
                Found::Gone => report.differs(path, "is missing"),
                Found::Ephemeral { .. } => report.differs(path, "is an ephemeral here"),
                Found::LeftOut { why, .. } => report.differs(path, &format!("cannot be compared: {why}")),
            }
        }
        report.bar.inc(nodes.len() as u64);
    }
}

fn differences(there: &Znode, here: &Znode, path: String, report: &mut Report) {
    let (a, b) = (&there.stat, &here.stat);
    let fields = [
        ("data", there.data == here.data),
        ("list", there.acl == here.acl),
        ("czxid", a.czxid == b.czxid),
        ("mzxid", a.mzxid == b.mzxid),
        ("pzxid", a.pzxid == b.pzxid),
        ("ctime", a.ctime == b.ctime),
        ("mtime", a.mtime == b.mtime),
        ("version", a.version == b.version),
        ("children ever made", there.created == here.created),
        ("aversion", a.aversion == b.aversion),
    ];
    let differing: Vec<&str> = fields.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
    let theirs: BTreeSet<&String> = there.children.iter().collect();
    let more = here.children.iter().filter(|name| !theirs.contains(name));
    // Children that are missing in Atoll are found by their own paths.
    for name in more.filter(|name| !(here.path == path::ROOT && *name == "zookeeper")) {
        report.differs(super::walk::child(&path, name), "is here only");
    }
    if !differing.is_empty() {
        report.differs(path, &format!("differs in {}", differing.join(", ")));
    }
}

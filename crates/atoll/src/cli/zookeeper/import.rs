//! `atoll zookeeper import`: reads one batch of znodes while the previous one is written.

use std::time::Duration;

use atoll_client::Reason;
use atoll_zookeeper::client::{Client, ClientOptions};
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::reply::{CountReply, GetChildren2Reply, GetDataReply, ImportReply};
use atoll_zookeeper::jute::request::{ImportRequest, PathRequest, Request, WatchedRequest};
use atoll_zookeeper::path;

use super::super::{CliError, Common};
use super::report::Report;
use super::walk::{Found, Walk, Znode};
use super::{client_error, code_words, compare, did_not_happen, quotas};

/// The addresses of the first nodes of `atoll dev`.
const DEV_ADDRESSES: &str = "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183,127.0.0.1:2184,127.0.0.1:2185";
/// Maximum number of nodes and bytes in one command.
const BATCH_NODES: usize = 200;
const BATCH_BYTES: usize = 256 * 1024;
/// Data that not every setting allows.
const LONG_BYTES: usize = 1_000_000;

/// Arguments of `atoll zookeeper import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// The ensemble to read; if one server fails, the next is tried
    #[arg(long, value_name = "HOST:PORT,...", required = true, value_delimiter = ',')]
    from: Vec<String>,
    /// Where Atoll listens for ZooKeeper clients [default: where `atoll dev` does]
    #[arg(long, env = "ATOLL_ZOOKEEPER", value_name = "HOST:PORT,...", value_delimiter = ',')]
    to: Vec<String>,
    /// Import only this node of the ensemble and everything below it
    #[arg(long, value_name = "PATH", default_value = "/")]
    chroot: String,
    /// Import to this path; its parent must exist [default: the same path]
    #[arg(long, value_name = "PATH")]
    under: Option<String>,
    /// The identity to use on both sides; repeatable. Atoll requires its superuser
    #[arg(long, value_name = "SCHEME:SECRET", value_parser = auth)]
    auth: Vec<(String, String)>,
    /// Replace existing nodes that differ; also continues an import that was interrupted
    #[arg(long)]
    overwrite: bool,
    /// Skip the comparison afterwards
    #[arg(long)]
    no_compare: bool,
    /// Only compare; write nothing
    #[arg(long, conflicts_with_all = ["overwrite", "no_compare"])]
    compare_only: bool,
}

fn auth(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((scheme, secret)) if !scheme.is_empty() => Ok((scheme.to_owned(), secret.to_owned())),
        _ => Err("SCHEME:SECRET is wanted, digest:user:password say".to_owned()),
    }
}

/// The source and the destination of an import, within the trees.
pub struct Places {
    pub chroot: String,
    pub under: String,
}

impl Places {
    fn new(args: &ImportArgs) -> Result<Places, CliError> {
        let places = Places {
            chroot: args.chroot.clone(),
            under: args.under.clone().unwrap_or_else(|| args.chroot.clone()),
        };
        for (flag, given) in [("--chroot", &places.chroot), ("--under", &places.under)] {
            if !path::is_valid(given) || path::is_within(given, path::SYSTEM) {
                let words = format!("{flag} {given}: expected a path like /a/b, outside of /zookeeper");
                return Err(CliError::Usage(words));
            }
        }
        Ok(places)
    }

    /// Returns the path in Atoll for a node of the ensemble.
    pub fn here(&self, there: &str) -> String {
        let chroot = if self.chroot == path::ROOT { "" } else { &self.chroot };
        let under = if self.under == path::ROOT { "" } else { &self.under };
        match there.strip_prefix(chroot).unwrap_or_default() {
            "" | "/" => self.under.clone(),
            below => format!("{under}{below}"),
        }
    }
}

/// Runs `atoll zookeeper import`.
pub async fn run(common: &Common, args: &ImportArgs) -> Result<(), CliError> {
    let places = Places::new(args)?;
    let to: Vec<String> = if args.to.is_empty() {
        DEV_ADDRESSES.split(',').map(str::to_owned).collect()
    } else {
        args.to.clone()
    };
    let client = |servers: &[String]| {
        let within = common.timeout.max(Duration::from_secs(1));
        Client::new(ClientOptions { servers: servers.to_vec(), auth: args.auth.clone(), within })
    };
    let (mut source, mut target) = (client(&args.from), client(&to));
    let mut report = Report::new();
    let total = total(&mut source, &places.chroot).await?;
    if !args.compare_only {
        report.begin("imported", total);
        let mut import = Import { to: &mut target, places: &places, args, report: &mut report, root: None };
        import.run(&mut source).await?;
        quotas::import(&mut source, &mut target, &places, args.overwrite, &mut report).await?;
        report.imported_s = Some(report.seconds());
    }
    if !args.no_compare {
        report.begin("compared", total);
        compare::run(&mut source, &mut target, &places, &mut report).await?;
        quotas::compare(&mut source, &mut target, &places, &mut report).await?;
        report.compared_s = Some(report.seconds());
    }
    tokio::join!(source.close(), target.close());
    report.print(common, &args.from.join(","), &to.join(","))
}

/// Returns how many nodes there are to read, if the server can report it. Fails if there are none.
async fn total(source: &mut Client, top: &str) -> Result<Option<u64>, CliError> {
    let asked = [
        Request::Exists(WatchedRequest { path: top, watch: false }),
        // Servers before 3.6 do not support this request.
        Request::GetAllChildrenNumber(PathRequest { path: top }),
    ];
    let next = "see whether --from names servers of the ensemble, and whether they serve";
    let replies = source.calls(&asked[..1]).await.map_err(|e| client_error(e, next))?;
    match replies.first().and_then(|reply| ErrorCode::of(reply.err)) {
        Some(ErrorCode::NoNode) => {
            let words = format!("the ensemble has no node {top}");
            return Err(did_not_happen(Reason::Refused, words, "look at --chroot"));
        }
        Some(code) => return Err(refused(&format!("reading {top}"), code.number())),
        None => {}
    }
    let replies = source.calls(&asked[1..]).await.map_err(|e| client_error(e, next))?;
    let counted = replies.first().filter(|r| r.err == 0).and_then(|r| CountReply::parse(&r.body).ok());
    Ok(counted.and_then(|c| u64::try_from(c.total).ok()).map(|below| below + 1))
}

pub fn refused(what: &str, err: i32) -> CliError {
    let (message, next) = match ErrorCode::of(err) {
        Some(ErrorCode::NoAuth) => (
            format!("{what}: not allowed to this client"),
            "pass --auth; Atoll lets only its superuser import (zookeeper.super_digest)",
        ),
        Some(ErrorCode::NodeExists) => (
            format!("{what}: a node was created there in the meantime, and differs"),
            "see who writes there, or run this again with --overwrite",
        ),
        Some(ErrorCode::NoNode) => (
            format!("{what}: the parent does not exist"),
            "create the parent of --under first, and let nobody delete nodes here in the meantime",
        ),
        Some(ErrorCode::Unimplemented) => {
            (format!("{what}: the server does not know imports"), "--to must name nodes of Atoll")
        }
        _ => (format!("{what}: {}", code_words(err)), "see the log of the node"),
    };
    did_not_happen(Reason::Refused, message, next)
}

/// An import in progress.
struct Import<'a> {
    to: &'a mut Client,
    places: &'a Places,
    args: &'a ImportArgs,
    report: &'a mut Report,
    /// The root is written last, because its access control list may take permissions from this client that it needs for the other nodes.
    root: Option<Znode>,
}

impl Import<'_> {
    async fn run(&mut self, source: &mut Client) -> Result<(), CliError> {
        self.look_before().await?;
        let mut walk = Walk::new(source, &self.places.chroot);
        let mut batch: Vec<Znode> = Vec::new();
        let mut ended = false;
        while !(ended && batch.is_empty()) {
            let full = ended
                || batch.len() >= BATCH_NODES
                || batch.iter().map(Znode::bytes).sum::<usize>() >= BATCH_BYTES;
            let newest = walk.newest;
            let sending = if full { std::mem::take(&mut batch) } else { Vec::new() };
            let (sent, found) = tokio::join!(self.send(&sending, newest, self.args.overwrite), async {
                if ended { Ok(Vec::new()) } else { walk.next().await }
            });
            sent?;
            let found = found?;
            ended = found.is_empty();
            found.into_iter().for_each(|found| self.take(found, &mut batch));
        }
        if let Some(root) = self.root.take() {
            self.send(&[root], walk.newest, true).await?;
        }
        Ok(())
    }

    fn take(&mut self, found: Found, batch: &mut Vec<Znode>) {
        match found {
            Found::Node(node) if self.places.here(&node.path) == path::ROOT => self.root = Some(node),
            Found::Node(node) => batch.push(node),
            Found::Ephemeral { path, owner } => self.report.ephemerals.push((path, owner)),
            Found::LeftOut { path, why } => self.report.left_out.push((path, why)),
            Found::Gone => {}
        }
    }

    /// Checks that the destination is empty, unless it may be replaced, and that this client is allowed to import.
    async fn look_before(&mut self) -> Result<(), CliError> {
        let under = self.places.under.as_str();
        let watched = WatchedRequest { path: under, watch: false };
        let asked = [Request::GetData(watched), Request::GetChildren2(watched)];
        let next = "see whether --to names nodes of Atoll, and whether they serve";
        let replies = self.to.calls(&asked).await.map_err(|e| client_error(e, next))?;
        if let Some(failed) = replies.iter().find(|reply| reply.err != 0) {
            if ErrorCode::of(failed.err) != Some(ErrorCode::NoNode) {
                return Err(refused(&format!("reading {under} here"), failed.err));
            }
        } else if !self.args.overwrite {
            let told = |_| did_not_happen(Reason::Refused, "Atoll's answer cannot be read", "check --to");
            let data = GetDataReply::parse(&replies[0].body).map_err(told)?;
            let children = GetChildren2Reply::parse(&replies[1].body).map_err(told)?;
            let there = children.names.iter().find(|name| **name != "zookeeper");
            let touched = data.stat.version != 0 || data.stat.aversion != 0;
            let what = match there {
                Some(name) => Some(super::walk::child(under, name)),
                None if under != path::ROOT || touched => Some(under.to_owned()),
                None => None,
            };
            if let Some(what) = what {
                let next = "pass --overwrite to replace what differs, or choose another place with --under";
                return Err(did_not_happen(Reason::Conflict, format!("{what} is here already"), next));
            }
        }
        self.send_command(ImportRequest { newest: 0, replace: false, nodes: Vec::new() }, "importing")
            .await?;
        Ok(())
    }

    /// Sends nodes in as few commands as possible.
    async fn send(&mut self, nodes: &[Znode], newest: i64, replace: bool) -> Result<(), CliError> {
        let mut rest = nodes;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(BATCH_NODES).take_while(|node| {
                bytes += node.bytes();
                bytes <= BATCH_BYTES
            });
            // A node that is longer than that is sent alone.
            let (now, later) = rest.split_at(fits.count().max(1));
            let paths: Vec<String> = now.iter().map(|node| self.places.here(&node.path)).collect();
            let counted = |node: &Znode| node.path != self.places.chroot;
            let nodes =
                now.iter().zip(&paths).map(|(node, path)| node.to_import(path, counted(node))).collect();
            let what = format!("importing {}", paths.first().map_or("", String::as_str));
            let done = self.send_command(ImportRequest { newest, replace, nodes }, &what).await?;
            let count = |n: i32| u64::try_from(n).unwrap_or(0);
            self.report.made += count(done.made);
            self.report.replaced += count(done.replaced);
            self.report.same += count(done.same);
            self.report.nodes += now.len() as u64;
            self.report.bytes +=
                now.iter().map(|n| n.data.as_ref().map_or(0, |d| d.len() as u64)).sum::<u64>();
            self.report.bar.inc(now.len() as u64);
            rest = later;
        }
        Ok(())
    }

    /// Sends a command. It is safe to send it again after an unknown outcome, because nodes that are already right count as such.
    async fn send_command(&mut self, asked: ImportRequest<'_>, what: &str) -> Result<ImportReply, CliError> {
        let bytes: usize = asked.nodes.iter().map(|node| node.data.map_or(0, <[u8]>::len)).sum();
        // Atoll ends the connection at a longer frame.
        let next = match bytes > LONG_BYTES {
            true => {
                "see whether zookeeper.max_frame_bytes allows so much data, then run this again with --overwrite"
            }
            false => "see `atoll status`, then run this again with --overwrite",
        };
        let reply = self.to.call(Request::Import(asked)).await.map_err(|e| client_error(e, next))?;
        if reply.err != 0 {
            return Err(refused(what, reply.err));
        }
        ImportReply::parse(&reply.body).map_err(|e| {
            did_not_happen(Reason::Refused, format!("{what}: {e}"), "--to must name nodes of Atoll")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (chroot, under, there, here) in [
            ("/", "/", "/", "/"),
            ("/", "/", "/a/b", "/a/b"),
            ("/", "/x", "/", "/x"),
            ("/", "/x", "/a", "/x/a"),
            ("/a", "/", "/a", "/"),
            ("/a", "/", "/a/b", "/b"),
            ("/a", "/x/y", "/a/b", "/x/y/b"),
        ] {
            let places = Places { chroot: chroot.to_owned(), under: under.to_owned() };
            assert_eq!(places.here(there), here, "{chroot} {under} {there}");
        }
    }
}

//! Walks the znodes of an ensemble, parents before their children, a batch at a time.

use std::collections::BTreeSet;

use atoll_zookeeper::acl::MAX_ENTRIES;
use atoll_zookeeper::client::{Client, Reply};
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::records::{Acl, Id, Stat};
use atoll_zookeeper::jute::reply::{GetAclReply, GetChildren2Reply, GetDataReply};
use atoll_zookeeper::jute::request::{ImportNode, PathRequest, Request, WatchedRequest};
use atoll_zookeeper::jute::{Jute, JuteError};
use atoll_zookeeper::path;
use atoll_zookeeper::tree::node::{Lifetime, MAX_TTL_MS};
use bytes::Bytes;

use super::super::CliError;
use super::{client_error, code_words};

/// Number of nodes that are requested at once.
const AT_ONCE: usize = 32;
/// Longest node that can be imported with the largest `zookeeper.max_frame_bytes`, with its path and its access control list, in bytes.
const MAX_NODE_BYTES: usize = 16 * 1024 * 1024;
/// Number of requests for one node.
const REQUESTS: usize = 3;

/// A znode as a client sees it.
#[derive(Clone, Debug)]
pub struct Znode {
    pub path: String,
    pub data: Option<Bytes>,
    pub acl: Vec<(i32, String, String)>,
    pub stat: Stat,
    /// Number of children that were ever created, from which `cversion` is computed.
    pub created: i32,
    pub lifetime: Lifetime,
    pub children: Vec<String>,
}

impl Znode {
    /// Returns the approximate number of bytes that it takes in a request.
    pub fn bytes(&self) -> usize {
        let list: usize = self.acl.iter().map(|(_, scheme, id)| scheme.len() + id.len() + 12).sum();
        self.path.len() + self.data.as_ref().map_or(0, Bytes::len) + list + 100
    }

    /// Returns the node in the form in which it is imported.
    pub fn to_import<'a>(&'a self, path: &'a str, counted: bool) -> ImportNode<'a> {
        let entry =
            |(perms, scheme, id): &'a (i32, String, String)| Acl { perms: *perms, id: Id { scheme, id } };
        let Stat { czxid, mzxid, pzxid, ctime, mtime, version, aversion, .. } = self.stat;
        let owner = self.lifetime.owner();
        let (acl, created) = (self.acl.iter().map(entry).collect(), self.created);
        let data = self.data.as_deref();
        ImportNode {
            path,
            data,
            acl,
            czxid,
            mzxid,
            pzxid,
            ctime,
            mtime,
            version,
            created,
            aversion,
            owner,
            counted,
        }
    }

    /// Returns why it cannot be imported; None if it can.
    fn obstacle(&self) -> Option<String> {
        if self.bytes() > MAX_NODE_BYTES {
            return Some(format!("{} bytes; {MAX_NODE_BYTES} are allowed, with path and list", self.bytes()));
        }
        if !path::is_valid(&self.path) {
            return Some(format!("a path that is not allowed here, or longer than {}", path::MAX_PATH_BYTES));
        }
        if self.acl.len() > MAX_ENTRIES {
            return Some(format!("a list of {} entries; {MAX_ENTRIES} are allowed", self.acl.len()));
        }
        // A client without admin permission on the node sees an x in place of the hash.
        let hidden = |(_, scheme, id): &(i32, String, String)| {
            scheme == "digest" && id.split_once(':').is_some_and(|(_, hash)| hash == "x")
        };
        let hides = self.acl.iter().any(hidden);
        hides.then(|| {
            "its list is shown without hashes: pass --auth of somebody who may administer it".to_owned()
        })
    }
}

/// What the walk found at one path.
#[derive(Debug)]
pub enum Found {
    Node(Znode),
    Ephemeral {
        path: String,
        owner: i64,
    },
    /// A node that was left out, with everything below it.
    LeftOut {
        path: String,
        why: String,
    },
    /// A node that was deleted after its parent was read.
    Gone,
}

/// A walk over a node and everything below it.
pub struct Walk<'c> {
    client: &'c mut Client,
    /// Paths that were not read yet, children before the siblings of their parents. Their number is bounded by width times depth.
    waiting: Vec<String>,
    /// The newest change that the ensemble has reported.
    pub newest: i64,
}

impl<'c> Walk<'c> {
    pub fn new(client: &'c mut Client, top: &str) -> Walk<'c> {
        Walk { client, waiting: vec![top.to_owned()], newest: 0 }
    }

    /// Returns the next nodes, or an empty list at the end.
    pub async fn next(&mut self) -> Result<Vec<Found>, CliError> {
        let from = self.waiting.len() - self.waiting.len().min(AT_ONCE);
        let mut paths = self.waiting.split_off(from);
        paths.reverse();
        let (found, newest) = read(self.client, &paths).await?;
        self.newest = self.newest.max(newest);
        for node in found.iter().rev() {
            let Found::Node(node) = node else { continue };
            let children = node.children.iter().rev().map(|name| child(&node.path, name));
            self.waiting.extend(children.filter(|path| path != path::SYSTEM));
        }
        Ok(found)
    }
}

/// Returns the path of a child.
pub fn child(parent: &str, name: &str) -> String {
    if parent == path::ROOT { format!("/{name}") } else { format!("{parent}/{name}") }
}

/// Reads nodes by their paths. Also returns the newest zxid that the server reported.
pub async fn read(client: &mut Client, paths: &[String]) -> Result<(Vec<Found>, i64), CliError> {
    let requests: Vec<Request<'_>> = paths.iter().flat_map(|path| requests(path)).collect();
    let replies = client.calls(&requests).await;
    let replies =
        replies.map_err(|e| client_error(e, "see whether the ensemble serves, then run this again"))?;
    let newest = replies.iter().map(|r| r.zxid).max().unwrap_or(0);
    let found = paths.iter().zip(replies.chunks(REQUESTS)).map(|(path, replies)| found(path, replies));
    Ok((found.collect(), newest))
}

/// Returns the requests for one node. In this order, a node that is deleted in between is noticed.
fn requests(path: &str) -> [Request<'_>; REQUESTS] {
    let watched = WatchedRequest { path, watch: false };
    [Request::GetAcl(PathRequest { path }), Request::GetChildren2(watched), Request::GetData(watched)]
}

fn found(path: &str, replies: &[Reply]) -> Found {
    let path = path.to_owned();
    if let Some(failed) = replies.iter().find(|reply| reply.err != 0) {
        return match ErrorCode::of(failed.err) {
            Some(ErrorCode::NoNode) => Found::Gone,
            Some(ErrorCode::NoAuth) => {
                let why = "it cannot be read: pass --auth of somebody who may read it".to_owned();
                Found::LeftOut { path, why }
            }
            _ => Found::LeftOut { path, why: code_words(failed.err) },
        };
    }
    match parsed(&path, replies) {
        Err(error) => Found::LeftOut { path, why: format!("the server's answer cannot be read: {error}") },
        Ok(node) => match (node.lifetime, node.obstacle()) {
            (Lifetime::Ephemeral(owner), _) => Found::Ephemeral { path, owner },
            (_, Some(why)) => Found::LeftOut { path, why },
            (_, None) => Found::Node(node),
        },
    }
}

fn parsed(path: &str, replies: &[Reply]) -> Result<Znode, JuteError> {
    let [list, children, data] = replies else {
        return Err(JuteError::Unknown { what: "number of replies", value: 0 });
    };
    let list = GetAclReply::parse(&list.body)?;
    let children = GetChildren2Reply::parse(&children.body)?;
    let got = GetDataReply::parse(&data.body)?;
    let changes = children.stat;
    // `cversion` counts creations and deletions, and each child that is gone counts twice. The count may have wrapped around.
    let created = changes.cversion.wrapping_add(changes.num_children).cast_unsigned() >> 1;
    let owner = got.stat.ephemeral_owner;
    let lifetime = match Lifetime::of_owner(owner) {
        // The owner is a session of a server with such an id, not a time to live.
        Lifetime::Ttl(ms) if !(1..=MAX_TTL_MS).contains(&ms) => Lifetime::Ephemeral(owner),
        other => other,
    };
    // Servers list children in no particular order.
    let names: BTreeSet<&str> = children.names.into_iter().collect();
    Ok(Znode {
        path: path.to_owned(),
        data: got.data.map(|bytes| data.body.slice_ref(bytes)),
        acl: list.acl.iter().map(|a| (a.perms, a.id.scheme.to_owned(), a.id.id.to_owned())).collect(),
        stat: Stat { pzxid: changes.pzxid, num_children: changes.num_children, ..got.stat },
        created: created.cast_signed(),
        lifetime,
        children: names.into_iter().map(str::to_owned).collect(),
    })
}

//! Quotas: limits on subtrees. Their nodes belong to the system, so only the limits are copied, and Atoll counts the nodes itself.

use atoll_zookeeper::acl::OPEN;
use atoll_zookeeper::client::Client;
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::reply::GetDataReply;
use atoll_zookeeper::jute::request::{CreateRequest, Request, SetDataRequest, WatchedRequest};
use atoll_zookeeper::path;
use bytes::Bytes;

use super::super::CliError;
use super::import::{Places, refused};
use super::report::Report;
use super::walk::{Found, Walk};
use super::{client_error, code_words};

/// The node with the limits.
const LIMITS: &str = "/zookeeper_limits";
/// The node with the counts. Its first content does not matter.
const STATS: &str = "/zookeeper_stats";

/// Returns the limits of the ensemble on the imported nodes: the path in Atoll, and the text of the limits.
async fn limits(from: &mut Client, places: &Places) -> Result<Vec<(String, Bytes)>, CliError> {
    let mut walk = Walk::new(from, path::QUOTA);
    let mut limits = Vec::new();
    loop {
        let found = walk.next().await?;
        if found.is_empty() {
            return Ok(limits);
        }
        for node in found {
            let Found::Node(node) = node else { continue };
            let subject = node.path.strip_prefix(path::QUOTA).and_then(|rest| rest.strip_suffix(LIMITS));
            let Some(subject) = subject.filter(|s| !s.is_empty() && path::is_within(s, &places.chroot))
            else {
                continue;
            };
            // The root has no quota on either side.
            let here = places.here(subject);
            if here != path::ROOT {
                limits.push((here, node.data.unwrap_or_default()));
            }
        }
    }
}

async fn there(to: &mut Client, path: &str) -> Result<Option<Bytes>, CliError> {
    let asked = Request::GetData(WatchedRequest { path, watch: false });
    let reply = to.call(asked).await.map_err(|e| client_error(e, "see `atoll status`"))?;
    match ErrorCode::of(reply.err) {
        None => Ok(GetDataReply::parse(&reply.body).ok().and_then(|r| r.data.map(Bytes::copy_from_slice))),
        Some(ErrorCode::NoNode) => Ok(None),
        Some(_) => Err(refused(&format!("reading {path}"), reply.err)),
    }
}

/// Sets the limits of the ensemble in Atoll.
pub async fn import(
    from: &mut Client,
    to: &mut Client,
    places: &Places,
    overwrite: bool,
    report: &mut Report,
) -> Result<(), CliError> {
    for (subject, text) in limits(from, places).await? {
        let top = format!("{}{subject}", path::QUOTA);
        let (limit, stats) = (format!("{top}{LIMITS}"), format!("{top}{STATS}"));
        match there(to, &limit).await? {
            Some(same) if same == text => {}
            Some(_) if !overwrite => {
                report.left_out.push((limit, "another quota is here already".to_owned()));
                continue;
            }
            Some(_) => {
                let set = SetDataRequest { path: &limit, data: Some(&text), version: -1 };
                done(to, Request::SetData(set), &limit).await?;
            }
            None => {
                let above: Vec<&str> =
                    path::ancestors(&limit).filter(|p| path::is_within(p, path::QUOTA)).collect();
                for path in above.into_iter().rev().filter(|p| *p != path::QUOTA) {
                    create(to, path, b"").await?;
                }
                create(to, &limit, &text).await?;
            }
        }
        create(to, &stats, b"").await?;
        report.quotas += 1;
    }
    Ok(())
}

/// Notes limits that differ.
pub async fn compare(
    from: &mut Client,
    to: &mut Client,
    places: &Places,
    report: &mut Report,
) -> Result<(), CliError> {
    for (subject, text) in limits(from, places).await? {
        let limit = format!("{}{subject}{LIMITS}", path::QUOTA);
        match there(to, &limit).await? {
            Some(same) if same == text => {}
            Some(_) => report.differs(limit, "differs in data"),
            None => report.differs(limit, "is missing"),
        }
    }
    Ok(())
}

async fn create(to: &mut Client, path: &str, data: &[u8]) -> Result<(), CliError> {
    let (flags, acl) = (CreateMode::Persistent.number(), vec![OPEN]);
    done(to, Request::Create(CreateRequest { path, data: Some(data), acl, flags }), path).await
}

async fn done(to: &mut Client, asked: Request<'_>, path: &str) -> Result<(), CliError> {
    let reply = to.call(asked).await.map_err(|e| client_error(e, "see `atoll status`"))?;
    match ErrorCode::of(reply.err) {
        None | Some(ErrorCode::NodeExists) => Ok(()),
        Some(_) => Err(refused(&format!("the quota {path} ({})", code_words(reply.err)), reply.err)),
    }
}

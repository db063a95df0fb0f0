//! Writes that make every node count a subtree. When `zookeeper_stats` of a quota is created, the existing nodes are counted while
//! the write is applied, and all later writes wait for that. Therefore the door first checks, outside the node's thread, whether
//! the subtree is small enough.

use std::sync::Arc;

use atoll_db::{Direction, StoreError, View};

use super::Shared;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::request::Request;
use crate::jute::transaction::MultiOp;
use crate::jute::{Jute, Reader};
use crate::tree::{key, quota, read};

/// Most nodes in a subtree that anyone except the superuser may have counted. A higher value makes all writes wait longer.
const MAX_COUNTED: usize = 100_000;
/// Most bytes of their records. A record is at most 18 KiB long.
const MAX_COUNTED_BYTES: usize = 64 * 1024 * 1024;
/// A tree with so few nodes need not be looked at.
const FEW: i64 = 3_000;
/// A transaction that makes nodes count contains these bytes.
const NAME: &[u8] = quota::STATS.as_bytes();

/// Returns the subtree that a write makes every node count, if there is one.
///
/// # Errors
/// BadArguments, if a transaction has more than one such subtree.
pub(crate) fn subject(op: OpCode, body: &[u8]) -> Result<Option<String>, ErrorCode> {
    match op {
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => {
            let top = <&str>::parse(body).ok().and_then(quota::counted_by);
            Ok(top.map(str::to_owned))
        }
        // Most transactions have no such subtree. This check finds that without parsing them.
        OpCode::Multi if body.windows(NAME.len()).any(|part| part == NAME) => {
            let Ok(Some(Request::Multi(asked))) = Request::read(op, &mut Reader::new(body)) else {
                return Ok(None);
            };
            let path = |op: &MultiOp<'_>| match op {
                MultiOp::Create(r) | MultiOp::Create2(r) | MultiOp::CreateContainer(r) => {
                    quota::counted_by(r.path).map(str::to_owned)
                }
                MultiOp::CreateTtl(r) => quota::counted_by(r.path).map(str::to_owned),
                _ => None,
            };
            let mut tops = asked.ops.iter().filter_map(path);
            match (tops.next(), tops.next()) {
                (_, Some(_)) => Err(ErrorCode::BadArguments),
                (top, None) => Ok(top),
            }
        }
        _ => Ok(None),
    }
}

/// Returns whether a subtree is small enough to be counted. False also if that cannot be determined.
pub(crate) async fn is_small(shared: Arc<Shared>, top: &str) -> bool {
    let view = shared.engine.view();
    let all = shared.read(view.clone(), read::counters).await.map_or(i64::MAX, |counters| counters.nodes);
    if all <= FEW {
        return true;
    }
    let Some(turn) = shared.walks.turn().await else { return false };
    let top = top.to_owned();
    let counted = shared.beside(move || {
        let _turn = turn;
        has_little_below(&view, &top)
    });
    matches!(counted.await, Ok(Ok(true)))
}

fn has_little_below(view: &View, top: &str) -> Result<bool, StoreError> {
    let (mut count, mut bytes) = (1, 0);
    for range in [key::children(top), key::deeper(top)] {
        for found in view.scan(&range, Direction::Forward) {
            let (key, record) = found?;
            count += 1;
            bytes += key.len() + record.len();
            if count > MAX_COUNTED || bytes > MAX_COUNTED_BYTES {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jute::request::CreateRequest;
    use crate::jute::transaction::MultiRequest;

    #[test]
    fn what_counts_is_found_alone_and_in_transactions() {
        let create = |path| CreateRequest { path, data: None, acl: Vec::new(), flags: 0 };
        let stats = "/zookeeper/quota/a/zookeeper_stats";
        for (path, expected) in [(stats, Some("/a")), ("/a/zookeeper_stats", None), ("/a", None)] {
            let expected = Ok(expected.map(str::to_owned));
            assert_eq!(subject(OpCode::Create, &create(path).to_vec()), expected, "{path}");
            let ops = vec![MultiOp::Create(create("/b")), MultiOp::Create2(create(path))];
            assert_eq!(subject(OpCode::Multi, &MultiRequest { ops }.to_vec()), expected, "{path}");
        }
        let twice = MultiRequest { ops: vec![MultiOp::Create(create(stats)); 2] };
        assert_eq!(subject(OpCode::Multi, &twice.to_vec()), Err(ErrorCode::BadArguments));
        assert_eq!(subject(OpCode::SetData, &create(stats).to_vec()), Ok(None));
    }
}

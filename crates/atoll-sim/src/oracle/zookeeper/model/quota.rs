//! A second implementation of quotas. It recounts `zookeeper_stats` after each change, while the product adds and subtracts.
//!
//! The load creates the limits of every quota before its stats, deletes neither, and nests no quotas. The stats are therefore always
//! correct.

use atoll_core::testing::hit;
use atoll_zookeeper::jute::codes::ErrorCode;

use super::Model;

const QUOTAS: &str = "/zookeeper/quota";
const LIMITS: &str = "/zookeeper_limits";
const STATS: &str = "/zookeeper_stats";

/// Returns the hard limit with this name in the text of a limits znode, if it has one.
fn hard(text: &[u8], name: &str) -> Option<i64> {
    let text = String::from_utf8_lossy(text);
    let value = text.split([',', ';']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    value.parse().ok().filter(|limit| *limit >= 0)
}

impl Model {
    /// Returns the subtree with a quota that contains a path.
    fn limited<'p>(&self, path: &'p str) -> Option<&'p str> {
        let ends = path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()]);
        let tops = ends.map(|end| &path[..end]);
        tops.filter(|top| self.now.contains_key(&format!("{QUOTAS}{top}{LIMITS}"))).last()
    }

    /// Returns the number of znodes in a subtree, and the bytes of their data.
    fn usage(&self, top: &str) -> (i64, i64) {
        let is_in =
            |path: &str| path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let nodes = self.now.range(top.to_owned()..).take_while(|(path, _)| path.starts_with(top));
        let sizes = nodes.filter(|(path, _)| is_in(path)).map(|(_, node)| i64::from(node.stat.data_length));
        sizes.fold((0, 0), |(nodes, bytes), size| (nodes + 1, bytes + size))
    }

    /// Checks whether the quota of a path allows this many more znodes and bytes.
    pub(super) fn allows(&self, path: &str, nodes: i64, bytes: i64) -> Result<(), ErrorCode> {
        let Some(top) = self.limited(path).filter(|_| self.enforces_quota) else { return Ok(()) };
        let limits = &self.now[&format!("{QUOTAS}{top}{LIMITS}")];
        if !self.now.contains_key(&format!("{QUOTAS}{top}{STATS}")) {
            return Ok(());
        }
        let text = limits.data.as_deref().unwrap_or_default();
        let (has, held) = self.usage(top);
        let above = |name, now, more| more != 0 && hard(text, name).is_some_and(|limit| now + more > limit);
        if above("countHardLimit", has, nodes) || above("byteHardLimit", held, bytes) {
            hit("sim.zookeeper.quota_exceeded");
            return Err(ErrorCode::QuotaExceeded);
        }
        Ok(())
    }

    /// Recounts the stats that a change at a path affects.
    pub(super) fn recount(&mut self, path: &str) {
        let stats_of = path.strip_prefix(QUOTAS).and_then(|rest| rest.strip_suffix(STATS));
        let Some(top) = stats_of.or_else(|| self.limited(path)) else { return };
        let stats = format!("{QUOTAS}{top}{STATS}");
        let Some(mut node) = self.now.get(&stats).cloned() else { return };
        let (nodes, bytes) = self.usage(top);
        let text = format!("count={nodes},bytes={bytes}");
        node.stat.data_length = text.len() as i32;
        node.data = Some(text.into_bytes());
        self.set(&stats, Some(node));
    }
}

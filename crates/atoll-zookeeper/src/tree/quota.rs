//! Quotas, which limit the number of nodes and the bytes of data in a subtree, as in ZooKeeper.
//! `/zookeeper/quota/PATH/zookeeper_limits` contains the limits, and `zookeeper_stats` next to it the usage. Clients create both
//! nodes, and the tree keeps the second one up to date.
//! The limits of the nearest node at or above the changed one apply. A write above a soft limit is only reported. A write above a
//! hard limit is refused if the proposing door requires that (`enforceQuota`). The command carries this flag, so all replicas make
//! the same decision.

use atoll_core::testing::mutant;
use bytes::Bytes;

use super::key;
use super::node::Node;
use super::state::{Keys, TreeState, length};
use crate::event::Event;
use crate::jute::codes::ErrorCode;
use crate::mutants;
use crate::path;

/// The name of the node with the limits.
const LIMITS: &str = "zookeeper_limits";
/// The name of the node with the usage.
pub const STATS: &str = "zookeeper_stats";

/// Returns the node whose subtree must be counted if a node is created at this path.
pub fn counted_by(path: &str) -> Option<&str> {
    subject(path, STATS)
}

/// Returns whether a path is that of a node with limits, which [`super::state::Counters::quotas`] counts.
pub(super) fn is_limit(path: &str) -> bool {
    subject(path, LIMITS).is_some()
}

/// Returns whether clients write limits or usage to this path. These are short texts, which are read with every change below their
/// quota, so a door accepts no more than [`MAX_TEXT_BYTES`].
pub fn is_text(path: &str) -> bool {
    is_limit(path) || counted_by(path).is_some()
}

/// Longest such text. ZooKeeper's clients write at most about 150 bytes.
pub const MAX_TEXT_BYTES: usize = 256;

/// Nodes to count at once.
const PAGE: usize = 1000;

/// The contents of such a node; -1 for values that it does not have. A client may write any number, so sums wrap, as in ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Track {
    count: i64,
    bytes: i64,
    count_hard: i64,
    bytes_hard: i64,
}

impl Track {
    /// Parses texts such as `count=3,bytes=100=;byteHardLimit=20;countHardLimit=8`. Clients agree on nothing but this text.
    fn parse(text: &[u8]) -> Track {
        let mut track = Track { count: -1, bytes: -1, count_hard: -1, bytes_hard: -1 };
        for pair in String::from_utf8_lossy(text).split([',', ';']) {
            let mut parts = pair.split('=');
            let (Some(key), Some(Ok(value))) = (parts.next(), parts.next().map(str::parse)) else { continue };
            match key {
                "count" => track.count = value,
                "bytes" => track.bytes = value,
                "countHardLimit" => track.count_hard = value,
                "byteHardLimit" => track.bytes_hard = value,
                _ => {}
            }
        }
        track
    }
}

/// How a number compares with its limits after a change.
enum QuotaCheck {
    Within,
    AboveSoft,
    AboveHard,
}

fn judge(now: i64, soft: i64, hard: i64) -> QuotaCheck {
    // As in ZooKeeper, a hard limit replaces the soft one.
    match (soft, hard) {
        (_, 0..) if now > hard => QuotaCheck::AboveHard,
        (_, 0..) => QuotaCheck::Within,
        (0.., _) if now > soft => QuotaCheck::AboveSoft,
        _ => QuotaCheck::Within,
    }
}

/// Returns the node that a path below `/zookeeper/quota` refers to. Returns None for other paths, and for the root, which has no
/// quota.
fn subject<'p>(of: &'p str, name: &str) -> Option<&'p str> {
    let top = of.strip_prefix(path::QUOTA)?.strip_suffix(name)?.strip_suffix('/')?;
    (!top.is_empty()).then_some(top)
}

/// A level of a path that has quotas: for each, there is a node below `/zookeeper/quota`.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Where the level's path ends.
    end: usize,
    /// Where the path of the nearest node with limits ends, at this level or above it.
    nearest: Option<usize>,
    /// Whether no node below this level has limits.
    is_last: bool,
}

/// The levels that the last search for limits looked at. The next search of the same command often needs most of them again, because
/// the operations of a transaction, and the ephemerals of a session, are near each other. A change of a node below `/zookeeper/quota`
/// ends this memory ([`TreeState::put_node`]).
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The path down to the last level.
    path: String,
    levels: Vec<Level>,
    /// The limits that were found last, and where the path of their node ends.
    found: Option<(usize, Track)>,
}

impl Search {
    /// Forgets the levels that are not on the way to `of`. Returns where the path of the last one left ends.
    fn keep(&mut self, of: &str) -> usize {
        let same = self.path.bytes().zip(of.bytes()).take_while(|(a, b)| a == b).count();
        let is_on_the_way = |end: usize| end <= same && matches!(of.as_bytes().get(end), None | Some(b'/'));
        let kept = self.levels.partition_point(|level| is_on_the_way(level.end));
        self.levels.truncate(kept);
        let end = self.levels.last().map_or(0, |level| level.end);
        self.path.truncate(end);
        self.found = self.found.filter(|(found, _)| *found <= end);
        end
    }

    fn add(&mut self, of: &str, level: Level) {
        self.path.push_str(&of[self.path.len()..level.end]);
        self.levels.push(level);
    }
}

impl<K: Keys> TreeState<'_, K> {
    fn quota_node(&mut self, top: &str, name: &str) -> Option<(String, Node)> {
        let path = format!("{}{top}/{name}", path::QUOTA);
        self.node(&path).map(|node| (path, node))
    }

    fn text(&mut self, path: &str, node: &Node) -> Bytes {
        self.data(path, &node.data).unwrap_or_default()
    }

    /// Returns the nearest node with limits. For each level of that node's path there is a node below `/zookeeper/quota`, so the
    /// search starts at the top and ends at the first of these nodes that is missing or has no children. A deep path thus costs no
    /// more than the part of it that has quotas.
    fn limited<'p>(&mut self, of: &'p str) -> Option<(&'p str, Track)> {
        if self.counters.quotas == 0 || of == path::ROOT {
            return None;
        }
        let mut search = std::mem::take(&mut self.search);
        let found = self.search_on(&mut search, of);
        self.search = search;
        found.map(|(end, limits)| (&of[..end], limits))
    }

    /// Continues the search at the first level of `of` that the last one did not look at. Returns where the path of the nearest node
    /// with limits ends, and them.
    fn search_on(&mut self, search: &mut Search, of: &str) -> Option<(usize, Track)> {
        let from = search.keep(of);
        let ends = of[from..].match_indices('/').map(|(at, _)| from + at).chain([of.len()]);
        for end in ends.filter(|end| *end > from) {
            let (top, before) = (&of[..end], search.levels.last().copied());
            if before.is_some_and(|level| level.is_last) {
                break;
            }
            let above = self.node(&format!("{}{top}", path::QUOTA));
            let is_last = above.is_none_or(|node| node.children == 0);
            let has_limits = !is_last && self.quota_node(top, LIMITS).is_some();
            let nearest = if has_limits { Some(end) } else { before.and_then(|level| level.nearest) };
            search.add(of, Level { end, nearest, is_last });
        }
        let end = search.levels.last()?.nearest?;
        if search.found.is_none_or(|(found, _)| found != end) {
            let (path, node) = self.quota_node(&of[..end], LIMITS)?;
            search.found = Some((end, Track::parse(&self.text(&path, &node))));
        }
        search.found
    }

    /// Checks whether a client may add this many bytes and nodes at a path.
    ///
    /// # Errors
    /// QuotaExceeded: a hard limit would be exceeded, and hard limits are enforced.
    pub fn check_quota(&mut self, of: &str, bytes: i64, count: i64) -> Result<(), ErrorCode> {
        if (bytes, count) == (0, 0) {
            return Ok(());
        }
        let Some((top, limits)) = self.limited(of) else { return Ok(()) };
        let Some((stats_path, stats)) = self.quota_node(top, STATS) else { return Ok(()) };
        let now = Track::parse(&self.text(&stats_path, &stats));
        let of_count = judge(now.count.wrapping_add(count), limits.count, limits.count_hard);
        let of_bytes = judge(now.bytes.wrapping_add(bytes), limits.bytes, limits.bytes_hard);
        let verdicts = [(count != 0, of_count), (bytes != 0, of_bytes)];
        for (_, verdict) in verdicts.into_iter().filter(|(changes, _)| *changes) {
            match verdict {
                QuotaCheck::Within => {}
                QuotaCheck::AboveHard if self.enforce_quota => return Err(ErrorCode::QuotaExceeded),
                QuotaCheck::AboveSoft | QuotaCheck::AboveHard => {
                    self.keys.emit(Event::OverQuota { top: top.to_owned(), zxid: self.zxid });
                }
            }
        }
        Ok(())
    }

    /// Updates the usage after this many bytes and nodes were added (or removed, if negative) at a path. The tree must already show
    /// the change.
    pub fn quota_changed(&mut self, of: &str, bytes: i64, count: i64) {
        if is_limit(of) && count != 0 {
            self.counters.quotas += count;
        }
        if count > 0
            && let Some(top) = subject(of, STATS)
        {
            let (nodes, held) = self.subtree(top);
            self.put_stats(top, nodes, held);
        }
        if (bytes, count) == (0, 0) || (count < 0 && mutant(mutants::ZK_QUOTA_FORGETS_DELETES)) {
            return;
        }
        let Some((top, _)) = self.limited(of) else { return };
        let Some((path, stats)) = self.quota_node(top, STATS) else { return };
        let before = Track::parse(&self.text(&path, &stats));
        self.put_stats(top, before.count.wrapping_add(count), before.bytes.wrapping_add(bytes));
    }

    /// As in ZooKeeper, this neither changes the version nor emits an event.
    fn put_stats(&mut self, top: &str, count: i64, bytes: i64) {
        let Some((path, mut node)) = self.quota_node(top, STATS) else { return };
        let before = length(node.data.length());
        let text = format!("count={count},bytes={bytes}");
        node.data = self.place(&path, &node.data, Some(text.as_bytes()));
        self.counters.bytes += length(node.data.length()) - before;
        // Not `put_node`, which would forget the limits. The usage is no part of them.
        self.keys.put(&key::node(&path), node.to_bytes());
    }

    /// Returns the number of nodes, and of their bytes of data, at and below a node. Returns zeros if it does not exist.
    fn subtree(&mut self, top: &str) -> (i64, i64) {
        let Some(node) = self.node(top) else { return (0, 0) };
        let (mut nodes, mut bytes) = (1, length(node.data.length()));
        for range in [key::children(top), key::deeper(top)] {
            let mut rest = Some(range);
            while let Some(range) = rest.take() {
                let page = self.keys.first(&range, PAGE);
                for (found, value) in &page {
                    // A record that cannot be decoded means damage: see `TreeState::node`.
                    let node =
                        Node::of_bytes(value).unwrap_or_else(|e| panic!("{}: {e}", found.escape_ascii()));
                    nodes += 1;
                    bytes += length(node.data.length());
                }
                if page.len() == PAGE {
                    rest = page.last().map(|(last, _)| range.above(last));
                }
            }
        }
        (nodes, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_write_is_read() {
        let track = |count, bytes, count_hard, bytes_hard| Track { count, bytes, count_hard, bytes_hard };
        for (text, expected) in [
            ("count=3,bytes=-1=;byteHardLimit=-1;countHardLimit=-1", track(3, -1, -1, -1)),
            ("count=3,bytes=100=;byteHardLimit=20;countHardLimit=8", track(3, 100, 8, 20)),
            ("count=8,bytes=66", track(8, 66, -1, -1)),
            ("", track(-1, -1, -1, -1)),
            ("nonsense=,count=x,=;bytes=7", track(-1, 7, -1, -1)),
        ] {
            assert_eq!(Track::parse(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_a_quota_is_about() {
        assert_eq!(subject("/zookeeper/quota/a/b/zookeeper_limits", LIMITS), Some("/a/b"));
        assert_eq!(subject("/zookeeper/quota/zookeeper_limits", LIMITS), None);
        assert_eq!(subject("/zookeeper/quota/a/zookeeper_stats", LIMITS), None);
        assert_eq!(subject("/a/zookeeper_limits", LIMITS), None);
    }
}

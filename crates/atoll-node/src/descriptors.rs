//! Allocates the file descriptors of this process. The doors never get the descriptors that the disk needs. Otherwise many clients could
//! make it impossible to open another file.

/// Reserved for the disk: journal segments, files of the store, temporary files, and the descriptors that the process always has open.
pub const FOR_DISK: usize = 384;
/// Reserved for other nodes: two connections in each direction per member, and connections that have not introduced themselves yet.
pub const FOR_NODES: usize = 192;
/// Reserved for the metrics and admin doors, which have 64 connections each.
pub const FOR_OPERATORS: usize = 128;
/// The minimum number of connections of the gRPC door, and of the ZooKeeper door.
const LEAST_OF_DOOR: usize = 64;
/// The maximum number of connections of the ZooKeeper door, even if there are more descriptors.
const MOST_OF_ZOOKEEPER: usize = 1_000_000;

/// How many connections each door may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit of the process.
    pub limit: usize,
    /// The number of connections of the gRPC door.
    pub grpc: usize,
    /// The number of connections of the ZooKeeper door.
    pub zookeeper: usize,
}

/// The process may open too few files for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} files (RLIMIT_NOFILE); a node needs {} at least: {FOR_DISK} for its disk, {FOR_NODES} for other nodes, \
     {FOR_OPERATORS} for metrics and admin, {LEAST_OF_DOOR} for each door of clients; raise the hard limit (ulimit -Hn, LimitNOFILE)",
    least()
)]
pub struct TooFewDescriptors {
    /// The number of files that it may open.
    pub limit: usize,
}

const fn kept() -> usize {
    FOR_DISK + FOR_NODES + FOR_OPERATORS
}

const fn least() -> usize {
    kept() + 2 * LEAST_OF_DOOR
}

/// Raises the soft limit of open files to the hard limit, as far as the system allows, and returns the resulting limit.
pub fn raise_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|soft| now.maximum.is_none_or(|hard| soft < hard)) {
        // If the system refuses, the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    }
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// Allocates the descriptors of the process. After the reserves, a third of the rest goes to the gRPC door, up to that door's own limit,
/// and everything else to the ZooKeeper door.
///
/// # Errors
/// The limit is lower than a node needs.
pub fn plan(limit: usize) -> Result<Descriptors, TooFewDescriptors> {
    if limit < least() {
        return Err(TooFewDescriptors { limit });
    }
    let doors = limit - kept();
    let grpc = (doors / 3).clamp(LEAST_OF_DOOR, crate::doors::MAX_CONNECTIONS.0);
    Ok(Descriptors { limit, grpc, zookeeper: (doors - grpc).min(MOST_OF_ZOOKEEPER) })
}

/// Returns the configured limit, where 0 means no limit, but never more than what is available.
pub fn at_most(configured: usize, available: usize) -> usize {
    match configured {
        0 => available,
        some => some.min(available),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_needs_is_never_given_to_doors() {
        for limit in [least(), 1_024, 4_096, 65_536, 1 << 20, usize::MAX] {
            let plan = plan(limit).unwrap();
            assert!(plan.grpc >= LEAST_OF_DOOR && plan.zookeeper >= LEAST_OF_DOOR, "{plan:?}");
            assert!(plan.grpc + plan.zookeeper + kept() <= limit, "{plan:?}");
        }
        let words = plan(least() - 1).unwrap_err().to_string();
        assert!(words.contains("831 files") && words.contains("832 at least"), "{words}");
        assert_eq!((at_most(0, 9), at_most(5, 9), at_most(50, 9)), (9, 5, 9));
    }
}

//! Allocates the file descriptors of this process. The doors never get the descriptors that the disk needs. Otherwise many clients could
//! make it impossible to open another file.

use atoll_door::grpc::MAX_CONNECTIONS;

/// Reserved for the disk: journal segments, files of the store, temporary files, and the descriptors that the process always has open.
pub const FOR_DISK: usize = 384;
/// Reserved for other nodes: two connections in each direction per member, and connections that have not introduced themselves yet.
pub const FOR_NODES: usize = 192;
/// Reserved for the metrics and admin doors, which have 64 connections each.
pub const FOR_OPERATORS: usize = 128;
/// The minimum number of connections of the gRPC listener, and of each door with listeners of its own.
const LEAST_OF_DOOR: usize = 64;

/// How many connections clients may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit of the process.
    pub limit: usize,
    /// The number of connections of the gRPC listener, which all doors share.
    pub grpc: usize,
    /// The number of connections of each door with listeners of its own.
    pub of_door: usize,
}

/// The process may open too few files for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} files (RLIMIT_NOFILE); a node needs {needed} at least: {FOR_DISK} for its disk, {FOR_NODES} for other nodes, \
     {FOR_OPERATORS} for metrics and admin, {LEAST_OF_DOOR} for each door of clients; raise the hard limit (ulimit -Hn, LimitNOFILE)"
)]
pub struct TooFewDescriptors {
    /// The number of files that it may open.
    pub limit: usize,
    /// The number that a node needs with these doors.
    pub needed: usize,
}

const fn kept() -> usize {
    FOR_DISK + FOR_NODES + FOR_OPERATORS
}

/// Returns the limit that a node with this many doors needs. Without any, it needs as much as with one, so that a door can be added later.
fn least(doors: usize) -> usize {
    kept() + (1 + doors.max(1)) * LEAST_OF_DOOR
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

/// Allocates the descriptors of the process. After the reserves, a third of the rest goes to the gRPC listener, up to its own limit. The
/// `doors` with listeners of their own share everything else equally.
///
/// # Errors
/// The limit is lower than a node needs.
pub fn plan(limit: usize, doors: usize) -> Result<Descriptors, TooFewDescriptors> {
    let needed = least(doors);
    if limit < needed {
        return Err(TooFewDescriptors { limit, needed });
    }
    let (doors, of_clients) = (doors.max(1), limit - kept());
    let most = MAX_CONNECTIONS.0.min(of_clients - doors * LEAST_OF_DOOR);
    let grpc = (of_clients / 3).clamp(LEAST_OF_DOOR, most);
    Ok(Descriptors { limit, grpc, of_door: (of_clients - grpc) / doors })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_needs_is_never_given_to_doors() {
        for doors in [0, 1, 2, 5] {
            for limit in [least(doors), 1_152, 4_096, 65_536, 1 << 20, usize::MAX] {
                let plan = plan(limit, doors).unwrap();
                assert!(plan.grpc >= LEAST_OF_DOOR && plan.of_door >= LEAST_OF_DOOR, "{plan:?}");
                assert!(plan.grpc + doors * plan.of_door + kept() <= limit, "{plan:?}");
            }
        }
        let words = plan(least(1) - 1, 1).unwrap_err().to_string();
        assert!(words.contains("831 files") && words.contains("832 at least"), "{words}");
    }
}

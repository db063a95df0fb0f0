//! Order within a session. Writes are proposed without waiting for earlier ones, and a read is answered once all earlier requests
//! are answered. By then a later write may be in the view. Therefore a write that a waiting read would show is held back until that
//! read is answered.

use crate::jute::Jute;
use crate::jute::codes::OpCode;
use crate::path;

/// The nodes that a request reads or writes, as far as its order matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touched<'f> {
    /// No nodes.
    Nothing,
    /// One path. A write also touches its parent, and the names that it may get when a number is appended.
    Path(&'f str),
    /// Possibly all nodes.
    Everything,
}

/// Returns the nodes that a request touches.
pub(crate) fn touched(op: OpCode, body: &[u8]) -> Touched<'_> {
    match op {
        OpCode::Ping | OpCode::WhoAmI | OpCode::CheckWatches | OpCode::Reconfig | OpCode::Sasl => {
            Touched::Nothing
        }
        OpCode::Create
        | OpCode::Create2
        | OpCode::CreateContainer
        | OpCode::CreateTtl
        | OpCode::Delete
        | OpCode::SetData
        | OpCode::SetAcl
        | OpCode::Exists
        | OpCode::GetData
        | OpCode::GetAcl
        | OpCode::GetChildren
        | OpCode::GetChildren2 => <&str>::parse(body).map_or(Touched::Everything, Touched::Path),
        _ => Touched::Everything,
    }
}

/// Returns whether a read may show a write.
pub(crate) fn shows(read: Touched<'_>, write: Touched<'_>) -> bool {
    match (read, write) {
        (Touched::Nothing, _) | (_, Touched::Nothing) => false,
        (Touched::Path(read), Touched::Path(write)) => {
            read.starts_with(write) || path::split(write).is_some_and(|(parent, _)| parent == read)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_show_writes_of_the_node_its_parent_and_numbered_names() {
        for (read, write, expected) in [
            ("/a", "/a", true),
            ("/a", "/a/b", true),
            ("/", "/a", true),
            ("/q/n-0000000001", "/q/n-", true),
            ("/q/0000000001", "/q/", true),
            ("/a", "/b", false),
            ("/a", "/a/b/c", false),
            ("/b", "/a/b", false),
        ] {
            assert_eq!(shows(Touched::Path(read), Touched::Path(write)), expected, "{read} {write}");
        }
        assert!(
            shows(Touched::Everything, Touched::Path("/a"))
                && shows(Touched::Path("/a"), Touched::Everything)
        );
        assert!(!shows(Touched::Nothing, Touched::Everything));
    }
}

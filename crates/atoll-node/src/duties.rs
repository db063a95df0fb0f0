//! Which node does what for a Loglet, as the public API says it.

use atoll_client::proto;
use atoll_contract::{Binding, Duty, LogletProvider, Part};
use bytes::Bytes;

/// Returns the duties of a Loglet, part by part.
pub(crate) fn duties(provider: &dyn LogletProvider, config: &Bytes) -> Vec<proto::Duty> {
    let of_part = |part: Part| {
        let Part { name, duties } = part;
        duties.0.into_iter().map(move |duty| message(name.clone(), duty))
    };
    provider.parts(config).into_iter().flat_map(of_part).collect()
}

fn message(part: String, duty: Duty) -> proto::Duty {
    let (binding, identity) = match duty.binding {
        Binding::Holds(storage) => ("holds", format!("{:032x}", storage.0)),
        Binding::Orders(life) => ("orders", format!("{:016x}", life.0)),
        Binding::Helps => ("helps", String::new()),
    };
    proto::Duty { part, role: duty.role.to_owned(), node: duty.node.0, binding: binding.to_owned(), identity }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::{Incarnation, NodeId, StorageId};

    #[test]
    fn chains_and_shards_with_helpers_are_told_apart() {
        let duty = |role, node, binding| Duty { role, node: NodeId(node), binding };
        let unit = message("3".to_owned(), duty("unit", 7, Binding::Holds(StorageId(255))));
        assert_eq!((unit.part.as_str(), unit.role.as_str(), unit.node), ("3", "unit", 7));
        assert_eq!(
            (unit.binding.as_str(), unit.identity.as_str()),
            ("holds", "000000000000000000000000000000ff")
        );
        let orderer = message(String::new(), duty("orderer", 1, Binding::Orders(Incarnation(16))));
        assert_eq!((orderer.binding.as_str(), orderer.identity.as_str()), ("orders", "0000000000000010"));
        let aggregator = message(String::new(), duty("aggregator", 2, Binding::Helps));
        assert_eq!((aggregator.binding.as_str(), aggregator.identity.as_str()), ("helps", ""));
    }
}

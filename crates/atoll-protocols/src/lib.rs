//! The protocols of this program. Nodes, tools and tests take this list and know no protocol by name, so a new protocol is a crate of its
//! own and one line here.

use std::sync::LazyLock;

use atoll_bizur::BizurPlugin;
use atoll_contract::Duties;
use atoll_contract::plugin::Protocols;
use atoll_core::Format;
use atoll_core::testing::{Listed, Mutant};
use atoll_corfu::CorfuPlugin;
use atoll_etcd_register::EtcdPlugin;
use atoll_in_place::InPlacePlugin;
use atoll_local::LocalPlugin;
use atoll_log_service::LogServicePlugin;
use atoll_native::NativePlugin;
use atoll_object::ObjectPlugin;
use atoll_rmwpaxos::RmwPlugin;
use atoll_scalog::ScalogPlugin;
use atoll_striped::StripedPlugin;
use atoll_zookeeper_loglet::ZooKeeperPlugin;
use bytes::Bytes;

/// Returns all protocols with their default settings. Where there is a choice, a node uses the first suitable one. With the feature
/// `testing`, the protocols of the program are followed by one that only tests use.
pub fn all() -> Protocols {
    let all = Protocols::default()
        .with(RmwPlugin::default())
        .with(NativePlugin::default())
        .with(LocalPlugin::default())
        .with(StripedPlugin::default())
        .with(CorfuPlugin::default())
        .with(ScalogPlugin::default())
        .with(BizurPlugin::default())
        .with(InPlacePlugin::default())
        .with(ZooKeeperPlugin::default())
        .with(ObjectPlugin::default())
        .with(LogServicePlugin::default())
        .with(EtcdPlugin::default());
    #[cfg(feature = "testing")]
    let all = all.with(atoll_trio::TrioPlugin::default());
    all
}

/// Returns the formats of all protocols.
pub fn formats() -> Vec<Format> {
    all().iter().flat_map(|protocol| protocol.formats()).collect()
}

/// Returns which node does what for a Loglet of a kind. Empty if there is no such kind, or its configuration cannot be decoded.
pub fn duties(kind: &str, config: &Bytes) -> Duties {
    static ALL: LazyLock<Protocols> = LazyLock::new(all);
    ALL.duties(kind, config)
}

/// Returns the known bugs of all protocols, and of registers in a file, which no node serves.
pub fn mutants() -> Vec<Mutant> {
    let protocols = all();
    let mutants = protocols.iter().flat_map(|protocol| protocol.mutants());
    mutants.chain(atoll_file_register::mutants::ALL).copied().collect()
}

/// Returns the situations of all protocols that a long run of the simulator must reach.
pub fn coverage() -> Vec<Listed> {
    all().iter().flat_map(|protocol| protocol.coverage()).copied().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use atoll_contract::plugin::Protocol;

    use super::*;

    const LISTED: [&str; 12] = [
        "rmwpaxos",
        "native",
        "local",
        "striped",
        "corfu",
        "scalog",
        "bizur",
        "in-place",
        "zookeeper-loglet",
        "object",
        "log-service",
        "etcd-register",
    ];

    #[test]
    fn no_two_protocols_claim_the_same() {
        all().check().unwrap();
    }

    #[test]
    fn there_is_a_first_choice_for_every_size_of_a_cluster() {
        for members in 1..=9 {
            assert!(all().first_choice(members).is_some(), "{members} members");
        }
        assert_ne!(all().first_choice(1), all().first_choice(3));
    }

    #[test]
    fn every_message_has_a_number_of_its_protocol() {
        let mut seen = BTreeSet::new();
        for protocol in all().iter() {
            for format in protocol.formats() {
                let Some(kind) = format.kind() else { continue };
                let owns = protocol.wire_ids().iter().any(|range| range.contains(&kind));
                assert!(owns, "{} of {} has the number {kind}", format.name(), protocol.name());
                assert!(seen.insert(kind), "two messages have the number {kind}");
            }
        }
    }

    #[test]
    fn only_test_builds_have_the_protocol_for_tests() {
        let names: Vec<&str> = all().iter().map(Protocol::name).collect();
        assert_eq!(names[..12], LISTED);
        assert_eq!(names[12..].contains(&"trio"), cfg!(feature = "testing"));
    }

    #[test]
    fn settings_go_to_the_protocols_that_have_them() {
        let mut protocols = all();
        assert_eq!(protocols.set("step_bytes", 4096), 7 + usize::from(cfg!(feature = "testing")));
        assert_eq!(protocols.set("replicas", 5), 1);
        assert_eq!(protocols.set("step_bytes", u64::MAX), 0, "more than fits");
        assert_eq!(protocols.set("unheard_of", 1), 0);
        assert!(format!("{protocols:?}").contains("step_bytes: 4096"));
        assert!(format!("{:?}", protocols.clone()).contains("step_bytes: 4096"), "a copy keeps its settings");
    }
}

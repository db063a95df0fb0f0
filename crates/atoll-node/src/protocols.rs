//! The protocols of this program. The rest of the node does not know them by name, so adding one takes only a field and a list element
//! here.

use atoll_contract::plugin::Protocol;
use atoll_local::LocalPlugin;
use atoll_native::NativePlugin;

/// Every protocol that provides Loglets, with its settings.
#[derive(Clone, Debug, Default)]
pub struct Protocols {
    /// Loglets with a sequencer and several LogServers.
    pub native: NativePlugin,
    /// Loglets in the journal of one node.
    pub local: LocalPlugin,
}

impl Protocols {
    /// Returns all protocols. Where there is a choice, the first suitable one is used.
    pub fn all(&self) -> [&dyn Protocol; 2] {
        [&self.native, &self.local]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_two_protocols_claim_the_same() {
        atoll_contract::plugin::check(&Protocols::default().all()).unwrap();
    }

    #[test]
    fn there_is_a_first_choice_for_every_size_of_a_cluster() {
        let protocols = Protocols::default();
        let first =
            |members| protocols.all().into_iter().find(|p| p.is_first_choice(members)).map(|p| p.name());
        for members in 1..=9 {
            assert!(first(members).is_some(), "{members} members");
        }
        assert_ne!(first(1), first(3));
    }
}

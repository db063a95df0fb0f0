//! The doors of this program. Nodes and tests take this list and know no door by name, so a new door is a crate of its own and one line
//! here, and one in [`Settings`] if it has any.

use atoll_core::testing::Mutant;
use atoll_door::Door;
use atoll_door_auth::AuthDoor;
use atoll_door_cluster::ClusterDoor;
use atoll_door_corfu::CorfuDoor;
use atoll_door_keyspaces::KeyspacesDoor;
use atoll_door_log::LogDoor;
use atoll_door_scalog::ScalogDoor;
use atoll_door_tables::TablesDoor;
use atoll_door_zookeeper::ZooKeeperDoor;

pub use atoll_door_zookeeper as zookeeper;

/// The settings of the doors that have any.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where and how ZooKeeper clients are served.
    pub zookeeper: zookeeper::Settings,
}

/// Returns all doors. Every node of a cluster has the same, because its replica of the database needs all applications.
pub fn all(settings: Settings) -> Vec<Box<dyn Door>> {
    vec![
        Box::new(LogDoor),
        Box::new(ClusterDoor),
        Box::new(AuthDoor::default()),
        Box::new(ZooKeeperDoor::new(settings.zookeeper)),
        Box::new(TablesDoor::default()),
        Box::new(KeyspacesDoor),
        Box::new(CorfuDoor),
        Box::new(ScalogDoor),
    ]
}

/// Returns the known bugs of all doors.
pub fn mutants() -> Vec<Mutant> {
    all(Settings::default()).iter().flat_map(|door| door.mutants()).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_door_has_a_name_of_its_own() {
        let doors = all(Settings::default());
        let names: BTreeSet<_> = doors.iter().map(|door| door.name()).collect();
        assert_eq!(names.len(), doors.len(), "{names:?}");
    }

    #[test]
    fn the_applications_of_all_doors_fit_together() {
        // This panics if two of them have the same number.
        let mut apps = atoll_db::Applications::new();
        for mut door in all(Settings::default()) {
            door.applications(&mut apps);
        }
        assert!(!apps.is_empty());
    }
}

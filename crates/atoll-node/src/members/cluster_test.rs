use atoll_core::{Identity, Incarnation, NodeCore, StorageId, Tick};

use super::*;
use crate::members::table::Member;
use crate::members::{Health, Report};

fn identity(n: u32) -> Identity {
    Identity {
        node: NodeId(n),
        incarnation: Incarnation(n.into()),
        storage: StorageId(n.into()),
        log: true,
        sequencer: true,
        meta: true,
        draining: false,
        failed: false,
    }
}

#[test]
fn the_roster_shows_disks_that_do_not_work() {
    let row = |n| (NodeId(n), Member::of(&identity(n), String::new(), String::new(), String::new()));
    let table = MemberTable { version: 1, nodes: (1..=3).map(row).collect(), ..MemberTable::default() };
    let members = Members::new(identity(1), table);
    let core = NodeCore::new(NodeId(1), Incarnation(1), 7);
    let cluster = NodeCluster::new(core.env(), members.clone(), Vec::new());
    let seen = || -> Vec<(bool, bool)> {
        cluster.roster().members.iter().map(|row| (row.alive, row.failing)).collect()
    };
    members.note(Tick(1), NodeId(2), true, Some(Report::default()));
    members.note(Tick(1), NodeId(3), false, None);
    assert_eq!(seen(), [(true, false), (true, false), (false, false)]);
    for health in [Health::Full, Health::Hanging, Health::Closed] {
        members.note(Tick(2), NodeId(2), true, Some(Report { health, ..Report::default() }));
        assert_eq!(seen()[1], (true, true), "{health:?}");
    }
    members.set_hanging(Tick(3), true);
    assert_eq!(seen()[0], (true, true));
}

//! Checks the nodes that an operator names for a Loglet, before anything is planned or sealed.

use atoll_client::Reason;
use atoll_contract::{LogletSpec, Registry};
use atoll_core::Env;
use atoll_door::backend::Refusal;

use crate::members::change::Changes;
use crate::members::table::MemberTable;

/// Checks the nodes that an operator names for a Loglet.
#[derive(Clone)]
pub(crate) struct Named {
    env: Env,
    changes: Changes,
    registry: Registry,
}

impl Named {
    /// Creates it for the kinds of Loglets in `registry`.
    pub(crate) fn new(env: Env, changes: Changes, registry: Registry) -> Self {
        Named { env, changes, registry }
    }

    /// Refuses nodes that are not members, have not joined, are draining, or lack the role. Reads the table of members afresh, before
    /// anything is planned or sealed.
    pub(crate) async fn check(&self, spec: &LogletSpec) -> Result<(), Refusal> {
        if spec.places.is_empty() {
            return Ok(());
        }
        let changes = self.changes.clone();
        let table = self.env.launch("door.members", async move { changes.refresh().await });
        match table.await {
            Ok(Ok(table)) => check_named(&table, &self.registry, spec),
            Ok(Err(error)) => Err(Refusal::no(
                Reason::Unavailable,
                format!("nothing was changed: the table of members does not answer: {error}"),
                "try again when a majority of the nodes that hold registers is up",
            )),
            Err(_) => Err(Refusal::stopping()),
        }
    }
}

/// See [`Named::check`].
fn check_named(table: &MemberTable, registry: &Registry, spec: &LogletSpec) -> Result<(), Refusal> {
    let mut wrong = Vec::new();
    // The provider refuses roles that no kind of Loglet has. The names of parts come before that of the role.
    let needs = |role: &str| {
        let role = role.rsplit('/').next().unwrap_or(role);
        registry.roles_named(role).next().map(|r| if r.holds { "log" } else { "sequencer" })
    };
    let mut named = Vec::new();
    for (role, nodes) in &spec.places {
        if let Some(needs) = needs(role) {
            named.extend(nodes.iter().map(|node| (*node, needs)));
        }
    }
    for (node, role) in named {
        let words = match table.nodes.get(&node) {
            None => format!("node {node} is not a member"),
            Some(row) if !row.has_joined() => format!("node {node} has not joined yet"),
            Some(row) if row.draining => format!("node {node} is being drained"),
            Some(row) if !row.roles().names().contains(&role) => {
                format!("node {node} does not have the role {role:?}")
            }
            Some(_) => continue,
        };
        if !wrong.contains(&words) {
            wrong.push(words);
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let fit = |role: &'static str| {
        let fits = table
            .nodes
            .iter()
            .filter(|(_, m)| m.has_joined() && !m.draining && m.roles().names().contains(&role));
        fits.map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(",")
    };
    let next = format!("servers may be among {}, the sequencer one of {}", fit("log"), fit("sequencer"));
    Err(Refusal::no(Reason::Refused, format!("nothing was changed: {}", wrong.join("; ")), next))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::table::Member;
    use atoll_core::{NodeId, StorageId};

    #[test]
    fn nodes_that_are_not_there_or_leaving_are_refused_by_name() {
        let all = Member {
            storage: StorageId(1),
            log: true,
            sequencer: true,
            meta: true,
            ..Member::to_come("a:1".into())
        };
        let mut nodes: std::collections::BTreeMap<_, _> = (1..=3).map(|n| (NodeId(n), all.clone())).collect();
        nodes.insert(NodeId(4), Member::to_come("d:1".into()));
        nodes.insert(NodeId(5), Member { draining: true, ..all.clone() });
        nodes.insert(NodeId(6), Member { sequencer: false, ..all });
        let table = MemberTable { version: 3, nodes, ..MemberTable::default() };
        let spec = |servers: &[u32], sequencer: u32| {
            let servers = servers.iter().map(|n| NodeId(*n));
            LogletSpec::default().place("server", servers).place("sequencer", [NodeId(sequencer)])
        };
        let servers = atoll_log::memory::MemoryServers::new(&[]);
        let env = atoll_core::NodeCore::new(NodeId(1), atoll_core::Incarnation(1), 1).env();
        let registry = Registry::new().with(servers.provider(&env, "memory", true));
        assert_eq!(check_named(&table, &registry, &spec(&[1, 2, 6], 3)), Ok(()));
        let refusal = check_named(&table, &registry, &spec(&[4, 5, 9], 6)).unwrap_err().failure;
        assert_eq!(refusal.reason, Reason::Refused);
        assert_eq!(
            refusal.message,
            "nothing was changed: node 6 does not have the role \"sequencer\"; node 4 has not joined yet; node 5 is being \
             drained; node 9 is not a member"
        );
        assert_eq!(refusal.next, "servers may be among 1,2,3,6, the sequencer one of 1,2,3");
    }
}

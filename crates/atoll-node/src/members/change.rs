//! Changes the table of members. Every change is an idempotent conditional write, repeated until it succeeds or is refused.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, Register, RegisterError, Version, Written};
use atoll_core::{Env, NodeId};

use super::Members;
use super::role::KeepTable;
use super::table::{MAX_MEMBERS, Member, MemberTable, RoleSet};

/// Why a change of the table of members failed. The table was not changed, unless the error is an unknown outcome of its register: then the
/// change may have been made, or may still be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The node is not a member.
    #[error("node {0} is not a member; `atoll node list` shows who is")]
    NotAMember(NodeId),
    /// A living node has this id and another address.
    #[error(
        "node {node} is a member and answers at {peer}; stop it before its address is changed, or give the new node another id"
    )]
    IdTaken {
        /// The id.
        node: NodeId,
        /// The address of the member with this id.
        peer: String,
    },
    /// Another member has this address.
    #[error("{peer} is already the address of node {by}; each node needs its own address")]
    AddressTaken {
        /// The address.
        peer: String,
        /// The member that has it.
        by: NodeId,
    },
    /// A member has already joined with roles other than the requested ones.
    #[error(
        "node {node} has joined with the roles {has}; they change with `node.roles` in its own file, at its next start"
    )]
    HasOtherRoles {
        /// The node.
        node: NodeId,
        /// Its roles.
        has: RoleSet,
    },
    /// A newcomer has roles other than those that the operator named.
    #[error(
        "node {node} was added with the roles {expected}, but its own file has {has}; change `node.roles` there, or add it again with those"
    )]
    UnexpectedRoles {
        /// The node.
        node: NodeId,
        /// The roles that the operator named.
        expected: RoleSet,
        /// The roles in its configuration file.
        has: RoleSet,
    },
    /// The table is full.
    #[error("the cluster already has {MAX_MEMBERS} members, the maximum")]
    TooMany,
    /// The node still holds something.
    #[error("node {node} still holds {what}; drain it first and wait until it is empty")]
    InUse {
        /// The node.
        node: NodeId,
        /// What it holds.
        what: String,
    },
    /// No other node would be left to do its work.
    #[error("without node {0} nobody would be left to hold {1}; add another node first")]
    LastOne(NodeId, &'static str),
    /// The cluster has three or more nodes that hold entries, and fewer than three would be left.
    #[error(
        "without node {node} only {left} nodes would hold entries, and a lost disk could lose some; add another node first"
    )]
    TooFewLeft {
        /// The node.
        node: NodeId,
        /// How many nodes would be left.
        left: usize,
    },
    /// The register did not answer.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The register holds a value that this version cannot read.
    #[error("the table of members is not readable: {0}; it was written by another version")]
    Unreadable(#[from] atoll_core::DecodeError),
    /// Other nodes kept changing the table.
    #[error("the table of members keeps changing; try again")]
    Contended,
}

impl ChangeError {
    /// Returns this error as it is after an earlier attempt: if that one is in doubt, for this reason, no failure of this one means that
    /// nothing happened. Even a refusal does not: another change of the table may have followed the one in doubt.
    pub(super) fn after(self, doubt: Option<Unavailability>) -> Self {
        match (self, doubt) {
            (error, None) => error,
            (
                ChangeError::Register(RegisterError::NotWritten(why) | RegisterError::Unknown(why)),
                Some(_),
            ) => RegisterError::Unknown(why).into(),
            (ChangeError::Contended, Some(_)) => RegisterError::Unknown(Unavailability::Busy).into(),
            (_, Some(why)) => RegisterError::Unknown(why).into(),
        }
    }
}

/// The number of servers that a segment should have, so that a majority remains if one is lost.
const SAFE_COPIES: usize = 3;
/// The maximum number of attempts at one change.
const ATTEMPTS: u32 = 16;

/// Reads and changes the table in its register.
#[derive(Clone, Debug)]
pub struct Changes {
    env: Env,
    register: Arc<dyn Register>,
    members: Members,
}

impl Changes {
    /// Creates it over the table's register.
    pub fn new(env: Env, register: Arc<dyn Register>, members: Members) -> Self {
        Changes { env, register, members }
    }

    /// Reads the register and returns the table. A newer table is also adopted and stored on disk.
    pub async fn refresh(&self) -> Result<MemberTable, ChangeError> {
        let got = self.register.read().await?;
        if got.version == Version(0) {
            let nodes = self.members.table().nodes.clone();
            return Ok(MemberTable { nodes, ..MemberTable::default() });
        }
        let table = MemberTable::decode(got.version.0, got.value)?;
        self.keep(&table).await;
        Ok(table)
    }

    async fn keep(&self, table: &MemberTable) {
        if self.members.adopt(table.clone()) {
            let keep = KeepTable { version: table.version, value: table.encode() };
            // The stored table is only used at a restart, so a failure merely makes the next start slower.
            drop(self.env.call(self.env.node(), keep).await);
        }
    }

    /// Applies `edit` to the newest table until the write succeeds. `edit` returns whether it changed anything. Returns the resulting
    /// table, and whether this call changed it. If an earlier attempt has an unknown outcome and a later one finds nothing to change, that
    /// counts as changed. If a later one fails or is refused, the outcome of the whole call is unknown.
    pub async fn edit(
        &self,
        mut edit: impl FnMut(&mut MemberTable) -> Result<bool, ChangeError>,
    ) -> Result<(MemberTable, bool), ChangeError> {
        let mut doubt = None;
        for attempt in 0..ATTEMPTS {
            let mut table = self.refresh().await.map_err(|e| e.after(doubt))?;
            let expected = Version(table.version);
            if !edit(&mut table).map_err(|e| e.after(doubt))? {
                return Ok((table, doubt.is_some()));
            }
            let nonce = Nonce((u128::from(self.env.random()) << 64) | u128::from(self.env.random()));
            match self.register.write_if(expected, table.encode(), nonce).await {
                Ok(Written::Yes(version)) => {
                    table.version = version.0;
                    self.keep(&table).await;
                    return Ok((table, true));
                }
                Ok(Written::Conflict(_)) => {}
                // The next attempt reads the table and finds out whether the change was made.
                Err(RegisterError::Unknown(why)) => doubt = Some(why),
                Err(e) => return Err(ChangeError::from(e).after(doubt)),
            }
            self.env.sleep(self.env.jitter(Duration::from_millis(10 << attempt.min(5)))).await;
        }
        Err(ChangeError::Contended.after(doubt))
    }

    /// Writes this node's row: its addresses, roles and storage identity. A node that is not a member is refused, unless the table was
    /// never written; in that case the peers in the configuration file are the first members. A node is also refused if its roles are not
    /// those that it was added with.
    pub async fn join(&self, row: Member) -> Result<(MemberTable, bool), ChangeError> {
        let me = self.env.node();
        self.edit(|table| join(table, me, &row)).await
    }

    /// Adds a member that is about to be started, with the roles that it must join with; None allows any. If the node is already a member
    /// and has not joined or is not up, its address is changed. Cancels a drain. Idempotent.
    pub async fn add(
        &self,
        node: NodeId,
        peer: &str,
        roles: Option<RoleSet>,
    ) -> Result<(MemberTable, bool), ChangeError> {
        // A node that only this one has lost answers the others at its address.
        self.edit(|table| add(table, node, peer, roles.as_ref(), self.members.is_up(node))).await
    }

    /// Marks a member as draining, so that the guardians move away what it holds. Idempotent.
    pub async fn drain(&self, node: NodeId) -> Result<(MemberTable, bool), ChangeError> {
        self.edit(|table| {
            let left =
                |f: fn(&Member) -> bool| table.nodes.iter().any(|(n, m)| *n != node && !m.draining && f(m));
            let row = table.nodes.get(&node).ok_or(ChangeError::NotAMember(node))?;
            for (has, what, held) in [
                (row.log, "entries", left(|m| m.log)),
                (row.sequencer, "sequencers", left(|m| m.sequencer)),
                (row.meta, "registers", left(|m| m.meta)),
            ] {
                if has && !held {
                    return Err(ChangeError::LastOne(node, what));
                }
            }
            let changed = !row.draining;
            let staying = table.nodes.iter().filter(|(n, m)| **n != node && m.log && !m.draining).count();
            if changed && row.log && staying < SAFE_COPIES && staying + 1 >= SAFE_COPIES {
                return Err(ChangeError::TooFewLeft { node, left: staying });
            }
            table.nodes.entry(node).and_modify(|m| m.draining = true);
            Ok(changed)
        })
        .await
    }

    /// Removes a member that was drained or has never joined. Refuses if `held` names something that it still holds. Idempotent.
    pub async fn remove(
        &self,
        node: NodeId,
        held: Option<String>,
    ) -> Result<(MemberTable, bool), ChangeError> {
        self.edit(|table| {
            let Some(row) = table.nodes.get(&node) else { return Ok(false) };
            if let Some(what) = &held {
                return Err(ChangeError::InUse { node, what: what.clone() });
            }
            if !row.draining && row.has_joined() {
                return Err(ChangeError::InUse { node, what: "its place in new segments".into() });
            }
            table.nodes.remove(&node);
            table.expected.remove(&node);
            Ok(true)
        })
        .await
    }
}

/// Applies [`Changes::join`] to one table. Returns whether the table changed.
fn join(table: &mut MemberTable, me: NodeId, row: &Member) -> Result<bool, ChangeError> {
    let first = table.version == 0;
    let has = row.roles();
    if let Some(expected) = table.expected.get(&me).filter(|expected| **expected != has) {
        return Err(ChangeError::UnexpectedRoles { node: me, expected: expected.clone(), has });
    }
    let met = table.expected.remove(&me).is_some();
    match table.nodes.get_mut(&me) {
        Some(mine) => {
            let new = Member { draining: mine.draining, ..row.clone() };
            let changed = first || met || *mine != new;
            *mine = new;
            Ok(changed)
        }
        None if first => {
            table.nodes.insert(me, row.clone());
            Ok(true)
        }
        None => Err(ChangeError::NotAMember(me)),
    }
}

/// Applies [`Changes::add`] to one table. Returns whether the table changed.
fn add(
    table: &mut MemberTable,
    node: NodeId,
    peer: &str,
    roles: Option<&RoleSet>,
    answers: bool,
) -> Result<bool, ChangeError> {
    if let Some((by, _)) = table.nodes.iter().find(|(n, row)| **n != node && row.peer == peer) {
        return Err(ChangeError::AddressTaken { peer: peer.to_owned(), by: *by });
    }
    let members = table.nodes.len();
    let (joined, mut changed) = match table.nodes.get_mut(&node) {
        None if members >= MAX_MEMBERS => return Err(ChangeError::TooMany),
        None => {
            table.nodes.insert(node, Member::to_come(peer.to_owned()));
            (false, true)
        }
        Some(there) => {
            let moved = there.peer != peer;
            if moved && there.has_joined() && answers {
                return Err(ChangeError::IdTaken { node, peer: there.peer.clone() });
            }
            let has = there.roles();
            if there.has_joined() && roles.is_some_and(|wanted| *wanted != has) {
                return Err(ChangeError::HasOtherRoles { node, has });
            }
            let changed = moved || there.draining;
            there.peer = peer.to_owned();
            there.draining = false;
            (there.has_joined(), changed)
        }
    };
    if let Some(wanted) = roles.filter(|_| !joined) {
        changed |= table.expected.insert(node, wanted.clone()).as_ref() != Some(wanted);
    }
    Ok(changed)
}

#[cfg(test)]
#[path = "change_test.rs"]
mod tests;

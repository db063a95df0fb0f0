#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::members::Report;
use crate::members::levels::LevelTable;
use crate::members::upgrade::{LevelReport, UpgradeError, Upgrades};
use atoll_contract::Versioned;
use atoll_core::{BoxFuture, Identity, Incarnation, Level, LevelRange, NodeCore, Outputs, StorageId, Tick};
use bytes::Bytes;

const FOUR: NodeId = NodeId(4);

fn roles(names: &[&str]) -> RoleSet {
    RoleSet::named(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn row(peer: &str, storage: u128, names: &[&str]) -> Member {
    let RoleSet { log, sequencer, meta } = roles(names);
    Member { storage: StorageId(storage), log, sequencer, meta, ..Member::to_come(peer.to_owned()) }
}

/// The table of a cluster with one member, at version 7.
fn one() -> MemberTable {
    let nodes = [(NodeId(1), row("a:1", 11, &["log", "meta", "sequencer"]))].into();
    MemberTable { version: 7, nodes, ..MemberTable::default() }
}

/// Encodes and decodes the table, as its register would.
fn reread(table: &MemberTable) -> MemberTable {
    MemberTable::decode(table.version, table.encode()).unwrap()
}

#[test]
fn adding_twice_is_adding_once() {
    let mut table = one();
    assert_eq!(add(&mut table, FOUR, "d:1", None, false), Ok(true));
    assert_eq!(add(&mut table, FOUR, "d:1", None, false), Ok(false));
    let wanted = roles(&["log"]);
    assert_eq!(add(&mut table, FOUR, "d:1", Some(&wanted), false), Ok(true));
    assert_eq!(add(&mut table, FOUR, "d:1", Some(&wanted), false), Ok(false));
    assert_eq!(add(&mut table, FOUR, "d:1", None, false), Ok(false), "roles that were named stay");
    assert_eq!(reread(&table), table);
    assert!(!table.nodes[&FOUR].log, "nothing is laid on a node that has not come");
}

#[test]
fn a_newcomer_joins_with_the_roles_that_it_was_added_with_only() {
    let mut table = one();
    add(&mut table, FOUR, "d:1", Some(&roles(&["log"])), false).unwrap();
    let before = table.clone();
    let all = row("d:1", 44, &["log", "meta", "sequencer"]);
    let refused = join(&mut table, FOUR, &all).unwrap_err();
    assert!(matches!(refused, ChangeError::UnexpectedRoles { .. }), "{refused}");
    assert_eq!(table, before);
    assert_eq!(join(&mut table, FOUR, &row("d:1", 44, &["log"])), Ok(true));
    assert_eq!(join(&mut table, FOUR, &row("d:1", 44, &["log"])), Ok(false));
    assert_eq!(reread(&table), table);
    // From now on its own configuration file decides on its roles, as for every member.
    assert_eq!(join(&mut table, FOUR, &all), Ok(true));
}

#[test]
fn an_address_changes_unless_a_living_node_answers_there() {
    let mut table = one();
    add(&mut table, FOUR, "d:1", None, false).unwrap();
    assert_eq!(add(&mut table, FOUR, "d:2", None, true), Ok(true), "it has not joined");
    join(&mut table, FOUR, &row("d:2", 44, &["log"])).unwrap();
    assert_eq!(
        add(&mut table, FOUR, "d:3", None, true),
        Err(ChangeError::IdTaken { node: FOUR, peer: "d:2".into() })
    );
    assert_eq!(add(&mut table, FOUR, "d:3", None, false), Ok(true));
    assert_eq!(table.nodes[&FOUR], row("d:3", 44, &["log"]), "all else stays");
    let taken = ChangeError::AddressTaken { peer: "a:1".into(), by: NodeId(1) };
    assert_eq!(add(&mut table, FOUR, "a:1", None, false), Err(taken.clone()));
    assert_eq!(add(&mut table, NodeId(5), "a:1", None, false), Err(taken));
}

#[test]
fn roles_of_a_member_are_its_own_matter() {
    let mut table = one();
    let all = roles(&["sequencer", "meta", "log"]);
    assert_eq!(add(&mut table, NodeId(1), "a:1", Some(&all), true), Ok(false));
    assert_eq!(
        add(&mut table, NodeId(1), "a:1", Some(&roles(&["log"])), true),
        Err(ChangeError::HasOtherRoles { node: NodeId(1), has: all })
    );
}

#[test]
fn a_drain_is_taken_back() {
    let mut table = one();
    table.nodes.entry(NodeId(1)).and_modify(|m| m.draining = true);
    assert_eq!(add(&mut table, NodeId(1), "a:1", None, true), Ok(true));
    assert!(!table.nodes[&NodeId(1)].draining);
}

#[test]
fn a_table_of_the_first_format_is_read_and_later_ones_are_refused() {
    let table = one();
    let value = table.encode();
    assert_eq!(value[0], 1, "as long as nobody is expected, older versions read it");
    assert_eq!(MemberTable::decode(7, value.clone()), Ok(table));
    let mut later = value.to_vec();
    later[0] = 3;
    assert!(MemberTable::decode(7, later.into()).is_err());
}

/// A register with prepared answers, each given once: the values that are read, and why writes fail. Afterwards, reads return `usual`, and
/// writes find another version.
#[derive(Debug)]
struct Scripted {
    reads: Mutex<VecDeque<Result<Bytes, RegisterError>>>,
    writes: Mutex<VecDeque<RegisterError>>,
    usual: Bytes,
}

impl Scripted {
    fn new(reads: Vec<Result<Bytes, RegisterError>>, writes: Vec<RegisterError>, usual: Bytes) -> Arc<Self> {
        Arc::new(Scripted { reads: Mutex::new(reads.into()), writes: Mutex::new(writes.into()), usual })
    }

    /// The version never changes, so that no value is newer than what the node knows.
    fn at(value: Bytes) -> Versioned {
        Versioned { version: Version(7), value, nonce: Nonce(1) }
    }
}

impl Register for Scripted {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        let next = self.reads.lock().unwrap().pop_front().unwrap_or_else(|| Ok(self.usual.clone()));
        Box::pin(std::future::ready(next.map(Self::at)))
    }

    fn write_if(&self, _: Version, _: Bytes, _: Nonce) -> BoxFuture<'_, Result<Written, RegisterError>> {
        let now = Self::at(self.usual.clone());
        let failed = self.writes.lock().unwrap().pop_front();
        Box::pin(std::future::ready(failed.map_or(Ok(Written::Conflict(now)), Err)))
    }
}

/// Runs a change on node 1, whose table of members is in this register, and returns its result.
fn run<F>(members: Arc<Scripted>, change: impl FnOnce(Env, Members, Changes) -> F) -> F::Output
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut core = NodeCore::new(NodeId(1), Incarnation(1), 1);
    let env = core.env();
    // Otherwise the node would store the level first, in a role that this core does not have.
    env.levels().learn(Level(2)).unwrap();
    let identity = Identity {
        node: NodeId(1),
        incarnation: Incarnation(1),
        storage: StorageId(11),
        log: true,
        sequencer: true,
        meta: true,
        draining: false,
        failed: false,
    };
    let view = Members::new(identity, one());
    let changes = Changes::new(env.clone(), members, view.clone());
    let mut done = env.launch("test", change(env.clone(), view, changes));
    let mut now = Tick(0);
    loop {
        core.turn(now, &mut Outputs::default());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        if let std::task::Poll::Ready(done) = std::pin::Pin::new(&mut done).poll(&mut cx) {
            return done.unwrap();
        }
        now = now.after(Duration::from_millis(100));
    }
}

const QUORUM: RegisterError = RegisterError::NotWritten(Unavailability::NoQuorum);
const DOUBT: RegisterError = RegisterError::Unknown(Unavailability::NoQuorum);

/// What [`Changes::add`] returns when the register answers like this, first the reads, then the writes.
fn added(
    reads: Vec<Result<Bytes, RegisterError>>,
    writes: Vec<RegisterError>,
) -> Result<(MemberTable, bool), ChangeError> {
    let register = Scripted::new(reads, writes, one().encode());
    run(register, |_, _, changes| async move { changes.add(FOUR, "d:1", None).await })
}

#[test]
fn a_failure_after_a_write_in_doubt_leaves_the_doubt() {
    assert_eq!(added(vec![Err(QUORUM)], vec![]), Err(QUORUM.into()), "nothing was sent");
    assert_eq!(added(vec![], vec![QUORUM]), Err(QUORUM.into()), "nothing was written");
    assert_eq!(added(vec![], vec![]), Err(ChangeError::Contended));
    let unread = added(vec![Ok(one().encode()), Err(QUORUM)], vec![DOUBT]);
    assert_eq!(unread, Err(DOUBT.into()), "the table could not be read again");
    let unwritten = added(vec![], vec![DOUBT, QUORUM]);
    assert_eq!(unwritten, Err(DOUBT.into()), "the second write failed for sure, the first did not");
    let contended = added(vec![], vec![DOUBT]);
    assert_eq!(contended, Err(RegisterError::Unknown(Unavailability::Busy).into()));
}

#[test]
fn a_refusal_after_a_write_in_doubt_leaves_the_doubt() {
    let mut two = one();
    two.nodes.insert(FOUR, row("d:1", 44, &["log"]));
    let drained = |reads: &[&MemberTable], writes| {
        let reads = reads.iter().map(|table| Ok(table.encode())).collect();
        let register = Scripted::new(reads, writes, one().encode());
        run(register, |_, _, changes| async move { changes.drain(FOUR).await })
    };
    let refused = drained(&[], vec![]);
    assert_eq!(refused, Err(ChangeError::NotAMember(FOUR)), "nothing was sent");
    // It was a member at the first attempt, which may have drained it. Then another operator removed it.
    assert_eq!(drained(&[&two], vec![DOUBT]), Err(DOUBT.into()));
    assert_eq!(drained(&[&two], vec![]), Err(ChangeError::NotAMember(FOUR)), "another change was faster");
    let mut draining = two.clone();
    draining.nodes.entry(FOUR).and_modify(|m| m.draining = true);
    assert!(drained(&[&two, &draining], vec![DOUBT]).is_ok_and(|(_, changed)| changed));
}

/// What [`Upgrades::raise`] to level 2 returns if the active level is 1 at first, and `then` at the second attempt.
fn raised(writes: Vec<RegisterError>, then: u16) -> Result<LevelReport, UpgradeError> {
    let at = |active| LevelTable {
        version: 7,
        active: Level(active),
        founding: false,
        announced: [(NodeId(1), LevelRange::OURS)].into(),
    };
    let levels = Scripted::new(vec![Ok(at(1).encode())], writes, at(then).encode());
    let members = Scripted::new(vec![], vec![], one().encode());
    run(members, |env, view, changes| async move {
        Upgrades::new(env, levels, view, changes).raise(Some(Level(2))).await
    })
}

#[test]
fn a_raise_whose_write_in_doubt_was_made_has_raised_the_level() {
    let done = raised(vec![DOUBT], 2).unwrap();
    assert_eq!((done.raised, done.table.active), (true, Level(2)));
    let done = raised(vec![], 2).unwrap();
    assert_eq!((done.raised, done.table.active), (false, Level(2)), "another call was faster");
    let lower = UpgradeError::Lower { to: Level(2), active: Level(3) };
    assert_eq!(raised(vec![], 3), Err(lower));
    assert_eq!(raised(vec![DOUBT], 3), Err(DOUBT.into()), "it may have been raised to 2 before");
}

#[test]
fn the_address_of_a_node_that_others_reach_stays() {
    let mut five = one();
    for (node, peer) in [(2, "b:1"), (3, "c:1"), (4, "d:1"), (5, "e:1")] {
        five.nodes.insert(NodeId(node), row(peer, node.into(), &["log"]));
    }
    let moved = |reached: bool| {
        let five = MemberTable { version: 8, ..five.clone() };
        let register = Scripted::new(vec![], vec![], five.encode());
        run(register, move |_, view, changes| async move {
            view.adopt(five);
            let reaches = [1, 2, 3, 5].map(NodeId).into_iter().chain(reached.then_some(FOUR));
            let told = Report { reaches: reaches.collect(), ..Report::default() };
            for peer in [2, 3, 5].map(NodeId) {
                view.note(Tick(0), peer, true, Some(told.clone()));
            }
            view.note(Tick(0), FOUR, false, None);
            changes.add(FOUR, "d:2", None).await.map(|(_, changed)| changed)
        })
    };
    assert_eq!(moved(true), Err(ChangeError::IdTaken { node: FOUR, peer: "d:1".into() }));
    assert_eq!(moved(false), Err(ChangeError::Contended), "nobody reaches it, so the write is tried");
}

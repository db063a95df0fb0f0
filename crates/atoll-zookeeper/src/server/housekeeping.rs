//! The door's background work: it expires the sessions that this node holds, takes over sessions without a holder, deletes znodes
//! that are due, and disconnects the clients when this node has lost the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::level::since;
use atoll_core::{Incarnation, NodeId};
use atoll_db::{Direction, Proposer};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Shared, admin, frame, membership};
use crate::command::{CloseSession, Command, EndSession, ExpireSession, Reap, TakeOver};
use crate::session::keeper::{self, Expired, JUDGED_EVERY};
use crate::session::state::TAKEN_AT_ONCE;
use crate::tree::read::ReadError;
use crate::tree::weight::STEP_WEIGHT_BYTES;
use crate::tree::{key, read};
use crate::watch::outbox::End;

/// How often to look for sessions without a holder.
const LOOKED_EVERY: Duration = Duration::from_millis(500);
/// A holder must be missing in this many checks in a row before the first node takes over its sessions.
const LOOKS: usize = 2;
/// Each further node waits this many more checks for each living node with a lower id.
const LOOKS_MORE: usize = 4;
/// How often to ask the log for its tail.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// A node that has not reached the log for this long disconnects its clients. Seven eighths of the shortest session timeout apply
/// instead if that is less. By then other nodes take over its sessions and will expire them, and a client that is still served here
/// would not know.
const OUT_OF_TOUCH: Duration = Duration::from_millis(3_500);
/// Most sessions to begin expiring in one round.
const MAX_EXPIRING: usize = 1_000;
/// Expiries in the log at the same time. Each may delete as many ephemerals as one step allows, and every write behind it waits for
/// that.
const EXPIRING_AT_ONCE: usize = 4;
/// Between two further steps of a session's end, the node pauses for this many times the duration of a step.
const RESTS_FOR: u32 = 2;
/// Most znodes that one command deletes.
const REAPED_AT_ONCE: usize = 500;

/// Runs the background work until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    tokio::join!(
        expire(&shared),
        take_over(&shared),
        reap(&shared),
        stay_in_touch(&shared),
        admin::restore::give_up(&shared),
        membership::run(&shared)
    );
}

pub(crate) fn every(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Proposes a command and waits for its answer. Returns true if the command had an effect. Returns false if it had none or if that
/// is unknown, so the caller must examine the state again.
pub(crate) async fn did(shared: &Shared, command: &Command<'_>) -> bool {
    let Ok(proposed) = shared.engine.propose(command.to_bytes().into()) else { return false };
    match proposed.await {
        Ok(Ok(applied)) => applied.reply.is_ok_and(|answer| frame::head(&answer).err == 0),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a command of the ZooKeeper door has no answer");
            false
        }
        Err(_) => false,
    }
}

async fn stay_in_touch(shared: &Arc<Shared>) {
    let shortest = u64::try_from(shared.options.min_session_timeout_ms).unwrap_or(0);
    let out_of_touch = OUT_OF_TOUCH.min(Duration::from_millis(shortest / 8 * 7));
    let mut ticks = every(ASKED_EVERY.min(out_of_touch / 2));
    let mut reached = Instant::now();
    loop {
        ticks.tick().await;
        if shared.engine.is_withheld() {
            tracing::warn!("the state of this replica is wrong; its ZooKeeper clients must use other nodes");
            shared.end_read_only();
            shared.sessions.end_all(End::OutOfTouch);
            continue;
        }
        if let Some(why) = shared.engine.out_of_service() {
            tracing::warn!(%why, "this replica is out of service; other nodes decide when its clients' sessions expire");
            shared.sessions.set_out_of_touch(true);
            shared.out_of_touch();
            continue;
        }
        let began = Instant::now();
        if matches!(tokio::time::timeout(out_of_touch, shared.engine.barrier()).await, Ok(Ok(Ok(_)))) {
            reached = began;
            shared.sessions.set_out_of_touch(false);
            shared.end_read_only();
        } else if reached.elapsed() >= out_of_touch {
            shared.sessions.set_out_of_touch(true);
            shared.out_of_touch();
        }
    }
}

/// Permits for sessions that are ending. Their deletions are applied before the writes behind them, so the number that run at a
/// time is bounded.
struct Turns {
    /// For the first step of each expiring session.
    expiring: Semaphore,
    /// For the further steps of sessions with many ephemerals, one session at a time.
    ending: Semaphore,
}

async fn expire(shared: &Arc<Shared>) {
    let turns = Arc::new(Turns { expiring: Semaphore::new(EXPIRING_AT_ONCE), ending: Semaphore::new(1) });
    let mut ticks = every(JUDGED_EVERY);
    loop {
        ticks.tick().await;
        shared.window.look(shared.cluster.longest_apply_delay());
        let mut silent = shared.sessions.take_expired(Instant::now());
        let later = silent.split_off(silent.len().min(MAX_EXPIRING));
        later.into_iter().for_each(|s| shared.sessions.spare(s));
        for one in silent {
            // Do not wait for these: the next check is due, whatever their outcome.
            tokio::spawn(expire_one(shared.clone(), turns.clone(), one));
        }
    }
}

async fn expire_one(shared: Arc<Shared>, turns: Arc<Turns>, silent: Expired) {
    let Expired { session, moves, .. } = silent;
    if silent.is_ending {
        let _turn = turns.ending.acquire().await;
        loop {
            let began = Instant::now();
            // A step that has no effect means that the session is gone, or that the outcome is unknown.
            if !did(&shared, &end_of(&shared, session, moves, false)).await {
                return shared.sessions.spare(silent);
            }
            // These pauses leave most of the replicas' time to other work, even if other nodes end sessions, too.
            tokio::time::sleep(began.elapsed() * RESTS_FOR).await;
        }
    }
    let _turn = turns.expiring.acquire().await;
    if did(&shared, &end_of(&shared, session, moves, false)).await {
        tracing::info!(
            session = format!("{session:#x}"),
            "a ZooKeeper session expired: its client was silent"
        );
        shared.figures.expired.add(1);
    } else {
        shared.sessions.spare(silent);
    }
}

/// Returns the command that ends a session or begins to end it: `closed` by its client, or else expired because the client was
/// silent.
pub(crate) fn end_of(shared: &Shared, session: i64, moves: i64, closed: bool) -> Command<'static> {
    if shared.engine.level() >= since::ENDS_IN_STEPS {
        let at_most = shared.options.ephemerals_at_once;
        return Command::End(EndSession { session, moves, at_most, closed });
    }
    match closed {
        true => Command::Close(CloseSession { session, moves }),
        false => Command::Expire(ExpireSession { session, moves }),
    }
}

/// Returns the number of living nodes with a lower id than this one. Work that any node may do is done by the first node. The
/// others do it only if the first one does not, for example because it runs no such door.
pub(crate) fn rank(shared: &Shared) -> usize {
    let me = shared.engine.proposer().node;
    shared.cluster.living().into_iter().filter(|node| *node < me).count()
}

/// Takes over the sessions of this node's earlier lives and of nodes that are gone. If two nodes try this, the second one finds
/// none left.
async fn take_over(shared: &Arc<Shared>) {
    // Nothing can be read before the start check is over. This cannot fail here, because the engine outlives this task.
    let _ = shared.engine.checked().await;
    let mut ticks = every(LOOKED_EVERY);
    let mut missing: BTreeMap<Proposer, usize> = BTreeMap::new();
    loop {
        ticks.tick().await;
        // A scan may have to skip many deleted keys of sessions that are gone, so it must not run on the thread that serves the
        // clients.
        let view = shared.engine.view();
        let holders = match shared.beside(move || keeper::holders(&view)).await {
            Ok(Ok(holders)) => holders,
            Ok(Err(error)) => {
                tracing::error!(%error, "the holders of ZooKeeper sessions cannot be read");
                continue;
            }
            Err(error) => {
                tracing::error!(%error, "the search for the holders of ZooKeeper sessions failed");
                continue;
            }
        };
        let me = shared.engine.proposer();
        let living = shared.cluster.living();
        let gone = |h: &Proposer| is_gone(*h, me, &living, shared.cluster.life(h.node));
        let seen = |h: Proposer| (h, missing.get(&h).map_or(1, |looks| looks + 1));
        missing = holders.into_iter().filter(gone).map(seen).collect();
        // One late heartbeat is not enough, and a node that has restarted should take back its own sessions, to which its clients return.
        // An earlier life of this node is certainly over.
        let patience = LOOKS + LOOKS_MORE * rank(shared);
        for (holder, _) in missing.iter().filter(|(h, looks)| h.node == me.node || **looks >= patience) {
            take_from(shared, *holder).await;
        }
    }
}

/// Returns whether a holder of sessions is gone: its node is, or it is an earlier life of its node. `life` is the life that the node is in,
/// if that is known. It matters for a node that was restarted without this door: nobody there takes back its sessions.
fn is_gone(holder: Proposer, me: Proposer, living: &[NodeId], life: Option<Incarnation>) -> bool {
    if holder.node == me.node {
        return holder != me;
    }
    !living.contains(&holder.node) || life.is_some_and(|life| life != holder.incarnation)
}

async fn take_from(shared: &Arc<Shared>, holder: Proposer) {
    let command =
        Command::TakeOver(TakeOver { node: holder.node.0.into(), incarnation: holder.incarnation.0 });
    let mut rounds = 0_usize;
    while did(shared, &command).await {
        rounds += 1;
    }
    if rounds == 0 {
        return;
    }
    let at_most = rounds.saturating_mul(TAKEN_AT_ONCE);
    if holder.node == shared.engine.proposer().node {
        tracing::info!(
            at_most,
            "took back the ZooKeeper sessions that this node held before it was restarted"
        );
    } else {
        tracing::info!(node = %holder.node, at_most, "took over the ZooKeeper sessions of a node that is gone");
    }
}

/// Deletes containers and znodes whose time to live has passed. The first living node does this in each round, the others less
/// often.
async fn reap(shared: &Arc<Shared>) {
    if shared.options.reap_every.is_zero() {
        return;
    }
    let mut ticks = every(shared.options.reap_every);
    for round in 1_usize.. {
        ticks.tick().await;
        if round % (1 + LOOKS_MORE * rank(shared)) != 0 {
            continue;
        }
        let view = shared.engine.view();
        let now_ms = shared.cluster.wall_ms();
        let due = shared.beside(move || find_due(&view, now_ms)).await;
        match due {
            Ok(Ok(due)) => {
                for some in in_steps(&due) {
                    let paths = some.iter().map(|(path, _)| path.as_str()).collect();
                    did(shared, &Command::Reap(Reap { paths })).await;
                }
            }
            Ok(Err(error)) => tracing::error!(%error, "ZooKeeper's containers cannot be searched"),
            Err(error) => tracing::error!(%error, "the search for ZooKeeper's containers failed"),
        }
    }
}

/// Splits the znodes that are due, each with the length of its data, so that no command has too many or deletes too much data.
fn in_steps(due: &[(String, usize)]) -> impl Iterator<Item = &[(String, usize)]> {
    let (mut count, mut bytes) = (0, 0);
    due.chunk_by(move |(_, length), (_, next)| {
        (count, bytes) = (count + 1, bytes + length);
        let fits = count < REAPED_AT_ONCE && bytes + next <= STEP_WEIGHT_BYTES;
        if !fits {
            (count, bytes) = (0, 0);
        }
        fits
    })
}

/// Most znodes to find in one round.
const MAX_DUE: usize = 100_000;

/// Returns the paths of znodes that are due, and the lengths of their data in bytes.
fn find_due(view: &atoll_db::View, now_ms: i64) -> Result<Vec<(String, usize)>, ReadError> {
    let mut due = Vec::new();
    for found in view.scan(&key::transients(), Direction::Forward) {
        let (key, _) = found?;
        let Some(path) = key::path_behind(&key, key::TRANSIENT_HEAD) else { continue };
        let node = read::node(view, path)?;
        if let Some(node) = node.filter(|node| crate::tree::reap::is_due(node, now_ms)) {
            due.push((path.to_owned(), node.data.length()));
        }
        if due.len() == MAX_DUE {
            break;
        }
    }
    Ok(due)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_deleted_in_steps() {
        let steps = |lengths: &[usize]| {
            let due: Vec<_> = lengths.iter().map(|length| (String::new(), *length)).collect();
            let steps: Vec<usize> = in_steps(&due).map(<[_]>::len).collect();
            assert_eq!(steps.iter().sum::<usize>(), lengths.len());
            steps
        };
        assert_eq!(steps(&[]), [0; 0]);
        assert_eq!(steps(&vec![0; 2 * REAPED_AT_ONCE + 1]), [REAPED_AT_ONCE, REAPED_AT_ONCE, 1]);
        let half = STEP_WEIGHT_BYTES / 2;
        assert_eq!(steps(&[half, half, 0, 1, half, half, half + 1, half]), [3, 2, 1, 1, 1]);
    }

    #[test]
    fn a_holder_is_gone_with_its_node_or_with_its_life() {
        let proposer = |node, life| Proposer { node: NodeId(node), incarnation: Incarnation(life) };
        let living = [NodeId(1), NodeId(2)];
        let gone =
            |holder, life: Option<u64>| is_gone(holder, proposer(1, 10), &living, life.map(Incarnation));
        assert!(!gone(proposer(1, 10), None));
        assert!(gone(proposer(1, 9), None), "an earlier life of this node");
        assert!(!gone(proposer(2, 20), None), "it lives, and nothing is known of its life");
        assert!(!gone(proposer(2, 20), Some(20)));
        assert!(gone(proposer(2, 20), Some(21)), "it was restarted, perhaps without this door");
        assert!(gone(proposer(3, 30), Some(30)), "it does not answer");
    }
}

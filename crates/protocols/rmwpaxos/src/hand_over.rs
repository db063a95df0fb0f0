//! Sealed hand-over of a group (§9a): ask whether the next group is there (rmw-H0), choose it (rmw-H1), fence (rmw-H2), list (rmw-H3),
//! make each register final (rmw-H4), install it in the next group (rmw-H5), open that group (rmw-H6). Every step is idempotent, and
//! several movers may run it at once; the documentation of [`super`] contains the argument.

use std::collections::VecDeque;
use std::sync::Arc;

use atoll_contract::register::Unavailability;
use atoll_core::testing::hit;
use atoll_core::{Env, ForRole, NodeId, Tick, Ticket, invariant};

use super::group::{GroupConfig, InvalidGroup, Member};
use super::list;
use super::message::{DoneReply, Fence, Install, List, ListReply, Open, Reject, Status};
use super::proposer::Failure;
use super::read;
use super::registers::{ROOT, Shared};
use super::round::{Answers, RoundStep, Setback, ask, learn, to_all};
use super::state::{Command, CommandOutcome, RegisterState};

/// Number of registers that a mover moves at the same time.
const MOVES_AT_ONCE: usize = 16;

/// Why a hand-over was not completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// The members do not form a valid group; nothing happened.
    #[error("these members are no group: {0}")]
    Invalid(#[from] InvalidGroup),
    /// Another hand-over was chosen and completed; this one did not happen. Decide again.
    #[error("another hand-over came first; now {now} serves")]
    Overtaken {
        /// The group that serves now.
        now: GroupConfig,
    },
    /// Too few of the next group's data directories can take part, or one of them is gone. Nothing happened.
    #[error("{next} cannot take over: {there} of its data directories can take part, {lost} are lost")]
    NotThere {
        /// The group that was wanted.
        next: GroupConfig,
        /// Members that answered from the data directory that was wanted, with an open journal.
        there: usize,
        /// Members whose node answered with another data directory.
        lost: usize,
    },
    /// The hand-over may be partly done. Nothing is lost, and any node can finish it by repeating the call.
    #[error("the hand-over is not finished: {0}; call again to finish it")]
    Unfinished(Unavailability),
}

/// Why a step of a mover ended early.
enum Stop {
    /// The next group already serves: another mover did everything.
    Complete,
    Failed(Unavailability),
}

/// See [`super::RmwRegisters::hand_over`].
pub(super) async fn hand_over(
    shared: &Arc<Shared>,
    members: Vec<Member>,
) -> Result<GroupConfig, HandOverError> {
    GroupConfig::new(1, members.clone())?;
    // A hand-over may already be in progress, or this node may know only an old group.
    let old = resume(shared).await?;
    let next = GroupConfig::new(old.epoch + 1, members)?;
    if next.members == old.members {
        return Ok(old);
    }
    // rmw-H0
    is_there(shared, &next).await?;
    // rmw-H1
    let chosen = match make_final(shared, ROOT, &old, &next).await {
        Ok(state) => state.moved,
        Err(Stop::Complete) => return Err(HandOverError::Overtaken { now: shared.group() }),
        Err(Stop::Failed(why)) => return Err(HandOverError::Unfinished(why)),
    };
    hit("rmw.move.chosen");
    let Some(chosen) = chosen else { return Err(HandOverError::Unfinished(Unavailability::NoQuorum)) };
    finish(shared, &old, &chosen).await?;
    if chosen == next { Ok(next) } else { Err(HandOverError::Overtaken { now: shared.group() }) }
}

/// Checks that the members of the next group answer (rmw-H0): a chosen successor cannot be withdrawn, and without a majority of its
/// members nothing can ever be installed in it. A wiped disk is another member (rmw-T9), so a slightly stale member table may name a disk
/// that is already lost: decide again with a newer one. A member whose journal is closed is like one that is down: it cannot help now,
/// but its promises and votes are on its disk, and count again after a restart. If it were refused, a closed journal would keep a group
/// from replacing the lost disk of another member.
async fn is_there(shared: &Shared, next: &GroupConfig) -> Result<(), HandOverError> {
    let until = shared.env.now().after(shared.options.reply_timeout);
    // For a group that it does not know yet, an acceptor reports only whether the identity is its own.
    let requests = to_all(next, |to| List { to, prefix: String::new(), after: None, moving: false });
    let can_help = |why: &Reject| !matches!(why, Reject::WrongIdentity { .. } | Reject::StorageFailed {});
    let count_there = |answers: &Answers<ListReply>| {
        answers.taken().count() + answers.rejections().filter(|(_, why)| can_help(why)).count()
    };
    let all = |answers: &Answers<ListReply>| match answers.outstanding() {
        0 => RoundStep::Done,
        _ if count_there(answers) >= next.majority() => RoundStep::Soon,
        _ => RoundStep::Wait,
    };
    let answers = ask(&shared.env, requests, until, shared.options.grace, all).await;
    let there = count_there(&answers);
    let lost = answers.rejections().filter(|(_, why)| matches!(why, Reject::WrongIdentity { .. })).count();
    if lost > 0 || there < next.majority() {
        hit("rmw.move.not_there");
        return Err(HandOverError::NotThere { next: next.clone(), there, lost });
    }
    Ok(())
}

/// Finishes a hand-over that is in progress, if there is one. Returns the group that serves afterwards.
pub(super) async fn resume(shared: &Arc<Shared>) -> Result<GroupConfig, HandOverError> {
    let proposer = shared.proposer(ROOT).ok_or(HandOverError::Unfinished(Unavailability::Busy))?;
    // A read never answers from a final state: it makes sure that the next group serves, and reads there.
    match read::read(shared, &proposer, shared.step_deadline()).await {
        Ok(_) => Ok(shared.group()),
        Err(Failure::No(why) | Failure::Unknown(why)) => Err(HandOverError::Unfinished(why)),
        Err(Failure::Overtaken) => Err(HandOverError::Unfinished(Unavailability::NoQuorum)),
    }
}

/// Waits for `next` to serve. If no mover completes the hand-over in time, completes it itself.
pub(super) async fn follow(shared: &Arc<Shared>, old: &GroupConfig, next: &GroupConfig) {
    let nodes: Vec<NodeId> = next.members.iter().chain(&old.members).map(|m| m.node).collect();
    let patience = shared.env.now().after(shared.env.jitter(shared.options.roll_forward_after));
    while shared.group().epoch == old.epoch {
        let until = shared.env.now().after(shared.options.back_off * 2);
        if let Some(group) = newest_group(&shared.env, &nodes, until).await {
            shared.adopt(&group);
        }
        if shared.group().epoch == old.epoch && shared.env.now() >= patience {
            hit("rmw.move.rolled_forward");
            // The waiting operation retries.
            let _ = finish(shared, old, next).await;
            return;
        }
        shared.env.sleep(shared.env.jitter(shared.options.back_off)).await;
    }
}

/// Returns the newest serving group that any of these nodes knows.
pub(super) async fn newest_group(env: &Env, nodes: &[NodeId], until: Tick) -> Option<GroupConfig> {
    let mut nodes = nodes.to_vec();
    nodes.sort();
    nodes.dedup();
    let enough = nodes.len() / 2 + 1;
    let replies = env.gather(&nodes, Status {}, until, |r| r.ok().count() >= enough).await;
    replies.into_ok().filter_map(|(_, r)| r.serving).max_by_key(|g| g.epoch)
}

/// Runs rmw-H2 to rmw-H6. On success, the next group or a later one serves.
async fn finish(shared: &Arc<Shared>, old: &GroupConfig, next: &GroupConfig) -> Result<(), HandOverError> {
    match steps(shared, old, next).await {
        Ok(()) | Err(Stop::Complete) => Ok(()),
        Err(Stop::Failed(why)) => Err(HandOverError::Unfinished(why)),
    }
}

/// Each step has a deadline of its own ([`Shared::step_deadline`]): a hand-over may take as long as it has registers to move, but it must
/// progress.
async fn steps(shared: &Arc<Shared>, old: &GroupConfig, next: &GroupConfig) -> Result<(), Stop> {
    fence(shared, old, next).await?;
    hit("rmw.move.fenced");
    // What a mover on this node has carried over stays so; the documentation of [`super`] contains the argument.
    let mut after = shared.carried(old.epoch);
    if after.is_some() {
        hit("rmw.move.continued");
    }
    loop {
        let page = fenced_page(shared, old, next, after.as_deref()).await?;
        hit("rmw.move.listed");
        let names: Vec<String> = page.names.into_keys().filter(|n| n != ROOT).collect();
        carry_all(shared, old, next, names).await?;
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    hit("rmw.move.installed");
    open(shared, old, next).await
}

/// Returns whether a step of a mover is done after one round. If not, pauses before the next round.
async fn is_done(
    shared: &Shared,
    old: &GroupConfig,
    result: Result<bool, Setback>,
    deadline: Tick,
    failures: &mut u32,
) -> Result<bool, Stop> {
    if shared.group().epoch > old.epoch {
        return Err(Stop::Complete);
    }
    let why = match result {
        Ok(true) => return Ok(true),
        Err(Setback::StorageFailed) => Unavailability::StorageFailed,
        _ => Unavailability::NoQuorum,
    };
    if shared.env.now() >= deadline {
        return Err(Stop::Failed(why));
    }
    *failures += 1;
    shared.back_off(*failures).await;
    Ok(false)
}

fn done_by(majority: usize) -> impl FnMut(&Answers<DoneReply>) -> RoundStep {
    move |answers| {
        let n = answers.taken().count();
        if n >= majority || answers.hopeless(n, majority) { RoundStep::Done } else { RoundStep::Wait }
    }
}

/// Fences a majority of the old group (rmw-H2).
async fn fence(shared: &Shared, old: &GroupConfig, next: &GroupConfig) -> Result<(), Stop> {
    let deadline = shared.step_deadline();
    let mut failures = 0;
    loop {
        let result = fence_once(shared, old, next).await;
        if is_done(shared, old, result, deadline, &mut failures).await? {
            return Ok(());
        }
    }
}

async fn fence_once(shared: &Shared, old: &GroupConfig, next: &GroupConfig) -> Result<bool, Setback> {
    let majority = old.majority();
    let until = shared.env.now().after(shared.options.reply_timeout);
    let requests = to_all(old, |to| Fence { to, next: next.clone() });
    let answers = ask(&shared.env, requests, until, shared.options.grace, done_by(majority)).await;
    match learn(shared, old, &answers) {
        Some(setback) => Err(setback),
        None => Ok(answers.taken().count() >= majority),
    }
}

/// Returns one page of the names that a fenced majority holds (rmw-H3).
async fn fenced_page(
    shared: &Shared,
    old: &GroupConfig,
    next: &GroupConfig,
    after: Option<&str>,
) -> Result<list::Page, Stop> {
    let deadline = shared.step_deadline();
    let mut failures = 0;
    loop {
        let result = match list::page(shared, old, "", after, true, deadline).await {
            Ok(page) => return Ok(page),
            Err(setback) => setback,
        };
        // Acceptors outside the first majority may not be fenced yet, and may be needed now.
        let _ = fence_once(shared, old, next).await;
        is_done(shared, old, Err(result), deadline, &mut failures).await?;
    }
}

/// Runs rmw-H4 and rmw-H5 for a page of registers, several at a time.
async fn carry_all(
    shared: &Arc<Shared>,
    old: &GroupConfig,
    next: &GroupConfig,
    names: Vec<String>,
) -> Result<(), Stop> {
    let mut waiting = names.into_iter();
    let mut running: VecDeque<(String, Ticket<Result<(), Stop>>)> = VecDeque::new();
    loop {
        for name in waiting.by_ref().take(MOVES_AT_ONCE - running.len()) {
            let (s, n, old, next) = (shared.clone(), name.clone(), old.clone(), next.clone());
            let carry = async move { carry(&s, &n, &old, &next).await };
            running.push_back((name, shared.env.launch("rmw.move.register", carry)));
        }
        let Some((name, ticket)) = running.pop_front() else { return Ok(()) };
        ticket.await.unwrap_or(Err(Stop::Failed(Unavailability::Stopping)))?;
        // The tickets are in the order of the names, so nothing is left before this one.
        shared.note_carried(old.epoch, name);
    }
}

async fn carry(shared: &Arc<Shared>, name: &str, old: &GroupConfig, next: &GroupConfig) -> Result<(), Stop> {
    let state = make_final(shared, name, old, next).await?;
    invariant!(
        state.moved.as_ref() == Some(next),
        "register {name:?} of {old} moved elsewhere than its group"
    );
    hit("rmw.move.final");
    // The register was never written, as far as a majority knows. It is just as empty in the next group without an install.
    if state.version == 0 {
        return Ok(());
    }
    install(shared, name, &RegisterState { moved: None, ..state }, old, next).await
}

/// Gets the final state of a register chosen, through the single proposer that this node has for it (rmw-H1, rmw-H4).
async fn make_final(
    shared: &Arc<Shared>,
    name: &str,
    old: &GroupConfig,
    next: &GroupConfig,
) -> Result<RegisterState, Stop> {
    let deadline = shared.step_deadline();
    let proposer = shared.proposer(name).ok_or(Stop::Failed(Unavailability::Busy))?;
    loop {
        let command = Command::Move { epoch: old.epoch, next: next.clone() };
        match proposer.submit(shared, command, deadline).await {
            Ok(Ok(CommandOutcome::State(state))) => return Ok(state),
            Ok(Err(Failure::Overtaken)) => return Err(Stop::Complete),
            Ok(Err(Failure::No(Unavailability::Busy))) if shared.env.now() < deadline => {
                shared.back_off(1).await
            }
            Ok(Err(Failure::No(why) | Failure::Unknown(why))) => return Err(Stop::Failed(why)),
            Ok(Ok(_)) | Err(_) => return Err(Stop::Failed(Unavailability::Stopping)),
        }
    }
}

/// Learns from answers of acceptors of a group that does not serve yet. Only a newer serving group counts. This never tells the acceptors
/// that the group serves.
fn learn_newer(shared: &Shared, answers: &Answers<DoneReply>) {
    for (_, why) in answers.rejections() {
        if let Reject::Moved { to } = why {
            shared.adopt(to);
        }
    }
}

/// Installs the register on a majority of the next group (rmw-H5).
async fn install(
    shared: &Shared,
    name: &str,
    state: &RegisterState,
    old: &GroupConfig,
    next: &GroupConfig,
) -> Result<(), Stop> {
    let bytes = state.written();
    let make = |m: &Member| Install {
        storage: m.storage,
        group: next.clone(),
        name: name.to_owned(),
        state: bytes.clone(),
    };
    to_next(shared, old, next, make).await
}

/// Runs a step on a majority of the next group.
async fn to_next<R: ForRole<Reply = DoneReply>>(
    shared: &Shared,
    old: &GroupConfig,
    next: &GroupConfig,
    make: impl Fn(&Member) -> R,
) -> Result<(), Stop> {
    let deadline = shared.step_deadline();
    let majority = next.majority();
    let mut failures = 0;
    loop {
        let until = shared.env.now().after(shared.options.reply_timeout);
        let requests = next.members.iter().map(|m| (m.node, make(m))).collect();
        let answers = ask(&shared.env, requests, until, shared.options.grace, done_by(majority)).await;
        learn_newer(shared, &answers);
        let result = Ok(answers.taken().count() >= majority);
        if is_done(shared, old, result, deadline, &mut failures).await? {
            return Ok(());
        }
    }
}

/// Opens the next group on a majority of its members (rmw-H6). Acceptors that are only in the old group are also notified. One that is not
/// reached keeps referring to the next group, register by register.
async fn open(shared: &Shared, old: &GroupConfig, next: &GroupConfig) -> Result<(), Stop> {
    to_next(shared, old, next, |m| Open { storage: m.storage, group: next.clone() }).await?;
    hit("rmw.move.opened");
    shared.adopt(next);
    for m in old.members.iter().filter(|m| !next.contains(m.node, m.storage)) {
        drop(shared.env.call(m.node, Open { storage: m.storage, group: next.clone() }));
    }
    Ok(())
}

//! Lets tombstones go (rmw-T11): once *all* acceptors of the group have voted for a deletion, and nothing has happened to the key since.

use std::sync::Arc;

use atoll_core::testing::hit;
use bytes::Bytes;

use crate::ballot::Ballot;
use crate::content::MAX_KEY_BYTES;
use crate::message::Step;
use crate::proposer::Proposer;
use crate::round::{Progress, Round, ask};
use crate::space::Shared;

/// How often an acceptor that does not answer is waited for. After that, the tombstone stays until the key is deleted again.
const TRIES: u32 = 4;

/// Begins to do so for a deletion that was chosen in this ballot.
pub(crate) fn later(shared: &Arc<Shared>, proposer: &Arc<Proposer>, ballot: Ballot, state: Bytes) {
    let Some(permit) = shared.may_forget() else {
        hit("in-place.forget.too_many");
        return;
    };
    let (shared, proposer) = (shared.clone(), proposer.clone());
    let env = shared.env.clone();
    // Nobody repeats a command on the record of a transaction that has ended.
    let is_record = proposer.key.len() > MAX_KEY_BYTES;
    let after = shared.options.forget_after / if is_record { 100 } else { 1 };
    let run = async move {
        let _permit = permit;
        for _ in 0..TRIES {
            shared.env.sleep(after).await;
            if !proposer.is_latest(ballot) || forget(&shared, &proposer, ballot, &state).await {
                return;
            }
        }
    };
    env.spawn("in-place.forget", Box::pin(run));
}

/// Repeats the vote, so that acceptors that have missed it give theirs, too. Returns true if there is nothing more to do.
async fn forget(shared: &Shared, proposer: &Proposer, ballot: Ballot, state: &Bytes) -> bool {
    let (group, key) = (&proposer.group, &proposer.key);
    let until = || shared.env.now().after(shared.options.reply_timeout);
    let all = |round: &Round| if round.open() == 0 { Progress::Done } else { Progress::Wait };
    let write = Step::Write { ballot, through: true, state: state.clone() };
    let round = ask(shared, group, key, &write, until(), all).await;
    let (votes, refusals) = round.votes();
    if votes < group.replicas.len() {
        return refusals > 0;
    }
    hit("in-place.forget.all_voted");
    ask(shared, group, key, &Step::Forget { ballot }, until(), all).await;
    true
}

//! Listing of keys (§10): for each group, the union of the keys that a majority of its acceptors has voted for. Where the votes for a key
//! agree, its version is known; the other keys are read one by one. The listing is in order, and not a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_contract::keyspace::{KeyVersion, ListFrom, Page, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Call, Env, Tick};
use bytes::Bytes;

use crate::ballot::Ballot;
use crate::content::MAX_KEY_BYTES;
use crate::message::{Create, GroupConfig, Keys, List, Listed, Reject};
use crate::space::{CommandError, InPlaceSpace, Shared};

/// The most keys in a page.
pub(crate) const MAX_PAGE_KEYS: usize = 1000;

/// The keys of a group, with the versions that are known, and how far they are complete.
struct Found {
    /// None: not there. Some(None): the votes for it differ.
    keys: BTreeMap<Bytes, Option<Option<u64>>>,
    upto: Option<Bytes>,
}

/// Returns a page of keys of all groups.
pub(crate) async fn list(space: &InPlaceSpace, from: ListFrom) -> Result<Page, Unavailability> {
    let shared: &Arc<Shared> = &space.0;
    let limit = from.limit.clamp(1, MAX_PAGE_KEYS);
    let deadline = shared.env.now().after(shared.options.patience);
    let mut asked = Vec::new();
    for shard in 0..shared.layout.shards.len() as u32 {
        let (me, from) = (shared.clone(), from.clone());
        asked.push(shared.env.launch("in-place.list", async move {
            let group = me.group(shard);
            of_group(&me, &group, &from, limit, deadline).await
        }));
    }
    let mut keys: BTreeMap<Bytes, Option<Option<u64>>> = BTreeMap::new();
    let mut upto: Option<Bytes> = None;
    for ticket in asked {
        let found = ticket.await.unwrap_or(Err(Unavailability::Stopping))?;
        keys.extend(found.keys);
        if let Some(end) = found.upto
            && upto.as_ref().is_none_or(|upto| end < *upto)
        {
            upto = Some(end);
        }
    }
    if let Some(upto) = &upto {
        keys.retain(|key, _| key <= upto);
    }
    let mut page = Page::default();
    for (key, known) in keys {
        if page.keys.len() == limit {
            page.more = true;
            page.upto = page.keys.last().map(|(key, _)| key.clone());
            return Ok(page);
        }
        let version = match known {
            Some(Some(version)) => Some(KeyVersion(version)),
            None => None,
            Some(None) => {
                hit("in-place.list.reads");
                let read = space.read(key.clone()).await.map_err(|error| match error {
                    CommandError::NotDone(why) => why,
                    _ => Unavailability::NoQuorum,
                });
                read?.held.map(|held| held.version)
            }
        };
        if let Some(version) = version {
            page.keys.push((key, version));
        }
    }
    page.more = upto.is_some();
    page.upto = upto;
    Ok(page)
}

async fn of_group(
    shared: &Shared,
    group: &GroupConfig,
    from: &ListFrom,
    limit: usize,
    deadline: Tick,
) -> Result<Found, Unavailability> {
    let mut failures = 0;
    while shared.env.now() < deadline {
        let until = deadline.min(shared.env.now().after(shared.options.reply_timeout));
        let answers = ask_all(&shared.env, group, from, limit, until).await;
        let (mut taken, mut moved) = (Vec::new(), 0);
        for (node, keys) in answers {
            match keys.rejected {
                None => taken.push(keys),
                Some(Reject::Dropped {}) => return Err(Unavailability::Gone),
                Some(Reject::Unknown {}) => {
                    let create = shared.env.call(node, Create { groups: vec![group.clone()] });
                    if let Ok(Ok(created)) = shared.env.within(shared.options.reply_timeout, create).await
                        && created.not_member > 0
                    {
                        shared.lost(group, node);
                    }
                }
                Some(Reject::Moved {}) => moved += 1,
                Some(_) => {}
            }
        }
        if taken.len() >= group.majority() {
            return Ok(merge(&taken, group.majority()));
        }
        if moved > group.replicas.len() - group.majority() {
            return Err(Unavailability::Gone);
        }
        if shared.is_lost(group) {
            return Err(Unavailability::LostMajority);
        }
        failures += 1;
        shared.back_off(failures, true).await;
    }
    Err(Unavailability::NoQuorum)
}

/// Merges the answers of a majority.
fn merge(taken: &[Keys], majority: usize) -> Found {
    // If an answer has more, its acceptor may hold keys after the last one that no other acceptor of this majority holds.
    let ends = taken.iter().filter(|keys| keys.more).filter_map(|keys| keys.keys.last());
    let upto = ends.map(|last| last.key.clone()).min();
    let mut votes: BTreeMap<Bytes, Vec<(Ballot, Option<u64>)>> = BTreeMap::new();
    let mut locked: BTreeSet<Bytes> = BTreeSet::new();
    // The engine's own registers have longer names than keys.
    let of_users = |listed: &&Listed| listed.key.len() <= MAX_KEY_BYTES;
    for listed in taken.iter().flat_map(|keys| &keys.keys).filter(of_users) {
        if upto.as_ref().is_none_or(|upto| listed.key <= *upto) {
            let key = Bytes::copy_from_slice(&listed.key);
            if listed.locked {
                locked.insert(key.clone());
            }
            votes.entry(key).or_default().push((listed.voted, listed.version));
        }
    }
    let known = |votes: Vec<(Ballot, Option<u64>)>| {
        let same = |ballot: Ballot| votes.iter().filter(|(other, _)| *other == ballot).count() >= majority;
        match votes.iter().find(|(ballot, _)| same(*ballot)) {
            Some((_, version)) => version.map(Some),
            None => Some(None),
        }
    };
    let known = |(key, votes): (Bytes, Vec<(Ballot, Option<u64>)>)| {
        let known = if locked.contains(&key) { Some(None) } else { known(votes) };
        (key, known)
    };
    Found { keys: votes.into_iter().map(known).collect(), upto }
}

/// Asks all acceptors of a group, and waits until all have answered or failed, or until a time.
async fn ask_all(
    env: &Env,
    group: &GroupConfig,
    from: &ListFrom,
    limit: usize,
    until: Tick,
) -> Vec<(atoll_core::NodeId, Keys)> {
    let list = |identity| List {
        group: group.key,
        identity,
        prefix: from.prefix.clone(),
        after: from.after.clone(),
        limit: limit as u32,
    };
    let calls: Vec<(atoll_core::NodeId, Call<List>)> =
        group.replicas.iter().map(|r| (r.node, env.call(r.node, list(r.identity)))).collect();
    let mut answers = Vec::new();
    for (node, call) in calls {
        let left = until.since(env.now());
        // With a majority of answers, the others get a moment.
        let left = if answers.len() >= group.majority() { left / 16 } else { left };
        if let Ok(Ok(keys)) = env.within(left, call).await {
            answers.push((node, keys));
        }
    }
    answers
}

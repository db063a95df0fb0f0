//! Reads entries from the log as they arrive and hands them to the applier. If the log no longer has the next entry, the replica is
//! refilled from a peer. If the replica has halted at an entry, it continues once surgery has changed that entry.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use atoll_contract::register::Nonce;
use atoll_contract::{LogPos, ReadFrom, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Completer, NodeId, Ticket};
use atoll_log::surgery::Surgery;
use atoll_log::{Chain, LogError, LogRead, LogReadError};

use super::Refilling;
use super::commit::Refill;
use super::database::Database;
use crate::entry::Delivered;
use crate::store::StoreError;
use crate::transfer;

/// The pause before the next attempt to read the log or to ask another peer.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a replica that has halted at an entry looks whether the entry was changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The event that ended a wait of the tailer.
enum Came {
    Entries(Result<LogRead, LogReadError>),
    /// No entry for a while, although some applied entries may not be committed.
    Nothing,
    /// This replica was found to be wrong, by a comparison with its peers or by a scrub.
    Wrong,
    /// A surgeon asks how far this replica is, and that it reads what it has not applied again.
    Fence(Vec<Completer<LogPos>>),
}

/// Returns whether surgery has changed an entry since a replica has read it with the change `seen`. A trim that passes the entry drops
/// the change; then a peer's state has what became of the entry.
fn is_changed(chain: &Chain, at: LogPos, seen: Option<Nonce>) -> bool {
    let surgery = chain.surgery();
    match chain.trim() > at {
        true => {
            let operated = surgery.records().iter().any(|record| record.at == at);
            if operated {
                hit("db.resumed.trimmed");
            }
            operated
        }
        false => surgery.patch(at).is_some_and(|patch| Some(patch.id) != seen),
    }
}

impl Database {
    /// Follows the log from `from` on, until the replica halts for good or its applier ends.
    pub(super) async fn run_tailer(self, from: LogPos) {
        self.to.settled().await;
        self.read_chain().await;
        let mut reader = self.to.log.reader(from, ReadFrom::Anywhere);
        let mut committed = true;
        // The changes of entries that this replica has read. Bounded, because the chain has few.
        let mut changed = BTreeMap::new();
        loop {
            if let Some(halt) = self.core.halted() {
                let Some(at) = halt.at_entry() else { return };
                if !self.resume(at, changed.get(&at).copied()).await {
                    return;
                }
                reader.seek(at);
            }
            let came = {
                let next = reader.next(self.options.read_bytes);
                self.wait(next, committed).await
            };
            match came {
                Came::Entries(Ok(read)) => {
                    committed = false;
                    changed.retain(|at, _| *at >= self.core.published().below);
                    changed.extend(read.patched.iter().map(|patched| (patched.at, patched.id)));
                    let room = self.feed(|feed| feed.entries(Delivered::all(read)));
                    if let Some(room) = room {
                        hit("db.tailer.full");
                        match self.unless_asked(room).await {
                            Ok(Ok(())) => {}
                            // The applier is gone.
                            Ok(Err(_)) => return,
                            Err(who) => {
                                let Some(next) = self.answer(who).await else { return };
                                reader.seek(next);
                            }
                        }
                    }
                }
                Came::Entries(Err(LogReadError::Trimmed(to))) => {
                    hit("db.tailer.trimmed");
                    self.refill(to, &mut reader).await;
                }
                Came::Entries(Err(error)) => self.trouble(error).await,
                Came::Nothing => {
                    self.feed(|feed| feed.commit());
                    committed = true;
                }
                Came::Wrong => {
                    hit("db.tailer.wrong");
                    self.refill(self.core.published().below, &mut reader).await;
                }
                Came::Fence(who) => {
                    let Some(next) = self.answer(who).await else { return };
                    reader.seek(next);
                }
            }
        }
    }

    /// Reads the chain. A replica that starts while surgery is under way must not pass the held position with a chain that this node has
    /// read before it became a member: until then, nobody asks it (virtuallog §7).
    async fn read_chain(&self) {
        loop {
            match self.to.log.refresh().await {
                Ok(Ok(_) | Err(LogError::NoSuchLog | LogError::Deleted)) => return,
                Ok(Err(error)) => self.trouble(error.into()).await,
                Err(_) => self.pause().await,
            }
        }
    }

    /// Waits until surgery has changed the entry at which this replica has halted, and continues. `seen` is the change with which it has
    /// read the entry. Returns false if the applier is gone.
    async fn resume(&self, at: LogPos, seen: Option<Nonce>) -> bool {
        let env = &self.to.env;
        loop {
            let mut nap = env.sleep(env.jitter(LOOK_EVERY));
            let asked = poll_fn(|cx| match self.core.poll_fence(cx) {
                Poll::Ready(who) => Poll::Ready(who),
                Poll::Pending => Pin::new(&mut nap).poll(cx).map(|()| Vec::new()),
            });
            // It stays where it is, and reads the entry again before it continues.
            asked.await.into_iter().for_each(|done| done.complete(at));
            if let Ok(Ok(chain)) = self.to.log.refresh().await
                && is_changed(&chain.chain, at, seen)
            {
                return self.feed(|feed| feed.rewind(true)).await.is_ok();
            }
        }
    }

    /// Tells surgeons how far this replica is, once it has dropped what it has read from the log and not applied. Returns that position,
    /// from which the log must be read again; None if the applier is gone.
    async fn answer(&self, who: Vec<Completer<LogPos>>) -> Option<LogPos> {
        hit("db.tailer.fenced");
        let next = self.feed(|feed| feed.rewind(false)).await.ok()?;
        who.into_iter().for_each(|done| done.complete(next));
        Some(next)
    }

    /// Waits for `what`, unless surgeons ask meanwhile how far this replica is: their surgery must not wait for what may take long, or
    /// for peers that wait for the surgery themselves.
    async fn unless_asked<F: Future>(&self, what: F) -> Result<F::Output, Vec<Completer<LogPos>>> {
        let mut what = pin!(what);
        poll_fn(move |cx| match what.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.core.poll_fence(cx).map(Err),
        })
        .await
    }

    async fn wait(&self, next: impl Future<Output = Result<LogRead, LogReadError>>, committed: bool) -> Came {
        let env = &self.to.env;
        let mut next = pin!(next);
        let mut idle = (!committed).then(|| env.sleep(self.options.idle_after));
        poll_fn(move |cx| {
            if let Poll::Ready(got) = next.as_mut().poll(cx) {
                return Poll::Ready(Came::Entries(got));
            }
            if self.core.poll_wrong(cx).is_ready() {
                return Poll::Ready(Came::Wrong);
            }
            if let Poll::Ready(who) = self.core.poll_fence(cx) {
                return Poll::Ready(Came::Fence(who));
            }
            match &mut idle {
                Some(idle) => Pin::new(idle).poll(cx).map(|()| Came::Nothing),
                None => Poll::Pending,
            }
        })
        .await
    }

    async fn trouble(&self, error: LogReadError) {
        // A log that does not exist yet is being created.
        if error != LogReadError::Log(LogError::NoSuchLog) {
            self.note(error.to_string());
        }
        self.pause().await;
    }

    fn note(&self, trouble: String) {
        self.core.figures(|f| f.trouble = Some(trouble));
    }

    async fn pause(&self) {
        self.to.env.sleep(self.to.env.jitter(PAUSE)).await;
    }

    /// Replaces the state with that of a peer. That state must include all entries below `at_least`. Tries the peers in turn until
    /// one succeeds.
    async fn refill(&self, at_least: LogPos, reader: &mut atoll_log::virtual_log::Reader) {
        let mut turn = self.to.env.random() as usize;
        loop {
            turn = turn.wrapping_add(1);
            let attempt = async {
                let fetched = self.fetch_state(turn, at_least).await;
                if let Err(why) = &fetched {
                    self.note(why.clone());
                    self.core.figures(|f| f.refilling = None);
                    self.pause().await;
                }
                fetched.is_ok()
            };
            let attempt = self.unless_asked(attempt).await;
            let finished = match attempt {
                Ok(true) => Some(self.step(Refill::Finish).await),
                Ok(false) => None,
                Err(who) => {
                    hit("db.refill.fenced");
                    self.answer(who).await;
                    None
                }
            };
            self.core.figures(|f| f.refilling = None);
            match finished {
                Some(Ok(below)) => return reader.seek(below),
                Some(Err(error)) => {
                    self.note(error.to_string());
                    self.pause().await;
                }
                None => {}
            }
        }
    }

    /// Returns the nodes of the other replicas that count as up.
    fn peers(&self) -> Vec<NodeId> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let peers = cluster.peers(self.to.env.node()).into_iter();
        peers.filter(|c| c.alive).map(|c| c.node).collect()
    }

    /// Fetches the state of a peer into the store, beside the state that this replica has.
    async fn fetch_state(&self, turn: usize, at_least: LogPos) -> Result<(), String> {
        let peers = self.peers();
        if peers.is_empty() {
            return Err(format!("no replica is up that could give the state below {at_least}"));
        }
        let before = self.surgery().await?;
        let below = self.fetch_from(peers[turn % peers.len()], at_least).await?;
        // The peer may have made the state before it was asked, and have died since. So this replica, which may have been asked since,
        // takes no state from before the end of a surgery.
        let now = self.surgery().await?;
        if now != before || now.held().is_some_and(|at| at < below) {
            hit("db.refill.surgery");
            return Err("there was surgery on the log while the state was fetched: trying again".to_owned());
        }
        Ok(())
    }

    /// Returns what operators have done to entries, and the surgery that is under way.
    async fn surgery(&self) -> Result<Surgery, String> {
        let chain = self.to.log.refresh().await.map_err(|_| Unavailability::Stopping.to_string())?;
        Ok(chain.map_err(|error| error.to_string())?.chain.surgery().clone())
    }

    /// Returns the position below which the fetched state has all entries.
    async fn fetch_from(&self, peer: NodeId, at_least: LogPos) -> Result<LogPos, String> {
        let mut fetch = transfer::fetch(&self.to.env, peer, at_least);
        let mut so_far = Refilling { from: peer, below: at_least, keys: 0, bytes: 0 };
        let words = |e: StoreError| e.to_string();
        loop {
            let piece = fetch.next().await.map_err(|e| e.to_string())?;
            if so_far.keys == 0 {
                self.step(Refill::Begin).await.map_err(words)?;
            }
            so_far.below = piece.below;
            so_far.keys += piece.items.len() as u64;
            so_far.bytes += piece.bytes;
            self.core.figures(|f| f.refilling = Some(so_far.clone()));
            self.step(Refill::Items(piece.items)).await.map_err(words)?;
            if piece.last {
                return Ok(so_far.below);
            }
        }
    }

    async fn step(&self, step: Refill) -> Result<LogPos, StoreError> {
        let wait: Ticket<_> = self.feed(|feed| feed.refill(step));
        let gone = |_| Err(StoreError::passing("was refilled", Unavailability::Stopping.to_string()));
        wait.await.unwrap_or_else(gone)
    }
}

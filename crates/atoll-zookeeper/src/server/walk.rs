//! Reads that another thread may have to make: those of many keys (lists, counts, multiRead), and those of keys that are not in
//! memory. They run in steps, each bounded in keys, bytes and time. The first step runs on the node's thread, as far as it is quick
//! and needs no disk. All others run on the pool, a few at a time and in turn, so that no client waits long, whatever another one
//! requests (contracts X20, X25). The size of a reply is bounded, and only a few large replies exist at a time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_db::View;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::figures::Refusal;
use super::frame;
use super::handshake::Ended;
use super::job::{Job, Work};
use crate::jute::Jute;
use crate::jute::codes::ErrorCode;
use crate::jute::records::{Id, ReplyHeader};
use crate::mutants;
use crate::tree::node::Node;
use crate::tree::read::ReadError;

/// Most keys in a step on the node's thread, and most children of a parent that is listed there. A higher value makes other
/// connections wait longer.
const KEYS_HERE: usize = 1_000;
/// Most bytes of keys and values in such a step.
const BYTES_HERE: usize = 256 * 1024;
/// Approximate duration of a step on the pool. A higher value makes other reads wait longer for their turn; a lower one costs more
/// turns.
const STEP_FOR: Duration = Duration::from_millis(5);
/// Most bytes by which a reply may grow in one step.
const STEP_BYTES: usize = 4 * 1024 * 1024;
/// Keys between two readings of the clock.
const LOOK_EVERY: usize = 256;
/// Steps on the pool at the same time. The node's thread shares the cores with them.
const STEPS_AT_ONCE: usize = 2;
/// Reads of one node each that may wait for the disk at the same time, besides those steps.
const PARTS_AT_ONCE: usize = 16;
/// A reply larger than this occupies one of the places for large replies until its client has read it.
const LARGE_BYTES: usize = 1024 * 1024;
/// The number of places for large replies. Together these hold at most this many times the longest reply.
const LARGE_AT_ONCE: usize = 4;
/// Most deleted children that a list on the node's thread may have to skip in the store.
const GONE_HERE: u32 = 1_000;
/// A list that took no longer than this is quick, however many children were deleted.
const QUICK: Duration = Duration::from_micros(300);
/// Most parents to remember as quick to list.
const MAX_QUICK: usize = 4_096;

/// The state that reads of many keys on a node share.
#[derive(Debug)]
pub(crate) struct Walks {
    turns: Arc<Semaphore>,
    parts: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Parents with many deleted children whose lists are quick nevertheless, because the store has already dropped those children.
    /// The value is the number of children ever created under the parent when this was measured.
    quick: Mutex<BTreeMap<String, i32>>,
}

impl Default for Walks {
    fn default() -> Self {
        let places = |n| Arc::new(Semaphore::new(n));
        let (turns, parts) = (places(STEPS_AT_ONCE), places(PARTS_AT_ONCE));
        Walks { turns, parts, large: places(LARGE_AT_ONCE), quick: Mutex::default() }
    }
}

impl Walks {
    /// Waits for a turn among the long reads. Returns None when the node stops.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone().acquire_owned().await.ok()
    }

    /// Waits for a turn among the reads of one node. Returns None when the node stops.
    pub(crate) async fn turn_for_one(&self) -> Option<OwnedSemaphorePermit> {
        self.parts.clone().acquire_owned().await.ok()
    }

    /// Returns whether a node's children are known to be quick to list: there are few of them, with few deleted ones in between.
    pub(crate) fn is_quick(&self, path: &str, node: &Node) -> bool {
        let gone_since = |created: i32| node.created.wrapping_sub(created).cast_unsigned();
        if usize::try_from(node.children).unwrap_or(0) > KEYS_HERE {
            return false;
        }
        gone_since(node.children) <= GONE_HERE || {
            let quick = self.quick.lock().unwrap_or_else(PoisonError::into_inner);
            quick.get(path).is_some_and(|created| gone_since(*created) <= GONE_HERE)
        }
    }

    /// Records how long a list took that was made in one step.
    fn note(&self, path: &str, node: &Node, took: Duration) {
        let mut quick = self.quick.lock().unwrap_or_else(PoisonError::into_inner);
        if took > QUICK {
            quick.remove(path);
        } else {
            if quick.len() >= MAX_QUICK {
                quick.clear();
            }
            quick.insert(path.to_owned(), node.created);
        }
    }
}

/// The limits of a step.
pub(crate) struct Budget {
    keys: usize,
    bytes: usize,
    until: Option<Instant>,
}

impl Budget {
    fn here() -> Budget {
        Budget { keys: KEYS_HERE, bytes: BYTES_HERE, until: None }
    }

    fn on_the_pool() -> Budget {
        Budget { keys: usize::MAX, bytes: STEP_BYTES, until: Some(Instant::now() + STEP_FOR) }
    }

    /// Returns whether the step runs on the node's thread.
    pub(crate) fn is_here(&self) -> bool {
        self.until.is_none()
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.keys = self.keys.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(crate) fn is_spent(&self) -> bool {
        let late = || self.until.is_some_and(|until| Instant::now() >= until);
        self.keys == 0 || self.bytes == 0 || (self.keys.is_multiple_of(LOOK_EVERY) && late())
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    More,
    Done,
    TooLong,
}

/// A read in steps.
pub(crate) struct Walk {
    view: View,
    ids: Vec<(String, String)>,
    xid: i32,
    zxid: i64,
    job: Job,
    /// The frame under construction.
    out: Vec<u8>,
    /// Longest allowed frame.
    most: usize,
}

/// The client that asks, and what its reply will carry.
pub(crate) struct Asking<'c> {
    pub(crate) view: &'c View,
    pub(crate) ids: &'c [(String, String)],
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
}

impl Walk {
    /// Creates a read that has made no step yet.
    pub(crate) fn new(shared: &Shared, asking: &Asking<'_>, job: Job) -> Walk {
        let Asking { view, ids, xid, zxid } = *asking;
        let mut out = Vec::with_capacity(crate::jute::USUAL_BYTES);
        // A placeholder: the length is known only at the end.
        0_i32.write(&mut out);
        ReplyHeader { xid, zxid, err: 0 }.write(&mut out);
        let (view, ids, most) = (view.clone(), ids.to_vec(), shared.options.max_reply_bytes);
        Walk { view, ids, xid, zxid, job, out, most }
    }

    /// Makes the first step, on the node's thread. Returns the reply if that completes it, or None if more steps are needed.
    ///
    /// # Errors
    /// The client is refused, or the store cannot be read.
    pub(crate) fn step_here(&mut self, shared: &Shared) -> Result<Option<Vec<u8>>, ReadError> {
        match self.step(shared, Budget::here())? {
            Step::More => Ok(None),
            step => Ok(Some(self.finish(shared, step))),
        }
    }

    fn step(&mut self, shared: &Shared, budget: Budget) -> Result<Step, ReadError> {
        let began = Instant::now();
        let client: Vec<_> = self.ids.iter().map(|(scheme, id)| Id { scheme, id }).collect();
        let (view, out, most) = (&self.view, &mut self.out, self.most);
        let done = self.job.step(&mut Work { shared, view, client: &client, out, most, budget })?;
        // A list that takes several steps is not recorded as quick.
        if let Some((path, node)) = self.job.take_parent()
            && done
            && node.created.wrapping_sub(node.children).cast_unsigned() > GONE_HERE
        {
            shared.walks.note(path, &node, began.elapsed());
        }
        Ok(match done {
            _ if self.out.len() > self.most => Step::TooLong,
            true => Step::Done,
            false => Step::More,
        })
    }

    /// Returns the reply, or an error reply if it would be too long.
    fn finish(&mut self, shared: &Shared, step: Step) -> Vec<u8> {
        if step == Step::TooLong {
            shared.figures.refuse(Refusal::Reply);
            return self.refusal(ErrorCode::MarshallingError);
        }
        let mut out = std::mem::take(&mut self.out);
        frame::set_length(&mut out);
        out
    }

    fn refusal(&self, code: ErrorCode) -> Vec<u8> {
        let mut out = Vec::new();
        frame::error(&mut out, self.xid, self.zxid, code);
        out
    }
}

/// A reply from the pool.
pub(crate) struct Listed {
    pub(crate) reply: Vec<u8>,
    /// The error that the reply reports: the client was refused.
    pub(crate) refused: Option<ErrorCode>,
    /// Its place among the large replies, if it is large.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

/// A read that continues in its own task, and is cancelled when its connection ends.
pub(crate) struct Elsewhere(JoinHandle<Result<Listed, Ended>>);

impl Elsewhere {
    /// Starts a task for the remaining steps.
    pub(crate) fn begin(shared: Arc<Shared>, walk: Walk) -> Elsewhere {
        hit("zk.read.elsewhere");
        Elsewhere(tokio::spawn(go_on(shared, walk)))
    }

    /// Returns the reply once it is complete.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Listed, Ended>> {
        let done = std::task::ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(done.map_err(|e| Ended::Log(e.to_string())).flatten())
    }
}

impl Drop for Elsewhere {
    /// Cancels the read. It releases its view after at most one more step.
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes steps in turn with other reads. Turns and places are granted in the order of the requests.
async fn go_on(shared: Arc<Shared>, mut walk: Walk) -> Result<Listed, Ended> {
    let closed = || Ended::Log("the door is closed".to_owned());
    let mut place = None;
    loop {
        if walk.out.len() > LARGE_BYTES && place.is_none() {
            place = Some(shared.walks.large.clone().acquire_owned().await.map_err(|_| closed())?);
        }
        // A read of one node mostly waits for the disk, and must not wait for those of many keys as well.
        let turn = match walk.job.is_part() {
            true => shared.walks.turn_for_one().await,
            false => shared.walks.turn().await,
        };
        let turn = turn.ok_or_else(closed)?;
        let its = shared.clone();
        let stepped = shared.beside(move || {
            // Hold the turn until the step is done, even if nobody waits for the step any more.
            let _turn = turn;
            if mutant(mutants::ZK_READS_ELSEWHERE_SEE_MORE) {
                walk.view = its.engine.view();
            }
            let step = walk.step(&its, Budget::on_the_pool());
            (walk, step)
        });
        let (next, step) = stepped.await.map_err(|e| Ended::Log(e.to_string()))?;
        walk = next;
        match step {
            Ok(Step::More) => {}
            Ok(step) => return Ok(Listed { reply: walk.finish(&shared, step), refused: None, place }),
            Err(ReadError::Refused(code)) => {
                return Ok(Listed { reply: walk.refusal(code), refused: Some(code), place });
            }
            Err(error) => return Err(Ended::Read(error)),
        }
    }
}

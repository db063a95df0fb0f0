//! Reads of many keys: lists, counts, multiRead. They run in steps, each bounded in keys, bytes and time. The first step runs on
//! the node's thread if it is quick. All others run on the pool, a few at a time and in turn, so that no client waits long,
//! whatever another one requests (contracts X20, X25). The size of a reply is bounded, and only a few large replies exist at a
//! time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_db::{Direction, Scan, View};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::figures::Refusal;
use super::frame::{self, List};
use super::handshake::Ended;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::records::{Id, ReplyHeader, Stat};
use crate::jute::reply::CountReply;
use crate::jute::request::WatchedRequest;
use crate::jute::transaction::{MultiHeader, MultiResult};
use crate::jute::{Jute, Reader};
use crate::tree::key;
use crate::tree::node::Node;
use crate::tree::read::{self, ReadError};

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
    large: Arc<Semaphore>,
    /// Parents with many deleted children whose lists are quick nevertheless, because the store has already dropped those children.
    /// The value is the number of children ever created under the parent when this was measured.
    quick: Mutex<BTreeMap<String, i32>>,
}

impl Default for Walks {
    fn default() -> Self {
        let (turns, large) = (Semaphore::new(STEPS_AT_ONCE), Semaphore::new(LARGE_AT_ONCE));
        Walks { turns: Arc::new(turns), large: Arc::new(large), quick: Mutex::default() }
    }
}

impl Walks {
    /// Waits for a turn among the long reads. Returns None when the node stops.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone().acquire_owned().await.ok()
    }

    /// Returns whether a node's children are known to be quick to list: there are few of them, with few deleted ones in between.
    fn is_quick(&self, path: &str, node: &Node) -> bool {
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
struct Budget {
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

    fn spend(&mut self, bytes: usize) {
        self.keys = self.keys.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// On the node's thread, ends the step unless the next read is quick.
    fn end_unless(&mut self, is_quick: bool) {
        if !is_quick && self.until.is_none() {
            self.keys = 0;
        }
    }

    fn is_spent(&self) -> bool {
        let late = || self.until.is_some_and(|until| Instant::now() >= until);
        self.keys == 0 || self.bytes == 0 || (self.keys.is_multiple_of(LOOK_EVERY) && late())
    }
}

/// What the names in a list are.
enum Of {
    /// The children of this node.
    Children(String),
    /// The session's ephemerals below this path.
    Ephemerals(String),
}

/// A list of names under construction.
struct Names {
    scan: Option<Scan>,
    of: Of,
    list: List,
    /// Written after the list.
    stat: Option<Stat>,
}

impl Names {
    fn children(
        view: &View,
        path: &str,
        client: &[Id<'_>],
        with_stat: bool,
        out: &mut Vec<u8>,
    ) -> Result<(Names, Node), ReadError> {
        let node = read::listable(view, path, client)?;
        let scan = (node.children > 0).then(|| view.scan(&key::children(path), Direction::Forward));
        let stat = with_stat.then(|| node.stat());
        Ok((Names { scan, of: Of::Children(path.to_owned()), list: List::begin(out), stat }, node))
    }

    /// Makes one step; returns whether the list is complete.
    fn step(&mut self, (out, most): (&mut Vec<u8>, usize), budget: &mut Budget) -> Result<bool, ReadError> {
        if let Some(scan) = &mut self.scan {
            loop {
                if budget.is_spent() || out.len() > most {
                    return Ok(false);
                }
                let Some(found) = scan.next() else { break };
                let (key, value) = found?;
                budget.spend(key.len() + value.len());
                match &self.of {
                    Of::Children(parent) => self.list.push(out, read::name_of_child(parent, &key)?),
                    Of::Ephemerals(top) => {
                        let path = read::path_of_ephemeral(&key)?;
                        if path.starts_with(top.as_str()) {
                            self.list.push(out, path);
                        }
                    }
                }
            }
        }
        self.list.end(out);
        self.stat.iter().for_each(|stat| stat.write(out));
        Ok(true)
    }
}

/// The kind of read, with its progress.
enum Job {
    Names(Names),
    /// Counts the nodes below a node.
    Count {
        scan: Scan,
        total: i32,
    },
    /// multiRead: its operations, the offset of the next one, and a list that is not complete yet.
    Many {
        ops: Bytes,
        at: usize,
        names: Option<Box<Names>>,
    },
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    More,
    Done,
    TooLong,
}

/// A read of many keys.
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
    /// The parent whose children are listed. Its duration is recorded if one step is enough.
    parent: Option<(String, Node)>,
    /// Whether the first step may run on the node's thread.
    is_quick: bool,
}

/// The client that asks, and what its reply will carry.
pub(crate) struct Asking<'c> {
    pub(crate) view: &'c View,
    pub(crate) ids: &'c [(String, String)],
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
}

fn client(ids: &[(String, String)]) -> Vec<Id<'_>> {
    ids.iter().map(|(scheme, id)| Id { scheme, id }).collect()
}

impl Walk {
    fn begin(
        shared: &Shared,
        asking: &Asking<'_>,
        job: impl FnOnce(&View, &[Id<'_>], &mut Vec<u8>) -> Result<Job, ReadError>,
    ) -> Result<Walk, ReadError> {
        let Asking { view, ids, xid, zxid } = *asking;
        let mut out = Vec::with_capacity(crate::jute::USUAL_BYTES);
        // A placeholder: the length is known only at the end.
        0_i32.write(&mut out);
        ReplyHeader { xid, zxid, err: 0 }.write(&mut out);
        let job = job(view, &client(ids), &mut out)?;
        let (view, ids, most) = (view.clone(), ids.to_vec(), shared.options.max_reply_bytes);
        Ok(Walk { view, ids, xid, zxid, job, out, most, parent: None, is_quick: false })
    }

    /// Begins a getChildren or getChildren2.
    ///
    /// # Errors
    /// The client is refused, or the store cannot be read.
    pub(crate) fn children(
        shared: &Shared,
        asking: &Asking<'_>,
        path: &str,
        with_stat: bool,
    ) -> Result<Walk, ReadError> {
        let mut parent = None;
        let mut walk = Walk::begin(shared, asking, |view, client, out| {
            let (names, node) = Names::children(view, path, client, with_stat, out)?;
            parent = Some((path.to_owned(), node));
            Ok(Job::Names(names))
        })?;
        walk.is_quick = parent.as_ref().is_some_and(|(path, node)| shared.walks.is_quick(path, node));
        walk.parent = parent;
        Ok(walk)
    }

    /// Begins a getEphemerals.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn ephemerals(
        shared: &Shared,
        asking: &Asking<'_>,
        session: i64,
        top: &str,
    ) -> Result<Walk, ReadError> {
        Walk::begin(shared, asking, |view, _, out| {
            let scan = Some(view.scan(&key::ephemerals(session), Direction::Forward));
            Ok(Job::Names(Names {
                scan,
                of: Of::Ephemerals(top.to_owned()),
                list: List::begin(out),
                stat: None,
            }))
        })
    }

    /// Begins a getAllChildrenNumber.
    ///
    /// # Errors
    /// The client is refused, or the store cannot be read.
    pub(crate) fn count(shared: &Shared, asking: &Asking<'_>, path: &str) -> Result<Walk, ReadError> {
        Walk::begin(shared, asking, |view, client, _| {
            let total = read::listable(view, path, client)?.children;
            Ok(Job::Count { scan: view.scan(&key::deeper(path), Direction::Forward), total })
        })
    }

    /// Begins a multiRead. `ops` is the body of its request, which was parsed completely once before.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn many(shared: &Shared, asking: &Asking<'_>, ops: Bytes) -> Result<Walk, ReadError> {
        let mut walk = Walk::begin(shared, asking, |_, _, _| Ok(Job::Many { ops, at: 0, names: None }))?;
        walk.is_quick = true;
        Ok(walk)
    }

    /// Makes the first step on the node's thread if it is quick. Returns the reply if that completes it, or None if more steps are
    /// needed.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn step_here(&mut self, shared: &Shared) -> Result<Option<Vec<u8>>, ReadError> {
        if !self.is_quick {
            return Ok(None);
        }
        match self.step(shared, Budget::here())? {
            Step::More => Ok(None),
            step => Ok(Some(self.finish(shared, step))),
        }
    }

    fn step(&mut self, shared: &Shared, mut budget: Budget) -> Result<Step, ReadError> {
        let began = Instant::now();
        let done = self.job.step(&self.view, &self.ids, (&mut self.out, self.most), shared, &mut budget)?;
        // A list that takes several steps is not recorded as quick.
        if let Some((path, node)) = self.parent.take()
            && done
            && node.created.wrapping_sub(node.children).cast_unsigned() > GONE_HERE
        {
            shared.walks.note(&path, &node, began.elapsed());
        }
        Ok(match done {
            _ if self.out.len() > self.most => Step::TooLong,
            true => Step::Done,
            false => Step::More,
        })
    }

    /// Returns the reply, or an error reply if it would be too long.
    fn finish(&mut self, shared: &Shared, step: Step) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.out);
        if step == Step::TooLong {
            shared.figures.refuse(Refusal::Reply);
            out = Vec::new();
            frame::error(&mut out, self.xid, self.zxid, ErrorCode::MarshallingError);
        } else {
            frame::set_length(&mut out);
        }
        out
    }
}

impl Job {
    /// Makes one step, as long as the reply is no longer than `most`; returns whether the read is complete.
    fn step(
        &mut self,
        view: &View,
        ids: &[(String, String)],
        (out, most): (&mut Vec<u8>, usize),
        shared: &Shared,
        budget: &mut Budget,
    ) -> Result<bool, ReadError> {
        match self {
            Job::Names(names) => names.step((out, most), budget),
            Job::Count { scan, total } => loop {
                if budget.is_spent() {
                    return Ok(false);
                }
                let Some(found) = scan.next() else {
                    CountReply { total: *total }.write(out);
                    return Ok(true);
                };
                let (key, value) = found?;
                budget.spend(key.len() + value.len());
                *total = total.saturating_add(1);
            },
            Job::Many { ops, at, names } => {
                let client = client(ids);
                loop {
                    if let Some(list) = names {
                        if !list.step((&mut *out, most), budget)? {
                            return Ok(false);
                        }
                        *names = None;
                    }
                    if budget.is_spent() || out.len() > most {
                        return Ok(false);
                    }
                    let before = out.len();
                    let mut from = Reader::new(ops.get(*at..).unwrap_or_default());
                    match read_one(view, &mut from, &client, shared, out)? {
                        One::End => return Ok(true),
                        One::Done => {}
                        One::List { names: list, is_quick } => {
                            budget.end_unless(is_quick);
                            *names = Some(list);
                        }
                    }
                    *at = ops.len() - from.rest().len();
                    budget.spend(out.len() - before);
                }
            }
        }
    }
}

/// The result of reading one operation of a multiRead.
enum One {
    /// There are no more operations.
    End,
    Done,
    /// The list is still to be made.
    List {
        names: Box<Names>,
        is_quick: bool,
    },
}

/// Reads one operation of a multiRead. Each has its own result: a failed read does not stop the others.
fn read_one(
    view: &View,
    from: &mut Reader<'_>,
    client: &[Id<'_>],
    shared: &Shared,
    out: &mut Vec<u8>,
) -> Result<One, ReadError> {
    // The request was parsed completely once before.
    let malformed = |_| ReadError::Refused(ErrorCode::MarshallingError);
    let header = MultiHeader::read(from).map_err(malformed)?;
    if header.done {
        MultiResult::write_end(out);
        return Ok(One::End);
    }
    let asked = WatchedRequest::read(from).map_err(malformed)?;
    let at = out.len();
    let done = if header.op == OpCode::GetChildren.number() {
        MultiHeader { op: header.op, done: false, err: 0 }.write(out);
        Names::children(view, asked.path, client, false, out).map(|(names, node)| One::List {
            names: Box::new(names),
            is_quick: shared.walks.is_quick(asked.path, &node),
        })
    } else {
        read::data(view, asked.path, client).map(|(node, data)| {
            MultiResult::GetData(data.as_deref(), node.stat()).write(out);
            One::Done
        })
    };
    match done {
        Err(ReadError::Refused(code)) => {
            out.truncate(at);
            MultiResult::Error(Some(code)).write(out);
            Ok(One::Done)
        }
        done => done,
    }
}

/// A reply from the pool.
pub(crate) struct Listed {
    pub(crate) reply: Vec<u8>,
    /// Its place among the large replies, if it is large.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

/// A read that continues in its own task, and is cancelled when its connection ends.
pub(crate) struct Elsewhere(JoinHandle<Result<Listed, Ended>>);

impl Elsewhere {
    /// Starts a task for the remaining steps.
    pub(crate) fn begin(shared: Arc<Shared>, walk: Walk) -> Elsewhere {
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
        let turn = shared.walks.turn().await.ok_or_else(closed)?;
        let its = shared.clone();
        let stepped = shared.beside(move || {
            // Hold the turn until the step is done, even if nobody waits for the step any more.
            let _turn = turn;
            let step = walk.step(&its, Budget::on_the_pool());
            (walk, step)
        });
        let (next, step) = stepped.await.map_err(|e| Ended::Log(e.to_string()))?;
        walk = next;
        match step {
            Ok(Step::More) => {}
            Ok(step) => return Ok(Listed { reply: walk.finish(&shared, step), place }),
            Err(error) => return Err(Ended::Read(error)),
        }
    }
}

//! What a read that may take several steps reads, and how far it is.

use std::cell::Cell;

use atoll_db::{Direction, Scan, View};
use bytes::Bytes;

use super::Shared;
use super::frame::List;
use super::part::Part;
use super::walk::Budget;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::records::{Id, Stat};
use crate::jute::reply::CountReply;
use crate::jute::request::WatchedRequest;
use crate::jute::transaction::{MultiHeader, MultiResult};
use crate::jute::{Jute, Reader};
use crate::tree::key;
use crate::tree::node::Node;
use crate::tree::read::{self, OnlyInMemory, ReadError, Source};

/// The kind of read, with its progress.
pub(crate) enum Job {
    /// exists, getData or getACL.
    Part(Part, String),
    /// getChildren or getChildren2, before the parent is read.
    Children { path: String, with_stat: bool },
    /// getEphemerals of this session, below this path, before the first key is read.
    Ephemerals { session: i64, top: String },
    /// A list of names.
    Names(Box<Names>),
    /// getAllChildrenNumber, before the node is read.
    CountBelow(String),
    /// Counts the nodes below a node.
    Count { scan: Scan, total: i32 },
    /// multiRead: the body of its request, which was parsed completely once before, the offset of the next operation, and a list
    /// that is not complete yet.
    Many { ops: Bytes, at: usize, names: Option<Box<Names>> },
}

/// What a step works with.
pub(crate) struct Work<'w> {
    pub(crate) shared: &'w Shared,
    pub(crate) view: &'w View,
    pub(crate) client: &'w [Id<'w>],
    /// The reply under construction.
    pub(crate) out: &'w mut Vec<u8>,
    /// Its longest allowed length.
    pub(crate) most: usize,
    pub(crate) budget: Budget,
}

/// A source that counts the bytes of the values that are read from it.
struct Counting<'s> {
    source: &'s dyn Source,
    bytes: Cell<usize>,
}

impl Source for Counting<'_> {
    fn value(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let value = self.source.value(key)?;
        self.bytes.set(self.bytes.get() + value.as_ref().map_or(0, Bytes::len));
        Ok(value)
    }
}

impl Work<'_> {
    /// Reads a few keys, on the node's thread only if they are in memory. Returns None if they are not. What is read counts even if
    /// the reply says little of it: the ACL of a node is judged, and may be long.
    fn look<T>(
        &mut self,
        read: impl FnOnce(&dyn Source, &[Id<'_>], &mut Vec<u8>) -> Result<T, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        let in_memory = OnlyInMemory(self.view);
        let source: &dyn Source = if self.budget.is_here() { &in_memory } else { self.view };
        let source = Counting { source, bytes: Cell::new(0) };
        let done = read(&source, self.client, self.out);
        self.budget.spend(source.bytes.get());
        match done {
            Err(ReadError::OnDisk) => Ok(None),
            done => done.map(Some),
        }
    }

    /// Returns whether the children of a node may be listed now. On the node's thread, only short lists from memory may.
    fn may_list(&self, path: &str, node: &Node) -> bool {
        !self.budget.is_here()
            || node.children == 0
            || (self.view.is_in_memory() && self.shared.walks.is_quick(path, node))
    }

    fn is_over(&self) -> bool {
        self.budget.is_spent() || self.out.len() > self.most
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
pub(crate) struct Names {
    scan: Option<Scan>,
    of: Of,
    list: List,
    /// Written after the list.
    stat: Option<Stat>,
    /// The parent, until the first step is done.
    parent: Option<Node>,
}

impl Names {
    fn children(path: &str, node: Node, with_stat: bool, work: &mut Work<'_>) -> Box<Names> {
        let all = key::children(path);
        let scan = (node.children > 0).then(|| work.view.scan(&all, Direction::Forward));
        let stat = with_stat.then(|| node.stat());
        let list = List::begin(work.out);
        Box::new(Names { scan, of: Of::Children(path.to_owned()), list, stat, parent: Some(node) })
    }

    /// Makes one step; returns whether the list is complete.
    fn step(&mut self, work: &mut Work<'_>) -> Result<bool, ReadError> {
        if let Some(scan) = &mut self.scan {
            loop {
                if work.is_over() {
                    return Ok(false);
                }
                let Some(found) = scan.next() else { break };
                let (key, value) = found?;
                work.budget.spend(key.len() + value.len());
                match &self.of {
                    Of::Children(parent) => self.list.push(work.out, read::name_of_child(parent, &key)?),
                    Of::Ephemerals(top) => {
                        let path = read::path_of_ephemeral(&key)?;
                        if path.starts_with(top.as_str()) {
                            self.list.push(work.out, path);
                        }
                    }
                }
            }
        }
        self.list.end(work.out);
        self.stat.iter().for_each(|stat| stat.write(work.out));
        Ok(true)
    }
}

impl Job {
    /// Returns a multiRead. `ops` is the body of its request, which was parsed completely once before.
    pub(crate) fn many(ops: Bytes) -> Job {
        Job::Many { ops, at: 0, names: None }
    }

    /// Returns whether the job is a read of one node.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self, Job::Part(..))
    }

    /// Returns the parent whose children were listed, after the first step.
    pub(crate) fn take_parent(&mut self) -> Option<(&str, Node)> {
        match self {
            Job::Names(names) => match &mut **names {
                Names { of: Of::Children(path), parent, .. } => Some((path, parent.take()?)),
                Names { of: Of::Ephemerals(_), .. } => None,
            },
            _ => None,
        }
    }

    /// Makes one step, as long as the reply is not too long; returns whether the read is complete. A step on the node's thread ends
    /// before anything that must be read from the disk, or that takes long.
    ///
    /// # Errors
    /// The client is refused, or the store cannot be read.
    pub(crate) fn step(&mut self, work: &mut Work<'_>) -> Result<bool, ReadError> {
        match self {
            Job::Part(part, path) => {
                let done = work.look(|source, client, out| part.write(source, path, client, out))?;
                Ok(done.is_some())
            }
            Job::Children { path, with_stat } => {
                let Some(node) = work.look(|source, client, _| read::listable(source, path, client))? else {
                    return Ok(false);
                };
                if !work.may_list(path, &node) {
                    return Ok(false);
                }
                *self = Job::Names(Names::children(path, node, *with_stat, work));
                self.step(work)
            }
            // Nobody knows how many there are.
            Job::Ephemerals { .. } | Job::CountBelow(_) if work.budget.is_here() => Ok(false),
            Job::Ephemerals { session, top } => {
                let scan = Some(work.view.scan(&key::ephemerals(*session), Direction::Forward));
                let (of, list) = (Of::Ephemerals(std::mem::take(top)), List::begin(work.out));
                *self = Job::Names(Box::new(Names { scan, of, list, stat: None, parent: None }));
                self.step(work)
            }
            Job::CountBelow(path) => {
                let total = read::listable(work.view, path, work.client)?.children;
                let scan = work.view.scan(&key::deeper(path), Direction::Forward);
                *self = Job::Count { scan, total };
                self.step(work)
            }
            Job::Names(names) => names.step(work),
            Job::Count { scan, total } => loop {
                if work.budget.is_spent() {
                    return Ok(false);
                }
                let Some(found) = scan.next() else {
                    CountReply { total: *total }.write(work.out);
                    return Ok(true);
                };
                let (key, value) = found?;
                work.budget.spend(key.len() + value.len());
                *total = total.saturating_add(1);
            },
            Job::Many { ops, at, names } => loop {
                if let Some(list) = names {
                    if !list.step(work)? {
                        return Ok(false);
                    }
                    *names = None;
                }
                if work.is_over() {
                    return Ok(false);
                }
                let mut from = Reader::new(ops.get(*at..).unwrap_or_default());
                match read_one(&mut from, work)? {
                    One::End => return Ok(true),
                    One::NotHere => return Ok(false),
                    One::Done => {}
                    One::List(list) => *names = Some(list),
                }
                *at = ops.len() - from.rest().len();
            },
        }
    }
}

/// The result of reading one operation of a multiRead.
enum One {
    /// There are no more operations.
    End,
    /// The operation is still to be read, on the pool.
    NotHere,
    Done,
    /// The list is still to be made.
    List(Box<Names>),
}

/// Reads one operation of a multiRead. Each has its own result: a failed read does not stop the others.
fn read_one(from: &mut Reader<'_>, work: &mut Work<'_>) -> Result<One, ReadError> {
    // The request was parsed completely once before.
    let malformed = |_| ReadError::Refused(ErrorCode::MarshallingError);
    let header = MultiHeader::read(from).map_err(malformed)?;
    if header.done {
        MultiResult::write_end(work.out);
        return Ok(One::End);
    }
    let asked = WatchedRequest::read(from).map_err(malformed)?;
    let done = if header.op == OpCode::GetChildren.number() {
        work.look(|source, client, _| read::listable(source, asked.path, client)).map(|node| match node {
            Some(node) if work.may_list(asked.path, &node) => {
                MultiHeader { op: header.op, done: false, err: 0 }.write(work.out);
                One::List(Names::children(asked.path, node, false, work))
            }
            _ => One::NotHere,
        })
    } else {
        work.look(|source, client, _| read::data(source, asked.path, client)).map(|found| match found {
            Some((node, data)) => {
                MultiResult::GetData(data.as_deref(), node.stat()).write(work.out);
                One::Done
            }
            None => One::NotHere,
        })
    };
    match done {
        Err(ReadError::Refused(code)) => {
            MultiResult::Error(Some(code)).write(work.out);
            Ok(One::Done)
        }
        done => done,
    }
}

//! Requests about watches, and reads that register one.

use std::ops::Range;

use atoll_db::{InMemory, View};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use super::connection::Connection;
use super::figures::Refusal;
use super::handshake::Ended;
use super::job::Job;
use super::part::Part;
use super::pending::{Pending, Wait};
use crate::jute::Jute;
use crate::jute::codes::{ErrorCode, OpCode, perms, watch_mode, watcher_type};
use crate::jute::request::{Request, SetWatches2Request, WatcherRequest};
use crate::tree::key::{self, Key};
use crate::tree::read::{self, OnlyInMemory, ReadError};
use crate::watch::NotSet;
use crate::watch::reset::{Brought, ResetError};
use crate::watch::table::Kind;

/// Watches to register in one step. Each needs a lookup, and other requests wait meanwhile.
const WATCHES_AT_ONCE: usize = 50;
/// How often the node of a read that sets a watch is looked up before it is read in any case. The row may be displaced, or too large
/// for the cache.
const MAX_LOOK_UPS: u8 = 3;
/// The cost of a watch as part of a turn, expressed in bytes of a reply. The clock is read after each step, because each of its nodes
/// may have a long ACL that is judged.
const BYTES_OF_A_WATCH: usize = 1_400;

/// A watch that a read has just registered.
pub(crate) struct NewWatch {
    kind: Kind,
    path: String,
    /// Whether it stays if the node does not exist.
    stays_if_absent: bool,
}

/// Watches that a client brings from an earlier connection, and how many of them are registered. There may be a hundred thousand.
#[derive(Default)]
pub(crate) struct Again {
    xid: i32,
    relative_zxid: i64,
    /// The frame of the request, and the places of the paths in it.
    frame: Bytes,
    paths: Vec<(Brought, Range<usize>)>,
    done: usize,
    /// The value of `done` at the last look-up of the nodes that come next.
    looked_up: Option<usize>,
}

impl Again {
    fn new(xid: i32, asked: &SetWatches2Request<'_>, bytes: &[u8]) -> Again {
        let start = bytes.as_ptr().addr();
        let one_time = &asked.one_time;
        let all = [
            (Brought::Data, &one_time.data),
            (Brought::Exist, &one_time.exist),
            (Brought::Child, &one_time.child),
            (Brought::Persistent, &asked.persistent),
            (Brought::Recursive, &asked.recursive),
        ];
        let place = |path: &str| {
            let at = path.as_ptr().addr() - start;
            at..at + path.len()
        };
        let paths =
            all.into_iter().flat_map(|(brought, paths)| paths.iter().map(move |p| (brought, place(p))));
        let (relative_zxid, frame) = (one_time.relative_zxid, Bytes::copy_from_slice(bytes));
        Again { xid, relative_zxid, frame, paths: paths.collect(), done: 0, looked_up: None }
    }

    /// Returns the next watches to register.
    fn next(&self) -> Vec<(Brought, &str)> {
        let some = self.paths.iter().skip(self.done).take(WATCHES_AT_ONCE);
        // The paths were checked to be UTF-8 when the request was parsed.
        let path = |place: &Range<usize>| {
            std::str::from_utf8(self.frame.get(place.clone()).unwrap_or_default()).unwrap_or_default()
        };
        some.map(|(brought, place)| (*brought, path(place))).collect()
    }

    fn is_done(&self) -> bool {
        self.done >= self.paths.len()
    }

    /// Returns the number of bytes on the heap that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.frame.len() + self.paths.len() * size_of::<(Brought, Range<usize>)>()
    }
}

/// Returns the kinds of watches that a number in `checkWatches` or `removeWatches` stands for.
fn kinds(number: i32) -> Option<&'static [Kind]> {
    match number {
        watcher_type::CHILDREN => Some(&[Kind::Child]),
        watcher_type::DATA => Some(&[Kind::Data]),
        watcher_type::ANY => Some(&Kind::ALL),
        watcher_type::PERSISTENT => Some(&[Kind::Persistent]),
        watcher_type::PERSISTENT_RECURSIVE => Some(&[Kind::Recursive]),
        _ => None,
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Answers a read that registers a watch. The watch is registered first, together with the view to read (see [`crate::watch`]).
    pub(crate) fn serve_watching(
        &mut self,
        xid: i32,
        request: &Request<'_>,
        bytes: &[u8],
    ) -> Result<(), Ended> {
        let (path, kind) = match request {
            Request::Exists(r) | Request::GetData(r) => (r.path, Kind::Data),
            Request::GetChildren(r) | Request::GetChildren2(r) => (r.path, Kind::Child),
            _ => return self.answer_error(xid, ErrorCode::Unimplemented),
        };
        let (view, new) = match self.set_watch((kind, path)) {
            Ok(set) => set,
            Err(not_set) => return self.not_set(xid, bytes, not_set),
        };
        let stays_if_absent = matches!(request, Request::Exists(_));
        let mut watch = new.then(|| NewWatch { kind, path: path.to_owned(), stays_if_absent });
        match read::readable(&OnlyInMemory(&view), path, &self.client(), perms::READ) {
            Ok(_) => watch = None,
            Err(ReadError::Refused(code)) => self.settle(watch.take(), Some(code)),
            // If the watch stayed, it might fire before it is known whether the read is refused.
            Err(ReadError::OnDisk) if self.look_ups < MAX_LOOK_UPS => {
                self.forget_watch(watch);
                let looked_up = self.look_up(view, vec![key::node(path)]);
                let (frame, times) = (Bytes::copy_from_slice(bytes), self.look_ups + 1);
                self.pending.push_first(self.asked, Pending::LookUp { frame, looked_up, times });
                return Ok(());
            }
            // A row that does not fit into the cache. An event may follow although the read is refused. Clients ignore it.
            Err(_) => {}
        }
        match request {
            Request::Exists(_) => self.read_part(xid, &view, (Part::Stat, path), watch),
            Request::GetData(_) => self.read_part(xid, &view, (Part::Data, path), watch),
            other => {
                let path = path.to_owned();
                let with_stat = other.op() == OpCode::GetChildren2;
                self.walk(xid, &view, Job::Children { path, with_stat }, watch)
            }
        }
    }

    /// Serves a request again whose node was looked up so many times.
    pub(crate) fn serve_looked_up(&mut self, bytes: &[u8], times: u8) -> Result<(), Ended> {
        self.look_ups = times;
        let done = self.serve(bytes);
        self.look_ups = 0;
        done
    }

    fn forget_watch(&self, watch: Option<NewWatch>) {
        if let Some(NewWatch { kind, path, .. }) = watch {
            self.shared.watches.take(self.id, [(kind, &*path)]);
        }
    }

    /// Removes the watch of a read again if the read was refused: only exists keeps a watch on a node that does not exist.
    pub(crate) fn settle(&self, watch: Option<NewWatch>, refused: Option<ErrorCode>) {
        let (Some(watch), Some(code)) = (watch, refused) else { return };
        if code != ErrorCode::NoNode || !watch.stays_if_absent {
            self.forget_watch(Some(watch));
        }
    }

    /// Handles a request whose watch could not be registered. The request is put off, or refused as a whole: a client that gets its
    /// data relies on the watch.
    fn not_set(&mut self, xid: i32, bytes: &[u8], why: NotSet) -> Result<(), Ended> {
        match why {
            NotSet::NotYet(not_yet) => {
                self.put_off(bytes, not_yet);
                Ok(())
            }
            NotSet::Full => {
                self.shared.figures.refuse(Refusal::Watch);
                self.answer_error(xid, ErrorCode::SystemError)
            }
        }
    }

    /// Answers a request that is only about watches.
    pub(crate) fn serve_watches(
        &mut self,
        xid: i32,
        request: &Request<'_>,
        bytes: &[u8],
    ) -> Result<(), Ended> {
        match request {
            Request::AddWatch(r) => {
                let kind = match r.mode {
                    watch_mode::PERSISTENT => Kind::Persistent,
                    watch_mode::PERSISTENT_RECURSIVE => Kind::Recursive,
                    _ => return self.answer_error(xid, ErrorCode::MarshallingError),
                };
                if let Err(not_set) = self.set_watch((kind, r.path)) {
                    return self.not_set(xid, bytes, not_set);
                }
                // The body is an error code, as in ZooKeeper.
                self.answer(xid, |_, out| {
                    0_i32.write(out);
                    Ok(())
                })
            }
            Request::CheckWatches(r) | Request::RemoveWatches(r) => {
                let remove = matches!(request, Request::RemoveWatches(_));
                let found = self.find_watches(*r, remove);
                // Events of these watches must precede the answer that the watches are gone.
                self.drain_events_first();
                match found {
                    Ok(()) => self.answer(xid, |_, _| Ok(())),
                    Err(code) => self.answer_error(xid, code),
                }
            }
            Request::SetWatches(r) => {
                let all =
                    SetWatches2Request { one_time: r.clone(), persistent: Vec::new(), recursive: Vec::new() };
                self.set_watches(xid, &all, bytes)
            }
            Request::SetWatches2(r) => self.set_watches(xid, r, bytes),
            _ => self.answer_error(xid, ErrorCode::Unimplemented),
        }
    }

    fn find_watches(&self, asked: WatcherRequest<'_>, remove: bool) -> Result<(), ErrorCode> {
        let kinds = kinds(asked.kind).ok_or(ErrorCode::MarshallingError)?;
        let watches = &self.shared.watches;
        let found = if remove {
            watches.take(self.id, kinds.iter().map(|kind| (*kind, asked.path)))
        } else {
            kinds.iter().any(|kind| watches.has(self.id, *kind, asked.path))
        };
        if found { Ok(()) } else { Err(ErrorCode::NoWatcher) }
    }

    fn set_watches(&mut self, xid: i32, asked: &SetWatches2Request<'_>, bytes: &[u8]) -> Result<(), Ended> {
        self.watch_again(Again::new(xid, asked, bytes))
    }

    /// Reads the nodes of the next watches into memory, on another thread. Returns None if they are there already.
    fn look_up_next(&self, again: &mut Again) -> Option<JoinHandle<()>> {
        // Whatever has been displaced again since it was looked up is read without further ado.
        if again.looked_up == Some(again.done) {
            return None;
        }
        again.looked_up = Some(again.done);
        let view = self.shared.engine.view();
        let nodes = again.next().into_iter().filter(|(brought, _)| brought.is_compared());
        let keys = nodes.map(|(_, path)| key::node(path)).chain([key::RESTORED.into()]);
        let is_on_disk = |key: &Key| view.get_in_memory(key) == InMemory::OnDisk;
        let on_disk: Vec<Key> = keys.filter(is_on_disk).collect();
        (!on_disk.is_empty()).then(|| self.look_up(view, on_disk))
    }

    /// Reads keys into memory, on another thread.
    fn look_up(&self, view: View, keys: Vec<Key>) -> JoinHandle<()> {
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let turn = match keys.len() {
                1 => shared.walks.turn_for_one().await,
                _ => shared.walks.turn().await,
            };
            let Some(turn) = turn else { return };
            let read = shared.beside(move || {
                let _turn = turn;
                // An error occurs again when the key is needed.
                keys.iter().for_each(|key| drop(view.get(key)));
            });
            drop(read.await);
        })
    }

    /// Registers the next watches that a client has brought.
    pub(crate) fn watch_again(&mut self, mut again: Again) -> Result<(), Ended> {
        if let Some(looked_up) = self.look_up_next(&mut again) {
            let wait = Some(Wait::LookedUp(looked_up));
            self.pending.push_first(self.asked, Pending::Watches { again, wait });
            return Ok(());
        }
        let engine = self.shared.engine.clone();
        let newest = self.shared.zxid();
        let (watches, out) = (&self.shared.watches, &mut self.out);
        let to = (self.id, &*self.outbox);
        let some = again.next();
        match watches.reset_watches(to, &some, again.relative_zxid, out, || engine.view()) {
            Ok(set) => {
                // The events that the client missed precede the reply. The view may be older than these events.
                let count = some.len();
                self.told_up_to(newest);
                self.count_sent(set.events);
                self.forget_view();
                self.turn.did(count * BYTES_OF_A_WATCH);
                again.done += count;
                if again.is_done() {
                    return self.answer(again.xid, |_, _| Ok(()));
                }
                self.pending.push_first(self.asked, Pending::Watches { again, wait: None });
                Ok(())
            }
            Err(ResetError::NotSet(NotSet::Full)) => {
                // Clients ignore an error in this answer. They would rely on watches that do not exist.
                self.shared.figures.refuse(Refusal::Watch);
                Err(Ended::Watches)
            }
            Err(ResetError::NotSet(NotSet::NotYet(not_yet))) => {
                let wait = Some(Wait::Applied(self.shared.engine.wait_applied(not_yet.0)));
                self.pending.push_first(self.asked, Pending::Watches { again, wait });
                Ok(())
            }
            Err(ResetError::Read(error)) => Err(error.into()),
        }
    }
}

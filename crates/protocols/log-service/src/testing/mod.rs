//! A service in the memory of the process, for all nodes, with the faults that a real one has. Only available with the feature `testing`.
//!
//! A node that is cut off reaches one server only, which was the leader and does not know yet that it was replaced: it answers reads with
//! what it had, refuses publishes for which that is a reason, and confirms none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Env};
use atoll_loglet_store::testing::{Marks, Way};

use crate::mutants;
use crate::service::{Answer, Fault, Request, Service, Stored, Stream, Subject};

pub use atoll_loglet_store::testing::Faults;

const MARKS: Marks = Marks {
    lost: "service.lost",
    unanswered: "service.unanswered",
    cut_off: "service.cut_off",
    away: "service.away",
    wrong: "service.wrong",
};
/// The most messages that a server lags behind when it is read.
const LAG: u64 = 6;
/// How soon a service with that bug forgets a seal.
const FORGETS_AFTER: Duration = Duration::from_millis(20);
/// How often a wait for news looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A stream.
#[derive(Clone, Debug, Default)]
struct Kept {
    messages: BTreeMap<u64, (Subject, bytes::Bytes)>,
    last: u64,
}

impl Kept {
    fn last_of_log(&self, upto: u64) -> u64 {
        let mut below = self.messages.range(..=upto).rev();
        below.find(|(_, (on, _))| *on == Subject::Log).map_or(0, |(seq, _)| *seq)
    }

    /// Answers a read from a server that has the messages up to this one.
    fn read(&self, request: &Request, upto: u64) -> Answer {
        let stored =
            |seq: u64| self.messages.get(&seq).map(|(on, data)| Stored { seq, on: *on, data: data.clone() });
        match request {
            Request::Last => Answer::Messages(stored(self.last_of_log(upto)).into_iter().collect()),
            Request::Next { from, most } => {
                let all = self.messages.range(from..).map(|(seq, _)| *seq).take_while(|seq| *seq <= upto);
                Answer::Messages(all.take(*most as usize).filter_map(stored).collect())
            }
            _ => Answer::Done,
        }
    }

    fn publish(&mut self, on: Subject, expected: Option<u64>, data: bytes::Bytes) -> Result<u64, Fault> {
        if expected.is_some_and(|expected| expected != self.last_of_log(self.last)) {
            return Err(Fault::Refused);
        }
        if on == Subject::Mark {
            self.messages.retain(|_, (on, _)| *on == Subject::Log);
        }
        self.last += 1;
        self.messages.insert(self.last, (on, data));
        Ok(self.last)
    }
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<String, Kept>,
    /// What an old leader has, and in which window.
    old: (u64, BTreeMap<String, Kept>),
}

impl State {
    fn ask(&mut self, stream: &str, request: Request, lag: u64) -> Result<Answer, Fault> {
        if let Request::Create { replicas } = request {
            let taken = self.streams.insert(stream.to_owned(), Kept::default());
            assert!(taken.is_none(), "a name is used twice (service-S6)");
            return Ok(Answer::Created(replicas.unwrap_or(3)));
        }
        if request == Request::Delete {
            return self.streams.remove(stream).map(|_| Answer::Done).ok_or(Fault::Missing);
        }
        let kept = self.streams.get_mut(stream).ok_or(Fault::Missing)?;
        match request {
            Request::Publish { on, expected, data } => {
                kept.publish(on, expected, data).map(Answer::Published)
            }
            Request::Purge { below } => {
                kept.messages.retain(|seq, _| *seq >= below);
                Ok(Answer::Done)
            }
            read => Ok(kept.read(&read, kept.last.saturating_sub(lag))),
        }
    }

    /// Answers as an old leader, which was cut off when this window began, or soon afterwards.
    fn ask_old(&mut self, window: u64, stream: &str, request: &Request) -> Result<Answer, Fault> {
        if self.old.0 != window {
            self.old = (window, self.streams.clone());
        }
        let kept = self.old.1.get(stream).ok_or(Fault::NoAnswer)?;
        match request {
            Request::Publish { expected: Some(expected), .. } if *expected != kept.last_of_log(kept.last) => {
                Err(Fault::Refused)
            }
            read if read.is_read() => Ok(kept.read(read, kept.last)),
            _ => Err(Fault::NoAnswer),
        }
    }
}

/// A service in memory, which all clones share, and its faults.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    /// The faults of every node's way to the service.
    pub faults: Faults,
}

impl Memory {
    /// Returns the service as the node of `env` sees it.
    pub fn of(&self, env: &Env) -> Arc<dyn Service> {
        let way = Way::new(env.clone(), self.faults.clone(), MARKS);
        Arc::new(Reached { state: self.state.clone(), way })
    }

    /// Changes a message behind everybody's back. Returns whether there is one.
    pub fn damage(&self, stream: &Stream, seq: u64) -> bool {
        let mut state = lock(&self.state);
        let message = state.streams.get_mut(&stream.name).and_then(|kept| kept.messages.get_mut(&seq));
        message.is_some_and(|(_, data)| {
            let mut bytes = data.to_vec();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            *data = bytes.into();
            true
        })
    }

    /// Deletes a message behind everybody's back. Returns whether there was one.
    pub fn lose(&self, stream: &Stream, seq: u64) -> bool {
        let mut state = lock(&self.state);
        state.streams.get_mut(&stream.name).is_some_and(|kept| kept.messages.remove(&seq).is_some())
    }

    /// Returns the sequences of the messages in a stream. Empty if there is no such stream.
    pub fn sequences(&self, stream: &Stream) -> Vec<u64> {
        let state = lock(&self.state);
        state.streams.get(&stream.name).map_or_else(Vec::new, |kept| kept.messages.keys().copied().collect())
    }

    /// Returns the names of all streams.
    pub fn streams(&self) -> Vec<String> {
        lock(&self.state).streams.keys().cloned().collect()
    }
}

/// The service, as one node reaches it.
#[derive(Clone, Debug)]
struct Reached {
    state: Arc<Mutex<State>>,
    way: Way,
}

impl Reached {
    fn is_seal(request: &Request) -> bool {
        let Request::Publish { on: Subject::Log, data, .. } = request else { return false };
        data.get(5) == Some(&2)
    }

    /// Does a request at the service.
    fn do_now(&self, stream: &Stream, request: Request, lag: u64) -> Result<Answer, Fault> {
        let forgets = mutant(mutants::SERVICE_FORGETS_SEALS) && Self::is_seal(&request);
        let mut answer = lock(&self.state).ask(&stream.name, request, lag);
        if let Ok(Answer::Messages(messages)) = &mut answer {
            for message in messages {
                message.data = self.way.mangle(message.data.clone());
            }
        }
        if let Ok(Answer::Published(seq)) = answer
            && forgets
        {
            let (me, name) = (self.clone(), stream.name.clone());
            let forget = async move {
                me.way.env().sleep(FORGETS_AFTER).await;
                if let Some(kept) = lock(&me.state).streams.get_mut(&name) {
                    kept.messages.remove(&seq);
                }
            };
            self.way.env().spawn("service.forget", Box::pin(forget));
        }
        answer
    }
}

impl Service for Reached {
    fn ask(&self, stream: Stream, request: Request) -> BoxFuture<'static, Result<Answer, Fault>> {
        if matches!(request, Request::Publish { expected: Some(_), .. }) && self.way.conflicts() {
            hit("service.conflict");
            return Box::pin(std::future::ready(Err(Fault::Refused)));
        }
        if let Some(window) = self.way.cut_window() {
            let answer = lock(&self.state).ask_old(window, &stream.name, &request);
            if answer.is_ok() || answer == Err(Fault::Refused) {
                hit("service.old_server");
            }
            return Box::pin(std::future::ready(answer));
        }
        let lag = if request.is_read() && self.way.lags() { self.way.env().random() % LAG } else { 0 };
        let me = self.clone();
        self.way.carry("service.ask", Fault::NoAnswer, move || {
            Box::pin(async move { me.do_now(&stream, request, lag) })
        })
    }

    fn news(&self, stream: Stream, above: u64, patience: Duration) -> BoxFuture<'static, ()> {
        let me = self.clone();
        let until = self.way.env().now().after(patience);
        Box::pin(async move {
            while me.way.env().now() < until {
                me.way.env().sleep(me.way.env().jitter(LOOK_EVERY)).await;
                let newest =
                    lock(&me.state).streams.get(&stream.name).map(|kept| kept.last_of_log(kept.last));
                if newest.is_none_or(|newest| newest > above) && me.way.cut_window().is_none() {
                    return;
                }
            }
        })
    }
}

/// Connects to a real service, whose servers are given as `host:port,host:port`.
pub fn remote(servers: &str, timeout: Duration) -> Arc<dyn Service> {
    crate::nats::Services::default().service(servers, timeout)
}

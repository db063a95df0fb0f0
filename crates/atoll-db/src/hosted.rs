//! The applications that share a log, behind one interface that is independent of their types of events.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_contract::application::{AppId, Application, ApplyAt, Observer, Rejected, Tx, View};
use atoll_core::Level;

use crate::replica::{Published, Working};
use crate::store::StoreError;

/// The place where the doors of an application register their observer.
pub(crate) type ObserverSlot<E> = Arc<Mutex<Option<Arc<dyn Observer<E>>>>>;

/// Returns the message of a panic.
fn words(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".to_owned())
}

/// How a command ended.
pub(crate) enum Ended {
    Reply(Result<Bytes, Rejected>),
    Panicked(String),
}

/// An application with its events and its observer.
pub(crate) trait Hosted: Send {
    fn name(&self) -> &'static str;
    fn version_at(&self, level: Level) -> u8;
    /// Applies a command. If it is rejected or panics, its writes remain, and the caller must roll them back.
    fn apply(&mut self, at: &ApplyAt, command: &[u8], working: &mut Working) -> Ended;
    /// Returns the number of events that have not been sent to the observer.
    fn events(&self) -> usize;
    /// Drops all but the first `events` events, and makes the application drop its caches of writes.
    fn undo(&mut self, events: usize);
    fn opened(&mut self, published: &Arc<Published>) -> Result<(), StoreError>;
    /// Sends the events to the observer.
    fn send_events(&mut self, below: LogPos);
    /// Notifies the observer that the state was replaced.
    fn restored(&mut self, published: &Arc<Published>);
}

struct Host<A: Application> {
    app: A,
    events: Vec<A::Event>,
    observer: ObserverSlot<A::Event>,
}

impl<A: Application> Host<A> {
    fn observer(&self) -> Option<Arc<dyn Observer<A::Event>>> {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<A: Application> Hosted for Host<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn version_at(&self, level: Level) -> u8 {
        A::version_at(level)
    }

    fn apply(&mut self, at: &ApplyAt, command: &[u8], working: &mut Working) -> Ended {
        let (app, events) = (&mut self.app, &mut self.events);
        // This is unwind-safe: after a panic the writes are rolled back, and `undone` makes the application drop its caches.
        let done =
            catch_unwind(AssertUnwindSafe(|| app.apply(at, command, &mut Tx::new(A::ID, working, events))));
        match done {
            Ok(reply) => Ended::Reply(reply),
            Err(panic) => Ended::Panicked(words(&*panic)),
        }
    }

    fn events(&self) -> usize {
        self.events.len()
    }

    fn undo(&mut self, events: usize) {
        self.events.truncate(events);
        self.app.undone();
    }

    fn opened(&mut self, published: &Arc<Published>) -> Result<(), StoreError> {
        self.events.clear();
        self.app.opened(&View::new(published.clone(), A::ID))
    }

    fn send_events(&mut self, below: LogPos) {
        if self.events.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        if let Some(observer) = self.observer() {
            observer.on_events(below, events);
        }
    }

    fn restored(&mut self, published: &Arc<Published>) {
        if let Some(observer) = self.observer() {
            observer.on_restored(published.below, &View::new(published.clone(), A::ID));
        }
    }
}

/// An application's place among those of a log. Once the database is open, it yields the application's [`crate::Engine`].
pub struct Slot<A: Application> {
    pub(crate) observer: ObserverSlot<A::Event>,
    _app: PhantomData<fn() -> A>,
}

impl<A: Application> Clone for Slot<A> {
    fn clone(&self) -> Self {
        Slot { observer: self.observer.clone(), _app: PhantomData }
    }
}

impl<A: Application> fmt::Debug for Slot<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", A::ID, A::NAME)
    }
}

/// The applications that share a log and a store. All replicas must have the same ones.
#[derive(Default)]
pub struct Applications(pub(crate) BTreeMap<AppId, Box<dyn Hosted>>);

impl fmt::Debug for Applications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(id, app)| (id.0, app.name()))).finish()
    }
}

impl Applications {
    /// Returns an empty set of applications.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an application. Panics if its number is taken or not allowed, which is a bug in the program, because its applications
    /// are fixed.
    pub fn add<A: Application>(&mut self, app: A) -> Slot<A> {
        assert!(matches!(A::ID.0, 1..=254), "{} of {}: 1 to 254 are allowed", A::ID, A::NAME);
        let observer = ObserverSlot::<A::Event>::default();
        let host = Host { app, events: Vec::new(), observer: observer.clone() };
        let before = self.0.insert(A::ID, Box::new(host));
        assert!(before.is_none(), "{} is already in use; {} needs its own", A::ID, A::NAME);
        Slot { observer, _app: PhantomData }
    }
}

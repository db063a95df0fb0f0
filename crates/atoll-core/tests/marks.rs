//! Tests of coverage marks, which are events in a running program and counts in a test. A program of its own: a subscriber of one thread
//! makes `tracing` decide anew, for the whole process, which events anybody wants.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Collects the marks from the events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Visit for &Log {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "mark" {
            self.0.lock().unwrap().push(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "atoll::mark" && *metadata.level() == Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_mark_is_an_event_at_level_debug() {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        atoll_core::testing::hit("here");
        atoll_core::testing::hit("there");
    });
    atoll_core::testing::hit("nobody listens");
    assert_eq!(*log.0.lock().unwrap(), ["here", "there"]);
}

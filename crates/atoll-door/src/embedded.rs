//! A door without a socket, for a program that runs a node in its own process.

use atoll_core::{BoxFuture, Completer, Ticket, ticket};
use atoll_db::{Application, Applications, Engine, Slot};

use crate::door::{Door, DoorError, DoorUp, Serving, nothing};

/// Returns a door without a socket, and a ticket for the engine of `app`, for a program that embeds the node.
pub fn embed<A: Application>(app: A) -> (Box<dyn Door>, Ticket<Engine<A>>) {
    let (hand, wait) = ticket();
    (Box::new(Embedded { app: Some(app), slot: None, hand }), wait)
}

struct Embedded<A: Application> {
    app: Option<A>,
    slot: Option<Slot<A>>,
    hand: Completer<Engine<A>>,
}

impl<A: Application> Door for Embedded<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn applications(&mut self, apps: &mut Applications) {
        self.slot = self.app.take().map(|app| apps.add(app));
    }

    fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        if let (Some(slot), Some(database)) = (&self.slot, &up.database) {
            self.hand.complete(database.engine(slot));
        }
        Box::pin(async { Ok(nothing()) })
    }
}

//! Tells the gate what is granted: when the replica has opened, and whenever a command or a peer's state has changed it.

use std::sync::Arc;
use std::time::Duration;

use atoll_auth::{Auth, Grant, Token};
use atoll_client::Reason;
use atoll_db::{Engine, LogPos, Observer, View};
use atoll_door::{Gate, Refusal};
use tokio::sync::watch;

/// How often this checks whether the replica was found to be wrong, or whether it can be read again.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// Passes on that something has changed.
struct Changes(watch::Sender<LogPos>);

impl Observer<()> for Changes {
    fn on_events(&self, below: LogPos, _events: Vec<()>) {
        self.0.send_replace(below);
    }

    fn on_restored(&self, below: LogPos, _view: &View) {
        self.0.send_replace(below);
    }
}

/// Keeps the gate up to date until it is dropped.
pub(crate) async fn follow(engine: &Engine<Auth>, gate: &Gate) {
    let (send, mut changes) = watch::channel(LogPos::ZERO);
    engine.observe(Arc::new(Changes(send)));
    // An error means that the node is stopping.
    let _ = engine.checked().await;
    loop {
        let below = *changes.borrow_and_update();
        if engine.wait_applied(below).await.is_err() {
            return;
        }
        let is_known = read(engine, gate).await.is_ok();
        // Rows of the store are read only after a change, or when they could not be read.
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                () = tokio::time::sleep(LOOKS_EVERY) => {
                    if !is_known || engine.is_withheld() {
                        break;
                    }
                }
            }
        }
    }
}

/// Reads the grants and tokens, and tells the gate.
pub(crate) async fn read(engine: &Engine<Auth>, gate: &Gate) -> Result<(Vec<Grant>, Vec<Token>), Refusal> {
    let view = engine.view();
    let below = view.below();
    // The read may wait for the disk (X20).
    match tokio::task::spawn_blocking(move || atoll_auth::policy(&view)).await {
        Ok(Ok((grants, tokens, policy))) => {
            gate.publish(below, policy);
            Ok((grants, tokens))
        }
        Ok(Err(error)) => {
            gate.forget();
            tracing::warn!(%error, "this node does not know who may do what");
            Err(Refusal::no(Reason::Unavailable, error.to_string(), "ask another node"))
        }
        Err(_) => Err(Refusal::stopping()),
    }
}

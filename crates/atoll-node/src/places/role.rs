//! The role that looks at a place of registers for another node.

use std::collections::BTreeMap;

use atoll_core::{BoxFuture, Caller, Class, Effects, Env, Frame, Loc, Lsn, Message, Refused, Role, Tick};

use super::Places;
use super::message::{AskPlace, PlaceReady, PlaceSeen};
use crate::members::roles::PLACES;

/// The maximum number of looks under way.
const MOST_QUESTIONS: usize = 8;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct PlaceRole {
    env: Env,
    places: Places,
    questions: BTreeMap<u64, Caller>,
    asked: u64,
}

impl PlaceRole {
    /// Creates the role over the places of this node.
    pub(crate) fn new(env: Env, places: Places) -> Self {
        PlaceRole { env, places, questions: BTreeMap::new(), asked: 0 }
    }

    fn on_ask(&mut self, from: Caller, name: String, out: &mut Effects) {
        if self.questions.len() >= MOST_QUESTIONS {
            let reason = "too many places are being looked at: try again".to_owned();
            return out.reply(from, Refused { reason }, Lsn::NONE);
        }
        self.asked += 1;
        self.questions.insert(self.asked, from);
        out.run("places.look", look(self.env.clone(), self.places.clone(), name, self.asked));
    }
}

/// Looks at a place, and posts what it finds to the role on this node.
fn look(env: Env, places: Places, name: String, question: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let PlaceSeen { url, token, failed } = places.look(&name).await;
        env.post(env.node(), Class::Control, PLACES, PlaceReady { question, url, token, failed });
    })
}

impl Role for PlaceRole {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        let kind = frame.kind;
        let decoded = match kind {
            AskPlace::KIND => AskPlace::from_frame(frame).map(|m| self.on_ask(from, m.name, out)),
            PlaceReady::KIND if from.node == out.node() => PlaceReady::from_frame(frame).map(|m| {
                let PlaceReady { question, url, token, failed } = m;
                if let Some(from) = self.questions.remove(&question) {
                    out.reply(from, PlaceSeen { url, token, failed }, Lsn::NONE);
                }
            }),
            _ => {
                let reason = format!("the role of places accepts no message of kind {kind}");
                return out.reply(from, Refused { reason }, Lsn::NONE);
            }
        };
        if let Err(error) = decoded {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}
}

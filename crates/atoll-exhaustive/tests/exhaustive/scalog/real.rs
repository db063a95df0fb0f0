//! The real storage server, fed with what the model's server gets.

use std::sync::Arc;

use atoll_contract::{
    Batch, ClientId, Duties, Entry as Record, Loglet, LogletError, LogletId, LogletSpec, OpId, PlanError,
};
use atoll_core::traces::{Command, LoneRole, Wording};
use atoll_core::{BoxFuture, Encode, Frame, Incarnation, Message, NodeCore, NodeId, StorageId};
use atoll_scalog::message::{Append, Appended, Follow, Outcome, Replicate};
use atoll_scalog::roles::SERVER;
use atoll_scalog::{OrderingLogs, OrderingSpec, ServerOptions, StorageServer};
use bytes::Bytes;

use super::log::{Entry, config};
use super::server::{Answer, Request};

const LOGLET: LogletId = LogletId(5);
/// The node from which requests come. No server is on it.
const ELSEWHERE: NodeId = NodeId(9);

/// Nobody runs the ordering log: the test says what is in it.
#[derive(Debug)]
struct Absent;

impl OrderingLogs for Absent {
    fn open(&self, _: LogletId, _: &OrderingSpec) -> Result<Arc<dyn Loglet>, PlanError> {
        Err(PlanError::Invalid { what: "ordering log", allowed: "none, in this test" })
    }
    fn plan<'a>(
        &'a self,
        _: &'a LogletSpec,
        _: Option<&'a OrderingSpec>,
    ) -> BoxFuture<'a, Result<OrderingSpec, PlanError>> {
        Box::pin(async { Ok(config().ordering) })
    }
    fn provision(&self, _: LogletId, _: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { Ok(()) })
    }
    fn delete(&self, _: LogletId, _: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { Ok(()) })
    }
    fn duties(&self, _: &OrderingSpec) -> Duties {
        Duties::default()
    }
    fn can_end(&self, _: &OrderingSpec, _: &dyn Fn(NodeId) -> bool) -> bool {
        true
    }
}

/// The real server of a node.
pub struct Real {
    role: LoneRole,
    config: Bytes,
    client: u64,
}

fn one(client: u64) -> Bytes {
    let op = OpId { client: ClientId(client), seq: 1 };
    Batch::of([Record { op, payload: Bytes::from_static(b"x") }]).bytes().clone()
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(atoll_core::roles::NONE)
}

impl Real {
    /// Starts the server of a node that knows the Loglet. As in the model, segment 1 of shard 0 has another client's record.
    pub fn start(node: u32, client: u64) -> Self {
        let env = NodeCore::new(NodeId(node), Incarnation(9), 1).env();
        let make = move || -> Box<dyn atoll_core::Role> {
            let (storage, options) = (StorageId(node.into()), ServerOptions::default());
            Box::new(StorageServer::new(env.clone(), storage, Arc::new(Absent), options))
        };
        let wording = Wording { message: word, record: |_| "record".to_owned() };
        let role = LoneRole::new(NodeId(node), SERVER, wording, make);
        let mut real = Real { role, config: config().to_bytes(), client };
        let (loglet, config, shard, segment) = (LOGLET, real.config.clone(), 0, 1);
        let (first, count, round, batch) = (0, 1, 0, one(client + 1));
        let others = Replicate { loglet, config, shard, segment, first, count, round, batch };
        real.role.post(NodeId(2), frame(others));
        real.sync();
        real
    }

    fn command(&mut self, name: &str) {
        let mut command = Command::new(name);
        command.word();
        self.role.command(name, &mut command);
    }

    pub fn append(&mut self, request: Request, shard: u32) {
        let (loglet, config, chosen) = (LOGLET, self.config.clone(), request.chosen.then_some(shard));
        let (view, not_below, batch) = (request.view, request.floor, one(self.client));
        let append = Append { loglet, config, view, chosen, not_below, batch };
        self.role.request(ELSEWHERE, "append", frame(append));
    }

    pub fn sync(&mut self) {
        self.command("sync");
    }

    /// Gives it entries of the ordering log.
    pub fn follow(&mut self, from: usize, entries: &[Entry]) {
        let entries = entries.iter().map(|entry| entry.product().to_bytes()).collect();
        let follow = Follow { loglet: LOGLET, from: from as u64, ended: false, entries };
        self.role.request(ELSEWHERE, "follow", frame(follow));
    }

    pub fn restart(&mut self) {
        self.command("restart");
        // The first turn, in which it joins its shards.
        self.command("deadline");
    }

    /// Returns the answers to appends since the last call.
    pub fn answers(&mut self) -> Vec<String> {
        let lines = self.role.end_turn();
        let answer = |line: &String| line.strip_prefix("reply to 9 (append): ").map(str::to_owned);
        lines.iter().filter_map(answer).collect()
    }
}

/// Formats an answer like the model's.
fn word(message: Frame) -> String {
    if message.kind != Appended::KIND {
        return "another message".to_owned();
    }
    let answer = match Appended::from_frame(message).unwrap().outcome {
        Outcome::Ordered { placed } => Answer::Ordered(placed[0].first.unwrap()),
        Outcome::Finalized { placed, .. } if placed[0].first.is_none() => Answer::Never,
        Outcome::Moved { .. } => Answer::Moved,
        Outcome::Behind {} => Answer::Behind,
        Outcome::Forgotten {} => Answer::Forgotten,
        other => return format!("{other:?}"),
    };
    format!("{answer:?}")
}

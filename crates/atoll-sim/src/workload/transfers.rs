//! Clients of transactions of several keys: transfers between accounts, two clerks of whom one is always on duty, and audits, through any
//! node. Clients are impatient: they repeat a transaction at another node under the same name while the first node may still be at it.
//!
//! The oracles look at the answers, and know nothing of the engine. The judge of single keys looks at every read and every change. An audit
//! must show the same sum at every moment, and a clerk on duty. After everything was healed, no key may stay blocked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_contract::keyspace::{
    Asked, Attempt, Change, Changed, Floor, Guard, Happened, Held, KeyspaceError, Layout, Told, Transacted,
    TxnPart,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::hit;
use atoll_node::keyspaces::KeyspacesError;
use bytes::Bytes;

use crate::scenario::phases::Stage;
use crate::workload::keyspace::{Handles, NAME, Reef, provide};
use crate::world::clients::Life;
use crate::world::fault::{Death, Fault};

/// What an account holds at the beginning.
const START: i64 = 100;
const CLERKS: [&str; 2] = ["clerk-a", "clerk-b"];
/// After everything was healed, a read may take this long in addition to the time for which a transaction may be pending.
const BLOCKED_AT_MOST: Duration = Duration::from_secs(1);

/// What all clients share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Bank {
    reef: Reef,
    accounts: u64,
    /// How long a pending transaction is left alone.
    grace: Duration,
    /// What replies have shown of the keys: floors for repeats.
    floors: Arc<Mutex<BTreeMap<Bytes, Floor>>>,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    /// Through which host, or one that is up. None: through any.
    pub(super) host: Option<usize>,
    /// Whether it must be answered. Then the client waits for that.
    pub(super) must_answer: bool,
}

impl Way {
    /// A request failed. One that was done did not fail, although the answer is no longer known.
    fn failed(self, stage: &Stage<Handles>, what: &str, error: &KeyspacesError) {
        if self.must_answer && *error != KeyspacesError::Keys(KeyspaceError::AnswerLost) {
            stage.cluster.fail(format!("MOVE failed: {what}: {error}"));
        }
    }
}

/// Returns whether a failed request happened. If the layout of the keyspace cannot be read, nobody was asked: the request did nothing, and
/// earlier attempts may have done anything.
fn happened(error: &KeyspacesError, repeat: bool) -> Happened {
    match error {
        KeyspacesError::Keys(error) => error.happened(),
        _ if repeat => Happened::Unknown,
        _ => Happened::No,
    }
}

fn account(n: u64) -> Bytes {
    Bytes::from(format!("account-{n}"))
}

fn clerk(n: usize) -> Bytes {
    Bytes::from_static(CLERKS[n % 2].as_bytes())
}

/// The values of accounts and clerks begin with what they say. The rest makes each value the only one of its kind.
fn first_word(held: &Held) -> &str {
    std::str::from_utf8(&held.value).ok().and_then(|text| text.split(' ').next()).unwrap_or_default()
}

fn balance(held: &Held) -> i64 {
    first_word(held).parse().unwrap_or_default()
}

fn put(key: Bytes, guard: Guard, says: impl std::fmt::Display, op: OpId) -> TxnPart {
    let value = format!("{says} {}-{}", op.client.0, op.seq);
    TxnPart::new(key, guard, Some(Change::Put(Bytes::from(value))))
}

fn read_only(key: Bytes) -> TxnPart {
    TxnPart::new(key, Guard::Always, None)
}

impl Bank {
    /// Returns the state before the keyspace is created.
    pub fn new(reef: Reef, accounts: u64, grace: Duration) -> Self {
        Bank { reef, accounts, grace, floors: Arc::default() }
    }

    pub(super) fn reef(&self) -> &Reef {
        &self.reef
    }

    fn all_keys(&self) -> Vec<Bytes> {
        (0..self.accounts).map(account).chain((0..2).map(clerk)).collect()
    }

    /// Notes that a transaction is about to be sent. Returns what is known of each of its keys.
    fn asks(&self, stage: &Stage<Handles>, layout: &Layout, op: OpId, parts: &[TxnPart]) -> Vec<Asked> {
        let ask = |part: &TxnPart| {
            self.reef.judge(stage, layout.id, |judge| match &part.change {
                Some(change) => judge.writes(&part.key, op, &part.guard, change),
                None => judge.reads(&part.key),
            })
        };
        parts.iter().filter_map(ask).collect()
    }

    fn told(&self, stage: &Stage<Handles>, layout: &Layout, key: &Bytes, asked: Asked, told: &Told) {
        self.reef.judge(stage, layout.id, |judge| judge.told(key, asked, told));
    }

    /// Checks what an answer shows of each key.
    fn answered(
        &self,
        stage: &Stage<Handles>,
        layout: &Layout,
        op: OpId,
        parts: &[TxnPart],
        asked: &[Asked],
        answer: &Result<Transacted, Happened>,
    ) {
        for (n, (part, asked)) in parts.iter().zip(asked).enumerate() {
            let changes = part.change.is_some();
            let seen = match answer {
                Ok(Transacted::Done(all)) => match &all[n] {
                    done @ Changed::Done(_) => Told::Wrote(op, done.clone()),
                    Changed::Not(held) => Told::Read(held.clone()),
                },
                Ok(Transacted::Not(held)) => Told::Read(held[n].clone()),
                Err(happened) => Told::Failed(op, *happened),
            };
            if changes || !matches!(seen, Told::Failed(..)) {
                self.told(stage, layout, &part.key, *asked, &seen);
            }
            if changes && matches!(answer, Ok(Transacted::Not(_))) {
                self.told(stage, layout, &part.key, *asked, &Told::Failed(op, Happened::No));
            }
        }
    }

    fn saw_floor(&self, key: &Bytes, floor: Floor) {
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        let known = floors.entry(key.clone()).or_default();
        *known = floor.max(*known);
    }

    fn floor(&self, key: &Bytes) -> Floor {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or_default()
    }

    /// Executes a transaction, with repeats. Returns the outcome if there is one.
    async fn transact(
        &self,
        stage: &Stage<Handles>,
        way: Way,
        op: OpId,
        mut parts: Vec<TxnPart>,
    ) -> Option<Transacted> {
        let layout = self.reef.layout()?;
        parts.iter_mut().for_each(|part| part.floor = self.floor(&part.key));
        let mut repeat = false;
        for _ in 0..5 {
            let life = self.node(stage, way)?;
            let asked = self.asks(stage, &layout, op, &parts);
            let (keyspaces, sent) = (life.handles.keyspaces.clone(), parts.clone());
            let txn = async move { keyspaces.transact(NAME, (op, repeat), sent).await };
            let ticket = life.env.launch("client.txn", txn);
            // Whoever goes away leaves the transaction to the node.
            let patience = [40, 300, 10_000][if way.must_answer { 2 } else { stage.below(3) as usize }];
            let answer = match stage.env.within(Duration::from_millis(patience), ticket).await {
                Ok(Ok(Ok((outcome, floors)))) => {
                    parts.iter().zip(floors).for_each(|(part, floor)| self.saw_floor(&part.key, floor));
                    Ok(outcome)
                }
                Ok(Ok(Err(error))) => {
                    way.failed(stage, "a transaction", &error);
                    if error == KeyspacesError::Keys(KeyspaceError::Forgotten) {
                        hit("sim.txn.forgotten");
                    }
                    // A repeat knows only of itself. An attempt before it may still happen.
                    if repeat && happened(&error, repeat) == Happened::No {
                        let words = format!("a repeat says that {op:?} did not happen: {error}");
                        stage.cluster.fail(format!("TXN outcome: {words}"));
                    }
                    Err(happened(&error, repeat))
                }
                Ok(Err(_)) => {
                    hit("sim.txn.node_died");
                    Err(Happened::Unknown)
                }
                Err(_) => {
                    hit("sim.txn.impatient");
                    Err(Happened::Unknown)
                }
            };
            self.answered(stage, &layout, op, &parts, &asked, &answer);
            match answer {
                Ok(outcome) => return Some(outcome),
                Err(Happened::Unknown) => repeat = true,
                Err(_) => return None,
            }
            stage.pause(Duration::from_millis(20)).await;
        }
        None
    }

    fn node(&self, stage: &Stage<Handles>, way: Way) -> Option<Life<Handles>> {
        let host = way.host.unwrap_or_else(|| stage.below(64) as usize);
        stage.cluster.any_from(host % stage.cluster.hosts())
    }

    /// Reads keys, each on its own.
    async fn read(&self, stage: &Stage<Handles>, way: Way, keys: &[Bytes]) -> Option<Vec<Held>> {
        let layout = self.reef.layout()?;
        let life = self.node(stage, way)?;
        let asks = |key| self.reef.judge(stage, layout.id, |judge| judge.reads(key));
        let asked: Vec<Asked> = keys.iter().filter_map(asks).collect();
        let (keyspaces, wanted) = (life.handles.keyspaces.clone(), keys.to_vec());
        let get = async move { keyspaces.get(NAME, wanted).await };
        let got = life.env.launch("client.get", get).await.ok()?;
        let found = got.map_err(|error| way.failed(stage, "a read", &error)).ok()?;
        for ((key, asked), (held, floor)) in keys.iter().zip(asked).zip(&found) {
            self.told(stage, &layout, key, asked, &Told::Read(held.clone()));
            self.saw_floor(key, *floor);
        }
        found.into_iter().map(|(held, _)| held).collect()
    }

    /// Checks what all accounts and clerks held at one moment.
    fn audited(&self, stage: &Stage<Handles>, how: &str, all: &[Held]) {
        let (accounts, clerks) = all.split_at(self.accounts as usize);
        let sum: i64 = accounts.iter().map(balance).sum();
        if sum != START * self.accounts as i64 {
            stage.cluster.fail(format!("TXN sum: {how} shows {sum} in all accounts: {accounts:?}"));
        }
        if clerks.iter().all(|held| first_word(held) == "off") {
            stage.cluster.fail(format!("TXN skew: {how} shows that no clerk is on duty: {clerks:?}"));
        }
    }

    /// Reads everything at one moment: in a transaction, or key by key until nothing has changed between two looks.
    async fn audit(&self, stage: &Stage<Handles>, way: Way, op: OpId) -> bool {
        let keys = self.all_keys();
        if stage.below(2) == 0 {
            let parts = keys.into_iter().map(read_only).collect();
            let Some(Transacted::Done(read)) = self.transact(stage, way, op, parts).await else {
                return false;
            };
            let held = |changed| if let Changed::Not(Some(held)) = changed { Some(held) } else { None };
            let Some(all) = read.into_iter().map(held).collect::<Option<Vec<_>>>() else {
                stage
                    .cluster
                    .fail("TXN lost: a transaction that reads all keys does not find one".to_owned());
                return false;
            };
            hit("sim.txn.audit");
            self.audited(stage, "a transaction", &all);
            return true;
        }
        let Some(first) = self.read(stage, way, &keys).await else { return false };
        let Some(second) = self.read(stage, way, &keys).await else { return false };
        if first != second {
            return false;
        }
        hit("sim.txn.quiet_audit");
        self.audited(stage, "reading twice", &second);
        true
    }

    async fn transfer(&self, stage: &Stage<Handles>, way: Way, op: OpId) -> bool {
        let from = stage.below(self.accounts);
        let to = (from + 1 + stage.below(self.accounts - 1)) % self.accounts;
        let Some(held) = self.read(stage, way, &[account(from), account(to)]).await else { return false };
        let amount = 1 + stage.below(30) as i64;
        let version = |n: usize| Guard::Version(held[n].version);
        let parts = vec![
            put(account(from), version(0), balance(&held[0]) - amount, op),
            put(account(to), version(1), balance(&held[1]) + amount, op),
        ];
        match self.transact(stage, way, op, parts).await {
            Some(Transacted::Done(_)) => true,
            Some(Transacted::Not(_)) => {
                hit("sim.txn.refused");
                false
            }
            None => false,
        }
    }

    /// A clerk goes home if the other one is on duty, or comes back.
    async fn shift(&self, stage: &Stage<Handles>, way: Way, op: OpId) {
        let me = stage.below(2) as usize;
        if stage.below(2) == 0 {
            let parts = vec![put(clerk(me), Guard::Present, "on", op)];
            self.transact(stage, way, op, parts).await;
            return;
        }
        let Some(held) = self.read(stage, way, &[clerk(me + 1)]).await else { return };
        if first_word(&held[0]) == "on" {
            let other = TxnPart::new(clerk(me + 1), Guard::Value(held[0].value.clone()), None);
            self.transact(stage, way, op, vec![put(clerk(me), Guard::Present, "off", op), other]).await;
        }
    }

    /// Writes one account outside of any transaction. What it holds stays the same.
    async fn stamp(&self, stage: &Stage<Handles>, way: Way, op: OpId) {
        let key = account(stage.below(self.accounts));
        let Some(held) = self.read(stage, way, std::slice::from_ref(&key)).await else { return };
        let (Some(layout), Some(life)) = (self.reef.layout(), self.node(stage, way)) else { return };
        let part = put(key, Guard::Version(held[0].version), balance(&held[0]), op);
        let asked = self.asks(stage, &layout, op, std::slice::from_ref(&part));
        let (keyspaces, TxnPart { key, guard, change: Some(change), .. }) = (life.handles.keyspaces, part)
        else {
            return;
        };
        let name = key.clone();
        let write = async move { keyspaces.write(NAME, (op, Attempt::First), name, guard, change).await };
        let told = match life.env.launch("client.write", write).await {
            Ok(Ok((changed, floor))) => {
                self.saw_floor(&key, floor);
                Told::Wrote(op, changed)
            }
            Ok(Err(error)) => {
                way.failed(stage, "a write", &error);
                Told::Failed(op, happened(&error, false))
            }
            Err(_) => Told::Failed(op, Happened::Unknown),
        };
        asked.iter().for_each(|asked| self.told(stage, &layout, &key, *asked, &told));
    }

    /// Executes a random transaction, or a read or a write of one key.
    pub(super) async fn step(&self, stage: &Stage<Handles>, way: Way, op: OpId) {
        match stage.below(8) {
            0 | 1 => {
                self.audit(stage, way, op).await;
            }
            2 => self.shift(stage, way, op).await,
            3 => self.stamp(stage, way, op).await,
            _ => {
                self.transfer(stage, way, op).await;
            }
        }
    }

    /// Opens all accounts, and puts both clerks on duty.
    async fn open(&self, stage: &Stage<Handles>, client: u64) {
        provide(stage, &self.reef).await;
        for seq in 1.. {
            let op = OpId { client: ClientId(client), seq };
            let accounts = (0..self.accounts).map(|n| put(account(n), Guard::Absent, START, op));
            let clerks = (0..2).map(|n| put(clerk(n), Guard::Absent, "on", op));
            // If it is refused, an earlier one has opened them.
            if self.transact(stage, Way::default(), op, accounts.chain(clerks).collect()).await.is_some() {
                return;
            }
            stage.pause(Duration::from_millis(50)).await;
        }
    }
}

/// Executes transactions until the load is over.
async fn client(stage: Stage<Handles>, bank: Bank, number: u64, think: Duration) {
    let mut seq = 0;
    while !stage.over.is_up() {
        stage.pause(think).await;
        seq += 1;
        bank.step(&stage, Way::default(), OpId { client: ClientId(number), seq }).await;
    }
}

/// Opens the accounts, and then starts the clients.
pub async fn opener(stage: Stage<Handles>, bank: Bank, clients: u64, think: Duration) {
    bank.open(&stage, 1).await;
    for number in 0..clients {
        stage.spawn("client", client(stage.clone(), bank.clone(), 100 + number, think));
    }
}

/// Demands progress after everything was healed: no account is blocked, and each node executes a transfer and an audit. First, a minority
/// dies for good in some runs.
pub async fn demand(stage: Stage<Handles>, bank: Bank, dead: Vec<usize>) {
    for host in dead {
        hit("sim.txn.dead_minority");
        stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    }
    stage.pause(Duration::from_millis(500)).await;
    stage.waits_for("the accounts".to_owned());
    bank.open(&stage, 2).await;
    for (n, key) in bank.all_keys().iter().enumerate() {
        stage.waits_for(format!("a read of {key:?}"));
        let began = stage.env.now();
        let way = Way { host: Some(n), must_answer: false };
        while bank.read(&stage, way, std::slice::from_ref(key)).await.is_none() {}
        let took = Duration::from_nanos(stage.env.now().0 - began.0);
        if took > bank.grace + BLOCKED_AT_MOST {
            stage
                .cluster
                .fail(format!("LIVENESS: {key:?} was blocked for {took:?} after everything was healed"));
        }
    }
    let mut seq = 0;
    for host in 0..stage.cluster.hosts() {
        let way = Way { host: Some(host), must_answer: false };
        for (what, audits) in [("a transfer", false), ("an audit", true)] {
            stage.waits_for(format!("{what} through host {host}"));
            loop {
                seq += 1;
                let op = OpId { client: ClientId(3), seq };
                let done = match audits {
                    true => bank.audit(&stage, way, op).await,
                    false => bank.transfer(&stage, way, op).await,
                };
                if done {
                    break;
                }
                stage.pause(Duration::from_millis(20)).await;
            }
        }
    }
}

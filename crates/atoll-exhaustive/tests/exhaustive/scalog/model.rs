//! One append to a shard that ends, while another orderer takes over (scalog.md §4, §7).
//!
//! Our client's records go to segment 0 of shard 0, on the servers 0 and 1, and to shard 1, on server 2, once shard 0 has ended. Another
//! client's record is in segment 1 of shard 0 from the beginning. An operator, or an orderer that finds the shard stuck, ends shard 0.
//! Orderer 0 leads at first. Orderer 1 begins with nothing, and may take over at any time, while proposals of orderer 0 are still on their
//! way, so that the log may get a cut late, twice, or never. Messages may be late or lost, a server of shard 0 may crash, and our client's
//! request may have an unknown outcome, after which it comes again through another node.
//!
//! What an entry of the ordering log does, where a client's records go, and which cut an orderer proposes is computed by the product's own
//! state machines.

use std::borrow::Cow;

use atoll_core::testing::{Mutant, set_mutant};
use atoll_scalog::message::Report;
use atoll_scalog::order::Order;
use atoll_scalog::reported::Reported;
use stateright::{Model, Property};

use super::log::{Entry, Log, Moment, Spot, config};
use super::properties;
use super::server::{Answer, Flaws, Record, Request, Server};

/// The most entries of the ordering log.
const MAX_ENTRIES: usize = 3;

/// Bugs that can be planted. Each is a trap of scalog.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// A known bug of the product's state machines.
    Product(Mutant),
    /// S1: servers report what is not on their disks yet.
    ReportsUnsynced,
    /// S7: a server applies only the last one of several cuts.
    SkipsCuts,
    /// S15: a client whose request has an unknown outcome goes to another shard, although its own has not ended.
    RetriesElsewhere,
    /// See [`Flaws`].
    Server(Flaws),
}

/// A request on its way to a server.
pub type Sent = (usize, Request);

/// A client takes an answer at once, and sends its next request at once. An answer that is lost shows as little as a client that gives up
/// just before it comes, and what a search finds is certain once a server says that it is necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Sent(Sent),
    /// Server and place: the request waits there until its record has a number, or will never have one.
    Waits(usize, u64),
    /// The server has restarted: no answer will come.
    Lost,
    /// Was told the number of its record.
    Done(u64),
    /// Found its record by a search.
    Found(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    /// Whether it knows that shard 0 has ended.
    pub knows_end: bool,
    /// Its record has no number below this one.
    pub floor: u64,
    /// Whether it goes elsewhere before its shard has ended ([`Bug::RetriesElsewhere`]).
    pub strays: bool,
    /// Whether it was told that its record never gets a number in shard 0.
    pub told_never: bool,
}

/// The orderer that leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orderer {
    /// Whether it is the second one.
    pub second: bool,
    /// Whether it knows nothing of the ordering log yet. Later it knows all of it: a late proposal shows as much as an orderer that lags.
    pub new: bool,
    pub reported: Reported,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub servers: [Server; 3],
    pub orderer: Orderer,
    pub log: Log,
    /// Proposals on their way to the ordering log.
    pub proposals: Vec<Entry>,
    pub client: Client,
    /// A request that nobody waits for any more.
    pub stray: Option<Sent>,
    /// How many crashes, unknown outcomes and ends of stuck shards may still come.
    pub crashes: u8,
    pub retries: u8,
    pub stuck: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request arrives.
    Arrive,
    /// The client does not know what became of its request: it comes again, through a node that knows nothing yet.
    Retry,
    /// A request that nobody waits for arrives.
    Stray,
    /// The disk of a server has everything.
    Sync(usize),
    /// Server 1 takes the next record of segment 0.
    Replicate,
    /// A server's report reaches the orderer that leads.
    Report(usize),
    /// Server 0 applies the next entry, or two of them.
    Follow(usize),
    /// The second orderer has read the ordering log.
    Learn,
    /// Orderer 1 takes over.
    TakeOver,
    /// The orderer that leads proposes a cut.
    Propose,
    /// It proposes to end shard 0, because a server lacks what the other one has.
    End,
    /// A proposal gets into the log.
    Commit(usize),
    /// A server of shard 0 restarts.
    Crash(usize),
}

pub struct Race {
    pub bug: Bug,
    /// Our client.
    pub name: u64,
}

impl Race {
    /// Returns the race with a client whose records go where the model says.
    pub fn new(bug: Bug) -> Self {
        let order = Order::new(&config());
        let is_first =
            |name: &u64| order.home(*name).is_some_and(|home| (home.shard, home.segment) == (0, 0));
        Race { bug, name: (1..).find(is_first).unwrap() }
    }

    fn flaws(&self) -> Flaws {
        if let Bug::Server(flaws) = self.bug { flaws } else { Flaws::default() }
    }

    fn product(&self) -> Mutant {
        if let Bug::Product(mutant) = self.bug { mutant } else { Mutant::NONE }
    }

    /// Lets a request arrive. Returns the answer, or the place where it waits.
    fn arrive(&self, state: &mut State, (at, request): Sent) -> Result<Phase, Answer> {
        let log = state.log.clone();
        let server = &mut state.servers[at];
        let there = log.without(server.applied, &server.skipped.clone());
        let place = server.append(&there, self.name, request, self.flaws())?;
        // One server is a shard of its own: there is no schedule in which its sync matters.
        if at == 2 {
            server.sync();
        }
        server.settle(&there, place, self.flaws()).map_or(Ok(Phase::Waits(at, place)), Err)
    }

    /// Sends the client's request, to where it knows that its records go.
    fn send(&self, state: &mut State) {
        let known = if state.client.knows_end { state.log.newest() } else { state.log.at(0) };
        // The servers of shard 1 come after those of shard 0.
        let home =
            known.order.home(self.name).map_or(0, |home| if home.shard == 0 { home.segment } else { 2 });
        let chosen = state.client.strays;
        let request = Request { view: known.order.view(), floor: state.client.floor, chosen };
        state.client.phase = Phase::Sent((if chosen { 2 } else { home }, request));
    }

    fn take(&self, state: &mut State, answer: Answer) {
        let newest = &state.log.newest().order;
        let (base, ended) = (newest.base(), newest.shards()[&0].ended);
        let found = state.ours().first().map(|(number, _)| *number);
        let client = &mut state.client;
        match answer {
            Answer::Ordered(number) => return client.phase = Phase::Done(number),
            Answer::Forgotten => match found {
                Some(number) => return client.phase = Phase::Found(number),
                None => client.floor = base,
            },
            Answer::Never => {
                client.told_never = true;
                client.floor = client.floor.max(ended.map_or(0, |end| end.base));
            }
            Answer::Moved | Answer::Behind => {}
        }
        // It reads the ordering log before it sends again.
        client.knows_end = ended.is_some();
        self.send(state);
    }

    fn retry(&self, state: &mut State) {
        if let Phase::Sent(request) = state.client.phase {
            state.stray = Some(request);
        }
        state.retries -= 1;
        state.client.knows_end = false;
        state.client.strays = self.bug == Bug::RetriesElsewhere;
        self.send(state);
    }

    /// Answers the client, if it waits at this server and the answer is certain now.
    fn settle(&self, state: &mut State, at: usize) {
        if let Phase::Waits(there, place) = state.client.phase
            && there == at
            && let Some(answer) = state.servers[at].settle(&state.seen_by(at), place, self.flaws())
        {
            self.take(state, answer);
        }
    }

    fn follow(&self, state: &mut State, count: usize) {
        let server = &mut state.servers[0];
        if count == 2 {
            server.skipped.push(server.applied);
        }
        server.applied += count;
        self.settle(state, 0);
    }

    /// Adds an entry to the log. Server 2 and the orderer apply it at once, unless the orderer is new.
    fn commit(&self, state: &mut State, entry: Entry) {
        state.log.push(entry);
        state.servers[2].applied = state.log.len();
        self.settle(state, 2);
        if !state.orderer.new {
            forget_ended(state);
        }
    }

    /// What the orderer that leads would propose.
    fn cut(&self, state: &State) -> (Reported, Entry) {
        let mut reported = state.orderer.reported.clone();
        let cut = reported.propose(state.ordered());
        (reported, Entry::of(cut))
    }

    fn heard(&self, state: &State, at: usize) -> Reported {
        let server = &state.servers[at];
        let mut reported = state.orderer.reported.clone();
        let counts = server.counts(self.bug == Bug::ReportsUnsynced);
        let report = Report { shard: server.shard, replica: server.me as u32, counts };
        reported.hear(state.ordered(), &report);
        reported
    }

    fn client_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if matches!(state.client.phase, Phase::Sent(_)) {
            actions.push(Action::Arrive);
        }
        let is_open = matches!(state.client.phase, Phase::Sent(_) | Phase::Waits(..) | Phase::Lost);
        if is_open && state.retries > 0 {
            actions.push(Action::Retry);
        }
        if state.stray.is_some() {
            actions.push(Action::Stray);
        }
    }

    fn server_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, server) in state.servers.iter().enumerate() {
            if !server.is_synced() {
                actions.push(Action::Sync(at));
            }
            if self.heard(state, at) != state.orderer.reported {
                actions.push(Action::Report(at));
            }
            let loses = !server.is_synced() || server.applied > 0;
            if at != 2 && state.crashes > 0 && loses {
                actions.push(Action::Crash(at));
            }
        }
        // Server 1 has nothing to answer, and server 2 is never late.
        let first = &state.servers[0];
        if first.applied < state.log.len() {
            actions.push(Action::Follow(1));
            if self.bug == Bug::SkipsCuts && state.log.are_cuts(first.applied) {
                actions.push(Action::Follow(2));
            }
        }
        let sent = &first.segments[0];
        if state.servers[1].segments[0].records.len() < sent.synced {
            actions.push(Action::Replicate);
        }
    }

    fn orderer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.orderer.new {
            actions.push(Action::Learn);
        }
        if !state.orderer.second {
            actions.push(Action::TakeOver);
        }
        if self.cut(state).1 != Entry::Cut(Vec::new()) {
            actions.push(Action::Propose);
        }
        let shard = &state.ordered().shards()[&0];
        if state.stuck > 0 && shard.is_live() && state.orderer.reported.lags(0, shard) {
            actions.push(Action::End);
        }
        if state.log.len() < MAX_ENTRIES {
            actions.extend((0..state.proposals.len()).map(Action::Commit));
        }
    }
}

impl State {
    /// What the orderer that leads knows of the ordering log.
    fn ordered(&self) -> &Order {
        &self.log.at(if self.orderer.new { 0 } else { self.log.len() }).order
    }

    /// What a server has applied.
    pub fn seen_by(&self, at: usize) -> Cow<'_, Moment> {
        let server = &self.servers[at];
        self.log.without(server.applied, &server.skipped)
    }

    /// The record at a place, on the server that has it first.
    fn content(&self, (shard, segment, place): Spot) -> Option<Record> {
        let primary = if shard == 0 { segment } else { 2 };
        self.servers[primary].segments[segment].records.get(place as usize).copied()
    }

    /// The numbers of our record. It should have one at most.
    pub fn ours(&self) -> Vec<(u64, Spot)> {
        self.numbers_of(Record::Ours)
    }

    fn numbers_of(&self, record: Record) -> Vec<(u64, Spot)> {
        let all = self.log.newest().numbered.iter();
        all.filter(|(_, spot)| self.content(*spot) == Some(record)).copied().collect()
    }

    pub fn is_everywhere(&self, (shard, segment, place): Spot) -> bool {
        let servers = if shard == 0 { &self.servers[..2] } else { &self.servers[2..] };
        let first = self.content((shard, segment, place));
        servers.iter().all(|server| {
            let there = &server.segments[segment];
            there.synced > place as usize && there.records.get(place as usize).copied() == first
        })
    }
}

impl Model for Race {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut servers = [Server::new(0, 0, 2), Server::new(0, 1, 2), Server::new(1, 0, 1)];
        for server in &mut servers[..2] {
            server.segments[1].records.push(Record::Others);
            server.sync();
        }
        let request = Request { view: 0, floor: 0, chosen: false };
        let (phase, floor) = (Phase::Sent((0, request)), 0);
        let client = Client { phase, knows_end: false, floor, strays: false, told_never: false };
        let first = State {
            servers,
            orderer: Orderer::default(),
            log: Log::new(),
            proposals: Vec::new(),
            client,
            stray: None,
            crashes: 1,
            retries: 1,
            stuck: 1,
        };
        // An operator ends the shard at once, or after a further cut; or none does.
        let by_operator = |after| State { proposals: vec![Entry::End(after)], stuck: 0, ..first.clone() };
        vec![by_operator(0), by_operator(1), first]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        set_mutant(self.product());
        self.client_actions(state, actions);
        self.server_actions(state, actions);
        self.orderer_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        set_mutant(self.product());
        let mut state = last.clone();
        match action {
            Action::Arrive => {
                let Phase::Sent(request) = state.client.phase else { return None };
                match self.arrive(&mut state, request) {
                    Ok(phase) => state.client.phase = phase,
                    Err(answer) => self.take(&mut state, answer),
                }
            }
            Action::Retry => self.retry(&mut state),
            Action::Stray => {
                let request = state.stray.take()?;
                // Nobody hears of what comes of it.
                let _ = self.arrive(&mut state, request);
            }
            Action::Sync(at) => state.servers[at].sync(),
            Action::Replicate => state.servers[1].segments[0].records.push(Record::Ours),
            Action::Report(at) => state.orderer.reported = self.heard(last, at),
            Action::Follow(count) => self.follow(&mut state, count),
            Action::Learn => {
                state.orderer.new = false;
                forget_ended(&mut state);
            }
            // What the other one proposed stays on its way; what it knows does not matter any more.
            Action::TakeOver => {
                state.orderer = Orderer { second: true, new: true, ..Orderer::default() };
            }
            Action::Propose => {
                let (reported, entry) = self.cut(last);
                state.orderer.reported = reported;
                state.proposals.push(entry);
            }
            Action::End => {
                state.proposals.push(Entry::Stuck);
                state.stuck -= 1;
            }
            Action::Commit(at) => {
                let entry = state.proposals.remove(at);
                self.commit(&mut state, entry);
            }
            Action::Crash(at) => {
                state.servers[at].crash();
                state.crashes -= 1;
                if matches!(state.client.phase, Phase::Waits(there, _) if there == at) {
                    state.client.phase = Phase::Lost;
                }
            }
        }
        state.proposals.sort_unstable();
        state.proposals.dedup();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

/// As an orderer does once it has applied the end of a shard.
fn forget_ended(state: &mut State) {
    if !state.log.newest().order.shards()[&0].is_live() {
        state.orderer.reported.forget(0);
    }
}

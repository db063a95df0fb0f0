//! One position of a CORFU log: an append and two fillers on a chain of two units, while the projection changes (corfu.md §3, §4).
//!
//! The head, unit 0, and the tail, unit 1, begin in epoch 1; unit 2 can replace one of them. Every message may be late, lost or doubled,
//! and every client may die. Seals may arrive at any time; whoever has at least one of their answers may install the projection of epoch 2.

use stateright::{Model, Property};

use super::unit::{Answer, Content, Request, Unit};

/// Bugs that can be planted. Each is a trap of corfu.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// C1: a unit serves the epoch before the one that it was sealed to.
    ServesOldEpoch,
    /// C2: a writer takes its own write on the tail for another's.
    OwnWriteIsAnothers,
    /// C3: a filler writes junk down the chain and does not look at what the head has.
    FillsBlindly,
    /// C6: a reader takes what the head alone has.
    ReadsHead,
    /// C7: a writer that is refused in the middle of the chain gives the position up, and reports that nothing is there.
    GivesUpInTheMiddle,
    /// C8: a unit that was removed is still read.
    ReadsRemoved,
    /// C19: a projection is installed although no unit of the chain was sealed.
    InstallsUnsealed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Writes to the unit at this place of the chain.
    Append(u8),
    /// Turns an unwritten head into junk.
    FillHead,
    /// Reads what the head has.
    LookAtHead,
    /// Copies that to the unit at this place of the chain.
    Copy(Content, u8),
    /// Was refused, and waits for a newer projection.
    Refused,
    /// The append is acknowledged.
    Acked,
    /// The append has lost the position: its client appends the entry elsewhere.
    Lost,
    /// The position is complete.
    Filled,
    /// The client died, or gave up without knowing.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    pub phase: Phase,
    /// The epoch of its projection.
    pub epoch: u8,
    /// Seals a unit that is behind before it repeats its request.
    pub seals: bool,
    /// The answer to its request, if the request was served.
    pub answer: Option<Answer>,
}

/// A request that nobody waits for any more: its client died, or sent it again.
pub type Stray = (u8, u8, Request);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub units: [Unit; 3],
    pub clients: [Client; 3],
    pub strays: Vec<Stray>,
    /// The chain of epoch 2, and the unit that it removes.
    pub installed: Option<(Vec<u8>, Option<u8>)>,
    /// What readers may have seen so far.
    pub seen_data: bool,
    pub seen_junk: bool,
    /// How many requests may still be sent again.
    pub repeats: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request of a client arrives.
    Arrive(usize),
    /// A client takes the answer.
    Take(usize),
    /// A client that was refused reads the new projection.
    Refresh(usize),
    /// A client sends its request again; the first copy is still on its way.
    Repeat(usize),
    /// A client dies.
    Die(usize),
    /// A stray request arrives.
    Stray(usize),
    /// The seal of the reconfiguration arrives at a unit.
    Seal(usize),
    /// The projection of epoch 2 is installed.
    Install(Vec<u8>, Option<u8>),
}

pub struct Position {
    pub bug: Bug,
}

const OLD: [u8; 2] = [0, 1];

impl State {
    pub fn chain(&self, epoch: u8) -> &[u8] {
        match &self.installed {
            Some((chain, _)) if epoch == 2 => chain,
            _ => &OLD,
        }
    }

    fn content(&self, unit: u8) -> Option<Content> {
        self.units[unit as usize].content
    }

    /// Returns where a client's request goes, and what it is. None if it sends none.
    fn request(&self, client: &Client) -> Option<(u8, Request)> {
        let chain = self.chain(client.epoch);
        let (place, request) = match client.phase {
            Phase::Append(place) => (place, Request::Write),
            Phase::FillHead => (0, Request::Fill),
            Phase::LookAtHead => (0, Request::Look),
            Phase::Copy(Content::Data, place) => (place, Request::Write),
            Phase::Copy(Content::Junk, place) => (place, Request::Fill),
            _ => return None,
        };
        Some((chain[place as usize], if client.seals { Request::Seal } else { request }))
    }

    /// Readers may look at any time: they see what the tail of each projection has, as long as the tail serves its epoch.
    fn look(&mut self, bug: Bug) {
        let mut readable = Vec::new();
        for epoch in 1..=2 {
            if epoch == 2 && self.installed.is_none() {
                continue;
            }
            let chain = self.chain(epoch);
            let units = if bug == Bug::ReadsHead { chain } else { &chain[chain.len() - 1..] };
            readable.extend(units.iter().copied().filter(|unit| self.units[*unit as usize].epoch == epoch));
        }
        if let (Bug::ReadsRemoved, Some((_, Some(removed)))) = (bug, &self.installed) {
            readable.push(*removed);
        }
        for unit in readable {
            match self.content(unit) {
                Some(Content::Data) => self.seen_data = true,
                Some(Content::Junk) => self.seen_junk = true,
                None => {}
            }
        }
    }
}

impl Position {
    fn serves_old(&self) -> bool {
        self.bug == Bug::ServesOldEpoch
    }

    /// Returns what a client does after an answer.
    fn after(&self, client: &Client, answer: Answer, length: u8) -> Client {
        let to = |phase| Client { phase, answer: None, seals: false, ..*client };
        let then = |place: u8, next: fn(u8) -> Phase, end| {
            to(if place + 1 < length { next(place + 1) } else { end })
        };
        match (client.phase, answer) {
            // The unit was sealed lazily; the request follows.
            (phase, Answer::Done) if client.seals => to(phase),
            (_, Answer::Ahead) => Client { seals: true, answer: None, ..*client },
            (Phase::Append(1..), Answer::Sealed) if self.bug == Bug::GivesUpInTheMiddle => to(Phase::Lost),
            (_, Answer::Sealed) => to(Phase::Refused),
            (Phase::Append(1..), Answer::Mine) if self.bug == Bug::OwnWriteIsAnothers => to(Phase::Lost),
            (Phase::Append(place), Answer::Done | Answer::Mine) => then(place, Phase::Append, Phase::Acked),
            (Phase::Append(0), Answer::Taken) => to(Phase::Lost),
            (Phase::FillHead, Answer::Done) if length == 1 => to(Phase::Filled),
            (Phase::FillHead, Answer::Done) if self.bug == Bug::FillsBlindly => {
                to(Phase::Copy(Content::Junk, 1))
            }
            (Phase::FillHead, Answer::Done) => to(Phase::LookAtHead),
            (Phase::LookAtHead, Answer::Saw(Some(content))) => to(Phase::Copy(content, 1)),
            (Phase::Copy(content, place), Answer::Done | Answer::Mine) => match content {
                Content::Data => then(place, |place| Phase::Copy(Content::Data, place), Phase::Filled),
                Content::Junk => then(place, |place| Phase::Copy(Content::Junk, place), Phase::Filled),
            },
            // Two contents at one position: the product stops, and so does the model. The properties see it.
            _ => to(Phase::Dead),
        }
    }

    /// Adds every projection that may follow. At least one unit of the chain was sealed. What a sealed unit has counts as written: the
    /// position is then below the boundary, and only the units that stay have it. Otherwise it may be above, with a new unit.
    fn projections(&self, state: &State, actions: &mut Vec<Action>) {
        let sealed: Vec<u8> = OLD.into_iter().filter(|unit| state.units[*unit as usize].epoch == 2).collect();
        if sealed.is_empty() && self.bug != Bug::InstallsUnsealed {
            return;
        }
        actions.push(Action::Install(OLD.to_vec(), None));
        for removed in OLD {
            actions.push(Action::Install(
                OLD.into_iter().filter(|unit| *unit != removed).collect(),
                Some(removed),
            ));
            // The answer of one sealed unit may be lost, so one that has nothing is enough.
            if sealed.is_empty() || sealed.iter().any(|unit| state.content(*unit).is_none()) {
                let chain = OLD.map(|unit| if unit == removed { 2 } else { unit });
                actions.push(Action::Install(chain.to_vec(), Some(removed)));
            }
        }
    }
}

impl Model for Position {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |phase| Client { phase, epoch: 1, seals: false, answer: None };
        vec![State {
            units: [Unit::new(1), Unit::new(1), Unit::new(2)],
            clients: [client(Phase::Append(0)), client(Phase::FillHead), client(Phase::FillHead)],
            strays: Vec::new(),
            installed: None,
            seen_data: false,
            seen_junk: false,
            repeats: 1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, client) in state.clients.iter().enumerate() {
            if state.request(client).is_some() {
                actions.push(if client.answer.is_none() { Action::Arrive(at) } else { Action::Take(at) });
                actions.push(Action::Die(at));
                if client.answer.is_none() && state.repeats > 0 {
                    actions.push(Action::Repeat(at));
                }
            }
            if client.phase == Phase::Refused && state.installed.is_some() {
                actions.push(Action::Refresh(at));
            }
        }
        actions.extend((0..state.strays.len()).map(Action::Stray));
        actions.extend((0..2).filter(|unit| state.units[*unit].epoch == 1).map(Action::Seal));
        if state.installed.is_none() {
            self.projections(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Arrive(at) => {
                let client = &state.clients[at];
                let (unit, request) = state.request(client)?;
                let epoch = client.epoch;
                let answer = state.units[unit as usize].serve(epoch, request, self.serves_old());
                state.clients[at].answer = Some(answer);
            }
            Action::Take(at) => {
                let client = &state.clients[at];
                let length = state.chain(client.epoch).len() as u8;
                state.clients[at] = self.after(client, client.answer?, length);
            }
            Action::Refresh(at) => {
                let phase = if at == 0 { Phase::Append(0) } else { Phase::FillHead };
                state.clients[at] = Client { phase, epoch: 2, seals: false, answer: None };
            }
            Action::Repeat(at) => {
                let (unit, request) = state.request(&state.clients[at])?;
                state.strays.push((unit, state.clients[at].epoch, request));
                state.repeats -= 1;
            }
            Action::Die(at) => {
                let client = &state.clients[at];
                if let Some((unit, request)) = state.request(client).filter(|_| client.answer.is_none())
                    && request != Request::Look
                {
                    state.strays.push((unit, client.epoch, request));
                }
                state.clients[at] = Client { phase: Phase::Dead, epoch: 1, seals: false, answer: None };
            }
            Action::Stray(at) => {
                let (unit, epoch, request) = state.strays.remove(at);
                state.units[unit as usize].serve(epoch, request, self.serves_old());
            }
            Action::Seal(unit) => state.units[unit].epoch = 2,
            Action::Install(chain, removed) => state.installed = Some((chain, removed)),
        }
        state.strays.sort_unstable();
        // The fillers are alike, so which is which does not matter.
        state.clients[1..].sort_unstable();
        state.look(self.bug);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("K4 all readers see one content", |_, state: &State| {
                !(state.seen_data && state.seen_junk)
            }),
            Property::always("K3 an acknowledged append is read", |_, state: &State| {
                let newest = state.chain(2);
                let is_there = newest.iter().all(|unit| state.content(*unit) == Some(Content::Data));
                state.clients[0].phase != Phase::Acked || (is_there && !state.seen_junk)
            }),
            Property::always("C2 what has lost is never read", |_, state: &State| {
                state.clients[0].phase != Phase::Lost || !state.seen_data
            }),
            Property::always("K2 the head decides", |_, state: &State| {
                let newest = state.chain(2);
                newest.windows(2).all(|pair| {
                    let below = state.content(pair[1]);
                    below.is_none() || below == state.content(pair[0])
                })
            }),
            Property::always("C13 what is filled is complete", |_, state: &State| {
                let is_complete = |client: &Client| {
                    let chain = state.chain(client.epoch);
                    let head = state.content(chain[0]);
                    head.is_some() && chain.iter().all(|unit| state.content(*unit) == head)
                };
                state.clients.iter().filter(|client| client.phase == Phase::Filled).all(is_complete)
            }),
            Property::sometimes("an append is acknowledged in epoch 1", |_, state: &State| {
                state.clients[0].phase == Phase::Acked && state.clients[0].epoch == 1
            }),
            Property::sometimes("an append resumes in epoch 2", |_, state: &State| {
                state.clients[0].phase == Phase::Acked && state.clients[0].epoch == 2
            }),
            Property::sometimes("an append loses against a filler", |_, state: &State| {
                state.clients[0].phase == Phase::Lost
            }),
            Property::sometimes("a filler completes an append whose client died", |_, state: &State| {
                state.clients[0].phase == Phase::Dead && state.seen_data
            }),
            Property::sometimes("a filler fills with a new unit", |_, state: &State| {
                let is_new =
                    |client: &Client| client.phase == Phase::Filled && state.chain(client.epoch).contains(&2);
                state.clients.iter().any(is_new)
            }),
        ]
    }
}

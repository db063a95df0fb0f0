//! What a handle knows of its stripes: up to where each is filled, what is on its way to them, and which appends are blocked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_contract::{Loglet, LogletError, Offset, Tail};
use atoll_core::sync::lock;
use atoll_core::{Completer, Env, Ticket, ticket};

use crate::layout::Layout;
use crate::loglet::StripedOptions;
use crate::pads::start_padding;

/// One stripe, as this handle sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Every offset below is filled, and below every sealed tail: it comes from acknowledgements and open tails only (striped-I2).
    filled: Offset,
    /// The number of appends of this handle that are on their way to it.
    in_flight: usize,
    /// Whether a procedure of this handle pads it.
    padding: bool,
}

#[derive(Debug)]
struct State {
    stripes: Vec<Progress>,
    /// Whether some stripe is known to be sealed or deleted. The Loglet takes no more appends then.
    sealed: bool,
    /// The appends that are blocked, by their ends and numbers.
    blocked: BTreeMap<(Offset, u64), Completer<Freed>>,
    next_blocked: u64,
}

/// Why an append is not blocked any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Everything below its end is filled.
    Filled,
    /// A stripe is sealed, and will not be filled.
    Sealed,
}

/// A blocked append.
pub(crate) struct Blocked {
    name: (Offset, u64),
    /// Complete once the append is not blocked any more.
    pub freed: Ticket<Freed>,
}

/// The stripes of one handle.
pub(crate) struct Stripes {
    pub env: Env,
    pub layout: Layout,
    pub parts: Vec<Arc<dyn Loglet>>,
    pub options: Arc<StripedOptions>,
    state: Mutex<State>,
}

impl Stripes {
    pub fn new(env: Env, parts: Vec<Arc<dyn Loglet>>, options: Arc<StripedOptions>) -> Self {
        let stripes = vec![Progress::default(); parts.len()];
        let state = State { stripes, sealed: false, blocked: BTreeMap::new(), next_blocked: 0 };
        let layout = Layout::new(parts.len());
        Stripes { env, layout, parts, options, state: Mutex::new(state) }
    }

    /// Returns the state, with what the stripes' handles have learned in the meantime.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        for (stripe, part) in state.stripes.iter_mut().zip(&self.parts) {
            stripe.filled = stripe.filled.max(part.known_tail());
        }
        state
    }

    /// Returns up to where each stripe is known to be filled.
    pub fn filled(&self) -> Vec<Offset> {
        self.state().stripes.iter().map(|s| s.filled).collect()
    }

    /// Returns the first offset that is not known to be filled: a tail that is below every sealed one.
    pub fn known_tail(&self) -> Offset {
        self.known_tail_of(&self.state())
    }

    /// Notes that an append is on its way to a stripe.
    pub fn sent(&self, stripe: usize) {
        lock(&self.state).stripes[stripe].in_flight += 1;
    }

    /// Notes that an append to a stripe was answered. `filled`: the end of what the stripe has acknowledged.
    pub fn answered(self: &Arc<Self>, stripe: usize, filled: Option<Offset>) {
        let mut state = self.state();
        let progress = &mut state.stripes[stripe];
        progress.in_flight = progress.in_flight.saturating_sub(1);
        progress.filled = progress.filled.max(filled.unwrap_or_default());
        self.go_on(state);
    }

    /// Notes an acknowledgement or an open tail of a stripe.
    pub fn learn(self: &Arc<Self>, stripe: usize, filled: Offset) {
        let mut state = self.state();
        let progress = &mut state.stripes[stripe];
        progress.filled = progress.filled.max(filled);
        self.go_on(state);
    }

    /// Notes the tail of a stripe. A sealed tail fills nothing: an append below it may be above another sealed tail (striped-I2).
    pub fn learn_tail(self: &Arc<Self>, stripe: usize, tail: &Tail) {
        match tail.sealed {
            None => self.learn(stripe, tail.at),
            Some(_) => self.found_sealed(),
        }
    }

    /// Notes that a stripe is sealed or deleted.
    pub fn found_sealed(self: &Arc<Self>) {
        let mut state = self.state();
        state.sealed = true;
        self.go_on(state);
    }

    /// Returns whether some stripe is known to be sealed or deleted.
    pub fn is_sealed(&self) -> bool {
        lock(&self.state).sealed
    }

    /// Notes that an append up to `end` waits until everything below is filled. None if it is already.
    pub fn block(self: &Arc<Self>, end: Offset) -> Option<Blocked> {
        let mut state = self.state();
        if self.known_tail_of(&state) >= end {
            return None;
        }
        let (done, freed) = ticket();
        let name = (end, state.next_blocked);
        state.next_blocked += 1;
        state.blocked.insert(name, done);
        self.go_on(state);
        Some(Blocked { name, freed })
    }

    /// Notes that a blocked append has given up.
    pub fn give_up(&self, blocked: &Blocked) {
        lock(&self.state).blocked.remove(&blocked.name);
    }

    /// Continues the appends that are not blocked any more, and pads the stripes that the others wait for.
    fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let tail = self.known_tail_of(&state);
        let blocked = state.blocked.split_off(&(tail.plus(1), 0));
        let filled = std::mem::replace(&mut state.blocked, blocked);
        let sealed = if state.sealed { std::mem::take(&mut state.blocked) } else { BTreeMap::new() };
        let idle = self.take_idle(&mut state);
        drop(state);
        filled.into_values().for_each(|append| append.complete(Freed::Filled));
        sealed.into_values().for_each(|append| append.complete(Freed::Sealed));
        start_padding(self, idle);
    }

    fn known_tail_of(&self, state: &State) -> Offset {
        self.layout.first_unfilled(state.stripes.iter().map(|s| s.filled))
    }

    /// Returns the stripes that blocked appends wait for, although nothing is on its way to them and nobody pads them. They now count as
    /// being padded.
    fn take_idle(&self, state: &mut State) -> Vec<usize> {
        let seen = &*state;
        let is_idle = |stripe: &usize| !seen.stripes[*stripe].padding && self.lacks(seen, *stripe) > 0;
        let idle: Vec<usize> = (0..self.parts.len()).filter(is_idle).collect();
        for stripe in &idle {
            state.stripes[*stripe].padding = true;
        }
        idle
    }

    /// Returns from where on and how many pads a stripe lacks that this handle pads. If it lacks none, it does not count as being padded
    /// any more.
    pub fn still_lacks(&self, stripe: usize) -> (Offset, u64) {
        let mut state = self.state();
        let lacks = if state.sealed { 0 } else { self.lacks(&state, stripe) };
        let progress = &mut state.stripes[stripe];
        progress.padding = lacks > 0;
        (progress.filled, lacks)
    }

    /// Returns how many offsets of a stripe are unfilled below the blocked appends. 0 if appends are on their way to it, which may
    /// fill them.
    fn lacks(&self, state: &State, stripe: usize) -> u64 {
        let progress = &state.stripes[stripe];
        let Some(((end, _), _)) = state.blocked.last_key_value().filter(|_| progress.in_flight == 0) else {
            return 0;
        };
        self.layout.below(stripe, *end).since(progress.filled)
    }
}

/// Runs the same operation on each stripe, all at the same time, and returns the results in the order of the stripes.
pub(crate) async fn on_each<T, F>(
    stripes: &Arc<Stripes>,
    name: &'static str,
    run: impl Fn(usize, Arc<dyn Loglet>) -> F,
) -> Vec<Result<T, LogletError>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, LogletError>> + Send + 'static,
{
    let all: Vec<Ticket<Result<T, LogletError>>> = (stripes.parts.iter().enumerate())
        .map(|(stripe, part)| stripes.env.launch(name, run(stripe, part.clone())))
        .collect();
    let mut results = Vec::with_capacity(all.len());
    for one in all {
        let stopping = LogletError::Unavailable(atoll_contract::Unavailability::Stopping);
        results.push(one.await.unwrap_or(Err(stopping)));
    }
    results
}

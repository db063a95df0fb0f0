//! What a handle knows of its stripes: up to where each is filled, what is on its way to them, and which appends are blocked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_contract::{Loglet, LogletError, Offset, Tail};
use atoll_core::sync::lock;
use atoll_core::{Env, Notify, Ticket};

use crate::layout::Layout;
use crate::loglet::StripedOptions;

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
    /// The ends of the appends that are blocked, by the number of the append.
    blocked: BTreeMap<u64, Offset>,
    next_blocked: u64,
}

/// The stripes of one handle.
pub(crate) struct Stripes {
    pub env: Env,
    pub layout: Layout,
    pub parts: Vec<Arc<dyn Loglet>>,
    pub options: Arc<StripedOptions>,
    /// Notified when more is filled, when nothing is on its way to a stripe any more, and when a stripe is found sealed.
    pub changed: Notify,
    state: Mutex<State>,
}

impl Stripes {
    pub fn new(env: Env, parts: Vec<Arc<dyn Loglet>>, options: Arc<StripedOptions>) -> Self {
        let stripes = vec![Progress::default(); parts.len()];
        let state = State { stripes, sealed: false, blocked: BTreeMap::new(), next_blocked: 0 };
        let layout = Layout::new(parts.len());
        Stripes { env, layout, parts, options, changed: Notify::default(), state: Mutex::new(state) }
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
        self.layout.first_unfilled(self.filled())
    }

    /// Notes that an append is on its way to a stripe.
    pub fn sent(&self, stripe: usize) {
        lock(&self.state).stripes[stripe].in_flight += 1;
    }

    /// Notes that an append to a stripe was answered. `filled`: the end of what the stripe has acknowledged.
    pub fn answered(&self, stripe: usize, filled: Option<Offset>) {
        {
            let mut state = lock(&self.state);
            let stripe = &mut state.stripes[stripe];
            stripe.in_flight = stripe.in_flight.saturating_sub(1);
            stripe.filled = stripe.filled.max(filled.unwrap_or_default());
        }
        self.changed.notify();
    }

    /// Notes an acknowledgement or an open tail of a stripe.
    pub fn learn(&self, stripe: usize, filled: Offset) {
        {
            let mut state = lock(&self.state);
            let stripe = &mut state.stripes[stripe];
            stripe.filled = stripe.filled.max(filled);
        }
        self.changed.notify();
    }

    /// Notes the tail of a stripe. A sealed tail fills nothing: an append below it may be above another sealed tail (striped-I2).
    pub fn learn_tail(&self, stripe: usize, tail: &Tail) {
        match tail.sealed {
            None => self.learn(stripe, tail.at),
            Some(_) => self.found_sealed(),
        }
    }

    /// Notes that a stripe is sealed or deleted.
    pub fn found_sealed(&self) {
        lock(&self.state).sealed = true;
        self.changed.notify();
    }

    /// Returns whether some stripe is known to be sealed or deleted.
    pub fn is_sealed(&self) -> bool {
        lock(&self.state).sealed
    }

    /// Notes that an append up to `end` is blocked. Returns its number.
    pub fn block(&self, end: Offset) -> u64 {
        let mut state = lock(&self.state);
        let number = state.next_blocked;
        state.next_blocked += 1;
        state.blocked.insert(number, end);
        number
    }

    /// Notes that an append is not blocked any more.
    pub fn unblock(&self, number: u64) {
        lock(&self.state).blocked.remove(&number);
    }

    /// Returns the stripes that lag behind a blocked append, although nothing is on its way to them and nobody pads them. They now count as
    /// being padded.
    pub fn take_idle(&self) -> Vec<usize> {
        let mut state = self.state();
        let idle: Vec<usize> =
            (0..self.parts.len()).filter(|stripe| self.lacks(&state, *stripe) > 0).collect();
        let idle: Vec<usize> = idle.into_iter().filter(|stripe| !state.stripes[*stripe].padding).collect();
        for stripe in &idle {
            state.stripes[*stripe].padding = true;
        }
        idle
    }

    /// Returns how many pads a stripe lacks that this handle pads. If it lacks none, it does not count as being padded any more.
    pub fn still_lacks(&self, stripe: usize) -> u64 {
        let mut state = self.state();
        let lacks = if state.sealed { 0 } else { self.lacks(&state, stripe) };
        state.stripes[stripe].padding = lacks > 0;
        lacks
    }

    /// Returns how many offsets of a stripe are unfilled below the blocked appends. 0 if appends are on their way to it, which may
    /// fill them.
    fn lacks(&self, state: &State, stripe: usize) -> u64 {
        let progress = &state.stripes[stripe];
        let Some(end) = state.blocked.values().max().filter(|_| progress.in_flight == 0) else { return 0 };
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

//! Searches for an order of operations that explains their results and agrees with real time, as in Wing and Gong 1993. It remembers the
//! configurations that it has visited, as in Lowe 2017.
//!
//! A configuration is the set of operations that were placed, and the state that they lead to. An operation may come next if no operation
//! that is not placed yet, and must be, returned before its call. The search is depth-first. Three rules keep it small:
//!
//! - An operation that fits and changes nothing is placed at once, without an alternative: placed later, it would not help anybody.
//! - An operation of unknown outcome is placed only where nothing else fits, and only if it changes the state.
//! - A configuration is not visited again if it was visited with the same state, the same placed operations that must be placed, and a
//!   subset of the placed operations of unknown outcome: what is left to place was at least as much then.
//!
//! Sets and states are compared by hashes of 128 bits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use crate::cells::{Mark, Store, hash_of};
use crate::history::Operation;
use crate::planted::{Bug, planted};
use crate::types::DataType;

/// A step between two looks at the time and the memory.
const STEPS_BETWEEN_LOOKS: u64 = 4096;
/// Approximate bytes of an entry of the memory of visited configurations, and of a placed operation.
const VISITED_BYTES: usize = 96;
const FRAME_BYTES: usize = 224;

/// What the search does with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It happened, with its result: it must be placed.
    Happened,
    /// It may have happened, as it was requested; its result is not known.
    MayHappen,
    /// Its keys may hold anything after it. It stands for a write that is left out.
    Disturbs,
}

/// An operation to be placed.
#[derive(Debug)]
pub struct Item<'a, T: DataType> {
    /// The operation.
    pub operation: &'a Operation<T>,
    /// The cells of its keys.
    pub keys: &'a [u32],
    /// What to do with it.
    pub role: Role,
}

impl<T: DataType> Item<'_, T> {
    /// The last moment at which it can take effect.
    fn end(&self) -> i64 {
        let at = self.operation.returned.unwrap_or(i64::MAX);
        match self.role {
            Role::Happened | Role::Disturbs => at,
            Role::MayHappen if planted(Bug::UnknownEnds) => at,
            Role::MayHappen => i64::MAX,
        }
    }

    fn must(&self) -> bool {
        self.role == Role::Happened || (self.role == Role::MayHappen && planted(Bug::UnknownHappens))
    }
}

/// Why a search was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It tried as many placements as were allowed.
    Steps,
    /// It needed more memory than was allowed.
    Memory,
    /// The caller stopped it, for example because its time was over.
    Stopped,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is an order.
    Explained,
    /// There is none.
    Refuted {
        /// Already the operations that were called up to this moment have none.
        until: i64,
        /// The operation, as an index into the items, that found no place after the longest order that was found.
        stuck: usize,
    },
    /// A limit was reached first.
    NotDecided(Why),
}

/// What a search may use.
pub struct Budget<'a> {
    /// The number of placements that it may still try.
    pub steps: u64,
    /// The approximate number of bytes that it may use at a time.
    pub memory_bytes: usize,
    /// Called from time to time with the largest number of operations placed so far; the search stops if it returns false.
    pub watch: &'a mut dyn FnMut(usize) -> bool,
}

/// The items that are not placed yet, in the order of their calls: a ring whose head has the number after all items.
struct Left {
    next: Vec<u32>,
    before: Vec<u32>,
}

impl Left {
    fn new(count: usize, members: impl Iterator<Item = usize>) -> Left {
        let mut left = Left { next: vec![0; count + 1], before: vec![0; count + 1] };
        let mut last = count;
        for n in members {
            left.next[last] = n as u32;
            left.before[n] = last as u32;
            last = n;
        }
        left.next[last] = count as u32;
        left.before[count] = last as u32;
        left
    }

    fn take(&mut self, n: usize) {
        let (before, next) = (self.before[n] as usize, self.next[n] as usize);
        self.next[before] = next as u32;
        self.before[next] = before as u32;
    }

    /// Undoes the last `take`.
    fn put_back(&mut self, n: usize) {
        let (before, next) = (self.before[n] as usize, self.next[n] as usize);
        self.next[before] = n as u32;
        self.before[next] = n as u32;
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        let head = self.next.len() - 1;
        let mut at = self.next[head] as usize;
        std::iter::from_fn(move || {
            let now = at;
            (now != head).then(|| {
                at = self.next[now] as usize;
                now
            })
        })
    }
}

/// A placed operation, and what may follow it.
struct Frame {
    /// The item that was placed to get here. None at the start.
    placed: Option<u32>,
    /// The moment before it was placed.
    mark: Mark,
    /// The hash of the set of placed items that must be placed.
    set: u128,
    /// The placed items of unknown outcome, in order.
    used: Option<Rc<[u32]>>,
    /// The latest call of a placed item.
    latest_call: i64,
    /// The earliest end of the items that must be placed and are not.
    first_end: i64,
    /// What may come next, from `cursor` on.
    candidates: Vec<u32>,
    cursor: usize,
    /// Where the candidates of unknown outcome begin, once they are there.
    unknown_from: Option<usize>,
}

struct Search<'s, 'a, T: DataType> {
    items: &'s [Item<'a, T>],
    store: Store<T::Cell>,
    /// Items that must be placed, and those that may.
    must: Left,
    may: Left,
    must_left: usize,
    /// Whether every item that may be placed may be placed at any later time. Only then may an item that fits be placed at once: otherwise
    /// one that ends before its call might still have to come first.
    no_ends: bool,
    /// Visited configurations: the sets of items of unknown outcome that were placed. An empty list stands for the empty set.
    visited: HashMap<u128, Vec<Rc<[u32]>>>,
    used_bytes: usize,
    path: Vec<Frame>,
    steps: u64,
    most_placed: usize,
    stuck: usize,
    until: i64,
}

/// Searches for an order of items, which are sorted by their calls, from `cells` cells that are all `initial`. Returns the result, and the
/// number of placements that were tried.
pub fn search<T: DataType>(
    items: &[Item<'_, T>],
    cells: usize,
    initial: T::Cell,
    budget: &mut Budget<'_>,
) -> (Found, u64) {
    let of = |must: bool| (0..items.len()).filter(move |n| items[*n].must() == must);
    let mut search = Search {
        items,
        store: Store::new(cells, initial),
        must: Left::new(items.len(), of(true)),
        may: Left::new(items.len(), of(false)),
        must_left: of(true).count(),
        no_ends: of(false).all(|n| items[n].end() == i64::MAX),
        visited: HashMap::new(),
        used_bytes: 0,
        path: Vec::new(),
        steps: 0,
        most_placed: 0,
        stuck: 0,
        until: i64::MIN,
    };
    let found = search.run(budget);
    (found, search.steps)
}

fn union(used: Option<&Rc<[u32]>>, n: u32) -> Rc<[u32]> {
    let mut all: Vec<u32> = used.map(|used| used.to_vec()).unwrap_or_default();
    let at = all.partition_point(|other| *other < n);
    all.insert(at, n);
    all.into()
}

/// Whether all numbers of one ordered list are in another.
fn is_within(few: &[u32], many: &[u32]) -> bool {
    let mut many = many.iter();
    few.iter().all(|n| many.by_ref().find(|m| *m >= n) == Some(n))
}

impl<T: DataType> Search<'_, '_, T> {
    fn run(&mut self, budget: &mut Budget<'_>) -> Found {
        let mark = self.store.mark();
        self.enter(None, mark, 0, None, i64::MIN);
        loop {
            if self.must_left == 0 {
                return Found::Explained;
            }
            if let Some(why) = self.limit(budget) {
                return if planted(Bug::LimitExplains) { Found::Explained } else { Found::NotDecided(why) };
            }
            let Some(frame) = self.path.last_mut() else {
                return Found::Refuted { until: self.until, stuck: self.stuck };
            };
            if let Some(candidate) = frame.candidates.get(frame.cursor).copied() {
                let known = frame.unknown_from.is_none_or(|from| frame.cursor < from);
                frame.cursor += 1;
                if known {
                    self.try_known(candidate);
                } else {
                    self.place_unknown(candidate);
                }
            } else if frame.unknown_from.is_none() {
                self.add_unknown();
            } else {
                self.leave();
            }
        }
    }

    /// Returns the limit that was reached, if any.
    fn limit(&mut self, budget: &mut Budget<'_>) -> Option<Why> {
        if self.steps >= budget.steps {
            return Some(Why::Steps);
        }
        if !self.steps.is_multiple_of(STEPS_BETWEEN_LOOKS) {
            return None;
        }
        let bytes = self.visited.len() * VISITED_BYTES
            + self.used_bytes
            + self.path.len() * FRAME_BYTES
            + self.store.changes() * size_of::<(u32, T::Cell)>();
        if bytes > budget.memory_bytes {
            return Some(Why::Memory);
        }
        (!(budget.watch)(self.most_placed)).then_some(Why::Stopped)
    }

    /// Enters the configuration after an item was placed.
    fn enter(
        &mut self,
        placed: Option<u32>,
        mark: Mark,
        set: u128,
        used: Option<Rc<[u32]>>,
        latest_call: i64,
    ) {
        let (mut first_end, mut candidates) = (i64::MAX, Vec::new());
        for n in self.must.iter() {
            let item = &self.items[n];
            if item.operation.call > first_end && !planted(Bug::RealTimeIgnored) {
                break;
            }
            first_end = first_end.min(item.end());
            candidates.push(n as u32);
        }
        // What changes nothing comes first, then writes whose order is known, then what returned first: most likely it also happened first.
        let order = |n: &u32| {
            let item = &self.items[*n as usize];
            let answer = item.operation.answer.as_ref();
            let rank = answer.and_then(T::rank);
            (T::writes(&item.operation.request, answer), rank.is_none(), rank.unwrap_or(item.end()))
        };
        candidates.sort_by_key(order);
        self.until = self.until.max(first_end);
        let depth = self.path.len();
        if depth >= self.most_placed {
            self.most_placed = depth;
            if let Some(first) = candidates.iter().min_by_key(|n| self.items[**n as usize].end()) {
                self.stuck = *first as usize;
            }
        }
        self.path.push(Frame {
            placed,
            mark,
            set,
            used,
            latest_call,
            first_end,
            candidates,
            cursor: 0,
            unknown_from: None,
        });
    }

    /// Leaves a configuration from which there is no way, and takes back the item that led to it.
    fn leave(&mut self) {
        let Some(frame) = self.path.pop() else { return };
        if let Some(placed) = frame.placed {
            self.store.back(frame.mark);
            let n = placed as usize;
            if self.items[n].must() {
                self.must.put_back(n);
                self.must_left += 1;
            } else {
                self.may.put_back(n);
            }
        }
    }

    /// Executes an item in the present state. Returns false if it does not fit; the state is then as before.
    fn execute(&mut self, n: usize) -> bool {
        self.steps += 1;
        let items = self.items;
        let item = &items[n];
        let mark = self.store.mark();
        let mut cells = self.store.cells(item.keys);
        let fits = match item.role {
            Role::Disturbs => {
                (0..cells.len()).for_each(|key| cells.set(key, T::unknown()));
                true
            }
            Role::Happened => T::step(&item.operation.request, item.operation.answer.as_ref(), &mut cells),
            Role::MayHappen => T::step(&item.operation.request, None, &mut cells),
        };
        if !fits {
            self.store.back(mark);
        }
        fits
    }

    /// Returns whether a configuration needs no visit, and otherwise notes that it is visited now.
    fn is_visited(&mut self, set: u128, used: Option<&Rc<[u32]>>) -> bool {
        let state = if planted(Bug::StateForgotten) { 0 } else { self.store.hash() };
        let before = match self.visited.entry(set ^ state) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.used_bytes += used.map_or(0, |used| used.len() * 4 + 32);
                entry.insert(used.cloned().into_iter().collect());
                return false;
            }
        };
        let Some(used) = used else {
            // None of unknown outcome: visited before if it was so then.
            let visited = before.is_empty() || planted(Bug::DominanceInverted);
            before.clear();
            return visited;
        };
        let within = |other: &Rc<[u32]>| match planted(Bug::DominanceInverted) {
            false => Rc::ptr_eq(other, used) || is_within(other, used),
            true => is_within(used, other),
        };
        if before.is_empty() || before.iter().any(within) {
            return true;
        }
        self.used_bytes += used.len() * 4 + 32;
        before.push(used.clone());
        false
    }

    /// Places an item that must be placed, if it fits.
    fn try_known(&mut self, candidate: u32) {
        let n = candidate as usize;
        let mark = self.store.mark();
        if !self.execute(n) {
            return;
        }
        let changed = self.store.changed(mark);
        let Some(frame) = self.path.last_mut() else { return };
        let set = frame.set ^ hash_of(u64::from(candidate), &0_u8);
        let used = frame.used.clone();
        let latest_call = frame.latest_call.max(self.items[n].operation.call);
        if (!changed && self.no_ends) || planted(Bug::NoWayBack) {
            frame.candidates.truncate(frame.cursor);
            frame.unknown_from = Some(frame.cursor);
        } else if self.is_visited(set, used.as_ref()) {
            self.store.back(mark);
            return;
        }
        self.must.take(n);
        self.must_left -= 1;
        self.enter(Some(candidate), mark, set, used, latest_call);
    }

    /// Adds the items of unknown outcome that may come next to the candidates. Each is noted as visited here, before any of them is: so one
    /// that would follow another one, and overwrite it, is not tried.
    fn add_unknown(&mut self) {
        let Some(frame) = self.path.last() else { return };
        let (set, used, first_end, latest) =
            (frame.set, frame.used.clone(), frame.first_end, frame.latest_call);
        let from = frame.candidates.len();
        let possible: Vec<usize> = self
            .may
            .iter()
            .take_while(|n| self.items[*n].operation.call <= first_end)
            .filter(|n| self.items[*n].end() >= latest)
            .collect();
        let mut found = Vec::new();
        for n in possible.into_iter().rev() {
            let mark = self.store.mark();
            if self.execute(n) && self.store.changed(mark) {
                let with = union(used.as_ref(), n as u32);
                if !self.is_visited(set, Some(&with)) {
                    found.push(n as u32);
                }
            }
            self.store.back(mark);
        }
        let Some(frame) = self.path.last_mut() else { return };
        frame.candidates.extend(found);
        frame.unknown_from = Some(from);
    }

    /// Places an item that `add_unknown` has found to fit.
    fn place_unknown(&mut self, candidate: u32) {
        let n = candidate as usize;
        let mark = self.store.mark();
        if !self.execute(n) {
            return;
        }
        let Some(frame) = self.path.last() else { return };
        let (set, used) = (frame.set, union(frame.used.as_ref(), candidate));
        let latest_call = frame.latest_call.max(self.items[n].operation.call);
        self.may.take(n);
        self.enter(Some(candidate), mark, set, Some(used), latest_call);
    }
}

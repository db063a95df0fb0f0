//! Switches for the simulator: known bugs (mutants), and assertions that can be silenced so that outside oracles must find a mutant. They
//! are all off, and cost nothing, unless the feature `testing` is on. Also coverage marks: events that a program also logs with
//! `RUST_LOG=atoll::mark=debug`.
//!
//! State is per thread, because a simulated cluster runs on one thread. A bug that is switched on for a whole program applies to all of its
//! threads.

use bytes::Bytes;

use crate::ids::{Incarnation, NodeId};
use crate::level::Level;

/// A known bug that a test can inject. It is declared with [`crate::mutants!`] in the crate that contains the code, and named after the
/// trap that it falls into.
#[derive(Clone, Copy)]
pub struct Mutant {
    name: &'static str,
    caught_by: &'static [&'static str],
}

impl Mutant {
    /// The product without a bug.
    pub const NONE: Mutant = Mutant::new("None", &[]);

    /// Declares a known bug; use [`crate::mutants!`] instead of calling this.
    pub const fn new(name: &'static str, caught_by: &'static [&'static str]) -> Self {
        Mutant { name, caught_by }
    }

    /// Returns the name that selects this bug, as in `--mutant NAME`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the simulator scenarios in which an oracle must find the bug, the best one first. If there are none, a test of its crate
    /// finds it.
    pub fn caught_by(self) -> &'static [&'static str] {
        self.caught_by
    }
}

impl PartialEq for Mutant {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Mutant {}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Declares the known bugs of a crate, and a list `ALL` of them.
#[macro_export]
macro_rules! mutants {
    ($($(#[$doc:meta])* $id:ident = $name:literal, caught by [$($scenario:literal),*];)*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs)] // The name is the documentation: protocol and trap number.
            pub const $id: $crate::testing::Mutant = $crate::testing::Mutant::new($name, &[$($scenario),*]);
        )*

        /// All known bugs of this crate.
        pub const ALL: &[$crate::testing::Mutant] = &[$($id),*];
    };
}

/// A situation that the protocol notes list. It counts as tested only if a run reaches all of its coverage marks.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The protocol and a description of the situation.
    pub what: &'static str,
    /// Coverage marks, of the product and of the simulator.
    pub marks: &'static [&'static str],
}

/// Returns one line of a crate's list of situations.
pub const fn listed(what: &'static str, marks: &'static [&'static str]) -> Listed {
    Listed { what, marks }
}

/// A command as a replica applied it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCommand {
    /// The log entry that holds it, and its index among the commands of the entry.
    pub place: (u64, u32),
    /// Its proposer.
    pub proposer: (NodeId, Incarnation),
    /// Its time, in milliseconds.
    pub time_ms: u64,
    /// The application that it belongs to.
    pub app: u8,
    /// The version of its format.
    pub version: u8,
    /// The encoded command.
    pub command: Bytes,
    /// The answer: Ok if the command was carried out, Err if it was refused.
    pub reply: Result<Bytes, Bytes>,
}

#[cfg(feature = "testing")]
mod on {
    use super::{AppliedCommand, Mutant};
    use crate::frame::{Class, Envelope};
    use crate::ids::NodeId;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{PoisonError, RwLock};

    /// The known bug that is injected on all threads.
    static EVERYWHERE: RwLock<Mutant> = RwLock::new(Mutant::NONE);
    /// Whether a bug is injected on all threads. Every mutation point reads this.
    static IS_EVERYWHERE: AtomicBool = AtomicBool::new(false);

    /// Messages that nodes sent to themselves: node, class, message.
    type Shown = Vec<(NodeId, Class, Envelope)>;

    thread_local! {
        static LOCAL: RefCell<Option<Shown>> = const { RefCell::new(None) };
        static APPLIED: RefCell<Option<Vec<AppliedCommand>>> = const { RefCell::new(None) };
        static MUTANT: Cell<Mutant> = const { Cell::new(Mutant::NONE) };
        static MARKS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Injects a known bug on this thread, until the next call.
    pub fn set_mutant(m: Mutant) {
        MUTANT.set(m);
    }

    /// Injects a known bug on all threads, until the next call. Drills use it on whole programs.
    pub fn set_mutant_everywhere(m: Mutant) {
        *EVERYWHERE.write().unwrap_or_else(PoisonError::into_inner) = m;
        IS_EVERYWHERE.store(m != Mutant::NONE, Ordering::Release);
    }

    fn everywhere() -> Mutant {
        match IS_EVERYWHERE.load(Ordering::Acquire) {
            true => *EVERYWHERE.read().unwrap_or_else(PoisonError::into_inner),
            false => Mutant::NONE,
        }
    }

    /// Returns whether this known bug is injected.
    pub fn mutant(m: Mutant) -> bool {
        MUTANT.get() == m || everywhere() == m
    }

    /// Returns whether the product checks its own invariants. It does not while a mutant is injected, so that the oracles must find it.
    pub fn asserting() -> bool {
        MUTANT.get() == Mutant::NONE && everywhere() == Mutant::NONE
    }

    /// Counts a coverage mark.
    pub(super) fn count(mark: &'static str) {
        MARKS.with_borrow_mut(|m| *m.entry(mark).or_default() += 1);
    }

    /// Marks the step that a procedure has reached. If the procedure is dropped before its end, as happens when a node dies, the mark of
    /// that step is counted.
    #[derive(Debug)]
    pub struct Place(Option<&'static str>);

    impl Place {
        /// Starts at a step; `mark` records that the procedure died there.
        pub fn at(mark: &'static str) -> Self {
            Place(Some(mark))
        }

        /// Records that the procedure has moved on to another step.
        pub fn moves(&mut self, mark: &'static str) {
            self.0 = Some(mark);
        }

        /// Records that the procedure ended, successfully or not.
        pub fn ends(mut self) {
            self.0 = None;
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            if let Some(mark) = self.0 {
                super::hit(mark);
            }
        }
    }

    /// Starts or stops collecting the messages that nodes send to themselves, for [`take_local`].
    pub fn watch_local(on: bool) {
        LOCAL.set(on.then(Vec::new));
    }

    /// Records a message that a node sends to itself, which no host sees.
    pub fn show_local(node: NodeId, class: Class, envelope: &Envelope) {
        LOCAL.with_borrow_mut(|l| {
            if let Some(shown) = l {
                shown.push((node, class, envelope.clone()));
            }
        });
    }

    /// Takes the messages that nodes have sent to themselves on this thread since the last call.
    pub fn take_local() -> Vec<(NodeId, Class, Envelope)> {
        LOCAL.with_borrow_mut(|l| l.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Starts or stops collecting the commands that replicas apply, for [`take_applied`].
    pub fn watch_applied(on: bool) {
        APPLIED.set(on.then(Vec::new));
    }

    /// Records a command that a replica has applied.
    pub fn show_applied(applied: impl FnOnce() -> AppliedCommand) {
        APPLIED.with_borrow_mut(|gathered| {
            if let Some(gathered) = gathered {
                gathered.push(applied());
            }
        });
    }

    /// Takes the commands that replicas have applied on this thread since the last call.
    pub fn take_applied() -> Vec<AppliedCommand> {
        APPLIED.with_borrow_mut(|gathered| gathered.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Takes the counts of the marks that were hit on this thread since the last call.
    pub fn take_marks() -> BTreeMap<&'static str, u64> {
        MARKS.with_borrow_mut(std::mem::take)
    }
}

#[cfg(feature = "testing")]
pub use on::{
    Place, asserting, mutant, set_mutant, set_mutant_everywhere, show_applied, show_local, take_applied,
    take_local, take_marks, watch_applied, watch_local,
};

/// Returns whether the formats that test builds write ahead of releases are enabled at this level; see [`Level::NEXT`].
#[cfg(feature = "testing")]
pub fn next_level(level: Level) -> bool {
    level >= Level::NEXT
}

/// Returns whether the formats that test builds write ahead of releases are enabled at this level: never, outside tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn next_level(_: Level) -> bool {
    false
}

/// Returns whether this known bug is injected: never, outside tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn mutant(_: Mutant) -> bool {
    false
}

/// Returns whether the product checks its own invariants: always, outside mutation tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn asserting() -> bool {
    true
}

/// Records a message that a node sends to itself: a no-op outside tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn show_local(_: NodeId, _: crate::frame::Class, _: &crate::frame::Envelope) {}

/// Records a command that a replica has applied: a no-op outside tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn show_applied(_: impl FnOnce() -> AppliedCommand) {}

/// Records that the code has reached a coverage mark. Tests count it, and every program logs it at level debug.
#[inline]
pub fn hit(mark: &'static str) {
    #[cfg(feature = "testing")]
    on::count(mark);
    tracing::debug!(target: "atoll::mark", mark);
}

/// Marks the step that a procedure has reached: a no-op outside tests.
#[cfg(not(feature = "testing"))]
#[derive(Debug)]
pub struct Place;

#[cfg(not(feature = "testing"))]
#[allow(missing_docs)]
impl Place {
    #[inline(always)]
    pub fn at(_: &'static str) -> Self {
        Place
    }

    #[inline(always)]
    pub fn moves(&mut self, _: &'static str) {}

    #[inline(always)]
    pub fn ends(self) {}
}

/// Asserts an invariant, in release builds, too. It is silent only while a mutant is injected, so that the outside oracles must find it.
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($why:tt)+) => {
        if $crate::testing::asserting() { assert!($cond, $($why)+) }
    };
}

//! Switches for the simulator, all off and free of cost unless the feature `testing` is on: known bugs (mutants), and assertions that
//! can be silenced so that outside oracles must find a mutant. Also coverage marks: events that a program also logs with
//! `RUST_LOG=atoll::mark=debug`.
//!
//! State is per thread: a simulated cluster runs on one thread. A program started with a known bug has it in all threads.

use bytes::Bytes;

use crate::ids::{Incarnation, NodeId};
use crate::level::Level;

/// A known bug that a test can inject. It is declared with [`crate::mutants!`] in the crate that contains the code, and named after the
/// trap of the protocol that it falls into.
#[derive(Clone, Copy)]
pub struct Mutant {
    name: &'static str,
    caught_by: &'static [&'static str],
}

impl Mutant {
    /// The product without a bug.
    pub const NONE: Mutant = Mutant::new("None", &[]);

    /// See [`crate::mutants!`].
    pub const fn new(name: &'static str, caught_by: &'static [&'static str]) -> Self {
        Mutant { name, caught_by }
    }

    /// Its name, by which a program is told to inject it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The simulator scenarios in which an oracle must find the bug, the best one first. Empty: a test of its crate finds it.
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

/// Declares the known bugs of a crate, and `ALL` of them.
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

/// A situation that the protocol notes list, and the coverage marks that must all be reached for it to count as tested.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The protocol and a description of the situation.
    pub what: &'static str,
    /// Coverage marks, of the product and of the simulator.
    pub marks: &'static [&'static str],
}

/// A line of a crate's list.
pub const fn listed(what: &'static str, marks: &'static [&'static str]) -> Listed {
    Listed { what, marks }
}

/// A command as a replica applied it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCommand {
    /// The log entry that holds it, and which of the entry's commands it is.
    pub place: (u64, u32),
    /// Who proposed it.
    pub proposer: (NodeId, Incarnation),
    /// Its time, milliseconds.
    pub time_ms: u64,
    /// Its application.
    pub app: u8,
    /// Version of its format.
    pub version: u8,
    /// Its bytes.
    pub command: Bytes,
    /// What was answered, and whether it was done.
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

    /// The known bug of all threads.
    static EVERYWHERE: RwLock<Mutant> = RwLock::new(Mutant::NONE);
    /// Whether a bug is set for all threads; read at every mutation point.
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

    /// Injects a known bug on all threads, until the next call: for drills on whole programs.
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

    /// Whether this known bug is injected.
    pub fn mutant(m: Mutant) -> bool {
        MUTANT.get() == m || everywhere() == m
    }

    /// Whether the product checks its own invariants. Not while a mutant is injected, so that the oracles must find it.
    pub fn asserting() -> bool {
        MUTANT.get() == Mutant::NONE && everywhere() == Mutant::NONE
    }

    /// Counts a coverage mark.
    pub(super) fn count(mark: &'static str) {
        MARKS.with_borrow_mut(|m| *m.entry(mark).or_default() += 1);
    }

    /// Marks where a procedure is. If it is dropped before its end, as a dying node drops its procedures, it counts the mark of that place.
    #[derive(Debug)]
    pub struct Place(Option<&'static str>);

    impl Place {
        /// The procedure is at a place; `mark` records that it died there.
        pub fn at(mark: &'static str) -> Self {
            Place(Some(mark))
        }

        /// The procedure went on to another place.
        pub fn moves(&mut self, mark: &'static str) {
            self.0 = Some(mark);
        }

        /// The procedure ended, successfully or not.
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

    /// Whether messages that a node sends to itself are collected from now on, for [`take_local`].
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

    /// The messages that nodes sent to themselves on this thread since the last call.
    pub fn take_local() -> Vec<(NodeId, Class, Envelope)> {
        LOCAL.with_borrow_mut(|l| l.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Whether commands that replicas apply are collected from now on, for [`take_applied`].
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

    /// The commands that replicas applied on this thread since the last call.
    pub fn take_applied() -> Vec<AppliedCommand> {
        APPLIED.with_borrow_mut(|gathered| gathered.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// The marks hit on this thread since the last call.
    pub fn take_marks() -> BTreeMap<&'static str, u64> {
        MARKS.with_borrow_mut(std::mem::take)
    }
}

#[cfg(feature = "testing")]
pub use on::{
    Place, asserting, mutant, set_mutant, set_mutant_everywhere, show_applied, show_local, take_applied,
    take_local, take_marks, watch_applied, watch_local,
};

/// Whether the formats that test builds write ahead of releases are enabled at this level, see [`Level::NEXT`].
#[cfg(feature = "testing")]
pub fn next_level(level: Level) -> bool {
    level >= Level::NEXT
}

/// Whether the formats that test builds write ahead of releases are enabled at this level: never, outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn next_level(_: Level) -> bool {
    false
}

/// Whether this known bug is injected: never, outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn mutant(_: Mutant) -> bool {
    false
}

/// Whether the product checks its own invariants: always, outside of mutation tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn asserting() -> bool {
    true
}

/// Records a message that a node sends to itself: a no-op outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn show_local(_: NodeId, _: crate::frame::Class, _: &crate::frame::Envelope) {}

/// Records a command that a replica has applied: a no-op outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn show_applied(_: impl FnOnce() -> AppliedCommand) {}

/// The code has reached a coverage mark. Counted in tests, and logged at level debug in every program.
#[inline]
pub fn hit(mark: &'static str) {
    #[cfg(feature = "testing")]
    on::count(mark);
    tracing::debug!(target: "atoll::mark", mark);
}

/// Marks where a procedure is: a no-op outside of tests.
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

/// Asserts an invariant, also in release builds. Silent only while a mutation test requires the outside oracles to find the bug.
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($why:tt)+) => {
        if $crate::testing::asserting() { assert!($cond, $($why)+) }
    };
}

//! Switches for the simulator, all of them off and free of cost unless the feature `testing` is on: known bugs
//! (mutants), and assertions that can be silenced so that outside oracles must find a mutant. And coverage marks: events that a program
//! tells, too, with `RUST_LOG=atoll::mark=debug`.
//!
//! State is per thread: a simulated cluster runs on one thread. A program that is started with a known bug has it in all threads.

use bytes::Bytes;

use crate::ids::{Incarnation, NodeId};
use crate::level::Level;

/// A known bug that a test can put in. It is declared with [`crate::mutants!`] in the crate whose code has it, and named after the trap of
/// the protocol that it falls into.
#[derive(Clone, Copy)]
pub struct Mutant {
    name: &'static str,
    caught_by: &'static [&'static str],
}

impl Mutant {
    /// The product as it is.
    pub const NONE: Mutant = Mutant::new("None", &[]);

    /// See [`crate::mutants!`].
    pub const fn new(name: &'static str, caught_by: &'static [&'static str]) -> Self {
        Mutant { name, caught_by }
    }

    /// Its name, by which programs are asked for it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The scenarios of the simulator in which an oracle must find it, the best one first. None: a test of its crate finds it.
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

/// A situation that the protocol notes list, and the coverage marks of which each must be reached to have tested it.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The protocol and the situation in words.
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
    /// Whether there is one: asked at every place of a mutant.
    static IS_EVERYWHERE: AtomicBool = AtomicBool::new(false);

    /// Messages that nodes sent to themselves: node, class, message.
    type Shown = Vec<(NodeId, Class, Envelope)>;

    thread_local! {
        static LOCAL: RefCell<Option<Shown>> = const { RefCell::new(None) };
        static APPLIED: RefCell<Option<Vec<AppliedCommand>>> = const { RefCell::new(None) };
        static MUTANT: Cell<Mutant> = const { Cell::new(Mutant::NONE) };
        static MARKS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Puts a known bug in, on this thread, until the next call.
    pub fn set_mutant(m: Mutant) {
        MUTANT.set(m);
    }

    /// Puts a known bug in, on all threads, until the next call: for drills on whole programs.
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

    /// Whether this known bug is in.
    pub fn mutant(m: Mutant) -> bool {
        MUTANT.get() == m || everywhere() == m
    }

    /// Whether the product checks its own invariants: not with a mutant in, so that the oracles must find it.
    pub fn asserting() -> bool {
        MUTANT.get() == Mutant::NONE && everywhere() == Mutant::NONE
    }

    /// Counts a coverage mark.
    pub(super) fn count(mark: &'static str) {
        MARKS.with_borrow_mut(|m| *m.entry(mark).or_default() += 1);
    }

    /// Where a procedure is. Dropped before its end, as a node that dies drops its procedures, it counts the mark of its place.
    #[derive(Debug)]
    pub struct Place(Option<&'static str>);

    impl Place {
        /// At a place; `mark` says that it died there.
        pub fn at(mark: &'static str) -> Self {
            Place(Some(mark))
        }

        /// Went on.
        pub fn moves(&mut self, mark: &'static str) {
            self.0 = Some(mark);
        }

        /// Came to its end, well or not.
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

    /// Whether [`take_local`] is going to be called: from now on, messages that a node sends to itself are gathered.
    pub fn watch_local(on: bool) {
        LOCAL.set(on.then(Vec::new));
    }

    /// A node sends a message to itself, which no host sees.
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

    /// Whether [`take_applied`] is going to be called: from now on, commands that replicas apply are gathered.
    pub fn watch_applied(on: bool) {
        APPLIED.set(on.then(Vec::new));
    }

    /// A replica has applied a command.
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

/// Whether what test builds write ahead of the releases is in at this level, see [`Level::NEXT`].
#[cfg(feature = "testing")]
pub fn next_level(level: Level) -> bool {
    level >= Level::NEXT
}

/// Whether what test builds write ahead of the releases is in at this level: never, outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn next_level(_: Level) -> bool {
    false
}

/// Whether this known bug is in: never, outside of tests.
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

/// A node sends a message to itself: nobody looks, outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn show_local(_: NodeId, _: crate::frame::Class, _: &crate::frame::Envelope) {}

/// A replica has applied a command: nobody looks, outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn show_applied(_: impl FnOnce() -> AppliedCommand) {}

/// The code has come to a coverage mark: counted in tests, and told at level debug in every program.
#[inline]
pub fn hit(mark: &'static str) {
    #[cfg(feature = "testing")]
    on::count(mark);
    tracing::debug!(target: "atoll::mark", mark);
}

/// Where a procedure is: nothing, outside of tests.
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

/// Asserts an invariant, in release builds too; silent only while a mutation test wants the outside oracles to speak.
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($why:tt)+) => {
        if $crate::testing::asserting() { assert!($cond, $($why)+) }
    };
}

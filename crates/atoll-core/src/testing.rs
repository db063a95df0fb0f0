//! Switches for the simulator, all of them off and free of cost unless the feature `testing` is on: known bugs
//! (mutants), assertions that can be silenced so that outside oracles must find a mutant, and coverage marks.
//!
//! State is per thread: a simulated cluster runs on one thread. A program that is started with a known bug has it in all threads.

use bytes::Bytes;

use crate::ids::{Incarnation, NodeId};
use crate::level::Level;

/// A known bug that a test can put in. Each is named after the trap of the protocol file that it falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The names are the documentation: protocol and trap number.
pub enum Mutant {
    /// The product as it is.
    None,
    X1,
    X16,
    JournalLossUnseen,
    X16Floor,
    NativeT1,
    NativeT2,
    NativeT3,
    NativeT4,
    NativeT5,
    NativeT6,
    NativeT8,
    NativeT9,
    NativeT10,
    NativeT11,
    NativeT12,
    NativeT18,
    NativeT19,
    /// A server takes an entry behind a gap that nobody called committed.
    NativeN7,
    /// An entry that cannot be read now passes for one that was trimmed.
    NativeUnreadIsTrimmed,
    /// Nodes take in a data directory that was put back from an older copy.
    WitnessForgets,
    RmwT1,
    RmwT2,
    RmwT3,
    RmwT4,
    RmwT5,
    RmwT6,
    RmwT7,
    RmwT9,
    /// Registers in a file go on after a replacement whose outcome nobody knows.
    FileAnswersAfterFailure,
    VlogV1,
    VlogV2,
    VlogV3,
    VlogV4,
    VlogV7,
    VlogV14,
    VlogV22,
    VlogInstallWithoutSeal,
    VlogRevivedLoglet,
    /// Nobody completes what a reconfigurer began that has died.
    VlogNoRollForward,
    /// A chain may name a page that is not durable yet.
    VlogPageTooLate,
    /// A deleted log that is created anew begins at 0 again.
    VlogAnewFromZero,
    LevelsWriteWhatTheyRead,
    DbBarrierWithoutCheck,
    DbCommitAheadOfState,
    DbViewBeforeEvents,
    DbAppliesCopies,
    DbHaltedHoldsTrim,
    DbEveryStoreErrorHalts,
    /// Any clock moves the log's time.
    DbClockUnchecked,
    /// A replica shows what its store had when it was started, before anybody has compared it.
    DbServesUnchecked,
    ZkExpiryUnguarded,
    ZkTakeOverWithoutTimeout,
    ZkEventsAfterReplies,
    ZkWatchesIgnoreZxid,
    ZkServesBehindSession,
    ZkVersionUnchecked,
    ZkMultiInParts,
    ZkEphemeralStays,
    /// A session that is ending still is its client's.
    ZkEndingLives,
    ZkSyncWithoutBarrier,
    ZkWriteAfterMove,
    ZkReadsPassWrites,
    ZkWatchFiresAgain,
    ZkHaltedKeepsSessions,
    /// What was due when somebody looked goes, whatever came since.
    ZkReapUnguarded,
    ZkQuotaForgetsDeletes,
    TablesVersionUnchecked,
    TablesIndexStale,
    TablesTransactionInParts,
    PolicyLowestId,
    PolicyNoCalm,
    PolicyHidesHealth,
    /// Nobody believes that a member is up because another one vouches for it.
    PolicyNoVouching,
    /// Only the first 64 logs are guarded.
    PolicyGuardsFew,
}

impl Mutant {
    /// Every mutant that a scenario of the simulator has to catch. Not among them: [`Mutant::DbServesUnchecked`], since no scenario alters
    /// a store; a test of the database catches it.
    pub const ALL: [Mutant; 73] = [
        Mutant::X1,
        Mutant::X16,
        Mutant::JournalLossUnseen,
        Mutant::X16Floor,
        Mutant::NativeT1,
        Mutant::NativeT2,
        Mutant::NativeT3,
        Mutant::NativeT4,
        Mutant::NativeT5,
        Mutant::NativeT6,
        Mutant::NativeT8,
        Mutant::NativeT9,
        Mutant::NativeT10,
        Mutant::NativeT11,
        Mutant::NativeT12,
        Mutant::NativeT18,
        Mutant::NativeT19,
        Mutant::NativeN7,
        Mutant::NativeUnreadIsTrimmed,
        Mutant::WitnessForgets,
        Mutant::RmwT1,
        Mutant::RmwT2,
        Mutant::RmwT3,
        Mutant::RmwT4,
        Mutant::RmwT5,
        Mutant::RmwT6,
        Mutant::RmwT7,
        Mutant::RmwT9,
        Mutant::FileAnswersAfterFailure,
        Mutant::VlogV1,
        Mutant::VlogV2,
        Mutant::VlogV3,
        Mutant::VlogV4,
        Mutant::VlogV7,
        Mutant::VlogV14,
        Mutant::VlogV22,
        Mutant::VlogInstallWithoutSeal,
        Mutant::VlogRevivedLoglet,
        Mutant::VlogNoRollForward,
        Mutant::VlogPageTooLate,
        Mutant::VlogAnewFromZero,
        Mutant::LevelsWriteWhatTheyRead,
        Mutant::DbBarrierWithoutCheck,
        Mutant::DbCommitAheadOfState,
        Mutant::DbViewBeforeEvents,
        Mutant::DbAppliesCopies,
        Mutant::DbHaltedHoldsTrim,
        Mutant::DbEveryStoreErrorHalts,
        Mutant::DbClockUnchecked,
        Mutant::ZkExpiryUnguarded,
        Mutant::ZkTakeOverWithoutTimeout,
        Mutant::ZkEventsAfterReplies,
        Mutant::ZkWatchesIgnoreZxid,
        Mutant::ZkServesBehindSession,
        Mutant::ZkVersionUnchecked,
        Mutant::ZkMultiInParts,
        Mutant::ZkEphemeralStays,
        Mutant::ZkEndingLives,
        Mutant::ZkSyncWithoutBarrier,
        Mutant::ZkWriteAfterMove,
        Mutant::ZkReadsPassWrites,
        Mutant::ZkWatchFiresAgain,
        Mutant::ZkHaltedKeepsSessions,
        Mutant::ZkReapUnguarded,
        Mutant::ZkQuotaForgetsDeletes,
        Mutant::TablesVersionUnchecked,
        Mutant::TablesIndexStale,
        Mutant::TablesTransactionInParts,
        Mutant::PolicyLowestId,
        Mutant::PolicyNoCalm,
        Mutant::PolicyHidesHealth,
        Mutant::PolicyNoVouching,
        Mutant::PolicyGuardsFew,
    ];
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
    use std::sync::atomic::{AtomicU16, Ordering};

    /// The known bug of all threads, as a number.
    static EVERYWHERE: AtomicU16 = AtomicU16::new(Mutant::None as u16);

    /// Messages that nodes sent to themselves: node, class, message.
    type Shown = Vec<(NodeId, Class, Envelope)>;

    thread_local! {
        static LOCAL: RefCell<Option<Shown>> = const { RefCell::new(None) };
        static APPLIED: RefCell<Option<Vec<AppliedCommand>>> = const { RefCell::new(None) };
        static MUTANT: Cell<Mutant> = const { Cell::new(Mutant::None) };
        static MARKS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Puts a known bug in, on this thread, until the next call.
    pub fn set_mutant(m: Mutant) {
        MUTANT.set(m);
    }

    /// Puts a known bug in, on all threads, until the next call: for drills on whole programs.
    pub fn set_mutant_everywhere(m: Mutant) {
        EVERYWHERE.store(m as u16, Ordering::Relaxed);
    }

    fn everywhere(m: Mutant) -> bool {
        EVERYWHERE.load(Ordering::Relaxed) == m as u16
    }

    /// Whether this known bug is in.
    pub fn mutant(m: Mutant) -> bool {
        MUTANT.get() == m || everywhere(m)
    }

    /// Whether the product checks its own invariants: not with a mutant in, so that the oracles must find it.
    pub fn asserting() -> bool {
        MUTANT.get() == Mutant::None && everywhere(Mutant::None)
    }

    /// Counts a coverage mark.
    pub fn hit(mark: &'static str) {
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
                hit(mark);
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
    Place, asserting, hit, mutant, set_mutant, set_mutant_everywhere, show_applied, show_local, take_applied,
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

/// Counts a coverage mark: nothing, outside of tests.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn hit(_: &'static str) {}

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

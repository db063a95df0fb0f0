//! Known bugs of the checker. Tests switch one on and demand that the suite notices. They do not exist outside of the tests of this crate.

/// A known bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// An operation may be placed before one that returned before its call.
    RealTimeIgnored,
    /// Two configurations with the same operations count as one, whatever the state.
    StateForgotten,
    /// An operation of unknown outcome counts as executed.
    UnknownHappens,
    /// An operation of unknown outcome has no effect after its client gave up.
    UnknownEnds,
    /// The first operation that fits is never taken back.
    NoWayBack,
    /// A configuration that used more operations of unknown outcome excludes one that used fewer.
    DominanceInverted,
    /// An operation on several keys counts for the first one only.
    KeysApart,
    /// Any operation may be refused for a condition.
    AnyConflict,
    /// A later write may have a lower version.
    VersionsFall,
    /// An exhausted limit counts as an explanation.
    LimitExplains,
    /// A write that is left out of a short history counts as never made.
    LeftOutIsNothing,
}

#[cfg(test)]
pub(crate) const ALL: [Bug; 11] = [
    Bug::RealTimeIgnored,
    Bug::StateForgotten,
    Bug::UnknownHappens,
    Bug::UnknownEnds,
    Bug::NoWayBack,
    Bug::DominanceInverted,
    Bug::KeysApart,
    Bug::AnyConflict,
    Bug::VersionsFall,
    Bug::LimitExplains,
    Bug::LeftOutIsNothing,
];

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches a bug on in this thread, or all off.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Returns whether a bug is switched on. Always false outside of the tests of this crate.
#[cfg(test)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.with(std::cell::Cell::get) == Some(bug)
}

#[cfg(not(test))]
pub(crate) fn planted(_: Bug) -> bool {
    false
}

//! Known bugs of the database that tests can switch on, each with the scenarios of the simulator in which an oracle must find it.

atoll_core::mutants! {
    DB_BARRIER_WITHOUT_CHECK = "DbBarrierWithoutCheck", caught by ["database", "zookeeper"];
    DB_COMMIT_AHEAD_OF_STATE = "DbCommitAheadOfState", caught by ["database", "zookeeper"];
    DB_VIEW_BEFORE_EVENTS = "DbViewBeforeEvents", caught by ["database", "zookeeper"];
    DB_HALTED_HOLDS_TRIM = "DbHaltedHoldsTrim", caught by ["database-stores"];
    DB_EVERY_STORE_ERROR_HALTS = "DbEveryStoreErrorHalts", caught by ["database-stores"];
    /// Any clock advances the log's time, however far ahead it is.
    DB_CLOCK_UNCHECKED = "DbClockUnchecked", caught by ["database-clocks"];
    /// An entry is changed although nobody has asked the replicas whether they have passed it.
    DB_SURGERY_UNFENCED = "SurgeryUnfenced", caught by ["surgery"];
    /// A replica does not check that the parts of a long command follow each other, and keeps those of commands that were given up.
    DB_PARTS_UNCHECKED = "DbPartsUnchecked", caught by ["database", "zookeeper"];
    /// A replica that starts or is refilled does not know of the parts in its store.
    DB_PARTS_IN_MEMORY = "DbPartsInMemory", caught by ["database", "zookeeper"];
    /// A replica shows the state that its store had at startup before that state has been compared.
    DB_SERVES_UNCHECKED = "DbServesUnchecked", caught by [];
}

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
    /// A replica shows the state that its store had at startup before that state has been compared.
    DB_SERVES_UNCHECKED = "DbServesUnchecked", caught by [];
}

//! Known bugs of the tables that tests can switch on, each with the scenarios of the simulator in which an oracle must find it.

atoll_core::mutants! {
    TABLES_VERSION_UNCHECKED = "TablesVersionUnchecked", caught by ["tables"];
    TABLES_INDEX_STALE = "TablesIndexStale", caught by ["tables"];
    TABLES_TRANSACTION_IN_PARTS = "TablesTransactionInParts", caught by ["tables"];
}

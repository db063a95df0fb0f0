//! Known bugs that any implementation of a contract may have; tests inject them. Each names the scenarios of the simulator in which an
//! oracle must find it.

atoll_core::mutants! {
    VLOG_REVIVED_LOGLET = "VlogRevivedLoglet", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
}

//! Known bugs of this protocol, and of a service, that tests can inject, each with the scenarios of the simulator in which an oracle must
//! find it, and the coverage marks that a long run must reach. The crate's own tests must find each of the bugs, too.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// The service forgets a seal soon after it has confirmed it.
    SERVICE_FORGETS_SEALS = "ServiceForgetsSeals", caught by ["log-service"];
    /// Entries are published without a condition.
    SERVICE_APPENDS_BLINDLY = "ServiceAppendsBlindly", caught by ["log-service"];
    /// A publish without an answer counts as one that did not happen. A record that is handed in again is found by its name nearly always,
    /// so hardly any seed of a scenario notices.
    SERVICE_SILENCE_IS_NO = "ServiceSilenceIsNo", caught by [];
    /// A tail is what the service shows, without a mark that proves it.
    SERVICE_STALE_TAIL = "ServiceStaleTail", caught by ["log-service"];
    /// An appender does not remember the operations of others that it reads.
    SERVICE_IGNORES_OTHERS = "ServiceIgnoresOthers", caught by ["log-service"];
    /// A copy of a sealed segment leaves out one entry, and has the one before it twice. The virtual log compares each copy
    /// before it installs it, so no scenario loses anything by it.
    SERVICE_COPY_SKIPS_ENTRY = "ServiceCopySkipsEntry", caught by [];
    /// A trim purges the newest message of entries, too, which alone says where the log goes on (service-S5).
    SERVICE_PURGES_ALL = "ServicePurgesAll", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("log-service: another node's message is in the way of an append", &["service.append.behind"]),
    listed("log-service: an append without an answer is found in the log", &["service.append.found"]),
    listed("log-service: an append without an answer is found to be over", &["service.append.over"]),
    listed("log-service: a tail needs messages that the node has not read yet", &["service.tail.follow"]),
    listed("log-service: messages are purged", &["service.trim.purge"]),
    listed("log-service: half of the nodes see only an old server", &["service.old_server"]),
    listed("log-service: nobody is answered for a while", &["service.away"]),
    listed("log-service: what is read was altered or cut short on its way", &["service.wrong"]),
];

//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach. The crate's own tests (`tests/protocol/faults.rs`) must find each of the bugs, too.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// An object of entries replaces the one that is there: the put has no condition.
    OBJECT_OVERWRITES = "ObjectOverwrites", caught by ["object"];
    /// The seal leaves the next index free, so that an append can still take it. A virtual log asks for the sealed tail before it goes on,
    /// and then gets none, so no scenario loses anything by it.
    OBJECT_SEAL_BESIDE = "ObjectSealBeside", caught by [];
    /// A put without an answer counts as one that did not happen.
    OBJECT_SILENCE_IS_NO = "ObjectSilenceIsNo", caught by ["object"];
    /// An append is acknowledged without a look at the mark of its block (object-O3).
    OBJECT_BELIEVES_PUTS = "ObjectBelievesPuts", caught by ["object"];
    /// An appender does not remember the operations of others that it reads.
    OBJECT_IGNORES_OTHERS = "ObjectIgnoresOthers", caught by ["object"];
    /// A copy of a sealed segment leaves out one entry, and has the one before it twice. The virtual log compares each copy
    /// before it installs it, so no scenario loses anything by it.
    OBJECT_COPY_SKIPS_ENTRY = "ObjectCopySkipsEntry", caught by [];
    /// A loglet is planned at a place that does not have what its predecessor keeps there, and makes that place count as the right one.
    OBJECT_MARKS_ANY_STORE = "ObjectMarksAnyStore", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("object: an appender loses an index to another node", &["object.append.lost"]),
    listed("object: an index is read back after a put without an answer", &["object.append.read_back"]),
    listed("object: a sealer loses an index to an append", &["object.seal.lost"]),
    listed("object: a block of objects is deleted", &["object.trim.block"]),
    listed("object: half of the nodes cannot reach the store", &["object.store.cut_off"]),
    listed("object: nobody is answered for a while", &["object.store.away"]),
    listed("object: what is read was altered or cut short on its way", &["object.store.wrong"]),
];

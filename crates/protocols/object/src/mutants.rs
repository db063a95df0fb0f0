//! Known bugs of this protocol that tests can inject. No scenario of the simulator runs it yet, so the plug-in does not list them: the
//! crate's own tests (`tests/faults.rs`) must find each of them.

atoll_core::mutants! {
    /// An object of entries replaces the one that is there: the put has no condition.
    OBJECT_OVERWRITES = "ObjectOverwrites", caught by [];
    /// The seal leaves the next index free, so that an append can still take it.
    OBJECT_SEAL_BESIDE = "ObjectSealBeside", caught by [];
    /// A put without an answer counts as one that did not happen.
    OBJECT_SILENCE_IS_NO = "ObjectSilenceIsNo", caught by [];
    /// An append is acknowledged without a look at the mark of its block (object-O3).
    OBJECT_BELIEVES_PUTS = "ObjectBelievesPuts", caught by [];
    /// An appender does not remember the operations of others that it reads.
    OBJECT_IGNORES_OTHERS = "ObjectIgnoresOthers", caught by [];
}

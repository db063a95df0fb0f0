//! Known bugs of the applications that tests can inject. The tests of this crate find them.

atoll_core::mutants! {
    /// The client sends its commit, or its put, to the map, which applies it when it comes.
    APPS_A1 = "AppsA1", caught by [];
    /// The map accepts a commit that names a collected value.
    APPS_A2 = "AppsA2", caught by [];
    /// Nothing remembers which operations took effect.
    APPS_A3 = "AppsA3", caught by [];
    /// A multi-get asks for each key at the index of the moment.
    APPS_A4 = "AppsA4", caught by [];
    /// A map replica answers although its index is below the one that it is asked for.
    APPS_A5 = "AppsA5", caught by [];
    /// A move takes effect although the key has another value by now.
    APPS_A6 = "AppsA6", caught by [];
    /// The compactor trims what a reader still needs.
    APPS_A7 = "AppsA7", caught by [];
    /// The mirror takes every copy of an entry for the next one.
    APPS_A8 = "AppsA8", caught by [];
    /// The map takes all records for records of the first shard.
    APPS_G1 = "AppsG1", caught by [];
    /// A transaction is not checked against what was written since its snapshot.
    APPS_T1 = "AppsT1", caught by [];
    /// A range that a transaction has read is checked only at the keys that it found (phantoms).
    APPS_T2 = "AppsT2", caught by [];
    /// A multi-put writes a commit for each key.
    APPS_M1 = "AppsM1", caught by [];
    /// An analyser saves its position before its state.
    APPS_K1 = "AppsK1", caught by [];
    /// A late event counts in the newest window.
    APPS_K2 = "AppsK2", caught by [];
    /// An index server that is behind says that a stream has no more entries.
    APPS_V1 = "AppsV1", caught by [];
    /// A reader continues from where a checkpoint is, and not from the index of the state in it.
    APPS_V2 = "AppsV2", caught by [];
    /// A change of several objects is an entry for each.
    APPS_V3 = "AppsV3", caught by [];
    /// A log of streams is trimmed up to the highest trim point of its streams.
    APPS_V4 = "AppsV4", caught by [];
    /// The index has every entry in all streams.
    APPS_V5 = "AppsV5", caught by [];
    /// A reader takes a stream for complete as far as one of its shares is.
    APPS_V6 = "AppsV6", caught by [];
}

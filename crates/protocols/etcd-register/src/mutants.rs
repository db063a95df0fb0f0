//! Known bugs of registers in etcd; tests inject them. The simulator has no etcd, so the tests of this crate must catch these.

atoll_core::mutants! {
    /// A register is created without the condition that there is none.
    ETCD_CREATES_UNCHECKED = "EtcdCreatesUnchecked", caught by [];
    /// A register is read at a server that may lag behind.
    ETCD_STALE_READ = "EtcdStaleRead", caught by [];
}

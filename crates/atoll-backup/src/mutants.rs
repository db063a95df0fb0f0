//! Known bugs of backups that tests can switch on.

atoll_core::mutants! {
    /// A run lacks its last entry, and says that it has it.
    BACKUP_SKIPS_ENTRY = "BackupSkipsEntry", caught by ["backup"];
    /// A snapshot may be of an older state than the one before it.
    BACKUP_GOES_BACK = "BackupGoesBack", caught by ["backup"];
    /// A restore leaves out the last entry of each run, and applies the one before it twice.
    RESTORE_SKIPS_ENTRY = "RestoreSkipsEntry", caught by ["backup"];
    /// A restore ends one entry too early.
    RESTORE_ENDS_EARLY = "RestoreEndsEarly", caught by ["backup"];
}

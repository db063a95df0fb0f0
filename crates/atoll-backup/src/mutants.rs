//! Known bugs of backups that tests can switch on.

atoll_core::mutants! {
    /// A run lacks its last entry, and says that it has it.
    BACKUP_SKIPS_ENTRY = "BackupSkipsEntry", caught by [];
    /// A restore ends one entry too early.
    RESTORE_ENDS_EARLY = "RestoreEndsEarly", caught by [];
}

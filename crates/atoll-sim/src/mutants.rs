//! The hunt for known bugs: each mutant is put in at run time, and an oracle of safety has to find it; that a cluster merely
//! makes no progress does not count.

use atoll_core::testing::Mutant;

use crate::runner::{is_of_safety, run_many};
use crate::scenario::{self, Outcome};

/// The scenarios that are to catch a mutant, the best one first.
pub fn hunters(mutant: Mutant) -> Vec<&'static str> {
    use Mutant as M;
    match mutant {
        M::RmwT9 => vec!["registers", "disks"],
        M::FileAnswersAfterFailure => vec!["file-registers"],
        M::RmwT5 => vec!["register-lives"],
        M::RmwT1 | M::RmwT2 | M::RmwT3 | M::RmwT4 | M::RmwT6 | M::RmwT7 => vec!["registers"],
        M::NativeT8 => vec!["disks"],
        M::JournalLossUnseen => vec!["lost-files"],
        M::NativeT9 => vec!["crashes", "disks"],
        M::X16 => vec!["vlog-late"],
        M::VlogPageTooLate => vec!["vlog-long"],
        M::VlogAnewFromZero => vec!["vlog-deleted"],
        M::X16Floor | M::VlogV22 => vec!["vlog-retries"],
        M::X1 => vec!["crashes", "registers", "native", "local"],
        M::VlogV1
        | M::VlogV2
        | M::VlogV3
        | M::VlogV4
        | M::VlogV7
        | M::VlogV14
        | M::VlogInstallWithoutSeal
        | M::VlogRevivedLoglet => vec!["vlog-seals", "virtuallog", "crashes", "all"],
        M::LevelsWriteWhatTheyRead => vec!["upgrade"],
        M::DbBarrierWithoutCheck | M::DbViewBeforeEvents | M::DbCommitAheadOfState => {
            vec!["database", "zookeeper"]
        }
        M::ZkHaltedKeepsSessions => vec!["zookeeper-stores"],
        M::DbClockUnchecked => vec!["database-clocks"],
        M::DbHaltedHoldsTrim | M::DbEveryStoreErrorHalts => vec!["database-stores"],
        M::DbAppliesCopies
        | M::ZkExpiryUnguarded
        | M::ZkTakeOverWithoutTimeout
        | M::ZkEventsAfterReplies
        | M::ZkWatchesIgnoreZxid
        | M::ZkWatchFiresAgain
        | M::ZkServesBehindSession
        | M::ZkVersionUnchecked
        | M::ZkMultiInParts
        | M::ZkEphemeralStays
        | M::ZkEndingLives
        | M::ZkSyncWithoutBarrier
        | M::ZkWriteAfterMove
        | M::ZkReadsPassWrites
        | M::ZkReapUnguarded
        | M::ZkQuotaForgetsDeletes => vec!["zookeeper"],
        M::TablesVersionUnchecked | M::TablesIndexStale | M::TablesTransactionInParts => vec!["tables"],
        M::PolicyLowestId | M::PolicyNoCalm | M::PolicyHidesHealth | M::PolicyNoVouching => vec!["lasting"],
        M::NativeN7 => vec!["native", "disks"],
        M::NativeUnreadIsTrimmed => vec!["disks"],
        M::VlogNoRollForward => vec!["vlog-movers"],
        M::WitnessForgets => vec!["put-back"],
        M::PolicyGuardsFew => vec!["many-logs"],
        M::NativeT18 | M::NativeT12 | M::NativeT10 | M::NativeT11 | M::NativeT6 => {
            vec!["native", "virtuallog"]
        }
        _ => vec!["native-seals", "native", "vlog-seals", "virtuallog", "crashes"],
    }
}

/// Tries each mutant until it is caught; prints a table. True if all were.
pub fn hunt(mutants: &[Mutant], seeds: u64, threads: usize) -> bool {
    println!("{:<24} {:<12} {:>5} {:>6}  first violation", "mutant", "scenario", "seed", "tried");
    let mut all = true;
    for mutant in mutants {
        let mut caught = false;
        for name in hunters(*mutant) {
            let Some(s) = scenario::find(name) else { continue };
            let found = |o: &Outcome| o.failures.first().is_some_and(|why| is_of_safety(why));
            let sums = run_many(&s, 0..seeds, threads, *mutant, &found, &|_, _| {});
            if let Some((seed, why)) = sums.failures.iter().find(|(_, why)| is_of_safety(why)) {
                let tried = sums.passed + sums.failed;
                let why: String = why.chars().take(120).collect();
                println!("{:<24} {name:<12} {seed:>5} {tried:>6}  {why}", format!("{mutant:?}"));
                caught = true;
                break;
            }
        }
        if !caught {
            println!(
                "{:<24} not caught within {seeds} seeds of {}",
                format!("{mutant:?}"),
                hunters(*mutant).join(", ")
            );
            all = false;
        }
    }
    println!("{}", if all { "every mutant was caught" } else { "some mutants were not caught" });
    all
}

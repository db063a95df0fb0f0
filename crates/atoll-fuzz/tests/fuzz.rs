//! Runs the fuzz targets with any toolchain: on their corpus, and on seeded mutations of it for a few seconds each.
//!
//! `ATOLL_FUZZ_SECONDS` sets the time for each target, `ATOLL_FUZZ_SEED` the seed of the mutations. The input of a finding is written to
//! the temporary folder. Add it to the corpus once it is understood.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use atoll_core::testing::{Mutant, set_mutant};
use atoll_fuzz::mutate::{Random, mutate};
use atoll_fuzz::{TARGETS, Target, corpus};

const DEFAULT_SECONDS: u64 = 5;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap()
}

fn packed(target: &Target) -> Vec<Vec<u8>> {
    let file = corpus::packed_file(target.name);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let inputs = corpus::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    inputs.into_values().collect()
}

/// Runs one input. If it panics, writes the input to a file and prints the path. A stack overflow or an abort ends the process before that.
fn run(target: &Target, input: &[u8]) {
    let caught = std::panic::catch_unwind(|| (target.run)(input));
    if let Err(panic) = caught {
        let kept = std::env::temp_dir().join(format!("atoll-fuzz-{}", target.name));
        std::fs::write(&kept, input).unwrap();
        eprintln!("the input is in {}", kept.display());
        std::panic::resume_unwind(panic);
    }
}

fn fuzz(name: &str) {
    let target = target(name);
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty(), "{name} has no seeds");
    inputs.extend(packed(target));
    inputs.iter().for_each(|input| run(target, input));
    let seconds = number("ATOLL_FUZZ_SECONDS", DEFAULT_SECONDS);
    let mut random = Random(number("ATOLL_FUZZ_SEED", 1));
    let (began, mut runs) = (Instant::now(), 0u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            run(target, &mutate(&inputs, &mut random));
            runs += 1;
        }
    }
    println!("{name}: {} inputs of the corpus, {runs} mutations in {seconds} s, no finding", inputs.len());
}

#[test]
fn fuzz_frame_decoder() {
    fuzz("frame_decoder");
}

#[test]
fn fuzz_journal_recovery() {
    fuzz("journal_recovery");
}

#[test]
fn fuzz_cell_recovery() {
    fuzz("cell_recovery");
}

#[test]
fn fuzz_chain_decoder() {
    fuzz("chain_decoder");
}

#[test]
fn fuzz_batch_decoder() {
    fuzz("batch_decoder");
}

#[test]
fn fuzz_jute_decoder() {
    fuzz("jute_decoder");
}

#[test]
fn fuzz_message_decoder() {
    fuzz("message_decoder");
}

#[test]
fn fuzz_snapshot_decoder() {
    fuzz("snapshot_decoder");
}

#[test]
fn fuzz_jute_connection() {
    fuzz("jute_connection");
}

#[test]
fn fuzz_table_decoder() {
    fuzz("table_decoder");
}

/// Checks that the target can find a bug: it must find a recovery that cuts at rot instead of refusing it (native-T9).
#[test]
fn journal_recovery_finds_a_known_bug() {
    let target = target("journal_recovery");
    let flip = |place: u16| [&[3, 0, 0], place.to_le_bytes().as_slice()].concat();
    // A bit in the first record of the first segment.
    let place = 8 * (512 + 40 + 100);
    run(target, &flip(place));
    set_mutant(atoll_storage::mutants::NATIVE_T9);
    let found = std::panic::catch_unwind(|| (target.run)(&flip(place)));
    set_mutant(Mutant::NONE);
    assert!(found.is_err(), "records are missing, and the target says nothing");
}

/// The same for cells: the target must find a recovery that hands out old values where the last ones are damaged (rmw-T9).
#[test]
fn cell_recovery_finds_a_known_bug() {
    let target = target("cell_recovery");
    // One bit in every block of the first file.
    let flips: Vec<_> = (0u32..32).map(|block| 8 * (512 * block + 20)).collect();
    let flip = |place: u32| [&[2, 0], &place.to_le_bytes()[..3]].concat();
    flips.iter().for_each(|place| run(target, &flip(*place)));
    set_mutant(atoll_storage::mutants::CELL_LOSS_UNSEEN);
    let found =
        flips.iter().filter(|place| std::panic::catch_unwind(|| (target.run)(&flip(**place))).is_err());
    let found = found.count();
    set_mutant(Mutant::NONE);
    assert!(found > 0, "old values are handed out, and the target says nothing");
}

#[test]
fn fuzz_tree_snapshot() {
    fuzz("tree_snapshot");
}

#[test]
fn fuzz_backup_decoder() {
    fuzz("backup_decoder");
}

//! The fuzz targets on any toolchain: over their corpus, and over seeded mutations of it for a few seconds each.
//!
//! `ATOLL_FUZZ_SECONDS` sets how long each; `ATOLL_FUZZ_SEED` which mutations. A finding is written to the temporary folder, to go into the
//! corpus once it is understood.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_fuzz::mutate::{Random, mutate};
use atoll_fuzz::{TARGETS, Target};

const DEFAULT_SECONDS: u64 = 5;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap()
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

/// Tells where the input is while it runs: kept if it panics, also by a stack overflow or an abort.
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
    inputs.extend(corpus(target));
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
fn fuzz_chain_decoder() {
    fuzz("chain_decoder");
}

#[test]
fn fuzz_batch_decoder() {
    fuzz("batch_decoder");
}

#[test]
fn fuzz_message_decoder() {
    fuzz("message_decoder");
}

/// The bodies are not asleep: each refuses what it must, for a wrong decoder.
#[test]
fn the_seeds_reach_what_they_are_for() {
    for target in &TARGETS {
        let seeds = (target.seeds)();
        assert!(seeds.len() >= 4, "{} has {} seeds", target.name, seeds.len());
        seeds.iter().for_each(|seed| run(target, seed));
    }
    // One valid input per message kind: 40 decoders, at least.
    let kinds: std::collections::BTreeSet<u8> =
        (target("message_decoder").seeds)().iter().map(|s| s[0]).collect();
    assert_eq!(kinds.len(), 40, "{kinds:?}");
}

//! Checks that a register is linearizable. Versions order all writes, so it suffices to compare each answer with what was known before its
//! request was sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_contract::testing::{Violations, digest};
use atoll_contract::{Nonce, Version, Versioned, Written};

use crate::oracle::Answered;

#[derive(Debug, Default)]
struct Register {
    /// The write that made each version, if known, and the digest of its value.
    versions: BTreeMap<u64, (Nonce, u64)>,
    /// The version that each write made, if known.
    written: BTreeMap<Nonce, u64>,
    /// For each write: its expected version, the digest of its value, and the floor when it was first sent.
    wanted: BTreeMap<Nonce, (u64, u64, u64)>,
    /// Writes that were answered as not written, with the version that the answer showed, or 0.
    refused: BTreeMap<Nonce, u64>,
    floor: u64,
    answered: Answered,
}

#[derive(Debug, Default)]
struct RegisterOracleState {
    registers: BTreeMap<String, Register>,
    verdict: Violations,
}

/// Compares the requests of clients with the answers, for all registers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct RegisterOracle(Arc<Mutex<RegisterOracleState>>);

/// The highest version that was known when a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked(u64);

impl RegisterOracle {
    fn state(&self) -> MutexGuard<'_, RegisterOracleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.state().verdict.failures)
    }

    /// Returns the number of answers so far.
    pub fn answered(&self) -> Answered {
        let mut all = Answered::default();
        self.state().registers.values().for_each(|r| all += r.answered);
        all
    }

    /// Notes that a read is about to be sent.
    pub fn read_begins(&self, name: &str) -> Asked {
        Asked(self.state().registers.entry(name.to_owned()).or_default().floor)
    }

    /// Checks the answer to a read.
    pub fn read_done(&self, name: &str, asked: Asked, got: &Versioned) {
        let state = &mut *self.state();
        let r = state.registers.entry(name.to_owned()).or_default();
        r.answered += Answered::one(false);
        r.saw(name, asked.0, got, &mut state.verdict);
    }

    /// Notes that a write is about to be sent, for the first time or again.
    pub fn write_begins(&self, name: &str, nonce: Nonce, expected: Version, value: &[u8]) -> Asked {
        let mut state = self.state();
        let r = state.registers.entry(name.to_owned()).or_default();
        let floor = r.floor;
        r.wanted.entry(nonce).or_insert((expected.0, digest(value), floor));
        Asked(floor)
    }

    /// Checks the answer to a write.
    pub fn write_done(&self, name: &str, asked: Asked, nonce: Nonce, got: &Written) {
        let state = &mut *self.state();
        let r = state.registers.entry(name.to_owned()).or_default();
        r.answered += Answered::one(matches!(got, Written::Yes(_)));
        let Some((expected, value, floor)) = r.wanted.get(&nonce).copied() else {
            return state.verdict.fail(format!("HARNESS: {nonce:?} was never asked for"));
        };
        match got {
            Written::Yes(Version(version)) => {
                if *version != expected + 1 {
                    state.verdict.fail(format!(
                        "rmw-I4 version: {name}: a write that expected {expected} made version {version}"
                    ));
                }
                if *version <= floor && r.versions.get(version).is_none_or(|(n, _)| *n != nonce) {
                    state.verdict.fail(format!(
                        "rmw-I6 stale write: {name}: version {version} made by a write that was asked for when {floor} was there"
                    ));
                }
                if r.refused.contains_key(&nonce) {
                    state.verdict.fail(format!("rmw-I5 outcome: {name}: {nonce:?} did not happen, and did"));
                }
                r.made(name, *version, nonce, value, &mut state.verdict);
                r.floor = r.floor.max(*version);
            }
            Written::Conflict(other) => {
                r.saw(name, asked.0, other, &mut state.verdict);
                if r.written.contains_key(&nonce) {
                    state.verdict.fail(format!(
                        "rmw-I5 outcome: {name}: {nonce:?} happened and is answered as a conflict"
                    ));
                }
                if other.version.0 == expected {
                    state.verdict.fail(format!(
                        "rmw-I6 false conflict: {name}: expected {expected}, and that is what is there"
                    ));
                }
                r.refused.insert(nonce, other.version.0);
            }
        }
    }

    /// Checks a refusal that says that the write did not happen.
    pub fn write_refused(&self, name: &str, nonce: Nonce) {
        let state = &mut *self.state();
        let r = state.registers.entry(name.to_owned()).or_default();
        if let Some(version) = r.written.get(&nonce) {
            state.verdict.fail(format!(
                "rmw-I5 outcome: {name}: {nonce:?} is said not to have happened; it made {version}"
            ));
        }
        r.refused.insert(nonce, 0);
    }
}

impl Register {
    fn saw(&mut self, name: &str, asked: u64, got: &Versioned, verdict: &mut Violations) {
        let version = got.version.0;
        if version < asked {
            verdict.fail(format!(
                "rmw-I6 stale read: {name}: version {version}, but {asked} was known before it was asked for"
            ));
        }
        if version > 0 {
            match self.wanted.get(&got.nonce) {
                None => {
                    verdict.fail(format!("rmw-I6 invented: {name}: version {version} was never asked for"));
                }
                Some((expected, value, _)) => {
                    if *expected + 1 != version {
                        verdict.fail(format!(
                            "rmw-I4 version: {name}: a write that expected {expected} made version {version}"
                        ));
                    }
                    if *value != digest(&got.value) {
                        verdict.fail(format!(
                            "rmw-I6 changed: {name}: version {version} is not what was written"
                        ));
                    }
                }
            }
            self.made(name, version, got.nonce, digest(&got.value), verdict);
        }
        self.floor = self.floor.max(version);
    }

    fn made(&mut self, name: &str, version: u64, nonce: Nonce, value: u64, verdict: &mut Violations) {
        match self.versions.get(&version) {
            Some((other, _)) if *other != nonce => {
                verdict.fail(format!(
                    "rmw-I3 lost update: {name}: version {version} was written by {other:?} and by {nonce:?}"
                ));
            }
            _ => {
                self.versions.insert(version, (nonce, value));
            }
        }
        if let Some(other) = self.written.insert(nonce, version)
            && other != version
        {
            verdict.fail(format!("rmw-I5 twice: {name}: {nonce:?} made versions {other} and {version}"));
        }
        if self.refused.contains_key(&nonce) {
            verdict.fail(format!("rmw-I5 outcome: {name}: {nonce:?} did not happen, and made {version}"));
        }
    }
}

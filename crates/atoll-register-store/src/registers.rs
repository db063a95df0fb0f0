//! Registers over the cells of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::register::{MAX_NAME_BYTES, MAX_VALUE_BYTES, Unavailability};
use atoll_contract::{Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Env, Tick};
use atoll_rmwpaxos::RegisterState;
use bytes::Bytes;

use crate::cells::{Cells, Fault};
use crate::format::{to_bytes, to_cell_name, to_register_name, to_state};
use crate::mutants;

/// How patient registers are.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long an operation tries. Too small: it ends without an answer while the store is slow. Too large: callers wait long for errors.
    pub op_timeout: Duration,
    /// How long about an operation waits before it tries again.
    pub retry: Duration,
}

/// Registers in the cells of a store. Cheap to clone.
pub struct CellRegisters<C>(Arc<Inner<C>>);

impl<C> Clone for CellRegisters<C> {
    fn clone(&self) -> Self {
        CellRegisters(self.0.clone())
    }
}

struct Inner<C> {
    env: Env,
    cells: C,
    options: Options,
}

impl<C: Cells> fmt::Debug for CellRegisters<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "registers in {:?}", self.0.cells)
    }
}

/// Why a step failed.
enum Trouble {
    Fault(Fault),
    /// A cell does not hold a register, or holds one of a later version.
    Damaged(String),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Trouble::Fault(fault)
    }
}

impl Trouble {
    fn unavailability(&self) -> Unavailability {
        match self {
            Trouble::Fault(Fault::Passing(why)) => *why,
            Trouble::Fault(Fault::NoAnswer) => Unavailability::NoQuorum,
            Trouble::Fault(Fault::Refused(_)) | Trouble::Damaged(_) => Unavailability::StorageFailed,
        }
    }

    /// Whether another attempt may succeed.
    fn may_pass(&self) -> bool {
        !matches!(self, Trouble::Fault(Fault::Refused(_)) | Trouble::Damaged(_))
    }
}

impl<C: Cells> CellRegisters<C> {
    /// Opens the registers in these cells for the node of `env`. Nothing is contacted yet.
    pub fn new(env: Env, cells: C, options: Options) -> Self {
        CellRegisters(Arc::new(Inner { env, cells, options }))
    }
}

impl<C: Cells> Inner<C> {
    fn deadline(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }

    /// Reads a register, and the tag of its cell; None if there is no cell.
    async fn look(&self, name: &str) -> Result<(RegisterState, Option<C::Tag>), Trouble> {
        match self.cells.read(&to_cell_name(name)).await? {
            None => Ok((RegisterState::empty(), None)),
            Some(cell) => Ok((to_state(&cell.bytes).map_err(Trouble::Damaged)?, Some(cell.tag))),
        }
    }

    /// Waits before another attempt. Returns false if there is none.
    async fn again(&self, until: Tick, trouble: &Trouble) -> bool {
        match trouble {
            Trouble::Damaged(why) => tracing::error!(cells = ?self.cells, why, "a register is damaged"),
            Trouble::Fault(Fault::Refused(why)) => {
                tracing::warn!(cells = ?self.cells, why, "the store of the registers refuses");
            }
            Trouble::Fault(_) => {}
        }
        if !trouble.may_pass() || self.env.now() >= until {
            return false;
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        true
    }

    async fn read(&self, name: &str) -> Result<Versioned, RegisterError> {
        check_name(name)?;
        let until = self.deadline();
        loop {
            match self.look(name).await {
                Ok((state, _)) => return Ok(state.versioned()),
                Err(trouble) => {
                    if !self.again(until, &trouble).await {
                        return Err(RegisterError::NotWritten(trouble.unavailability()));
                    }
                }
            }
        }
    }

    async fn write_if(
        &self,
        name: &str,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> Result<Written, RegisterError> {
        check_name(name)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(RegisterError::TooLarge(value.len()));
        }
        let until = self.deadline();
        // Whether the answer to an attempt was lost, so that it may be done or may still be done.
        let mut unknown = false;
        loop {
            let forgets = unknown && mutant(mutants::REGISTER_FORGETS);
            let nonce = if forgets { Nonce(self.env.random().into()) } else { nonce };
            let trouble = match self.attempt(name, expected, &value, nonce).await {
                Ok(written) => return written,
                Err((trouble, lost)) => {
                    unknown |= lost;
                    trouble
                }
            };
            if !self.again(until, &trouble).await {
                let why = trouble.unavailability();
                let error = if unknown { RegisterError::Unknown } else { RegisterError::NotWritten };
                return Err(error(why));
            }
        }
    }

    /// Tries a write once. The error says whether the attempt may be done nevertheless.
    async fn attempt(
        &self,
        name: &str,
        expected: Version,
        value: &Bytes,
        nonce: Nonce,
    ) -> Result<Result<Written, RegisterError>, (Trouble, bool)> {
        let (base, tag) = self.look(name).await.map_err(|trouble| (trouble, false))?;
        let (state, written) = match base.write_if(expected, value, nonce) {
            (state, Some(written)) => (state, written),
            // As in RMWPaxos: after too many later writes, the outcome is unknown.
            (_, None) => return Ok(Err(RegisterError::Unknown(Unavailability::Busy))),
        };
        let Some(state) = state else { return Ok(Ok(written)) };
        let fault = match self.cells.replace(&to_cell_name(name), tag, to_bytes(&state)).await {
            Ok(true) => return Ok(Ok(written)),
            // Somebody else was first, or this write itself, in an earlier attempt. The next look tells.
            Ok(false) => Fault::Passing(Unavailability::Busy),
            Err(fault) => fault,
        };
        hit("registers.again");
        let lost = fault == Fault::NoAnswer;
        Err((fault.into(), lost))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RegisterError> {
        let until = self.deadline();
        loop {
            match self.cells.list().await {
                Ok(cells) => {
                    let registers = cells.into_iter().filter_map(|(cell, mark)| {
                        let name = to_register_name(&cell).filter(|name| name.starts_with(prefix))?;
                        Some(Listed { name, mark })
                    });
                    let mut listed: Vec<Listed> = registers.collect();
                    listed.sort_unstable_by(|one, other| one.name.cmp(&other.name));
                    return Ok(listed);
                }
                Err(fault) => {
                    let trouble = fault.into();
                    if !self.again(until, &trouble).await {
                        return Err(RegisterError::NotWritten(trouble.unavailability()));
                    }
                }
            }
        }
    }
}

fn check_name(name: &str) -> Result<(), RegisterError> {
    let usable = (1..=MAX_NAME_BYTES).contains(&name.len());
    if usable { Ok(()) } else { Err(RegisterError::InvalidName(name.len())) }
}

impl<C: Cells> Registers for CellRegisters<C> {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(CellRegister { registers: self.clone(), name: name.to_owned() })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move { self.0.list(&prefix).await })
    }
}

#[derive(Debug)]
struct CellRegister<C: Cells> {
    registers: CellRegisters<C>,
    name: String,
}

impl<C: Cells> Register for CellRegister<C> {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(self.registers.0.read(&self.name))
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(self.registers.0.write_if(&self.name, expected, value, nonce))
    }
}

//! One of the stores between which registers move, and what is known of whether it answers.
//!
//! While a store does not answer, an operation on it would end only with its timeout, and whoever does one after the other, such as a
//! guardian of many logs, would get to the registers elsewhere late. So after an operation without an answer, further ones fail at once.
//! One procedure tries the store until it answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env};
use bytes::Bytes;

/// How long about the procedure waits between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// The register that it reads. It need not exist.
const TRIED: &str = "store/answers";

/// What is known of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Why the last operation failed; None if it succeeded.
    trouble: Option<Unavailability>,
    /// Whether a procedure tries it until it answers.
    tried: bool,
}

/// A store. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    registers: Arc<dyn Registers>,
    /// None for the home, whose operations are what they are without moves.
    state: Option<Mutex<State>>,
}

impl Store {
    /// Returns the registers of the cluster itself.
    pub(crate) fn home(env: Env, registers: Arc<dyn Registers>) -> Self {
        Store(Arc::new(Inner { env, registers, state: None }))
    }

    /// Returns a store that others run.
    pub(crate) fn elsewhere(env: Env, registers: Arc<dyn Registers>) -> Self {
        Store(Arc::new(Inner { env, registers, state: Some(Mutex::default()) }))
    }

    pub(crate) fn registers(&self) -> &dyn Registers {
        &*self.0.registers
    }

    pub(crate) fn register(&self, name: &str) -> Arc<dyn Register> {
        let register = self.0.registers.register(name);
        match self.0.state {
            None => register,
            Some(_) => Arc::new(Watched { store: self.clone(), register }),
        }
    }

    /// Returns why the last operation on it failed; None if it succeeded.
    pub(crate) fn trouble(&self) -> Option<Unavailability> {
        lock(self.0.state.as_ref()?).trouble
    }

    /// Fails if the store does not answer, as far as is known.
    fn check(&self) -> Result<(), RegisterError> {
        let Some(state) = &self.0.state else { return Ok(()) };
        let State { trouble, tried } = *lock(state);
        match trouble {
            Some(why) if tried => Err(RegisterError::NotWritten(why)),
            _ => Ok(()),
        }
    }

    /// Notes how an operation ended.
    fn note<T>(&self, done: &Result<T, RegisterError>) {
        let Some(state) = &self.0.state else { return };
        let trouble = match done {
            Err(RegisterError::NotWritten(why) | RegisterError::Unknown(why)) => Some(*why),
            // It has answered.
            Ok(_) | Err(RegisterError::TooLarge(_) | RegisterError::InvalidName(_)) => None,
        };
        let silent = trouble == Some(Unavailability::NoQuorum);
        {
            let mut state = lock(state);
            // What ends now may have begun before the store stopped answering. Whether it answers again, the procedure finds out.
            if state.tried {
                return;
            }
            *state = State { trouble, tried: silent };
        }
        if silent {
            hit("registers.store_silent");
            self.0.env.spawn("registers.try", Box::pin(self.clone().try_until_it_answers()));
        }
    }

    async fn try_until_it_answers(self) {
        loop {
            self.0.env.sleep(self.0.env.jitter(TRY_EVERY)).await;
            let read = self.0.registers.register(TRIED).read().await;
            if read != Err(RegisterError::NotWritten(Unavailability::NoQuorum)) {
                if let Some(state) = &self.0.state {
                    *lock(state) = State::default();
                }
                self.note(&read);
                return;
            }
        }
    }
}

/// A register of a store that may not answer.
#[derive(Debug)]
struct Watched {
    store: Store,
    register: Arc<dyn Register>,
}

impl Register for Watched {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(async move {
            self.store.check()?;
            let done = self.register.read().await;
            self.store.note(&done);
            done
        })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(async move {
            self.store.check()?;
            let done = self.register.write_if(expected, value, nonce).await;
            self.store.note(&done);
            done
        })
    }
}

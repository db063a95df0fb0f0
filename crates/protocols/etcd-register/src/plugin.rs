//! The protocol as a plug-in: a place for registers.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::Registers;
use atoll_contract::place::{Place, PlaceError, Scheme};
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
use atoll_core::testing::Mutant;
use atoll_core::{Env, Format, NodeCore};

use crate::client::Client;
use crate::mutants;
use crate::register::{EtcdOptions, EtcdRegisters, check_place};

/// What its URLs look like.
const SCHEMES: &[Scheme] = &[Scheme { name: "etcd", form: "etcd://HOST:PORT,HOST:PORT/PREFIX" }];

/// Registers in etcd, with their settings. It has no roles, no messages and no Loglets.
#[derive(Clone, Debug, Default)]
pub struct EtcdPlugin {
    /// Timeouts.
    pub options: EtcdOptions,
}

/// The keys below a prefix of a cluster of etcd.
#[derive(Debug)]
struct Keys {
    client: Client,
    prefix: String,
    options: EtcdOptions,
}

impl Place for Keys {
    fn open(&self, env: &Env) -> Arc<dyn Registers> {
        Arc::new(EtcdRegisters::below(
            env.clone(),
            Arc::new(self.client.clone()),
            &self.prefix,
            &self.options,
        ))
    }
}

impl Protocol for EtcdPlugin {
    fn name(&self) -> &'static str {
        "etcd-register"
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        Vec::new()
    }

    fn roles(&self) -> &'static [RoleName] {
        &[]
    }

    fn formats(&self) -> Vec<Format> {
        Vec::new()
    }

    fn mutants(&self) -> &'static [Mutant] {
        mutants::ALL
    }

    fn schemes(&self) -> &'static [Scheme] {
        SCHEMES
    }

    fn place(&self, _scheme: &str, rest: &str) -> Result<Box<dyn Place>, PlaceError> {
        let (servers, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let refused = |error: crate::PlaceError| PlaceError::Url(error.to_string());
        check_place(servers, prefix).map_err(refused)?;
        let client = Client::new(servers, self.options.request_timeout);
        let client = client.ok_or_else(|| refused(crate::PlaceError::Servers))?;
        Ok(Box::new(Keys { client, prefix: prefix.to_owned(), options: self.options.clone() }))
    }

    fn install(&self, _core: &mut NodeCore, _host: &Host) -> Installed {
        Installed::default()
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_before_anything_is_contacted() {
        let of =
            |rest: &str| EtcdPlugin::default().place("etcd", rest).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(of("a:2379,b:2379/atoll"), Ok(()));
        for (rest, word) in [
            ("a:2379", "prefix"),
            ("a:2379/", "prefix"),
            ("a/atoll", "HOST:PORT"),
            ("u:p@a:1/atoll", "HOST:PORT"),
        ] {
            assert!(of(rest).is_err_and(|words| words.contains(word) && !words.contains("u:p")), "{rest}");
        }
    }
}

//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Registers;
use atoll_contract::place::{Place, PlaceError, Scheme};
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Encode, Env, Format, NodeCore};
use atoll_register_store::Options as RegisterOptions;

use crate::config::{Location, ObjectConfig};
use crate::mutants;
use crate::provider::KIND;
use crate::store::{Store, Threaded};
use crate::{ObjectOptions, ObjectProvider, ObjectRegisters};

/// The configuration in the chain.
const FORMATS: &[Format] = &[Format::stored::<ObjectConfig>("ObjectConfig")
    .like(|| ObjectConfig::at("s3://bucket/prefix", 1).to_bytes())];

/// ObjectLoglets, with their settings. They have no roles and no messages: every node works on the objects itself.
#[derive(Clone, Debug, Default)]
pub struct ObjectPlugin {
    /// The options of handles.
    pub options: ObjectOptions,
    /// The store of all nodes that get this value or a copy of it.
    #[cfg(feature = "testing")]
    pub memory: crate::testing::Memory,
}

/// What the URLs of places for registers look like. A directory of files is none, because it cannot replace a file on a condition.
const SCHEMES: &[Scheme] = &[
    Scheme { name: "s3", form: "s3://BUCKET/PREFIX" },
    #[cfg(feature = "testing")]
    Scheme { name: "memory", form: "memory:///PREFIX" },
];
/// How long an operation on a register tries the store. A write takes up to four requests.
const REGISTER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The objects below a prefix of a store, as a place for registers.
#[derive(Debug)]
struct Below {
    location: Location,
    plugin: ObjectPlugin,
}

impl Place for Below {
    fn open(&self, env: &Env) -> Arc<dyn Registers> {
        let ObjectOptions { request_timeout, retry, .. } = self.plugin.options;
        let options = RegisterOptions { op_timeout: REGISTER_TIMEOUT, retry };
        let store = self.plugin.store(&self.location, env);
        Arc::new(ObjectRegisters::new(env.clone(), store, &self.location.prefix, request_timeout, options))
    }
}

impl ObjectPlugin {
    #[cfg(not(feature = "testing"))]
    fn provider(&self, host: &Host) -> ObjectProvider {
        ObjectProvider::new(host.env.clone(), self.options.clone())
    }

    /// In tests, a location in memory is possible, too.
    #[cfg(feature = "testing")]
    fn provider(&self, host: &Host) -> ObjectProvider {
        ObjectProvider::with_memory(host.env.clone(), self.options.clone(), self.memory.of(&host.env))
    }

    /// Returns the store of registers at a location, as the node of `env` sees it.
    fn store(&self, location: &Location, _env: &Env) -> Arc<dyn Store> {
        #[cfg(feature = "testing")]
        if location.scheme == crate::config::Scheme::Memory {
            return self.memory.of(_env);
        }
        Arc::new(Threaded::new(location.clone(), self.options.request_timeout))
    }
}

impl Protocol for ObjectPlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        Vec::new()
    }

    fn roles(&self) -> &'static [RoleName] {
        &[]
    }

    fn formats(&self) -> Vec<Format> {
        FORMATS.to_vec()
    }

    fn mutants(&self) -> &'static [Mutant] {
        mutants::ALL
    }

    fn coverage(&self) -> &'static [Listed] {
        mutants::COVERAGE
    }

    fn duties(&self, _config: &Bytes) -> atoll_contract::Duties {
        atoll_contract::Duties::default()
    }

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => set_to(&mut self.options.step_bytes, value),
            "dedupe_spans" => set_to(&mut self.options.dedupe_spans, value),
            "window_bytes" => set_to(&mut self.options.window_bytes, value),
            "interval_ms" => set_to(&mut self.options.interval_ms, value),
            "block_objects" => set_to(&mut self.options.block_objects, value),
            #[cfg(feature = "testing")]
            fault => self.memory.faults.set_one(fault, value),
            #[cfg(not(feature = "testing"))]
            _ => false,
        }
    }

    fn schemes(&self) -> &'static [Scheme] {
        SCHEMES
    }

    fn place(&self, scheme: &str, rest: &str) -> Result<Box<dyn Place>, PlaceError> {
        let refused = |error: crate::config::BadUrl| PlaceError::Url(error.to_string());
        let location = Location::parse(&format!("{scheme}://{rest}")).map_err(refused)?;
        Ok(Box::new(Below { location, plugin: self.clone() }))
    }

    fn install(&self, _core: &mut NodeCore, host: &Host) -> Installed {
        Installed { loglets: Some(Arc::new(self.provider(host))), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_places_are_read_before_anything_is_contacted() {
        let of = |rest: &str| ObjectPlugin::default().place("s3", rest).map(|_| ());
        assert_eq!(of("bucket/atoll"), Ok(()));
        for rest in ["", "key:secret@bucket/a", "bucket/a?secret=x"] {
            let words = of(rest).map_err(|error| error.to_string());
            assert!(words.as_ref().is_err_and(|words| !words.contains("secret")), "{rest}: {words:?}");
        }
    }
}

//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::place::{Place, PlaceError, Scheme};
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_contract::{PlanError, Registers};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Encode, Env, Format, NodeCore};

use crate::layout::{BucketNode, TailNode, TrimNode};
use crate::provider::KIND;
use crate::{ZooKeeperConfig, ZooKeeperOptions, ZooKeeperProvider, ZooKeeperRegisters, mutants};

/// The configuration in the chain, and the data of znodes.
const FORMATS: &[Format] = &[
    Format::stored::<ZooKeeperConfig>("ZooKeeperConfig").like(|| {
        let (connect, root) = ("host:2181".to_owned(), "/atoll".to_owned());
        ZooKeeperConfig { connect, root, token: Some(1) }.to_bytes()
    }),
    Format::stored::<TailNode>("TailNode"),
    Format::stored::<TrimNode>("TrimNode"),
    Format::stored::<BucketNode>("BucketNode"),
];

/// What the URLs of places for registers look like.
const SCHEMES: &[Scheme] = &[Scheme { name: "zookeeper", form: "zookeeper://HOST:PORT,HOST:PORT/ROOT" }];

/// The znodes below a root of an ensemble, as a place for registers.
#[derive(Debug)]
struct Below {
    config: ZooKeeperConfig,
    options: ZooKeeperOptions,
}

impl Place for Below {
    fn open(&self, env: &Env) -> Arc<dyn Registers> {
        let ZooKeeperConfig { connect, root, .. } = &self.config;
        Arc::new(ZooKeeperRegisters::connect(env.clone(), connect, root, self.options.clone()))
    }
}

/// Loglets in ZooKeeper, with their settings. They have no roles and no messages: the ensemble does everything.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperPlugin {
    /// The options of handles.
    pub handles: ZooKeeperOptions,
    /// The ensemble of all nodes that get this value or a copy of it.
    #[cfg(feature = "testing")]
    pub memory: crate::testing::MemoryEnsemble,
}

impl ZooKeeperPlugin {
    #[cfg(not(feature = "testing"))]
    fn provider(&self, host: &Host) -> ZooKeeperProvider {
        ZooKeeperProvider::new(host.env.clone(), self.handles.clone())
    }

    /// In tests, an ensemble in memory is possible, too.
    #[cfg(feature = "testing")]
    fn provider(&self, host: &Host) -> ZooKeeperProvider {
        let memory = self.memory.session(host.env.clone(), std::time::Duration::ZERO);
        let (ensembles, timeout) = (crate::session::Ensembles::default(), self.handles.session_timeout);
        ZooKeeperProvider::over(host.env.clone(), self.handles.clone(), move |connect| match connect {
            crate::testing::MEMORY => memory.clone(),
            real => ensembles.ensemble(real, timeout),
        })
    }
}

impl Protocol for ZooKeeperPlugin {
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

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => set_to(&mut self.handles.step_bytes, value),
            "window_bytes" => set_to(&mut self.handles.window_bytes, value),
            #[cfg(feature = "testing")]
            fault => self.memory.faults.set_one(fault, value),
            #[cfg(not(feature = "testing"))]
            _ => false,
        }
    }

    fn schemes(&self) -> &'static [Scheme] {
        SCHEMES
    }

    fn place(&self, _scheme: &str, rest: &str) -> Result<Box<dyn Place>, PlaceError> {
        let (connect, root) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let config = ZooKeeperConfig::new(connect, root).map_err(|error| match error {
            PlanError::Invalid { allowed, .. } => PlaceError::Url(allowed.to_owned()),
            other => PlaceError::Url(other.to_string()),
        })?;
        Ok(Box::new(Below { config, options: self.handles.clone() }))
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
        let of = |rest: &str| ZooKeeperPlugin::default().place("zookeeper", rest).map(|_| ());
        assert_eq!(of("a:2181,b:2181/atoll"), Ok(()));
        for rest in ["a:2181", "a:2181/zookeeper", "a/atoll", "u:secret@a:1/atoll"] {
            let words = of(rest).map_err(|error| error.to_string());
            assert!(words.as_ref().is_err_and(|words| !words.contains("secret")), "{rest}: {words:?}");
        }
    }
}

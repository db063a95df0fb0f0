//! The protocol as a plug-in.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_contract::{Duties, PartLoglet};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::aggregator::Aggregator;
use crate::loglet::ScalogOptions;
use crate::orderer::{Orderer, OrdererOptions};
use crate::ordering::OrderingLogs;
use crate::provider::{KIND, KindLogs, ScalogProvider, duties, parse};
use crate::roles::{AGGREGATOR, ORDERER, SERVER};
use crate::server::{ServerOptions, StorageServer};
use crate::{message, mutants};

/// Returns what opens the ordering logs of a node.
pub type LogsOf = Arc<dyn Fn(&Host) -> Arc<dyn OrderingLogs> + Send + Sync>;

/// Scalog Loglets, with their settings.
#[derive(Clone)]
pub struct ScalogPlugin {
    /// The options of handles and of new Loglets.
    pub handles: ScalogOptions,
    /// The options of storage servers.
    pub servers: ServerOptions,
    /// The options of orderers.
    pub orderers: OrdererOptions,
    logs: LogsOf,
}

impl ScalogPlugin {
    /// Returns a plug-in whose ordering logs are opened by what `logs` returns.
    pub fn over(logs: LogsOf) -> Self {
        let (handles, servers, orderers) = Default::default();
        ScalogPlugin { handles, servers, orderers, logs }
    }
}

impl Default for ScalogPlugin {
    /// Returns a plug-in whose ordering logs are single native Loglets of the node, see [`KindLogs`].
    fn default() -> Self {
        ScalogPlugin::over(Arc::new(|host: &Host| {
            Arc::new(KindLogs { kinds: host.kinds.clone(), of: "native".to_owned() })
        }))
    }
}

impl fmt::Debug for ScalogPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalogPlugin").field("handles", &self.handles).finish_non_exhaustive()
    }
}

impl Protocol for ScalogPlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![680..=719]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[
            RoleName { id: SERVER, name: "scalog storage server" },
            RoleName { id: AGGREGATOR, name: "scalog aggregator" },
            RoleName { id: ORDERER, name: "scalog orderer" },
        ]
    }

    fn formats(&self) -> Vec<Format> {
        message::FORMATS.to_vec()
    }

    fn duties(&self, config: &Bytes) -> Duties {
        duties(config)
    }

    /// The ordering log, under the name of its kind.
    fn parts(&self, config: &Bytes) -> Vec<PartLoglet> {
        let of = |config: crate::config::ScalogConfig| PartLoglet {
            kind: config.ordering.kind,
            config: config.ordering.config,
        };
        parse(config).map_or_else(|_| Vec::new(), |config| vec![of(config)])
    }

    fn mutants(&self) -> &'static [Mutant] {
        mutants::ALL
    }

    fn coverage(&self) -> &'static [Listed] {
        mutants::COVERAGE
    }

    #[cfg(feature = "testing")]
    fn oracle(&self) -> Option<Box<dyn atoll_contract::testing::Oracle>> {
        Some(crate::testing::oracle())
    }

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "report_interval_us" => set_to(&mut self.handles.interval_us, value),
            "fan_in" => set_to(&mut self.handles.fan_in, value),
            "step_bytes" => {
                set_to(&mut self.handles.step_bytes, value) && set_to(&mut self.servers.step_bytes, value)
            }
            "shard_replicas" => set_to(&mut self.handles.replicas, value),
            "dedupe_spans" => set_to(&mut self.servers.remembered, value),
            "snapshot_entries" => set_to(&mut self.orderers.snapshot_after, value),
            "window_bytes" => set_to(&mut self.servers.window_bytes, value),
            _ => false,
        }
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let (env, logs) = (&host.env, (self.logs)(host));
        let server = StorageServer::new(env.clone(), host.storage, logs.clone(), self.servers.clone());
        core.add_role(SERVER, Box::new(server));
        core.add_role(AGGREGATOR, Box::new(Aggregator::new(env.clone())));
        let orderer = Orderer::new(env.clone(), logs.clone(), self.orderers.clone());
        core.add_role(ORDERER, Box::new(orderer));
        let provider = ScalogProvider::new(env.clone(), host.directory.clone(), logs, self.handles.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}

//! The parameters of the model, measured on this machine. What nodes cost of processor time, and how long they wait for their disks, is
//! found from real nodes: servers, a sequencer and a client, each in a process of its own, under loads of several shapes. There is one
//! server, or several hold copies of all entries; none of these logs is compared with the model. How long messages take beside that is
//! measured apart (`measure.rs`).

use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use atoll_contract::Loglet;
use serde_json::json;

use crate::corfu::clients::{Load, What};
use crate::corfu::nodes::Nodes;
use crate::corfu::units::open_chains;
use crate::corfu::{Error, print};
use crate::costs::{Costs, Observed, Waits};
use crate::measure;
use crate::model::Parameters;
use crate::real::{Run, Showed};
use crate::striping::open_stripes;
use crate::usage::Usage;

/// What clients do, how many operations are under way, bytes of an entry, and how many servers hold a copy of it: lone ones and many, short
/// and long ones. With one server alone, what turns cost could not be told from what connections cost.
const LOADS: [(What, u32, usize, u32); 30] = [
    (What::Append, 1, 4096, 1),
    (What::Append, 16, 4096, 1),
    (What::Append, 64, 4096, 1),
    (What::Append, 256, 4096, 1),
    (What::Append, 512, 4096, 1),
    (What::Append, 16, 64, 1),
    (What::Append, 64, 64, 1),
    (What::Append, 256, 64, 1),
    (What::Append, 512, 64, 1),
    (What::Append, 64, 1024, 1),
    (What::Append, 512, 1024, 1),
    (What::Append, 16, 16_384, 1),
    (What::Read, 1, 4096, 1),
    (What::Read, 16, 4096, 1),
    (What::Read, 64, 4096, 1),
    (What::Read, 256, 4096, 1),
    (What::Read, 512, 4096, 1),
    (What::Read, 512, 64, 1),
    (What::Append, 64, 4096, 2),
    (What::Append, 256, 4096, 2),
    (What::Append, 256, 64, 2),
    (What::Append, 16, 4096, 4),
    (What::Append, 64, 4096, 4),
    (What::Append, 256, 4096, 4),
    (What::Append, 256, 64, 4),
    (What::Append, 512, 4096, 4),
    (What::Read, 64, 4096, 2),
    (What::Read, 256, 4096, 2),
    (What::Read, 256, 4096, 4),
    (What::Read, 512, 4096, 4),
];
/// The load of the first seconds. From then on, the journals write into files that they have already.
const FIRST: (What, u32, usize) = (What::Append, 256, 4096);
const FIRST_FOR: Duration = Duration::from_secs(4);
/// Entries that are read.
const ENTRIES: u64 = 256;
const WARM_UP: Duration = Duration::from_millis(400);
const MEASURED: Duration = Duration::from_millis(1000);
/// A node that took less of a processor than this part of the time had little to do with the load.
const TAKES_PART: f64 = 0.05;

/// Whose nodes are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Units, a sequencer and a client.
    Corfu,
    /// Servers, of which the first one orders, too, and a client.
    Native,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Kind] = &[Kind::Corfu, Kind::Native];

    fn name(self) -> &'static str {
        match self {
            Kind::Corfu => "CORFU",
            Kind::Native => "native",
        }
    }

    async fn open(self, nodes: &Nodes, name: &str, servers: u32) -> Result<Arc<dyn Loglet>, Error> {
        match self {
            Kind::Corfu => open_chains(nodes, name, &[(1..=servers).collect()], SEQUENCER).await,
            Kind::Native => open_stripes(nodes, name, 1, servers).await,
        }
    }

    /// Returns how many servers hold so many copies, or more. A native log has an odd number of servers, and those with three are compared
    /// with the model.
    fn servers(self, copies: u32) -> u32 {
        if self == Kind::Native && copies > 1 { SERVERS } else { copies }
    }

    fn sequencer(self) -> Option<u32> {
        (self == Kind::Corfu).then_some(SEQUENCER)
    }
}

/// The system's own threads take at most one part in so many of what the nodes do.
const MOST_OF_SYSTEM: u64 = 4;
/// The most servers. They are the first nodes.
const SERVERS: u32 = 5;
/// The node with CORFU's sequencer.
const SEQUENCER: u32 = SERVERS + 1;

/// Returns the parameters that are given, as a line of an earlier run has them; measures them on this machine if none are given, with these
/// kinds of logs.
pub async fn parameters(given: Option<&str>, folder: &Path, kinds: &[Kind]) -> Result<Parameters, Error> {
    match given {
        Some(given) => Ok(measure::given(given)?),
        None => {
            let (costs, waits) = costs(folder, kinds).await?;
            Ok(measure::with_costs(&costs, &waits)?)
        }
    }
}

/// As [`parameters`], for a caller without a runtime.
pub fn parameters_now(given: Option<&str>, folder: &Path, kinds: &[Kind]) -> Result<Parameters, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(parameters(given, folder, kinds))
}

/// Appends to a log for a while, so that the journals of its servers have the files that they need.
pub async fn settle(nodes: &mut Nodes, loglet: Arc<dyn Loglet>) -> Result<(), Error> {
    let (what, depth, payload) = FIRST;
    let run = Run { servers: 0, sequencer: None, warm_up: FIRST_FOR, measured: Duration::ZERO };
    let load = Load { what, depth, payload, entries: 0 };
    run.run(nodes, loglet, load).await.map(drop)
}

/// A load of the calibration, and what it showed.
struct Shown {
    kind: Kind,
    load: Load,
    run: Run,
    showed: Showed,
}

impl Shown {
    /// Returns what each node took and did, the first one first. Only the client, which is the last one, waits for others.
    fn observed(&self) -> impl Iterator<Item = Observed> {
        let threads = self.threads() as usize;
        let processors = available_parallelism().map_or(1, |count| count.get());
        let neighbours = u32::try_from(threads.saturating_sub(processors)).unwrap_or(u32::MAX);
        let (client, servers) = (self.showed.nodes.len(), self.run.servers as usize);
        let for_disk = self.for_disk_ns() / u64::from(self.run.servers.max(1));
        let nodes = self.showed.nodes.iter().enumerate();
        nodes.map(move |(at, usage)| {
            let under_way = if at + 1 == client { self.load.depth } else { 0 };
            let processor_ns = usage.processor_ns + if at < servers { for_disk } else { 0 };
            Observed { usage: Usage { processor_ns, ..*usage }, under_way, neighbours }
        })
    }

    /// Returns how many threads took part: of servers, of their journals, of the node that orders if it stores nothing, and of the client.
    fn threads(&self) -> u32 {
        match self.load.what {
            What::Append => 2 * self.run.servers + u32::from(self.run.sequencer.is_some()) + 1,
            What::Read => self.run.servers + 1,
        }
    }

    /// Returns what the system's own threads took of the processors to write what the servers have appended. That is all that was beside
    /// the nodes, unless it is so much that other programs must have run.
    fn for_disk_ns(&self) -> u64 {
        let (others, nodes) = (self.showed.others_ns(), &self.showed.nodes);
        let known: u64 = nodes.iter().map(|node| node.processor_ns).sum();
        let is_systems = self.load.what == What::Append && others <= known / MOST_OF_SYSTEM;
        if is_systems { others } else { 0 }
    }

    /// Prints how well the costs explain what the nodes took.
    fn tell(&self, costs: &Costs) -> Result<(), Error> {
        let part = |node: Observed| {
            (costs.explain_ns(&node) / node.usage.processor_ns.max(1) as f64 * 1e3).round() / 1e3
        };
        let explained: Vec<f64> = self.observed().map(part).collect();
        let settings = json!({
            "kind": "calibration", "depth_per_client": self.load.depth, "payload_bytes": self.load.payload,
            "copies": self.run.servers,
        });
        let mut line = self.showed.latencies.line(self.kind.name(), "calibration", 1, &settings);
        line["of"] = json!(self.load.what.name());
        line["usage"] = self.showed.usage(&self.run);
        line["explained"] = json!(explained);
        print(&line)
    }
}

/// Measures the costs, and how long the disk takes.
async fn costs(folder: &Path, kinds: &[Kind]) -> Result<(Costs, Waits), Error> {
    let mut nodes = Nodes::start(SEQUENCER, 0, folder).await?;
    let mut shown = Vec::new();
    for kind in kinds.iter().copied() {
        let first = kind.open(&nodes, &format!("calibration/{}/first", kind.name()), SERVERS).await?;
        settle(&mut nodes, first).await?;
        for (what, depth, payload, copies) in LOADS {
            let servers = kind.servers(copies);
            let name = format!("calibration/{}/{}/{depth}/{payload}/{copies}", kind.name(), what.name());
            let loglet = kind.open(&nodes, &name, servers).await?;
            let run = Run { servers, sequencer: kind.sequencer(), warm_up: WARM_UP, measured: MEASURED };
            let load = Load { what, depth, payload, entries: ENTRIES };
            let showed = run.run(&mut nodes, loglet, load).await?;
            shown.push(Shown { kind, load, run, showed });
        }
    }
    nodes.stop().await;
    let least = MEASURED.mul_f64(TAKES_PART).as_nanos() as u64;
    let taking_part: Vec<Observed> =
        shown.iter().flat_map(Shown::observed).filter(|node| node.usage.processor_ns >= least).collect();
    let costs = Costs::fit(&taking_part);
    // Where servers share a disk, they also wait for each other, as the model does anyway.
    let appends = shown.iter().filter(|shown| shown.load.what == What::Append && shown.run.servers == 1);
    let servers: Vec<Usage> = appends.filter_map(|shown| shown.showed.nodes.first().copied()).collect();
    for shown in &shown {
        shown.tell(&costs)?;
    }
    Ok((costs, Waits::fit(&servers)))
}

//! The nodes of a run: processes that serve, and a node of this process, where the clients are.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::{Encode, Env, Identify, Identity, NodeId, Notify};
use atoll_corfu::{Projection, UnitId};
use atoll_node::RunningNode;
use serde_json::{Value, json};

use super::layout::Layout;
use super::process::USAGE;
use super::{Error, failed, process};
use crate::load::locked;
use crate::usage::Usage;

/// How long nodes may take to start.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to say who it is.
const IDENTIFY_WITHIN: Duration = Duration::from_secs(5);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// The most lines of the processes that are kept.
const MAX_LINES: usize = 100_000;

/// Where the data of the nodes goes.
#[derive(Clone, Debug, clap::Args)]
pub struct Folder {
    /// Where the data goes, in a folder that is removed afterwards
    #[arg(long, default_value = "target")]
    pub folder: PathBuf,
}

/// What the processes have said, and who did.
#[derive(Debug, Default)]
struct Said {
    lines: Mutex<Vec<(u32, Value)>>,
    changed: Notify,
}

impl Said {
    fn add(&self, node: u32, line: Value) {
        let mut lines = locked(&self.lines);
        if lines.len() < MAX_LINES {
            lines.push((node, line));
        }
        drop(lines);
        self.changed.notify();
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    orders: ChildStdin,
}

/// See the module documentation. Dropping it ends the processes and removes their data.
pub struct Nodes {
    layout: Layout,
    folder: PathBuf,
    processes: BTreeMap<u32, Process>,
    said: Arc<Said>,
    own: RunningNode,
}

impl Nodes {
    /// Starts nodes 1 to `servers`, the node of this process, and after it `clients` processes with further clients. All of them are up on
    /// return.
    pub async fn start(servers: u32, clients: u32, folder: &Path) -> Result<Self, Error> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let folder = folder.join(format!("atoll-corfu-{}-{run}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let layout = Layout::choose(servers, clients + 1)?;
        let number = servers + 1;
        let own = atoll_node::start(layout.config(number, &folder.join(number.to_string())))?;
        let said = Arc::new(Said::default());
        let mut nodes = Nodes { layout, folder, processes: BTreeMap::new(), said, own };
        for node in nodes.layout.all().filter(|node| *node != number) {
            nodes.spawn(node)?;
        }
        let members = nodes.own.parts().members.clone();
        let said = nodes.said.clone();
        tokio::spawn(process::tell_who_is_up(members, move |line| said.add(number, line)));
        let joined = tokio::time::timeout(START_WITHIN, nodes.own.joined()).await;
        joined.map_err(|_| failed("the node of the clients has not joined in time"))??;
        for node in nodes.layout.all().filter(|node| *node != number) {
            nodes.wait_up(node).await?;
        }
        Ok(nodes)
    }

    fn spawn(&mut self, node: u32) -> Result<(), Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["corfu", "node", "--node", &node.to_string(), "--layout", &self.layout.to_string()])
            .arg("--data")
            .arg(self.folder.join(node.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("a process has no standard input or output"));
        };
        self.processes.insert(node, Process { child, orders });
        let said = self.said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(line) = serde_json::from_str(&line) {
                    said.add(node, line);
                }
            }
        });
        Ok(())
    }

    /// Waits until the node of this process takes another one for alive.
    async fn wait_up(&self, node: u32) -> Result<(), Error> {
        let members = &self.own.parts().members;
        let up = async {
            loop {
                let seen = members.changed.count();
                if members.is_alive(NodeId(node)) {
                    return;
                }
                members.changed.after(seen).await;
            }
        };
        let late = |_| failed(format!("node {node} is not up in time"));
        tokio::time::timeout(START_WITHIN, up).await.map_err(late)
    }

    /// Returns the node of the clients.
    pub fn own(&self) -> &RunningNode {
        &self.own
    }

    /// Returns all nodes. The last one is that of this process, unless there are further clients.
    pub fn all(&self) -> std::ops::RangeInclusive<u32> {
        self.layout.all()
    }

    /// Returns the executor of the clients.
    pub fn env(&self) -> &Env {
        &self.own.parts().env
    }

    /// Returns the processes with further clients.
    pub fn clients(&self) -> Vec<u32> {
        self.layout.all().skip(self.layout.servers as usize + 1).collect()
    }

    /// Runs a procedure on the node of the clients.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        self.env().launch("figure", work).await.map_err(|_| failed("the node of the clients has stopped"))
    }

    /// Asks nodes who they are.
    pub async fn identities(&self, asked: Vec<NodeId>) -> Result<BTreeMap<NodeId, Identity>, Error> {
        let (env, wanted) = (self.env().clone(), asked.clone());
        let answers = self.run(async move {
            let until = env.now().after(IDENTIFY_WITHIN);
            loop {
                let answers = env.gather(&asked, Identify {}, until, |_| false).await;
                // One that has just started may have no connection yet.
                if answers.failed() == 0 || env.now() >= until {
                    return answers;
                }
                env.sleep(ASK_AGAIN_AFTER).await;
            }
        });
        let known: BTreeMap<NodeId, Identity> = answers.await?.into_ok().collect();
        match wanted.iter().find(|node| !known.contains_key(node)) {
            Some(node) => Err(failed(format!("node {node} does not say who it is"))),
            None => Ok(known),
        }
    }

    /// Returns the projection of a new log: its sequencer and the nodes of its chains. One position after the other is on another chain.
    pub async fn projection(&self, sequencer: u32, chains: &[Vec<u32>]) -> Result<Projection, Error> {
        let asked: Vec<NodeId> = chains.iter().flatten().chain([&sequencer]).copied().map(NodeId).collect();
        let known = self.identities(asked).await?;
        let unit = |node: &u32| -> UnitId { (NodeId(*node), known[&NodeId(*node)].storage) };
        let chains = chains.iter().map(|units| units.iter().map(unit).collect()).collect();
        let sequencer = NodeId(sequencer);
        Ok(Projection::simple(1, (sequencer, known[&sequencer].incarnation), 1, chains))
    }

    /// Stops the node of the clients in good order. The processes end when this is dropped.
    pub async fn stop(self) {
        self.own.shutdown().await;
    }

    /// Ends a process at once, as `kill -9` does.
    pub fn kill(&mut self, node: u32) -> Result<(), Error> {
        if let Some(process) = self.processes.get_mut(&node) {
            process.child.kill()?;
        }
        Ok(())
    }

    /// Starts a process that was killed again, on its data, and waits until it is up.
    pub async fn restart(&mut self, node: u32) -> Result<(), Error> {
        if let Some(mut process) = self.processes.remove(&node) {
            process.child.wait()?;
        }
        self.spawn(node)?;
        self.wait_up(node).await
    }

    /// Gives a process an order.
    pub fn order(&mut self, node: u32, order: &Value) -> Result<(), Error> {
        let Some(process) = self.processes.get_mut(&node) else {
            return Err(failed(format!("node {node} has no process")));
        };
        Ok(writeln!(process.orders, "{order}")?)
    }

    /// Returns what a node and its process have done so far.
    pub async fn usage(&mut self, node: u32) -> Result<Usage, Error> {
        if node == self.own.id().0 {
            return Ok(Usage::now(self.own.host()));
        }
        let from = self.said();
        self.order(node, &json!({ USAGE: true }))?;
        let its = |(from, line): &(u32, Value)| {
            line.get(USAGE).filter(|_| *from == node).and_then(Usage::from_json)
        };
        self.wait_for("a node tells what it did", START_WITHIN, from, |lines| lines.iter().find_map(its))
            .await
    }

    /// Returns how many lines the processes have said.
    pub fn said(&self) -> usize {
        locked(&self.said.lines).len()
    }

    /// Waits for lines that were said after the first `from` ones: until `find` finds what it wants in them.
    pub async fn wait_for<T>(
        &self,
        what: &str,
        within: Duration,
        from: usize,
        find: impl Fn(&[(u32, Value)]) -> Option<T>,
    ) -> Result<T, Error> {
        let found = async {
            loop {
                let seen = self.said.changed.count();
                let found = find(locked(&self.said.lines).get(from..).unwrap_or_default());
                if let Some(found) = found {
                    return found;
                }
                self.said.changed.after(seen).await;
            }
        };
        tokio::time::timeout(within, found).await.map_err(|_| failed(format!("{what}: not in time")))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            // One that has ended needs neither.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        // What remains is only some disk space.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns a projection as an order has it.
pub fn projection_to_json(projection: &Projection) -> Value {
    projection.to_bytes().iter().copied().collect()
}

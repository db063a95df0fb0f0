//! `atoll node`.

use atoll_client::proto::{NodeInfo, NodeReply};
use serde_json::{Value, json};

use super::{CliError, Common, Table};

/// Arguments of `atoll node`.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: NodeVerb,
}

#[derive(Debug, clap::Subcommand)]
enum NodeVerb {
    /// List the members
    List,
    /// Add a member, whose process you start before or afterwards with the same id; or change the address of a member that does not answer
    Add {
        /// Its id
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        id: u32,
        /// Its peer address, where the other nodes reach it
        #[arg(value_name = "HOST:PORT")]
        address: String,
        /// Let it join only with these roles [default: the roles in its own configuration]
        #[arg(long, value_name = "ROLE,...", value_delimiter = ',', value_parser = ["log", "sequencer", "meta"])]
        roles: Vec<String>,
    },
    /// Move all duties off a node; refused, with the reason, if the other nodes cannot take them
    Drain {
        /// Its id
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        id: u32,
    },
    /// Remove a drained node from the cluster
    Remove {
        /// Its id
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        id: u32,
    },
}

/// Runs `atoll node`.
pub async fn run(args: &NodeArgs) -> Result<(), CliError> {
    let common = &args.common;
    let client = common.client().await?;
    let (id, verb, reply) = match &args.verb {
        NodeVerb::List => {
            let nodes = client.nodes().await?;
            let value = json!({"nodes": nodes.iter().map(to_json).collect::<Vec<_>>()});
            return common.print(&value, || table(&nodes).to_string());
        }
        NodeVerb::Add { id, address, roles } => {
            (*id, "added", client.add_node(*id, address, roles.clone()).await?)
        }
        NodeVerb::Drain { id } => (*id, "drained", client.drain_node(*id).await?),
        NodeVerb::Remove { id } => (*id, "removed", client.remove_node(*id).await?),
    };
    let value = json!({"node": reply.node.as_ref().map(to_json), "changed": reply.changed});
    common.print_done(&value, || changed(id, verb, &reply))
}

fn changed(id: u32, verb: &str, reply: &NodeReply) -> String {
    match reply.changed {
        true => format!("node {id} is {verb}"),
        false => format!("node {id} is {verb}; it was before"),
    }
}

/// Returns a member as JSON.
pub fn to_json(n: &NodeInfo) -> Value {
    json!({
        "id": n.id, "state": n.state, "reason": n.reason, "roles": n.roles, "address": n.address,
        "grpc": n.grpc, "metrics": n.metrics, "incarnation": n.incarnation, "storage": n.storage,
    })
}

/// Returns the members as a text table.
pub fn table(nodes: &[NodeInfo]) -> Table {
    let mut table = Table::new(["NODE", "STATE", "ROLES", "GRPC", "PEERS", "DATA", "WHY"]);
    for n in nodes {
        table.row([
            n.id.to_string(),
            n.state.clone(),
            n.roles.join(","),
            n.grpc.clone(),
            n.address.clone(),
            n.storage.chars().take(8).collect(),
            n.reason.clone(),
        ]);
    }
    table
}

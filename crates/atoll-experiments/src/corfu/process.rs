//! The process of one node. It tells on its standard output that it is ready, and whom it takes for dead or alive; it carries out the
//! orders of its standard input, and ends with that.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use atoll_node::members::Members;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::layout::Layout;
use super::{Error, failed, print, tokens};
use crate::apps::now_ns;
use crate::usage::Usage;

/// The order to tell what the node took, and the name of the answer.
pub const USAGE: &str = "usage";
/// Orders that wait.
const ORDERS: usize = 16;

/// Options of a node.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Its number
    #[arg(long)]
    node: u32,
    /// Its data directory
    #[arg(long)]
    data: PathBuf,
    /// All nodes
    #[arg(long)]
    layout: Layout,
}

/// Tells each change of who seems to be up, as a line for `tell`, until the node ends.
pub async fn tell_who_is_up(members: Members, tell: impl Fn(Value)) {
    let mut known = BTreeMap::new();
    loop {
        let seen = members.changed.count();
        for node in members.peers() {
            let up = members.is_alive(node);
            if known.insert(node, up).unwrap_or(false) != up {
                tell(json!({"noticed": node.0, "up": up, "at_ns": now_ns()}));
            }
        }
        members.changed.after(seen).await;
    }
}

/// Runs a node until its standard input ends.
pub async fn run(args: &Args) -> Result<bool, Error> {
    let node = atoll_node::start(args.layout.config(args.node, &args.data))?;
    node.joined().await?;
    print(&json!({"ready": args.node}))?;
    let members = node.parts().members.clone();
    // If nobody reads, the parent has gone, and the input ends, too.
    tokio::spawn(tell_who_is_up(members, |line| drop(print(&line))));
    let (said, mut orders) = mpsc::channel(ORDERS);
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if said.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(order) = orders.recv().await {
        let order: Value = serde_json::from_str(&order).map_err(|_| failed("an order is no JSON"))?;
        match order.get(USAGE) {
            Some(_) => print(&json!({ USAGE: Usage::now(node.host()).to_json() }))?,
            None => print(&tokens::take(&node.parts().env, &order).await?)?,
        }
    }
    node.shutdown().await;
    Ok(true)
}

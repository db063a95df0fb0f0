//! `atoll kv`.

use std::io::{self, Write};

use atoll_client::keyspace_proto::{self as proto, condition::What};
use atoll_client::{Error, Failure, Keyspace, Reason};
use bytes::Bytes;
use serde_json::{Value, json};

use super::log::confirm;
use super::{CliError, Common, Table, hex};

/// Arguments of `atoll kv`.
#[derive(Debug, clap::Args)]
pub struct KvArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: KvVerb,
}

#[derive(Debug, clap::Subcommand)]
enum KvVerb {
    /// Create a keyspace
    Create(CreateArgs),
    /// List the keyspaces
    List,
    /// Show a keyspace: its engine, and which nodes have how many of its shards
    Describe {
        /// Its name
        keyspace: String,
    },
    /// Move the replicas of a keyspace to other nodes, while its keys are read and written
    Move(super::kv_move::MoveArgs),
    /// Delete a keyspace and all its keys permanently
    Delete {
        /// Its name
        keyspace: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Print the value of a key; with several keys, one line for each
    Get {
        /// The keyspace
        keyspace: String,
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Write a value, if the condition holds, and print its version
    Put {
        /// The keyspace
        keyspace: String,
        /// The key
        key: String,
        /// The value
        value: String,
        #[command(flatten)]
        condition: ConditionArgs,
    },
    /// Delete a key, if the condition holds
    Del {
        /// The keyspace
        keyspace: String,
        /// The key
        key: String,
        #[command(flatten)]
        condition: ConditionArgs,
    },
    /// Read and change several keys at one moment if all conditions hold, or change none of them
    Txn(super::kv_txn::TxnArgs),
    /// Print a key whenever it changes; some changes may be left out, but never the last one
    Watch {
        /// The keyspace
        keyspace: String,
        /// The key
        key: String,
        /// Begin with the first state that has another version [default: with the present state]
        #[arg(long, value_name = "VERSION")]
        after: Option<u64>,
        /// End after so many states [default: never]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Acquire, renew and release leases with fencing numbers
    Lease {
        #[command(subcommand)]
        verb: super::kv_lease::LeaseVerb,
    },
    /// Print keys in order. This is no snapshot: keys may change while they are listed
    Keys {
        /// The keyspace
        keyspace: String,
        /// Only keys that start with this
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
        /// Only keys after this one
        #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
        after: String,
        /// At most so many keys [default: all]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DurabilityArg {
    /// Acknowledged writes are synced to the disks of a majority of the replicas
    Disk,
    /// Acknowledged writes are in the memory of a majority of the replicas
    Memory,
}

/// Arguments of `atoll kv create`.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name
    keyspace: String,
    /// The engine [default: the first one of the node; an unknown one is refused with the list of the known ones]
    #[arg(long, value_name = "ENGINE", default_value = "", hide_default_value = true)]
    engine: String,
    /// How many replicas each shard has, 1 to 9 [default: 3, or as many as there are nodes]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=9))]
    replicas: Option<u32>,
    /// How many shards there are, 1 to 1024 [default: 64]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: Option<u32>,
    /// How many buckets each shard has, 1 to 65536 [default: 64]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    buckets: Option<u32>,
    /// What survives what
    #[arg(long, value_enum, default_value = "disk")]
    durability: DurabilityArg,
    /// Only these nodes hold replicas [default: all]
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    nodes: Vec<u32>,
    /// An option of the engine, such as zones=1:a,2:a,3:b; may be repeated
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = option)]
    options: Vec<(String, String)>,
}

pub(super) fn option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The condition of a write.
#[derive(Debug, Default, clap::Args)]
#[group(multiple = false)]
struct ConditionArgs {
    /// Only if the key does not exist
    #[arg(long)]
    if_absent: bool,
    /// Only if the key exists
    #[arg(long)]
    if_present: bool,
    /// Only if the key has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Only if the key has this value
    #[arg(long, value_name = "VALUE")]
    if_value: Option<String>,
}

impl ConditionArgs {
    fn what(&self) -> Option<What> {
        let value = |value: &String| What::Value(Bytes::from(value.clone()));
        let absent = self.if_absent.then_some(What::Absent(true));
        let present = self.if_present.then_some(What::Present(true));
        absent.or(present).or(self.if_version.map(What::Version)).or(self.if_value.as_ref().map(value))
    }
}

/// Runs `atoll kv`.
pub async fn run(args: &KvArgs) -> Result<(), CliError> {
    let common = &args.common;
    let keyspaces = common.client().await?.keyspaces();
    match &args.verb {
        KvVerb::Create(args) => {
            let made = keyspaces.create(request(args)).await?;
            common.print_done(&keyspace_json(&made), || format!("created keyspace {}", made.name))
        }
        KvVerb::List => {
            let names = keyspaces.list().await?;
            common.print(&json!({"keyspaces": names}), || match names.is_empty() {
                true => "no keyspaces yet; `atoll kv create` makes one".to_owned(),
                false => names.join("\n"),
            })
        }
        KvVerb::Describe { keyspace } => {
            let shown = keyspaces.describe(keyspace).await?;
            common.print(&keyspace_json(&shown), || keyspace_text(&shown))
        }
        KvVerb::Move(args) => super::kv_move::run(common, &keyspaces, args).await,
        KvVerb::Delete { keyspace, yes } => {
            if !yes {
                confirm("keyspace", keyspace, "its keys")?;
            }
            keyspaces.delete(keyspace).await?;
            let value = json!({"keyspace": keyspace, "deleted": true});
            common.print_done(&value, || format!("deleted keyspace {keyspace}"))
        }
        KvVerb::Get { keyspace, keys } => get(common, &keyspaces.open(keyspace), keys).await,
        KvVerb::Put { keyspace, key, value, condition } => {
            let (opened, value) = (keyspaces.open(keyspace), Bytes::from(value.clone()));
            let reply = opened.put(Bytes::from(key.clone()), value, condition.what()).await?;
            let version = done(key, &reply, "the condition does not hold")?;
            common.print_done(&json!({"key": key, "version": version}), || version.to_string())
        }
        KvVerb::Del { keyspace, key, condition } => {
            let opened = keyspaces.open(keyspace);
            let reply = opened.delete(Bytes::from(key.clone()), condition.what()).await?;
            let version = done(key, &reply, "there is nothing to delete, or the condition does not hold")?;
            let value = json!({"key": key, "deleted": true, "version": version});
            common.print_done(&value, || format!("deleted {key}"))
        }
        KvVerb::Txn(args) => super::kv_txn::run(common, &keyspaces.open(args.keyspace()), args).await,
        KvVerb::Watch { keyspace, key, after, count } => {
            watch(common, &keyspaces.open(keyspace), key, *after, count.unwrap_or(u64::MAX)).await
        }
        KvVerb::Lease { verb } => super::kv_lease::run(common, &keyspaces, verb).await,
        KvVerb::Keys { keyspace, prefix, after, limit } => {
            let from = (Bytes::from(prefix.clone()), Bytes::from(after.clone()));
            list(common, &keyspaces.open(keyspace), from, limit.unwrap_or(0)).await
        }
    }
}

fn request(args: &CreateArgs) -> proto::CreateKeyspaceRequest {
    let durability = match args.durability {
        DurabilityArg::Disk => proto::Durability::Disk,
        DurabilityArg::Memory => proto::Durability::Memory,
    };
    proto::CreateKeyspaceRequest {
        name: args.keyspace.clone(),
        engine: args.engine.clone(),
        durability: durability.into(),
        replicas: args.replicas,
        shards: args.shards,
        buckets: args.buckets,
        nodes: args.nodes.clone(),
        options: args.options.iter().cloned().collect(),
    }
}

/// Returns the version that a write has made, or an error if it has changed nothing.
fn done(key: &str, reply: &proto::WriteReply, why: &str) -> Result<u64, CliError> {
    if reply.done {
        return Ok(reply.version);
    }
    let now = match &reply.current {
        None => format!("{key} does not exist"),
        Some(held) => format!("{key} has version {}", held.version),
    };
    let failure = Failure::new(Reason::Conflict, format!("{why}: {now}"), "read the key, and try again");
    Err(Error::DidNotHappen(failure).into())
}

async fn get(common: &Common, keyspace: &Keyspace, keys: &[String]) -> Result<(), CliError> {
    let found = keyspace.get(keys.iter().map(|key| Bytes::from(key.clone())).collect()).await?;
    let mut out = io::stdout().lock();
    let mut missing = Vec::new();
    for (key, held) in keys.iter().zip(&found) {
        match held {
            _ if common.json => writeln!(out, "{}", held_json(key, held.as_ref()))?,
            Some(held) => {
                out.write_all(&held.value)?;
                writeln!(out)?;
            }
            None => missing.push(key.as_str()),
        }
    }
    out.flush()?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(CliError::Check(format!("no such key: {}", missing.join(", "))))
}

pub(super) fn held_json(key: &str, held: Option<&proto::Held>) -> Value {
    let Some(held) = held else { return json!({"key": key, "value": null, "version": null}) };
    let mut value = json!({"key": key, "version": held.version});
    match std::str::from_utf8(&held.value) {
        Ok(text) => value["value"] = text.into(),
        Err(_) => value["value_hex"] = hex(&held.value).into(),
    }
    value
}

/// Prints the states of a key.
async fn watch(
    common: &Common,
    keyspace: &Keyspace,
    key: &str,
    seen: Option<u64>,
    count: u64,
) -> Result<(), CliError> {
    let mut states = keyspace.watch(Bytes::from(key.to_owned()), seen).await?;
    for _ in 0..count {
        let held = states.next().await?;
        common.print(&held_json(key, held.as_ref()), || match &held {
            None => "- does not exist".to_owned(),
            Some(held) => format!("{} {}", held.version, held.value.escape_ascii()),
        })?;
    }
    Ok(())
}

async fn list(
    common: &Common,
    keyspace: &Keyspace,
    (prefix, after): (Bytes, Bytes),
    limit: u64,
) -> Result<(), CliError> {
    let mut keys = keyspace.keys(prefix, after, limit).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    while let Some(page) = keys.next().await? {
        for entry in page {
            if common.json {
                let mut value = json!({"version": entry.version});
                match std::str::from_utf8(&entry.key) {
                    Ok(text) => value["key"] = text.into(),
                    Err(_) => value["key_hex"] = hex(&entry.key).into(),
                }
                writeln!(out, "{value}")?;
            } else {
                writeln!(out, "{}", entry.key.escape_ascii())?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// Returns for each node, in the order of their ids, how many replicas it has, and how many shards prefer it as their leader.
fn by_node(shown: &proto::Keyspace) -> Vec<(u32, usize, usize)> {
    let mut nodes: Vec<u32> = shown.shards.iter().flat_map(|shard| shard.nodes.iter().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let count = |holds: &dyn Fn(&proto::Shard) -> bool| shown.shards.iter().filter(|s| holds(s)).count();
    let row = |node: u32| {
        let replicas = count(&|shard| shard.nodes.contains(&node));
        (node, replicas, count(&|shard| shard.nodes.first() == Some(&node)))
    };
    nodes.into_iter().map(row).collect()
}

fn durability(shown: &proto::Keyspace) -> &'static str {
    match shown.durability() {
        proto::Durability::Disk => "disk",
        proto::Durability::Memory => "memory",
        proto::Durability::Unspecified => "unknown",
    }
}

pub(super) fn keyspace_json(shown: &proto::Keyspace) -> Value {
    let node = |(node, replicas, first): (u32, usize, usize)| json!({"node": node, "replicas": replicas, "first": first});
    json!({
        "keyspace": shown.name,
        "engine": shown.engine,
        "durability": durability(shown),
        "id": shown.id,
        "epoch": shown.epoch,
        "shards": shown.shards.len(),
        "buckets": shown.buckets,
        "left_to_move": shown.left_to_move,
        "replicas": shown.shards.first().map_or(0, |shard| shard.nodes.len()),
        "nodes": by_node(shown).into_iter().map(node).collect::<Vec<_>>(),
    })
}

fn keyspace_text(shown: &proto::Keyspace) -> String {
    let mut nodes = Table::new(["NODE", "REPLICAS", "FIRST"]);
    for (node, replicas, first) in by_node(shown) {
        nodes.row([node.to_string(), replicas.to_string(), first.to_string()]);
    }
    let moves = match shown.left_to_move {
        0 => String::new(),
        left => format!(", {left} of them still to move"),
    };
    format!(
        "keyspace {}, engine {}, {}: {} shards with {} buckets each{moves}\n{nodes}",
        shown.name,
        shown.engine,
        durability(shown),
        shown.shards.len(),
        shown.buckets
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_is_shown_node_by_node() {
        let shard = |nodes: [u32; 3]| proto::Shard { nodes: nodes.to_vec() };
        let shown = proto::Keyspace {
            name: "locks".into(),
            engine: "e".into(),
            durability: proto::Durability::Memory.into(),
            id: "7".into(),
            epoch: 1,
            buckets: 16,
            shards: vec![shard([1, 2, 3]), shard([2, 3, 4])],
            left_to_move: 0,
        };
        assert_eq!(by_node(&shown), [(1, 1, 1), (2, 2, 1), (3, 2, 0), (4, 1, 0)]);
        let json = keyspace_json(&shown);
        assert_eq!((&json["durability"], &json["replicas"]), (&json!("memory"), &json!(3)));
        assert!(
            keyspace_text(&shown).starts_with("keyspace locks, engine e, memory: 2 shards with 16 buckets")
        );
    }

    #[test]
    fn a_write_that_changed_nothing_is_an_error_that_says_what_is_there() {
        let held = proto::Held { version: 7, value: Bytes::new() };
        let not = proto::WriteReply { done: false, current: Some(held), ..Default::default() };
        let error = done("k", &not, "the condition does not hold").expect_err("not done").to_text();
        assert!(error.contains("did not happen: the condition does not hold: k has version 7"), "{error}");
        let yes = proto::WriteReply { done: true, version: 8, ..Default::default() };
        assert!(matches!(done("k", &yes, ""), Ok(8)));
    }

    #[test]
    fn conditions_are_read() {
        assert_eq!(ConditionArgs::default().what(), None);
        let version = ConditionArgs { if_version: Some(3), ..ConditionArgs::default() };
        assert_eq!(version.what(), Some(What::Version(3)));
    }
}

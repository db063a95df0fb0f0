//! `atoll kv lease`.

use std::time::{Duration, Instant};

use atoll_client::{HeldLease, Keyspaces};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{CliError, Common};

#[derive(Debug, clap::Args)]
pub struct KeyArgs {
    /// The keyspace
    keyspace: String,
    /// The key of the lease. It must not be used for anything else
    key: String,
}

/// For how long a lease is granted.
#[derive(Debug, clap::Args)]
pub struct ForArgs {
    /// For how long the lease is granted, in milliseconds, 100 to 3600000
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    for_ms: u64,
}

#[derive(Debug, clap::Subcommand)]
pub enum LeaseVerb {
    /// Take the lease on a key, and print its fencing number. What it protects must refuse lower numbers than it has seen
    Acquire {
        #[command(flatten)]
        key: KeyArgs,
        /// Who wants it; others are shown this
        #[arg(long, value_name = "NAME")]
        owner: String,
        #[command(flatten)]
        terms: ForArgs,
        /// How long to wait for it if somebody else holds it, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 0)]
        wait_ms: u64,
    },
    /// Renew a lease
    Renew {
        #[command(flatten)]
        key: KeyArgs,
        /// Its fencing number
        #[arg(long, value_name = "NUMBER")]
        fencing: u64,
        #[command(flatten)]
        terms: ForArgs,
    },
    /// Give up a lease
    Release {
        #[command(flatten)]
        key: KeyArgs,
        /// Its fencing number
        #[arg(long, value_name = "NUMBER")]
        fencing: u64,
    },
    /// Print who holds the lease on a key
    Holder {
        #[command(flatten)]
        key: KeyArgs,
    },
}

impl KeyArgs {
    fn bytes(&self) -> Bytes {
        Bytes::from(self.key.clone())
    }
}

/// Runs `atoll kv lease`.
pub async fn run(common: &Common, keyspaces: &Keyspaces, verb: &LeaseVerb) -> Result<(), CliError> {
    match verb {
        LeaseVerb::Acquire { key, owner, terms, wait_ms } => {
            let (owner, wait) = (Bytes::from(owner.clone()), Duration::from_millis(*wait_ms));
            let keys = keyspaces.open(&key.keyspace);
            let held = keys.acquire_lease(key.bytes(), owner, terms.for_ms, wait).await?;
            common.print_done(&lease_json(&key.key, &held), || held.fencing.to_string())
        }
        LeaseVerb::Renew { key, fencing, terms } => {
            let held = keyspaces.open(&key.keyspace).renew_lease(key.bytes(), *fencing, terms.for_ms).await?;
            common.print_done(&lease_json(&key.key, &held), || held.fencing.to_string())
        }
        LeaseVerb::Release { key, fencing } => {
            keyspaces.open(&key.keyspace).release_lease(key.bytes(), *fencing).await?;
            let value = json!({"key": key.key, "fencing": fencing, "released": true});
            common.print_done(&value, || format!("released {}", key.key))
        }
        LeaseVerb::Holder { key } => {
            let holder = keyspaces.open(&key.keyspace).lease_holder(key.bytes()).await?;
            let lease = holder.lease.unwrap_or_default();
            let value = json!({
                "key": key.key,
                "owner": String::from_utf8_lossy(&holder.owner),
                "fencing": lease.fencing,
                "for_ms": lease.for_ms,
                "expired": holder.expired,
            });
            common.print(&value, || {
                let expired = if holder.expired { ", expired" } else { "" };
                format!("{} {} for {} ms{expired}", holder.owner.escape_ascii(), lease.fencing, lease.for_ms)
            })
        }
    }
}

/// `usable_ms` is how long the lease may be used from now on, unless it is renewed.
fn lease_json(key: &str, held: &HeldLease) -> Value {
    let usable = held.usable_until.saturating_duration_since(Instant::now()).as_millis() as u64;
    json!({"key": key, "fencing": held.fencing, "for_ms": held.for_ms, "usable_ms": usable})
}

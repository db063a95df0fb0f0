//! Registers in etcd: the MetaStore of Delos elsewhere (OSDI'20 §3.4; virtuallog §8), for those who run an etcd cluster already.
//!
//! | contract (`atoll-register-store`, `cells.rs`) | here |
//! | --- | --- |
//! | a cell | the key `PREFIX/registers/NAME`; `register.rs` |
//! | its tag | the revision of its last change (`mod_revision`) |
//! | read | a linearizable `Range` of one key |
//! | replace, if it has not changed | a `Txn` that compares the revision, which is 0 if there is no such key, and then puts |
//! | list | linearizable `Range`s of keys without values, page by page; marks are revisions |
//! | what the protocol needs of etcd; the client of a real one | `etcd.rs`, `client.rs` |
//! | a place for registers of a cluster, from its URL | `plugin.rs` |
//! | (the messages of etcd's API) | `proto/etcdserverpb/kv.proto`, `generated/` |
//!
//! # Why it is correct
//!
//! etcd gives a key another revision with each change, and never the same again. So a transaction that names the revision of what was read
//! happens only if nobody has changed the key since, also if it arrives late: of two attempts at the same write, one happens at most.
//! etcd answers a linearizable read only after a majority has confirmed its leader, and a transaction after a majority has synced it.
//!
//! | case | what happens |
//! | --- | --- |
//! | two nodes write at the same version | the second transaction finds another revision and does nothing; its node reads what the first one wrote |
//! | two nodes create a register | both name revision 0; as above |
//! | the answer to a write is lost | the next read shows the nonce of the write if it has happened. If not, it is tried again; the late one and the new one name the same revision |
//! | a server is killed, or cut off from the majority | requests to it end without an answer, and the client continues at the next server |
//! | etcd has no majority | reads and writes fail until it has one |
//! | etcd's database has reached its quota | writes fail as on a full disk, and reads go on |
//! | servers of two clusters were given as one | the client refuses the answers of the cluster that was not the first to answer |
//!
//! # Limits
//!
//! - No TLS to etcd, and no users of etcd: protect it by its network. An etcd that asks for a user refuses, and its words are logged.
//! - etcd begins with old revisions after it was restored from a snapshot, unless `--bump-revision` says otherwise. Registers that go back
//!   in time lose chains: restore Atoll together with them.
//! - A value is at most [`MAX_VALUE_BYTES`](atoll_contract::register::MAX_VALUE_BYTES) long, which is less than what etcd takes in one
//!   request (1.5 MiB).

mod client;
pub mod etcd;
pub mod mutants;
mod plugin;
mod register;
#[cfg(feature = "testing")]
pub mod testing;

/// A part of etcd's API, as generated from `proto/etcdserverpb/`. The comments there are the reference. `atoll-protogen` writes the code.
#[allow(missing_docs)]
pub mod proto {
    include!("generated/etcdserverpb.rs");
}

pub use plugin::EtcdPlugin;
pub use register::{EtcdOptions, EtcdRegisters, PlaceError};

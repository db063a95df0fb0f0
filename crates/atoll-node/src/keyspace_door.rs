//! The keyspaces of this node, as the door of keyspaces serves them; translates errors for clients.

use atoll_client::{Outcome, Reason};
use atoll_contract::keyspace::{
    Attempt, CatalogError, Happened, Held, Holder, KeyVersion, KeyspaceError, KeyspacePlanError,
    KeyspaceSpec, Layout, Lease, LeaseError, ListFrom, Page, Unavailability,
};
use atoll_contract::{ClientId, OpId, RegisterError};
use atoll_door::backend::{KeyspaceBackend, Pending, Refusal};
use atoll_door::keyspaces::{Described, Found, KeyWrite, KeysTransacted, KeysTxn, LeaseRequest, Wrote};
use bytes::Bytes;

use crate::keyspaces::{Keyspaces, KeyspacesError};

/// See the module documentation.
pub(crate) struct KeyspaceDoor(pub(crate) Keyspaces);

impl KeyspaceDoor {
    /// Runs a procedure on the node's executor, and waits for its outcome.
    fn run<T: Send + 'static, F>(&self, name: &'static str, f: impl FnOnce(Keyspaces) -> F) -> Pending<T>
    where
        F: Future<Output = Result<T, KeyspacesError>> + Send + 'static,
    {
        let ticket = self.0.env().launch(name, f(self.0.clone()));
        Box::pin(async move {
            match ticket.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) => Err(refusal(&error)),
                Err(gone) => Err(Refusal::unknown(Reason::Abandoned, gone.to_string(), "")),
            }
        })
    }
}

fn described(all: &Keyspaces, layout: Layout) -> Described {
    let left_to_move = all.left_to_move(&layout);
    Described { layout, left_to_move }
}

/// Returns a name that nobody else has: what has it cannot be repeated.
fn drawn(all: &Keyspaces) -> OpId {
    OpId { client: ClientId(all.env().random().max(1)), seq: 1 }
}

impl KeyspaceBackend for KeyspaceDoor {
    fn create(&self, name: String, spec: KeyspaceSpec) -> Pending<Layout> {
        self.run("keyspace.create", |all| async move { all.create(&name, spec).await })
    }

    fn list(&self) -> Pending<Vec<String>> {
        self.run("keyspace.names", |all| async move { all.names().await })
    }

    fn describe(&self, name: String) -> Pending<Described> {
        self.run("keyspace.layout", |all| async move { Ok(described(&all, all.layout(&name).await?)) })
    }

    fn relocate(&self, name: String, spec: KeyspaceSpec) -> Pending<Described> {
        self.run("keyspace.move", |all| async move { Ok(described(&all, all.relocate(&name, &spec).await?)) })
    }

    fn delete(&self, name: String) -> Pending<()> {
        self.run("keyspace.delete", |all| async move { all.delete(&name).await })
    }

    fn get(&self, name: String, keys: Vec<Bytes>) -> Pending<Vec<Found>> {
        self.run("keyspace.get", |all| async move {
            let found = all.get(&name, keys).await?;
            Ok(found.into_iter().map(|(held, floor)| Found { held, floor }).collect())
        })
    }

    fn write(&self, name: String, write: KeyWrite) -> Pending<Wrote> {
        self.run("keyspace.write", |all| async move {
            let named = write.name.unwrap_or_else(|| (drawn(&all), Attempt::First));
            let (changed, floor) = all.write(&name, named, write.key, write.guard, write.change).await?;
            Ok(Wrote { changed, floor })
        })
    }

    fn transact(&self, name: String, txn: KeysTxn) -> Pending<KeysTransacted> {
        self.run("keyspace.transact", |all| async move {
            let named = txn.name.unwrap_or_else(|| (drawn(&all), false));
            let (outcome, floors) = all.transact(&name, named, txn.parts).await?;
            Ok(KeysTransacted { outcome, floors })
        })
    }

    fn wait_change(&self, name: String, key: Bytes, seen: KeyVersion) -> Pending<Option<Held>> {
        self.run("keyspace.watch", move |all| async move { all.wait_change(&name, key, seen).await })
    }

    fn lease(&self, name: String, key: Bytes, request: LeaseRequest) -> Pending<Lease> {
        self.run("keyspace.lease", |all| async move {
            match request {
                LeaseRequest::Acquire { op, owner, for_ms, wait } => {
                    all.acquire(&name, op, key, (owner, for_ms), wait).await
                }
                LeaseRequest::Renew { op, fencing, for_ms } => {
                    all.renew(&name, op, key, fencing, for_ms).await
                }
            }
        })
    }

    fn release(&self, name: String, key: Bytes, fencing: u64, repeat: bool) -> Pending<()> {
        self.run("keyspace.release", move |all| async move { all.release(&name, key, fencing, repeat).await })
    }

    fn holder(&self, name: String, key: Bytes) -> Pending<Holder> {
        self.run("keyspace.holder", |all| async move { all.holder(&name, key).await })
    }

    fn page(&self, name: String, from: ListFrom) -> Pending<Page> {
        self.run("keyspace.page", |all| async move { all.page(&name, from).await })
    }
}

fn refusal(error: &KeyspacesError) -> Refusal {
    let words = error.to_string();
    match error {
        KeyspacesError::Catalog(error) => catalog_refusal(error),
        KeyspacesError::Keys(error) => keys_refusal(error),
        KeyspacesError::Lease(error) => lease_refusal(error, words),
        KeyspacesError::TooMany(_) => {
            Refusal::no(Reason::Refused, words, "delete some with `atoll kv delete`")
        }
        KeyspacesError::TooManyNames(_) => {
            Refusal::no(Reason::Refused, words, "use a name that was used before")
        }
        KeyspacesError::Level { .. } => {
            Refusal::no(Reason::Refused, words, "`atoll cluster upgrade` raises it, once all members can")
        }
    }
}

fn catalog_refusal(error: &CatalogError) -> Refusal {
    let words = error.to_string();
    match error {
        CatalogError::Plan(KeyspacePlanError::TooFew { .. }) => {
            Refusal::no(Reason::Refused, words, "start more nodes, or use fewer replicas")
        }
        CatalogError::Plan(_) | CatalogError::InvalidName(_) => Refusal::no(Reason::Invalid, words, ""),
        CatalogError::NotThere(_) => Refusal::no(
            Reason::NoSuchKeyspace,
            words,
            "`atoll kv list` shows the keyspaces; `atoll kv create` makes one",
        ),
        CatalogError::Exists(_) => {
            Refusal::no(Reason::Refused, words, "use it, use another name, or delete it first")
        }
        CatalogError::Deleting(_) => Refusal::no(Reason::NoSuchKeyspace, words, "wait until it is deleted"),
        CatalogError::TooManyShards(_) => Refusal::no(Reason::TooLarge, words, ""),
        CatalogError::Unreadable { .. } => {
            Refusal::no(Reason::Refused, words, "was it written by a newer version of this program?")
        }
        CatalogError::Register(error) => {
            let next = "try again when a majority of the nodes that hold registers is up";
            match error {
                RegisterError::Unknown(_) => Refusal::unknown(Reason::Unavailable, words, next),
                RegisterError::NotWritten(_) => Refusal::no(Reason::Unavailable, words, next),
                RegisterError::TooLarge(_) | RegisterError::InvalidName(_) => {
                    Refusal::no(Reason::TooLarge, words, "")
                }
            }
        }
        // The layout says already that the keyspace is being deleted.
        CatalogError::Replicas(_) => Refusal::unknown(
            Reason::Unavailable,
            words,
            "it answers nothing any more; the nodes complete the deletion when a majority of its replicas is up",
        ),
    }
}

fn lease_refusal(error: &LeaseError, words: String) -> Refusal {
    match error {
        LeaseError::Keys(error) => keys_refusal(error),
        LeaseError::Taken(_) => Refusal::no(
            Reason::Conflict,
            words,
            "wait for it; it expires for those who watch it once its holder no longer renews it",
        ),
        LeaseError::NobodyHolds => Refusal::no(Reason::LeaseNotHeld, words, "acquire it"),
        LeaseError::NotHolder { .. } => {
            Refusal::no(Reason::LeaseNotHeld, words, "stop what the lease protects, and acquire it again")
        }
        LeaseError::NoLease => Refusal::no(Reason::Refused, words, "use another key, or delete this one"),
        LeaseError::InvalidOwner(_) | LeaseError::InvalidTime(_) => Refusal::no(Reason::Invalid, words, ""),
    }
}

fn keys_refusal(error: &KeyspaceError) -> Refusal {
    let (reason, next) = match error {
        KeyspaceError::NotDone(why) | KeyspaceError::Unknown { why, .. } => why_not(*why),
        KeyspaceError::Forgotten => (Reason::Forgotten, "read the key to find out"),
        KeyspaceError::AnswerLost => (Reason::Abandoned, "read the key"),
        KeyspaceError::ConditionFailed => {
            (Reason::Conflict, "read the key, and try again with another condition")
        }
        KeyspaceError::InvalidKey { .. } | KeyspaceError::KeyTwice { .. } | KeyspaceError::NoKeys => {
            (Reason::Invalid, "")
        }
        KeyspaceError::ValueTooLong { .. }
        | KeyspaceError::TooManyKeys { .. }
        | KeyspaceError::TooManyBytes { .. } => (Reason::TooLarge, ""),
        KeyspaceError::Full { .. } => (Reason::Refused, "a keyspace with more buckets holds more"),
        KeyspaceError::Unsupported { .. } => (Reason::Invalid, "use an engine that has it"),
    };
    let happened = match error.happened() {
        Happened::Yes => Outcome::Yes,
        Happened::No => Outcome::No,
        Happened::Unknown => Outcome::Unknown,
    };
    Refusal { happened, failure: atoll_client::Failure::new(reason, error.to_string(), next) }
}

fn why_not(why: Unavailability) -> (Reason, &'static str) {
    match why {
        Unavailability::Busy => (Reason::Busy, "try again"),
        Unavailability::NoQuorum => (
            Reason::Unavailable,
            "`atoll status` shows which nodes are up; the keyspace continues once enough are",
        ),
        Unavailability::LostMajority => (
            Reason::KeyspaceLost,
            "delete it with `atoll kv delete`, create it again, and fill it from a source outside of the cluster",
        ),
        Unavailability::DiskFull => {
            (Reason::DiskFull, "free disk space; then the keyspace continues by itself")
        }
        Unavailability::StorageFailed => {
            (Reason::StorageFailed, "see the log of the node; it serves nothing until it is restarted")
        }
        Unavailability::Gone => (Reason::NoSuchKeyspace, "`atoll kv list` shows the keyspaces"),
        Unavailability::Moving => {
            (Reason::Unavailable, "try again; `atoll kv list` shows how many shards are still to move")
        }
        Unavailability::Stopping => (Reason::Stopping, "use another node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::keyspace::Floor;

    #[test]
    fn refusals_say_whether_it_happened() {
        let unknown = KeyspaceError::Unknown { why: Unavailability::NoQuorum, floor: Floor(3) };
        assert_eq!(keys_refusal(&unknown).happened, Outcome::Unknown);
        assert_eq!(keys_refusal(&KeyspaceError::AnswerLost).happened, Outcome::Yes);
        let lost = keys_refusal(&KeyspaceError::NotDone(Unavailability::LostMajority));
        assert_eq!((lost.happened, lost.failure.reason), (Outcome::No, Reason::KeyspaceLost));
        let deleting = CatalogError::Replicas(KeyspaceError::NotDone(Unavailability::NoQuorum));
        assert_eq!(catalog_refusal(&deleting).happened, Outcome::Unknown);
        assert_eq!(
            catalog_refusal(&CatalogError::NotThere("a".into())).failure.reason,
            Reason::NoSuchKeyspace
        );
    }
}

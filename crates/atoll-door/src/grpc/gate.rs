//! Decides which calls are admitted: the one place where all services ask who may do what (decision 0028).
//!
//! The gate knows who the client is before the request is read. What needs a right on the cluster is decided at once. What needs a right on
//! something that the request names is decided when the service has read the name, by the [`Caller`] that comes with the request. A node
//! decides from a value, without a read of its store.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use atoll_auth::{Asking, Kind, Method, Needs, Policy, Resource, Right};
use atoll_client::Reason;
use atoll_contract::LogPos;
use atoll_core::sync::lock;
use hyper::header::{AUTHORIZATION, HeaderMap};
use serde_json::json;

use crate::audit::Audit;
use crate::backend::{DATABASE_LOG, Refusal};

/// How many rights of a call are remembered, to be checked again when grants change, and for the audit log. A call that needs more asks
/// again for each of its operations.
const MAX_HELD: usize = 16;
/// The longest detail of an operation in the audit log, in characters.
const MAX_DETAIL: usize = 256;

/// What the operator wants of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorisation {
    /// Whether calls need grants. None: if the listener has TLS, or can be reached from other machines. A listener that the operator has
    /// opened to other machines without TLS needs none, unless this says so.
    pub required: Option<bool>,
    /// The names of certificates whose clients may do everything, on this node.
    pub operators: BTreeSet<String>,
    /// Whether clients with TLS may come without a certificate. They then need a token.
    pub certificates_optional: bool,
}

/// What is granted, as this node knows it.
#[derive(Debug, Default)]
struct Known {
    below: LogPos,
    policy: Option<Arc<Policy>>,
}

/// The gate of a listener.
#[derive(Debug)]
pub struct Gate {
    required: bool,
    operators: BTreeSet<String>,
    audit: Audit,
    known: RwLock<Known>,
    /// Rises whenever something else is known.
    generation: AtomicU64,
}

impl Gate {
    /// Returns a gate that admits everybody, and records nothing.
    pub fn open() -> Arc<Self> {
        Self::new(false, BTreeSet::new(), Audit::default())
    }

    /// Creates a gate. If calls need grants, it admits only operators until [`Gate::publish`] says what is granted.
    pub fn new(required: bool, operators: BTreeSet<String>, audit: Audit) -> Arc<Self> {
        let (known, generation) = (RwLock::default(), AtomicU64::new(1));
        Arc::new(Gate { required, operators, audit, known, generation })
    }

    /// Returns whether calls need grants.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Returns the names of certificates whose clients may do everything.
    pub fn operators(&self) -> &BTreeSet<String> {
        &self.operators
    }

    /// Says what is granted, in the state below a position. An older one changes nothing.
    pub fn publish(&self, below: LogPos, policy: Policy) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.policy.is_none() || below >= known.below {
            let policy = Some(Arc::new(policy));
            if known.policy != policy {
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
            *known = Known { below, policy };
        }
    }

    /// Says that this node does not know what is granted: its replica is wrong, or cannot be read.
    pub fn forget(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.policy.take().is_some() {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns what is granted, if this node knows it.
    ///
    /// # Errors
    /// It does not know.
    pub fn policy(&self) -> Result<Arc<Policy>, Refusal> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = || {
            let words = "this node does not know who may do what: it keeps no replica of the database, or has not opened it yet";
            Refusal::no(Reason::Unavailable, words, "ask another node")
        };
        known.policy.clone().ok_or_else(unknown)
    }

    /// Admits a call of a method, or refuses it.
    pub(super) fn admit(
        self: &Arc<Self>,
        method: &'static Method,
        headers: &HeaderMap,
        certificate: Option<&str>,
        address: IpAddr,
    ) -> Result<Caller, Refusal> {
        let asking = Asking { certificate: certificate.map(str::to_owned), token: None };
        let generation = self.generation.load(Ordering::Acquire);
        let held = Mutex::new(Held { generation, ..Held::default() });
        let mut call = Call { gate: self.clone(), method, asking, trusted: !self.required, address, held };
        if call.trusted {
            return Ok(Caller(Arc::new(call)));
        }
        call.trusted = certificate.is_some_and(|name| self.operators.contains(name));
        if let Some(token) = bearer(headers) {
            match self.policy() {
                Ok(policy) => match policy.token(&atoll_auth::hash_of(token)) {
                    Some(name) => call.asking.token = Some(name.to_owned()),
                    None => return Err(call.unauthenticated("there is no such token")),
                },
                Err(_) if call.trusted => {}
                Err(refusal) => return Err(refusal),
            }
        }
        if !call.asking.is_known() {
            return Err(call.unauthenticated("the client has shown neither a certificate nor a token"));
        }
        if !call.trusted {
            call.first_check()?;
        }
        Ok(Caller(Arc::new(call)))
    }
}

/// Returns the token in the metadata of a call.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().unwrap_or_default();
    // Something else is a token that does not exist.
    Some(value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")).unwrap_or_default())
}

/// What a call may use, as it was decided.
#[derive(Debug, Default)]
struct Held {
    generation: u64,
    rights: Vec<(Right, Option<(Kind, String)>)>,
    detail: String,
}

#[derive(Debug)]
struct Call {
    gate: Arc<Gate>,
    method: &'static Method,
    asking: Asking,
    /// Whether it may do everything.
    trusted: bool,
    address: IpAddr,
    held: Mutex<Held>,
}

/// Who makes a call. It comes with the request, and services ask it before they do anything. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Call>);

/// Returns who makes a call.
///
/// # Errors
/// The request did not come through the listener.
pub fn caller_of<T>(request: &tonic::Request<T>) -> Result<Caller, tonic::Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| tonic::Status::internal("a request of nobody"))
}

/// Returns what a name stands for: the database's log belongs to the cluster.
fn resource(kind: Kind, name: &str) -> Resource<'_> {
    match (kind, name) {
        (Kind::Log, DATABASE_LOG) => Resource::Cluster,
        _ => Resource::Named(kind, name),
    }
}

impl Caller {
    /// Refuses the call unless its client may do it with what has this name.
    ///
    /// # Errors
    /// The client lacks the right, or this node does not know.
    pub fn on(&self, name: &str) -> Result<(), Refusal> {
        match self.0.method.needs {
            Needs::Records if name == DATABASE_LOG => self.0.decide(Right::Operate, &Resource::Cluster),
            needs => self.on_with(needs.right().unwrap_or(Right::Operate), name),
        }
    }

    /// Refuses an operation of the call unless its client has this right on what has this name.
    ///
    /// # Errors
    /// As for [`Caller::on`].
    pub fn on_with(&self, right: Right, name: &str) -> Result<(), Refusal> {
        match self.0.method.needs.kind() {
            Some(kind) => self.0.decide(right, &resource(kind, name)),
            // The table of methods says that this one names nothing. A defect must not open a door.
            None => self.0.decide(Right::Operate, &Resource::Cluster),
        }
    }

    /// Refuses the call unless its client has this right on the cluster.
    ///
    /// # Errors
    /// As for [`Caller::on`].
    pub fn on_cluster(&self, right: Right) -> Result<(), Refusal> {
        self.0.decide(right, &Resource::Cluster)
    }

    /// Returns which of these names the client may read, of the kind that the method lists.
    ///
    /// # Errors
    /// This node does not know.
    pub fn visible(&self, names: Vec<String>) -> Result<Vec<String>, Refusal> {
        if self.0.trusted {
            return Ok(names);
        }
        let Needs::Listed(kind) = self.0.method.needs else { return Ok(Vec::new()) };
        let policy = self.0.gate.policy()?;
        let may = |name: &String| policy.may(&self.0.asking, Right::Read, &resource(kind, name));
        Ok(names.into_iter().filter(may).collect())
    }

    /// Returns who asks.
    pub fn asking(&self) -> &Asking {
        &self.0.asking
    }

    /// Adds what an operation is about to its line in the audit log. It must not contain a secret.
    pub fn detail(&self, words: impl std::fmt::Display) {
        lock(&self.0.held).detail = words.to_string().chars().take(MAX_DETAIL).collect();
    }

    /// Ends the call with an error if the client has lost a right that the call was admitted with.
    pub(super) fn still(&self) -> Result<(), Refusal> {
        let generation = self.0.gate.generation.load(Ordering::Acquire);
        if self.0.trusted {
            return Ok(());
        }
        let rights = {
            let held = lock(&self.0.held);
            if held.generation == generation {
                return Ok(());
            }
            held.rights.clone()
        };
        for (right, on) in rights {
            let what = on.as_ref().map_or(Resource::Cluster, |(kind, name)| Resource::Named(*kind, name));
            self.0.decide(right, &what)?;
        }
        lock(&self.0.held).generation = generation;
        Ok(())
    }

    /// Records how the call has ended, if it is an operation.
    pub(super) fn ended(&self, outcome: &str) {
        if !self.0.method.is_operation() {
            return;
        }
        let (on, detail) = {
            let held = lock(&self.0.held);
            let on = held.rights.first().and_then(|(_, on)| on.clone());
            (on, held.detail.clone())
        };
        let on =
            on.as_ref().map_or(Resource::Cluster, |(kind, name)| Resource::Named(*kind, name)).to_string();
        self.0.gate.audit.operation(json!({
            "event": "operation", "method": self.0.method.path, "who": self.0.who(),
            "address": self.0.address.to_string(), "on": on, "detail": detail, "outcome": outcome,
        }));
    }

    /// Whether the audit log records the call.
    pub(super) fn is_operation(&self) -> bool {
        self.0.method.is_operation()
    }
}

impl Call {
    fn who(&self) -> String {
        self.asking.who().map_or_else(|| "anonymous".to_owned(), |who| who.to_string())
    }

    /// Decides what can be decided before the request is read: who has no such right on anything need not send it.
    fn first_check(&self) -> Result<(), Refusal> {
        match (self.method.needs, self.method.needs.kind(), self.method.needs.right()) {
            (Needs::Cluster(right), ..) => self.decide(right, &Resource::Cluster),
            (_, Some(kind), Some(right)) => {
                let policy = self.gate.policy()?;
                let of_database = kind == Kind::Log && policy.may(&self.asking, right, &Resource::Cluster);
                match of_database || policy.may_some(&self.asking, right, kind) {
                    true => Ok(()),
                    false => Err(self.not_allowed(right, &format!("{}:NAME", kind.word()))),
                }
            }
            _ => Ok(()),
        }
    }

    fn decide(&self, right: Right, what: &Resource<'_>) -> Result<(), Refusal> {
        // Nobody asks later what such a call has used, and one call may have many operations.
        if self.trusted && !self.method.is_operation() {
            return Ok(());
        }
        if !self.trusted && !self.gate.policy()?.may(&self.asking, right, what) {
            return Err(self.not_allowed(right, &what.to_string()));
        }
        let mut held = lock(&self.held);
        let on = match what {
            Resource::Cluster => None,
            Resource::Named(kind, name) => Some((*kind, (*name).to_owned())),
        };
        if held.rights.len() < MAX_HELD && !held.rights.contains(&(right, on.clone())) {
            held.rights.push((right, on));
        }
        Ok(())
    }

    fn refused(&self, why: &str) {
        self.gate.audit.failure(json!({
            "event": "refused", "method": self.method.path, "who": self.who(), "address": self.address.to_string(),
            "why": why,
        }));
    }

    fn not_allowed(&self, right: Right, on: &str) -> Refusal {
        let who = self.who();
        let words = format!("{who} lacks the right to {right} {on}");
        self.refused(&words);
        Refusal::no(
            Reason::NotAllowed,
            words,
            format!("an operator grants it: atoll auth grant {who} {right} {on}"),
        )
    }

    fn unauthenticated(&self, words: &str) -> Refusal {
        self.refused(words);
        let next = "show a certificate (--tls-cert and --tls-key) or a token (--token-file or ATOLL_TOKEN)";
        Refusal::no(Reason::Unauthenticated, words, next)
    }
}

#[cfg(test)]
#[path = "gate_test.rs"]
mod tests;

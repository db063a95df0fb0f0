//! The services of the gRPC listener, while doors add theirs.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};

use super::gate::Gate;
use super::limits::Limits;
use crate::backend::Backend;

/// The longest request that a service should accept if its requests contain only names and options.
pub const MAX_SMALL_REQUEST_BYTES: usize = 64 * 1024;

/// What all services of the listener share. Clones are cheap.
#[derive(Clone)]
pub struct Shared {
    /// The node.
    pub backend: Arc<dyn Backend>,
    /// What the clients of the listener may use.
    pub limits: Arc<Limits>,
    /// Decides which calls are admitted.
    pub gate: Arc<Gate>,
    /// Becomes true when the listener stops.
    pub stopping: watch::Receiver<bool>,
}

/// The services of a gRPC listener. Doors add theirs before it serves.
pub struct Services {
    shared: Shared,
    routes: RoutesBuilder,
    stop_now: watch::Sender<bool>,
}

impl Services {
    /// Creates it without any service.
    pub fn new(backend: Arc<dyn Backend>, limits: Limits, gate: Arc<Gate>) -> Self {
        let (stop_now, stopping) = watch::channel(false);
        let shared = Shared { backend, limits: Arc::new(limits), gate, stopping };
        Services { shared, routes: RoutesBuilder::default(), stop_now }
    }

    /// Returns what a service needs.
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Adds a service.
    pub fn add<S>(&mut self, service: S)
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.routes.add_service(service);
    }

    /// Returns the routes to all services, what the services share, and the sender that tells them to stop.
    pub(super) fn into_parts(self) -> (Routes, Shared, watch::Sender<bool>) {
        (self.routes.routes().prepare(), self.shared, self.stop_now)
    }
}

//! The client of a cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::auth::Auth;
use crate::connections::{Channel, Connections, Repeat};
use crate::corfu::Corfu;
use crate::error::{Error, Failure};
use crate::keyspaces::Keyspaces;
use crate::lane::Lane;
use crate::log::Log;
use crate::options::Options;
use crate::proto::backup_service_client::BackupServiceClient;
use crate::proto::chain_service_client::ChainServiceClient;
use crate::proto::cluster_service_client::ClusterServiceClient;
use crate::proto::database_service_client::DatabaseServiceClient;
use crate::proto::log_service_client::LogServiceClient;
use crate::proto::policy_service_client::PolicyServiceClient;
use crate::proto::{self, Chain, LevelsReply, LogletSpec, NodeInfo, NodeReply, Reason, StatusReply};
use crate::scalog::Scalog;
use crate::tables::Tables;
use crate::{is_log_name, log_name_hint};

/// A reconfiguration may have to wait for the time-out of a dead server.
const RECONFIGURE_TIMEOUT: Duration = Duration::from_secs(60);
/// Rebuilding a segment or draining a node copies data.
const COPY_TIMEOUT: Duration = Duration::from_secs(3600);

/// A client of a cluster. Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    connections: Arc<Connections>,
    /// The lanes in use, one per log.
    lanes: Arc<Mutex<BTreeMap<String, Weak<Lane>>>>,
}

impl Client {
    /// Returns a client of the nodes at `addresses`, which are `HOST:PORT`, separated by commas. It connects at the first call.
    /// Fails only if the addresses are malformed.
    pub fn connect(addresses: &str) -> Result<Self, Error> {
        Self::with_options(addresses, Options::default())
    }

    /// Like [`Client::connect`], with settings.
    pub fn with_options(addresses: &str, options: Options) -> Result<Self, Error> {
        Ok(Client {
            connections: Arc::new(Connections::new(addresses, options)?),
            lanes: Arc::new(Mutex::new(BTreeMap::new())),
        })
    }

    /// Returns the addresses as they were given, without repetitions.
    pub fn addresses(&self) -> Vec<String> {
        self.connections.texts().map(str::to_owned).collect()
    }

    /// Returns a handle to the log with this name. Contacts no node; the first append creates the log. Must be called within a
    /// tokio runtime. All handles with one name share one stream of appends.
    pub fn log(&self, name: &str) -> Result<Log, Error> {
        if !is_log_name(name) {
            return Err(Error::invalid(log_name_hint(name), ""));
        }
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(name).and_then(Weak::upgrade) {
            return Ok(Log::new(name, self.connections.clone(), lane));
        }
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let lane = Arc::new(Lane::start(name, self.connections.clone()));
        lanes.insert(name.to_owned(), Arc::downgrade(&lane));
        Ok(Log::new(name, self.connections.clone(), lane))
    }

    /// Creates a log with a first segment of this kind. Returns false if the log existed already. Idempotent.
    pub async fn create_log(&self, name: &str, spec: LogletSpec) -> Result<bool, Error> {
        let request = proto::CreateLogRequest { log: name.to_owned(), loglet: Some(spec) };
        let call = self.connections.call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
            let request = request.clone();
            async move { LogServiceClient::new(channel).create_log(request).await }
        });
        Ok(call.await?.created)
    }

    /// Deletes a log and its records permanently. Returns false if it was deleted already. After this returns `Ok`, the deletion is
    /// durable, and no append to the log is acknowledged until it is created again.
    ///
    /// # Errors
    /// After [`Error::Unknown`] the log may be deleted, or may still be deleted. [`Client::chain`] shows whether it was. Another client may
    /// have created it again by then, and another call would delete the new log, so this call is not repeated after an unknown outcome.
    pub async fn delete_log(&self, name: &str) -> Result<bool, Error> {
        let request = proto::DeleteLogRequest { log: name.to_owned() };
        // A second attempt finds a log by its name alone. It would delete the log that somebody has created since the first attempt.
        let call = self.connections.call(Repeat::Once, RECONFIGURE_TIMEOUT, |channel| {
            let request = request.clone();
            async move { LogServiceClient::new(channel).delete_log(request).await }
        });
        Ok(call.await?.deleted)
    }

    /// Returns the names of all logs, in order.
    pub async fn list_logs(&self) -> Result<Vec<String>, Error> {
        let mut all: Vec<String> = Vec::new();
        loop {
            let after = all.last().cloned().unwrap_or_default();
            let page = self.list_logs_after(&after).await?;
            all.extend(page.logs);
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// Returns the names that follow this one, in order, as many as fit into one reply: 1,000 at most.
    pub async fn list_logs_after(&self, after: &str) -> Result<proto::ListLogsReply, Error> {
        let request = proto::ListLogsRequest { after: after.to_owned(), limit: 0 };
        self.short(|channel| {
            let request = request.clone();
            async move { LogServiceClient::new(channel).list_logs(request).await }
        })
        .await
    }

    /// Returns the chain of a log, with its newest segments.
    pub async fn chain(&self, log: &str) -> Result<Chain, Error> {
        self.chain_from(log, None).await
    }

    /// Returns the chain of a log, with segments from a position on, as many as are stored together. `next` in the reply is the
    /// position where the others begin.
    pub async fn chain_from(&self, log: &str, from: Option<u64>) -> Result<Chain, Error> {
        let request = proto::ShowChainRequest { log: log.to_owned(), from };
        self.short(|channel| {
            let request = request.clone();
            async move { ChainServiceClient::new(channel).show(request).await }
        })
        .await
    }

    /// Extends a log: seals the active segment and starts another one. After [`Error::Unknown`] it may have happened, or may still
    /// happen; [`Client::chain`] shows whether it did.
    pub async fn extend(&self, log: &str, spec: LogletSpec) -> Result<Chain, Error> {
        let request = proto::ExtendRequest { log: log.to_owned(), loglet: Some(spec) };
        self.connections
            .call(Repeat::Once, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { ChainServiceClient::new(channel).extend(request).await }
            })
            .await
    }

    /// Truncates a log: removes completely trimmed segments from the front of its chain. Idempotent.
    pub async fn truncate(&self, log: &str) -> Result<Chain, Error> {
        let request = proto::TruncateRequest { log: log.to_owned() };
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { ChainServiceClient::new(channel).truncate(request).await }
            })
            .await
    }

    /// Rebuilds the sealed segment of a Loglet (32 hexadecimal digits) on other servers. After [`Error::Unknown`],
    /// [`Client::chain`] shows whether it happened.
    pub async fn modify(&self, log: &str, loglet: &str, spec: LogletSpec) -> Result<Chain, Error> {
        let request =
            proto::ModifyRequest { log: log.to_owned(), loglet: loglet.to_owned(), spec: Some(spec) };
        self.connections
            .call(Repeat::Once, COPY_TIMEOUT, |channel| {
                let request = request.clone();
                async move { ChainServiceClient::new(channel).modify(request).await }
            })
            .await
    }

    /// Moves the chain of a log to the registers with this name, or to `home`, the registers of the cluster. Does nothing if it is there.
    pub async fn move_chain(&self, log: &str, to: &str) -> Result<Chain, Error> {
        let request = proto::MoveChainRequest { log: log.to_owned(), to: to.to_owned() };
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { ChainServiceClient::new(channel).move_chain(request).await }
            })
            .await
    }

    /// Excises or replaces one entry of the database's log. After [`Error::Unknown`], [`Client::chain`] shows whether it happened, and
    /// whether the position is held.
    pub async fn operate(&self, request: proto::OperateRequest) -> Result<proto::SurgeryRecord, Error> {
        let call = self.connections.call(Repeat::Once, RECONFIGURE_TIMEOUT, |channel| {
            let request = request.clone();
            async move { ChainServiceClient::new(channel).operate(request).await }
        });
        Ok(call.await?.record.unwrap_or_default())
    }

    /// Returns a handle to the grants and tokens of the cluster. Contacts no node.
    pub fn auth(&self) -> Auth {
        Auth::new(self.connections.clone())
    }

    /// Returns a handle to the tables of the cluster. Contacts no node. Create one handle and clone it: for the cluster each new
    /// handle is another client, and it remembers only a limited number of clients.
    pub fn tables(&self) -> Tables {
        Tables::new(self.connections.clone())
    }

    /// Returns a handle to single positions of the log with this name. Contacts no node.
    pub fn corfu(&self, log: &str) -> Result<Corfu, Error> {
        if !is_log_name(log) {
            return Err(Error::invalid(log_name_hint(log), ""));
        }
        Ok(Corfu::new(log, self.connections.clone()))
    }

    /// Returns a handle to the shards of the log with this name. Contacts no node.
    pub fn scalog(&self, log: &str) -> Result<Scalog, Error> {
        if !is_log_name(log) {
            return Err(Error::invalid(log_name_hint(log), ""));
        }
        Ok(Scalog::new(log, self.connections.clone()))
    }

    /// Returns a handle to the keyspaces of the cluster. Contacts no node.
    pub fn keyspaces(&self) -> Keyspaces {
        Keyspaces::new(self.connections.clone())
    }

    /// Returns health, tails and lag, as the answering node sees them.
    pub async fn status(&self) -> Result<StatusReply, Error> {
        self.short(|channel| async move {
            ClusterServiceClient::new(channel).status(proto::StatusRequest {}).await
        })
        .await
    }

    /// Returns the status of the database replica at the answering node; see [`Client::at_node`].
    pub async fn database_status(&self) -> Result<proto::DatabaseStatusReply, Error> {
        self.short(|channel| async move {
            DatabaseServiceClient::new(channel).status(proto::DatabaseStatusRequest {}).await
        })
        .await
    }

    /// Requests a scrub of the store at the answering node. Idempotent.
    pub async fn scrub_database(&self) -> Result<(), Error> {
        let reply = self.short(|channel| async move {
            DatabaseServiceClient::new(channel).scrub(proto::ScrubRequest {}).await
        });
        reply.await.map(drop)
    }

    /// Begins a backup of the database, or changes it. Idempotent.
    pub async fn start_backup(
        &self,
        request: proto::StartBackupRequest,
    ) -> Result<proto::BackupStatusReply, Error> {
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { BackupServiceClient::new(channel).start(request).await }
            })
            .await
    }

    /// Ends the backup of the database. Idempotent.
    pub async fn stop_backup(&self) -> Result<proto::BackupStatusReply, Error> {
        self.short(|channel| async move {
            BackupServiceClient::new(channel).stop(proto::StopBackupRequest {}).await
        })
        .await
    }

    /// Returns how far the backup of the database is, as the answering node sees it.
    pub async fn backup_status(&self) -> Result<proto::BackupStatusReply, Error> {
        self.short(|channel| async move {
            BackupServiceClient::new(channel).status(proto::BackupStatusRequest {}).await
        })
        .await
    }

    /// Returns what can be restored from the backup of the database.
    pub async fn list_backup(&self) -> Result<proto::ListBackupReply, Error> {
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| async move {
                BackupServiceClient::new(channel).list(proto::ListBackupRequest {}).await
            })
            .await
    }

    /// Declares the policy of a log, in place of an earlier one. Idempotent.
    pub async fn set_policy(&self, log: &str, policy: proto::LogPolicy) -> Result<proto::PolicyReply, Error> {
        let request = proto::SetPolicyRequest { log: log.to_owned(), policy: Some(policy) };
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { PolicyServiceClient::new(channel).set(request).await }
            })
            .await
    }

    /// Ends the policy of a log. Idempotent.
    pub async fn clear_policy(&self, log: &str) -> Result<proto::PolicyReply, Error> {
        let request = proto::ClearPolicyRequest { log: log.to_owned() };
        self.short(|channel| {
            let request = request.clone();
            async move { PolicyServiceClient::new(channel).clear(request).await }
        })
        .await
    }

    /// Returns the policy of a log, and what nodes did because of it.
    pub async fn policy(&self, log: &str) -> Result<proto::PolicyReply, Error> {
        let request = proto::ShowPolicyRequest { log: log.to_owned() };
        self.short(|channel| {
            let request = request.clone();
            async move { PolicyServiceClient::new(channel).show(request).await }
        })
        .await
    }

    /// Returns what a policy would do now; without one, what the declared one would. Nothing is done.
    pub async fn try_policy(
        &self,
        log: &str,
        policy: Option<proto::LogPolicy>,
    ) -> Result<proto::DryRunReply, Error> {
        let request = proto::DryRunRequest { log: log.to_owned(), policy };
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { PolicyServiceClient::new(channel).dry_run(request).await }
            })
            .await
    }

    /// Returns the members of the cluster.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        let reply = self.short(|channel| async move {
            ClusterServiceClient::new(channel).node_list(proto::NodeListRequest {}).await
        });
        Ok(reply.await?.nodes)
    }

    /// Adds a member, or changes its address or roles. An empty list means all roles. Idempotent.
    pub async fn add_node(&self, id: u32, address: &str, roles: Vec<String>) -> Result<NodeReply, Error> {
        let request = proto::NodeAddRequest { id, address: address.to_owned(), roles };
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| {
                let request = request.clone();
                async move { ClusterServiceClient::new(channel).node_add(request).await }
            })
            .await
    }

    /// Drains a node: moves all its duties to other nodes. Idempotent.
    pub async fn drain_node(&self, id: u32) -> Result<NodeReply, Error> {
        self.connections
            .call(Repeat::Idempotent, COPY_TIMEOUT, |channel| async move {
                ClusterServiceClient::new(channel).node_drain(proto::NodeDrainRequest { id }).await
            })
            .await
    }

    /// Removes a drained node from the members. Idempotent.
    pub async fn remove_node(&self, id: u32) -> Result<NodeReply, Error> {
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| async move {
                ClusterServiceClient::new(channel).node_remove(proto::NodeRemoveRequest { id }).await
            })
            .await
    }

    /// Returns the feature level of the cluster, and the levels that the programs of its members can read.
    pub async fn levels(&self) -> Result<LevelsReply, Error> {
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| async move {
                ClusterServiceClient::new(channel).levels(proto::LevelsRequest {}).await
            })
            .await
    }

    /// Raises the feature level to `to`, or to the highest level that all members can read. Idempotent.
    pub async fn upgrade(&self, to: Option<u32>) -> Result<LevelsReply, Error> {
        self.connections
            .call(Repeat::Idempotent, RECONFIGURE_TIMEOUT, |channel| async move {
                ClusterServiceClient::new(channel).upgrade(proto::UpgradeRequest { to }).await
            })
            .await
    }

    /// Returns a client that connects only to one node, whose address is taken from the list of members.
    pub async fn at_node(&self, id: u32) -> Result<Client, Error> {
        let nodes = self.nodes().await?;
        let known = || nodes.iter().map(|n| n.id.to_string()).collect::<Vec<_>>().join(", ");
        let node = nodes
            .iter()
            .find(|n| n.id == id)
            .ok_or_else(|| Error::invalid(format!("no node {id}"), format!("members are {}", known())))?;
        if node.grpc.is_empty() {
            return Err(Error::DidNotHappen(Failure::new(
                Reason::Unavailable,
                format!("the address of node {id} for clients is not known"),
                "is it up? name it with --connect",
            )));
        }
        Client::with_options(&node.grpc, self.connections.options.clone())
    }

    async fn short<T, F, R>(&self, f: F) -> Result<T, Error>
    where
        F: Fn(Channel) -> R,
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.connections.call(Repeat::Idempotent, self.connections.options.attempt_timeout, f).await
    }
}

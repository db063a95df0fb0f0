//! Opens the listeners of doors. Without TLS, a listener stays on loopback unless the operator allows more.

use atoll_net::{ListenRefused, check_listener};
use tokio::net::TcpListener;

/// Why a listener was not opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be used.
    #[error("the {door} door at {address}: {error}; is another process listening there?")]
    Address {
        /// The name of the door, for example "gRPC" or "metrics".
        door: &'static str,
        /// The address.
        address: String,
        /// Why it cannot be used.
        error: std::io::Error,
    },
    /// Other machines could reach the door without TLS, which the operator has not allowed.
    #[error("the {door} door: {refused}")]
    Exposed {
        /// The name of the door, for example "gRPC" or "metrics".
        door: &'static str,
        /// Why the listener was refused.
        refused: ListenRefused,
    },
}

/// Who can connect to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Anybody who reaches it.
    Anybody,
    /// Only clients with a certificate, over TLS.
    Certified,
}

/// Opens listeners by the rules of the node.
#[derive(Clone, Copy, Debug)]
pub struct Listeners {
    /// Whether other machines may reach a listener without TLS.
    pub plaintext_beyond_loopback: bool,
}

impl Listeners {
    /// Opens a listener at `address`, which is host:port.
    ///
    /// # Errors
    /// The address cannot be used, or would expose the door.
    pub async fn open(
        &self,
        door: &'static str,
        address: &str,
        clients: Clients,
    ) -> Result<TcpListener, ListenError> {
        let failed = |error| ListenError::Address { door, address: address.to_owned(), error };
        let resolved: Vec<_> = tokio::net::lookup_host(address).await.map_err(failed)?.collect();
        for at in &resolved {
            check_listener(*at, clients == Clients::Certified, self.plaintext_beyond_loopback)
                .map_err(|refused| ListenError::Exposed { door, refused })?;
        }
        TcpListener::bind(resolved.as_slice()).await.map_err(failed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_refused_by_the_name_of_its_door() {
        let listeners = Listeners { plaintext_beyond_loopback: false };
        let open = async |address: &str, clients| listeners.open("test", address, clients).await;
        let first = open("127.0.0.1:0", Clients::Anybody).await.unwrap();
        let address = first.local_addr().unwrap().to_string();
        let words = open(&address, Clients::Anybody).await.unwrap_err().to_string();
        assert!(words.starts_with(&format!("the test door at {address}: ")), "{words}");
        let words = open("0.0.0.0:0", Clients::Anybody).await.unwrap_err().to_string();
        assert!(words.starts_with("the test door: "), "{words}");
        open("0.0.0.0:0", Clients::Certified).await.unwrap();
    }
}

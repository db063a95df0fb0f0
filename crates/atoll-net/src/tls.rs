//! Mutual TLS from PEM files. Both sides show a certificate of the cluster's own authority, which carries the id of its node as the DNS
//! name `node-ID`. Without that name, the holder of any certificate of the authority, for example a client, could connect as any node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::NodeId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Where the PEM files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that peers' certificates must come from.
    pub ca: PathBuf,
    /// This node's certificate, then intermediates.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The name that peers' certificates must carry; None takes the host from each peer's address.
    pub server_name: Option<String>,
}

/// TLS could not be set up. Nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read, or is not PEM of the right kind.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was wrong.
        error: rustls::pki_types::pem::Error,
    },
    /// A file with no certificate in it.
    #[error("{}: no certificate in it", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// An authority's certificate that cannot be used.
    #[error("{}: {error}", path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// What was wrong.
        error: rustls::Error,
    },
    /// Certificate and key do not match, or the key is of an unknown kind.
    #[error("{} with {}: {error}", cert.display(), key.display())]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What was wrong.
        error: rustls::Error,
    },
    /// The verifier of client certificates could not be made.
    #[error("{}: {error}", path.display())]
    Verifier {
        /// The authorities' file.
        path: PathBuf,
        /// What was wrong.
        error: rustls::server::VerifierBuilderError,
    },
    /// The configured certificate was not issued for this node.
    #[error("{}: it does not carry the name {name:?}, by which other nodes know whose it is; issue one with this DNS name", cert.display())]
    NotThisNode {
        /// The certificate.
        cert: PathBuf,
        /// What it lacks.
        name: String,
    },
    /// The name to check against is not a valid name.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

/// Both directions, ready for use.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |error| TlsError::File { path: path.into(), error };
    let list =
        CertificateDer::pem_file_iter(path).map_err(file)?.collect::<Result<Vec<_>, _>>().map_err(file)?;
    if list.is_empty() {
        return Err(TlsError::Empty { path: path.into() });
    }
    Ok(list)
}

impl Tls {
    /// Reads the files of a node; every error names the file.
    pub fn load(files: &TlsFiles, node: NodeId) -> Result<Tls, TlsError> {
        let TlsFiles { ca, cert, key, server_name } = files;
        let mut roots = RootCertStore::empty();
        for authority in certificates(ca)? {
            roots.add(authority).map_err(|error| TlsError::Authority { path: ca.clone(), error })?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(cert)?;
        if !is_of_node(chain.first(), node) {
            return Err(TlsError::NotThisNode { cert: cert.clone(), name: name_of_node(node) });
        }
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File { path: key.clone(), error })?;
        let pair = |error| TlsError::Pair { cert: cert.clone(), key: key.clone(), error };

        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), ring.clone())
            .build()
            .map_err(|error| TlsError::Verifier { path: ca.clone(), error })?;
        let server = ServerConfig::builder_with_provider(ring.clone())
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(pair)?;
        let client = ClientConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private)
            .map_err(pair)?;
        let server_name = match server_name {
            Some(name) => Some(name_of(name)?),
            None => None,
        };
        Ok(Tls {
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
            server_name,
        })
    }

    /// The name that the certificate of the peer at `host:port` must carry.
    pub(crate) fn name_for(&self, address: &str) -> Result<ServerName<'static>, TlsError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                name_of(host.trim_start_matches('[').trim_end_matches(']'))
            }
        }
    }
}

/// The DNS name that the certificate of a node carries.
pub(crate) fn name_of_node(node: NodeId) -> String {
    format!("node-{node}")
}

/// Whether a certificate, whose chain was checked, is that of a node.
pub(crate) fn is_of_node(certificate: Option<&CertificateDer<'_>>, node: NodeId) -> bool {
    let Some(parsed) = certificate.and_then(|c| ParsedCertificate::try_from(c).ok()) else { return false };
    name_of(&name_of_node(node)).is_ok_and(|name| rustls::client::verify_server_name(&parsed, &name).is_ok())
}

fn name_of(host: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))
}

//! Mutual TLS from PEM files. Both sides present a certificate of the cluster's own authority, which contains the DNS name `node-ID` of its
//! node. Without that name, anybody with a certificate of the authority, such as a client, could connect as any node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::NodeId;
use atoll_socket::{Fresh, revocation_lists};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities that may issue certificates of peers.
    pub ca: PathBuf,
    /// This node's certificate, followed by intermediate certificates.
    pub cert: PathBuf,
    /// The private key of this node.
    pub key: PathBuf,
    /// Lists of revoked certificates. If there is a file, certificates are refused unless every authority of their chain has a list in it.
    pub revoked: Option<PathBuf>,
    /// The name that the certificates of peers must contain. None takes the host from each peer's address.
    pub server_name: Option<String>,
}

/// Why TLS could not be set up. Nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read, or is not PEM of the right kind.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: rustls::pki_types::pem::Error,
    },
    /// A file contains no certificate.
    #[error("{}: contains no certificate", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The certificate of an authority cannot be used.
    #[error("{}: {error}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The error.
        error: rustls::Error,
    },
    /// Certificate and key do not match, or the key is of an unknown kind.
    #[error("{} with {}: {error}", cert.display(), key.display())]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The error.
        error: rustls::Error,
    },
    /// The verifier of certificates could not be created, for example because a list of revoked ones is damaged.
    #[error("{}: {error}", path.display())]
    Verifier {
        /// The file with the authorities.
        path: PathBuf,
        /// The error.
        error: rustls::server::VerifierBuilderError,
    },
    /// The configured certificate was not issued for this node.
    #[error("{}: it lacks the DNS name {name:?}, by which other nodes recognise its node; issue a certificate with this name", cert.display())]
    NotThisNode {
        /// The certificate.
        cert: PathBuf,
        /// The name that it lacks.
        name: String,
    },
    /// The server name is neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

/// The TLS configuration of both directions.
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
    /// Loads the files of a node. Errors name the file.
    pub fn load(files: &TlsFiles, node: NodeId) -> Result<Tls, TlsError> {
        let TlsFiles { ca, cert, key, revoked, server_name } = files;
        let mut roots = RootCertStore::empty();
        for authority in certificates(ca)? {
            roots.add(authority).map_err(|error| TlsError::Authority { path: ca.clone(), error })?;
        }
        let roots = Arc::new(roots);
        let lists = |path: &PathBuf| {
            revocation_lists(path).map_err(|error| TlsError::File { path: path.clone(), error })
        };
        let lists = revoked.as_ref().map(lists).transpose()?.unwrap_or_default();
        let chain = certificates(cert)?;
        if !is_of_node(chain.first(), node) {
            return Err(TlsError::NotThisNode { cert: cert.clone(), name: name_of_node(node) });
        }
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File { path: key.clone(), error })?;
        let pair = |error| TlsError::Pair { cert: cert.clone(), key: key.clone(), error };

        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |error| TlsError::Verifier { path: revoked.as_ref().unwrap_or(ca).clone(), error };
        let of_clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), ring.clone())
            .with_crls(lists.clone())
            .build()
            .map_err(unusable)?;
        let of_servers = WebPkiServerVerifier::builder_with_provider(roots, ring.clone())
            .with_crls(lists)
            .build()
            .map_err(unusable)?;
        let server = ServerConfig::builder_with_provider(ring.clone())
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_client_cert_verifier(of_clients)
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(pair)?;
        let client = ClientConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_webpki_verifier(of_servers)
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

    /// Loads the files of a node, and again whenever they change. Connections that exist keep what they were opened with.
    pub(crate) fn load_fresh(files: &TlsFiles, node: NodeId) -> Result<Arc<Fresh<Tls>>, TlsError> {
        let (its, mut paths) = (files.clone(), vec![files.ca.clone(), files.cert.clone(), files.key.clone()]);
        paths.extend(files.revoked.clone());
        Fresh::from_files("TLS between nodes", paths, move || Tls::load(&its, node))
    }

    /// Returns the name that the certificate of the peer at `host:port` must contain.
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

/// Returns the DNS name in the certificate of a node.
pub(crate) fn name_of_node(node: NodeId) -> String {
    format!("node-{node}")
}

/// Returns whether a certificate contains the name of a node. Its chain must have been verified before.
pub(crate) fn is_of_node(certificate: Option<&CertificateDer<'_>>, node: NodeId) -> bool {
    let Some(parsed) = certificate.and_then(|c| ParsedCertificate::try_from(c).ok()) else { return false };
    name_of(&name_of_node(node)).is_ok_and(|name| rustls::client::verify_server_name(&parsed, &name).is_ok())
}

fn name_of(host: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))
}

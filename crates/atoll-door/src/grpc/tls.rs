//! TLS of the gRPC door. The node presents its certificate, and accepts only clients with a certificate of the configured authority, unless
//! the operator lets clients with a token come without one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_socket::{Fresh, Handshakes, revocation_lists};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Why the TLS files of the gRPC door cannot be used. The door does not open.
#[derive(Debug, thiserror::Error)]
pub enum DoorTlsError {
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// A file is not PEM, or contains nothing of the expected kind.
    #[error("{what}: {error}")]
    Pem {
        /// Which file: "the certificate", "the key" or "the authority".
        what: &'static str,
        /// What is wrong with it.
        error: rustls::pki_types::pem::Error,
    },
    /// The lists of revoked certificates cannot be read.
    #[error("{path}: {error}")]
    Revoked {
        /// The file.
        path: String,
        /// What is wrong with it.
        error: rustls::pki_types::pem::Error,
    },
    /// Certificate, key and authority cannot be used, or do not fit together.
    #[error("certificate, key and authority: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority, or a list of revoked certificates, cannot be used to check clients.
    #[error("the authority, or a list of revoked certificates: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The PEM files of the gRPC door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorTlsFiles {
    /// The certificate with its intermediates.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that must have issued the clients' certificates.
    pub authority: PathBuf,
    /// Lists of revoked certificates. If there is a file, certificates are refused unless every authority of their chain has a list in it.
    pub revoked: Option<PathBuf>,
}

/// Whether clients need a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// They do.
    Needed,
    /// They may come without one. One that they show must be good.
    Optional,
}

/// Returns the name in a certificate, by which grants know its client: the common name of its subject, or else its first DNS name.
pub(super) fn certificate_name(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    if let Some(common) = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok()) {
        return Some(Arc::from(common));
    }
    let names = parsed.subject_alternative_name().ok().flatten()?;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::DNSName(dns) => Some(Arc::from(*dns)),
        _ => None,
    })
}

/// TLS of the gRPC door, ready for use. Clones are cheap.
#[derive(Clone)]
pub struct DoorTls {
    source: Source,
    handshakes: Handshakes,
}

#[derive(Clone)]
enum Source {
    Given(TlsAcceptor),
    Files(Arc<Fresh<TlsAcceptor>>),
}

impl DoorTls {
    /// Creates it from PEM: the certificate with its intermediates, its key, and the authority that must have issued the clients'
    /// certificates.
    pub fn new(certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<Self, DoorTlsError> {
        Self::with_certificates(certificate, key, authority, Certificates::Needed)
    }

    /// The same, with the choice whether clients need a certificate.
    pub fn with_certificates(
        certificate: &[u8],
        key: &[u8],
        authority: &[u8],
        clients: Certificates,
    ) -> Result<Self, DoorTlsError> {
        Ok(DoorTls::of(Source::Given(acceptor(certificate, key, authority, Vec::new(), clients)?)))
    }

    /// Creates it from PEM files, which are read again whenever they change. Connections that exist keep what they were opened with.
    ///
    /// # Errors
    /// The files cannot be used now.
    pub fn from_files(files: DoorTlsFiles, clients: Certificates) -> Result<Self, DoorTlsError> {
        let mut paths = vec![files.certificate.clone(), files.key.clone(), files.authority.clone()];
        paths.extend(files.revoked.clone());
        let fresh = Fresh::from_files("TLS of the gRPC door", paths, move || {
            let read = |path: &Path| {
                std::fs::read(path)
                    .map_err(|error| DoorTlsError::Unreadable { path: path.display().to_string(), error })
            };
            let lists = |path: &PathBuf| {
                revocation_lists(path)
                    .map_err(|error| DoorTlsError::Revoked { path: path.display().to_string(), error })
            };
            let revoked = files.revoked.as_ref().map(lists).transpose()?.unwrap_or_default();
            acceptor(
                &read(&files.certificate)?,
                &read(&files.key)?,
                &read(&files.authority)?,
                revoked,
                clients,
            )
        });
        Ok(DoorTls::of(Source::Files(fresh?)))
    }

    fn of(source: Source) -> Self {
        DoorTls { source, handshakes: Handshakes::default() }
    }

    /// Completes the handshake with a client.
    pub(super) async fn accept(&self, tcp: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let acceptor = match &self.source {
            Source::Given(acceptor) => acceptor.clone(),
            Source::Files(fresh) => (*fresh.get()).clone(),
        };
        self.handshakes.run(acceptor.accept(tcp)).await
    }
}

fn acceptor(
    certificate: &[u8],
    key: &[u8],
    authority: &[u8],
    revoked: Vec<CertificateRevocationListDer<'static>>,
    clients: Certificates,
) -> Result<TlsAcceptor, DoorTlsError> {
    let pem = |what| move |error| DoorTlsError::Pem { what, error };
    let list = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let chain = list(certificate).map_err(pem("the certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(pem("the key"))?;
    let mut roots = RootCertStore::empty();
    for root in list(authority).map_err(pem("the authority"))? {
        roots.add(root)?;
    }
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), ring.clone()).with_crls(revoked);
    let verifier = match clients {
        Certificates::Needed => verifier.build()?,
        Certificates::Optional => verifier.allow_unauthenticated().build()?,
    };
    let mut config = ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

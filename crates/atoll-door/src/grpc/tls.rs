//! TLS of the gRPC door. The node presents its certificate, and accepts only clients with a certificate of the configured authority.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Why the TLS files of the gRPC door cannot be used. The door does not open.
#[derive(Debug, thiserror::Error)]
pub enum DoorTlsError {
    /// A file is not PEM, or contains nothing of the expected kind.
    #[error("{what}: {error}")]
    Pem {
        /// Which file: "the certificate", "the key" or "the authority".
        what: &'static str,
        /// What is wrong with it.
        error: rustls::pki_types::pem::Error,
    },
    /// Certificate, key and authority cannot be used, or do not fit together.
    #[error("certificate, key and authority: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority cannot be used to check clients.
    #[error("the authority: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// TLS of the gRPC door, ready for use. Clones are cheap.
#[derive(Clone)]
pub struct DoorTls(pub(super) TlsAcceptor);

impl DoorTls {
    /// Creates it from PEM: the certificate with its intermediates, its key, and the authority that must have issued the clients'
    /// certificates.
    pub fn new(certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<Self, DoorTlsError> {
        let pem = |what| move |error| DoorTlsError::Pem { what, error };
        let list = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let chain = list(certificate).map_err(pem("the certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(pem("the key"))?;
        let mut roots = RootCertStore::empty();
        for root in list(authority).map_err(pem("the authority"))? {
            roots.add(root)?;
        }
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), ring.clone()).build()?;
        let mut config = ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(DoorTls(TlsAcceptor::from(Arc::new(config))))
    }
}

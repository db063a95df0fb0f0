//! TLS of the gRPC door: the node's certificate, and only clients with one of the same authority.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// What is wrong with the files of the gRPC door's TLS. Nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum DoorTlsError {
    /// It is not PEM, or holds nothing of the expected kind.
    #[error("{what}: {error}")]
    Pem {
        /// Which: "the certificate", "the key", "the authority".
        what: &'static str,
        /// What was wrong.
        error: rustls::pki_types::pem::Error,
    },
    /// Certificate, key and authority cannot be used, or not together.
    #[error("certificate, key and authority: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority cannot check clients.
    #[error("the authority: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// TLS of the gRPC door, ready for use. Cheap to clone.
#[derive(Clone)]
pub struct DoorTls(pub(super) TlsAcceptor);

impl DoorTls {
    /// From PEM: the certificate with its intermediates, its key, and the authority that clients' certificates must come from.
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

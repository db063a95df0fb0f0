//! TLS of the gRPC door. The node presents its certificate, and accepts only clients with a certificate of the configured authority, unless
//! the operator lets clients with a token come without one.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

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
pub struct DoorTls(pub(super) TlsAcceptor);

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
        let pem = |what| move |error| DoorTlsError::Pem { what, error };
        let list = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let chain = list(certificate).map_err(pem("the certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(pem("the key"))?;
        let mut roots = RootCertStore::empty();
        for root in list(authority).map_err(pem("the authority"))? {
            roots.add(root)?;
        }
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), ring.clone());
        let verifier = match clients {
            Certificates::Needed => verifier.build()?,
            Certificates::Optional => verifier.allow_unauthenticated().build()?,
        };
        let mut config = ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(DoorTls(TlsAcceptor::from(Arc::new(config))))
    }
}

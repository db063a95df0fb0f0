//! TLS for clients: the door's certificate, and the identity in a client's certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_socket::{Fresh, revocation_lists};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::figures::{ConnectionFigures, Refusal};
use super::{Shared, handshake, subject};
use crate::watch::ConnectionId;

/// A client must finish its TLS handshake within this time.
const WITHIN: Duration = Duration::from_secs(10);

/// Whether clients must present a certificate: ZooKeeper's `ssl.clientAuth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Every client must present one.
    Need,
    /// A client may present one, which then identifies it.
    Want,
    /// No client is asked for one.
    None,
}

/// The PEM files of the door, and how to use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The door's certificate, followed by intermediate certificates.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that may issue clients' certificates. Not read if no client is asked for one.
    pub ca: PathBuf,
    /// Lists of revoked certificates. If there is a file, certificates are refused unless every authority of their chain has a list in it.
    pub revoked: Option<PathBuf>,
    /// Whether clients must present a certificate.
    pub clients: ClientCertificates,
}

/// TLS could not be set up, so the door does not listen.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read, or is not PEM of the right kind.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: rustls::pki_types::pem::Error,
    },
    /// The authorities cannot be used.
    #[error("{}: {words}", path.display())]
    Authority {
        /// Their file.
        path: PathBuf,
        /// The reason.
        words: String,
    },
    /// Certificate and key do not match, or the kind of key is not supported.
    #[error("{} with {}: {error}", cert.display(), key.display())]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The reason.
        error: rustls::Error,
    },
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |error| TlsError::File { path: path.to_owned(), error };
    CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

fn verifier(files: &TlsFiles) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let failed = |words: String| TlsError::Authority { path: files.ca.clone(), words };
    if files.clients == ClientCertificates::None {
        return Ok(Arc::new(NoClientAuth));
    }
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca)? {
        roots.add(authority).map_err(|e| failed(e.to_string()))?;
    }
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let lists =
        |path: &PathBuf| revocation_lists(path).map_err(|error| TlsError::File { path: path.clone(), error });
    let revoked = files.revoked.as_ref().map(lists).transpose()?.unwrap_or_default();
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), ring).with_crls(revoked);
    let builder = match files.clients {
        ClientCertificates::Want => builder.allow_unauthenticated(),
        _ => builder,
    };
    builder.build().map_err(|e| failed(e.to_string()))
}

/// Creates an acceptor from the files, and again whenever they change. Connections that exist keep what they were opened with.
///
/// # Errors
/// The files cannot be used now.
pub fn acceptor(files: &TlsFiles) -> Result<Arc<Fresh<TlsAcceptor>>, TlsError> {
    let mut paths = vec![files.cert.clone(), files.key.clone()];
    if files.clients != ClientCertificates::None {
        paths.push(files.ca.clone());
        paths.extend(files.revoked.clone());
    }
    let its = files.clone();
    Fresh::from_files("TLS of the ZooKeeper door", paths, move || acceptor_now(&its))
}

/// Reads the files and creates an acceptor.
///
/// # Errors
/// The files cannot be used.
pub fn acceptor_now(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsError::File { path: files.key.clone(), error })?;
    let pair = |error| TlsError::Pair { cert: files.cert.clone(), key: files.key.clone(), error };
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_client_cert_verifier(verifier(files)?)
        .with_single_cert(certificates(&files.cert)?, key)
        .map_err(pair)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves a connection over TLS until it ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    id: ConnectionId,
    figures: Arc<ConnectionFigures>,
) {
    let handshake = shared.handshakes.run(acceptor.accept(stream));
    let words = match tokio::time::timeout(WITHIN, handshake).await {
        Ok(Ok(stream)) => {
            figures.is_secure.store(true, Ordering::Relaxed);
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            if let Some(name) = certificate.and_then(|c| subject::rfc2253(c)) {
                // Nothing else sets it, so this cannot fail.
                let _ = figures.subject.set(name);
            }
            return handshake::serve(shared, stream, id, figures).await;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no handshake within {WITHIN:?}"),
    };
    shared.figures.refuse(Refusal::Tls);
    shared.connections().remove(id);
    tracing::info!(peer = %figures.peer, "a ZooKeeper client's TLS: {words}");
}
